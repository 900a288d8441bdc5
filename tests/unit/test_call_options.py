"""Commands to type next get the options of the call that they follow."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest

from ipexctl.call_options import NO_OPTIONS, CallOptions, option_text

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
