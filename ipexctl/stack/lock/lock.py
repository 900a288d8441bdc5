"""A lock: the exact wheels of an environment, with their hashes."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ipexctl.files.store_client import StoredFile
from ipexctl.remote.reply import MalformedReply, Reply

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ipexctl.node.env.build import LockDocument, LockedWheel


@dataclass(frozen=True, slots=True)
class Wheel:
    name: str
    """Normalised: `intel-extension-for-pytorch`."""
    version: str
    filename: str
    sha256: str
    size: int | None = None
    """Bytes; None if the index does not give it."""
    url: str | None = None
    """http URL, without credentials."""
    path: str | None = None

    @property
    def stored_file(self) -> StoredFile:
        return StoredFile(self.sha256, self.filename, self.size)

    def to_json(self) -> LockedWheel:
        """Without the path, which belongs to one machine."""
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
        """Ignores a path in a host's record. Raises a MalformedReply if it is not a wheel."""
        wheel = Reply(data).decode(cls, path=None)
        if "/" in wheel.filename:
            raise MalformedReply("a wheel's name is no file name", wheel.filename)
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
