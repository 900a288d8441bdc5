"""The home: the one directory of a host below which ipexctl writes and removes.

A home carries the file `MARK`, made before anything else in it. Nothing is written or removed in a directory without
it: a directory with files and no mark is refused, whatever its name and its files are. A missing or empty directory
becomes a home. The directory and its mark belong to the account. So that nobody can exchange it, each directory above
it belongs to the account or to root, and no other account can write there (`check_above`; a sticky directory is fine).
`open_home` decides this on a host, by inodes and not by names; `remote/home.sh` decides the same where there may be no
Python. `home_entries` says which entries inside a home are ipexctl's.
"""

from __future__ import annotations

import errno
import os
import re
import shlex
import stat
from typing import Mapping

from ipexctl.node.common.answer import AgentError
from ipexctl.node.common.clock import wait_until
from ipexctl.node.common.files import make_private_directory
from ipexctl.node.common.hub_cache import HF_HOME

MARK = ".ipexctl-home"
MARK_TEXT = "A home of ipexctl, which removes only its own files here: ipexctl uninstall\n"
DEFAULT_NAME = ".ipexctl"
"""Of the default home, in the home directory of the account."""
HOME_ENTRIES = frozenset(
    {
        "agent",
        "checkpoints",
        "code",
        "envs",
        HF_HOME,
        "results",
        "runs",
        "ssh",
        "tmp",
        "wheels",
        "tune.before",
        "tune.before.rest",
        MARK,
    }
)
"""The names in a home that ipexctl makes."""
IGNORED = r"lost\+found|\.snapshot|\.nfs.*"
"""Names that do not count as content of a directory: filesystems and file servers make them."""
_OTHERS_MAY_WRITE = 0o022
_MAX_LINKS = 40
"""As many as Linux follows."""
_SETTLE = 0.1
"""Seconds after which a directory is read again before it is refused: another call may be making it."""


REFUSALS: Mapping[str, tuple[str, str]] = {
    "other_files": (
        "{home} has files that ipexctl did not make{names}: it can't be ipexctl's directory",
        "name a directory of its own: --home {below}",
    ),
    "account_home": (
        "{home} is the home directory of the account: it can't be ipexctl's directory",
        "name a directory of its own: --home {below}",
    ),
    "root": (
        "{home} is the root directory: it can't be ipexctl's directory",
        "name a directory of its own: --home DIR",
    ),
    "other_account": ("{home} belongs to another account{names}", "name a directory of this account: --home DIR"),
    "above": (
        "{home} could be exchanged by other accounts{names}",
        "name a directory below one of this account: --home DIR",
    ),
    "open": (
        "{home} can be changed by other accounts, and its filesystem does not let that be changed",
        "name a directory on another filesystem: --home DIR",
    ),
    "no_mark": ("{home}/.ipexctl-home is not a file of this account", "look at it, then move it away"),
    "foreign_ssh": (
        "{home}/ssh has a key or a config that ipexctl did not make",
        "move it away, or name another directory: --home {below}",
    ),
}
"""Kind → reason and fix."""


class HomeRefused(AgentError):
    """The directory can't be a home. `kind` is a key of `REFUSALS`."""

    def __init__(self, kind: str, home: str, names: str = "") -> None:
        below = shlex.quote(f"{home.rstrip('/')}/{DEFAULT_NAME if kind == 'account_home' else 'ipexctl'}")
        reason, fix = (text.format(home=home, names=names, below=below) for text in REFUSALS[kind])
        super().__init__(reason, fix)
        self.kind = kind
        self.is_wrong_call = kind == "above"


def make_home(home: str) -> None:
    """`open_home` for a call that is about to write: it makes a missing directory, and marks it first."""
    if open_home(home):
        return
    make_private_directory(home)
    open_home(home)


def open_home(home: str) -> bool:
    """Mark a home, and close it to others; False if there is no such directory.

    For each call that writes or removes something below it. Raises a HomeRefused for a directory that has files of
    others, and changes nothing there.
    """
    status = _check(home)
    if status is None:
        return False
    has_mark = _has_mark(home)
    if not has_mark:
        _check_unmarked(home)
    _close_to_others(home, status)
    if not has_mark:
        _write_mark(home)
    return True


def check_home(home: str) -> bool:
    """`open_home` for a call that only reads: it raises the same errors, and changes nothing."""
    if _check(home) is None:
        return False
    if not _has_mark(home):
        _check_unmarked(home)
    return True


def is_home(home: str) -> bool:
    """Whether the directory is a home already, by its mark."""
    try:
        return _check(home) is not None and _has_mark(home)
    except AgentError:
        return False


def remove_mark(home: str) -> None:
    """For the last step of a removal, when nothing of ipexctl is left in the home."""
    if _has_mark(home):
        os.unlink(os.path.join(home, MARK))


def check_above(home: str) -> None:
    """Raise a HomeRefused if another account could exchange the directory, or one above it.

    Each directory on the way belongs to this account or to root, and so does each link; nobody else can write there, or
    it is sticky, where entries can be exchanged by their owners alone. A private group of the account is nobody else.
    """
    pending, done, links = os.path.join(os.getcwd(), home).split("/")[:0:-1], "/", 0
    while True:
        _check_directory(home, done)
        if not pending:
            return
        part = pending.pop()
        if part in ("", "."):
            continue
        path = os.path.dirname(done) if part == ".." else os.path.join(done, part)
        try:
            status = os.lstat(path)
        except OSError:
            return  # it is made below a directory that was checked, or the call explains why it can't be entered
        if not stat.S_ISLNK(status.st_mode):
            done = path
            continue
        links += 1
        if links > _MAX_LINKS:
            return
        if status.st_uid not in (0, os.geteuid()):
            raise HomeRefused("above", home, f" ({path} is a link of uid {status.st_uid})")
        target = os.readlink(path)
        done = "/" if target.startswith("/") else done
        pending += target.split("/")[::-1]


def _check_directory(home: str, path: str) -> None:
    status = os.stat(path)
    if not stat.S_ISDIR(status.st_mode) or _is_same(status, home):
        return  # the home itself has rules of its own
    if status.st_uid not in (0, os.geteuid()):
        raise HomeRefused("above", home, f" ({path} belongs to uid {status.st_uid})")
    others = status.st_mode & _OTHERS_MAY_WRITE
    if others == stat.S_IWGRP and _is_private_group(status):
        others = 0
    if others and not status.st_mode & stat.S_ISVTX:
        raise HomeRefused("above", home, f" ({path} has mode {stat.S_IMODE(status.st_mode):o})")


def _is_private_group(status: os.stat_result) -> bool:
    """Whether a directory's group is its owner's own: the umask 002 of some systems lets it write."""
    import grp
    import pwd

    try:
        owner, group = pwd.getpwuid(status.st_uid), grp.getgrgid(status.st_gid)
    except KeyError:
        return False
    return owner.pw_gid == group.gr_gid and owner.pw_name == group.gr_name and set(group.gr_mem) <= {owner.pw_name}


def _check(home: str) -> os.stat_result | None:
    """The status of the directory, which belongs to this account and is not its home directory; None: there is none."""
    check_above(home)
    try:
        status = os.stat(home)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not stat.S_ISDIR(status.st_mode):
        return None  # the call that makes it explains that
    if status.st_uid != os.geteuid():
        raise HomeRefused("other_account", home, f" (uid {status.st_uid})")
    if _is_same(status, os.path.expanduser("~")):
        raise HomeRefused("account_home", home)
    return status


def _is_same(status: os.stat_result, path: str) -> bool:
    try:
        return os.path.samestat(status, os.stat(path))
    except OSError:
        return False


def _has_mark(home: str) -> bool:
    try:
        status = os.lstat(os.path.join(home, MARK))
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()


def _check_unmarked(home: str) -> None:
    """Raise a HomeRefused for a directory without a mark, unless it is empty."""
    import pwd

    status = os.stat(home)
    if _is_same(status, "/"):
        raise HomeRefused("root", home)
    try:  # $HOME may be another one, as under sudo
        if _is_same(status, pwd.getpwuid(os.geteuid()).pw_dir):
            raise HomeRefused("account_home", home)
    except KeyError:  # an account without an entry
        pass
    if wait_until(lambda: not foreign_content(home), _SETTLE, _SETTLE):
        return
    names = foreign_content(home)
    few = ", ".join(name if name.isprintable() else repr(name) for name in names[:3])
    raise HomeRefused("other_files", home, f" ({few}{', …' if len(names) > 3 else ''})")


def foreign_content(home: str) -> list[str]:
    """The names in a directory, without the mark and names that do not count; none if it has a mark."""
    names = os.listdir(home)
    if MARK in names:  # another call has just made it; a cache of NFS may still say that there is none
        return []
    return sorted(name for name in names if not re.fullmatch(IGNORED, name, re.DOTALL))


def _close_to_others(home: str, status: os.stat_result) -> None:
    """Close a home to others who may write there. If they may only read, a user's files may be meant for them."""
    others_may_write = status.st_mode & _OTHERS_MAY_WRITE
    if not status.st_mode & 0o077 or not (others_may_write or HOME_ENTRIES.issuperset(os.listdir(home))):
        return
    try:
        os.chmod(home, 0o700)
        status = os.stat(home)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EACCES, errno.ENOTSUP, errno.ENOSYS):
            raise
    if status.st_mode & _OTHERS_MAY_WRITE:
        raise HomeRefused("open", home)


def _write_mark(home: str) -> None:
    """O_EXCL is atomic on NFS, too; its text only tells a reader what it is."""
    try:
        number = os.open(os.path.join(home, MARK), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        if not _has_mark(home):
            raise HomeRefused("no_mark", home) from None
        return
    except OSError as error:
        raise OSError(error.errno, error.strerror, home) from None
    try:
        os.write(number, MARK_TEXT.encode())
    except OSError:  # the disk is full
        pass
    finally:
        os.close(number)
