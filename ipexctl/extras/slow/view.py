"""Output of `ipexctl slow` as text or JSON, its one line for `why`, and its section of the page.

In: a `SlowResult`; out: for each slow rank and each slow link what it costs, the cause with the figures behind it, and
what to type. The rules: a sentence says how sure it is; a command only looks, or starts the next run in another way,
and never ends a process, as the one that disturbs may be the work of a colleague; names that processes gave themselves
and texts of hosts are made printable. Without a slow rank, it says how much was judged, and what could not be seen.
"""

from __future__ import annotations

import shlex
import shutil
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ipexctl.extras.slow.slow import verdict_of
from ipexctl.hosts.nodeset import fold
from ipexctl.node.common.records import FINAL
from ipexctl.peers import LOOK_AT_LINK
from ipexctl.text import counted, format_clock, printable, rough_duration
from ipexctl.ui.messages import paint, wants_color
from ipexctl.ui.paragraph import wrapped, wrapped_fix
from ipexctl.ui.results import value_json
from ipexctl.ui.run.summary import network_text
from ipexctl.ui.table import print_lines

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ipexctl.extras.slow.network import LinkFinding
    from ipexctl.extras.slow.slow import SlowResult
    from ipexctl.extras.slow.verdict import SlowFinding, SlowVerdict
    from ipexctl.node.common.records import NetworkCost, RunStatus
    from ipexctl.node.run.replies import SuspectLook
    from ipexctl.run.registry import RunRecord
    from ipexctl.run.windows import RunWindows

SCHEMA: Final = "ipexctl.slow/1"
_WIDE: Final = 100
_CONFIDENCE: Final = {"likely": "likely cause", "possible": "possible cause", "insufficient": "cause"}
_NOT_JUDGED: Final = {
    "older-version": ("an older version of ipexctl wrote its figures", "its throughput: ipexctl why {run}"),
    "no-windows": (
        "its record has no measured steps",
        "once more 10 s after the first step: ipexctl slow {run}; steps are counted unless the run has --no-meter",
    ),
    "too-short": (
        "it has too few steps",
        "a verdict needs three windows in a row of at least 10 s and 30 steps; once more later: ipexctl slow {run}",
    ),
    "no-own-time": (
        "it is not known how long its threads were on a processor",
        "see where each rank is: ipexctl dump {run}",
    ),
    "independent": ("its ranks wait for nobody (--backend none)", "compare their throughput: ipexctl ps --json"),
    "not-together": ("its ranks do not step together", "compare their throughput: ipexctl ps --json"),
    "one-rank": ("it has one rank, which waits for nobody", "see where it is: ipexctl dump {run}"),
}
_FIX_WHEN_OVER: Final = {
    "no-windows": "steps of torch's optimizers are counted unless the run has --no-meter: docs/run.md says how",
    "too-short": (
        "a verdict needs three windows in a row of at least 10 s and 30 steps; its throughput: ipexctl why {run}"
    ),
    "no-own-time": "its throughput: ipexctl why {run}",
    "one-rank": "its throughput: ipexctl why {run}",
}
"""What to type instead where the run is over."""
_SPINS: Final = (
    "ranks that wait under oneCCL and MPI use their processor, too: of a slow rank only the wait for a processor and "
    "for data is seen, and not more work or a slow processor"
)


def as_json(result: SlowResult) -> dict[str, Any]:
    record, verdict = result.record, result.verdict
    return {
        "schema": SCHEMA,
        "run": {"id": record.id, "script": record.script, "state": result.state, "world_size": record.world_size},
        "findings": [_finding_json(found, record, is_over=result.state in FINAL) for found in verdict.findings],
        "links": [_link_json(link, record) for link in verdict.links],
        "crowded": value_json(verdict.crowded),
        "windows": verdict.windows,
        "seconds": round(verdict.seconds, 1),
        "waiting": verdict.waiting,
        "network": value_json(verdict.network),
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
        "cause": link.kind,
        "transfer_percent": None if link.transfer is None else round(100 * link.transfer, 1),
        "resent_percent": None if link.resent is None else round(100 * link.resent, 2),
        "bytes_per_s": link.bytes_per_s,
        "sentence": printable(link_sentence(link)),
        "fix": printable(link_fix(link, record)),
        "since": link.start,
        "until": link.end,
        "windows": link.windows,
        "current": link.is_current,
    }


def sentence_of(found: SlowFinding) -> str:
    """`rank 3 on node2 is slow: …`, with the percent and the time."""
    since, until = format_clock(found.start), format_clock(found.end)
    when = f"since {since}" if found.is_current else f"from {since} to {until}"
    if found.rank is None:
        verb = "wait" if found.is_current else "waited"
        return f"all ranks {verb} for data for {found.percent:.0f} % of each step, {when}"
    verb = "is" if found.is_current else "was"
    return (
        f"rank {found.rank} on {found.host} {verb} slow: its own time is {found.percent:.0f} % of a step longer than "
        f"that of the other ranks, {when}"
    )


def cost_of(found: SlowFinding) -> str:
    if found.rank is None:
        return f"{rough_duration(found.cost_seconds)} were waited for data"
    lost = rough_duration(found.cost_seconds)
    return f"without it, steps would take up to {found.cost_percent:.0f} % less time: {lost} were lost"


def reason_of(found: SlowFinding) -> str:
    """What explains it, with the figures behind it."""
    evidence, look = found.evidence, found.evidence.look
    queue = f"its main thread waited {_percent(evidence.queue_more)} of the time longer for a processor"
    compute = f"it was {_percent(evidence.cpu_more)} of the time longer on its processor"
    data = f"it waited {_percent(evidence.data_more)} of the time longer for its data"
    reasons: dict[str, str] = {
        "cgroup-limit": f"the limit of its cgroup: {_throttling(found)}, and {queue}",
        "steal": f"the hypervisor gave {_percent(evidence.steal_more)} of its processors to other machines",
        "other-process": f"another process uses its cores: {_processes(look, of_run=False)}; {queue}",
        "crowded-cores": f"another rank of this run uses its cores: {_processes(look, of_run=True)}; {queue}",
        "contention": f"other processes or threads use its cores: {queue}; which ones was not seen",
        "heat": f"its host slows down because of heat or power: {_clock(found)}, and {compute}",
        "clock": f"its processor runs slower than those of the other hosts: {_clock(found)}, and {compute}",
        "storage": f"slow storage: {data}{_storage(found)}",
        "data": f"its data come late: {data}",
        "paging": f"its host lacks memory: it read {evidence.faults_more or 0:.0f} pages a second from disk",
        "far-memory": f"{_percent(look and look.far_memory)} of its memory is on another NUMA node than its cores",
        "more-samples": f"it has more data: {100 * ((evidence.samples_ratio or 1) - 1):.0f} % more samples; {compute}",
        "work-or-bandwidth": (
            f"more work in this rank, or slower memory: {compute}; without counters of the processor, the two cannot "
            "be told apart"
        ),
        "all-wait-for-data": "the DataLoader does not keep up with the steps on any rank",
        "unknown": "insufficient evidence: what was measured explains less than half of it"
        if evidence.cpu_more is None or evidence.queue_more is None
        else f"more work in this rank, or other programs on its cores: not known; {compute}, and {queue}",
    }
    return reasons[found.cause.kind]


def fix_of(found: SlowFinding, record: RunRecord, *, is_over: bool) -> str:
    """What to type; clauses end with semicolons. Stacks and processes can be asked for in a run that goes on only."""
    host, run = shlex.quote(found.host), record.id
    without = f"-l '!{found.host}'"
    later = f"start the next run without it: {_again(record, without)}"
    top = f"see what runs there: ipexctl exec -l {host} -- top -b -n 1"
    workers = "in the next run, give the DataLoader more workers"
    stacks, workers_wait = f"see where it is: ipexctl dump {run} -r {found.rank}", "see where its workers wait"
    waiting = f"{workers_wait}: ipexctl dump {run} -r {found.rank} --all"
    naming = f"while the rank is slow, this names the process: ipexctl slow {run}"
    after = "" if is_over else "when the run is over, "
    if is_over:
        stacks = f"while the next run goes on, see where it is: ipexctl dump last -r {found.rank}"
        waiting = f"while the next run goes on, {workers_wait}: ipexctl dump last -r {found.rank} --all"
        naming = "while a rank is slow, this names the process: ipexctl slow last"
    fixes: dict[str, str] = {
        "cgroup-limit": f"raise the limit where it was set: the job of the scheduler, or the container; {later}",
        "steal": f"ask the provider for a machine that is not shared; {later}",
        "other-process": f"{_see_process(found, host)}; ask its user to move it; {later}",
        "crowded-cores": f"give each rank cores of its own: {_again(record, '--bind cores')}",
        "contention": f"{top}; {naming}",
        "heat": f"let its administrator look at cooling and power limits; {later}",
        "clock": f"let its administrator look at governor and power limits: ipexctl doctor -l {host}; {later}",
        "storage": f"copy the data to a disk of each host with ipexctl push; {workers}",
        "data": f"{waiting}; {workers}",
        "paging": f"use less memory on that host, such as fewer ranks or a smaller batch; {top}",
        "far-memory": f"bind ranks to NUMA nodes: {_again(record, '--bind numa')}",
        "more-samples": "give each rank equally many samples of similar length: DistributedSampler, or batches by size",
        "work-or-bandwidth": f"{stacks}; {after}compare the memory of the hosts: ipexctl doctor --smoke",
        "all-wait-for-data": f"{workers}; copy the data to a disk of each host with ipexctl push",
        "unknown": f"{stacks}; {top}; {after}compare the hosts: ipexctl doctor --smoke",
    }
    return record.call_options.apply(fixes[found.cause.kind])


def _again(record: RunRecord, option: str) -> str:
    """The command that begins the run anew with this option, or the option alone."""
    return f"{record.resume_command} {option}" if record.resume_command else option


def link_sentence(link: LinkFinding) -> str:
    since, until = format_clock(link.start), format_clock(link.end)
    when = f"since {since}" if link.is_current else f"from {since} to {until}"
    part = "" if link.transfer is None else f"; transfers and waiting for them take {_percent(link.transfer)} of a step"
    if link.kind == "lost-segments":
        lost = f"{100 * (link.resent or 0):.1f} %"
        return (
            f"the network loses data: {lost} of the segments that {fold(link.hosts)} sends are sent again, {when}{part}"
        )
    speed = 8 * (link.bytes_per_s or 0) / 1e9
    return f"the network between {fold(link.hosts)} is slow: {speed:.2g} Gbit/s while gradients pass it, {when}{part}"


def link_fix(link: LinkFinding, record: RunRecord) -> str:
    host = shlex.quote(link.hosts[0])
    which = " there, and on the hosts that it sends to" if link.kind == "lost-segments" else ""
    fix = (
        f"{LOOK_AT_LINK.format(there=which)}; ipexctl exec -l {host} -- ip -s link; when the run is over, measure each "
        "link: ipexctl doctor --smoke"
    )
    return record.call_options.apply(fix)


def show(result: SlowResult, *, quiet: bool = False, no_color: bool = False) -> None:
    """Print the verdict to stdout, also with `quiet`: it is the answer."""
    del quiet
    terminal = sys.stdout.isatty()
    columns = shutil.get_terminal_size().columns if terminal else 0
    print_lines(lines_of(result, columns, colors=wants_color(sys.stdout, no_color=no_color)))


def lines_of(result: SlowResult, columns: int = 0, *, colors: bool = False) -> Iterator[str]:
    """The lines of the verdict; with `columns` 0 nothing is wrapped, for grep."""
    record, verdict = result.record, result.verdict
    width = min(columns, _WIDE) if columns else 0
    for number, found in enumerate(verdict.findings):
        yield from [""] if number else []
        for line in _folded(sentence_of(found), width, ""):
            yield paint(line, "1", on=colors)
        yield from _folded(cost_of(found), width, "  ")
        yield from _folded(f"{_CONFIDENCE[found.cause.confidence]}: {reason_of(found)}", width, "  ")
        yield from _fix(fix_of(found, record, is_over=result.state in FINAL), width)
    for link in verdict.links:
        yield from [""] if verdict.findings or link is not verdict.links[0] else []
        for line in _folded(link_sentence(link), width, ""):
            yield paint(line, "1", on=colors)
        yield from _fix(link_fix(link, record), width)
    yield from _folded_all(_closing(result), width)


def _closing(result: SlowResult) -> Iterator[str]:
    """What was judged, and what could not be."""
    record, verdict = result.record, result.verdict
    if result.error is not None:
        source = "this is from the copy on the control machine" if result.from_copy else "nothing is known here"
        yield f"{record.node0.name}: {result.error.reason}; {source}"
        if not result.from_copy:
            yield from [f"  {result.error.advice}"] if result.error.advice else []
            return
    yield from _judgement(record, verdict, is_over=result.state in FINAL)
    if result.look_error:
        yield f"{result.look_error}; so it is not known who uses its cores"


def _judgement(record: RunRecord, verdict: SlowVerdict, *, is_over: bool) -> Iterator[str]:
    if verdict.unjudged:
        reason, fix = _NOT_JUDGED[verdict.unjudged]
        if is_over:
            fix = _FIX_WHEN_OVER.get(verdict.unjudged, fix)
        yield f"the ranks of run {record.id} cannot be compared: {reason}"
        yield f"  {fix.format(run=record.id)}"
    elif not verdict.findings and not verdict.links:
        judged = f"{counted(verdict.windows, 'window')} of {rough_duration(verdict.seconds)} together"
        yield f"no rank of run {record.id} is slow in {judged}"
    if (text := network_text(verdict.network)) != "":
        yield text
    if verdict.waiting == "spins" and not verdict.unjudged:
        yield _SPINS
    for crowded in verdict.crowded:
        yield (
            f"processes of {crowded.host} wait for a processor {_percent(crowded.pressure)} of the time, those of the "
            f"other hosts {_percent(crowded.usual)}: that may hold up OpenMP threads, whose waiting is in no own time"
        )
        see = f"ipexctl exec -l {shlex.quote(crowded.host)} -- top -b -n 1"
        yield f"  see what runs there: {record.call_options.apply(see)}"


@dataclass(frozen=True, slots=True)
class SlowEntry:
    """A slow rank or link for the page of a run, in texts that are not escaped yet."""

    headline: str
    cost: str
    reason: str
    fixes: tuple[str, ...]
    rank: int | None
    hosts: tuple[str, ...]
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class SlowSection:
    """The slow ranks and links of a run for its page."""

    entries: tuple[SlowEntry, ...]
    closing: tuple[str, ...]
    """What was judged, and what could not be."""


def section_of(record: RunRecord, verdict: SlowVerdict, *, is_over: bool) -> SlowSection:
    entries = [
        SlowEntry(
            sentence_of(found),
            cost_of(found),
            f"{_CONFIDENCE[found.cause.confidence]}: {reason_of(found)}",
            tuple(fix_of(found, record, is_over=is_over).split("; ")),
            found.rank,
            (found.host,) if found.host else (),
            found.start,
            found.end,
        )
        for found in verdict.findings
    ]
    entries += [
        SlowEntry(
            link_sentence(link),
            "",
            "",
            tuple(link_fix(link, record).split("; ")),
            None,
            link.hosts,
            link.start,
            link.end,
        )
        for link in verdict.links
    ]
    return SlowSection(tuple(entries), tuple(line.strip() for line in _judgement(record, verdict, is_over=is_over)))


@dataclass(frozen=True, slots=True)
class VerdictOfRun:
    """What `why` shows of a verdict (`run/why/why.py: WindowsVerdict`)."""

    verdict: SlowVerdict

    @property
    def network(self) -> NetworkCost | None:
        return self.verdict.network

    def line(self, run: str, *, is_over: bool) -> str:
        found, link = self._worst
        verb = "was" if is_over else "is"
        if found is not None and found.rank is None:
            text = f"all ranks {'waited' if is_over else 'wait'} for data, {found.percent:.0f} % of each step"
        elif found is not None:
            text = f"rank {found.rank} on {found.host} {verb} slow, by {found.percent:.0f} % of a step"
        elif link is not None and link.kind == "lost-segments":
            text = f"the network of {fold(link.hosts)} {'lost' if is_over else 'loses'} data"
        elif link is not None:
            text = f"the network between {fold(link.hosts)} {verb} slow"
        else:
            return ""
        return f"{printable(text)}: ipexctl slow {run}"

    def document(self) -> dict[str, Any] | None:
        found, link = self._worst
        if found is not None:
            host = printable(found.host) or None
            return {"rank": found.rank, "host": host, "percent": round(found.percent, 1), "cause": found.cause.kind}
        if link is not None:
            return {"rank": None, "host": printable(link.hosts[0]), "percent": None, "cause": link.kind}
        return None

    @property
    def _worst(self) -> tuple[SlowFinding | None, LinkFinding | None]:
        """What lasts until the last window: a rank or all of them, else a link."""
        found = next((found for found in self.verdict.findings if found.is_current), None)
        return found, next((link for link in self.verdict.links if link.is_current), None)


def of_windows(windows: RunWindows, status: RunStatus, plan: Mapping[str, Any]) -> VerdictOfRun:
    """For `why` and the page of a run; `plan` as in plan.json, or as much of it as there is."""
    return VerdictOfRun(verdict_of(windows, status, plan))


def _folded_all(lines: Iterator[str], width: int) -> Iterator[str]:
    for line in lines:
        indent = line[: len(line) - len(line.lstrip())]
        yield from _folded(line.lstrip(), width, indent)


def _folded(text: str, width: int, indent: str) -> Iterator[str]:
    if not width:
        yield indent + printable(text)
        return
    yield from wrapped(text, width, indent, indent + "  ") or [indent]


def _fix(fix: str, width: int) -> Iterator[str]:
    yield from (
        wrapped_fix(fix, width, "  ", "    ") if width else [f"  {printable(clause)}" for clause in fix.split("; ")]
    )


def _percent(part: float | None) -> str:
    return f"{100 * max(0.0, part or 0.0):.0f} %"


def _throttling(found: SlowFinding) -> str:
    look = found.evidence.look
    part = look.throttled if look is not None and look.throttled is not None else found.evidence.throttled_more
    return f"it had used up its processor time in {_percent(part)} of its periods"


def _processes(look: SuspectLook | None, *, of_run: bool) -> str:
    if look is None:
        return ""
    seen = [
        f"{process.command} (pid {process.pid}, user {process.user}) has {_percent(process.share)} of a processor"
        for process in look.others
        if process.is_of_run == of_run
    ]
    if not seen and look.unseen_share:
        return f"{_percent(look.unseen_share)} of a processor goes to processes that this account cannot see"
    return ", ".join(seen)


def _see_process(found: SlowFinding, host: str) -> str:
    look = found.evidence.look
    pids = [process.pid for process in look.others if not process.is_of_run] if look is not None else []
    if not pids:
        return f"see what runs there: ipexctl exec -l {host} -- top -b -n 1"
    return f"see what it is: ipexctl exec -l {host} -- ps -o pid,user,lstart,args -p {','.join(map(str, pids))}"


def _clock(found: SlowFinding) -> str:
    evidence = found.evidence
    events = (evidence.hot or 0.0) > 0 or (evidence.look is not None and (evidence.look.hot or 0) > 0)
    parts = ["its processors were throttled"] if events else []
    if evidence.mhz and evidence.usual_mhz:
        parts.append(f"{evidence.mhz:.0f} MHz, the others {evidence.usual_mhz:.0f} MHz")
    return ", ".join(parts)


def _storage(found: SlowFinding) -> str:
    evidence = found.evidence
    if evidence.disk_busy and evidence.disk_busy >= 0.8:
        return f", and the disk of its host is {_percent(evidence.disk_busy)} busy"
    if evidence.io_pressure:
        return f", and processes of its host wait for a disk {_percent(evidence.io_pressure)} of the time"
    return ""
