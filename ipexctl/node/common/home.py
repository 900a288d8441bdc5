"""The home: the directory of a host in which ipexctl creates and removes files.

A missing or empty directory becomes a home; a directory with files and no `MARK` is refused. `remote/home.sh` applies
the same rules where Python may be missing.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shlex
import stat
from typing import Any, Iterator, Mapping

from ipexctl.node.common.answer import AgentError
from ipexctl.node.common.clock import wait_until
from ipexctl.node.common.files import RunReference, make_private_directory
from ipexctl.node.common.guarded_directory import GuardedDirectory
from ipexctl.node.common.hub_cache import HF_HOME
from ipexctl.node.common.walk import Place, Refused, enter, path_above_home

MARK = ".ipexctl-home"
MARK_TEXT = "A home of ipexctl, which removes only its own files here: ipexctl uninstall\n"
DEFAULT_NAME = ".ipexctl"
DIRECTORIES = ("agent", "checkpoints", "code", "envs", HF_HOME, "pushed", "results", "runs", "tmp", "wheels")
"""`home_entries.py` says what in them is ipexctl's. Uninstall empties them in this order."""
HOME_ENTRIES = frozenset((*DIRECTORIES, "tune.before", "tune.before.rest", MARK))
STATE_DIRECTORY = ".ipexctl"
"""In a project's tree."""
IGNORED = r"lost\+found|\.snapshot|\.nfs.*"
"""Names that filesystems and file servers create; a directory with only these counts as empty."""
_OTHERS_MAY_WRITE = 0o022
_HOME_NAMES = frozenset(name.encode() for name in HOME_ENTRIES)
_SETTLE = 0.1
"""Seconds until a directory is read again before it is refused, because another call may be creating it."""


REFUSALS: Mapping[str, tuple[str, str]] = {
    "other_files": (
        "{home} has files that ipexctl did not make{names}: it can't be ipexctl's directory",
        "name a separate directory: --home {below}",
    ),
    "account_home": (
        "{home} is the home directory of the account: it can't be ipexctl's directory",
        "name a separate directory: --home {below}",
    ),
    "root": (
        "{home} is the root directory: it can't be ipexctl's directory",
        "name a separate directory: --home DIR",
    ),
    "other_account": ("{home} belongs to another account{names}", "name a directory of this account: --home DIR"),
    "above": (
        "{home} could be replaced by other accounts{names}",
        "name a directory below one of this account: --home DIR",
    ),
    "open": (
        "{home} can be changed by other accounts, and its filesystem does not let that be changed",
        "name a directory on another filesystem: --home DIR",
    ),
    "no_mark": ("{home}/.ipexctl-home is not a file of this account", "look at it, then move it away"),
}


class HomeRefused(AgentError):
    """The directory can't be a home. `kind` is a key of `REFUSALS`."""

    def __init__(self, kind: str, home: str, names: str = "") -> None:
        below = shlex.quote(f"{home.rstrip('/')}/{DEFAULT_NAME if kind == 'account_home' else 'ipexctl'}")
        reason, fix = (text.format(home=home, names=names, below=below) for text in REFUSALS[kind])
        super().__init__(reason, fix)
        self.kind = kind
        self.is_wrong_call = kind == "above"


def home_of(request: Mapping[str, Any], below: str = "") -> str:
    """Return the home of a request. Raises an AgentError if another account could redirect the home, or `below` in
    it."""
    home: str = os.path.expanduser(request["home"])
    if not os.path.isabs(home):
        raise AgentError(f"{home} is not an absolute path", "give --home an absolute path")
    _enter(home, f"{home}/{below}" if below else home).__exit__()
    return home


def rundir_of(request: RunReference) -> str:
    """Return the directory of a request's run. Raises an AgentError if another account could redirect it."""
    return os.path.join(home_of(request, f"runs/{request['id']}"), "runs", request["id"])


def make_home(home: str) -> None:
    """Open a home for writing; a missing one is created and marked."""
    if open_home(home):
        return
    make_private_directory(home)
    open_home(home)


def open_home(home: str) -> bool:
    """Mark a home and close it to others. Return False if it does not exist. Raises a HomeRefused if other files are in
    it."""
    with _open(home) as directory:
        if directory is None:
            return False
        has_mark = _has_mark(directory)
        if not has_mark:
            _check_unmarked(directory)
        _close_to_others(directory)
        _remove_default_list(directory)
        if not has_mark:
            _write_mark(directory)
    return True


def check_home(home: str) -> bool:
    """Check a home as `open_home` does, with the same errors, but change nothing."""
    with _open(home) as directory:
        if directory is not None and not _has_mark(directory):
            _check_unmarked(directory)
        return directory is not None


def remove_mark(home: str) -> None:
    """Remove the mark, so that the directory is no home any more. Without a mark, do nothing."""
    with _open(home) as directory:
        if directory is not None and _has_mark(directory):
            directory.unlink(MARK.encode())


def _enter(home: str, path: str) -> Place:
    closed: set[str] = set()
    while True:
        try:
            return enter(os.path.join(os.getcwd(), path), path_above_home)
        except Refused as refused:
            if refused.kind != "acl" or refused.path in closed or not _close_list(home, refused.path):
                raise HomeRefused("above", home, f": {refused}") from None
            closed.add(refused.path)


def _close_list(home: str, path: str) -> bool:
    """Close a directory of a home that an access control list opened, perhaps while a run was alive: ipexctl made the
    directory for this account alone. Returns False for any other directory."""
    if not f"{os.path.realpath(path)}/".startswith(f"{os.path.realpath(home)}/"):
        return False
    with contextlib.suppress(OSError):
        number = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if os.fstat(number).st_uid == os.geteuid():
                os.fchmod(number, 0o700)  # the mask of the list, too
                return True
        finally:
            os.close(number)
    return False


@contextlib.contextmanager
def _open(home: str) -> Iterator[GuardedDirectory | None]:
    try:
        place = _enter(home, home)
    except (FileNotFoundError, NotADirectoryError):
        yield None
        return
    with place:
        if place.status is None or place.name:
            yield None  # if a file is in the way, creating the directory raises the error
            return
        if place.status.st_uid != os.geteuid():
            raise HomeRefused("other_account", home, f" (uid {place.status.st_uid})")
        if _is_same(place.status, os.path.expanduser("~")):
            raise HomeRefused("account_home", home)
        yield GuardedDirectory(place.number, home)


def _is_same(status: os.stat_result, path: str) -> bool:
    try:
        return os.path.samestat(status, os.stat(path))
    except OSError:
        return False


def _has_mark(home: GuardedDirectory) -> bool:
    try:
        status = home.status_of(MARK.encode())
    except OSError:
        return False
    return status is not None and stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()


def _check_unmarked(home: GuardedDirectory) -> None:
    import pwd

    status = home.status()
    if _is_same(status, "/"):
        raise HomeRefused("root", home.path)
    try:  # $HOME may be another account's, as under sudo
        if _is_same(status, pwd.getpwuid(os.geteuid()).pw_dir):
            raise HomeRefused("account_home", home.path)
    except KeyError:  # an account without a passwd entry
        pass
    if wait_until(lambda: not foreign_content(home), _SETTLE, _SETTLE):
        return
    names = foreign_content(home)
    few = ", ".join(name if name.isprintable() else repr(name) for name in names[:3])
    raise HomeRefused("other_files", home.path, f" ({few}{', …' if len(names) > 3 else ''})")


def foreign_content(home: GuardedDirectory) -> list[str]:
    """Return the names in a directory, except ignored ones; empty if the directory has a mark."""
    names = [os.fsdecode(name) for name in home.names()]
    if MARK in names:  # another call has just created it, which an NFS cache may have hidden
        return []
    return sorted(name for name in names if not re.fullmatch(IGNORED, name, re.DOTALL))


def _close_to_others(home: GuardedDirectory) -> None:
    """Remove other accounts' write access, and their read access too if only ipexctl's files are in the home: a user
    may want others to read the user's own files."""
    mode = home.status().st_mode
    if not mode & 0o077 or not (mode & _OTHERS_MAY_WRITE or _HOME_NAMES.issuperset(home.names())):
        return
    try:
        home.set_mode(0o700)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EACCES, errno.ENOTSUP, errno.ENOSYS):
            raise
    if home.status().st_mode & _OTHERS_MAY_WRITE:
        raise HomeRefused("open", home.path)


def _remove_default_list(home: GuardedDirectory) -> None:
    """Remove the access control list that new entries would inherit: it replaces the umask."""
    if hasattr(os, "removexattr"):
        with contextlib.suppress(OSError):  # there is none, or the filesystem has no lists
            os.removexattr(f"/proc/self/fd/{home.number}", "system.posix_acl_default")


def _write_mark(home: GuardedDirectory) -> None:
    """Create the mark. O_EXCL is atomic on NFS too; the text is only for people who open the file."""
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        number = os.open(MARK, flags, 0o600, dir_fd=home.number)
    except FileExistsError:
        if not _has_mark(home):
            raise HomeRefused("no_mark", home.path) from None
        return
    except OSError as error:
        raise OSError(error.errno, error.strerror, home.path) from None
    try:
        os.write(number, MARK_TEXT.encode())
    except OSError:  # the disk is full
        pass
    finally:
        os.close(number)
