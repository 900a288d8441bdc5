"""Checks a host's home before an environment is installed there. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ipexctl.text import readable

if TYPE_CHECKING:
    from ipexctl.facts.facts import Facts
    from ipexctl.facts.system import Mount
    from ipexctl.stack.lock.lock import Lock

UNPACKED: Final = 2.1
"""Bytes of an environment on disk per byte of its wheels."""
_FILES: Final = 30_000


_LEAST: Final = 200_000_000
"""Free bytes for the host that stores the wheels first; the smallest stack needs more."""


def takes_wheels(facts: Facts) -> bool:
    disk = facts.home.disk if facts.home else None
    if disk is None:
        return True
    return disk.writable is not False and not disk.noexec and (disk.free is None or disk.free >= _LEAST)


def home_obstacle(facts: Facts, lock: Lock, held: int = 0) -> tuple[str, str] | None:
    """Problem and fix, or None; `held` bytes of its wheels are in the store already."""
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
                f"and {readable(disk.free)} are free"
            ),
            f"make room there (ipexctl envs lists environments), or {elsewhere}",
        )
    if disk.inodes_free is not None and disk.inodes_free < _FILES:
        return (
            f"{home.path} has room for {disk.inodes_free} more files, and an environment has about {_FILES}",
            elsewhere,
        )
    return None


def _where(mount: Mount | None) -> str:
    return f"{mount.point} is mounted read-only" if mount and "ro" in mount.options else "no permission, or read-only"
