"""How the lab talks to this machine: its programs, what it must have, what it already uses."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ipexctl.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

_PROGRAMS: Final = {
    "/usr/sbin/sshd": "openssh-server",
    "ssh-keygen": "openssh-client",
    "ip": "iproute2",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "setsid": "util-linux",
    "mount": "mount",
    "mkfs.ext4": "e2fsprogs",
    "hostname": "hostname",
}
SBIN: Final = "/usr/local/sbin:/usr/sbin:/sbin"
"""A root shell without a login may lack these, and half of what we call lives there."""


def require() -> None:
    """Refuse, in one sentence, where a lab can't be made."""
    message, fix = missing(
        platform=sys.platform,
        uid=os.geteuid() if hasattr(os, "geteuid") else -1,
        programs={name for name in _PROGRAMS if find(name)},
    )
    if message:
        raise UserError(message, fix=fix)


def missing(*, platform: str, uid: int, programs: Collection[str]) -> tuple[str, str]:
    """What keeps a lab from being made and what to type about it; two empty strings when nothing does."""
    if platform != "linux":
        return "a lab needs Linux: it is made of network and mount namespaces", "run it on a Linux machine"
    if uid != 0:
        return "a lab needs root: it makes namespaces and mounts", "run it as root, or with sudo"
    absent = [name for name in _PROGRAMS if name not in programs]
    if absent:
        packages = " ".join(dict.fromkeys(_PROGRAMS[name] for name in absent))
        return f"a lab needs {', '.join(absent)}, not on this machine", f"apt-get install {packages}"
    return "", ""


def find(program: str) -> str | None:
    return shutil.which(program, path=f"{os.environ.get('PATH', os.defpath)}:{SBIN}")


class CommandError(Exception):
    """A program of this machine refused; its own words are the message."""


def run(argv: Sequence[str], *, stdin: str = "", timeout: float = 30) -> str:
    """Run a program to its end and return what it said; CommandError unless it ended with 0."""
    environment = {**os.environ, "LC_ALL": "C", "PATH": f"{os.environ.get('PATH', os.defpath)}:{SBIN}"}
    try:
        done = subprocess.run(
            list(argv),
            input=stdin,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            env=environment,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CommandError(str(error)) from error
    if done.returncode:
        said = (done.stderr or done.stdout).strip() or f"exit code {done.returncode}"
        raise CommandError(f"{' '.join(argv[:4])}: {said}")
    return done.stdout


def ip_batch(commands: str, *, netns: str | None = None) -> None:
    where = ["-netns", netns] if netns else []
    run(["ip", *where, "-batch", "-"], stdin=commands)


def has_ipv6() -> bool:
    try:
        return Path("/proc/sys/net/ipv6/conf/all/disable_ipv6").read_text().strip() == "0"
    except OSError:
        return False


def links() -> tuple[str, ...]:
    return tuple(sorted(name for _, name in socket.if_nameindex()))


def namespaces() -> tuple[str, ...]:
    try:
        return tuple(sorted(path.name for path in Path("/run/netns").iterdir()))
    except FileNotFoundError:
        return ()


def routes() -> tuple[str, ...]:
    """The destinations of every IPv4 route of this machine, in all tables."""
    lines = run(["ip", "-4", "route", "show", "table", "all"]).splitlines()
    kinds = {"local", "broadcast", "unreachable", "blackhole", "prohibit", "throw", "unicast"}
    found = []
    for line in lines:
        words = line.split()
        if words and words[0] in kinds:
            words = words[1:]
        found += words[:1]
    return tuple(found)
