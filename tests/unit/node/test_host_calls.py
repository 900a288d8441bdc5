"""Lines on other hosts, by a shell of the test: the end of what they print is kept, whatever they print."""

from __future__ import annotations

import os
import resource

import pytest

from agent_helpers import wait_until
from ipexctl.node.run.host_calls import HostAnswer, HostCalls

FLOOD = "head -c 200000000 /dev/zero >&2; echo >&2; echo refused >&2; exit 1"


def answer_of(line: str, seconds: float, stdin: bytes = b"") -> HostAnswer:
    calls = HostCalls(("sh", "-c", 'eval "$2"', "sh"), dict(os.environ))
    calls.begin("node2", "node2", line, stdin, seconds)
    answers: list[HostAnswer] = []

    def is_answered() -> bool:
        answers.extend(calls.take())
        return calls.is_over

    wait_until(is_answered, seconds + 10)
    (answer,) = answers
    return answer


@pytest.mark.parametrize(
    ("line", "seconds", "problem"),
    [
        ("cat >/dev/null", 20, ""),
        ("echo warning >&2", 20, ""),
        ("echo first >&2; echo; echo last >&2; exit 3", 20, "last"),
        ("exit 3", 20, "its shell ended with exit code 3"),
        ("sleep 30", 0.3, "no answer within 0.3 s"),
        ("yes >&2", 0.3, "no answer within 0.3 s"),
        ("sleep 30 & echo in the background >&2; exit 1", 20, "in the background"),
        (FLOOD, 60, "refused"),
    ],
)
def test_a_host_has_one_answer(line: str, seconds: float, problem: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert answer_of(line, seconds, b"x" * 1_000_000) == HostAnswer("node2", problem)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # KB
