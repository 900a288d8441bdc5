"""Running the tool as a user does: a process of its own, its streams, its exit code."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ipexctl.lab import Lab

IPEXCTL = [sys.executable, "-m", "ipexctl"]
BARE = {"IPEXCTL_HOSTFILE": "", "SLURM_JOB_NODELIST": "", "SLURM_NODELIST": "", "PBS_NODEFILE": ""}
"""Nothing but the directory says which hosts there are."""


@dataclass(frozen=True)
class Ran:
    rc: int
    out: str
    err: str
    seconds: float

    @property
    def lines(self) -> list[str]:
        return sorted(self.out.splitlines())


def ipexctl(*args: object, cwd: Path | None = None, env: Mapping[str, str] | None = None, timeout: float = 60) -> Ran:
    """Call the tool with nobody at the keyboard. A traceback is a failure whatever the test looks for."""
    started = time.monotonic()
    done = subprocess.run(
        [*IPEXCTL, *map(str, args)],
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        capture_output=True,
        cwd=cwd,
        env={**os.environ, **(env or {})},
        timeout=timeout,
        check=False,
    )
    # What ranks print is theirs, and need not be UTF-8.
    out, err = (said.decode(errors="surrogateescape") for said in (done.stdout, done.stderr))
    ran = Ran(done.returncode, out, err, time.monotonic() - started)
    assert "\nTraceback" not in f"\n{ran.err}", ran.err  # a rank's own stands behind its number
    return ran


def processes_with(lab: Lab, marker: str) -> list[str]:
    """The processes of a lab's hosts whose command line has that text, seen from outside: `host: args`."""
    found = []
    for host in lab.nodes:
        pids = subprocess.run(["ip", "netns", "pids", host.netns], capture_output=True, text=True, check=True)
        for pid in pids.stdout.split():
            try:
                with open(f"/proc/{pid}/cmdline", "rb") as file:
                    args = file.read().replace(b"\0", b" ").decode(errors="replace")
                with open(f"/proc/{pid}/stat") as file:
                    state = file.read().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if marker in args and state not in "ZX":
                found.append(f"{host.name}: {args}")
    return found
