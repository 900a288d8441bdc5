"""The differences between Linux and macOS, for code that also runs on the control machine, which may be a Mac.

Hosts run Linux. The commands, and the calls to the agent that the control machine makes to itself, as for a lock or the
copy of a run, ask here for what the two kernels do in different ways; elsewhere in that code no name of Linux alone is
used, which `tests/unit/test_control_machine.py` holds. Each function returns what this machine has, and a Linux without
/proc is answered as a Mac is.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Iterator

if TYPE_CHECKING:
    import socket

_CONNECTION_DROP_TIME = 0x80
"""TCP_RXT_CONNDROPTIME of macOS's netinet/tcp.h, in seconds, for which Python has no name."""
_MOST_FILES = 10240
"""OPEN_MAX of macOS: setrlimit refuses more open files where its hard limit is unlimited."""
_PS_SECONDS = 10.0


def is_linux() -> bool:
    """Also in WSL2."""
    return sys.platform == "linux"


def has_proc() -> bool:
    return os.path.exists("/proc/self/stat")


def process_start(pid: int) -> int:
    """The second in which a process has begun, by `ps`. Raises an OSError for one that does not run."""
    import calendar  # 4 ms for these, which no host with /proc needs
    import subprocess
    import time

    argv = ["ps", "-o", "stat=", "-o", "lstart=", "-p", str(pid)]  # `-o stat=,lstart=` is one title for BSD
    environ = {**os.environ, "LC_ALL": "C", "TZ": "UTC0"}
    try:
        shown = subprocess.run(
            argv, env=environ, stdin=subprocess.DEVNULL, capture_output=True, timeout=_PS_SECONDS, check=False
        )
        state, _, began = shown.stdout.decode("ascii", "replace").strip().partition(" ")
        if state[:1] not in ("", "Z"):
            return calendar.timegm(time.strptime(began.strip(), "%a %b %d %H:%M:%S %Y"))
    except (subprocess.TimeoutExpired, ValueError):
        pass
    raise ProcessLookupError(0, f"ps shows no process {pid}")


def file_limits(wanted: int, hard: int) -> Iterator[int]:
    """Limits of open files to try one after the other, none above the hard limit; a negative one is none."""
    for limit in (wanted, _MOST_FILES):
        yield limit if hard < 0 else min(hard, limit)


def silence_options(idle: int, interval: int, count: int, unanswered: int) -> Iterator[tuple[int, int]]:
    """Options of TCP with their values, by which the kernel ends a connection with a silent peer.

    After `idle` seconds of silence it asks `count` times at an interval; data may be unanswered so many seconds.
    """
    import socket

    values = {"KEEPIDLE": idle, "KEEPALIVE": idle, "KEEPINTVL": interval, "KEEPCNT": count}
    for name, value in {**values, "USER_TIMEOUT": unanswered * 1000}.items():
        number = getattr(socket, f"TCP_{name}", None)
        if number is not None:
            yield number, value
    if sys.platform == "darwin":
        yield _CONNECTION_DROP_TIME, unanswered


def acknowledge_at_once(sock: socket.socket) -> None:
    """Until the kernel resets it. macOS delays no acknowledgement of small messages that come one by one."""
    import socket  # 3 ms, which a caller has spent that has a connection; most calls of the agent have none

    number = getattr(socket, "TCP_QUICKACK", None)
    if number is not None:
        sock.setsockopt(socket.IPPROTO_TCP, number, 1)


def add_key_command(path: object) -> str:
    """The command by which ssh's agent gets a key; on a Mac the Keychain keeps its passphrase."""
    return f"ssh-add {path}" if is_linux() else f"ssh-add --apple-use-keychain {path}"


def pip_files(home: str) -> tuple[list[str], list[str]]:
    """pip's configuration files of the machine and of the account below this home that Linux has not."""
    place = "Library/Application Support/pip/pip.conf"
    return ([], []) if is_linux() else ([f"/{place}"], [os.path.join(home, place)])
