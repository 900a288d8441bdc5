"""Enters a path from `/`, part by part, and refuses it if another account could change it (docs/security.md).

Rule `own_path` is for a home: the path may be used afterwards. Rule `named_path` is for the user's data: others may
write to directories on the way, so only the descriptor is safe to use. Rule `found_path` is for a file that nobody
named. `remote/walk.sh` is `own_path` for sh. The agent's boot program runs the text of this module before it can import
anything.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import struct
from typing import Any, Callable, NamedTuple, Optional, Tuple

_ENTER = getattr(os, "O_PATH", os.O_RDONLY) | os.O_NOFOLLOW | os.O_CLOEXEC
_MAX_LINKS = 40


class PathPart(NamedTuple):
    path: str
    status: Any
    uids: frozenset[int]
    writers: Callable[[], str]
    """Returns who else may write to it: others, group or acl; empty if nobody else may."""

    @property
    def is_own(self) -> bool:
        """True if the part belongs to one of the accepted accounts."""
        return self.status.st_uid in self.uids


Problem = Optional[Tuple[str, PathPart]]
Rule = Callable[[PathPart, Optional[PathPart], bool], Problem]
"""Checks a directory, the next part (None if missing), and whether the path ends with that part. Pure."""


def own_path(above: PathPart, below: PathPart | None, is_end: bool) -> Problem:
    """Rule for a path of this account: nobody else could replace a part of it, or change its end."""
    if problem := path_above_home(above, below, is_end):
        return problem
    return _changeable(below) if below is not None and is_end else None


def path_above_home(above: PathPart, below: PathPart | None, is_end: bool) -> Problem:  # noqa: ARG001
    """Check the path to a home; `home.py` checks the directory itself."""
    if below is not None and stat.S_ISLNK(below.status.st_mode) and not below.is_own:
        return "link", below
    if below is not None and "\n" in below.path:
        return "newline", below  # sh can't tell where it ends
    return _replaceable(above, below)


def found_path(above: PathPart, below: PathPart | None, is_end: bool) -> Problem:
    """Check the file, each link on the way to it, and the directories that contain these."""
    if below is None or not (is_end or stat.S_ISLNK(below.status.st_mode)):
        return None
    return _changeable(below) or _replaceable(above, below)


def _changeable(part: PathPart) -> Problem:
    if not part.is_own:
        return "owner", part
    kind = "" if stat.S_ISLNK(part.status.st_mode) else part.writers()  # the mode of a link says nothing
    return (kind, part) if kind else None


def _replaceable(above: PathPart, below: PathPart | None) -> Problem:
    if not above.is_own:
        return "owner", above
    if above.status.st_mode & stat.S_ISVTX and (below is None or below.is_own):
        return None  # others can't replace the entry
    kind = above.writers()
    return (kind, above) if kind else None


def named_path(above: PathPart, below: PathPart | None, is_end: bool) -> Problem:
    """Rule for a path that the user names: no link is another account's, nor a directory in one where everybody may
    create files, and `check_entry` accepts the path's end."""
    if below is None:
        return None
    kind = stat.S_IFMT(below.status.st_mode)
    if kind == stat.S_IFLNK and not below.is_own:
        return "link", below
    if kind == stat.S_IFDIR and not below.is_own and above.status.st_mode & stat.S_IWOTH:
        return "planted", below
    return check_entry(above, below) if is_end else None


def check_entry(above: PathPart, below: PathPart) -> Problem:
    """Check the end of a named path, or an entry below it. Another account's file is not read, replaced or sent."""
    kind = stat.S_IFMT(below.status.st_mode)
    if not below.is_own and kind != stat.S_IFCHR:
        return "owner", below
    if kind == stat.S_IFREG and below.status.st_nlink > 1 and (not above.is_own or above.writers()):
        return "names", below  # another account may have put the hard link there
    return None


OnSymlink = Callable[[str, str], None]


def callers() -> frozenset[int]:
    """Return the accounts whose files are accepted: root and this account, or under sudo the account that called
    sudo."""
    sudo = os.environ.get("SUDO_UID", "") if not os.geteuid() else ""
    is_uid = sudo.isascii() and sudo.isdecimal() and len(sudo) <= len("4294967295")
    return frozenset((0, int(sudo) if is_uid else os.geteuid()))


class Refused(Exception):
    def __init__(self, kind: str, path: str, uid: int = -1, mode: int = 0) -> None:
        self.kind, self.path, self.uid = kind, path, uid
        what = {
            "link": f"is a link of another account (uid {uid})",
            "owner": f"belongs to another account (uid {uid})",
            "others": f"can be changed by every account (uid {uid}, mode {mode:o})",
            "group": f"can be changed by others of its group (uid {uid}, mode {mode:o})",
            "acl": f"can be changed by others, as its access control list says (uid {uid}, mode {mode:o})",
            "planted": f"belongs to another account (uid {uid}), in a directory where everybody can create files",
            "names": "is a file with another name elsewhere (a hard link)",
            "exchanged": "was replaced while it was opened",
            "newline": "has a newline in its name",
            "outside": "leads out of the directory",
        }[kind]
        squashed = ": file servers give this uid to root's files" if uid == 65534 and not os.geteuid() else ""
        super().__init__(f"{path} {what}{squashed}")


class Place(NamedTuple):
    number: int
    """Descriptor of the path's end if that is a directory, else of its parent."""
    path: str
    name: str
    """The rest of the path: empty for a directory, several parts if directories are missing."""
    status: os.stat_result | None
    made: tuple[str, ...]

    def __enter__(self) -> Place:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.number)

    def open_end(self, flags: int) -> int:
        """Open the path's end without following a link. Raises a Refused if it is no longer what was checked, and an
        OSError if it is missing."""
        number = os.open(self.name or ".", flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self.number)
        if self.status is not None and os.path.samestat(os.fstat(number), self.status):
            return number
        os.close(number)
        raise Refused("exchanged", self.path)


def enter(
    path: str,
    rule: Rule,
    *,
    make: bool = False,
    is_file: bool = False,
    mode: int = 0o777,
    uids: frozenset[int] = frozenset(),
    on_symlink: OnSymlink | None = None,
    inside: os.stat_result | None = None,
) -> Place:
    """Enter an absolute path. Raises a Refused, or an OSError with the path so far.

    `make` creates missing directories, except the path's end if `is_file`. `on_symlink` gets each link and its target,
    and may raise. `inside`: a directory that the path must lead through.
    """
    way = _Way(rule, uids or frozenset((0, os.geteuid())))
    try:
        place = way.enter(path, mode if make else None, is_file, on_symlink)
        if inside is not None and not any(os.path.samestat(inside, entry.status) for _, entry in way.entered):
            raise Refused("outside", place.path)
        way.entered.pop()
        return place
    except OSError as error:
        raise OSError(error.errno, error.strerror, way.here) from None
    finally:
        way.leave(0)


class _Way:
    def __init__(self, rule: Rule, uids: frozenset[int]) -> None:
        self.here = "/"
        self.entered: list[tuple[int, PathPart]] = []
        """Directories from `/` to here. `..` returns to the one that was entered, even if it was moved since."""
        self._rule, self._uids = rule, uids
        self._made: list[str] = []
        self.entered.append(self._entry(os.open("/", _ENTER | os.O_DIRECTORY)))

    def enter(self, path: str, mode: int | None, is_file: bool, on_symlink: OnSymlink | None) -> Place:
        pending, links = _parts(path), 0
        while pending:
            part = pending.pop()
            if part == "..":
                self.leave(max(1, len(self.entered) - 1))
                continue
            number, above = self.entered[-1]
            self.here = f"{above.path.rstrip('/')}/{part}"
            below = self._enter_part(part, number, mode if pending or not is_file else None)
            is_link = below is not None and stat.S_ISLNK(below.status.st_mode)
            self._check_entry(above, below, is_end=not pending and not is_link)
            if below is None:
                if ".." in pending:
                    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
                rest = "/".join([part, *reversed(pending)])
                return Place(number, f"{above.path.rstrip('/')}/{rest}", rest, None, tuple(self._made))
            if stat.S_ISDIR(below.status.st_mode):
                continue
            target = self._read_link(part, number) if is_link else ""
            self.leave(len(self.entered) - 1)
            if not target:
                if pending:
                    raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
                return Place(number, self.here, part, below.status, tuple(self._made))
            links += 1
            if links > _MAX_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
            if on_symlink is not None:
                on_symlink(self.here, target)
            if target.startswith("/"):
                self.leave(1)
            pending += _parts(target)
        number, entry = self.entered[-1]
        return Place(number, entry.path, "", entry.status, tuple(self._made))

    def leave(self, depth: int) -> None:
        while len(self.entered) > depth:
            number, _ = self.entered.pop()
            if number != _NO_DESCRIPTOR:
                os.close(number)

    def _enter_part(self, part: str, above: int, mode: int | None) -> PathPart | None:
        """Enter an entry. A missing one is created with `mode`, or None is returned if `mode` is None."""
        for is_first in (True, False):
            try:
                self.entered.append(self._entry(_open(part, above), part, above))
                return self.entered[-1][1]
            except FileNotFoundError:
                if mode is None or not is_first:
                    break
            with contextlib.suppress(FileExistsError):  # another process may have made it
                os.mkdir(part, mode, dir_fd=above)
                self._made.append(self.here)
        return None

    def _entry(self, number: int, part: str = "", above: int = -1) -> tuple[int, PathPart]:
        is_open = number != _NO_DESCRIPTOR
        status = os.fstat(number) if is_open else os.stat(part, dir_fd=above, follow_symlinks=False)
        return number, PathPart(self.here, status, self._uids, lambda: others_may_write(number, status, self._uids))

    def _check_entry(self, above: PathPart, below: PathPart | None, *, is_end: bool) -> None:
        if problem := self._rule(above, below, is_end):
            kind, entry = problem
            raise Refused(kind, entry.path, entry.status.st_uid, stat.S_IMODE(entry.status.st_mode))

    def _read_link(self, part: str, above: int) -> str:
        """Return the target of the link that was checked, even if something else has its name by now."""
        number, link = self.entered[-1]
        if number != _NO_DESCRIPTOR:
            return os.readlink("", dir_fd=number)
        target = os.readlink(part, dir_fd=above)
        after = os.stat(part, dir_fd=above, follow_symlinks=False)
        if os.path.samestat(link.status, after) and link.status.st_ctime_ns == after.st_ctime_ns:
            return target
        raise Refused("exchanged", self.here)


_NO_DESCRIPTOR = -1


def _parts(path: str) -> list[str]:
    return [part for part in reversed(path.split("/")) if part not in ("", ".")]


def _open(part: str, above: int) -> int:
    """Return the descriptor of an entry; `_NO_DESCRIPTOR` for a link or file if the system has no O_PATH, as on
    macOS."""
    try:
        return os.open(part, _ENTER | os.O_DIRECTORY, dir_fd=above)
    except OSError as error:
        if error.errno not in (errno.ENOTDIR, errno.ELOOP):
            raise
    return os.open(part, _ENTER, dir_fd=above) if hasattr(os, "O_PATH") else _NO_DESCRIPTOR


_ACL_VERSION = b"\2\0\0\0"
_ACL_USER, _ACL_OWNING_GROUP, _ACL_GROUP, _ACL_MASK = 2, 4, 8, 16


def others_may_write(number: int, status: Any, uids: frozenset[int]) -> str:
    """Return who else may write to a file or directory: `others`, `group` or `acl`; empty if nobody may."""
    if status.st_mode & stat.S_IWOTH:
        return "others"
    if not status.st_mode & stat.S_IWGRP:
        return ""  # with an access control list, these bits are its mask
    acl = _read_list(number)
    return who_else_may_write(acl, status.st_gid, lambda gid: gid in private_groups(uids), uids)


def _read_list(number: int) -> bytes | None:
    """Return the access control list; None without one, empty if it can't be read."""
    if not hasattr(os, "getxattr"):  # macOS
        return None
    try:
        return os.getxattr(f"/proc/self/fd/{number}", "system.posix_acl_access")  # fgetxattr takes no O_PATH
    except OSError as error:
        return None if error.errno in (errno.ENODATA, errno.EOPNOTSUPP) else b""


def who_else_may_write(acl: bytes | None, gid: int, is_private: Callable[[int], bool], uids: frozenset[int]) -> str:
    """Return who else may write to a path that its group may write to; empty if nobody else may. Pure."""
    if acl is None:
        return "" if is_private(gid) else "group"
    if acl[:4] != _ACL_VERSION or len(acl) % 8 != 4:
        return "acl"
    entries = list(struct.iter_unpack("<HHI", acl[4:]))
    mask = min([perm for tag, perm, _ in entries if tag == _ACL_MASK], default=7)
    may_write = [(tag, name) for tag, perm, name in entries if perm & mask & 2]
    for tag, name in may_write:
        if (tag == _ACL_USER and name not in uids) or (tag == _ACL_GROUP and not is_private(name)):
            return "acl"
    has_group = any(tag == _ACL_OWNING_GROUP for tag, _ in may_write)
    return "group" if has_group and not is_private(gid) else ""


_private: dict[frozenset[int], frozenset[int]] = {}


def private_groups(uids: frozenset[int]) -> frozenset[int]:
    """Return the groups with one of these accounts as the only member. Cached, because listing all accounts may take
    seconds."""
    if uids not in _private:
        import grp
        import pwd

        private, accounts = set(), pwd.getpwall()
        for uid in uids:
            try:
                owner = pwd.getpwuid(uid)
                group = grp.getgrgid(owner.pw_gid)
            except KeyError:  # an account without a name, as in containers, has no group of its own
                continue
            others = [account for account in accounts if account.pw_gid == group.gr_gid and account.pw_uid != uid]
            if is_private_group(group.gr_name, group.gr_mem, owner.pw_name, len(others)):
                private.add(group.gr_gid)
        _private[uids] = frozenset(private)
    return _private[uids]


def is_private_group(name: str, members: list[str], owner: str, others: int) -> bool:
    """True if nobody else is in an account's primary group. `others`: accounts with the same primary group. Pure.

    The group must have the account's name, because a directory service may not list its accounts.
    """
    return name == owner and set(members) <= {owner} and not others
