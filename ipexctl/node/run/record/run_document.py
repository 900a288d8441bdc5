"""The document of a run for programs: the same in `ps`, `wait`, `why`, `--summary`, the event `end` and the input of
`--notify`. `ipexctl/schemas/run.json` is made from these annotations.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

from ipexctl.node.common.json_records import document_from, encode
from ipexctl.node.common.records import TrainingProgress

if TYPE_CHECKING:
    from ipexctl.node.common.answer import Json
    from ipexctl.node.common.lever_records import Lever
    from ipexctl.node.common.plan import OtherRun, Plan, RunBy
    from ipexctl.node.common.records import (
        Attempt,
        Failure,
        GradientExchange,
        LostOutput,
        NanLoss,
        NetworkCost,
        OutOfMemory,
        RankStatus,
        RunStatus,
        SlowRank,
        State,
        StopRecord,
        Throughput,
        TrainingGroup,
        Untrained,
    )
    from ipexctl.node.common.training import WrongTraining

SCHEMA = "ipexctl.run/1"


class LineCounts(NamedTuple):
    out: int | None = None
    err: int | None = None


class RankDocument(NamedTuple):
    rank: int
    host: str
    state: State
    pid: int | None
    cpu: float | None
    """Percent of one core, as in top: 800 is eight cores."""
    rss: int | None
    """Memory in bytes."""
    lines: LineCounts
    """Lines that the rank printed."""
    exit_code: int | None
    signal: int | None
    oom: OutOfMemory | None
    lost: int
    """Bytes of output lost because a disk was full."""
    port: int | None
    """What `{port}` in the command stands for."""
    restarts: int
    """How often the copy was started again, with --keep-going."""
    unheard: float | None
    """Seconds since node0 last heard of the rank; null unless that is long."""


class NewestCheckpoint(NamedTuple):
    path: str
    """On node0, relative to the ranks' working directory, or absolute."""
    fetch: str
    """Command that fetches it."""


class CallDocument(NamedTuple):
    """The call that wrote the document. It may end before the run, or start none."""

    exit_code: int
    seconds: float
    other_runs: tuple[OtherRun, ...] | None = None
    """Runs on the hosts when the call started; null if it did not check."""


class RunDocument(NamedTuple):
    id: str | None = None
    """Null if no run was started; then `call` alone has values."""
    state: State | None = None
    script: str | None = None
    tag: str | None = None
    by: RunBy | None = None
    env: str = ""
    """Environment, or the user's own Python."""
    node0: str = ""
    home: str = ""
    hosts: tuple[str, ...] = ()
    world_size: int = 0
    started: float | None = None
    """Seconds since 1970, as all times."""
    ended: float | None = None
    seconds: float | None = None
    """How long the run took, or has taken."""
    attempt: int = 0
    """Restarts so far."""
    exit_code: int | None = None
    """Of the run; null until it has ended."""
    reason: str = ""
    """What ended the run; of an unknown state: why it is unknown."""
    fix: str = ""
    """What to do if the state is unknown."""
    cause: str | None = None
    """`reason` with the exception of the rank that failed first; null if the run did not fail."""
    first_failure: Failure | None = None
    stopped: StopRecord | None = None
    checkpoint: NewestCheckpoint | None = None
    output_lost: LostOutput | None = None
    throughput: Throughput | None = None
    step: int | None = None
    """As the script prints it, else optimizer steps, with those before a checkpoint from which it resumed; null if
    neither is known."""
    steps: int | None = None
    """Steps that it will have made; null if neither its output nor its code says so."""
    loss: float | None = None
    """The last that it printed, else the last that was measured."""
    step_age: float | None = None
    """Seconds since the step last moved; null if unknown, or after the end."""
    eta: float | None = None
    """Seconds until the last step, at the measured speed; null if the step does not move."""
    group: TrainingGroup | None = None
    untrained: Untrained | None = None
    nan: NanLoss | None = None
    exchange: GradientExchange | None = None
    network: NetworkCost | None = None
    slow: SlowRank | None = None
    """The slowest rank of a running run. `ipexctl why` finds more, and the causes."""
    amx_idle: tuple[str, ...] = ()
    """Hosts with AMX on which the script multiplies in fp32."""
    wrong: tuple[WrongTraining, ...] = ()
    levers: tuple[Lever, ...] = ()
    """Options that make a training faster: those that were asked for, and those that --profile measured."""
    attempts: tuple[Attempt, ...] = ()
    ranks: tuple[RankDocument, ...] = ()
    pruned: float | None = None
    """When the run's output was pruned."""
    call: CallDocument | None = None


def document_of_run(plan: Plan | None, status: RunStatus | None, started: float | None = None) -> RunDocument:
    """Return the document of a run. `plan`: None if no run was started; `status`: None if it is unknown; `started`:
    used where the status lacks it."""
    if plan is None:
        return RunDocument()
    hosts = plan.names if plan.hosts else ()
    of_plan: dict[str, object] = {"tag": plan.asked.tag, "env": plan.environment, "hosts": hosts}
    if status is None:
        return document_from(RunDocument, plan, **of_plan, state="unknown", started=started, ranks=())
    progress = status.progress or TrainingProgress()
    return document_from(
        RunDocument,
        *(plan, status, progress),
        **of_plan,
        started=status.started or started,
        seconds=status.took,
        exit_code=status.code if status.is_over else None,
        cause=status.cause or None,
        checkpoint=NewestCheckpoint(status.checkpoint, status.fetch_line) if status.fetch_line else None,
        step_age=progress.age,
        slow=status.slow if status.state == "running" else None,
        amx_idle=tuple(status.amx_idle),
        attempts=status.all_attempts,
        ranks=tuple(map(rank_document, status.ranks)),
    )


def rank_document(row: RankStatus) -> RankDocument:
    """Return a rank of the document, from its status."""
    seen = row.figures
    lines = LineCounts(seen.out_lines, seen.err_lines)
    of_process = (row.exit_code, row.signal, row.oom)
    return RankDocument(
        *(row.rank, row.host, row.state, row.pid, seen.cpu, seen.rss, lines),
        *(*of_process, seen.lost, row.port, row.restarts, seen.unheard),
    )


def run_json(document: RunDocument) -> Json:
    """Return the document as JSON with its schema."""
    return {"schema": SCHEMA, **encode(document)}


def run_text(document: RunDocument) -> str:
    """Return the document as the text that --summary writes and the command of --notify reads."""
    return json.dumps(run_json(document), indent=2) + "\n"
