"""`ipexctl sync` on real SSH hosts: what arrives, what stays, what is refused, and how it goes on after a fall."""

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

import install_helpers
from cli_helpers import Ran
from install_helpers import statuses
from ipexctl.lab import Lab, LabSpec, break_host, mend_host
from lab_helpers import ask

LAB = LabSpec(hosts=3, name=f"sync-{os.getpid()}")
pytestmark = [pytest.mark.lab, pytest.mark.timeout(180)]
_numbers = itertools.count()


@dataclass(frozen=True)
class Cluster(install_helpers.Cluster):
    """A lab, a home on the hosts that one test has to itself, and a project here."""

    root: Path
    env: dict[str, str]

    def sync(self, *args: object) -> Ran:
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
def cluster(lab: Lab, tmp_path: Path) -> Iterator[Cluster]:
    root = tmp_path / "project"
    root.mkdir()
    yield Cluster(lab, f"/home/ipex/sync{next(_numbers)}", root, {"XDG_CACHE_HOME": str(tmp_path / "cache")})
    for host in lab.hosts:
        mend_host(host)


@pytest.mark.core
def test_every_host_has_the_project_at_one_path_and_a_second_call_is_one_question(cluster: Cluster) -> None:
    cluster.put("train.py", "print()\n")
    cluster.put("with space/quo'te\".txt", "1\n")
    cluster.put("new\nline", "1\n")
    Path(os.fsdecode(os.fsencode(cluster.root) + b"/bad\xff\xfe")).write_bytes(b"\0\1")
    (cluster.root / "empty").mkdir()
    (cluster.root / "link").symlink_to("train.py")
    first = cluster.report()
    assert set(statuses(first).values()) == {"changed"}
    assert {host["path"] for host in first["hosts"]} == {first["path"]}
    listed = "find . -path ./.ipexctl -prune -o -print0 | sort -z | od -c"
    here = subprocess.run(["sh", "-c", listed], cwd=cluster.root, capture_output=True, text=True, check=True).stdout
    for index in range(3):
        assert cluster.on(index, listed) == here
        assert cluster.on(index, "od -An -tx1 bad*").split() == ["00", "01"]
    again = cluster.sync("-v")
    assert (again.rc, re.findall(r"^(node\d): (\w+) \(", again.err, re.M)) == (
        0,
        [(name, "asked") for name, _ in re.findall(r"^(node\d): (\w+) \(", again.err, re.M)],
    )
    assert again.err.count("asked") == 3
    assert "nothing to do" in again.err
    assert set(statuses(cluster.report()).values()) == {"ok"}


def test_a_host_that_cannot_be_written_fails_alone_and_says_why(cluster: Cluster) -> None:
    cluster.put("train.py", "1")
    cluster.report()
    break_host(cluster.lab.hosts[1], "read-only-home")
    assert set(statuses(cluster.report()).values()) == {"ok"}
    cluster.put("train.py", "2")
    report = cluster.report(rc=1)
    assert [host["status"] for host in report["hosts"]] == ["changed", "failed", "changed"]
    assert "read-only" in report["hosts"][1]["reason"]
    assert report["hosts"][1]["fix"]
    mend_host(cluster.lab.hosts[1])
    assert [host["status"] for host in cluster.report()["hosts"]] == ["ok", "changed", "ok"]


def test_a_full_disk_leaves_the_tree_as_it_was(cluster: Cluster) -> None:
    cluster.put("train.py", "1")
    cluster.report()
    break_host(cluster.lab.hosts[2], "full-disk")
    cluster.put("train.py", "2" * 3_000_000)
    report = cluster.report(rc=1)
    assert [host["status"] for host in report["hosts"]] == ["changed", "changed", "failed"]
    assert "disk is full" in report["hosts"][2]["reason"]
    assert cluster.on(2, "cat train.py") == "1"
    mend_host(cluster.lab.hosts[2])
    assert cluster.report()["hosts"][2]["status"] == "changed"


def test_much_crosses_our_link_once(cluster: Cluster) -> None:
    (cluster.root / "weights.bin").write_bytes(os.urandom(12_000_000))
    for index in range(20):
        (cluster.root / f"part{index}").write_bytes(os.urandom(50_000))
    report = cluster.report()
    assert set(statuses(report).values()) == {"changed"}
    assert 13_000_000 <= sum(host["sent_bytes"] for host in report["hosts"]) < 13_200_000
    for index in range(3):
        assert cluster.on(index, "ls | wc -l").strip() == "21"
        assert ask(cluster.lab.hosts[index], f"find {cluster.home}/tmp -type f").out == ""


def test_an_unreachable_host_is_named_and_the_others_have_it(cluster: Cluster) -> None:
    cluster.put("train.py", "1")
    break_host(cluster.lab.hosts[0], "sshd-dead")
    report = cluster.report(rc=3)
    assert [host["status"] for host in report["hosts"]] == ["unreachable", "changed", "changed"]


def test_too_big_a_project_touches_no_host(cluster: Cluster) -> None:
    with (cluster.root / "data.bin").open("wb") as file:
        file.truncate(1_200_000_000)
    ran = cluster.sync()
    assert ran.rc == 2
    assert "data.bin (1.2 GB)" in ran.err
    assert ".ipexctlignore" in ran.err
    assert ask(cluster.lab.hosts[0], f"ls {cluster.home}").rc != 0
    cluster.put("a", "1")
    assert cluster.sync("--data", "data.bin").rc == 0


@pytest.mark.core
def test_credentials_reach_no_host_unless_the_call_names_them(cluster: Cluster) -> None:
    credentials = (
        ".env",
        ".netrc",
        ".ssh/id_ed25519",
        "deep/.aws/credentials",
        "deep/server.pem",
        ".docker/config.json",
    )
    for path in ("train.py", "deep/module.py", *credentials):
        cluster.put(path, "secret")
    listed = "find . -path ./.ipexctl -prune -o -type f -print | sort"
    for args in (("--dry-run",), ()):
        ran = cluster.sync(*args)
        assert ran.rc == 0, ran.err
        (note,) = [line for line in ran.err.splitlines() if "--include" in line]
        assert ".docker/config.json, .env, .netrc" in note
    assert [cluster.on(index, listed).split() for index in range(3)] == [["./deep/module.py", "./train.py"]] * 3
    report = cluster.report("--include", ".env", "--include", "*.pem", "--exclude", "*.pem")
    assert report["left_out"] == [".docker/config.json", ".netrc", ".ssh/", "deep/.aws/"]
    assert cluster.on(1, listed).split() == ["./.env", "./deep/module.py", "./train.py"]
    report = cluster.report("--dry-run")
    assert {tuple(host["would_delete"]) for host in report["hosts"]} == {(".env",)}
    assert [host["files_deleted"] for host in cluster.report()["hosts"]] == [1, 1, 1]
    assert cluster.on(2, listed).split() == ["./deep/module.py", "./train.py"]
