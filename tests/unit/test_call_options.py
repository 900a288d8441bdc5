"""Commands to type next get the options of the call that they follow; an option is declared once."""

from __future__ import annotations

import ast
import json
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

import pytest
from launch_helpers import cpu, machine, plan

from ipexctl.launch.overrides import check_limits
from ipexctl.node.common.asked import Asked
from ipexctl.node.common.json_records import as_json, decode
from ipexctl.option_declaration import NO_OPTIONS, CallOptions, declared, option_text
from ipexctl.run.start.request import read_exports
from ipexctl.spec import Export, RankOptions, RunOptions, RunSpec, TypedCall, asked_of
from measures import defaults_in, defaults_of_options

OPTIONS = CallOptions(" -H hosts -l a --home /h", " -n 4 --env big --python /opt/py --setup /opt/s --mpi openmpi")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ipexctl doctor", "ipexctl doctor -H hosts -l a --home /h"),
        ("ipexctl doctor checks it; ipexctl trust", ("ipexctl doctor -H hosts -l a --home /h checks it; ipexctl trust "
         "-H hosts -l a --home /h")),
        (
            "(ipexctl install, or ipexctl run --install)",
            (
                "(ipexctl install -H hosts -l a --home /h --env big, or ipexctl run -H hosts -l a --home /h -n 4 "
                "--env big "
            "--python /opt/py --setup /opt/s --mpi openmpi --install)"),
        ),
        ("node0's: ipexctl trust; node1's: ipexctl doctor", ("node0's: ipexctl trust -H hosts -l a --home /h; node1's: "
         "ipexctl doctor -H hosts -l a --home /h")),
        ("ipexctl ps, ipexctl logs RUN, ipexctl why RUN", "ipexctl ps, ipexctl logs RUN, ipexctl why RUN"),
        ("cd /p && ipexctl run -m pkg.train --epochs 3", ("cd /p && ipexctl run -H hosts -l a --home /h -n 4 --env big "
         "--python /opt/py --setup /opt/s --mpi openmpi -m pkg.train --epochs 3")),
        ("ipexctl install --with x", "ipexctl install -H hosts -l a --home /h --env big --with x"),
        ("ipexctl envs", "ipexctl envs -H hosts -l a --home /h"),
        ("ipexctl envs --verify tests it", ("ipexctl envs -H hosts -l a --home /h --env big --python /opt/py --setup "
         "/opt/s --verify tests it")),
    ],
)  # fmt: skip
def test_each_command_gets_the_options_that_it_has(text: str, expected: str) -> None:
    assert OPTIONS.apply(text) == expected


@pytest.mark.parametrize("text", ["nothing to do under ipexctl run", "those of ipexctl install", "ipexctl run sets it"])
def test_a_command_that_is_only_mentioned_stays(text: str) -> None:
    assert OPTIONS.apply(text) == text


def test_an_option_of_the_command_stays_as_it_is() -> None:
    text = "ipexctl install --env other --home=/x; ipexctl run --ppn 2 --python /own …"
    assert OPTIONS.apply(text) == (
        "ipexctl install -H hosts -l a --env other --home=/x; "
        "ipexctl run -H hosts -l a --home /h --env big --setup /opt/s --mpi openmpi --ppn 2 --python /own …"
    )


@pytest.mark.parametrize("own", ["--hosts a,b", "--hosts=a,b", "-H other", "--hostfile=other", "-c lab"])
def test_a_command_that_names_its_hosts_gets_none_of_the_call(own: str) -> None:
    assert OPTIONS.apply(f"ipexctl doctor {own}") == f"ipexctl doctor --home /h {own}"


@pytest.mark.parametrize(
    ("limit", "expected"),
    [("--limit '!b,!c'", "--limit 'a,!b,!c'"), ("-l '!b; c'", "-l 'a,!b; c'"), ("-l b", "-l b")],
)
def test_a_limit_of_the_command_limits_the_hosts_of_the_call(limit: str, expected: str) -> None:
    assert OPTIONS.apply(f"ipexctl doctor {limit} …") == f"ipexctl doctor -H hosts --home /h {expected} …"


def test_without_options_nothing_changes() -> None:
    report = Report((Host("ipexctl doctor"),))
    assert NO_OPTIONS.apply("ipexctl doctor") == "ipexctl doctor"
    assert NO_OPTIONS.in_report(report) is report


def test_setup_alone_is_no_option_of_a_verification() -> None:
    assert CallOptions("", " --setup /s").apply("ipexctl envs --verify") == "ipexctl envs --verify"


def test_files_are_absolute_for_a_command_in_another_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    given = CallOptions(option_text([("-H", Path("my hosts")), ("-l", "a"), ("--user", None)]), " --env e")
    assert given.absolute() == CallOptions(f" -H '{tmp_path}/my hosts' -l a", " --env e")


class Finding(NamedTuple):
    fix: str


@dataclass(frozen=True)
class Host:
    fix: str
    findings: tuple[Finding, ...] = ()


class Report(NamedTuple):
    hosts: tuple[Host, ...]
    cluster: tuple[Finding, ...] = ()


def test_the_fixes_of_a_report_get_the_options() -> None:
    report = Report((Host("ipexctl trust", (Finding("ipexctl install"),)), Host("")), (Finding("see: ipexctl doctor"),))
    assert CallOptions(" -H h").in_report(report) == Report(
        (Host("ipexctl trust -H h", (Finding("ipexctl install -H h"),)), Host("")),
        (Finding("see: ipexctl doctor -H h"),),
    )


LIMITS = [
    (kind, name, limit, value)
    for kind in (RankOptions, RunOptions)
    for name, declaration in declared(kind).items()
    for limit, value in (("minimum", declaration.minimum), ("maximum", declaration.maximum))
    if value is not None
]


def test_rank_wrapper_applies_the_options_that_exports_write_as_words_of_sh() -> None:
    in_sh = [name for name, declaration in declared(RankOptions).items() if declaration.in_sh]
    assert set(in_sh) <= set(Asked._fields)
    assert plan(machine(cpu(4), 1), nice=19).asked.nice == 19


@pytest.mark.parametrize(("kind", "name", "limit", "value"), LIMITS)
def test_limits_are_checked_on_both_sides(kind: type, name: str, limit: str, value: float) -> None:
    outside = value - 1 if limit == "minimum" else value + 1
    options: Any = kind()
    assert check_limits(replace(options, **{name: value})) is None
    refusal = check_limits(replace(options, **{name: outside}))
    assert refusal is not None
    assert declared(kind)[name].flag in refusal.reason


HERE = frozenset(
    ["timeout", "accelerate", "repeats_notes", "hosts", "hosts_from", "project", "options", "secret_files"]
)
SECRET = {"notify", "typed"}
"""May contain a token: `typed` has --notify, too."""


def test_each_field_of_a_run_is_decided() -> None:
    """A new field stays on this machine. Asked has those that may go into plan.json and to the hosts."""
    kept = {each.name for each in fields(RunSpec)} - set(Asked._fields)
    assert kept == HERE | SECRET
    assert set(Asked._fields) <= {each.name for each in fields(RunSpec)}
    assert not [name for name, kind in get_type_hints(Asked).items() if "Path" in str(kind) or "Host" in str(kind)]


@dataclass(frozen=True, slots=True)
class LargerSpec(RunSpec):
    tracker_token: str = ""


def test_a_plan_has_no_field_that_is_not_decided_and_none_that_may_contain_a_secret() -> None:
    exports = (Export("TOKEN", "5ecret", secret=True), Export("LOUD", "1"))
    typed = TypedCall(("--notify", "curl 5ecret"))
    spec = LargerSpec(
        "script", ("train.py",), tracker_token="5ecret", notify="curl 5ecret", exports=exports, typed=typed
    )
    asked = asked_of(spec)
    assert [(one.name, one.value) for one in asked.exports] == [("TOKEN", None), ("LOUD", "1")]
    assert "5ecret" not in json.dumps(as_json(asked))
    assert decode(Asked, json.loads(json.dumps(as_json(asked))), "asked") == asked


def test_a_value_that_the_plan_shows_is_no_secret(tmp_path: Path) -> None:
    (tmp_path / "env").write_text("MASTER_PORT=1\nKEY=2\n")
    exports = read_exports(["MASTER_ADDR", "TOKEN"], [tmp_path / "env"], {"MASTER_ADDR": "10.0.0.1", "TOKEN": "3"})
    assert {each.name for each in exports if each.secret} == {"KEY", "TOKEN"}
    assert {each.name for each in exports if not each.secret} == {"MASTER_ADDR", "MASTER_PORT"}


def test_a_plan_of_version_0_5_is_read() -> None:
    """A new field of Asked needs a default, because older plans lack it."""
    required = set(Asked._fields) - set(Asked._field_defaults)
    assert len(required) == 56
    document = json.loads(json.dumps(as_json(asked_of(RunSpec("script", ("train.py",))))))
    older = {name: value for name, value in document.items() if name in required}
    assert decode(Asked, older, "asked") == decode(Asked, document, "asked")


def test_a_second_place_of_a_default_is_noticed() -> None:
    source = """
class Record:
    hang_after: float = 600.0
    other: float = 600.0
def follow(*, reconnect: float = 300.0, forks: int = 1): ...
fan_out(forks=32)
HELP = "Report a hang after S seconds (default: 600)."
OPTIONS = {"on_hang": Option("str", default="report")}
"""
    names = [name for name, _ in defaults_in(ast.parse(source), defaults_of_options())]
    assert sorted(names) == ["forks", "hang_after", "hang_after", "on_hang", "reconnect"]
