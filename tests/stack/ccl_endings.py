"""Ends of a run over ccl: a script whose rank 1 ends in a chosen way, its call, and the checks afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from cli_helpers import IPEXCTL, Ran, ipexctl, processes_with
from ipexctl.lab import Lab, break_host, mend_host
from lab_helpers import ask

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
if rank == 1 and end == "hang":
    time.sleep(600)
if rank == 1 and end == "kill once" and os.environ["RESTART_COUNT"] == "0":
    os.kill(os.getpid(), signal.SIGKILL)
train(20 if end == "kill once" else 100_000)
print(f"rank {rank} is done", flush=True)
os._exit(0)
"""


@dataclass(frozen=True)
class Ends:
    """Runs of that script on all hosts of a lab, one rank on each."""

    lab: Lab
    project: Path

    @property
    def env(self) -> dict[str, str]:
        return {"XDG_STATE_HOME": str(self.project.parent / "state")}

    def call(self, *words: object, timeout: float = 60) -> Ran:
        return ipexctl(*words, cwd=self.project, env=self.env, timeout=timeout)

    def argv(self, end: str, *options: str) -> list[str]:
        (self.project / "ends.py").write_text(ENDS)
        where = ("-H", str(self.lab.hostfile), "--ppn", "1", "--backend", "ccl", "--plain")
        return ["run", *where, *options, "ends.py", end, self.marker]

    @property
    def marker(self) -> str:
        return f"mark-{os.getpid()}"

    def run(self, end: str, *options: str) -> Ran:
        return self.call(*self.argv(end, *options), timeout=150)

    def begin(self, end: str) -> subprocess.Popen[str]:
        """A run whose ranks have all trained."""
        process = subprocess.Popen(
            [*IPEXCTL, *self.argv(end)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.project,
            env={**os.environ, **self.env},
            start_new_session=True,
        )
        assert process.stdout is not None
        left = len(self.lab.hosts)
        while left and (line := process.stdout.readline()):
            left -= "has trained" in line
        assert not left, process.communicate(timeout=30)
        return process

    def interrupt(self) -> tuple[int, str]:
        process = self.begin("wait")
        process.send_signal(signal.SIGINT)
        return process.wait(60), process.communicate()[1]

    def dump(self) -> tuple[str, int]:
        """The stacks of a run whose rank 1 waits outside of communication; then it is stopped."""
        process = self.begin("hang")
        time.sleep(1)
        try:
            return self.call("dump", "last").out, self.call("stop", "last").rc
        finally:
            process.communicate(timeout=60)

    def cut_off(self) -> tuple[int, str, float]:
        """Exit code, messages and seconds of a run after the link of the last host is cut."""
        process = self.begin("wait")
        host = self.lab.hosts[-1]
        break_host(host, "link-down")
        began = time.monotonic()
        try:
            _, messages = process.communicate(timeout=90)
            return process.returncode, messages, time.monotonic() - began
        finally:
            mend_host(host)

    def left(self, seconds: float) -> list[str]:
        """What remains on the hosts after that time at most: processes of the run, files of Intel's OpenMP."""
        until = time.monotonic() + seconds
        while (left := self._left()) and time.monotonic() < until:
            time.sleep(0.3)
        return left

    def _left(self) -> list[str]:
        files = [f"{host.name}: {ask(host, 'ls /dev/shm').out}" for host in self.lab.hosts]
        return [*processes_with(self.lab, self.marker), *(text for text in files if "__KMP_" in text)]
