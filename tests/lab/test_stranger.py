"""A stranger on the network at the supervisor's port: a run of four ranks ends as if there were none."""

from __future__ import annotations

import json
import shlex
import subprocess
import time
from pathlib import Path

import pytest

from ipexctl.lab import Lab, LabSpec, ssh_argv
from ipexctl.node.common import sockets
from lab_run_helpers import Cluster, by_rank

MPI_LAB = LabSpec(hosts=3)
pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]
STRANGER = Path(__file__).parent / "stranger.py"
SECONDS = 8
COUNTS = f"""\
import os, sys, time
for step in range({SECONDS * 10}):
    print(step, flush=True)
    time.sleep(0.1)
sys.exit(7 if os.environ["RANK"] == "2" and sys.argv[1:] == ["fails"] else 0)
"""


@pytest.mark.parametrize(("arguments", "rc"), [((), 0), (("fails",), 7)], ids=["ends", "fails"])
def test_a_run_beside_a_stranger_ends_as_without_one(
    lab: Lab, tmp_path: Path, arguments: tuple[str, ...], rc: int
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    cluster = Cluster(lab, project, tmp_path / "state", ("-l", "node1,node2", "--ppn", "2"))
    cluster.write("counts.py", COUNTS)
    running = cluster.begin("counts.py", *arguments)
    job = json.loads(cluster.on(0, f"cat ~/.ipexctl/runs/{running.id}/job.json"))
    mpirun = json.loads(cluster.on(0, f"cat ~/.ipexctl/runs/{running.id}/status.json"))["mpirun"]["pid"]
    *_, bind, port = cluster.on(0, f"tr '\\0' ' ' </proc/{mpirun}/cmdline").split()
    token = job["token"]
    hello = {"t": "hello", "rank": 1, "nonce": "ab" * 16, "life": "another", "pid": 1, "host": "node3", "attempt": None}
    other_connection = sockets.proof(token, "rank", 1, "cd" * 16, "ab" * 16)
    other_role = sockets.proof(token, "supervisor", 1, "cd" * 16, "ab" * 16)
    forged = [
        {**hello, "proof": other_connection},
        {**hello, "proof": other_role},
        {**hello, "proof": ""},
        {**hello, "proof": [], "rank": -1},
        {"t": "welcome", "proof": other_role},
        {"t": "exit", "code": 1, "signal": None, "own": True, "oom": None},
    ]
    words = ["python3", "-", bind, port, str(SECONDS), json.dumps(forged)]
    began = time.monotonic()
    stranger = subprocess.run(
        [*ssh_argv(lab.hosts[2]), shlex.join(words)],
        input=STRANGER.read_bytes(),
        capture_output=True,
        timeout=60,
        check=True,
    )
    assert running.end() == rc, running.said()
    assert time.monotonic() - began < SECONDS + 20
    made = json.loads(stranger.stdout)
    assert made.keys() == {"flood", "slow", "truncated", "giant", "forged"}
    lines = by_rank(running.out.read_text())
    assert sorted(lines) == [0, 1, 2, 3]
    printed = [str(step) for step in range(SECONDS * 10)]
    if rc:
        # mpirun ends the others with rank 2, which started a little before or after them.
        assert lines[2] == printed
        assert all(numbers == printed[: len(numbers)] for numbers in lines.values())
    else:
        assert all(numbers == printed for numbers in lines.values())
    status = cluster.status(running.id)
    assert status["state"] == ("failed" if rc else "ok")
    log = cluster.on(0, f"cat ~/.ipexctl/runs/{running.id}/supervise.log")
    assert log == ""
