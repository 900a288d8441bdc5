"""Arguments of the script by which a trial could write outside its own tree, as an output directory of real runs.

In come the arguments and the hosts; out go the paths that must be refused. The rules: an absolute path, also after
`--name=`, that exists on a host and can be written there, or could be made there; a relative path that leads out of the
project. `--allow-path` names those that may be written, with all below them.
"""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING, Final

from ipexctl.remote.command import Command
from ipexctl.remote.session import capture

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ipexctl.hosts.host import Host
    from ipexctl.remote.session import Session
    from ipexctl.remote.session_pool import SessionPool

TIMEOUT: Final = 30.0


def paths_in(arguments: Sequence[str], allowed: Sequence[str]) -> tuple[str, ...]:
    """The absolute paths in the arguments that are not allowed. Pure."""
    words = [word.partition("=")[2] if word.startswith("-") else word for word in arguments]
    paths = (os.path.normpath(word) for word in words if word.startswith("/"))
    return tuple(path for path in dict.fromkeys(paths) if not any(_is_below(path, top) for top in allowed))


def leading_out(arguments: Sequence[str], cwd: Path, root: Path) -> tuple[str, ...]:
    """The relative paths in the arguments that lead out of the project, by `..` or by a link."""
    words = [word.partition("=")[2] if word.startswith("-") else word for word in arguments]
    paths = (word for word in words if word and not word.startswith("/"))
    real_root = root.resolve()
    return tuple(
        path
        for path in paths
        if ".." in path.split("/") or (cwd / path).exists()
        if not (cwd / path).resolve().is_relative_to(real_root)
    )


def _is_below(path: str, top: str) -> bool:
    top = os.path.normpath(top)
    return path == top or path.startswith(f"{top.rstrip('/')}/")


def writable_paths(hosts: Sequence[Host], paths: Sequence[str], pool: SessionPool) -> tuple[str, ...]:
    """Those that a trial could write on some host. A host that can't be asked is asked again by the first trial."""
    if not paths:
        return ()
    quoted = " ".join(map(shlex.quote, paths))
    script = (
        f'for p in {quoted}; do if [ -e "$p" ]; then [ -w "$p" ]; else d=$(dirname "$p"); [ -d "$d" ] && [ -w "$d" ]; '
        'fi && printf "%s\\n" "$p"; done; :'
    )

    def look(host: Host, session: Session) -> str:
        del host
        found = capture(session, Command(script, "look at paths"), timeout=TIMEOUT, cancel=pool.cancel)
        return found.stdout.decode(errors="replace")

    outcomes = list(pool.each(hosts, look))
    found = {line for done in outcomes if done.error is None for line in (done.result or "").splitlines()}
    return tuple(path for path in paths if path in found)
