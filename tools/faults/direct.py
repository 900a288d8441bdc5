"""Rounds of runs whose ranks are started directly, on three hosts without an MPI and without logins between them."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from .fault_cases import FAULT_CASES, SHORT, FaultCase
from .judge import ExpectedResult
from .play import FaultRound
from .random_cases import RANDOM_CASES
from .rounds import Kind
from .stage import FaultLab, Process, new_stage, send_signal, standing_still

OPTIONS: Final = ("--launcher", "direct", "--python", "/usr/bin/python3")
_OF_MPIRUN: Final = ("mpirun", "hydra")


def _starters(context: FaultRound) -> list[Process]:
    """That of a host that isn't node0; none if the run is over."""
    host = context.pick_host(1).name
    return [process for process in context.stage.processes(host) if "run.host_starter" in process.words]


def _starter_gets(number: signal.Signals) -> Callable[[FaultRound], ExpectedResult]:
    """The ranks go on without it."""

    def play(context: FaultRound) -> ExpectedResult:
        for process in _starters(context):
            send_signal(process, number)
        return ExpectedResult("ok", 0)

    return play


def _starter_paused(context: FaultRound) -> ExpectedResult:
    """It stands still for less or more time than it takes to count as lost."""
    with standing_still(_starters(context)):
        context.pause(35.0)
    return ExpectedResult("ok", 0)


def _starter_paused_as_ranks_fail(context: FaultRound) -> ExpectedResult:
    """The attempt ends, and the next one begins once the starter goes on."""
    with standing_still(_starters(context)):
        context.died = time.time()
        context.kill(context.host, context.row["pid"], signal.SIGKILL)
        context.pause(6.0)
    return ExpectedResult("ok", 0, attempt=1, earlier=("signal", context.victim), within=120.0)


CASES: Final = (
    FaultCase("a starter is killed", _starter_gets(signal.SIGKILL), count=SHORT),
    FaultCase("a starter is told to end", _starter_gets(signal.SIGTERM), count=SHORT),
    FaultCase("a starter stands still for a while", _starter_paused, count=SHORT),
    FaultCase(
        "a starter stands still as ranks fail",
        _starter_paused_as_ranks_fail,
        count=SHORT,
        options=("--max-restarts", "1"),
    ),
    *(case for case in (*FAULT_CASES, *RANDOM_CASES) if not any(word in case.name for word in _OF_MPIRUN)),
)


@contextmanager
def new_direct_stage(base: Path) -> Iterator[FaultLab]:
    with new_stage(base, lambda _: None, hosts=3) as stage:
        stage.cluster = replace(stage.cluster, options=OPTIONS)
        yield stage


KIND = Kind(
    "runs without an mpirun, on three hosts without logins between them",
    CASES,
    new_direct_stage,
    lambda stage, case, chance: FaultRound(stage, case, chance, is_thorough=True, ppn=chance.choice([1, 2])),
)
