"""Running the tool as a user does: a process of its own, its streams, its exit code."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ipexctl.addons.lab.lab_record import Lab
from ipexctl.node.common.processes import read_stat
from printed_lines import PRINTED

IPEXCTL = [sys.executable, "-m", "ipexctl"]
NO_HOSTS_ENV = {"IPEXCTL_HOSTFILE": "", "SLURM_JOB_NODELIST": "", "SLURM_NODELIST": "", "PBS_NODEFILE": ""}
"""Environment variables without any source of hosts."""


@dataclass(frozen=True)
class CommandResult:
    """What became of a command."""

    rc: int | None
    """None: nothing within the time."""
    out: str
    err: str
    seconds: float

    @property
    def lines(self) -> list[str]:
        return sorted(self.out.splitlines())


def ipexctl(
    *args: object, cwd: Path | None = None, env: Mapping[str, str] | None = None, timeout: float = 60
) -> CommandResult:
    """Call the CLI without a terminal. A traceback fails every test; so does a printed line that is a wrong call."""
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
    # The output of ranks need not be UTF-8.
    out, err = (said.decode(errors="surrogateescape") for said in (done.stdout, done.stderr))
    ran = CommandResult(done.returncode, out, err, time.monotonic() - started)
    assert "\nTraceback" not in f"\n{ran.err}", ran.err  # a rank's own stands behind its number
    PRINTED.type(f"{ran.out}\n{ran.err}", cwd, {**os.environ, **(env or {})})
    return ran


def begin(*args: object, env: Mapping[str, str] | None = None, **options: Any) -> subprocess.Popen[str]:
    """A call that is still under way, in a session of its own."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    return subprocess.Popen(
        [*IPEXCTL, *map(str, args)],
        stdin=subprocess.DEVNULL,
        env={**os.environ, **(env or {})},
        text=True,
        start_new_session=True,
        **options,
    )


def processes_with(lab: Lab, marker: str) -> list[str]:
    """Processes on lab hosts whose command line contains `marker`, as `host: args`, read from outside."""
    found = []
    for host in lab.nodes:
        pids = subprocess.run(["ip", "netns", "pids", host.netns], capture_output=True, text=True, check=True)
        for pid in pids.stdout.split():
            try:
                with open(f"/proc/{pid}/cmdline", "rb") as file:
                    args = file.read().replace(b"\0", b" ").decode(errors="replace")
                is_alive = read_stat(int(pid)).is_alive
            except OSError:
                continue
            if marker in args and is_alive:
                found.append(f"{host.name}: {args}")
    return found
