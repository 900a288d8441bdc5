"""Which directory is the project, and what its tree is called on the nodes. Nothing here looks into it."""

from __future__ import annotations

import contextlib
import getpass
import hashlib
import os
import re
import secrets
from pathlib import Path
from typing import Final

import platformdirs

_LONGEST: Final = 40
_MACHINE_ID: Final = Path("/etc/machine-id")


def root_for(script: Path | None, cwd_option: Path | None, cwd: Path) -> Path:
    """`--cwd`, else the current directory if the script is under it, else the script's directory. Pure.

    Without a script (a module, a command) it is the current directory. A script that lies under both its name and
    what a link makes of it is under the current directory by its name.
    """
    if cwd_option is not None:
        return _plain(cwd / cwd_option)
    if script is None:
        return _plain(cwd)
    place = _plain(cwd / script)
    return _plain(cwd) if place.is_relative_to(_plain(cwd)) else place.parent


def _plain(path: Path) -> Path:
    """Without `.` and `..`, as text: what links make of them is not looked at."""
    return Path(os.path.normpath(path))


def tree_name(root: Path, owner: str) -> str:
    """What a root's tree is called on the nodes: its name, and a mark that no other root or machine has. Pure."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "_", root.name).strip("._-")[:_LONGEST] or "project"
    mark = hashlib.sha256(os.fsencode(root) + b"\0" + owner.encode("utf-8", "surrogateescape")).hexdigest()[:8]
    return f"{name}-{mark}"


def owner_here() -> str:
    """This account on this machine. A laptop's host name changes with the network it is in, so where the system gives
    a machine no name of its own, one is made up and kept."""
    machine = ""
    with contextlib.suppress(OSError):
        machine = _MACHINE_ID.read_text().strip()
    if machine:
        return f"{_user()}@{machine}/{os.uname().nodename}"
    kept = Path(platformdirs.user_data_dir("ipexctl")) / "machine"
    with contextlib.suppress(OSError):
        kept.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError), kept.open("x") as file:
            file.write(secrets.token_hex(16))
        return f"{_user()}@{kept.read_text()}"
    return f"{_user()}@{os.uname().nodename}"


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # an account without a name, as containers have
        return str(os.getuid())
