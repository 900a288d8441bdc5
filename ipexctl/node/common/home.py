"""The home: the one directory of a host below which ipexctl writes and removes.

A home carries the file `MARK`, made before anything else in it. Nothing is written or removed in a directory without
it: a directory with files of others is refused. A missing or empty directory becomes a home, and so does one that has
files which only an earlier version can have made (`EVIDENCE`), or that is the default home by its name. `open_home`
decides this on a host, by inodes and not by names; `remote/home.sh` decides the same where there may be no Python, from
the same names and patterns. `home_entries` says which entries inside a home are ipexctl's.
"""

from __future__ import annotations

import errno
import os
import re
import shlex
import stat
import time
from typing import Mapping

from ipexctl.node.common.answer import AgentError
from ipexctl.node.common.files import make_private_directory

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
_HEX = "[0-9a-f]"
_RUN_ID = f"*-{'[0-9]' * 4}-{'[0-9]' * 6}-{_HEX * 4}"
EVIDENCE = (
    ("envs/*/env.json", r'"schema": *"ipexctl\.env/|"digest": *"'),
    ("runs/*/status.json", r'"schema": *"ipexctl\.status/'),
    ("runs/*/job.json", r'"rundir": *"'),
    (f"runs/{_RUN_ID}/job.json", ""),
    (f"runs/{_RUN_ID}/agent.zip", ""),
    (f"runs/{_RUN_ID}/ranks/{'[0-9]' * 4}.out", ""),
    (f"agent/{_HEX * 16}/ipexctl/node/__main__.py", "ipexctl[.]node"),
    (f"code/*-{_HEX * 8}/.ipexctl/state.json", '"digest"'),
    (f"wheels/{_HEX * 64}/*.whl", ""),
    ("ssh/config", "^# Made by `ipexctl trust`"),
    ("ssh/id_ed25519.pub", "^ssh-ed25519 [^ ]* ipexctl "),
    ("tune.before", "^(linger|thp|governor|sysctl:[a-z0-9_.-]+)\t"),
)
"""Files that only ipexctl makes, as glob and regular expression (in the syntax of grep -E) for a line of theirs:
homes of 0.1 and 0.2 have no mark. A user's directories of the same names have none of them."""
_MAX_FILES = 40
"""Files that are read for a pattern: a directory of a user may have any number."""
_MAX_BYTES = 1 << 16
_OTHERS_MAY_WRITE = 0o022
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
    is_old = False
    if not has_mark:
        is_old = _check_unmarked(home)
    _close_to_others(home, status)
    if not has_mark:
        _write_mark(home, is_old=is_old)
    return True


def check_home(home: str) -> bool:
    """`open_home` for a call that only reads: it raises the same errors, and changes nothing."""
    if _check(home) is None:
        return False
    if not _has_mark(home):
        _check_unmarked(home)
    return True


def is_home(home: str) -> bool:
    """Whether the directory is a home already, by its mark or by what an earlier version has left in it."""
    try:
        return _check(home) is not None and (_has_mark(home) or _check_unmarked(home))
    except AgentError:
        return False


def remove_mark(home: str) -> None:
    """For the last step of a removal, when nothing of ipexctl is left in the home."""
    if _has_mark(home):
        os.unlink(os.path.join(home, MARK))


def _check(home: str) -> os.stat_result | None:
    """The status of the directory, which belongs to this account and is not its home directory; None: there is none."""
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


def _check_unmarked(home: str) -> bool:
    """Whether a directory without a mark is the home of an earlier version; False: it is empty. Else a HomeRefused."""
    import pwd

    status = os.stat(home)
    if _is_same(status, "/"):
        raise HomeRefused("root", home)
    try:  # $HOME may be another one, as under sudo
        if _is_same(status, pwd.getpwuid(os.geteuid()).pw_dir):
            raise HomeRefused("account_home", home)
    except KeyError:  # an account without an entry
        pass
    if not foreign_content(home):
        return False
    if is_default_home(home) or has_evidence(home):
        return True
    time.sleep(_SETTLE)
    names = foreign_content(home)
    if not names:
        return False
    few = ", ".join(name if name.isprintable() else repr(name) for name in names[:3])
    raise HomeRefused("other_files", home, f" ({few}{', …' if len(names) > 3 else ''})")


def foreign_content(home: str) -> list[str]:
    """The names in a directory, without the mark and names that do not count; none if it has a mark."""
    names = os.listdir(home)
    if MARK in names:  # another call has just made it; a cache of NFS may still say that there is none
        return []
    return sorted(name for name in names if not re.fullmatch(IGNORED, name, re.DOTALL))


def is_default_home(home: str) -> bool:
    """Whether it is `~/.ipexctl` itself: nothing else has this name. A link there may lead to a directory of others."""
    try:
        default = os.lstat(os.path.join(os.path.expanduser("~"), DEFAULT_NAME))
        return stat.S_ISDIR(default.st_mode) and os.path.samestat(default, os.stat(home))
    except OSError:
        return False


def has_evidence(home: str) -> bool:
    """Whether one of the files is there that only ipexctl makes."""
    import glob
    import itertools

    for pattern, line in EVIDENCE:
        paths = glob.iglob(os.path.join(glob.escape(home), pattern))
        if any(has_line(path, line) for path in itertools.islice(paths, _MAX_FILES)):
            return True
    return False


def has_line(path: str, pattern: str) -> bool:
    """Whether a regular file has such a line in its beginning; any file has an empty pattern."""
    try:
        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        if not stat.S_ISREG(os.fstat(number).st_mode):
            return False
        text = os.read(number, _MAX_BYTES).decode(errors="replace") if pattern else ""
    except OSError:
        return False
    finally:
        os.close(number)
    return re.search(pattern, text, re.MULTILINE) is not None


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


def _write_mark(home: str, *, is_old: bool) -> None:
    """O_EXCL is atomic on NFS, too; its text only tells a reader what it is."""
    try:
        number = os.open(os.path.join(home, MARK), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        if not _has_mark(home):
            raise HomeRefused("no_mark", home) from None
        return
    except OSError as error:
        if is_old:  # a full or read-only disk: the home is known without it, and the call may be one that makes room
            return
        raise OSError(error.errno, error.strerror, home) from None
    try:
        os.write(number, MARK_TEXT.encode())
    except OSError:  # the disk is full
        pass
    finally:
        os.close(number)
