"""Messages of a rank as the supervisor reads them: checked and bounded."""

from __future__ import annotations

import json

import pytest

from ipexctl.node.common.frames import FrameError
from ipexctl.node.common.records import Detail
from ipexctl.node.run.messages import MAX_TEXT, Exit, read_message


def exit_message(problem: object) -> bytes:
    return json.dumps({"t": "exit", "code": 127, "is_own": True, "problem": problem}).encode()


@pytest.mark.parametrize(("size", "kept"), [(MAX_TEXT, MAX_TEXT), (MAX_TEXT + 1, MAX_TEXT)])
def test_detail_of_a_rank_is_bounded(size: int, kept: int) -> None:
    fields = {f"field{number}": "x" * size for number in range(9)}
    message = read_message(exit_message({"kind": "k" * 99, "fields": fields}))
    assert isinstance(message, Exit)
    assert message.problem is not None
    assert len(message.problem.kind) == 40
    assert [len(text) for text in message.problem.fields.values()] == [kept] * 8


def test_detail_is_read_and_may_be_missing() -> None:
    problem = {"kind": "no-command", "fields": {"file": "x"}}
    assert read_message(exit_message(problem)) == Exit(127, True, problem=Detail("no-command", {"file": "x"}))
    assert read_message(exit_message(None)) == Exit(127, True)


@pytest.mark.parametrize("problem", ["text", {"fields": {}}, {"kind": "k", "fields": {"a": 1}}, {"kind": 7}])
def test_malformed_detail_is_refused(problem: object) -> None:
    with pytest.raises(FrameError):
        read_message(exit_message(problem))
