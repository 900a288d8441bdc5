"""Lines on other hosts, by a shell of the test: the end of what they print is kept, whatever they print."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from agent_helpers import wait_until
from ipexctl.node.common.liveness import RESERVED_FILE
from ipexctl.node.run.host_calls import HostAnswer, HostCalls

FLOOD = "head -c 200000000 /dev/zero >&2; echo >&2; echo refused >&2; exit 1"


SHELL = ("sh", "-c", 'eval "$2"', "sh")


def answer_of(line: str, seconds: float, stdin: bytes = b"") -> HostAnswer:
    calls = HostCalls(SHELL, dict(os.environ))
    calls.begin("node2", "node2", line, stdin, seconds)
    return answer_to(calls, seconds)


def answer_to(calls: HostCalls, seconds: float) -> HostAnswer:
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


def test_a_host_has_one_job_at_a_time_and_none_after_the_run(tmp_path: Path) -> None:
    """Each has the token of the run; a rank removes the one that it has read."""
    rundir, calls = tmp_path / "a run", HostCalls(SHELL, dict(os.environ))
    rundir.mkdir()
    for name in ("agent.zip", "job.json", "job.1.json"):
        (rundir / name).write_text(name)
    calls.find("node2", "node2", str(rundir))
    assert answer_to(calls, 20) == HostAnswer("node2", "")
    calls.give_job("node2", "node2", str(rundir / "job.2.json"), "{}")
    assert answer_to(calls, 20) == HostAnswer("node2", "")
    assert {path.name for path in rundir.iterdir()} == {"agent.zip", RESERVED_FILE, "job.2.json"}
    assert (rundir / "job.2.json").stat().st_mode & 0o777 == 0o600
    calls.release("node2", "node2", str(rundir))
    assert answer_to(calls, 20) == HostAnswer("node2", "")
    assert [path.name for path in rundir.iterdir()] == ["agent.zip"]
