"""A rank maps the memory of processes of its own user alone: anybody may write numbers into the ranks' store."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ipexctl.inrank.segment import create_memfd, open_memfd

OTHER = 4712
SERVE = """
import os, sys
number = os.memfd_create(sys.argv[1])
os.ftruncate(number, 4096)
os.fchmod(number, 0o666)
print(number, flush=True)
sys.stdin.read()
"""


@contextmanager
def memfd_of(uid: int, name: str = "ipexctl-allreduce") -> Iterator[tuple[int, int]]:
    """The pid of a process of that user, and the number of its memfd."""
    with subprocess.Popen(
        ["/usr/bin/python3", "-c", SERVE, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, user=uid, group=uid
    ) as process:
        assert process.stdout is not None
        yield process.pid, int(process.stdout.readline())
        process.communicate(timeout=10)


def test_the_memory_of_another_user_is_not_mapped() -> None:
    """Root can open it, so that nothing else stops a rank of root."""
    with memfd_of(OTHER) as (pid, number):
        os.close(os.open(f"/proc/{pid}/fd/{number}", os.O_RDWR))
        assert open_memfd(pid, number) is None
    with memfd_of(os.geteuid()) as (pid, number):
        found = open_memfd(pid, number)
        assert found is not None
        os.close(found)


def test_what_is_no_memfd_of_a_rank_is_not_opened() -> None:
    read, write = os.pipe()
    with open(sys.argv[0] if os.path.isfile(sys.argv[0]) else __file__, "rb") as file:
        for number in (read, file.fileno(), 999_999):
            assert open_memfd(os.getpid(), number) is None
    os.close(read)
    os.close(write)
    with memfd_of(os.geteuid(), "something-else") as (pid, number):
        assert open_memfd(pid, number) is None


@pytest.mark.parametrize("pid", ["self", "../tmp/x", None, 1.5, -1, 2**70])
def test_what_is_no_number_opens_nothing(pid: object) -> None:
    number = create_memfd(4096)
    assert open_memfd(pid, number) is None
    assert open_memfd(os.getpid(), str(number)) is None
    os.close(number)
