"""Locks for a store that several hosts share. They are safe on NFS, and a dead holder's lock is removed.

A lock is a symbolic link, because creating one is atomic on NFS too.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from typing import Callable, Iterator

from ipexctl.node.common.clock import Stopwatch
from ipexctl.node.common.node_limits import LOCK_HOLDER_SILENCE
from ipexctl.node.common.processes import ProcessIdentity, own_identity, pid_scope

BEAT_INTERVAL = 3.0


class Marker:
    """A link that names this process. It is touched every few seconds as a heartbeat for other machines."""

    def __init__(self, path: str) -> None:
        self.path = path
        identity = own_identity()
        self._target = f"{pid_scope()}:{identity.pid}:{identity.start}:{os.urandom(6).hex()}"
        self._removed = threading.Event()

    def create(self) -> None:
        """Create the link, and begin its heartbeat. Raises a FileExistsError while another process has it."""
        try:
            os.symlink(self._target, self.path)
        except FileExistsError:
            if _target(self.path) != self._target:  # an NFS server may get the request twice
                raise
        threading.Thread(target=self._beat, daemon=True).start()

    def _beat(self) -> None:
        while not self._removed.wait(BEAT_INTERVAL):
            with contextlib.suppress(OSError):
                os.utime(self.path, follow_symlinks=False)

    def remove(self) -> None:
        """End the heartbeat, and remove the link if it is still this process's."""
        self._removed.set()
        if _target(self.path) == self._target:
            with contextlib.suppress(OSError):
                os.unlink(self.path)


def is_alive(path: str) -> bool:
    """True if the process named by a link is running; on another machine, if its heartbeat is recent by the
    filesystem's clock."""
    try:
        scope, pid, start, _ = os.readlink(path).split(":")
        if scope == pid_scope():
            return ProcessIdentity(int(pid), int(start)).is_alive
        return _filesystem_time(path) - os.lstat(path).st_mtime < LOCK_HOLDER_SILENCE
    except (OSError, ValueError):
        return False


@contextlib.contextmanager
def store_lock(path: str, wait: Callable[[float], bool]) -> Iterator[None]:
    """Hold a store's lock. While another process has it, `wait` is called with the seconds waited so far.

    Continues without the lock if `wait` returns False or the disk is full, so work under it must be safe to do twice.
    """
    marker, waited, pause = Marker(path), Stopwatch(), 0.05
    while True:
        try:
            marker.create()
            break
        except FileExistsError:
            holder = _target(path)
        except OSError:
            break
        if holder is None and not os.path.lexists(path):
            continue
        if not is_alive(path):
            _remove_dead(path, holder)
        elif wait(waited.seconds):
            time.sleep(pause)
            pause = min(1.0, pause * 1.5)
        else:
            break
    try:
        yield
    finally:
        marker.remove()


def _remove_dead(path: str, holder: str | None) -> None:
    moved = f"{path}.{os.urandom(6).hex()}"
    with contextlib.suppress(OSError):
        os.rename(path, moved)
        moved_holder = _target(moved)
        os.unlink(moved)
        if moved_holder not in (None, holder):  # another process was faster; this is the next one's lock
            os.symlink(moved_holder, path)


def _target(path: str) -> str | None:
    try:
        return os.readlink(path)
    except OSError:
        return None


def _filesystem_time(path: str) -> float:
    probe = f"{path}.{os.urandom(6).hex()}"
    os.symlink(".", probe)
    try:
        return os.lstat(probe).st_mtime
    finally:
        os.unlink(probe)
