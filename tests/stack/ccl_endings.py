"""Ends of a run over ccl: a script whose rank 1 ends in a chosen way, its call, and the checks afterwards."""

from __future__ import annotations

import os
from pathlib import Path

from agent_helpers import wait_until
from cli_helpers import CommandResult, processes_with
from ipexctl.addons.lab.lab_record import Lab
from lab_helpers import ask
from lab_run_helpers import new_cluster

ENDS = """\
import os, signal, sys, time
import oneccl_bindings_for_pytorch, torch, torch.distributed as dist
end, marker = sys.argv[1:]
dist.init_process_group("ccl")
rank, ones = dist.get_rank(), torch.ones(1000)
def train(steps):
    for step in range(steps):
        dist.all_reduce(ones)
        time.sleep(0.02)
train(20)
print(f"rank {rank} of {dist.get_world_size()} has trained", flush=True)
train(1)  # until all have printed that
if rank == 1 and end == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
if rank == 1 and end == "raise":
    raise RuntimeError("on purpose")
if rank == 1 and end == "exit":
    sys.exit(3)
if rank == 1 and end == "kill once" and os.environ["RESTART_COUNT"] == "0":
    os.kill(os.getpid(), signal.SIGKILL)
train(20 if end == "kill once" else 100_000)
print(f"rank {rank} is done", flush=True)
os._exit(0)
"""


class Ends:
    """Runs of that script on all hosts of a lab, one rank on each."""

    def __init__(self, lab: Lab, directory: Path) -> None:
        self.cluster = new_cluster(lab, directory)
        self.cluster.write("ends.py", ENDS)
        self.marker = f"mark-{os.getpid()}"

    def words(self, end: str, *options: str) -> tuple[str, ...]:
        return ("--ppn", "1", "--backend", "ccl", "--plain", *options, "ends.py", end, self.marker)

    def run(self, end: str, *options: str) -> CommandResult:
        return self.cluster.run(*self.words(end, *options), rc=None, timeout=150)

    def check_nothing_left(self, seconds: float) -> None:
        """On the hosts after that time at most: processes of the run, files of Intel's OpenMP."""
        wait_until(lambda: not self._left(), seconds, self._left)

    def _left(self) -> list[str]:
        lab = self.cluster.lab
        files = [f"{host.name}: {ask(host, 'ls /dev/shm').out}" for host in lab.hosts]
        return [*processes_with(lab, self.marker), *(text for text in files if "__KMP_" in text)]
