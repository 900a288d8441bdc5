"""Real torch on real hosts: frozen parameters that ranks share, over two hosts with two ranks each."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from training_lab import Training

from cli_helpers import CommandResult
from ipexctl.addons.lab.faults import ssh_argv
from lab_helpers import on_host
from lab_run_helpers import by_rank

pytest_plugins = ["training_lab"]
pytestmark = [pytest.mark.stack, pytest.mark.timeout(900)]

CASES = Path(__file__).with_name("share_weights_cases.py")
STRANGER = Path(__file__).with_name("store_stranger.py")
MATRICES = 4 << 20
NOT_SHARED = {"nothing frozen", "no first sync", "from a file", "other parts frozen on each rank"}


def run_cases(training: Training, mode: str, *words: object, port: int | None = None) -> CommandResult:
    (training.project / CASES.name).write_bytes(CASES.read_bytes())
    options = ("--oversubscribe", "--share-weights", mode, *(() if port is None else ("--master-port", port)))
    return training.call("run", "-n", 4, "--ppn", 2, "--omp", 1, *options, CASES.name, *words, timeout=400)


def rows_of(ran: CommandResult) -> dict[tuple[str, int], dict[str, Any]]:
    lines = [line for lines in by_rank(ran.out).values() for line in lines if line.startswith("{")]
    return {(row["case"], row["rank"]): row for row in map(json.loads, lines)}


def test_models_learn_the_same_bits_and_the_ranks_of_a_host_keep_one_copy(training: Training) -> None:
    shared, apart = (run_cases(training, mode, "all") for mode in ("auto", "off"))
    assert (shared.rc, apart.rc) == (0, 0), shared.err + apart.err
    found, expected = rows_of(shared), rows_of(apart)
    assert {key: row["digest"] for key, row in found.items()} == {key: row["digest"] for key, row in expected.items()}
    assert len(found) == 4 * len({case for case, _ in found}) > 4 * 15
    assert {row["mapped"] for row in expected.values()} == {0}
    ranks = {case: [rank for rank in range(4) if found[case, rank]["mapped"]] for case, _ in found}
    of_two = {"first two ranks": [0, 1]}
    assert ranks == {case: [] if case in NOT_SHARED else of_two.get(case, [0, 1, 2, 3]) for case in ranks}
    assert found["frozen base", 3]["mapped"] == MATRICES
    assert "all are equal on all ranks and not sent; one copy on each host" in shared.err
    assert "frozen weights" not in apart.err


@pytest.mark.parametrize(
    "attack", ["on for the first host alone", "on for the second host alone", "no decision", "tables", "types"]
)
def test_a_stranger_in_the_store_does_not_make_hosts_train_apart(training: Training, attack: str) -> None:
    """All ranks have the parameters of rank 0, or the run fails."""
    first, other = training.lab.hosts[0], training.lab.hosts[3]
    port = 20000 + os.getpid() % 12000
    subprocess.run([*ssh_argv(other), "cat >stranger.py"], input=STRANGER.read_bytes(), check=True, timeout=20)
    argv = [training.python, "stranger.py", first.address, str(port), "4", attack, "weights/0/1"]
    with subprocess.Popen([*ssh_argv(other), shlex.join(argv)], stdout=subprocess.PIPE, text=True) as stranger:
        ran = run_cases(training, "auto", "attacked", port=port)
        assert stranger.communicate(timeout=60)[0] == "attacked\n", ran.err
    if ran.rc:
        assert "; fix: add --share-weights off" in ran.err, ran.err
        assert attack in ("on for the first host alone", "on for the second host alone", "types")
        return
    assert len({row["parameters"] for row in rows_of(ran).values()}) == 1, ran.out


def test_nothing_is_left_after_kill_9(training: Training) -> None:
    hosts = training.lab.hosts[:2]
    before = [on_host(host, "ls -A /dev/shm") for host in hosts]
    ended: list[CommandResult] = []
    run = threading.Thread(target=lambda: ended.append(run_cases(training, "auto", "sleep")))
    run.start()
    count = "grep -lF memfd:ipexctl-weights /proc/[0-9]*/maps 2>/dev/null"
    until = time.monotonic() + 300
    while any(len(on_host(host, f"{count}; true").split()) < 2 for host in hosts):
        assert time.monotonic() < until, "no rank shared its parameters"
        time.sleep(1)
    for host in hosts:
        on_host(host, f"for file in $({count}); do kill -9 $(echo $file | cut -d/ -f3); done")
    run.join(120)
    assert ended[0].rc == 137, ended[0].err
    assert [on_host(host, "ls -A /dev/shm") for host in hosts] == before
    assert [on_host(host, f"{count}; true").split() for host in hosts] == [[], []]
