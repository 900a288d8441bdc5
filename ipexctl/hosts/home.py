"""The directory of ipexctl on the nodes: `--home`, else $IPEXCTL_HOME, else ~/.ipexctl."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ipexctl.errors import UserError
from ipexctl.hosts.names import quoted

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

ENVIRONMENT: Final = "IPEXCTL_HOME"
DEFAULT_HOME: Final = "~/.ipexctl"


def home_on_nodes(given: Path | None, environ: Mapping[str, str]) -> str:
    """An absolute path, or one that begins with `~/`, the account's home on each node."""
    text, source = (str(given), "--home") if given is not None else (environ.get(ENVIRONMENT) or "", f"${ENVIRONMENT}")
    if not text:
        return DEFAULT_HOME
    problems = {
        "is no absolute path": not text.startswith(("/", "~/")),
        "can't be ipexctl's directory": ".." in text.split("/") or not text.strip("/~"),
        "has a colon, which separates the directories of PATH": ":" in text,
        "has characters that can't be shown": not text.isprintable(),
    }
    for problem, is_so in problems.items():
        if is_so:
            fix = "one that holds on every node, such as /scratch/me/ipexctl"
            raise UserError(f"{source} {quoted(text)} {problem}", fix=fix)
    return text.rstrip("/")
