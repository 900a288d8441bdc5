from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipexctl.inrank.segment import LINE, find_hosts, pieces, shard_bounds

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
        ({0: [0], 1: [1]}, "one rank on each host"),
        ({0: [0, 1], 1: [0, 1], 2: [2]}, "different numbers of ranks"),
        ({0: [0, 1], 1: [1]}, "map each other"),
        ({0: [0], 1: [0, 1]}, "map each other"),
        ({0: [0, 1], 1: [0, 1, 2], 2: [1, 2]}, "map each other"),
    ],
)
def test_other_divisions_are_no_hosts(mapped: dict[int, list[int]], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        find_hosts(mapped)
