"""The probe: pieces of POSIX sh and one of awk that make one script, and the command that runs it on a host.

The script needs no Python, no root and no program but the shell; whatever else is missing leaves a hole.
"""

from __future__ import annotations

import functools
import re
import shlex
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ipexctl.remote.command import Command

if TYPE_CHECKING:
    from collections.abc import Sequence

_PIECES: Final = ("frame.sh", "machine.sh", "places.sh", "main.sh")
_A_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")

PARTS: Final = ("kernel", "network", "names", "home", "programs")
"""What the script says `done` to, one after the other or side by side."""


@functools.cache
def probe_script() -> str:
    """What asks, to be run as `sh -c SCRIPT probe HOME PEERS`."""
    return f"kernel_awk={shlex.quote(_text('kernel.awk'))}\n" + "".join(_text(piece) for piece in _PIECES)


@functools.cache
def _text(piece: str) -> str:
    """A piece without its comments and indentation: they'd travel to every host."""
    text = Path(__file__).with_name(piece).read_text(encoding="utf-8")
    lines = (line.strip() for line in text.splitlines())
    return "".join(f"{line}\n" for line in lines if line and not line.startswith("#"))


def probe_command(peers: Sequence[str] = (), home: str | None = None) -> Command:
    """The probe for hosts whose fellows have these names, with our directory there, or the usual one.

    An address has no name to be looked up. What can't be a host's name is left out: the script hands names to
    getent as words.
    """
    names = " ".join(name for name in peers if _A_NAME.fullmatch(name) and not _is_address(name))
    given = {"home": home or "", "peers": names, "probe": probe_script()}
    settings = "".join(f"{name}={shlex.quote(value)}\n" for name, value in given.items())
    return Command(script=settings + _text("outer.sh"), label="the probe")


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
