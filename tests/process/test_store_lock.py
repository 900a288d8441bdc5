"""One process on all machines holds the lock of a store; locks of dead processes are free."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_helpers import wait_until
from ipexctl.node.common import store_lock as module
from ipexctl.node.common.store_lock import store_lock


class Busy(Exception):
    pass


def refuse(_: float) -> bool:
    raise Busy


HOLD = """
import sys
from ipexctl.node.common.store_lock import store_lock
with store_lock(sys.argv[1], lambda seconds: True):
    print(flush=True)
    input()
"""


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    return tmp_path / "x.lock"


@pytest.fixture
def holder(lock: Path) -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen([sys.executable, "-c", HOLD, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with child:
        assert child.stdout is not None
        child.stdout.readline()
        yield child
        child.kill()


def held_elsewhere(lock: Path, seconds: float) -> None:
    """Lock it as a process on another machine whose last heartbeat is this old."""
    lock.symlink_to("another-kernel:1:1:abc")
    then = time.time() - seconds
    os.utime(lock, (then, then), follow_symlinks=False)


def test_one_process_holds_the_lock(lock: Path, holder: subprocess.Popen[bytes]) -> None:
    with pytest.raises(Busy), store_lock(str(lock), refuse):
        raise AssertionError
    assert holder.stdin is not None
    holder.stdin.close()
    holder.wait(10)
    with store_lock(str(lock), refuse):
        assert lock.is_symlink()
    assert list(lock.parent.iterdir()) == []


def test_lock_of_a_killed_process_is_free_at_once(lock: Path, holder: subprocess.Popen[bytes]) -> None:
    holder.send_signal(signal.SIGKILL)
    holder.wait(10)
    assert lock.is_symlink()
    with store_lock(str(lock), refuse):
        pass
    assert list(lock.parent.iterdir()) == []


def test_remote_holder_without_heartbeat_is_dead(lock: Path) -> None:
    held_elsewhere(lock, 30)
    with pytest.raises(Busy), store_lock(str(lock), refuse):
        raise AssertionError
    lock.unlink()
    held_elsewhere(lock, 100)
    with store_lock(str(lock), refuse):
        pass
    assert list(lock.parent.iterdir()) == []


def test_holder_updates_its_heartbeat(lock: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BEAT_INTERVAL", 0.02)
    with store_lock(str(lock), refuse):
        os.utime(lock, (1e9, 1e9), follow_symlinks=False)
        wait_until(lambda: lock.lstat().st_mtime != 1e9)


@pytest.mark.core
def test_waiting_can_end_without_the_lock(lock: Path) -> None:
    held_elsewhere(lock, 0)
    waited: list[float] = []

    def wait(seconds: float) -> bool:
        waited.append(seconds)
        return len(waited) < 3

    with store_lock(str(lock), wait):
        assert len(waited) == 3
    assert os.readlink(lock) == "another-kernel:1:1:abc"


@pytest.mark.parametrize("make", ["file", "link"])
def test_files_that_are_no_lock_are_replaced(lock: Path, make: str) -> None:
    """A regular file is the lock of an earlier version."""
    if make == "file":
        lock.touch()
    else:
        lock.symlink_to("abc")
    with store_lock(str(lock), refuse):
        assert len(os.readlink(lock).split(":")) == 4
    assert list(lock.parent.iterdir()) == []


def test_work_continues_if_the_lock_cannot_be_created(tmp_path: Path) -> None:
    with store_lock(str(tmp_path / "missing" / "lock"), refuse):
        assert not (tmp_path / "missing").exists()
