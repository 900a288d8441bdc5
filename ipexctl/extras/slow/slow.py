"""Reads the windows of a run, judges them, and inspects the host of the worst suspect if that can tell more. Exit code:
0 with a verdict, even if a rank is slow; 1 if no verdict is possible; 3 if node0 can't be reached and nothing is known
here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Any

from ipexctl.api.known_runs import CallWatcher, node0_of
from ipexctl.extras.slow.slow_verdict import RunSetup, SlowFinding, SlowVerdict, find_slow_ranks, needs_snapshot
from ipexctl.hosts.host import Host
from ipexctl.limits import SLOW_ANSWER
from ipexctl.node.common.files import RunReference, read_json
from ipexctl.node.common.records import RunStatus, read_status
from ipexctl.node.run.rates import waiting_of
from ipexctl.node.run.run_replies import SuspectSnapshot
from ipexctl.node.run.slow_rank import SuspectRequest, plan_fields
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.node_call import call
from ipexctl.remote.outcome import Cancelled, HostError, Unreachable
from ipexctl.remote.session import Session
from ipexctl.run.local_copy import read_copy
from ipexctl.run.node0 import call_on_node0
from ipexctl.run.profile import RunProfile, profile_of
from ipexctl.run.registry import RunRecord, RunRegistry
from ipexctl.run.windows import RunWindows, fetch_windows, read_copied_windows


@dataclass(frozen=True, slots=True)
class SlowResult:
    record: RunRecord
    verdict: SlowVerdict
    state: str = "unknown"
    exit_code: int = 0
    error: HostError | None = None
    from_copy: bool = False
    look_error: str = ""
    """Why the suspect's host could not be inspected; begins with the host."""
    profile: RunProfile | None = None

    findings = property(attrgetter("verdict.findings"))
    links = property(attrgetter("verdict.links"))
    waiting = property(attrgetter("verdict.waiting"))
    network = property(attrgetter("verdict.network"))
    unjudged = property(attrgetter("verdict.unjudged"))


def slow_of_run(record: RunRecord, caller: CallWatcher, *, timeout: float | None) -> SlowResult:
    with node0_of(record, caller) as pool:
        return slow(record, pool.session, RunRegistry().directory, pool.cancel, timeout=timeout or SLOW_ANSWER)


def slow(
    record: RunRecord,
    open_session: Callable[[Host], Session],
    runs: Path,
    cancel: Cancel,
    *,
    timeout: float = SLOW_ANSWER,
) -> SlowResult:
    """Ask node0. If it can't be reached or has no record, read the copy in `runs`, the registry's directory."""
    try:
        session = open_session(record.node0)
        status, setup = _read_setup(session, record, timeout, cancel)
        windows = fetch_windows(session, record, cancel, timeout=timeout)
    except Cancelled:
        raise
    except HostError as error:
        return _from_copy(record, runs / record.id, error)
    result = _with_exit_code(
        SlowResult(
            record,
            find_slow_ranks(windows, setup),
            status.state,
            profile=profile_of(windows.profiles, record.plan.asked.omp),
        )
    )
    suspect = suspect_of(result.verdict) if status.state == "running" else None
    return result if suspect is None else _with_look(result, suspect, status, windows, setup, open_session, cancel)


def setup_of(status: RunStatus, backend: str, allreduce: str) -> RunSetup:
    hosts = {row.rank: row.host for row in status.ranks}
    waiting = waiting_of(backend, allreduce, len(set(hosts.values())))
    return RunSetup(hosts, waiting, status.network, status.levers, status.amx_idle)


def suspect_of(verdict: SlowVerdict) -> SlowFinding | None:
    """The worst rank that is slow now, if inspecting its host can tell more."""
    current = (found for found in verdict.findings if found.is_current)
    return next((found for found in current if needs_snapshot(found.cause)), None)


def verdict_of_copy(directory: Path) -> tuple[RunStatus, SlowVerdict]:
    status = read_status(read_json(directory / "status.json"))
    return status, verdict_of(read_copied_windows(directory), status, read_json(directory / "plan.json"))


def verdict_of(windows: RunWindows, status: RunStatus, plan: Mapping[str, Any]) -> SlowVerdict:
    """The verdict from the windows alone; `plan` as in plan.json, or as much of it as exists."""
    fields = plan_fields(plan)
    return find_slow_ranks(windows, setup_of(status, fields["backend"], fields["allreduce"]))


def _read_setup(session: Session, record: RunRecord, timeout: float, cancel: Cancel) -> tuple[RunStatus, RunSetup]:
    request: RunReference = {"home": record.home, "id": record.id}
    reply = call_on_node0(session, record, "run.slow_rank", "setup", request, timeout=timeout, cancel=cancel)
    status = read_status(reply["status"])
    return status, setup_of(status, reply.text("backend"), reply.text("allreduce"))


def _with_exit_code(result: SlowResult) -> SlowResult:
    has_answer = not result.verdict.unjudged or result.verdict.findings or result.verdict.links
    return replace(result, exit_code=0 if has_answer else 1)


def _with_look(
    result: SlowResult,
    suspect: SlowFinding,
    status: RunStatus,
    windows: RunWindows,
    setup: RunSetup,
    open_session: Callable[[Host], Session],
    cancel: Cancel,
) -> SlowResult:
    record, rank = result.record, suspect.rank
    host = next((host for host in record.nodes if host.name == suspect.host), None)
    row = next((row for row in status.ranks if row.rank == rank), None)
    if host is None or row is None or row.pid is None:
        return replace(result, look_error=f"{suspect.host}: the run's record does not say how to reach it")
    request: SuspectRequest = {"home": record.home, "id": record.id, "pid": row.pid}
    try:
        reply = call(
            open_session(host),
            "run.slow_rank",
            "inspect",
            request,
            python=record.python if host == record.node0 else "",
            home=record.home,
            label="look at the slow rank",
            timeout=SLOW_ANSWER,
            cancel=cancel,
        )
        snapshot = reply.decode(SuspectSnapshot)
    except Cancelled:
        raise
    except HostError as error:
        return replace(result, look_error=f"{suspect.host}: {error.reason}")
    return replace(result, verdict=find_slow_ranks(windows, setup, {rank: snapshot}))


def _from_copy(record: RunRecord, directory: Path, error: HostError) -> SlowResult:
    copy = read_copy(directory)
    code = 3 if isinstance(error, Unreachable) else 1
    if copy is None or not copy.is_complete:
        return SlowResult(record, SlowVerdict(unjudged="no-windows"), exit_code=code, error=error)
    status, verdict = verdict_of_copy(directory)
    profile = profile_of(read_copied_windows(directory).profiles, record.plan.asked.omp)
    return _with_exit_code(SlowResult(record, verdict, status.state, error=error, from_copy=True, profile=profile))
