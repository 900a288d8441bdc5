"""Which directory is the project, and what its tree is called on the nodes. Nothing here looks into it."""

from __future__ import annotations

import contextlib
import getpass
import hashlib
import os
import pwd
import re
import secrets
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import platformdirs

from ipexctl.hosts.home import DEFAULT_HOME

if TYPE_CHECKING:
    from collections.abc import Sequence

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


def root_problem(root: Path) -> str:
    """Why a directory can't be a project, as a sentence; empty where it can."""
    problem = describe_root_problem(real_path(root), home_directories(), own_directories())
    return f"{problem}: all of it would be copied to every host" if problem else ""


def describe_root_problem(root: Path, homes: Sequence[Path], own: Sequence[Path] = ()) -> str:
    """The same for these home directories and directories of ipexctl's own, links resolved. Pure."""
    if root == root.parent:
        return f"{root} is the root of the file system, not a project"
    if root in homes:
        return f"{root} is a home directory, not a project"
    if root in own:
        return f"{root} is a directory of ipexctl's own, not a project"
    below = next((home for home in homes if home.is_relative_to(root)), None)
    return f"{root} has the home directory {below} in it, and is not a project" if below is not None else ""


def home_directories() -> tuple[Path, ...]:
    """This account's home directories: `$HOME`, and its entry's in passwd, links resolved."""
    places = [os.path.expanduser("~")]
    with contextlib.suppress(KeyError):
        places.append(pwd.getpwuid(os.getuid()).pw_dir)
    return tuple(dict.fromkeys(real_path(place) for place in places if os.path.isabs(place)))


def own_directories() -> tuple[Path, ...]:
    """The directories of this machine in which ipexctl keeps something, links resolved."""
    kept = (platformdirs.user_cache_dir, platformdirs.user_state_dir, platformdirs.user_log_dir)
    places = [directory("ipexctl", appauthor=False) for directory in (*kept, platformdirs.user_data_dir)]
    return tuple(real_path(os.path.expanduser(place)) for place in (DEFAULT_HOME, *places))


def real_path(path: Path | str) -> Path:
    """A path with its links resolved, or as text where a link of it can't be read, as `/proc/1/cwd` can't."""
    try:
        return Path(os.path.realpath(path))
    except OSError:
        return Path(os.path.abspath(path))


def path_problem(path: Path, wanted: Literal["file", "directory"]) -> str:
    """Why a path is not the file or directory that is wanted, as the end of a sentence; empty where it is."""
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return "is not there"
    except OSError as error:
        return f"can't be read: {error.strerror or error}"
    if wanted == "directory":
        return "" if stat.S_ISDIR(mode) else "is no directory"
    if stat.S_ISREG(mode):
        return ""
    return "is a directory" if stat.S_ISDIR(mode) else "is no regular file"


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
