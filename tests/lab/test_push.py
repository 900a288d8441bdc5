"""`push` on real hosts: once over the uplink, resumed after a cut, refused where files differ, one writer a path."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agent_helpers import wait_until
from benchmarks.uplink import capped, crossed
from cli_helpers import CommandResult, begin, ipexctl
from install_helpers import statuses
from ipexctl.addons.lab.faults import break_host, mend_host
from ipexctl.addons.lab.lab_plan import LabSpec
from ipexctl.addons.lab.lab_record import Lab
from lab_helpers import on_host
from message_data import missing

LAB = LabSpec(hosts=4)
pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]
SUMS = "cd {0} && find . -type f -exec sha256sum {{}} + | sort -k 2"
MB = 1_000_000


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    source = tmp_path / "corpus"
    (source / "small").mkdir(parents=True)
    for number in range(50):
        (source / f"small/{number}.txt").write_text(f"line {number}\n" * 100)
    (source / "shard-0.bin").write_bytes(os.urandom(12 * MB))
    (source / "shard-1.bin").write_bytes(os.urandom(8 * MB))
    (source / "first").symlink_to("shard-0.bin")
    return source


@pytest.fixture
def hosts(lab: Lab) -> Iterator[Lab]:
    yield lab
    for host in lab.hosts:
        mend_host(host)
        on_host(host, "rm -rf ~/data")


def push(lab: Lab, source: Path, path: str, *args: str, rc: int = 0) -> CommandResult:
    ran = ipexctl("push", source, path, "-H", lab.hostfile, *args, timeout=120)
    assert ran.rc == rc, ran.err + ran.out
    return ran


def document(lab: Lab, source: Path, path: str, *args: str, rc: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(push(lab, source, path, "--json", *args, rc=rc).out)
    return found


def sums(source: Path) -> str:
    return subprocess.run(SUMS.format(shlex.quote(str(source))), shell=True, capture_output=True, text=True).stdout


@pytest.mark.core
def test_data_crosses_the_uplink_once_and_what_differs_needs_force(hosts: Lab, corpus: Path) -> None:
    before = crossed(hosts)
    found = document(hosts, corpus, "data/corpus")
    assert set(statuses(found).values()) == {"changed"}, found
    assert crossed(hosts) - before < 1.3 * 20 * MB
    assert sum(host["sent_bytes"] for host in found["hosts"]) < 1.1 * 20 * MB
    for host in hosts.hosts:
        assert on_host(host, SUMS.format("data/corpus")) == sums(corpus)
        assert on_host(host, "ls -A data data/corpus; readlink data/corpus/first; ls -A | grep ipexctl || true") == (
            "data:\ncorpus\n\ndata/corpus:\nfirst\nshard-0.bin\nshard-1.bin\nsmall\nshard-0.bin\n.ipexctl\n"
        )
    assert set(statuses(document(hosts, corpus, "data/corpus")).values()) == {"ok"}

    on_host(hosts.hosts[1], "echo mine > data/corpus/small/7.txt")
    on_host(hosts.hosts[2], "rm data/corpus/shard-1.bin")
    dry = document(hosts, corpus, "data/corpus", "--dry-run", rc=1)
    assert statuses(dry) == {"node1": "ok", "node2": "failed", "node3": "changed", "node4": "ok"}
    refused = push(hosts, corpus, "data/corpus", rc=1)
    assert "small/7.txt" in refused.err
    assert "--force" in refused.err
    assert "continues" not in refused.err
    assert on_host(hosts.hosts[1], "cat data/corpus/small/7.txt") == "mine\n"
    assert on_host(hosts.hosts[2], SUMS.format("data/corpus")) == sums(corpus)
    forced = document(hosts, corpus, "data/corpus", "--force")
    assert statuses(forced) == {"node1": "ok", "node2": "changed", "node3": "ok", "node4": "ok"}
    assert on_host(hosts.hosts[1], SUMS.format("data/corpus")) == sums(corpus)


def test_push_goes_on_after_its_connection_was_cut_and_after_ctrl_c(hosts: Lab, tmp_path: Path) -> None:
    model = tmp_path / "model.bin"
    model.write_bytes(os.urandom(24 * MB))
    first, second = hosts.hosts[:2]
    with capped(hosts, 4):
        for after in (5 * MB, 10 * MB):
            pushing = begin("push", model, "node[1-2]:data/", "-H", hosts.hostfile)
            measure = "stat -c %s data/.ipexctl-push-*/store/*.part 2>/dev/null || true"
            wait_until(
                lambda: max(map(int, on_host(first, measure).split()), default=0) > after,  # noqa: B023
                60,
                lambda: on_host(first, "find data -ls"),
            )
            if after == 5 * MB:
                subprocess.run(["ss", "-K", "dst", first.address, "dport", "=", "22"], capture_output=True, check=True)
            else:
                pushing.send_signal(2)
            _, said = pushing.communicate(timeout=60)
            assert pushing.returncode == (3 if after == 5 * MB else 130)
            assert missing(said, "node1 24 MB have arrived") == [] or after == 5 * MB
            assert not on_host(first, "ls data/model.bin 2>/dev/null || true")
    before = crossed(hosts)
    found = document(hosts, model, "node[1-2]:data/")
    assert statuses(found) == {"node1": "changed", "node2": "ok"}, "node2 got it when node1 was cut off"
    assert crossed(hosts) - before < (24 - 8) * MB
    for host in (first, second):
        assert on_host(host, "cd data && ls -A && sha256sum model.bin").split()[:2] == [
            "model.bin",
            subprocess.run(["sha256sum", model], capture_output=True, text=True).stdout.split()[0],
        ]


def test_host_that_is_full_or_away_leaves_the_others_alone(hosts: Lab, corpus: Path) -> None:
    break_host(hosts.hosts[1], "full-disk")
    break_host(hosts.hosts[2], "sshd-dead")
    found = document(hosts, corpus, "data/corpus", rc=3)
    assert statuses(found) == {"node1": "changed", "node2": "failed", "node3": "unreachable", "node4": "changed"}
    assert "full" in found["hosts"][1]["reason"]
    assert on_host(hosts.hosts[3], SUMS.format("data/corpus")) == sums(corpus)
    sparse = corpus.parent / "sparse"
    sparse.touch()
    os.truncate(sparse, 10**12)
    found = document(hosts, sparse, "node[1,4]:data/", rc=1)  # before it is read
    assert ["1000.0 GB more needed" in host["reason"] for host in found["hosts"]] == [True, True]


def test_one_host_writes_a_directory_that_all_see(make_lab: Callable[[LabSpec], Lab], corpus: Path) -> None:
    shared = make_lab(LabSpec(hosts=3, shared_home=True))
    found = document(shared, corpus, "data/corpus")
    assert set(statuses(found).values()) == {"changed"}
    assert [bool(host["files_sent"]) for host in found["hosts"]] == [True, False, False]
    assert on_host(shared.hosts[2], SUMS.format("data/corpus")) == sums(corpus)
    assert on_host(shared.hosts[0], "ls -A data data/corpus").count("ipexctl") == 0
    assert set(statuses(document(shared, corpus, "data/corpus")).values()) == {"ok"}
    on_host(shared.hosts[0], "rm -r data")
