"""A look at a real process that plays a slow rank, beside one that disturbs it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from ipexctl.node.common.answer import AgentError
from ipexctl.node.run import slow_rank
from ipexctl.node.run.slow_rank import look

SPIN = "import os, sys; os.sched_setaffinity(0, {int(sys.argv[1])}); print(flush=True)\nwhile True: pass"


@pytest.fixture
def started() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def spin(stack: ExitStack, core: int, **variables: str) -> int:
    process = stack.enter_context(
        subprocess.Popen(
            [sys.executable, "-c", SPIN, str(core)], stdout=subprocess.PIPE, env={**os.environ, **variables}
        )
    )
    stack.callback(process.kill)
    assert process.stdout is not None
    process.stdout.readline()
    return process.pid


@pytest.mark.core
def test_look_names_the_process_that_disturbs_and_no_other_rank_as_such(
    started: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slow_rank, "LEAST_SHARE", 0.001)  # other tests use the processor, too
    monkeypatch.setattr(slow_rank, "MOST_OTHERS", 1000)
    monkeypatch.setattr(slow_rank, "MOST_CANDIDATES", 1000)
    core = min(os.sched_getaffinity(0))
    rank = spin(started, core, IPEXCTL_RUN="train-1")
    hog = spin(started, core)
    mate = spin(started, core, IPEXCTL_RUN="train-1")
    found = look({"home": "/nowhere", "id": "train-1", "pid": rank}, None)
    others = {process.pid: process for process in found.others}
    assert (others[hog].is_of_run, others[mate].is_of_run) == (False, True)
    assert others[hog].command
    assert rank not in others


def test_a_process_that_is_no_rank_of_the_run_is_not_looked_at(started: ExitStack) -> None:
    other = spin(started, min(os.sched_getaffinity(0)), IPEXCTL_RUN="train-2")
    with pytest.raises(AgentError):
        look({"home": "/nowhere", "id": "train-1", "pid": other}, None)
