"""Runs shell scripts in a host's namespaces, without its sshd."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ipexctl.errors import UserError
from ipexctl.lab import processes, system

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ipexctl.lab.state import LabHost

_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def in_host(host: LabHost, script: str, args: Sequence[str] = (), *, timeout: float = 30) -> str:
    """Run a script as root of the host; raises CommandError with its output if it fails."""
    pid = processes.init_of(host.netns)
    if pid is None:
        raise UserError(
            f"{host.name} is not running: its first process is gone", fix=f"ipexctl lab down --lab {host.lab}"
        )
    enter = ["nsenter", "-t", str(pid), "-m", "-u", "-i", "-n", "-p", "-r", "-w", "--"]
    environment = ["env", "-i", _PATH, "LANG=C.UTF-8", "HOME=/root", f"LOGIN={host.user}", f"HOME_DIR={host.home}"]
    return system.run([*enter, *environment, "/bin/sh", "-c", script, "sh", *args], timeout=timeout)


def at_switch(netns: str, script: str, args: Sequence[str] = (), *, timeout: float = 30) -> str:
    """Run a script in the switch's network namespace, with this machine's files."""
    return system.run(["ip", "netns", "exec", netns, "/bin/sh", "-c", script, "sh", *args], timeout=timeout)
