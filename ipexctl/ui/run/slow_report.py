"""Describe slow ranks and links of a run for `why` and the page of a run, as text and as JSON.

A fix only inspects, or changes how the next run starts. It never ends a process, which may be a colleague's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from ipexctl.homes.registry import RunRecord
from ipexctl.hosts.nodeset import fold
from ipexctl.node.common.fix import Fix, FixCommand, clauses, ipexctl_command, join_fixes
from ipexctl.node.common.records import FINAL
from ipexctl.node.run.run_replies import SuspectSnapshot
from ipexctl.run.ranks import name_ranks
from ipexctl.run.why.slow_verdict import CauseKind, LinkFinding, SlowFinding, SlowVerdict
from ipexctl.run.why.why import WhyResult
from ipexctl.text import LOOK_AT_LINK, format_clock, format_count, rough_duration
from ipexctl.ui.message_output import fold_fix, fold_text, paint
from ipexctl.ui.run.end_of_run import amx_text, network_text

_MOST_SHOWN: Final = 3
"""Slow ranks and links that a text describes; the others are counted."""
_CONFIDENCE: Final = {"likely": "likely cause", "possible": "possible cause", "insufficient": "cause"}
_NO_VERDICT: Final = {
    "no-windows": (
        "its record has no measured steps",
        "try again 10 s after the first step: `ipexctl why {run}`; steps are counted unless the run has --no-meter",
    ),
    "too-short": (
        "it has too few steps",
        "a verdict needs three windows in a row of at least 10 s and 30 steps; try again later: `ipexctl why {run}`",
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
"""Why ranks cannot be compared → the sentence and the fix, for a live run."""
_FIX_WHEN_OVER: Final = {
    "no-windows": "ipexctl counts the steps of torch's optimizers, unless the run has --no-meter",
    "too-short": (
        "a verdict needs three windows in a row of at least 10 s and 30 steps; for its throughput: `ipexctl why {run}`"
    ),
    "no-own-time": "for its throughput: `ipexctl why {run}`",
    "one-rank": "for its throughput: `ipexctl why {run}`",
}
"""The same → the fix, if the run is over and it is another one."""
_SPINS: Final = (
    "ranks that wait under oneCCL and MPI use their processor, too: a slow rank shows only if it waits for a processor "
    "or for data, not if it has more work or a slow processor"
)


class ToldRun(NamedTuple):
    """A run, and whether it is over: the tense of the sentences and the commands to type depend on it."""

    record: RunRecord
    is_over: bool

    @classmethod
    def of(cls, answer: WhyResult) -> ToldRun:
        """Return the run of an answer of `why`."""
        return cls(answer.record, answer.state in FINAL)


def sentence_of(findings: Sequence[SlowFinding], run: ToldRun) -> str:
    """Return `rank 3 on node2 is slow: …` or `ranks 2-3 on node2 are slow: …`, with percent and time.

    `findings`: of one host, the worst first.
    """
    start, end = min(finding.start for finding in findings), max(finding.end for finding in findings)
    verb, when = _verb_and_time(replace(findings[0], start=start, end=end), run)
    percent = f"{max(finding.percent for finding in findings):.0f} % of a step longer than the other ranks', {when}"
    if len(findings) == 1:
        return f"{name_ranks(findings)} {verb} slow: its own time {verb} {percent}"
    plural = {"is": "are", "was": "were"}[verb]
    return f"{name_ranks(findings)} {plural} slow: their own time {verb} up to {percent}"


def _verb_and_time(finding: SlowFinding | LinkFinding, run: ToldRun) -> tuple[str, str]:
    """Return `is` and since when, or `was` and from when to when."""
    since, until = format_clock(finding.start), format_clock(finding.end)
    return ("is", f"since {since}") if finding.is_current and not run.is_over else ("was", f"from {since} to {until}")


def cost_of(finding: SlowFinding, ranks: int) -> str:
    """Return how much time the slow ranks cost."""
    without, lost = "it" if ranks == 1 else "them", rough_duration(finding.cost_seconds)
    return f"without {without}, steps would take up to {finding.cost_percent:.0f} % less time: {lost} were lost"


def reason_of(finding: SlowFinding) -> str:
    """Return why the rank is slow, with the figures that show it."""
    evidence, snapshot = finding.evidence, finding.evidence.look
    who = "ranks" if _is_of_run(snapshot) else "programs"
    queue = f"its main thread waited longer for a processor, by {_percent(evidence.queue_more)} of the time"
    compute = f"it ran longer on its processor, by {_percent(evidence.cpu_more)} of the time"
    samples = 100 * ((evidence.samples_ratio or 1) - 1)
    reasons: dict[CauseKind, str] = {
        "other-programs": f"other {who} use its cores: {_programs(snapshot)}; {queue}"
        if finding.cause.confidence == "likely"
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
    return reasons[finding.cause.kind]


def fix_of(finding: SlowFinding, run: ToldRun) -> str:
    """Return what to type; clauses are separated by semicolons. Stacks and processes need a run that is alive."""
    host, (record, is_over) = finding.host, run
    word = "last" if is_over else record.id
    next_run = "during the next run, " if is_over else ""
    without = Fix("start the next run without it: {again}", again=_again(record, "-l", f"!{host}"))
    later = without if len(record.plan.hosts) > 1 else ""
    top = Fix(f"see what runs there: `ipexctl exec -l {host} -- top -b -n 1`")
    stacks = Fix(f"`ipexctl why {word} --stacks -r {finding.rank}`").commands[0]
    where = Fix("{next_run}see where it is: {stacks}", next_run=next_run, stacks=stacks)
    waiting = Fix("{next_run}see where its workers wait: `{stacks} --all`", next_run=next_run, stacks=stacks)
    this_run = "a" if is_over else "the"
    naming = Fix(f"while {this_run} rank is slow, this names the process: `ipexctl why {word}`")
    compare = Fix(f"{'' if is_over else 'when the run is over, '}compare the hosts: `ipexctl doctor --smoke`")
    limits = Fix(f"`ipexctl doctor -l {host}`")
    fixes: dict[CauseKind, Sequence[str]] = {
        "other-programs": _fix_programs(finding, record, later)
        if finding.cause.confidence == "likely"
        else (
            top,
            Fix("see its limits: {limits}", limits=limits),
            *([naming] if finding.evidence.look is None else []),
        ),
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
        if finding.evidence.has_more_samples
        else (where, compare),
        "unknown": (where, top, compare),
    }
    return record.call_text(record.call_options.apply(join_fixes(fixes[finding.cause.kind])))


def _fix_programs(finding: SlowFinding, record: RunRecord, later: str) -> Sequence[str]:
    """Return how to inspect the processes of other programs, or to give other ranks of this run their own cores."""
    snapshot, host = finding.evidence.look, finding.host
    pids = [str(process.pid) for process in snapshot.others if not process.is_of_run] if snapshot is not None else []
    if _is_of_run(snapshot):
        return (Fix("give each rank its own cores: {again}", again=_again(record, "--bind", "cores")),)
    seen = Fix(f"see what runs there: `ipexctl exec -l {host} -- top -b -n 1`")
    if pids:
        see = "see what it is: `ipexctl exec -l {host} -- ps -o pid,user,lstart,args -p {pids}`"
        seen = Fix(see, host=host, pids=",".join(pids))
    return seen, "ask its user to move it", later


def _again(record: RunRecord, *options: str) -> FixCommand:
    """Return the command that starts the run again with these options; only the options if the run cannot be
    resumed.
    """
    return ipexctl_command("run", "--resume", record.id, *options) if record.resume_command else FixCommand("", options)


def link_sentence(link: LinkFinding, run: ToldRun) -> str:
    """Return that a network link is slow."""
    speed, (verb, when) = 8 * link.bytes_per_s / 1e9, _verb_and_time(link, run)
    return (
        f"the network between {fold(link.hosts)} {verb} slow: {speed:.2g} Gbit/s while gradients pass it, {when}; "
        f"transfers and waiting for them take {_percent(link.transfer)} of a step"
    )


def link_fix(link: LinkFinding, run: ToldRun) -> str:
    """Return how to inspect the link."""
    fix = Fix(
        "{look}; `ipexctl exec -l {host} -- ip -s link`; {later}measure each link: `ipexctl doctor --smoke`",
        look=LOOK_AT_LINK.format(there=""),
        host=link.hosts[0],
        later="" if run.is_over else "when the run is over, ",
    )
    return run.record.call_text(run.record.call_options.apply(fix))


class SlowEntry(NamedTuple):
    """A slow rank or link as text. The texts are not escaped."""

    headline: str
    details: tuple[str, ...]
    fixes: tuple[str, ...]


def slow_entries(run: ToldRun, verdict: SlowVerdict) -> list[SlowEntry]:
    """Return the slow ranks, those of a host with the same cause together, and the slow links."""
    entries = []
    groups: dict[tuple[str, CauseKind, bool], list[SlowFinding]] = {}
    for finding in verdict.findings:
        groups.setdefault((finding.host, finding.cause.kind, finding.is_current), []).append(finding)
    for findings in groups.values():
        worst = findings[0]
        reason = f"{_CONFIDENCE[worst.cause.confidence]}: {reason_of(worst)}"
        if len(findings) > 1:
            reason += f" (rank {worst.rank}, the slowest)"
        fixes = clauses(fix_of(worst, run))
        details = (cost_of(worst, len(findings)), reason)
        entries.append(SlowEntry(sentence_of(findings, run), details, fixes))
    for link in verdict.links:
        fixes = clauses(link_fix(link, run))
        entries.append(SlowEntry(link_sentence(link, run), (), fixes))
    return entries


def slow_lines(
    answer: WhyResult, columns: int = 0, *, colors: bool = False, closing: Iterable[str] = ()
) -> Iterator[str]:
    """Yield the lines of slow ranks and links, then the sentences of `closing`.

    With `columns` 0, lines are not wrapped, for grep.
    """
    record = answer.record
    entries = slow_entries(ToldRun.of(answer), answer.slow)
    for number, entry in enumerate(entries[:_MOST_SHOWN]):
        yield from [""] if number else []
        yield from (paint(line, "1", on=colors) for line in fold_text(entry.headline, columns))
        for detail in entry.details:
            yield from fold_text(detail, columns, "  ")
        for fix in entry.fixes:
            yield from fold_fix(fix, columns)
    if more := len(entries[_MOST_SHOWN:]):
        yield record.call_text(Fix(f"{more} more: `ipexctl why {record.id} --json`"))
    if answer.look_error:
        yield from fold_text(f"{answer.look_error}; so it is unknown who uses its cores", columns)
    for text in closing:
        yield from fold_fix(text, columns) if isinstance(text, Fix) else fold_text(text, columns)


def comparison_lines(run: ToldRun, verdict: SlowVerdict) -> Iterator[str]:
    """Yield why the ranks cannot be compared, or that none is slow."""
    if verdict.unjudged:
        reason, fix = _NO_VERDICT[verdict.unjudged]
        if run.is_over:
            fix = _FIX_WHEN_OVER.get(verdict.unjudged, fix)
        yield f"the ranks of run {run.record.id} cannot be compared: {reason}"
        yield run.record.call_text(Fix(fix, run=run.record.id))
        return
    if not verdict.findings and not verdict.links:
        windows = f"{format_count(verdict.windows, 'window')} ({rough_duration(verdict.seconds)} in total)"
        yield f"no rank of run {run.record.id} is slow in {windows}"
    if verdict.waiting == "spins":
        yield _SPINS


def cost_lines(verdict: SlowVerdict) -> Iterator[str]:
    """Yield what the network costs, and which part of a processor is idle."""
    return filter(None, (network_text(verdict.network), amx_text(verdict.amx_idle, verdict.levers)))


def _percent(part: float | None) -> str:
    """Format a share; 0 % if it is negative or unknown."""
    return f"{100 * max(0.0, part or 0.0):.0f} %"


def _is_of_run(snapshot: SuspectSnapshot | None) -> bool:
    """True if only other ranks of the run were seen on the rank's cores."""
    return snapshot is not None and bool(snapshot.others) and all(process.is_of_run for process in snapshot.others)


def _programs(snapshot: SuspectSnapshot | None) -> str:
    """Describe the programs on the rank's cores."""
    if snapshot is None or not snapshot.others:
        unseen = snapshot and snapshot.unseen_share
        return f"{_percent(unseen)} of a processor goes to processes that this account cannot see"
    return ", ".join(
        f"{process.command} (pid {process.pid}, {'of this run' if process.is_of_run else f'user {process.user}'}) has "
        f"{_percent(process.share)} of a processor"
        for process in snapshot.others
    )
