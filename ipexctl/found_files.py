"""Decides whether a file counts that was found and not named: only if nobody but the caller or root can write it.

The rule of git's safe.directory, for each file. In: owner, group and mode of the file and of its directory, and who the
caller is. Out: None, or what speaks against it. The file and its directory must belong to the caller, to root, or under
sudo to SUDO_UID, and others must not write there; the group may where it is the caller's own. In a sticky directory
such as /tmp others can add files but not replace the caller's, so there the owner of the file decides. A link counts
like a file, and so does what it leads to. Directories further up are not checked: who can rename them can only put
something of another owner in their place. Entries of `trusted-directories` in the user's config.toml are exempt.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import stat
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from ipexctl.errors import UserError
from ipexctl.text import printable, tilde_path
from ipexctl.user_config import TRUSTED, is_listed, read_trusted_directories, user_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

_MOST_LINKS: Final = 40
_ACL: Final = "system.posix_acl_access"
Objection = Literal["owner", "group", "acl", "others"]


class FileState(NamedTuple):
    """What decides about a file, link or directory."""

    path: str
    uid: int
    gid: int
    mode: int
    has_acl: bool = False
    """Whether an access control list lets named accounts write: the mode shows it as write permission of the group."""


class Caller(NamedTuple):
    """Whose files count."""

    uids: frozenset[int]
    """The caller, root, and under sudo who called it."""
    gids: frozenset[int] = frozenset()
    """Groups that nobody else is in."""


class Distrust(NamedTuple):
    """What speaks against a found file."""

    state: FileState
    """Of the file or its directory."""
    objection: Objection
    directory: str
    """The directory to trust, with its links resolved."""


def objection_to(file: FileState, directory: FileState, caller: Caller) -> tuple[FileState, Objection] | None:
    """Why a found file does not count. Pure."""
    if objection := _objection(file, caller):
        return file, objection
    objection = _objection(directory, caller)
    is_sticky = bool(directory.mode & stat.S_ISVTX)
    return (directory, objection) if objection and (objection == "owner" or not is_sticky) else None


def _objection(state: FileState, caller: Caller) -> Objection | None:
    if state.uid not in caller.uids:
        return "owner"
    if state.mode & stat.S_IWOTH:
        return "others"
    if state.mode & stat.S_IWGRP:
        return "acl" if state.has_acl else None if state.gid in caller.gids else "group"
    return None


class PasswdEntry(NamedTuple):
    """A line of passwd."""

    name: str
    uid: int
    gid: int


def is_private_group(
    name: str, gid: int, members: Iterable[str], owner: PasswdEntry, accounts: Iterable[PasswdEntry]
) -> bool:
    """Whether a group is an account's own: its primary group, of its name, and with no other member. Pure.

    Its name counts because a directory service need not list its accounts, and then `users` would look empty.
    """
    others = any(account.gid == gid and account.uid != owner.uid for account in accounts)
    return gid == owner.gid and name == owner.name and set(members) <= {owner.name} and not others


def trusted_uids(euid: int, sudo_uid: str) -> frozenset[int]:
    """The accounts whose files count. SUDO_UID is set by sudo; for anybody but root it is only a variable. Pure."""
    is_sudo = euid == 0 and re.fullmatch("[0-9]{1,10}", sudo_uid) is not None
    return frozenset({euid, 0, int(sudo_uid)} if is_sudo else {euid, 0})


def _private_gids(uids: Iterable[int]) -> frozenset[int]:
    import grp
    import pwd

    found = set()
    accounts: list[PasswdEntry] = []
    for uid in uids:
        with contextlib.suppress(KeyError):  # an account without a name, as in containers, has no group of its own
            entry = pwd.getpwuid(uid)
            group = grp.getgrgid(entry.pw_gid)
            accounts = accounts or [PasswdEntry(other.pw_name, other.pw_uid, other.pw_gid) for other in pwd.getpwall()]
            owner = PasswdEntry(entry.pw_name, uid, entry.pw_gid)
            if is_private_group(group.gr_name, group.gr_gid, group.gr_mem, owner, accounts):
                found.add(group.gr_gid)
    return frozenset(found)


def find_distrust(path: Path | str) -> Distrust | None:
    """What speaks against a found file, without regard to `trusted-directories`; None also if there is no such file."""
    return next(_distrusts(os.fspath(path)), None)


def check_found(
    path: Path | str,
    *,
    naming: str = "",
    trust: str = "",
    more: str = "",
    role: str = "was found, not named, and does not count",
) -> None:
    """Raise a UserError for a found file that does not count.

    `naming` is how to name the file in a call, `trust` the entry of `trusted-directories` to propose in place of the
    file's directory, `more` another way out, `role` what the file would decide.
    """
    trusted: tuple[str, ...] | None = None
    for distrust in _distrusts(os.fspath(path)):
        trusted = _trusted() if trusted is None else trusted
        if not is_listed(distrust.directory, trusted):
            line = f"{TRUSTED} = [{json.dumps(trust or distrust.directory, ensure_ascii=False)}]"
            own = tilde_path(user_file())
            fixes = [f"read it first; if you trust all who can write there, add at the top of {own}: {line}"]
            fixes += [f"or name it in the call: {naming}"] if naming else []
            fixes += [more] if more else []
            raise UserError(
                f"{printable(os.fspath(path))} {role}: " + describe(distrust, os.fspath(path)),
                fix="; ".join(fixes),
            )


def check_own(path: Path) -> None:
    """Raise a UserError for a file in the user's own configuration directory that others could have written."""
    distrust = find_distrust(path)
    if distrust is None:
        return
    if distrust.objection == "owner":
        fix = "use a configuration directory of this account: export XDG_CONFIG_HOME=DIR"
    else:
        fix = f"read it first; then: chmod go-w {shlex.quote(distrust.state.path)}"
    raise UserError(f"{tilde_path(path)} does not count: {describe(distrust, os.fspath(path))}", fix=fix)


def describe(distrust: Distrust, path: str = "") -> str:
    """Owner and mode of the file or directory, and the rule that it breaks. `path` was named in the sentence before."""
    state = distrust.state
    subject = "it" if state.path == path else printable(state.path)
    owner = f"owner {_account(state.uid)}, group {_group(state.gid)}, mode {stat.S_IMODE(state.mode):04o}"
    rule = {
        "owner": "belongs to another account",
        "group": "can be written by others of its group",
        "acl": "has an access control list that lets others write",
        "others": "can be written by every account",
    }[distrust.objection]
    return f"{subject} {rule} ({owner})"


def _trusted() -> tuple[str, ...]:
    own = user_file()
    return read_trusted_directories() if find_distrust(own) is None else ()


def _distrusts(path: str) -> Iterator[Distrust]:
    """What speaks against the links on the way, then against the file."""
    uids = trusted_uids(os.geteuid(), os.environ.get("SUDO_UID", ""))
    try:
        for file, directory in _states(path):
            problem = objection_to(file, directory, Caller(uids))
            if problem is not None and problem[1] == "group":  # to list all accounts may take long
                problem = objection_to(file, directory, Caller(uids, _private_gids(uids)))
            if problem is not None:
                yield Distrust(*problem, os.path.realpath(directory.path))
    except OSError:  # it is not there or can't be read, which is reported by what reads it
        return


def _states(path: str) -> Iterator[tuple[FileState, FileState]]:
    for _ in range(_MOST_LINKS):
        status = os.lstat(path)
        directory = os.path.dirname(path) or "."  # noqa: PTH120
        if not stat.S_ISLNK(status.st_mode):
            yield _state(path, status), _state(directory, os.stat(directory))  # noqa: PTH116
            return
        link = FileState(path, status.st_uid, status.st_gid, 0)  # the mode of a link says nothing
        yield link, _state(directory, os.stat(directory))  # noqa: PTH116
        path = os.path.join(directory, os.readlink(path))  # noqa: PTH115, PTH118


def _state(path: str, status: os.stat_result) -> FileState:
    has_acl = False
    if status.st_mode & stat.S_IWGRP:
        with contextlib.suppress(OSError, AttributeError):  # not on Linux, or a file system without them
            has_acl = _ACL in os.listxattr(path)
    return FileState(path, status.st_uid, status.st_gid, status.st_mode, has_acl)


def _account(uid: int) -> str:
    import pwd

    try:
        return f"{printable(pwd.getpwuid(uid).pw_name)} ({uid})"
    except KeyError:
        return str(uid)


def _group(gid: int) -> str:
    import grp

    try:
        return f"{printable(grp.getgrgid(gid).gr_name)} ({gid})"
    except KeyError:
        return str(gid)
