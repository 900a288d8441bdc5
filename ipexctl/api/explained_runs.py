"""The steps of why: explain what ended a run, and get the stacks and a profile of a live run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ipexctl.api.known_runs import CallWatcher, node0_of
from ipexctl.errors import CallError
from ipexctl.homes.registry import LAST, RunRecord, RunRegistry, read_failed_call
from ipexctl.node.common.records import RunStatus
from ipexctl.projects.root import ProjectHere
from ipexctl.run.stack_dump import Dump, ProfileAnswer, request_profile
from ipexctl.run.stack_dump import dump as dump_stacks
from ipexctl.run.why.why import WhyResult, mention_failed_call, mention_page
from ipexctl.run.why.why import why as explain


def dump(record: RunRecord, caller: CallWatcher, ranks: Sequence[int] | None = None) -> Dump | RunStatus:
    """Return the Python stacks of these ranks, or of all; the status if the run is not alive."""
    with node0_of(record, caller) as pool:
        return dump_stacks(pool.session(record.node0), record, ranks)


def profile(record: RunRecord, caller: CallWatcher) -> ProfileAnswer | RunStatus:
    """Profile the next steps. Returns the ranks without a profile; the status if the run is not alive.

    Raises a CallError if the run counts no steps.
    """
    if not record.plan.asked.meter:
        raise CallError(f"run {record.id} counts no optimizer steps", fix="start it without --no-meter to profile it")
    with node0_of(record, caller) as pool:
        return request_profile(pool.session(record.node0), record)


def why(record: RunRecord, caller: CallWatcher, *, word: str = "") -> WhyResult:
    """Explain the run. If node0 does not answer, the local copy is what there is to explain.

    `word`: what named the run. With `last` or `last:all`, a later call that started no run is mentioned.
    """
    directory = RunRegistry().directory
    with node0_of(record, caller) as pool:
        result = explain(record, pool.session, directory, pool.cancel)
    failed = read_failed_call(directory) if word in LAST else None
    if failed is not None and (word == "last:all" or ProjectHere.find().has(failed.directory, "")):
        result = mention_failed_call(result, failed)
    result = mention_page(result)
    if record.is_kept:
        return result
    diagnosis = result.diagnosis
    cause = diagnosis.cause and replace(diagnosis.cause, fix=record.call_text(diagnosis.cause.fix))
    commands = tuple(map(record.call_text, diagnosis.next))
    return replace(result, diagnosis=replace(diagnosis, cause=cause, next=commands))
