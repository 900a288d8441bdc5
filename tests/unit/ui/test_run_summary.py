"""The last words of a run: who was first, or why where no rank is to blame, and what is missing."""

from __future__ import annotations

import pytest

from ipexctl.jobs.events import Failure, RankStatus, RunStatus
from ipexctl.ui.run_summary import end_lines


@pytest.mark.parametrize(
    ("failure", "reason", "sentence", "look"),
    [
        (Failure(3, "node2", 7, kind="exit"), "", "rank 3 on node2 ended with exit code 7", "run1 -r 3"),
        (
            Failure(3, "node2", 137, 9, kind="oom"),
            "rank 3 on node2 failed: killed by the kernel: out of memory (limit 2.0 GB)",
            "rank 3 on node2 failed: killed by the kernel: out of memory (limit 2.0 GB)",
            "run1 -r 3",
        ),
        (
            Failure(None, None, kind="lost"),
            "no other node is heard any more (ranks 2-5)",
            "no other node is heard any more (ranks 2-5)",
            "logs run1",
        ),
        (None, "the time limit of 2 s is over", "the time limit of 2 s is over", "logs run1"),
    ],
)
def test_a_run_that_failed_says_why_and_where_to_look(
    failure: Failure | None, reason: str, sentence: str, look: str
) -> None:
    status = RunStatus("run1", "failed", world_size=6, nodes=3, first_failure=failure, reason=reason)
    first, second = end_lines(status, 1)
    assert first == f"run run1 failed: {sentence}"
    assert second.endswith(look)


def test_how_often_it_was_begun_and_what_is_missing_are_told_of_one_that_ended_well_too() -> None:
    ranks = (RankStatus(0, "a", lost=1000), RankStatus(1, "a"), RankStatus(2, "b", lost=234))
    status = RunStatus("run1", "ok", world_size=3, nodes=2, ranks=ranks, attempt=2, restarts=3)
    assert end_lines(status, 0) == [
        "run run1 ended well, begun 3 times: 3 ranks on 2 nodes",
        "  1,234 bytes of what ranks 0,2 printed are missing: there was no room for them on any disk",
    ]
