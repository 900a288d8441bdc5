"""The probe: one script made of parts in POSIX sh and awk, and the command that runs it on a host.

The script needs no Python, no root and no program but the shell; other missing programs give missing facts.
"""

from __future__ import annotations

import functools
import re
import shlex
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ipexctl.remote.command import Command, shell_text

if TYPE_CHECKING:
    from collections.abc import Sequence

_HERE: Final = Path(__file__).parent
_FILES: Final = ("frame.sh", "interfaces.sh", "machine.sh", "places.sh", "main.sh")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")

PARTS: Final = ("kernel", "network", "names", "home", "programs")
"""The parts for which the script prints `done`; some run at the same time."""


@functools.cache
def probe_script() -> str:
    """The script; its arguments are the home and the peers."""
    kernel_awk = shlex.quote(shell_text(_HERE / "kernel.awk"))
    return f"kernel_awk={kernel_awk}\n" + "".join(shell_text(_HERE / file) for file in _FILES)


def probe_command(peers: Sequence[str] = (), home: str | None = None) -> Command:
    """The probe command for hosts with these peers; `home` is the `--home` directory, else the default one.

    Addresses need no lookup and are left out. So are invalid host names, because the script passes names to getent
    unquoted.
    """
    names = " ".join(name for name in peers if _NAME.fullmatch(name) and not _is_address(name))
    return Command(script=f"set -- {shlex.join([home or '', names])}\n{probe_script()}", label="the probe")


def environment_command(home: str | None, name: str, check: str) -> Command:
    """A command that prints, as the probe does, the identity of the machine and one environment.

    `check` is the source of a program for the environment's own Python, which prints what it finds there.
    """
    files = [_HERE / file for file in ("frame.sh", "interfaces.sh", "environment.sh")]
    return Command.scripts(*files, arguments=[home or "", "", name, check], label="the check")


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
