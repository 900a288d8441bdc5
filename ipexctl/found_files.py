"""Decides whether a found file counts that nobody named: only if nobody but the caller or root can write it.

This is the rule of git's safe.directory. `node/common/walk.py` enters the path; the file, its directory and each link
on the way are checked as a home is, and under sudo SUDO_UID's files count too. Directories further up are not checked:
whoever can rename them can only put another owner's file there, and `file_reader` reads only the file that was checked.
Entries of `trusted-directories` in the user's config.toml are exempt.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import stat
from typing import TYPE_CHECKING, Literal, NamedTuple, cast

from ipexctl.errors import UserError
from ipexctl.file_reader import JUDGED
from ipexctl.node.common.walk import Refused, callers, enter
from ipexctl.text import printable, tilde_path
from ipexctl.user_config import TRUSTED, is_listed, read_trusted_directories, user_file

if TYPE_CHECKING:
    from pathlib import Path

    from ipexctl.node.common.walk import PathPart

Objection = Literal["owner", "group", "acl", "others"]


class Distrust(NamedTuple):
    part: PathPart
    """The file, a link on the way, or the directory of one."""
    objection: Objection
    directory: str
    """The directory to trust, with its links resolved."""


def objection_to(file: PathPart, directory: PathPart) -> tuple[PathPart, Objection] | None:
    is_link = stat.S_ISLNK(file.status.st_mode)  # the mode of a link says nothing
    if objection := "owner" if not file.is_own else "" if is_link else file.writers():
        return file, cast("Objection", objection)
    is_sticky = bool(directory.status.st_mode & stat.S_ISVTX)
    objection = "owner" if not directory.is_own else "" if is_sticky else directory.writers()
    return (directory, cast("Objection", objection)) if objection else None


def find_distrust(path: Path | str) -> Distrust | None:
    """What speaks against a found file, ignoring `trusted-directories`. None also if the file does not exist."""
    return next(iter(_distrusts(os.fspath(path))), None)


def check_found(
    path: Path | str,
    *,
    naming: str = "",
    trust: str = "",
    more: str = "",
    role: str = "was found, not named, and does not count",
) -> None:
    """Raise a UserError for a found file that does not count.

    `naming`: how to name the file in a call. `trust`: the entry to propose for `trusted-directories`, instead of the
    file's directory. `more`: another way out. `role`: what the file would decide.
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
        fix = "set XDG_CONFIG_HOME to a directory of this account"
    else:
        fix = f"read it first; then: chmod go-w {shlex.quote(distrust.part.path)}"
    raise UserError(f"{tilde_path(path)} does not count: {describe(distrust, os.fspath(path))}", fix=fix)


def describe(distrust: Distrust, path: str = "") -> str:
    """Owner and mode of the file or directory, and the rule that it breaks. `path` was named in the sentence before."""
    part, status = distrust.part, distrust.part.status
    subject = "it" if part.path == path else printable(part.path)
    owner = f"owner {_account(status.st_uid)}, group {_group(status.st_gid)}, mode {stat.S_IMODE(status.st_mode):04o}"
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


def _distrusts(path: str) -> list[Distrust]:
    found: list[Distrust] = []

    def judge(above: PathPart, below: PathPart | None, is_end: bool) -> None:
        if below is not None and (is_end or stat.S_ISLNK(below.status.st_mode)):
            problem = objection_to(below, above)
            if problem is not None:
                found.append(Distrust(*problem, above.path))

    absolute = os.path.join(os.getcwd(), path)  # noqa: PTH109, PTH118
    with contextlib.suppress(OSError, Refused), enter(absolute, judge, uids=callers()) as place:
        JUDGED[path] = place.status  # the read reports that it does not exist
    return found


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
