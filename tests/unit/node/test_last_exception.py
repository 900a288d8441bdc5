"""What a rank that succeeded printed last, as its wrapper reads it and as `run` and `why` say it."""

from __future__ import annotations

import pytest

from ipexctl.node.common.records import Proof, RankStatus, describe_successes
from ipexctl.node.run.rank.rank_hooks import describe
from ipexctl.node.run.rank.rank_limits import last_exception

STACK = 'Traceback (most recent call last):\n  File "train.py", line 2, in <module>\n    {}["weights"]\n'


@pytest.mark.parametrize(
    ("output", "found"),
    [
        (f"step 1\n{STACK}KeyError: 'weights'\n", "KeyError: 'weights'"),
        (f"{STACK}torch.serialization.Unpickling: no\n\n", "torch.serialization.Unpickling: no"),
        (f"{STACK}KeyError: 'weights'\ntrained from the start\n", ""),
        (f"{STACK}KeyError: 'weights'\nsaved\n{STACK}ValueError\n", "ValueError"),
        ("ValueError: no traceback\n", ""),
        ("", ""),
    ],
)
def test_the_exception_that_an_output_ends_with(output: str, found: str) -> None:
    assert last_exception(output.encode()) == found


def test_run_and_why_say_it_of_the_first_rank() -> None:
    seen = Proof("exception", "KeyError: 'weights'")
    ranks = [RankStatus(number, "node1", evidence=(seen,)) for number in range(2)]
    assert [*describe_successes(ranks)] == ["rank 0 printed KeyError: 'weights' last, and exited with code 0"]
    assert not [*describe_successes([RankStatus(0, "node1")])]


def test_a_group_of_exceptions_names_its_first() -> None:
    group = type("ExceptionGroup", (Exception,), {"exceptions": (ValueError("bad row 17"), KeyError("x"))})
    said = describe(group("loading failed (2 sub-exceptions)"))
    assert said == "ExceptionGroup: loading failed (2 sub-exceptions), the first ValueError: bad row 17"
