"""Decide whether ipexctl uses a file that it found, and know ipexctl's directories of the user's account.

A found file is used only if nobody but the user or root can write it, as with git's safe.directory. Under sudo, the
files of SUDO_UID count as the user's. `file_reader` then reads only the file that was checked. Directories in
`trusted-directories` of the user's config.toml are exempt; that list is read only after a failed check, and no project
file can add to it.

TOML is parsed here. The account may have no passwd entry, as in a container that was started with a numeric uid, and no
HOME.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import sys
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, cast

from ipexctl.errors import UserError
from ipexctl.file_reader import CHECKED, DEFAULTS, read_regular
from ipexctl.node.common.fix import Fix, join_fixes
from ipexctl.node.common.walk import PathPart, Refused, callers, enter, found_path
from ipexctl.text import tilde_path


def state_directory() -> Path:
    """Return the directory for records and logs, which is made if there is none. Raises a UserError."""
    return _secured("state", "XDG_STATE_HOME")


def cache_directory() -> Path:
    """Return the directory for what can be made again, which is made if there is none. Raises a UserError."""
    return _secured("cache", "XDG_CACHE_HOME")


def data_directory() -> Path:
    """Return the directory for data, which is made if there is none. Raises a UserError."""
    return _secured("data", "XDG_DATA_HOME")


def account_name() -> str:
    """Return the name of this account; its number if it has none."""
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):  # OSError since Python 3.13
        return str(os.getuid())


def _secured(kind: Literal["state", "cache", "data"], variable: str) -> Path:
    """Return one of these directories, closed to others: older versions made it with the umask.

    Parents are not changed.
    """
    # Imported here: 3 ms, which --help does not need, nor the other modules here, 5 ms. Also for a Mac, where
    # `Application Support` is one place for data, state and configuration.
    from platformdirs.unix import Unix

    from ipexctl.node.common.answer import AgentError
    from ipexctl.node.common.files import secure_directory

    try:
        directory: Path = getattr(Unix("ipexctl", appauthor=False), f"user_{kind}_path")
    except RuntimeError:
        what = f"this account (uid {os.getuid()}) has no home directory: it is not in /etc/passwd, and HOME is not set"
        raise UserError(what, fix="set HOME to a directory of this account") from None
    try:
        secure_directory(directory, f"use a directory of this account: {variable}=DIR")
    except AgentError as error:
        raise UserError(error.reason, fix=error.fix) from None
    return directory


TRUSTED: Final = "trusted-directories"
"""Key of the list in config.toml."""
_BELOW: Final = "/*"
"""End of an entry that adds all directories below."""
_MOST_PARTS: Final = 100
"""Parts of a key, `a.b.c` has three."""


class TomlError(ValueError):
    """The text is not TOML, or has more than Python can hold."""


def parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML. Raises a TomlError."""
    if sys.version_info >= (3, 11):  # imported here because every command looks for a config.toml
        import tomllib
    else:
        import tomli as tomllib  # type: ignore[import-not-found,unused-ignore]

    # tomllib takes time quadratic in the parts of a key.
    if any(line.partition("=")[0].count(".") > _MOST_PARTS for line in text.splitlines()):
        raise TomlError(f"a key has more than {_MOST_PARTS} parts")
    try:
        values: dict[str, Any] = tomllib.loads(text)
        return values
    except tomllib.TOMLDecodeError as error:
        raise TomlError(str(error)) from None
    except ValueError:  # Python reads no number of thousands of digits
        raise TomlError("a value is too long for a number or a date") from None
    except RecursionError:
        raise TomlError("too deeply nested values") from None


def config_directory() -> Path:
    """Return the directory of the user's own config.toml.

    Without platformdirs, because each command looks for that file.
    """
    base = os.environ.get("XDG_CONFIG_HOME", "")
    return Path(base if os.path.isabs(base) else os.path.expanduser("~/.config"), "ipexctl")  # noqa: PTH111, PTH117  # Path.expanduser raises without a home


def user_file() -> Path:
    """Return the path of the user's own config.toml, whether it exists or not."""
    return config_directory() / "config.toml"


def read_trusted_directories() -> tuple[str, ...]:
    """Return the valid entries of `trusted-directories`; empty if the file cannot be read."""
    try:
        entries = parse_toml(read_regular(user_file(), DEFAULTS).decode("utf-8-sig")).get(TRUSTED)
    except (OSError, ValueError):
        return ()
    return tuple(entry for entry in entries if is_entry(entry)) if isinstance(entries, list) else ()


def is_entry(entry: object) -> bool:
    """True for a valid entry: an absolute path, or one that begins with `~`. `/*` at its end adds everything below."""
    return isinstance(entry, str) and entry.startswith(("/", "~")) and "\0" not in entry


def is_listed(directory: str, entries: tuple[str, ...]) -> bool:
    """True if an entry names this directory or, with `/*`, one above it. `directory`: without symlinks."""
    for entry in entries:
        path = os.path.realpath(os.path.expanduser(entry.removesuffix(_BELOW) or "/"))  # noqa: PTH111
        if directory == path or (entry.endswith(_BELOW) and directory.startswith(path.rstrip("/") + "/")):
            return True
    return False


Objection = Literal["owner", "group", "acl", "others"]


class Distrust(NamedTuple):
    """Why a found file is not used."""

    part: PathPart
    """The file, a symlink on the way to it, or the directory that contains one of them."""
    objection: Objection
    directory: str
    """The directory that the user would have to trust, without symlinks."""


def find_distrust(path: Path | str) -> Distrust | None:
    """Return why a found file is not used, ignoring `trusted-directories`; None if nothing is wrong, or there is no
    file.
    """
    return next(iter(_distrusts(os.fspath(path))), None)


def check_found(
    path: Path | str,
    *,
    naming: str = "",
    trust: str = "",
    more: str = "",
    role: str = "was found, not named, and does not count",
) -> None:
    """Refuse a found file that may not be used.

    `naming`: options that name the file. `trust`: the entry to propose for `trusted-directories`. `more`: another fix.
    `role`: what the file would decide.
    """
    trusted: tuple[str, ...] | None = None
    for distrust in _distrusts(os.fspath(path)):
        trusted = _trusted() if trusted is None else trusted
        if not is_listed(distrust.directory, trusted):
            line = f"{TRUSTED} = [{json.dumps(trust or distrust.directory, ensure_ascii=False)}]"
            own = tilde_path(user_file())
            fixes = [f"read it first; if you trust all who can write there, add at the top of {own}: {line}"]
            fixes += [Fix("or name it in the call: {naming}", naming=naming)] if naming else []
            fixes += [more] if more else []
            raise UserError(
                f"{os.fspath(path)} {role}: " + describe(distrust, os.fspath(path)),
                fix=join_fixes(fixes),
            )


def check_own(path: Path) -> None:
    """Refuse a file in the user's own configuration directory that others could have written."""
    distrust = find_distrust(path)
    if distrust is None:
        return
    if distrust.objection == "owner":
        fix = "set XDG_CONFIG_HOME to a directory of this account"
    else:
        fix = Fix("read it first; then: `chmod go-w {path}`", path=distrust.part.path)
    raise UserError(f"{tilde_path(path)} does not count: {describe(distrust, os.fspath(path))}", fix=fix)


def describe(distrust: Distrust, path: str = "") -> str:
    """Return owner and mode of the file or directory, and the rule that it breaks.

    `path`: what the sentence has named before.
    """
    part, status = distrust.part, distrust.part.status
    subject = "it" if part.path == path else part.path
    owner = f"owner {_account(status.st_uid)}, group {_group(status.st_gid)}, mode {stat.S_IMODE(status.st_mode):04o}"
    rule = {
        "owner": "belongs to another account",
        "group": "can be written by others of its group",
        "acl": "has an access control list that lets others write",
        "others": "can be written by every account",
    }[distrust.objection]
    return f"{subject} {rule} ({owner})"


def _trusted() -> tuple[str, ...]:
    """Return the trusted directories; none if others could have written the list."""
    own = user_file()
    return read_trusted_directories() if find_distrust(own) is None else ()


def _distrusts(path: str) -> list[Distrust]:
    """Return everything on the way to the file that others can write, and remember the file for the next read."""
    distrusts: list[Distrust] = []

    def check_entry(above: PathPart, below: PathPart | None, is_end: bool) -> None:
        """Check one part of the way."""
        if problem := found_path(above, below, is_end):
            distrusts.append(Distrust(problem[1], cast("Objection", problem[0]), above.path))

    absolute = os.path.join(os.getcwd(), path)  # noqa: PTH109, PTH118
    with contextlib.suppress(OSError, Refused), enter(absolute, check_entry, uids=callers()) as file:
        CHECKED[path] = file.status  # the read reports that it does not exist
    return distrusts


def _account(uid: int) -> str:
    """Format an account: name and number."""
    import pwd

    try:
        return f"{pwd.getpwuid(uid).pw_name} ({uid})"
    except KeyError:
        return str(uid)


def _group(gid: int) -> str:
    """Format a group: name and number."""
    import grp

    try:
        return f"{grp.getgrgid(gid).gr_name} ({gid})"
    except KeyError:
        return str(gid)
