"""Bytes and trees to a host: one tar stream over the open connection, packed once for any number of hosts."""

from __future__ import annotations

import io
import os
import shlex
import tarfile
import tempfile
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from ipexctl.remote.command import Command
from ipexctl.remote.outcome import HostError
from ipexctl.remote.session import capture

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ipexctl.remote.cancel import Cancel
    from ipexctl.remote.session import Session


@dataclass(frozen=True, slots=True)
class Item:
    """One thing to push: where it lies here, and its path below the destination."""

    source: Path
    path: str


def tree_items(root: Path) -> tuple[Item, ...]:
    """Everything below a directory, links as links, empty directories too, in one order."""
    items: list[Item] = []
    for directory, names, files in os.walk(root):
        names.sort()
        base = Path(directory)
        linked = [name for name in names if (base / name).is_symlink()]
        for name in [*sorted(files), *names]:
            source = base / name
            items.append(Item(source, str(source.relative_to(root))))
        names[:] = [name for name in names if name not in linked]
    return tuple(items)


class Bundle:
    """A tar archive in a nameless file, readable by many at once, from the moment its first bytes are packed."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115  # lives as long as the bundle
        self._changed = threading.Condition()
        self._size = 0
        self._packed = False
        self._error: OSError | None = None

    def pack(self, items: Iterable[Item]) -> None:
        """Write the archive. Owners stay behind: on the node everything belongs to who logs in."""
        try:
            with tarfile.open(fileobj=_Growing(self), mode="w|", format=tarfile.GNU_FORMAT, bufsize=1 << 18) as archive:
                for item in items:
                    archive.add(item.source, arcname=item.path, recursive=False, filter=_nobodys)
        except OSError as error:
            self._finish(error)
        else:
            self._finish(None)

    def _finish(self, error: OSError | None) -> None:
        with self._changed:
            self._packed, self._error = True, error
            self._changed.notify_all()

    def append(self, data: bytes) -> None:
        os.pwrite(self._file.fileno(), data, self._size)
        with self._changed:
            self._size += len(data)
            self._changed.notify_all()

    def read_at(self, offset: int, size: int) -> bytes:
        """The bytes there, waiting for them to be packed; none at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._packed or self._size > offset)
            size = min(size, self._size - offset)
        return os.pread(self._file.fileno(), size, offset) if size > 0 else b""

    def raise_if_broken(self) -> None:
        """Raise what stopped the packing, if something did."""
        if self._error is not None:
            raise HostError(f"{self._error.filename}: {self._error.strerror}", "mend that file, then run it again")

    def reader(self) -> BinaryIO:
        """A reader of one's own, from the start."""
        return cast("BinaryIO", _BundleReader(self))

    def close(self) -> None:
        self._file.close()


@contextmanager
def bundled(items: Iterable[Item]) -> Iterator[Bundle]:
    """A bundle that is packed while its readers already send it."""
    bundle = Bundle()
    packer = threading.Thread(target=bundle.pack, args=(items,), daemon=True)
    packer.start()
    try:
        yield bundle
    finally:
        packer.join()
        bundle.close()


def push_bundle(
    session: Session, bundle: Bundle, destination: str, *, timeout: float | None = None, cancel: Cancel | None = None
) -> None:
    """Unpack a bundle into a directory of the host, made where it isn't; raises a HostError that says why not."""
    where = shlex.quote(destination)
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
    where, aside = shlex.quote(destination), shlex.quote(f"{destination}.part")
    script = f"umask 077; cat >{aside}.$$ && chmod {mode:o} {aside}.$$ && mv -f {aside}.$$ {where}"
    script += f" || {{ rm -f {aside}.$$; exit 1; }}"
    _done(session, Command(script, f"write {destination}"), io.BytesIO(content), timeout, cancel)


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
        data = self._bundle.read_at(self._offset, size if size >= 0 else 1 << 30)
        self._offset += len(data)
        return data
