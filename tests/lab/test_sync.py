"""`ipexctl sync` on real SSH hosts: what arrives, what stays, what is refused, and how it goes on after a fall."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cli_helpers import IPEXCTL, Ran, ipexctl
from ipexctl.lab import Lab, LabSpec, break_host, mend_host
from lab_helpers import ask

LAB = LabSpec(hosts=3, name=f"sync-{os.getpid()}")
pytestmark = [pytest.mark.lab, pytest.mark.timeout(180)]
_numbers = itertools.count()


@dataclass(frozen=True)
class Cluster:
    """A lab, a project here, and a home on the hosts that one test has to itself."""

    lab: Lab
    root: Path
    home: str
    env: dict[str, str]

    @property
    def argv(self) -> list[object]:
        return ["sync", "-H", self.lab.hostfile, "--home", self.home, self.root]

    def sync(self, *args: object, **more: Any) -> Ran:
        return ipexctl(*self.argv, *args, env=self.env, **more)

    def report(self, *args: object, rc: int = 0) -> dict[str, Any]:
        ran = self.sync(*args, "--json")
        assert ran.rc == rc, ran.err + ran.out
        data: dict[str, Any] = json.loads(ran.out)
        return data

    def put(self, path: str, text: str) -> None:
        place = self.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)

    def on(self, index: int, command: str, **more: Any) -> str:
        """A command in the tree of a host."""
        said = ask(self.lab.hosts[index], f"cd {self.home}/code/project-????????/ && {command}", **more)
        assert said.rc == 0, said.err
        return said.out


@pytest.fixture
def cluster(lab: Lab, tmp_path: Path) -> Iterator[Cluster]:
    root = tmp_path / "project"
    root.mkdir()
    yield Cluster(lab, root, f"/home/ipex/sync{next(_numbers)}", {"XDG_CACHE_HOME": str(tmp_path / "cache")})
    for host in lab.hosts:
        mend_host(host)


def statuses(report: dict[str, Any]) -> set[str]:
    return {host["status"] for host in report["hosts"]}


@pytest.mark.core
def test_every_host_has_the_project_at_one_path_and_a_second_call_is_one_question(cluster: Cluster) -> None:
    cluster.put("train.py", "print()\n")
    cluster.put("with space/quo'te\".txt", "1\n")
    cluster.put("new\nline", "1\n")
    Path(os.fsdecode(os.fsencode(cluster.root) + b"/bad\xff\xfe")).write_bytes(b"\0\1")
    (cluster.root / "empty").mkdir()
    (cluster.root / "link").symlink_to("train.py")
    first = cluster.report()
    assert statuses(first) == {"changed"}
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
    assert statuses(cluster.report()) == {"ok"}


@pytest.mark.core
def test_checkpoints_and_outputs_are_never_lost_and_only_ours_is_deleted(cluster: Cluster) -> None:
    cluster.put("train.py", "1")
    cluster.put("old/module.py", "1")
    cluster.report()
    cluster.on(0, "mkdir -p out && echo weights >out/epoch-1.pt && echo log >old/run.log && echo 1 >last.pt")
    cluster.put("train.py", "2")
    (cluster.root / "old/module.py").unlink()
    (cluster.root / "old").rmdir()
    report = cluster.report()
    assert [host["files_deleted"] for host in report["hosts"]] == [1, 1, 1]
    assert cluster.on(0, "cat out/epoch-1.pt old/run.log last.pt train.py") == "weights\nlog\n1\n2"
    assert cluster.on(1, "ls -A").split() == [".ipexctl", "train.py"]


def test_while_a_run_uses_the_tree_a_change_goes_beside_it_on_every_host(cluster: Cluster) -> None:
    cluster.put("train.py", "1")
    path = cluster.report()["path"]
    for index in range(3):
        cluster.on(index, "echo '{\"made\": 9999999999}' >.ipexctl/leases/r-20261120-7")
    cluster.put("train.py", "2")
    report = cluster.report()
    assert {host["path"] for host in report["hosts"]} == {f"{path}.gen2"}
    assert "r-20261120-7" in report["notes"][0]
    assert [cluster.on(index, "cat train.py ../*.gen2/train.py") for index in range(3)] == ["12"] * 3
    cluster.on(1, 'mkdir -p ../../runs/r-20261120-7; echo \'{"state": "ok"}\' >../../runs/r-20261120-7/status.json')
    report = cluster.report()
    assert {host["path"] for host in report["hosts"]} == {path}
    assert cluster.on(2, "cat train.py") == "2"


def test_a_sync_killed_at_any_moment_is_mended_by_the_next(cluster: Cluster) -> None:
    for index in range(300):
        cluster.put(f"pkg{index % 9}/m{index}.py", f"{index}" * 200)
    cluster.report()
    cluster.on(0, "echo weights >ckpt.pt")
    for delay in (0.5, 0.8, 1.1, 1.5):
        for index in range(0, 300, 2):
            cluster.put(f"pkg{index % 9}/m{index}.py", f"{delay} {index}")
        process = subprocess.Popen(
            [*IPEXCTL, *map(str, cluster.argv)],
            env={**os.environ, **cluster.env},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
        process.wait()
    cluster.report()
    digest = "find . -path ./.ipexctl -prune -o -name '*.py' -print0 | sort -z | xargs -0 sha256sum"
    here = subprocess.run(["sh", "-c", digest], cwd=cluster.root, capture_output=True, text=True, check=True).stdout
    for index in range(3):
        assert cluster.on(index, digest) == here
    assert cluster.on(0, "cat ckpt.pt; ls .ipexctl") == "weights\nleases\nstate.json\n"


def test_a_host_that_cannot_be_written_fails_alone_and_says_why(cluster: Cluster) -> None:
    cluster.put("train.py", "1")
    cluster.report()
    break_host(cluster.lab.hosts[1], "read-only-home")
    assert statuses(cluster.report()) == {"ok"}
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
    assert statuses(report) == {"changed"}
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
