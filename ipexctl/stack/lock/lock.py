"""A lock: the exact wheels of an environment, with their hashes, and what they need in a host's home. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ipexctl.facts.facts import Facts
from ipexctl.facts.system import Mount
from ipexctl.files.store_client import StoredFile
from ipexctl.node.env.build import LockDocument, LockedWheel
from ipexctl.remote.reply import MalformedReply, Reply
from ipexctl.text import readable

UNPACKED: Final = 2.1
"""Bytes of an environment on disk per byte of its wheels."""
_FILES: Final = 30_000
_LEAST: Final = 200_000_000
"""Free bytes for the host that stores the wheels first; even the smallest stack needs more."""


@dataclass(frozen=True, slots=True)
class Wheel:
    name: str
    """Normalized: `intel-extension-for-pytorch`."""
    version: str
    filename: str
    sha256: str
    size: int | None = None
    """Bytes; None if the index does not say."""
    url: str | None = None
    """http URL without credentials, or None."""
    path: str | None = None

    @property
    def stored_file(self) -> StoredFile:
        return StoredFile(self.sha256, self.filename, self.size)

    def to_json(self) -> LockedWheel:
        """Leaves out the path, which is valid only on one machine."""
        return {
            "name": self.name,
            "version": self.version,
            "filename": self.filename,
            "sha256": self.sha256,
            "size": self.size,
            "url": self.url,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Wheel:
        """Ignore a path in a host's record. Raises a MalformedReply if this is not a wheel."""
        wheel = Reply(data).decode(cls, path=None)
        if "/" in wheel.filename:
            raise MalformedReply("a wheel's name is not a file name", wheel.filename)
        return wheel


@dataclass(frozen=True, slots=True)
class Lock:
    python: str
    wheels: tuple[Wheel, ...]
    """Sorted by name."""

    @property
    def digest(self) -> str:
        lines = [self.python, *sorted(wheel.sha256 for wheel in self.wheels)]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()

    def without(self, hashes: frozenset[str]) -> Lock:
        return Lock(self.python, tuple(wheel for wheel in self.wheels if wheel.sha256 not in hashes))

    @property
    def size(self) -> int:
        return sum(wheel.size or 0 for wheel in self.wheels)

    @property
    def packages(self) -> dict[str, str]:
        return {wheel.name: wheel.version for wheel in self.wheels}

    @property
    def is_cuda(self) -> bool:
        return any(wheel.name.startswith("nvidia-") for wheel in self.wheels)

    def to_json(self) -> LockDocument:
        return {"schema": "ipexctl.lock/1", "python": self.python, "wheels": [w.to_json() for w in self.wheels]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Lock:
        """Raises a KeyError, TypeError or MalformedReply if it is not a lock."""
        return cls(data["python"], tuple(Wheel.from_json(wheel) for wheel in data["wheels"]))


def takes_wheels(facts: Facts) -> bool:
    disk = facts.home.disk if facts.home else None
    if disk is None:
        return True
    return disk.writable is not False and not disk.noexec and (disk.free is None or disk.free >= _LEAST)


def home_obstacle(facts: Facts, lock: Lock, held: int = 0) -> tuple[str, str] | None:
    """Problem and fix, or None. `held`: bytes of the wheels that are already in the store."""
    home = facts.home
    disk = home.disk if home else None
    if home is None or disk is None:
        return None
    elsewhere = "choose another directory: --home DIR"
    if disk.writable is False:
        return f"{home.path} cannot be written ({_where(disk.mount)})", elsewhere
    if disk.noexec:
        return f"{home.path} is on a filesystem mounted noexec, where no program or library starts", elsewhere
    needed = int(lock.size * (1 + UNPACKED)) - held
    if disk.free is not None and disk.free < needed:
        return (
            (
                f"an environment of {len(lock.wheels)} wheels needs about {readable(needed)} in {home.path}, "
                f"but {readable(disk.free)} are free"
            ),
            f"make room there (ipexctl envs lists environments), or {elsewhere}",
        )
    if disk.inodes_free is not None and disk.inodes_free < _FILES:
        return (
            f"{home.path} has space for {disk.inodes_free} more files, but an environment has about {_FILES}",
            elsewhere,
        )
    return None


def _where(mount: Mount | None) -> str:
    return f"{mount.point} is mounted read-only" if mount and "ro" in mount.options else "no permission, or read-only"
