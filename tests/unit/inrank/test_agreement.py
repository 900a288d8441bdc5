"""Ranks agree, divide their gradients and map memory. They are threads here, with a store in memory as torch's."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipexctl.inrank.agreement import Round
from ipexctl.inrank.segment import LINE, create_memfd, find_hosts, open_memfd, pieces, shard_bounds


class Store:
    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.numbers: dict[str, int] = {}
        self._lock = threading.Lock()

    def set(self, key: str, value: str) -> None:
        self.values[key] = value.encode()

    def get(self, key: str) -> bytes:
        return self.values[key]

    def check(self, keys: list[str]) -> bool:
        return all(key in self.values for key in keys)

    def add(self, key: str, number: int) -> int:
        with self._lock:
            self.numbers[key] = self.numbers.get(key, 0) + number
            return self.numbers[key]


def decided(ranks: list[int], size: int, timeout: float = 5.0, reasons: dict[int, str] | None = None) -> list[str]:
    """What those ranks of so many are told."""
    store = Store()

    def of(rank: int) -> str:
        return Round(store, rank, size, "1", timeout).decide((reasons or {}).get(rank, ""))

    with ThreadPoolExecutor(len(ranks)) as threads:
        return list(threads.map(of, ranks))


def test_all_ranks_take_part_if_none_has_a_reason() -> None:
    assert decided([0, 1, 2], 3) == [""] * 3


def test_a_rank_with_a_reason_keeps_it_and_the_others_learn_its_number() -> None:
    found = decided([0, 1, 2], 3, reasons={1: "of rank 1", 2: "of rank 2"})
    assert found == ["rank 1 takes no part", "of rank 1", "of rank 2"]


def test_a_rank_that_never_posts_means_off_for_all() -> None:
    one, other = decided([0, 1], 3, timeout=0.3)
    assert one == other
    assert one.startswith(("rank 2 ", "rank 0 "))


def test_without_rank_0_the_others_decide_off() -> None:
    assert decided([1, 2], 3, timeout=0.3) == ["rank 0 did not answer within 0.3 s"] * 2


def test_a_late_rank_acts_on_what_was_published_before() -> None:
    store = Store()
    early = Round(store, 1, 2, "1", 0.1).decide("")
    assert Round(store, 0, 2, "1", 0.1).decide("") == early
    assert early


@pytest.mark.parametrize("left", ["[" * 200_000, "", "+1", "-2", "-\x1b[2J", "{}", "-a text", "?", "-01", "- 1"])
@pytest.mark.parametrize("key", ["offer/1", "decision"])
def test_nothing_that_a_stranger_has_put_into_the_store_is_printed(left: str, key: str) -> None:
    store = Store()
    store.set(f"ipexctl/allreduce/1/{key}", left)
    expected = "rank 1 takes no part"
    if key == "decision":
        store.add("ipexctl/allreduce/1/claim", 1)
        store.set("ipexctl/allreduce/1/offer/1", "+")
        expected = "the ranks' store has a decision that is not from ipexctl"
    assert Round(store, 0, 2, "1", 5.0).decide("") == expected


def test_a_stranger_does_not_make_a_rank_take_part_against_its_reason() -> None:
    store = Store()
    store.set("ipexctl/allreduce/1/decision", "+")
    assert Round(store, 1, 2, "1", 5.0).decide("of rank 1") == "of rank 1"


SIZES = st.sampled_from([1, 2, 4, 8])


@given(st.integers(0, 100_000), st.integers(2, 60), SIZES)
def test_shards_cover_a_piece_and_share_no_cache_line(elements: int, ranks: int, itemsize: int) -> None:
    bounds = shard_bounds(elements, ranks, itemsize)
    assert len(bounds) == ranks + 1
    assert bounds[0] == 0
    assert bounds[-1] == elements
    assert bounds == sorted(bounds)
    assert all(bound * itemsize % LINE == 0 for bound in bounds[:-1] if bound < elements)
    sizes = [end - start for start, end in pairwise(bounds)]
    assert max(sizes) - min(sizes) <= 2 * LINE // itemsize


@given(st.integers(1, 5_000_000), SIZES, st.sampled_from([4096, 1 << 20]))
def test_pieces_cover_a_bucket_and_fit_a_slot(elements: int, itemsize: int, limit: int) -> None:
    found = pieces(elements, itemsize, limit)
    assert found[0][0] == 0
    assert found[-1][1] == elements
    assert all(one[1] == other[0] for one, other in pairwise(found))
    assert all(0 < (end - start) * itemsize <= limit for start, end in found)
    assert len(found) <= elements * itemsize // limit + 2


@pytest.mark.parametrize(("nbytes", "count"), [(1 << 20, 1), ((1 << 20) + 4, 2)])
def test_a_bucket_is_divided_once_it_is_larger_than_a_slot(nbytes: int, count: int) -> None:
    assert len(pieces(nbytes // 4, 4, 1 << 20)) == count


def test_an_empty_bucket_has_no_pieces() -> None:
    assert pieces(0, 4, 4096) == []


def test_ranks_that_map_each_other_share_a_host() -> None:
    assert find_hosts({0: [0, 2], 1: [1, 3], 2: [2, 0], 3: [3, 1]}) == [[0, 2], [1, 3]]


@pytest.mark.parametrize(
    ("mapped", "reason"),
    [
        ({0: [0], 1: [1]}, "each host has only one rank"),
        ({0: [0, 1], 1: [0, 1], 2: [2]}, "different numbers of ranks"),
        ({0: [0, 1], 1: [1]}, "map each other"),
        ({0: [0], 1: [0, 1]}, "map each other"),
        ({0: [0, 1], 1: [0, 1, 2], 2: [1, 2]}, "map each other"),
        ({0: [0, 3], 1: [1, 3]}, "map each other"),
        ({0: [0, 1], 1: [0, 1], 2: [2, 7], 3: [2, 7]}, "map each other"),
    ],
)
def test_other_divisions_are_no_hosts(mapped: dict[int, list[int]], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        find_hosts(mapped)


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
