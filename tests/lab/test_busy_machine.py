"""A busy machine is slow, not broken: beside busy processes and one that fills the disk's queue, every command does its
work and says nothing false. The login is tested in every check, beside 24 of them. The rest runs when this file has its
turn, and beside 8, as other tests run then, too; alone: `IPEXCTL_TESTS_BUSY=24 IPEXCTL_TESTS_ROUNDS=10`.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cli_helpers import CommandResult, ipexctl
from ipexctl.addons.lab.lab_plan import LabSpec
from ipexctl.addons.lab.lab_record import Lab
from lab_run_helpers import PYTHON, Cluster
from tiny_wheels import write_stack

MPI_LAB = LabSpec(hosts=3)
BUSY = int(os.environ.get("IPEXCTL_TESTS_BUSY", "8"))
ROUNDS = int(os.environ.get("IPEXCTL_TESTS_ROUNDS", "1"))
pytestmark = [pytest.mark.lab, pytest.mark.timeout(1200 * (1 + ROUNDS))]
SPIN = "while True: pass"
WRITE = """\
import os, sys
block = os.urandom(1 << 20)
with open(sys.argv[1], "wb", buffering=0) as file:
    while True:
        file.seek(0)
        for _ in range(64): file.write(block)
        os.fsync(file.fileno())
"""
FALSE = (
    *("hangs", "firewall", "can't be reached", "unreachable", "refused", "timed out", "did not finish", "no answer"),
    *("not known", "no home directory", "connection was lost", "its disk", "ulimit"),
)
"""Parts of sentences that are wrong about a host that works slowly."""
MOST_CPU = 3
"""Times the CPU seconds of the control machine in a call without the load."""
SCRIPT = """\
import os, time
print("rank", os.environ["RANK"], "begins", flush=True)
open(os.path.join(os.environ["IPEXCTL_RUN_DIR"], "made.txt"), "w").write("x")
time.sleep(SECONDS)
"""


@contextmanager
def busy_machine(directory: Path, count: int) -> Iterator[None]:
    """At normal priority, as another account's programs would be."""
    argv = [[sys.executable, "-c", SPIN]] * count + [[sys.executable, "-c", WRITE, str(directory / "filler")]]
    programs = [subprocess.Popen(each) for each in argv]
    try:
        time.sleep(2)
        assert all(program.poll() is None for program in programs)
        yield
    finally:
        for program in programs:
            program.kill()
        for program in programs:
            program.wait()


def check(ran: CommandResult, *, rc: int = 0) -> None:
    text = ran.out + ran.err
    assert ran.rc == rc, text
    assert [part for part in FALSE if part in text] == [], text


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.mark.core
@pytest.mark.parametrize("way", ["ssh", "openssh"])
def test_a_login_beside_busy_programs_is_not_refused(lab3: Lab, tmp_path: Path, way: str) -> None:
    words = ("exec", "-H", lab3.hostfile, "--transport", way, "--", "hostname")
    before = cpu_seconds()
    check(ipexctl(*words, timeout=300))
    quiet = cpu_seconds() - before
    with busy_machine(tmp_path, 24):
        own = cpu_seconds()
        ran = ipexctl(*words, timeout=300)
        used = cpu_seconds() - own
    check(ran)
    assert ran.lines == ["node1: node1", "node2: node2", "node3: node3"]
    assert used <= MOST_CPU * quiet


def work_through(cluster: Cluster, base: Path) -> dict[str, float]:
    """Each command once; returns the CPU seconds that each took on the control machine."""
    base.mkdir()
    write_stack(base / "wheels", torch="2.13.0", ipex=None, impi=None, python=PYTHON)
    hosts, home = ("-H", cluster.lab.hostfile), f"/home/ipex/{base.parent.name}-{base.name}"
    env = {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(base / "wheels")}
    used: dict[str, float] = {}

    def call(*words: object, rc: int = 0) -> CommandResult:
        before = cpu_seconds()
        ran = cluster.call(*words, env=env, timeout=900)
        check(ran, rc=rc)
        used[f"{len(used)} {words[0]}"] = cpu_seconds() - before
        return ran

    checked = call("doctor", *hosts)
    assert "3 hosts: " in checked.out, checked.out
    call("exec", *hosts, "--", "hostname")
    call("sync", *hosts)
    call("install", *hosts, "--home", f"{home}-a", "--stack", "torch")
    call("run", *hosts, "--home", f"{home}-b", "--install", "--stack", "torch", "--plain", "short.py")
    call("run", *hosts, "--plain", "short.py")
    call("why", "last")
    call("fetch", "last", base / "out", "--results")
    call("run", *hosts, "--plain", "--detach", "long.py")
    call("report", "last", "-o", base / "page.html")
    assert "--resume" not in (base / "page.html").read_text()
    call("ps")
    call("stop", "last")
    call("attach", "last", rc=143)
    return used


def test_every_command_does_its_work_on_a_busy_machine(cluster: Cluster, tmp_path: Path) -> None:
    cluster.write("short.py", SCRIPT.replace("SECONDS", "0"))
    cluster.write("long.py", SCRIPT.replace("SECONDS", "600"))
    quiet = work_through(cluster, tmp_path / "quiet")
    with busy_machine(tmp_path, BUSY):
        rounds = [work_through(cluster, tmp_path / f"round{number}") for number in range(ROUNDS)]
    for used in rounds:
        assert {name: (took, quiet[name]) for name, took in used.items() if took > MOST_CPU * quiet[name]} == {}
