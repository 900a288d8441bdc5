"""Find the root directory of a project, and name its tree on the nodes.

Another account could write a marker file (`MARKS`) above a shared directory such as /tmp, and all of that directory
would be sent; such a file is an error. A home directory is never a project. A tree's name has a hash of root, account
and machine, so trees of equal names don't mix.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pwd
import re
import secrets
import stat
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Final, Literal, NamedTuple

from ipexctl.errors import UserError
from ipexctl.files.file_names import stored_path
from ipexctl.found_files import account_name, cache_directory, check_found, data_directory, state_directory
from ipexctl.node.common.files import make_private_directory, open_private
from ipexctl.node.common.fix import Fix
from ipexctl.option_declaration import DEFAULT_HOME
from ipexctl.projects.declaration import FILES, PYPROJECT, read_declaration
from ipexctl.projects.modules import ModulePlaces, has_module, has_packages, top_level_imports
from ipexctl.projects.project_files import TextReader
from ipexctl.projects.workspace import matches_member

CHOSEN: Final = ("ipexctl.toml", ".ipexctlignore")
"""The nearest directory with one of these is the root: the user put them there."""
MARKS: Final = (*CHOSEN, *FILES)
_LONGEST_TREE_NAME: Final = 40
_MACHINE_ID: Final = Path("/etc/machine-id")
_MOST_PARENTS: Final = 64
_MOST_ENTRIES: Final = 2000


def find_root(script: Path | None, cwd_option: str | Path | None, cwd: Path, module: str = "") -> Path:
    """Return the root of the project: `--cwd`, else the directory that a marker file names, from the script's directory
    (or `cwd`) up to a repository, else the script's directory (or `cwd`).

    A uv workspace takes the place of its member. Within a repository, the root also contains `cwd`, the modules that
    the script imports, or the module that is run, and the modules to which its symlinks lead. Symlinks in the script's
    path are not resolved. Raises a UserError for a marker file above the first directory that others could have
    written.
    """
    if cwd_option is not None:
        return _plain(cwd / cwd_option)
    here, start = _plain(cwd), _plain(cwd / script).parent if script is not None else _plain(cwd)
    above, repository = directories_of_project(start)
    chosen = next((path for path in above if _has_any(path, CHOSEN)), None)
    declared = next((path for path in above if _has_any(path, FILES)), None)
    if chosen is not None:
        root = chosen
    else:
        root = declared or start
        root = _workspace_of(root, above) or root
        if repository is not None and here.is_relative_to(repository) and not here.is_relative_to(root):
            root = _widened(root, here, above)
        elif repository is not None and declared is None and (script is not None or module):
            names = top_level_imports(_plain(cwd / script)) if script is not None else (module.partition(".")[0],)
            root = _widened(root, _place_of_modules(names, above), above)
        for linked in _linked_modules(root):
            if repository is not None and linked.is_relative_to(repository):
                root = _widened(root, linked, above)
    for path in above[1 : above.index(root) + 1]:
        _check_marks(path, start)
    return root


def directories_of_project(start: Path) -> tuple[list[Path], Path | None]:
    """Return the first directory and those above it that can be a project, and the repository, which is the last of
    them. The repository is None if the directories are in none."""
    homes, own = home_directories(), own_directories()
    directories = [start]
    for path in (start, *start.parents)[:_MOST_PARENTS]:
        if (path != start and _is_shared(path)) or describe_root_problem(real_path(path), homes, own):
            return directories, None
        if path != start:
            directories.append(path)
        if os.path.lexists(path / ".git"):
            return directories, path
    return directories, None


def _linked_modules(root: Path) -> Iterator[Path]:
    """Yield where symlinks beside the declaration lead, as `src -> ../../src`, if modules are there."""
    with contextlib.suppress(OSError), os.scandir(root) as entries:
        for entry in islice(entries, _MOST_ENTRIES):
            is_link = entry.is_symlink() and entry.is_dir()
            if is_link and (has_packages(Path(entry.path)) or has_module(root, entry.name)):
                yield _plain(root / os.readlink(entry.path))


def _widened(root: Path, inside: Path, above: Sequence[Path]) -> Path:
    """Return the nearest directory from the root upward that contains `inside` and a marker file, such as .git; without
    one, the nearest that contains `inside`, or the root if none does."""
    wide = [path for path in above[above.index(root) :] if inside.is_relative_to(path)]
    return next((path for path in wide if is_marked(path)), wide[0] if wide else root)


def _workspace_of(member: Path, above: Sequence[Path]) -> Path | None:
    """Return the uv workspace that has the directory as a member; None if there is none."""
    for path in above[above.index(member) + 1 :]:
        declaration = read_declaration(TextReader(path)) if _has_any(path, (PYPROJECT,)) else None
        if declaration is not None and declaration.is_workspace:
            is_member = matches_member(declaration.members, member.relative_to(path).as_posix())
            return path if is_member else None
    return None


def _place_of_modules(names: Iterable[str], above: Sequence[Path]) -> Path:
    """Return the nearest directory below which, or in whose `src`, all these modules are that any of the directories
    has."""
    owners = {directory: path for path in reversed(above) for directory in (path / "src", path)}
    places = ModulePlaces(directory for path in above for directory in (path, path / "src"))
    holders = (owners[holders[0]] for name in names if (holders := places.find(name)))
    return min((above[0], *holders), key=lambda path: len(path.parts))


def _check_marks(directory: Path, start: Path) -> None:
    """Refuse a marker file in the directory that another account could have written."""
    own = os.fspath(start / MARKS[0])
    for name in MARKS:
        if os.path.isfile(directory / name):
            more = Fix("or end the search for the project below it: `touch {own}`", own=own)
            role = "would make its directory the project, and does not count"
            check_found(directory / name, more=more, role=role)


class ProjectHere(NamedTuple):
    directory: Path | None = None
    root: Path | None = None

    @classmethod
    def find(cls) -> ProjectHere:
        """Return the project around the current directory.

        It is empty if there is none, or if the directory is gone.
        """
        here = cls()
        with contextlib.suppress(OSError, UserError):
            here = cls(Path.cwd())
            here = cls(here.directory, find_root(None, None, Path.cwd()))
        return here

    def has(self, call_directory: str, project: str) -> bool:
        """Return True for a call that was typed in this directory, or for a run of this project. A directory without a
        marker file of its own belongs to each project above it."""
        if call_directory and call_directory == str(self.directory):
            return True
        if self.root is None or not project:
            return False
        return str(self.root) == project or (not is_marked(self.root) and self.root.is_relative_to(project))


def is_marked(path: Path) -> bool:
    """True if the directory has a file or directory by which a project is known, such as .git."""
    return _has_any(path, MARKS)


def _has_any(path: Path, names: Sequence[str]) -> bool:
    return any(os.path.isfile(path / name) for name in names)


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
    """Return why the directory must not be a project, such as a home; empty if it may."""
    problem = describe_root_problem(real_path(root), home_directories(), own_directories())
    return f"{problem}: all of it would be copied to every host" if problem else ""


def describe_root_problem(root: Path, homes: Sequence[Path], own: Sequence[Path] = ()) -> str:
    """Return why the directory must not be a project, for given home directories and ipexctl's own, with symlinks
    resolved; empty if it may."""
    if root == root.parent:
        return f"{root} is the root of the file system, not a project"
    if root in homes:
        return f"{root} is a home directory, not a project"
    if root in own:
        return f"{root} is a directory of ipexctl's own, not a project"
    below = next((home for home in homes if home.is_relative_to(root)), None)
    return f"{root} has the home directory {below} in it, and is not a project" if below is not None else ""


def home_directories() -> tuple[Path, ...]:
    """Return this account's homes: by $HOME and by the account's entry."""
    homes = [os.path.expanduser("~")]
    with contextlib.suppress(KeyError):
        homes.append(pwd.getpwuid(os.getuid()).pw_dir)
    return tuple(dict.fromkeys(real_path(home) for home in homes if os.path.isabs(home)))


def own_directories() -> tuple[Path, ...]:
    """Return the directories in which ipexctl keeps its own files."""
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
    """Return why a path is not the wanted file or directory, as the end of a sentence; empty if it is."""
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
    """Return the name of the project's tree: the name of the root, and a digest of root, account and machine."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "_", root.name).strip("._-")[:_LONGEST_TREE_NAME] or "project"
    mark = hashlib.sha256(os.fsencode(root) + b"\0" + owner.encode("utf-8", "surrogateescape")).hexdigest()[:8]
    return f"{name}-{mark}"


def owner_here() -> str:
    """Return a text for this account on this machine, by machine id; else by a random id that is kept, because a
    laptop's host name changes with its network."""
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
