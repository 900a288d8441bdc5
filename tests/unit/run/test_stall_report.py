"""The report of a silent run: the command to type, and the activity of ranks, equal ones grouped."""

from __future__ import annotations

import pytest

from ipexctl.node.common.records import Silence, SilentRank, read_status
from ipexctl.run.hang import describe_activity, silence_lines
from message_data import missing


def test_ranks_with_equal_activity_are_grouped() -> None:
    waiting = [
        SilentRank(rank, f"node{rank // 2 + 1}", "step 7", 0.0, "S", "do_epoll_wait") for rank in (0, 1, 2, 4, 5)
    ]
    odd = SilentRank(3, "node2", "step 6\x1b[2J", 0.0, "D", "nfs_wait_bit_killable")
    lines = silence_lines("run1", Silence(0.0, 600.0, (*waiting, odd)))
    assert missing(lines[0], "10 ipexctl why run1 --stacks") == []
    assert missing(lines[1], "0-2,4-5 node[1-3] step 7") == []
    assert missing(lines[2], "3 node2 nfs_wait_bit_killable step 6") == []
    assert "\x1b" not in "".join(lines)


@pytest.mark.parametrize(
    ("rank", "data"),
    [
        (SilentRank(0, "a", None, 99.6, "R"), "100"),
        (SilentRank(0, "a", None, 0.0, "S", "futex_wait_queue"), "lock futex_wait_queue"),
        (SilentRank(0, "a", None, 0.0, "S", "some_new_place"), "some_new_place"),
        (SilentRank(0, "a", None, 0.0, "S"), ""),
        (SilentRank(0, "a", None, 0.0, "T"), "signal"),
        (SilentRank(0, "a"), ""),
    ],
)
def test_process_activity_is_described(rank: SilentRank, data: str) -> None:
    assert missing(describe_activity(rank), data) == []


def test_silence_is_read_from_the_status_without_invalid_parts() -> None:
    document = {
        "id": "r",
        "state": "failed",
        "reason": "node2 stopped responding (ranks 2-3)",
        "silent": {"since": 5, "after": 2.5, "ranks": [{"rank": 1, "host": "b", "last": "x", "process": "S"}, 7]},
        "first_failure": {"kind": "lost", "rank": None, "host": None, "ranks": [2, 3, "x"], "oom": None},
        "ranks": [{"rank": 0, "oom": {"by": "cgroup", "limit": 5}, "lost": 9}],
    }
    status = read_status(document)
    assert status.silent == Silence(5.0, 2.5, (SilentRank(1, "b", "x", None, "S"),))
    assert status.first_failure is not None
    assert (status.first_failure.rank, status.first_failure.host, status.first_failure.ranks) == (None, None, (2, 3))
    assert status.ranks[0].oom is not None
    assert (status.ranks[0].oom.limit, status.ranks[0].figures.lost) == (5, 9)
    assert read_status({"silent": "odd"}).silent is None


@pytest.mark.parametrize(("count", "more"), [(8, 0), (9, 1)])
def test_eight_groups_are_listed_and_others_counted(count: int, more: int) -> None:
    ranks = tuple(SilentRank(rank, "node1", f"step {rank}", 0.0, "S") for rank in range(count))
    lines = silence_lines("run1", Silence(0.0, 600.0, ranks))
    assert len([line for line in lines if "step" in line]) == 8
    assert [line.split()[1] for line in lines if "more groups" in line] == [str(more)] * more
