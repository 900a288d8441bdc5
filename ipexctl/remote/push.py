"""Bytes and trees to a host: one tar stream over the open connection, packed once for any number of hosts."""

from __future__ import annotations

import errno
import io
import os
import secrets
import shlex
import stat
import tarfile
import tempfile
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, cast

from ipexctl.errors import UserError
from ipexctl.remote.command import Command
from ipexctl.remote.outcome import HostError
from ipexctl.remote.session import capture

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from ipexctl.remote.cancel import Cancel
    from ipexctl.remote.session import Session

_CHUNK = 1 << 18


@dataclass(frozen=True, slots=True)
class Item:
    """One thing to push: where it lies here, and its path below the destination."""

    source: Path
    path: str


def tree_items(root: Path) -> tuple[Item, ...]:
    """Everything below a directory, links as links, empty directories too, in one order.

    Sockets and fifos stay behind: they mean nothing without the process at their other end. A device, or a directory
    that can't be read, is the user's to clear up: half a tree is not pushed.
    """
    items: list[Item] = []
    below = [""]
    while below:
        base = below.pop()
        files, directories = _listing(root / base)
        items += [Item(root / base / name, f"{base}{name}") for name in (*files, *directories)]
        below += [f"{base}{name}/" for name in reversed(directories)]
    return tuple(items)


def _listing(directory: Path) -> tuple[list[str], list[str]]:
    """The names of what is no directory there (links among it), and of the directories, each in order."""
    files, directories = [], []
    try:
        with os.scandir(directory) as found:
            for entry in found:
                if entry.is_dir(follow_symlinks=False):
                    directories.append(entry.name)
                elif entry.is_symlink() or entry.is_file(follow_symlinks=False):
                    files.append(entry.name)
                else:
                    _refuse_device(entry)
    except OSError as error:
        raise UserError(
            f"{error.filename or directory}: {error.strerror or error}",
            fix="make it readable, or move it out of what is pushed",
        ) from None
    return sorted(files), sorted(directories)


def _refuse_device(entry: os.DirEntry[str]) -> None:
    mode = entry.stat(follow_symlinks=False).st_mode
    if stat.S_ISBLK(mode) or stat.S_ISCHR(mode):
        raise UserError(f"{entry.path} is a device, and only files can be pushed", fix="move it out of what is pushed")


class Bundle:
    """A tar archive in a nameless file, readable by many at once, from the moment its first bytes are packed."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115  # lives as long as the bundle
        self._changed = threading.Condition()
        self._size = 0
        self._packed = False
        self._unwanted = False
        self._error: BaseException | None = None

    def pack(self, items: Iterable[Item]) -> None:
        """Write the archive. Owners stay behind: on the node everything belongs to who logs in.

        Raises nothing: what goes wrong is for those who read it, and for `raise_if_broken`.
        """
        error: BaseException | None = None
        try:
            with tarfile.open(fileobj=_Growing(self), mode="w|", format=tarfile.GNU_FORMAT, bufsize=_CHUNK) as archive:
                for item in items:
                    self._raise_if_unwanted()
                    _add(archive, item)
        except BaseException as caught:  # noqa: BLE001  # carried to whoever reads
            error = caught
        with self._changed:
            self._packed, self._error = True, error
            self._changed.notify_all()

    def append(self, data: bytes) -> None:
        self._raise_if_unwanted()
        written, left = 0, memoryview(data)
        try:
            while left:
                count = os.pwrite(self._file.fileno(), left, self._size + written)
                written, left = written + count, left[count:]
        except OSError as error:
            raise HostError(
                f"packing in {tempfile.gettempdir()}: {error.strerror or error}",
                "make room there, or name another directory: TMPDIR=DIR",
            ) from None
        with self._changed:
            self._size += written
            self._changed.notify_all()

    def read_at(self, offset: int, size: int) -> bytes:
        """The bytes there, waiting for them to be packed; none at the end, an OSError where packing broke off."""
        with self._changed:
            self._changed.wait_for(lambda: self._packed or self._size > offset)
            size = min(size, self._size - offset)
            if size <= 0 and self._error is not None:
                raise OSError(errno.EIO, "the packing broke off here") from self._error
        return os.pread(self._file.fileno(), size, offset) if size > 0 else b""

    def raise_if_broken(self) -> None:
        """Raise what stopped the packing, if something did: a HostError, since many hosts' threads may ask."""
        error = self._error
        if isinstance(error, HostError):
            raise HostError(error.reason, error.fix) from error
        if error is not None:
            raise HostError(f"packing failed: {_said(error)}") from error

    def stop(self) -> None:
        """Nobody reads any more: what isn't packed yet needn't be."""
        self._unwanted = True

    def _raise_if_unwanted(self) -> None:
        if self._unwanted:
            raise HostError("stopped before it was packed")

    @property
    def ours(self) -> BaseException | None:
        """What stopped the packing and has nothing to do with any file: it came out of the iterator, or is a bug."""
        return None if isinstance(self._error, HostError) else self._error

    def reader(self) -> BinaryIO:
        """A reader of one's own, from the start."""
        return cast("BinaryIO", _BundleReader(self))

    def close(self) -> None:
        self._file.close()


@contextmanager
def bundled(items: Iterable[Item]) -> Iterator[Bundle]:
    """A bundle that is packed while its readers already send it. When the body ends, so does the packing."""
    try:
        bundle = Bundle()
    except OSError as error:
        raise UserError(
            f"no directory to pack in: {error.strerror or error}", fix="name one with room: TMPDIR=DIR"
        ) from None
    packer = threading.Thread(target=bundle.pack, args=(items,), name="pack", daemon=True)
    packer.start()
    try:
        yield bundle
    finally:
        bundle.stop()
        packer.join()
        bundle.close()
    if bundle.ours is not None:
        raise bundle.ours


def _add(archive: tarfile.TarFile, item: Item) -> None:
    try:
        archive.add(item.source, arcname=item.path, recursive=False, filter=_nobodys)
    except (OSError, tarfile.TarError, ValueError) as error:
        said = "it changed while it was read" if "unexpected end of data" in str(error) else _said(error)
        raise HostError(f"{item.source}: {said}", "mend that file, then run it again") from error


def _said(error: BaseException) -> str:
    return (error.strerror if isinstance(error, OSError) else "") or str(error) or type(error).__name__


def push_bundle(
    session: Session, bundle: Bundle, destination: str, *, timeout: float | None = None, cancel: Cancel | None = None
) -> None:
    """Unpack a bundle into a directory of the host, made where it isn't; raises a HostError that says why not."""
    where = _operand(destination)
    command = Command(f"mkdir -p {where} && exec tar -xpof - -C {where}", f"unpack into {destination}")
    try:
        _done(session, command, bundle.reader(), timeout, cancel)
    finally:
        bundle.raise_if_broken()  # an archive that ends early may well have been unpacked without a complaint


def push_file(
    session: Session,
    content: bytes,
    destination: str,
    *,
    mode: int = 0o600,
    timeout: float | None = None,
    cancel: Cancel | None = None,
) -> None:
    """Put a file on the host: complete or not at all, with its mode from the first byte on."""
    where, aside = _operand(destination), _operand(f"{destination}.{secrets.token_hex(8)}.part")
    script = _PUSH_FILE.format(
        where=where, aside=aside, clear=shlex.quote(f"rm -f {aside}"), size=len(content), mode=mode
    )
    _done(session, Command(script, f"write {destination}"), io.BytesIO(content), timeout, cancel)


_PUSH_FILE = """\
trap {clear} EXIT; trap 'exit 1' HUP INT PIPE TERM
umask 077
if [ -d {where} ]; then echo 'a directory is in its place' >&2; exit 1; fi
cat >{aside} || exit
[ "$(wc -c <{aside})" -eq {size} ] || {{ echo 'only part of it has arrived' >&2; exit 1; }}
chmod {mode:o} {aside} && mv -f {aside} {where}
"""
"""The size is looked at, since to `cat` a lost connection is an end like any other."""


def _operand(path: str) -> str:
    """A path for a command line of sh, that no program takes for an option."""
    return shlex.quote(f"./{path}" if path.startswith("-") else path)


def _done(session: Session, command: Command, stdin: BinaryIO, timeout: float | None, cancel: Cancel | None) -> None:
    result = capture(session, command, stdin=stdin, timeout=timeout, cancel=cancel)
    if not result.ended.ok:
        said = result.stderr.decode(errors="replace").strip().splitlines()
        raise HostError(f"could not {command.label}: {said[-1] if said else result.ended}")


def _nobodys(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


class _Growing(io.RawIOBase):
    """The packing side of a bundle, as a file."""

    def __init__(self, bundle: Bundle) -> None:
        self._bundle = bundle

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        block = bytes(cast("bytes", data))
        self._bundle.append(block)
        return len(block)


class _BundleReader(io.RawIOBase):
    def __init__(self, bundle: Bundle) -> None:
        self._bundle = bundle
        self._offset = 0

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        if size < 0:
            return b"".join(iter(lambda: self.read(_CHUNK), b""))
        data = self._bundle.read_at(self._offset, size)
        self._offset += len(data)
        return data
