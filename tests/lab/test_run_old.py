"""Runs of last week and before: listed in one round trip a node0, read, and taken away when they are too old."""

from __future__ import annotations

import json
import os
import subprocess
import time
from typing import TYPE_CHECKING, Any

import pytest

from cli_helpers import ipexctl
from ipexctl.hosts.detect import read_hosts_file
from ipexctl.jobs.registry import RunRecord, RunRegistry
from ipexctl.lab import LabSpec, break_host, mend_host, ssh_argv
from lab_helpers import ask
from message_data import missing

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cli_helpers import Ran
    from ipexctl.lab import Lab

LAB = LabSpec(hosts=3, name=f"old-{os.getpid()}")
pytestmark = [pytest.mark.lab, pytest.mark.timeout(200)]


class Past:
    """17 runs a host, each three days older than the one before."""

    def __init__(self, lab: Lab, base: Path) -> None:
        self.lab = lab
        self.env = {"XDG_STATE_HOME": str(base)}
        self.register = RunRegistry(base / "ipexctl/runs")
        for index, host in enumerate(read_hosts_file(lab.hostfile)):
            script = "rm -rf .ipexctl/runs\n"
            for number in range(17):
                run, days = f"old{index}-{number:02}", 5 + 3 * number
                at = time.time() - days * 86400
                self.register.save(
                    RunRecord(
                        run, host, f"{lab.hosts[0].home}/.ipexctl", "python3", "old.py", started=at, world_size=1,
                        hosts=(host.name,), nodes=(host,), stores=(host.name,), ranks=(host.name,),
                    )
                )  # fmt: skip
                script += self._made(run, days, {"state": "ok", "started": at, "ended": at + 60, "exit_code": 0})
            subprocess.run([*ssh_argv(lab.hosts[index]), "sh -s"], input=script.encode(), check=True, timeout=60)

    @staticmethod
    def _made(run: str, days: int, told: dict[str, Any]) -> str:
        gone = {"pid": 4194305, "start": 1}
        status = {"schema": "ipexctl.status/1", "id": run, "supervisor": gone, "world_size": 1, "ranks": [], **told}
        at = f".ipexctl/runs/{run}"
        return (
            f"mkdir -p {at}/ranks && echo '{json.dumps(status)}' >{at}/status.json "
            f"&& echo of {run} >{at}/ranks/0000.out && : >{at}/ranks/0000.err "
            f"&& touch -d '{days} days ago' {at}/* {at}\n"
        )

    def call(self, *args: object) -> Ran:
        return ipexctl(*args, env=self.env)

    def there(self, index: int) -> list[str]:
        return ask(self.lab.hosts[index], "ls .ipexctl/runs").out.split()


@pytest.fixture
def past(lab: Lab, tmp_path: Path) -> Iterator[Past]:
    yield Past(lab, tmp_path)
    for host in lab.hosts:
        mend_host(host)


def test_all_are_listed_and_read(past: Past) -> None:
    # Starting up and one command on each host, beside each call, is the measure: a busy machine slows both.
    calls, ratios = [], []
    for _ in range(3):
        floor = ipexctl("exec", "-H", past.lab.hostfile, "--", "python3", "-c", "0")
        calls.append(past.call("ps", "--json"))
        ratios.append(calls[-1].seconds / floor.seconds)
    runs = json.loads(calls[0].out)["runs"]
    assert len(runs) == 51
    assert {run["state"] for run in runs} == {"ok"}
    assert min(ratios) < 2, ratios
    assert past.call("logs", "old1-05").out == "[0] of old1-05\n"


def test_what_is_too_old_is_taken_away_and_told_as_such(past: Past) -> None:
    ran = past.call("ps", "--prune", "--dry-run")
    assert "node1: 7 runs would be pruned" in ran.out
    assert "  old0-16: older than 30 days" in ran.out
    assert len(past.there(0)) == 17
    break_host(past.lab.hosts[2], "sshd-dead")
    ran = past.call("ps", "--prune", "--json")
    assert ran.rc == 3
    hosts = {each["name"]: each for each in json.loads(ran.out)["hosts"]}
    assert [hosts[f"node{number}"]["status"] for number in (1, 2, 3)] == ["changed", "changed", "unreachable"]
    assert past.there(0) == [f"old0-{number:02}" for number in range(10)]
    ran = past.call("logs", "old0-16")
    assert ran.rc == 1
    assert missing(ran.err, "pruned 30 days") == []
    runs = {run["id"]: run for run in json.loads(past.call("ps", "--json").out)["runs"]}
    assert runs["old0-16"]["state"] == "ok"
    assert runs["old0-16"]["pruned"]
    assert runs["old2-16"]["state"] == "unknown"
