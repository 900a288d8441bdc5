"""The probe: one script in POSIX sh and awk. It needs no Python, no root and no program but the shell."""

from __future__ import annotations

import functools
import math
import re
import shlex
from collections.abc import Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from ipexctl.limits import LOCK_VALID
from ipexctl.remote.command import Command, shell_text
from ipexctl.remote.node_call import WALK

_HERE: Final = Path(__file__).parent
_FILES: Final = ("frame.sh", "interfaces.sh", "machine.sh", "places.sh", "runs.sh", "main.sh")
_LOCK: Final = "ipexctl-host-lock"
_WAIT: Final = "ipexctl-host-wait"
"""runs.sh finds the processes that hold a host, or wait for it, by these names."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")

PARTS: Final = ("kernel", "network", "names", "home", "programs")
"""Parts after which the script prints `done`; some run at the same time."""


@functools.cache
def probe_script() -> str:
    return _awk("kernel") + _awk("runs") + shell_text(WALK) + "".join(shell_text(_HERE / file) for file in _FILES)


def _awk(name: str) -> str:
    return f"{name}_awk={shlex.quote(shell_text(_HERE / f'{name}.awk'))}\n"


def probe_command(peers: Sequence[str] = (), home: str | None = None) -> Command:
    """`home` is the `--home` directory, or None for the default. Addresses need no lookup. Invalid host names are left
    out, because the script passes names to getent unquoted.
    """
    names = " ".join(name for name in peers if _NAME.fullmatch(name) and not _is_address(name))
    return Command(script=f"set -- {shlex.join([home or '', names])}\n{probe_script()}", label="the probe")


def environment_command(home: str | None, name: str, check: str) -> Command:
    """Print one environment and the machine's identity. `check`: source code for the environment's own Python."""
    files = [_HERE / file for file in ("frame.sh", "interfaces.sh", "environment.sh")]
    return Command.scripts(WALK, *files, arguments=[home or "", "", name, check], label="the check")


def live_runs_command(*, with_programs: bool = False) -> Command:
    """`with_programs`: also the scripts of runs, and programs that use cores, which takes half a second."""
    script = _awk("runs") + "".join(shell_text(_HERE / file) for file in ("frame.sh", "runs.sh"))
    script += _awk("busy") + shell_text(_HERE / "busy.sh") if with_programs else ""
    call = "live_runs scripts\nbusy_programs" if with_programs else "live_runs"
    # Two names of one machine share one lock; lab hosts share a kernel but not a pid namespace.
    machine = 'get /proc/sys/kernel/random/boot_id\nput machine "$got $(readlink /proc/self/ns/pid)"'
    ends = 'put uid "$(id -u)"\nput clock "$(date +%s)"\nput looked yes\n'
    return Command(f"set -- '' ''\n{script}{call}\n{machine}\n{ends}", label="the look at runs")


def lock_command(run: str) -> Command:
    """Print `held` and hold the host's lock until stdin ends; exit code 1 if it is taken. The lock is flock(2) on
    /proc: every account can take it, it is never on a file server, and it ends with its process.
    """
    script = shell_text(_HERE / "host_lock.sh")
    argv = ["flock", "-n", "/proc", "/bin/sh", "-c", script, _LOCK, run, f"{LOCK_VALID:g}"]
    return Command(f"exec {shlex.join(argv)}", label="the lock")


def wait_command(run: str, seconds: float) -> Command:
    """Print `entered` while no other call enters the host's queue; after a line on stdin, print `placed` and keep that
    place until stdin ends."""
    words = [run, f"{math.ceil(seconds)}", "/proc/sys", _WAIT]
    return Command.scripts(_HERE / "host_wait.sh", arguments=words, label="the queue")


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
