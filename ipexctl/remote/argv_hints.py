"""Finds arguments of `exec` that only a shell would expand, or that the local shell has expanded already. Pure."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_HOME: Final = re.compile(r"~[A-Za-z0-9._-]*(/|$)")
_VARIABLE: Final = re.compile(r"\$(\{[A-Za-z_]\w*\}|[A-Za-z_]\w*)")
_WITH_PATTERNS: Final = re.compile(
    r"(env|find|locate|[ef]?grep|rg|sed|[gm]?awk|perl|ruby|expr|jq|printf|echo|rsync|tar|pip3?|uv|pytest|git|python[\d.]*"
    r"|(ba|da|z|k|c|tc|fi)?sh)"
)
"""Programs that take patterns or programs of their own as arguments."""


def unexpanded(argv: Sequence[str]) -> tuple[str, ...]:
    """The arguments that a shell would expand: `~/x`, `/data/*.pt`, `$HOME`."""
    if not argv:
        return ()
    program, *arguments = argv
    if _WITH_PATTERNS.fullmatch(program.rpartition("/")[2]):
        return tuple(argument for argument in arguments if _HOME.match(argument))
    return tuple(
        argument for argument in arguments if _HOME.match(argument) or "*" in argument or _VARIABLE.search(argument)
    )


def unexpanded_hint(argv: Sequence[str], arguments: Sequence[str]) -> str:
    """The note for arguments of `unexpanded`, with commands that show first what the hosts expand them to."""
    line = " ".join(word if word in arguments and " " not in word else shlex.quote(word) for word in argv)
    words = " ".join(word for word in arguments if " " not in word) or "ARGUMENT"
    return (
        f"{', '.join(arguments)}: passed to {argv[0]} as written, because no shell runs on the host; to see what "
        f"a shell there makes of it: ipexctl exec --shell {shlex.quote(f'echo {words}')}; "
        f"then: ipexctl exec --shell {shlex.quote(line)}"
    )


def local_paths(argv: Sequence[str], home: str, exists: Callable[[str], bool]) -> tuple[str, ...]:
    """The arguments below the home of the control machine that exist there: its shell may have expanded a `~`."""
    prefix = f"{home.rstrip('/')}/"
    return tuple(
        argument for argument in argv[1:] if len(prefix) > 1 and argument.startswith(prefix) and exists(argument)
    )


def local_path_hint(path: str, home: str, hosts: str) -> str:
    inside = path.removeprefix(home.rstrip("/"))
    return (
        f"{path} exists on the control machine and not on {hosts}: the shell here expands ~; to see the path below the "
        f"home of each host: ipexctl exec --shell {shlex.quote(f'ls -d ~{shlex.quote(inside)}')}"
    )
