"""Removes what `ipexctl trust` of earlier versions left on this host: its lines of ~/.ssh/authorized_keys, and node0's
key and ssh config in HOME/ssh. Nothing else in these files changes.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from typing import BinaryIO, NamedTuple, TypedDict

from ipexctl.node.common.answer import AgentError, answer
from ipexctl.node.common.guarded_directory import GuardedDirectory, enter_named, write_all
from ipexctl.node.common.home import MARK, check_home, home_of, remove_mark
from ipexctl.node.common.walk import Place, Refused

LINE = re.compile(rb'restrict,from="[^" ]*" \S+ \S+ ipexctl:\S*((?: \+[a-z]+)*)\r?')
"""A line of trust; the words at its end say what the file lacked before: `+newline`, `+file`, `+dir`."""
FILES = ("id_ed25519", "id_ed25519.pub", "known_hosts", "config", "made")
MAX_KEYS = 1 << 20
TRIES = 4


class TrustRequest(TypedDict):
    home: str
    dry_run: bool


class TrustReply(NamedTuple):
    removed: tuple[str, ...]


def without_lines(content: bytes) -> tuple[bytes | None, bool]:
    """The file without lines of trust, None if trust created it; True if trust created ~/.ssh, too. If nothing was
    added since, the file is as it was before trust."""
    lines = content.split(b"\n")
    ours = {index: match for index, match in enumerate(map(LINE.fullmatch, lines)) if match}
    if not ours:
        return content, False
    lacked = b" ".join(match[1] for match in ours.values()).split()
    kept = [line for index, line in enumerate(lines) if index not in ours]
    if b"+newline" in lacked and max(ours) == len(lines) - 2 and not lines[-1] and len(kept) > 1:
        kept.pop()
    rest = b"\n".join(kept)
    if rest or b"+file" not in lacked:
        return rest, False
    return None, b"+dir" in lacked


def remove_lines(keys: str, *, dry_run: bool) -> str:
    """Return what changed, or would. Another program may change the file at the same time, as on a shared home."""
    for _ in range(TRIES):
        place = enter_named(keys, "chmod go-w it if that is not on purpose, then run it again", is_file=True)
        with GuardedDirectory.of(place) as directory, contextlib.suppress(Refused):  # replaced in between
            if place.status is None:
                return ""
            content = _read(place)
            rest, made_directory = without_lines(content)
            if rest == content:
                return ""
            if not dry_run and not _replace(directory, place, content, rest):
                continue
            if rest is not None:
                return "ipexctl's line removed from ~/.ssh/authorized_keys"
            if made_directory and not dry_run:
                with contextlib.suppress(OSError):  # has files by now
                    os.rmdir(os.path.dirname(keys))
            return "~/.ssh/authorized_keys removed, which ipexctl had created"
    raise AgentError(f"another program keeps changing {keys}", "find the program that writes to it, then run it again")


def _read(place: Place) -> bytes:
    assert place.status is not None
    if not stat.S_ISREG(place.status.st_mode):
        raise AgentError(f"{place.path} is not a file", "repair it there, then run it again")
    try:
        with open(place.open_end(os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            content = file.read(MAX_KEYS + 1)
    except OSError as error:
        raise AgentError(
            f"{place.path} can't be read: {error.strerror}", "repair it there, then run it again"
        ) from None
    if len(content) > MAX_KEYS:
        raise AgentError(f"{place.path} is larger than 1 MiB", "repair it there, then run it again")
    return content


def _replace(directory: GuardedDirectory, place: Place, old: bytes, new: bytes | None) -> bool:
    """False if the file no longer has the old text. The new file keeps mode and group."""
    status, name = place.status, os.fsencode(place.name)
    assert status is not None
    if status.st_uid != os.geteuid():
        problem = f"{place.path} belongs to another account (uid {status.st_uid})"
        raise AgentError(problem, "if that is wrong, chown it there")
    if not status.st_mode & stat.S_IWUSR:
        problem = f"{place.path} is read-only"
        raise AgentError(problem, "if that is not on purpose, chmod u+w it there, then run it again")
    if _read(place) != old:
        return False
    if new is None:
        directory.unlink(name)
        return True
    with directory.written(name, stat.S_IMODE(status.st_mode)) as number:
        write_all(number, new)
        with contextlib.suppress(PermissionError):  # a group that the account is not in
            os.fchown(number, -1, status.st_gid)
        os.fsync(number)
    return True


def has_files(directory: str) -> bool:
    """True if trust made the key and the config: a user may have own ones in a home's `ssh`."""
    if os.path.lexists(f"{directory}/config"):
        return b"\n# Made by `ipexctl trust`" in b"\n" + _beginning(f"{directory}/config")
    return os.path.lexists(f"{directory}/made") or b" ipexctl " in _beginning(f"{directory}/id_ed25519.pub")


def _beginning(path: str) -> bytes:
    try:
        if not stat.S_ISREG(os.lstat(path).st_mode):
            return b""
        with open(path, "rb") as file:
            return file.read(1 << 16)
    except OSError:
        return b""


def remove_files(home: str) -> None:
    check_home(home)
    for name in FILES:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{home}/ssh/{name}")
    with contextlib.suppress(OSError):  # has files of the user
        os.rmdir(f"{home}/ssh")
    if os.listdir(home) == [MARK]:
        remove_mark(home)
        os.rmdir(home)


def remove(request: TrustRequest, _: BinaryIO) -> TrustReply:
    home = home_of(request, "ssh")
    lines = remove_lines(os.path.expanduser("~/.ssh/authorized_keys"), dry_run=request["dry_run"])
    if not has_files(f"{home}/ssh"):
        return TrustReply((lines,) if lines else ())
    if not request["dry_run"]:
        remove_files(home)
    return TrustReply((*((lines,) if lines else ()), "key and config removed"))


def main(_: str) -> int:
    return answer(remove)
