"""Files on a host: atomic writes, private directories, tolerant reads.

Files are private (0600, 0700) with any umask, because records contain tokens and paths. Paths may be bytes, because
names need not be UTF-8.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
from typing import IO, Callable, Pattern, TypedDict

from ipexctl.node.common.answer import FREE_SPACE_FIX, AgentError, Json
from ipexctl.node.common.clock import Countdown, seconds_since
from ipexctl.node.common.json_records import AnyPath, JsonError, read_json_file
from ipexctl.node.common.processes import is_running

_ABANDONED = 60.0
"""Seconds since the last write after which a temporary file counts as abandoned."""
_OWN_HOME = "name a directory of this account: --home DIR"


def encode_name(name: str) -> bytes:
    """Return a file's name as bytes. `name` is from JSON, with surrogates for bytes that are not UTF-8."""
    return name.encode("utf-8", "surrogateescape")


def decode_name(name: bytes) -> str:
    """Return a file's name as text that JSON can carry. `encode_name` turns it back into the same bytes."""
    return name.decode("utf-8", "surrogateescape")


def write_atomically(
    path: AnyPath, data: bytes, *, durable: bool = True, mode: int = 0o600, is_of_user: bool = False
) -> None:
    """Replace a file, completely or not at all; with `durable` also if the machine crashes.

    `is_of_user`: the file is in the user's directory, where nothing else removes temporary files of killed calls.
    """
    directory, name = os.path.split(os.fsencode(path))
    if is_of_user:
        pattern = re.compile(rb"\.%s\.([0-9a-f]{6})[0-9a-f]{2}\.new" % re.escape(name))
        remove_abandoned(directory or b".", pattern, base=16)
    start = os.urandom(1)[0]
    for attempt in range(256):
        temporary = os.path.join(directory, b".%s.%06x%02x.new" % (name, os.getpid(), (start + attempt) % 256))
        try:
            number = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
            break
        except FileExistsError:  # made by another thread, or by a process on another host
            if attempt == 255:
                raise
    try:
        with open(number, "wb") as file:
            file.write(data)
            file.flush()
            if durable:
                os.fsync(number)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def remove_abandoned(directory: bytes | int, pattern: Pattern[bytes], base: int = 10) -> None:
    """Remove temporary files of killed processes. Group 1 of the pattern is the pid, in number base `base`.

    A pid may be from another host with this directory, so files written within the last minute are kept.
    """
    with contextlib.suppress(OSError):
        name, above = (b".", directory) if isinstance(directory, int) else (directory, None)
        at = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=above)
        try:
            for name in map(os.fsencode, os.listdir(at)):
                match = pattern.fullmatch(name)
                if match is None or is_running(int(match[1], base)):
                    continue
                with contextlib.suppress(OSError):
                    status = os.stat(name, dir_fd=at, follow_symlinks=False)
                    is_own = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
                    if is_own and seconds_since(status.st_mtime) > _ABANDONED:
                        os.unlink(name, dir_fd=at)
        finally:
            os.close(at)


def sync_directory(path: AnyPath) -> None:
    """Make the names in a directory survive a crash of the machine."""
    number = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def write_json_atomically(path: AnyPath, value: object, *, durable: bool = True) -> None:
    """Replace a file by a JSON value, completely or not at all; with `durable` also if the machine crashes."""
    write_atomically(path, json.dumps(value, separators=(",", ":")).encode(), durable=durable)


def read_json(path: AnyPath) -> Json:
    """Return the JSON object in a file; empty if the file is missing or invalid."""
    try:
        value = read_json_file(path)
    except (OSError, JsonError):
        return {}
    return value if isinstance(value, dict) else {}


def sha256_of(path: AnyPath, on_read: Callable[[int], None] | None = None) -> str:
    """Return the SHA-256 of a file in hex digits. `on_read` gets the size of each block. Raises an OSError if the file
    can't be read."""
    with open(path, "rb", buffering=0) as file:
        return sha256_of_open(file, on_read)


def sha256_of_open(file: IO[bytes], on_read: Callable[[int], None] | None = None) -> str:
    """Return the SHA-256 from the current position on. `on_read` gets the size of each block."""
    import hashlib  # loads OpenSSL (3 to 15 ms), which most commands do not need

    digest = hashlib.sha256()
    for block in iter(lambda: file.read(1 << 20), b""):
        digest.update(block)
        if on_read is not None:
            on_read(len(block))
    return digest.hexdigest()


class HomeRequest(TypedDict):
    """What an action needs that works in a home; `home_of` reads it."""

    home: str


class RunReference(HomeRequest):
    id: str


def remove_file(path: AnyPath) -> None:
    """Remove a file. One that is missing, or can't be removed, is no error."""
    with contextlib.suppress(OSError):
        os.unlink(path)


def disk_usage(path: AnyPath, countdown: Countdown | None = None) -> int:
    """Return the bytes that a directory tree uses on disk, hard links counted once. Raises a TimeoutError after
    `countdown`."""
    seen: set[int] = set()
    total = 0
    pending = [os.fspath(path)]
    while pending:
        if countdown is not None and countdown.is_over:
            raise TimeoutError
        with contextlib.suppress(OSError), os.scandir(pending.pop()) as entries:
            for entry in entries:
                status = entry.stat(follow_symlinks=False)
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
                elif status.st_ino in seen:
                    continue
                seen.add(status.st_ino)
                total += status.st_blocks * 512
    return total


def last_lines(path: AnyPath, max_bytes: int, count: int, begin: int = 0) -> list[bytes]:
    """Return up to `count` last lines of a file, from its last `max_bytes` after `begin`; empty if it can't be read."""
    try:
        with open(path, "rb") as file:
            start = max(begin, file.seek(0, os.SEEK_END) - max_bytes)
            file.seek(start)
            lines = file.read(max_bytes).split(b"\n")
    except OSError:
        return []
    if not lines[-1]:
        lines.pop()
    if start > begin and len(lines) > 1:  # the first line may be incomplete
        lines = lines[1:]
    return lines[-count:]


def open_private(path: str, flags: int) -> int:
    """Open a file; a new one is private. For the argument `opener` of `open`."""
    return os.open(path, flags, 0o600)


def make_private_directory(path: AnyPath) -> None:
    """Create a directory, and missing ones above it, for this account alone. One that exists keeps its mode.

    Raises a FileExistsError if something else has the name.
    """
    if not os.path.isdir(path):
        parent = os.path.dirname(os.fspath(path))
        if parent:
            make_private_directory(parent)
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:  # another process may have made it
            if not os.path.isdir(path):
                raise


def secure_directory(directory: AnyPath, fix: str = _OWN_HOME) -> None:
    """Make one of ipexctl's directories private. Raises an AgentError if another account owns it."""
    with contextlib.suppress(OSError):
        status = os.stat(directory)
        if status.st_uid != os.geteuid():
            raise AgentError(f"{os.fsdecode(directory)} belongs to another account (uid {status.st_uid})", fix)
        if status.st_mode & 0o077:
            os.chmod(directory, 0o700)


def explain_full_disk(path: str, needed: int, fix: str = FREE_SPACE_FIX, *, files: int = 1) -> AgentError:
    """Return the error that says how much room is lacking for `needed` bytes in `files` files; it speaks of inodes if
    these are lacking."""
    figures = f"{format_size(needed)} more needed, {format_size(free_space(path))} free"
    if not has_room(path, 0, files):
        more = f"{files:,} more" if files > 1 else "more"
        figures = f"{os.statvfs(path).f_favail or 'no'} inodes are left for {more} files"
    return AgentError(f"{path}: the disk is full: {figures}", fix)


def has_room(path: str, size: int, files: int = 1) -> bool:
    """Return True if the disk of an existing path has room for so many bytes and files."""
    status = os.statvfs(path)
    return size <= free_space(path) and (files <= status.f_favail or not status.f_files)  # btrfs has no figures


def free_space(path: str | int) -> int:
    """Return how many bytes this account can still write to the disk of a path."""
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize


def format_size(size: float) -> str:
    """Return a size as people read it, in powers of a thousand: `4.6 GB`."""
    if size >= 1e9:
        return f"{size / 1e9:.1f} GB"
    if size >= 1e5:
        return f"{size / 1e6:.1f} MB"
    return f"{size / 1e3:.1f} kB" if size >= 1e3 else f"{size:.0f} bytes"
