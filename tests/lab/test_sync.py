"""`ipexctl sync` on real SSH hosts: uploaded and kept files, refusals, and repetition after failures."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cli_helpers import CommandResult
from install_helpers import Target, statuses
from ipexctl.addons.lab.faults import break_host, mend_host
from ipexctl.addons.lab.lab_plan import LabSpec
from ipexctl.addons.lab.lab_record import Lab

LAB = LabSpec(hosts=3)
pytestmark = [pytest.mark.lab, pytest.mark.timeout(180)]
_numbers = itertools.count()


@dataclass(frozen=True)
class Project(Target):
    """A lab, a home on the hosts that one test has to itself, and a project here."""

    root: Path
    env: dict[str, str]

    def sync(self, *args: object) -> CommandResult:
        return self.install(self.root, *args, verb="sync", env=self.env)

    def report(self, *args: object, rc: int = 0, **more: Any) -> dict[str, Any]:
        return super().report(self.root, *args, rc=rc, verb="sync", env=self.env, **more)

    def put(self, path: str, text: str) -> None:
        place = self.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)

    def on(self, index: int, command: str, *, as_root: bool = False) -> str:
        """A command in the tree of a host."""
        return super().on(index, f"cd $HOME_OF_OURS/code/project-????????/ && {command}", as_root=as_root)


@pytest.fixture
def target(lab: Lab, tmp_path: Path) -> Iterator[Project]:
    root = tmp_path / "project"
    root.mkdir()
    yield Project(lab, f"/home/ipex/sync{next(_numbers)}", root, {"XDG_CACHE_HOME": str(tmp_path / "cache")})
    for host in lab.hosts:
        mend_host(host)


@pytest.mark.core
def test_project_is_at_one_path_and_second_sync_is_one_request(target: Project) -> None:
    target.put("train.py", "print()\n")
    target.put("with space/quo'te\".txt", "1\n")
    target.put("new\nline", "1\n")
    Path(os.fsdecode(os.fsencode(target.root) + b"/bad\xff\xfe")).write_bytes(b"\0\1")
    (target.root / "empty").mkdir()
    (target.root / "link").symlink_to("train.py")
    first = target.report()
    assert set(statuses(first).values()) == {"changed"}
    assert {host["path"] for host in first["hosts"]} == {first["path"]}
    listed = "find . -path ./.ipexctl -prune -o -print0 | sort -z | od -c"
    here = subprocess.run(["sh", "-c", listed], cwd=target.root, capture_output=True, text=True, check=True).stdout
    for index in range(3):
        assert target.on(index, listed) == here
        assert target.on(index, "od -An -tx1 bad*").split() == ["00", "01"]
    again = target.sync("-v")
    assert (again.rc, re.findall(r"^(node\d): (\w+) \(", again.err, re.M)) == (
        0,
        [(name, "asked") for name, _ in re.findall(r"^(node\d): (\w+) \(", again.err, re.M)],
    )
    assert again.err.count("asked") == 3
    assert "nothing to do" in again.err
    assert set(statuses(target.report()).values()) == {"ok"}


def test_read_only_home_fails_only_that_host(target: Project) -> None:
    target.put("train.py", "1")
    target.report()
    break_host(target.lab.hosts[1], "read-only-home")
    assert set(statuses(target.report()).values()) == {"ok"}
    target.put("train.py", "2")
    report = target.report(rc=1)
    assert [host["status"] for host in report["hosts"]] == ["changed", "failed", "changed"]
    assert "read-only" in report["hosts"][1]["reason"]
    assert report["hosts"][1]["fix"]
    mend_host(target.lab.hosts[1])
    assert [host["status"] for host in target.report()["hosts"]] == ["ok", "changed", "ok"]


def test_full_disk_leaves_the_tree_unchanged(target: Project) -> None:
    target.put("train.py", "1")
    target.report()
    break_host(target.lab.hosts[2], "full-disk")
    target.put("train.py", "2" * 3_000_000)
    report = target.report(rc=1)
    assert [host["status"] for host in report["hosts"]] == ["changed", "changed", "failed"]
    assert "disk is full" in report["hosts"][2]["reason"]
    assert target.on(2, "cat train.py") == "1"
    mend_host(target.lab.hosts[2])
    assert target.report()["hosts"][2]["status"] == "changed"
