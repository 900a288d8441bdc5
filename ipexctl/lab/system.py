"""Runs programs of this machine for the lab, and checks its requirements and the networks in use."""

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
"""A non-login root shell may lack these directories, which hold many of the programs used."""


def require() -> None:
    """Refuse if a lab can't be made on this machine."""
    message, fix = missing(
        platform=sys.platform,
        uid=os.geteuid() if hasattr(os, "geteuid") else -1,
        programs={name for name in _PROGRAMS if find(name)},
    )
    if message:
        raise UserError(message, fix=fix)


def missing(*, platform: str, uid: int, programs: Collection[str]) -> tuple[str, str]:
    """The reason why a lab can't be made, and its fix; two empty strings if it can."""
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
    """A program of this machine failed; the message holds its output."""


def run(argv: Sequence[str], *, stdin: str = "", timeout: float = 30) -> str:
    """Run a program and return its stdout; raises CommandError if its exit code is not 0."""
    environment = {**os.environ, "LC_ALL": "C", "PATH": f"{os.environ.get('PATH', os.defpath)}:{SBIN}"}
    try:
        completed = subprocess.run(
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
    if completed.returncode:
        output = (completed.stderr or completed.stdout).strip() or f"exit code {completed.returncode}"
        raise CommandError(f"{' '.join(argv[:4])}: {output}")
    return completed.stdout


def ip_batch(commands: str, *, netns: str | None = None) -> None:
    options = ["-netns", netns] if netns else []
    run(["ip", *options, "-batch", "-"], stdin=commands)


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
    """The destinations of all IPv4 routes of this machine, in all tables."""
    lines = run(["ip", "-4", "route", "show", "table", "all"]).splitlines()
    kinds = {"local", "broadcast", "unreachable", "blackhole", "prohibit", "throw", "unicast"}
    destinations = []
    for line in lines:
        fields = line.split()
        if fields and fields[0] in kinds:
            fields = fields[1:]
        destinations += fields[:1]
    return tuple(destinations)
