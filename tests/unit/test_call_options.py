"""Commands to type next get the options of the call that they follow; an option is declared once."""

from __future__ import annotations

import ast
import json
from dataclasses import dataclass, fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, get_type_hints

import pytest
from launch_helpers import cpu, machine, plan

from ipexctl.api import host_stacks
from ipexctl.launch.overrides import check_limits
from ipexctl.launch.run_declarations import DECLARED
from ipexctl.launch.spec import RunSpec
from ipexctl.node.common.fix import Fix, fix_from_json
from ipexctl.node.common.json_records import decode, encode
from ipexctl.node.common.plan import to_json
from ipexctl.node.common.run_options import Export, RunOptions
from ipexctl.option_declaration import (
    DEFAULT_ENV,
    DEFAULT_HOME,
    NO_OPTIONS,
    CallOptions,
    SyncOptions,
    TypedCall,
    declarations_of,
    option_text,
)
from ipexctl.run.start.start_request import read_exports
from measures import defaults_in, defaults_of_options, modules
from plan_helpers import changed, spec_of


@pytest.mark.parametrize(
    "part", [["ipexctl ", [], []], ["", [], []], ["ipexctl ", [1], [{}]], [1, [], [], 4], {}, None]
)
def test_a_fix_that_a_host_has_made_up_is_shown(part: object) -> None:
    text = str(OPTIONS.apply(fix_from_json(["try: ", part])))
    assert text.startswith("try: ")


OPTIONS = CallOptions(" -H hosts -l a --home /h", " -n 4 --env big --python /opt/py --setup /opt/s --mpi openmpi")


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("`ipexctl doctor`", "ipexctl doctor -H hosts -l a --home /h"),
        ("`ipexctl doctor` checks it; `ipexctl sync`", ("ipexctl doctor -H hosts -l a --home /h checks it; ipexctl "
         "sync -H hosts -l a --home /h")),
        (
            "(`ipexctl install`, or `ipexctl run --install`)",
            (
                "(ipexctl install -H hosts -l a --home /h --env big, or ipexctl run -H hosts -l a --home /h -n 4 "
                "--env big "
            "--python /opt/py --setup /opt/s --mpi openmpi --install)"),
        ),
        ("`ipexctl logs RUN`, `ipexctl why RUN`", "ipexctl logs RUN, ipexctl why RUN"),
        ("`ipexctl ps`, `ipexctl ps --prune`", "ipexctl ps -H hosts, ipexctl ps --prune"),
        ("`ipexctl stop RUN --force`", "ipexctl stop RUN -H hosts --home /h --force"),
        ("`cd /p && ipexctl run -m pkg.train --epochs 3`", ("cd /p && ipexctl run -H hosts -l a --home /h -n 4 --env "
         "big --python /opt/py --setup /opt/s --mpi openmpi -m pkg.train --epochs 3")),
        ("`ipexctl install --with x`", "ipexctl install -H hosts -l a --home /h --env big --with x"),
        ("`ipexctl envs`", "ipexctl envs -H hosts -l a --home /h"),
        ("`ipexctl envs --verify` tests it", ("ipexctl envs -H hosts -l a --home /h --env big --python /opt/py --setup "
         "/opt/s --verify tests it")),
    ],
)  # fmt: skip
def test_each_command_gets_the_options_that_it_has(template: str, expected: str) -> None:
    assert OPTIONS.apply(Fix(template)) == expected


@pytest.mark.parametrize(
    ("hosts", "command", "expected"),
    [
        ("", "ipexctl doctor", "cd /p && ipexctl doctor"),
        ("", "ipexctl install --with x", "cd /p && ipexctl install --with x"),
        ("", "ipexctl exec --hosts a -- ls", "ipexctl exec --hosts a -- ls"),
        ("", "ipexctl why RUN", "ipexctl why RUN"),
        (" -H /h", "ipexctl doctor", "ipexctl doctor -H /h"),
        (" -H /h", "ipexctl sync", "cd /p && ipexctl sync -H /h"),
    ],
)
def test_a_command_goes_to_the_directory_of_the_call_for_its_hosts(hosts: str, command: str, expected: str) -> None:
    options = CallOptions(hosts, call=TypedCall((), ("t.py",), "/p"))
    assert options.apply(Fix(f"`{command}`")) == expected
    here = CallOptions(hosts, call=TypedCall((), ("t.py",), str(Path.cwd())))
    assert here.apply(Fix(f"`{command}`")) == expected.removeprefix("cd /p && ")


def test_a_command_that_is_only_mentioned_stays() -> None:
    assert OPTIONS.apply("nothing to do under ipexctl run") == "nothing to do under ipexctl run"


def test_an_option_of_the_command_stays_as_it_is() -> None:
    fix = Fix("`ipexctl install --env other --home=/x`; `ipexctl run --ppn 2 --python /own {*argv}`", argv=["--env"])
    assert OPTIONS.apply(fix) == (
        "ipexctl install -H hosts -l a --env other --home=/x; "
        "ipexctl run -H hosts -l a --home /h --env big --setup /opt/s --mpi openmpi --ppn 2 --python /own --env"
    )


@pytest.mark.parametrize("own", ["--hosts a,b", "--hosts=a,b", "-H other", "--hostfile=other", "-c lab"])
def test_a_command_that_names_its_hosts_gets_none_of_the_call(own: str) -> None:
    assert OPTIONS.apply(Fix(f"`ipexctl doctor {own}`")) == f"ipexctl doctor --home /h {own}"


@pytest.mark.parametrize(
    ("limit", "expected"),
    [("--limit '!b,!c'", "--limit 'a,!b,!c'"), ("-l '!b; c'", "-l 'a,!b; c'"), ("-l b", "-l b")],
)
def test_a_limit_of_the_command_limits_the_hosts_of_the_call(limit: str, expected: str) -> None:
    assert OPTIONS.apply(Fix(f"`ipexctl doctor {limit}` …")) == f"ipexctl doctor -H hosts --home /h {expected} …"


def test_a_fix_of_an_install_names_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_stacks, "install_request", lambda *_, **__: Projects())
    monkeypatch.setattr(host_stacks, "_install", lambda *_: Host(Fix("add it: `ipexctl install --with x`")))
    opened: Any = SimpleNamespace(warm=lambda: None, pool=None, hosts=(), options=CallOptions(" --hosts a"))
    found: Any = host_stacks.install(opened, env="tune")
    assert found.fix == "add it: ipexctl install --hosts a --env tune --with x"


def test_without_options_nothing_changes() -> None:
    report = Report((Host(Fix("`ipexctl doctor`")),))
    assert NO_OPTIONS.apply(Fix("`ipexctl doctor`")) == "ipexctl doctor"
    assert NO_OPTIONS.in_report(report) is report


def test_setup_alone_is_no_option_of_a_verification() -> None:
    assert CallOptions("", " --setup /s").apply(Fix("`ipexctl envs --verify`")) == "ipexctl envs --verify"


def test_files_are_absolute_for_a_command_in_another_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    given = CallOptions(option_text([("-H", Path("my hosts")), ("-l", "a"), ("--user", None)]), " --env e --cwd p")
    assert given.absolute() == CallOptions(f" -H '{tmp_path}/my hosts' -l a", f" --env e --cwd {tmp_path}/p")


@dataclass(frozen=True)
class Projects:
    projects: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()


class Finding(NamedTuple):
    fix: str


@dataclass(frozen=True)
class Host:
    fix: str
    findings: tuple[Finding, ...] = ()


class OfAll(NamedTuple):
    findings: tuple[Finding, ...] = ()


class Report(NamedTuple):
    hosts: tuple[Host, ...]
    cluster: OfAll = OfAll()


def test_the_fixes_of_a_report_get_the_options() -> None:
    sync, install = Fix("`ipexctl sync`"), Fix("`ipexctl install`")
    report = Report((Host(sync, (Finding(install),)), Host("")), OfAll((Finding(Fix("see: `ipexctl doctor`")),)))
    assert CallOptions(" -H h").in_report(report) == Report(
        (Host("ipexctl sync -H h", (Finding("ipexctl install -H h"),)), Host("")),
        OfAll((Finding("see: ipexctl doctor -H h"),)),
    )


LIMITS = [
    (name, limit, value)
    for name, declaration in DECLARED.items()
    for limit, value in (("minimum", declaration.minimum), ("maximum", declaration.maximum))
    if value is not None
]


@pytest.mark.parametrize(("name", "limit", "value"), LIMITS)
def test_limits_are_checked_on_both_sides(name: str, limit: str, value: Any) -> None:
    outside = value - 1 if limit == "minimum" else value + 1
    assert check_limits(RunOptions(**{name: value})) is None
    refusal = check_limits(RunOptions(**{name: outside}))
    assert refusal is not None
    assert DECLARED[name].flag in refusal.reason


HERE = {
    "timeout",
    "accelerate",
    "repeats_notes",
    "hosts",
    "hosts_from",
    "project",
    "without_bf16",
    "options",
    "secret_files",
}
SECRET = {"secrets", "notify", "typed"}
"""May contain a token: `typed` has --notify, too."""
OPTIONS_OF_HOSTS = set(DECLARED)
"""Options that go into plan.json and to the hosts, as do the following."""
OTHERS_OF_HOSTS = {
    *("kind", "argv", "home", "iface", "exports", "sources", "master_addr", "local_rank", "allocator", "openmp"),
    *("stack", "torch", "install", "packages", "requirements", "takes_own_requirements", "extra", "group", "builds"),
    *("checkpoint_is_found", "is_followed", "is_attended", "first_world_size", "resumed"),
    *("python_flags", "in_front", "is_behind_dashes"),
}


def test_each_field_of_a_run_is_decided() -> None:
    """What never leaves the control machine is in the spec, and what may go to the hosts is in RunOptions."""
    assert {each.name for each in fields(RunSpec)} == {"asked"} | HERE | SECRET
    assert set(RunOptions._fields) == OPTIONS_OF_HOSTS | OTHERS_OF_HOSTS
    assert not [name for name, kind in get_type_hints(RunOptions).items() if "Path" in str(kind) or "Host" in str(kind)]
    assert {each.name for each in fields(RunSpec) if not each.repr} == SECRET


def test_a_plan_has_nothing_of_the_spec_that_stays_here() -> None:
    marks = {
        "timeout": 81818.5,
        "hosts_from": "81818",
        "typed": TypedCall(("--notify", "81818"), ("81818",), "/81818"),
        "notify": "81818",
        "secrets": {"TOKEN": "81818"},
        "secret_files": (Path("/81818"),),
        "options": CallOptions(" -H 81818"),
    }
    used = {"accelerate", "hosts", "project", "repeats_notes", "without_bf16"}
    assert set(marks) == (HERE | SECRET) - used, "from the others the plan takes what it needs"
    exports = (Export("TOKEN", "-x", None), Export("LOUD", "-x", "1"))
    found = plan(machine(cpu(4), 1), exports=exports, **marks)
    assert [(one.name, one.value) for one in found.asked.exports] == [("TOKEN", None), ("LOUD", "1")]
    assert "81818" not in json.dumps(to_json(found)) + repr(found)
    assert "81818" not in repr(changed(spec_of(exports=exports), **{name: marks[name] for name in SECRET}))
    assert decode(RunOptions, json.loads(json.dumps(encode(found.asked))), "asked") == found.asked


def test_the_planner_reads_nothing_else_of_the_spec() -> None:
    read = {
        (path, node.attr)
        for path, tree in modules().items()
        if path.startswith("ipexctl/launch/")
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value).rpartition(".")[2] == "spec"
    }
    needed = {"asked", "variables", "accelerate", "hosts", "project", "secrets", "without_bf16"}
    assert {name for _, name in read} == needed
    assert {path for path, name in read if name == "secrets"} == {"ipexctl/launch/launchers/unwrap.py"}, "it adds some"


def test_a_value_that_the_plan_shows_is_no_secret(tmp_path: Path) -> None:
    (tmp_path / "env").write_text("MASTER_PORT=1\nKEY=2\nTOKEN=4\nLOUD=5\n")
    words = ["MASTER_ADDR", "TOKEN", "LOUD=6"]
    exports, secrets = read_exports(words, [tmp_path / "env"], {"MASTER_ADDR": "10.0.0.1", "TOKEN": "3"})
    assert secrets == {"KEY": "2", "TOKEN": "3"}
    shown = {each.name: each.value for each in exports if each.value is not None}
    assert shown == {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "1", "LOUD": "6"}
    assert {each.name for each in exports} == {*secrets, *shown}


def test_the_plan_of_any_version_is_read() -> None:
    """A field that an older plan lacks has its default, and a word of a newer version is kept."""
    assert decode(RunOptions, {}, "asked") == RunOptions()
    newer: Any = decode(RunOptions, {"on_hang": "restart", "unknown": 1, "tag": None}, "asked")
    assert newer == RunOptions()._replace(on_hang=newer.on_hang)
    assert newer.on_hang == "restart"


def test_defaults_that_the_agent_cannot_import_are_those_of_the_other_commands() -> None:
    assert (RunOptions().env, RunOptions().home) == (DEFAULT_ENV, DEFAULT_HOME)
    of_sync = {name: getattr(SyncOptions(), name) for name in declarations_of(SyncOptions)}
    assert of_sync == {name: RunOptions._field_defaults[name] for name in of_sync}


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
