"""The probe: pieces of POSIX sh that make one script, and the command that runs it on a host.

The script needs no Python, no root and no program but the shell; whatever else is missing leaves a hole.
"""

from __future__ import annotations

import functools
import re
import shlex
from importlib import resources
from typing import TYPE_CHECKING, Final

from ipexctl.remote.command import Command

if TYPE_CHECKING:
    from collections.abc import Sequence

_PIECES: Final = ("frame.sh", "machine.sh", "places.sh", "main.sh")
_A_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._:%-]*")


@functools.cache
def probe_script() -> str:
    """All pieces as one, without the comments: they'd travel to every host."""
    pieces = (resources.files(__name__).joinpath(piece).read_text(encoding="utf-8") for piece in _PIECES)
    lines = (line.strip() for piece in pieces for line in piece.splitlines())
    return "".join(f"{line}\n" for line in lines if line and not line.startswith("#"))


def probe_command(peers: Sequence[str] = (), home: str | None = None) -> Command:
    """The probe for hosts whose fellows have these names, with our directory there, or the usual one.

    What can't be a host's name is left out: the script hands names to getent as words.
    """
    names = " ".join(name for name in peers if _A_NAME.fullmatch(name))
    given = f"home={shlex.quote(home or '')}\npeers={shlex.quote(names)}\n"
    return Command(script=given + probe_script(), label="the probe")
