"""Output of `ipexctl slow` as text or JSON, its line for `why`, and its section of the page. A fix only inspects, or
changes how the next run starts; it never ends a process, which may be a colleague's.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from ipexctl.extras.slow.slow import SlowResult, verdict_of
from ipexctl.extras.slow.slow_verdict import CauseKind, LinkFinding, SlowFinding, SlowVerdict
from ipexctl.hosts.nodeset import fold
from ipexctl.node.common.fix import Fix, FixCommand, clauses, ipexctl_command, join_fixes
from ipexctl.node.common.records import FINAL, NetworkCost, RunStatus
from ipexctl.node.run.run_replies import SuspectSnapshot
from ipexctl.run.profile import lines_of as profile_lines
from ipexctl.run.registry import RunRecord
from ipexctl.run.windows import RunWindows
from ipexctl.text import LOOK_AT_LINK, format_clock, format_count, printable, rough_duration
from ipexctl.ui.messages import paint, wants_color, wrap_fix, wrap_text
from ipexctl.ui.results import value_json
from ipexctl.ui.run.end_of_run import amx_text, network_text
from ipexctl.ui.text_table import print_lines

SCHEMA: Final = "ipexctl.slow/1"
_WIDE: Final = 100
_CONFIDENCE: Final = {"likely": "likely cause", "possible": "possible cause", "insufficient": "cause"}
_NO_VERDICT: Final = {
    "no-windows": (
        "its record has no measured steps",
        "try again 10 s after the first step: `ipexctl slow {run}`; steps are counted unless the run has --no-meter",
    ),
    "too-short": (
        "it has too few steps",
        "a verdict needs three windows in a row of at least 10 s and 30 steps; try again later: `ipexctl slow {run}`",
    ),
    "no-own-time": (
        "the time its threads spent on a processor is unknown",
        "see where each rank is: `ipexctl why {run} --stacks`",
    ),
    "independent": (
        "its ranks don't wait for each other (--backend none)",
        "compare their throughput: `ipexctl ps --json`",
    ),
    "not-together": ("its ranks do not step together", "compare their throughput: `ipexctl ps --json`"),
    "one-rank": ("it has only one rank", "see where it is: `ipexctl why {run} --stacks`"),
}
_FIX_WHEN_OVER: Final = {
    "no-windows": "ipexctl counts the steps of torch's optimizers, unless the run has --no-meter",
    "too-short": (
        "a verdict needs three windows in a row of at least 10 s and 30 steps; for its throughput: `ipexctl why {run}`"
    ),
    "no-own-time": "for its throughput: `ipexctl why {run}`",
    "one-rank": "for its throughput: `ipexctl why {run}`",
}
_SPINS: Final = (
    "ranks that wait under oneCCL and MPI use their processor, too: a slow rank shows only if it waits for a processor "
    "or for data, not if it has more work or a slow processor"
)


def as_json(result: SlowResult) -> dict[str, Any]:
    record, verdict = result.record, result.verdict
    plan = record.plan
    return {
        "schema": SCHEMA,
        "run": {"id": record.id, "script": plan.script, "state": result.state, "world_size": plan.world_size},
        "findings": [_finding_json(found, record, is_over=result.state in FINAL) for found in verdict.findings],
        "links": [_link_json(link, record) for link in verdict.links],
        "windows": verdict.windows,
        "seconds": round(verdict.seconds, 1),
        "waiting": verdict.waiting,
        "network": value_json(verdict.network),
        "amx_idle": list(verdict.amx_idle),
        "profile": result.profile and result.profile.document(),
        "unjudged": verdict.unjudged,
        "from_copy": result.from_copy,
        "reason": printable(f"{record.node0.name}: {result.error.reason}") if result.error is not None else "",
        "look_error": printable(result.look_error),
    }


def _finding_json(found: SlowFinding, record: RunRecord, *, is_over: bool) -> dict[str, Any]:
    return {
        "rank": found.rank,
        "host": printable(found.host) or None,
        "percent": round(found.percent, 1),
        "cost_percent": round(found.cost_percent, 1),
        "cost_seconds": round(found.cost_seconds, 1),
        "cause": found.cause.kind,
        "confidence": found.cause.confidence,
        "evidence": value_json(found.evidence),
        "sentence": printable(sentence_of(found)),
        "reason": printable(reason_of(found)),
        "fix": printable(fix_of(found, record, is_over=is_over)),
        "since": found.start,
        "until": found.end,
        "windows": found.windows,
        "current": found.is_current,
    }


def _link_json(link: LinkFinding, record: RunRecord) -> dict[str, Any]:
    return {
        "hosts": value_json(link.hosts),
        "cause": "link",
        "transfer_percent": round(100 * link.transfer, 1),
        "bytes_per_s": link.bytes_per_s,
        "sentence": printable(link_sentence(link)),
        "fix": printable(link_fix(link, record)),
        "since": link.start,
        "until": link.end,
        "windows": link.windows,
        "current": link.is_current,
    }


def sentence_of(found: SlowFinding) -> str:
    """Return `rank 3 on node2 is slow: …`, with percent and time."""
    verb = "is" if found.is_current else "was"
    return (
        f"rank {found.rank} on {found.host} {verb} slow: its own time is {found.percent:.0f} % of a step longer than "
        f"the other ranks', {_when(found)}"
    )


def _when(found: SlowFinding | LinkFinding) -> str:
    since, until = format_clock(found.start), format_clock(found.end)
    return f"since {since}" if found.is_current else f"from {since} to {until}"


def cost_of(found: SlowFinding) -> str:
    lost = rough_duration(found.cost_seconds)
    return f"without it, steps would take up to {found.cost_percent:.0f} % less time: {lost} were lost"


def reason_of(found: SlowFinding) -> str:
    evidence, snapshot = found.evidence, found.evidence.look
    who = "ranks" if _is_of_run(snapshot) else "programs"
    queue = f"its main thread waited longer for a processor, by {_percent(evidence.queue_more)} of the time"
    compute = f"it ran longer on its processor, by {_percent(evidence.cpu_more)} of the time"
    samples = 100 * ((evidence.samples_ratio or 1) - 1)
    reasons: dict[CauseKind, str] = {
        "other-programs": f"other {who} use its cores: {_programs(snapshot)}; {queue}"
        if found.cause.confidence == "likely"
        else f"other programs, other ranks or a limit of its processor time (which one is unknown): {queue}",
        "slower-cores": f"its cores are slower than the other hosts': {evidence.mhz or 0:.0f} MHz, the others "
        f"{evidence.usual_mhz or 0:.0f} MHz, and {compute}",
        "data": f"its data arrives late: it waited longer for data, by {_percent(evidence.data_more)} of the time",
        "memory": f"its host lacks memory: it read {evidence.faults_more or 0:.0f} pages a second from disk",
        "more-work": f"it has more data: {samples:.0f} % more samples; {compute}"
        if evidence.has_more_samples
        else f"more work in this rank, or slower memory: {compute}; without processor counters, ipexctl can't "
        "tell the two apart",
        "unknown": "insufficient evidence: what was measured explains less than half of it"
        if evidence.cpu_more is None or evidence.queue_more is None
        else f"more work in this rank, or other programs on its cores (which one is unknown); {compute}, and {queue}",
    }
    return reasons[found.cause.kind]


def fix_of(found: SlowFinding, record: RunRecord, *, is_over: bool) -> str:
    """What to type; clauses end with semicolons. Stacks and processes need a run that still runs."""
    host, run = found.host, "last" if is_over else record.id
    next_run = "during the next run, " if is_over else ""
    later = Fix("start the next run without it: {again}", again=_again(record, "-l", f"!{host}"))
    top = Fix(f"see what runs there: `ipexctl exec -l {host} -- top -b -n 1`")
    stacks = Fix(f"`ipexctl why {run} --stacks -r {found.rank}`").commands[0]
    where = Fix("{next_run}see where it is: {stacks}", next_run=next_run, stacks=stacks)
    waiting = Fix("{next_run}see where its workers wait: `{stacks} --all`", next_run=next_run, stacks=stacks)
    naming = Fix(f"while {'a' if is_over else 'the'} rank is slow, this names the process: `ipexctl slow {run}`")
    compare = Fix(f"{'' if is_over else 'when the run is over, '}compare the hosts: `ipexctl doctor --smoke`")
    limits = Fix(f"`ipexctl doctor -l {host}`")
    fixes: dict[CauseKind, Sequence[str]] = {
        "other-programs": _fix_programs(found, record, later)
        if found.cause.confidence == "likely"
        else (top, Fix("see its limits: {limits}", limits=limits), naming),
        "slower-cores": (
            Fix("ask its administrator to check governor, cooling and power limits: {limits}", limits=limits),
            later,
        ),
        "data": (
            waiting,
            "in the next run, give the DataLoader more workers",
            Fix("copy the data to a disk of each host with `ipexctl push`"),
        ),
        "memory": ("use less memory on that host, such as fewer ranks or a smaller batch", top),
        "more-work": ("give each rank equally many samples of similar length: DistributedSampler, or batches by size",)
        if found.evidence.has_more_samples
        else (where, compare),
        "unknown": (where, top, compare),
    }
    return record.call_options.apply(join_fixes(fixes[found.cause.kind]))


def _fix_programs(found: SlowFinding, record: RunRecord, later: str) -> Sequence[str]:
    """Inspect processes of other programs; give other ranks of this run their own cores."""
    snapshot, host = found.evidence.look, found.host
    pids = [str(process.pid) for process in snapshot.others if not process.is_of_run] if snapshot is not None else []
    if _is_of_run(snapshot):
        return (Fix("give each rank its own cores: {again}", again=_again(record, "--bind", "cores")),)
    seen = Fix(f"see what runs there: `ipexctl exec -l {host} -- top -b -n 1`")
    if pids:
        see = "see what it is: `ipexctl exec -l {host} -- ps -o pid,user,lstart,args -p {pids}`"
        seen = Fix(see, host=host, pids=",".join(pids))
    return seen, "ask its user to move it", later


def _again(record: RunRecord, *options: str) -> FixCommand:
    return ipexctl_command("run", "--resume", record.id, *options) if record.resume_command else FixCommand("", options)


def link_sentence(link: LinkFinding) -> str:
    speed = 8 * link.bytes_per_s / 1e9
    return (
        f"the network between {fold(link.hosts)} is slow: {speed:.2g} Gbit/s while gradients pass it, {_when(link)}; "
        f"transfers and waiting for them take {_percent(link.transfer)} of a step"
    )


def link_fix(link: LinkFinding, record: RunRecord) -> str:
    fix = Fix(
        "{look}; `ipexctl exec -l {host} -- ip -s link`; when the run is over, measure each link: `ipexctl doctor "
        "--smoke`",
        look=LOOK_AT_LINK.format(there=""),
        host=link.hosts[0],
    )
    return record.call_options.apply(fix)


def show(result: SlowResult, *, quiet: bool = False, no_color: bool = False) -> None:
    del quiet
    terminal = sys.stdout.isatty()
    columns = shutil.get_terminal_size().columns if terminal else 0
    print_lines(lines_of(result, columns, colors=wants_color(sys.stdout, no_color=no_color)))


def lines_of(result: SlowResult, columns: int = 0, *, colors: bool = False) -> Iterator[str]:
    """The lines of the verdict; with `columns` 0 they are not wrapped, for grep."""
    record, verdict = result.record, result.verdict
    width = min(columns, _WIDE) if columns else 0
    for number, entry in enumerate(section_of(record, verdict, is_over=result.state in FINAL).entries):
        yield from [""] if number else []
        for line in _folded(entry.headline, width, ""):
            yield paint(line, "1", on=colors)
        for detail in entry.details:
            yield from _folded(detail, width, "  ")
        yield from _fix(entry.fixes, width)
    yield from _folded_all(_closing(result), width)


def _closing(result: SlowResult) -> Iterator[str]:
    record, verdict = result.record, result.verdict
    if result.error is not None:
        source = (
            "this is from the copy on the control machine"
            if result.from_copy
            else "the control machine has no copy of the run"
        )
        yield f"{record.node0.name}: {result.error.reason}; {source}"
        if not result.from_copy:
            yield from [f"  {result.error.advice}"] if result.error.advice else []
            return
    yield from _verdict_lines(record, verdict, is_over=result.state in FINAL)
    yield from profile_lines(result.profile)
    if result.look_error:
        yield f"{result.look_error}; so it is unknown who uses its cores"


def _verdict_lines(record: RunRecord, verdict: SlowVerdict, *, is_over: bool) -> Iterator[str]:
    if verdict.unjudged:
        reason, fix = _NO_VERDICT[verdict.unjudged]
        if is_over:
            fix = _FIX_WHEN_OVER.get(verdict.unjudged, fix)
        yield f"the ranks of run {record.id} cannot be compared: {reason}"
        yield Fix(f"  {fix}", run=record.id)
    elif not verdict.findings and not verdict.links:
        windows = f"{format_count(verdict.windows, 'window')} ({rough_duration(verdict.seconds)} in total)"
        yield f"no rank of run {record.id} is slow in {windows}"
    yield from filter(None, (network_text(verdict.network), amx_text(verdict.amx_idle, verdict.levers)))
    if verdict.waiting == "spins" and not verdict.unjudged:
        yield _SPINS


class SlowEntry(NamedTuple):
    """The texts are neither made printable nor escaped."""

    headline: str
    details: tuple[str, ...]
    fixes: tuple[str, ...]


class SlowSection(NamedTuple):
    entries: tuple[SlowEntry, ...]
    closing: tuple[str, ...]


def section_of(record: RunRecord, verdict: SlowVerdict, *, is_over: bool) -> SlowSection:
    entries = []
    for found in verdict.findings:
        details = (cost_of(found), f"{_CONFIDENCE[found.cause.confidence]}: {reason_of(found)}")
        entries.append(SlowEntry(sentence_of(found), details, clauses(fix_of(found, record, is_over=is_over))))
    entries += [SlowEntry(link_sentence(link), (), clauses(link_fix(link, record))) for link in verdict.links]
    return SlowSection(tuple(entries), tuple(line.strip() for line in _verdict_lines(record, verdict, is_over=is_over)))


@dataclass(frozen=True, slots=True)
class VerdictOfRun:
    verdict: SlowVerdict

    @property
    def network(self) -> NetworkCost | None:
        return self.verdict.network

    def line(self, run: str, *, is_over: bool) -> str:
        found, link = self._worst
        verb = "was" if is_over else "is"
        if found is not None:
            text = f"rank {found.rank} on {found.host} {verb} slow, by {found.percent:.0f} % of a step"
        elif link is not None:
            text = f"the network between {fold(link.hosts)} {verb} slow"
        else:
            return ""
        return Fix(f"{printable(text)}: `ipexctl slow {run}`")

    def document(self) -> dict[str, Any] | None:
        found, link = self._worst
        if found is not None:
            host = printable(found.host) or None
            return {"rank": found.rank, "host": host, "percent": round(found.percent, 1), "cause": found.cause.kind}
        if link is not None:
            return {"rank": None, "host": printable(link.hosts[0]), "percent": None, "cause": "link"}
        return None

    @property
    def _worst(self) -> tuple[SlowFinding | None, LinkFinding | None]:
        """The problem that lasts until the last window: a rank, else a link."""
        found = next((found for found in self.verdict.findings if found.is_current), None)
        return found, next((link for link in self.verdict.links if link.is_current), None)


def of_windows(windows: RunWindows, status: RunStatus, plan: Mapping[str, Any]) -> VerdictOfRun:
    """The verdict for `why` and the page of a run. `plan` as in plan.json, or as much of it as exists."""
    return VerdictOfRun(verdict_of(windows, status, plan))


def _folded_all(lines: Iterator[str], width: int) -> Iterator[str]:
    for line in lines:
        indent = line[: len(line) - len(line.lstrip())]
        yield from _folded(line.lstrip(), width, indent)


def _folded(text: str, width: int, indent: str) -> Iterator[str]:
    if not width:
        yield indent + printable(text)
        return
    yield from wrap_text(text, width, indent, indent + "  ") or [indent]


def _fix(fixes: Sequence[str], width: int) -> Iterator[str]:
    shown = wrap_fix(join_fixes(fixes), width, "  ", "    ") if width else [f"  {printable(fix)}" for fix in fixes]
    yield from shown


def _percent(part: float | None) -> str:
    return f"{100 * max(0.0, part or 0.0):.0f} %"


def _is_of_run(snapshot: SuspectSnapshot | None) -> bool:
    """True if only other ranks of the run were seen on its cores."""
    return snapshot is not None and bool(snapshot.others) and all(process.is_of_run for process in snapshot.others)


def _programs(snapshot: SuspectSnapshot | None) -> str:
    if snapshot is None or not snapshot.others:
        unseen = snapshot and snapshot.unseen_share
        return f"{_percent(unseen)} of a processor goes to processes that this account cannot see"
    return ", ".join(
        f"{process.command} (pid {process.pid}, {'of this run' if process.is_of_run else f'user {process.user}'}) has "
        f"{_percent(process.share)} of a processor"
        for process in snapshot.others
    )
