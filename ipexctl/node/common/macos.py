"""Differences between Linux and macOS, for code that also runs on the control machine, which may be a Mac.

On a Linux without /proc, the start of a process is asked for as on a Mac.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Iterator

if TYPE_CHECKING:
    import socket

_CONNECTION_DROP_TIME = 0x80
"""TCP_RXT_CONNDROPTIME of macOS's netinet/tcp.h, which Python does not define. Its value is in seconds."""
_LOCAL_PEERCRED, _XUCRED_SIZE = 1, 76
"""Option of macOS's sys/un.h, and its value in sys/ucred.h: a version, the account, its groups."""
_MOST_FILES = 10240
"""OPEN_MAX of macOS: setrlimit refuses more even if the hard limit is unlimited."""
_PS_SECONDS = 10.0


def is_linux() -> bool:
    """True in WSL2 too."""
    return sys.platform == "linux"


def has_proc() -> bool:
    """Return True if /proc shows processes, as on Linux."""
    return os.path.exists("/proc/self/stat")


def process_start(pid: int) -> int:
    """Return the start of a process, in seconds since the epoch, from `ps`. Raises an OSError if it is not running."""
    import calendar  # these take 4 ms, and a host with /proc does not need them
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
    """Yield limits of open files to try in order, none above the hard limit. A negative hard limit means unlimited."""
    for limit in (wanted, _MOST_FILES):
        yield limit if hard < 0 else min(hard, limit)


def peer_account(sock: socket.socket) -> int:
    """Return the account of the process at the other end of a Unix socket."""
    import socket
    import struct

    if sys.platform == "darwin":
        return int(struct.unpack_from("=II", sock.getsockopt(0, _LOCAL_PEERCRED, _XUCRED_SIZE))[1])
    return int(struct.unpack("=III", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1])


def silence_options(idle: int, interval: int, count: int, unanswered: int) -> Iterator[tuple[int, int]]:
    """Yield TCP options that make the kernel end a connection after `idle` seconds of silence and `count` probes, and
    once data is unacknowledged for `unanswered` seconds."""
    import socket

    values = {"KEEPIDLE": idle, "KEEPALIVE": idle, "KEEPINTVL": interval, "KEEPCNT": count}
    for name, value in {**values, "USER_TIMEOUT": unanswered * 1000}.items():
        number = getattr(socket, f"TCP_{name}", None)
        if number is not None:
            yield number, value
    if sys.platform == "darwin":
        yield _CONNECTION_DROP_TIME, unanswered


def acknowledge_at_once(sock: socket.socket) -> None:
    """Acknowledge received data at once, until the kernel resets that. macOS does so anyway for small messages."""
    import socket  # takes 3 ms, and most agent calls have no connection

    number = getattr(socket, "TCP_QUICKACK", None)
    if number is not None:
        sock.setsockopt(socket.IPPROTO_TCP, number, 1)


def add_key_command(path: object) -> str:
    """Return the command that adds a key to ssh-agent; on a Mac, the Keychain keeps the passphrase."""
    return f"ssh-add {path}" if is_linux() else f"ssh-add --apple-use-keychain {path}"


def pip_files(home: str) -> tuple[list[str], list[str]]:
    """Return pip's own places for its settings on a Mac: the machine's and the account's. Both are empty on Linux."""
    settings = "Library/Application Support/pip/pip.conf"
    return ([], []) if is_linux() else ([f"/{settings}"], [os.path.join(home, settings)])
