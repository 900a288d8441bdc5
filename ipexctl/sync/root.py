"""The root directory of a project, and the name of its tree on the nodes. Reads none of the project's files.

Another account could write a mark (`MARKS`) above a shared directory such as /tmp, and all of that directory would be
sent; such a mark is an error. A home directory is never a project. A tree's name has a hash of root, account and
machine, so trees of equal names don't mix.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pwd
import re
import secrets
import shlex
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

from ipexctl.files.file_names import stored_path
from ipexctl.found_files import account_name, cache_directory, check_found, data_directory, state_directory
from ipexctl.node.common.files import make_private_directory, open_private
from ipexctl.option_declaration import DEFAULT_HOME

MARKS: Final = ("ipexctl.toml", ".ipexctlignore", "pyproject.toml")
_LONGEST: Final = 40
_MACHINE_ID: Final = Path("/etc/machine-id")


def find_root(script: Path | None, cwd_option: Path | None, cwd: Path) -> Path:
    """`--cwd`, else the nearest directory with a mark, from the script's directory (or `cwd`) up to a repository, else
    the script's directory (or `cwd`). Raises a UserError for a mark above the first directory that others could have
    written.

    Links in the script's path are not resolved.
    """
    if cwd_option is not None:
        return _plain(cwd / cwd_option)
    start = _plain(cwd / script).parent if script is not None else _plain(cwd)
    homes, own = home_directories(), own_directories()
    for path in (start, *start.parents):
        if (path != start and _is_shared(path)) or describe_root_problem(real_path(path), homes, own):
            break
        if is_marked(path):
            if path != start:
                _check_marks(path, start)
            return path
        if os.path.lexists(path / ".git"):
            break
    return start


def _check_marks(directory: Path, start: Path) -> None:
    own = shlex.quote(os.fspath(start / MARKS[0]))
    for name in MARKS:
        if os.path.isfile(directory / name):
            more = f"or end the search for the project below it: touch {own}"
            role = "would make its directory the project, and does not count"
            check_found(directory / name, more=more, role=role)


def is_marked(path: Path) -> bool:
    return any(os.path.isfile(path / name) for name in MARKS)


def _is_shared(path: Path) -> bool:
    """True for a directory like /tmp, where another account could write a mark."""
    shared = stat.S_IWOTH | stat.S_ISVTX
    try:
        return os.stat(path).st_mode & shared == shared
    except OSError:
        return True


def _plain(path: Path) -> Path:
    return Path(os.path.normpath(path))


def root_problem(root: Path) -> str:
    problem = describe_root_problem(real_path(root), home_directories(), own_directories())
    return f"{problem}: all of it would be copied to every host" if problem else ""


def describe_root_problem(root: Path, homes: Sequence[Path], own: Sequence[Path] = ()) -> str:
    """The same for given home directories and ipexctl's own, with links resolved. Pure."""
    if root == root.parent:
        return f"{root} is the root of the file system, not a project"
    if root in homes:
        return f"{root} is a home directory, not a project"
    if root in own:
        return f"{root} is a directory of ipexctl's own, not a project"
    below = next((home for home in homes if home.is_relative_to(root)), None)
    return f"{root} has the home directory {below} in it, and is not a project" if below is not None else ""


def home_directories() -> tuple[Path, ...]:
    homes = [os.path.expanduser("~")]
    with contextlib.suppress(KeyError):
        homes.append(pwd.getpwuid(os.getuid()).pw_dir)
    return tuple(dict.fromkeys(real_path(home) for home in homes if os.path.isabs(home)))


def own_directories() -> tuple[Path, ...]:
    directories = (cache_directory(), state_directory(), data_directory())
    return tuple(real_path(path) for path in (os.path.expanduser(DEFAULT_HOME), *directories))


def real_path(path: Path | str) -> Path:
    """Resolve links, or return the absolute path if a link can't be read, such as `/proc/1/cwd`.

    A project has one root, also on a case-insensitive filesystem.
    """
    try:
        return Path(stored_path(os.path.realpath(path)))
    except OSError:
        return Path(os.path.abspath(path))


def path_problem(path: Path, wanted: Literal["file", "directory"]) -> str:
    """Why a path is not the wanted file or directory, as the end of a sentence; empty if it is."""
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return "does not exist"
    except OSError as error:
        return f"can't be read: {error.strerror or error}"
    if wanted == "directory":
        return "" if stat.S_ISDIR(mode) else "is not a directory"
    if stat.S_ISREG(mode):
        return ""
    return "is a directory" if stat.S_ISDIR(mode) else "is not a regular file"


def tree_name(root: Path, owner: str) -> str:
    """The root's name, and a mark for this root, account and machine. Pure."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "_", root.name).strip("._-")[:_LONGEST] or "project"
    mark = hashlib.sha256(os.fsencode(root) + b"\0" + owner.encode("utf-8", "surrogateescape")).hexdigest()[:8]
    return f"{name}-{mark}"


def owner_here() -> str:
    """This account on this machine, by machine id; else by a random id that is kept, because a laptop's host name
    changes with its network."""
    with contextlib.suppress(OSError):
        if machine := _MACHINE_ID.read_text().strip():
            return f"{account_name()}@{machine}/{os.uname().nodename}"
    id_file = data_directory() / "machine"
    with contextlib.suppress(OSError):
        make_private_directory(id_file.parent)
        with contextlib.suppress(FileExistsError), open(id_file, "x", opener=open_private) as file:
            file.write(secrets.token_hex(16))
        return f"{account_name()}@{id_file.read_text()}"
    return f"{account_name()}@{os.uname().nodename}"
