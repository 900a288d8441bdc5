"""Decide what a run's page shows, as values that `html.py` turns into HTML. Pure.

- A part that the record lacks is named in `ReportPage.missing`, so an incomplete or older record also gives a page.
- Texts are still as hosts sent them; `html.py` escapes them. Values of secret variables are dropped here.
- `compare` says how the throughput changed between two runs, with bounds that hold for runs whose speed varies.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Final, Literal

from ipexctl.addons.report.measurements import (
    MAX_COLUMNS,
    NO_MEASUREMENTS,
    Columns,
    HostCurves,
    Measurements,
    RankGrid,
    RunPhase,
    before_start,
    columns_for,
    find_phases,
    host_curves,
    rank_grid,
)
from ipexctl.homes.registry import RunRecord
from ipexctl.hosts.nodeset import fold
from ipexctl.launch.mpirun import title_of
from ipexctl.launch.other_runs import by_text
from ipexctl.limits import DUMP_FRESH
from ipexctl.node.common.plan import Plan, Setting
from ipexctl.node.common.records import Throughput, describe_apart
from ipexctl.run.profile import RunProfile
from ipexctl.run.ranks import describe_ranks
from ipexctl.run.stack_dump import Dump
from ipexctl.run.why.diagnosis import Diagnosis
from ipexctl.run.why.read_snapshot import PrintedNumber, RunSnapshot
from ipexctl.run.why.slow_verdict import SlowVerdict
from ipexctl.text import differing_words, format_clock, format_count

MAX_SETTINGS: Final = 300
"""Limit on the rows of the plan's table; the page says how many more there are."""
_FEW_VALUES: Final = 2
"""A variable with more values, each for some ranks, is shown as one row."""
_BRIDGED_COLUMNS: Final = 5
"""A curve of printed numbers has no gap for at most this many columns without a number."""
_MAX_STACK_GROUPS: Final = 64
_MAX_FRAMES: Final = 60
_CREDENTIAL: Final = re.compile(
    r"(?:^|_)(?:API_?KEYS?|ACCESS_KEYS?|AUTH|CREDENTIALS?|KEY|PASS|PASSWD|PASSWORD|SECRETS?|TOKENS?)(?:_|$)",
    re.IGNORECASE,
)
"""Variables whose values are hidden, whatever set them, because a page is made to be passed on."""


@dataclass(frozen=True, slots=True)
class Fact:
    """A line of the section "What ran", such as Script and `train.py`."""

    label: str
    value: str


_BY_RANK: Final = "by rank"
"""End of `SettingRow.where` if a variable has more than `_FEW_VALUES` values: `8 values, by rank`."""


@dataclass(frozen=True, slots=True)
class SettingRow:
    """A row of the plan's table: a variable, or several removed variables with one reason."""

    name: str
    value: str | None
    """None: the variable is removed. Empty if `is_hidden`."""
    reason: str
    where: str
    """Ranks or hosts that have the value: `ranks 0-3`; empty for all."""
    is_hidden: bool = False
    """True for a secret, and for a variable whose name tells that it may be one."""


@dataclass(frozen=True, slots=True)
class StackText:
    """A stack that some ranks share, or the ranks without a stack."""

    title: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TimeCurve:
    """A curve with one value per column; None in a column without a value."""

    title: str
    unit: str
    """Empty if the numbers have no unit."""
    values: tuple[float | None, ...]
    columns: Columns
    bridged: int = 0
    """Number of columns without a value that do not make a gap, for values printed now and then."""
    low: tuple[float | None, ...] = ()
    """Values of the slowest rank; empty for a curve without a band."""
    high: tuple[float | None, ...] = ()
    """Values of the fastest rank; empty for a curve without a band."""


@dataclass(frozen=True, slots=True)
class ReportPage:
    """The content of a page. Empty or None: the record lacks it, or the run has none of it."""

    run: str
    """The run's id."""
    diagnosis: Diagnosis
    facts: tuple[Fact, ...] = ()
    took: float | None = None
    """Seconds from the start of the ranks to the end; None while the run goes on."""
    measured: Throughput | None = None
    """Throughput in the run's status."""
    throughput: TimeCurve | None = None
    loss: TimeCurve | None = None
    """Losses that rank 0 printed."""
    series: tuple[TimeCurve, ...] = ()
    """What rank 0 printed beside the loss."""
    grid: RankGrid | None = None
    hosts: tuple[HostCurves, ...] = ()
    phases: tuple[RunPhase, ...] = ()
    settings: tuple[SettingRow, ...] = ()
    more_settings: int = 0
    """Number of rows beyond `MAX_SETTINGS`."""
    stacks: tuple[StackText, ...] = ()
    missing: tuple[str, ...] = ()
    """Parts of a page that this record lacks, each with the reason."""
    comparison: RunComparison | None = None
    """Set by `report_command.write_report` if other runs were named."""
    record: RunRecord | None = None
    """Used for the commands in the section on slow ranks, and for the order of compared runs."""
    slow: SlowVerdict | None = None
    profile: RunProfile | None = None
    words: tuple[str, ...] = ()
    """Arguments of the script."""
    tag: str = ""
    ranks: int = 0
    """Ranks of the run; 0 if the page has no record of it."""
    losses: tuple[PrintedNumber, ...] = ()
    """Points of the curve `loss`, with their steps, for the drawing of several runs."""
    last_loss: float | None = None
    versions: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Package → its version in the run's environment."""

    @property
    def title(self) -> str:
        """Return the run's tag and id, or its id."""
        return f"{self.tag}, {self.run}" if self.tag else self.run

    @property
    def span(self) -> float:
        """Return the seconds from the left to the right edge of the drawings, at least 1."""
        ends = [phase.end for phase in self.phases]
        return max([*ends, self.grid.columns.span if self.grid is not None else 0.0, 1.0])


def report_page(
    record: RunRecord,
    snapshot: RunSnapshot,
    diagnosis: Diagnosis,
    plan: Plan,
    measured: Measurements = NO_MEASUREMENTS,
) -> ReportPage:
    """Return the page of a run of which a record was read, without slow ranks, profile and comparison."""
    status = snapshot.status
    before = before_start(plan.before_start)
    start = (status.started or record.started) - sum(before.values())
    end = max(start, status.ended or snapshot.now or start)
    hosts = {row.rank: row.host for row in status.ranks}
    grid = rank_grid(measured, hosts, start, end, {row.rank: row.throughput for row in status.ranks})
    curves = host_curves(measured, hosts, start, end)
    settings = tuple(_setting_rows(plan.settings))
    dump = _dump_of_end(snapshot, diagnosis)
    series = (_printed_curve(name, numbers, start, end) for name, numbers in measured.series.items())
    together = not describe_apart(status.group)
    return ReportPage(
        snapshot.id or record.id,
        diagnosis,
        facts=tuple(_facts(record, snapshot, plan)),
        took=snapshot.took,
        measured=status.throughput,
        throughput=throughput_of(grid, together=together) if grid is not None else None,
        loss=_printed_curve("Loss", measured.losses, start, end),
        series=tuple(curve for curve in series if curve is not None),
        grid=grid,
        hosts=curves,
        phases=tuple(find_phases(snapshot, measured, before, start, end)),
        settings=settings[:MAX_SETTINGS],
        more_settings=max(0, len(settings) - MAX_SETTINGS),
        stacks=_stack_texts(dump) if dump is not None else (),
        missing=tuple(_missing_parts(grid, curves, settings)),
        words=plan.asked.argv[1:],
        tag=plan.asked.tag or "",
        ranks=status.world_size or record.plan.world_size,
        losses=measured.losses,
        last_loss=status.progress.loss if status.progress is not None else None,
        versions=plan.versions,
    )


def _dump_of_end(snapshot: RunSnapshot, diagnosis: Diagnosis) -> Dump | None:
    """Return the newest stack dump of the last attempt, if its stacks explain how the run ended.

    None if the run succeeded, or continued after the dump; a dump of a run that hangs always counts.
    """
    dump, status = snapshot.current_dump, snapshot.status
    if dump is None or status.state == "ok":
        return None
    silent_since = status.silent.since if status.silent is not None else math.inf
    is_last = dump.at >= min(silent_since, (status.ended or 0.0) - DUMP_FRESH)
    return dump if is_last or diagnosis.hang is not None else None


def _missing_parts(grid: RankGrid | None, hosts: Sequence[HostCurves], settings: Sequence[SettingRow]) -> Iterator[str]:
    """Yield the parts that the page lacks, each with the reason."""
    if grid is None:
        yield "throughput, and work and waiting of each rank: the record has no measurements of ranks"
    elif not any(row.steps for row in grid.rows):
        yield "throughput: no rank called a torch optimizer's step"
    if not hosts:
        yield "memory and network of each host: the record has no measurements of hosts"
    if not settings:
        yield "the plan's variables: the plan of this run is not on the control machine"


def _facts(record: RunRecord, snapshot: RunSnapshot, plan: Plan) -> Iterator[Fact]:
    """Yield the facts of the section "What ran"; what is unknown is left out.

    `_shown_settings` finds some of them by their labels.
    """
    status = snapshot.status
    names = tuple(dict.fromkeys(row.host for row in status.ranks)) or record.hosts
    ranks = format_count(status.world_size or record.plan.world_size, "rank")
    yield Fact("Script", status.script or record.plan.script)
    if by := by_text(record.plan.by):
        yield Fact("Begun by", by)
    if tag := plan.asked.tag:
        yield Fact("Tag", tag)
    yield Fact("Hosts", f"{ranks} on {format_count(len(names), 'host')}: {fold(names)}")
    if started := status.started or record.started:
        yield Fact("Started", format_clock(started, "%Y-%m-%d %H:%M:%S"))
    if status.exit_code is not None:
        yield Fact("Exit code", str(status.exit_code))
    if environment := status.env or record.plan.environment:
        yield Fact("Environment", environment)
    started_by = title_of(plan.flavor) if plan.flavor else ""
    for label, value in (("Stack", plan.stack), ("Backend", plan.backend), ("Started by", started_by)):
        if value:
            yield Fact(label, value)
    if (commit := plan.commit) is not None and (name := commit.hash[:12]):
        yield Fact("Commit", f"{name} ({commit.branch})" if commit.branch else name)
    if status.attempt:
        yield Fact("Restarts", f"{status.attempt} of at most {status.restarts}")
    if status.has_moved:
        for attempt in status.all_attempts:
            hosts = fold(attempt.hosts)
            yield Fact(f"Attempt {attempt.attempt}", f"{format_count(attempt.world_size, 'rank')} on {hosts}")


def throughput_of(grid: RankGrid, *, together: bool = True) -> TimeCurve | None:
    """Return the curve of the throughput; None if no rank made a step.

    If the ranks train `together` and all count samples, the curve is their sum in samples/s. Else it is the median of
    the ranks in steps/s, with a band from the slowest to the fastest.
    """
    if not any(row.steps for row in grid.rows):
        return None
    has_samples = all(row.samples_per_s for row in grid.rows) and any(row.samples for row in grid.rows)
    if together and has_samples:
        samples_per_s = _known_in_columns([row.samples_per_s for row in grid.rows])
        values = tuple(sum(rates) if rates else None for rates in samples_per_s)
        return TimeCurve("Throughput of all ranks", "samples/s", values, grid.columns)
    steps_per_s = _known_in_columns([row.steps_per_s for row in grid.rows])
    return TimeCurve(
        "Throughput of a rank: median, and the range from the slowest to the fastest",
        "steps/s",
        tuple(statistics.median(rates) if rates else None for rates in steps_per_s),
        grid.columns,
        0,
        tuple(min(rates, default=None) for rates in steps_per_s),
        tuple(max(rates, default=None) for rates in steps_per_s),
    )


def _known_in_columns(rows: Sequence[Sequence[float | None]]) -> list[list[float]]:
    """Return for each column the values of the rows in which it is known."""
    return [[value for value in column if value is not None] for column in zip(*rows, strict=True)]


def _printed_curve(title: str, printed: Sequence[PrintedNumber], start: float, end: float) -> TimeCurve | None:
    """Return the curve of numbers that rank 0 printed, as means of each column; None if there are fewer than two."""
    points = [(number.at, number.value) for number in printed if start <= number.at <= end]
    if len(points) < 2:
        return None
    columns = columns_for(start, end, (end - start) / len(points), MAX_COLUMNS)
    sums, counts = [0.0] * columns.count, [0] * columns.count
    for at, value in points:
        column = min(columns.count - 1, int((at - columns.start) / columns.width))
        sums[column] += value
        counts[column] += 1
    means = tuple(total / count if count else None for total, count in zip(sums, counts, strict=True))
    return TimeCurve(title, "", means, columns, _BRIDGED_COLUMNS)


def _setting_rows(settings: Sequence[Setting]) -> Iterator[SettingRow]:
    """Yield the rows of the plan's table, so that a plan with many ranks gives few.

    - Removed variables with the same reason and ranks share a row, with all their names.
    - A variable with more than `_FEW_VALUES` values for different ranks is one row: `0 … 7`, with `8 values, by rank`.
    """
    rows: dict[tuple[str, str, str], list[SettingRow]] = {}
    for row in _equal_settings(settings):
        is_of_ranks = row.value is not None and row.where.startswith("rank")
        key = (row.name, row.reason, "" if is_of_ranks else row.where)
        if row.value is None:
            key = ("", row.reason, row.where)
        rows.setdefault(key, []).append(row)
    for (name, reason, _), shared in rows.items():
        first = shared[0]
        if first.value is None:
            yield replace(first, name=", ".join(dict.fromkeys(row.name for row in shared)))
        elif len(shared) > _FEW_VALUES:
            values = list(dict.fromkeys(row.value or "" for row in shared))
            yield SettingRow(name, f"{values[0]} … {values[-1]}", reason, f"{len(values)} values, {_BY_RANK}")
        else:
            yield from shared


def _equal_settings(settings: Sequence[Setting]) -> Iterator[SettingRow]:
    """Yield a row for each variable, value and reason, with all ranks or hosts that have it."""
    groups: dict[tuple[str, str | None, str, bool], list[Setting]] = {}
    for setting in settings:
        if not setting.name:  # damaged
            continue
        is_hidden = setting.secret or _CREDENTIAL.search(setting.name) is not None
        shown = "" if is_hidden else setting.value
        groups.setdefault((setting.name, shown, setting.reason, is_hidden), []).append(setting)
    for (name, shown, reason, is_hidden), equal in groups.items():
        yield SettingRow(name, shown, reason, _describe_where(equal), is_hidden)


def _describe_where(settings: Sequence[Setting]) -> str:
    """Return the ranks, else the hosts, that have these settings; empty if they are set everywhere."""
    if ranks := sorted({setting.rank for setting in settings if setting.rank is not None}):
        return describe_ranks(ranks)
    hosts = [setting.host for setting in settings if setting.host is not None]
    return fold(dict.fromkeys(hosts)) if hosts else ""


def _stack_texts(dump: Dump) -> tuple[StackText, ...]:
    """Return a text for each group of ranks with the same stack, and one for the ranks that have none."""
    texts = []
    for group in dump.groups[:_MAX_STACK_GROUPS]:
        ranks = [rank.rank for rank in group.ranks]
        title = f"{describe_ranks(ranks)} on {fold(dict.fromkeys(rank.host for rank in group.ranks))}: {group.place}"
        frames = group.frames[:_MAX_FRAMES]
        lines = [f"{frame.function}  {frame.place}:{'?' if frame.line is None else frame.line}" for frame in frames]
        if len(group.frames) > len(frames):
            lines.append(f"… {format_count(len(group.frames) - len(frames), 'more call')}")
        texts.append(StackText(title, tuple(lines)))
    if dump.mute:
        mute = [f"rank {rank.rank} on {rank.host}: {rank.reason}" for rank in dump.mute[:_MAX_STACK_GROUPS]]
        texts.append(StackText(f"{format_count(len(dump.mute), 'rank')} without a stack", tuple(mute)))
    return tuple(texts)


PARTS: Final = 10
"""Number of equal parts into which a run's throughput is divided for the interval, or a few more."""
MIN_PARTS: Final = 5
"""With fewer parts, a change has no bounds."""
_WARM_UP: Final = 0.1
"""Share of the columns at the beginning that are left out."""
_RATES: Final = ("tokens_per_s", "samples_per_s", "steps_per_s")
"""Fields of `Throughput`; the first that both runs have is compared."""
_SAME_BATCH: Final = 0.03
"""Difference of two batches that count as the same: an epoch's last one is smaller."""
_T_95: Final = {4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26, 10: 2.23, 12: 2.18, 14: 2.14, 16: 2.12}
"""Student's t for 95 % by degrees of freedom; for numbers not listed, the next lower one, whose interval is wider."""


@dataclass(frozen=True, slots=True)
class Change:
    """Change of the throughput from the first run to a later one."""

    ratio: float
    """The later throughput divided by the first, minus 1: 0.1 for 10 % more."""
    unit: str
    """Such as `samples/s`."""
    low: float | None = None
    """Lower 95 % bound of the ratio; None if a run is too short for bounds, or the runs did different work."""
    high: float | None = None


Incomparable = Literal["not-measured", "other-unit", "other-batch", "too-short"]
"""Why there is no change: a run has no measured throughput, one counts samples and the other steps, their batches
differ, or nothing is left of a run without its warm-up."""


Differences = Mapping[str, tuple[str | None, ...]]
"""Name → value in each run; None if a run lacks it."""


@dataclass(frozen=True, slots=True)
class RunComparison:
    """Several runs side by side. Each tuple has an entry for each run, the earliest first."""

    runs: tuple[ReportPage, ...]
    names: tuple[str, ...]
    """The tag of a run if no other run has it, else its id."""
    words: tuple[str, ...]
    """Arguments that another run lacks: `--lr 3`; empty if there are none."""
    settings: Differences
    """Facts, variables and package versions that differ."""
    changes: tuple[Change | Incomparable, ...]
    """For each run but the first, its change from the first."""


def compare(page: ReportPage, *others: ReportPage) -> RunComparison:
    """Return what differs between runs, and how the throughput changed from the first run to each other one.

    The bounds of a change are Welch's interval for the difference of two means. Neighbouring windows of a run are
    correlated, and the interval assumes independent values, so each run gives the means of a few long parts.
    """
    runs = sorted((*others, page), key=lambda run: run.record.started if run.record is not None else 0.0)
    tags = [run.tag for run in runs]
    return RunComparison(
        tuple(runs),
        tuple(run.tag if run.tag and tags.count(run.tag) == 1 else run.run for run in runs),
        tuple(differing_words([run.words for run in runs])),
        _differences([_shown_settings(run) for run in runs]),
        tuple(_change(run, runs[0]) for run in runs[1:]),
    )


def _differences(runs: Sequence[Mapping[str, str]]) -> Differences:
    """Return the settings that have at least two values, a missing one included. `runs`: each run's name → value."""
    values = {name: tuple(settings.get(name) for settings in runs) for name in dict.fromkeys(chain(*runs))}
    return {name: of_runs for name, of_runs in values.items() if len(set(of_runs)) > 1}


_OF_ONE_RUN: Final = re.compile(r"(?:_ADDR|_PORT|_RUN_ID|_HOSTS?)$|^IPEXCTL_RUN")
"""Variables that differ between runs by themselves, such as MASTER_PORT: no choice of the user."""


def _shown_settings(page: ReportPage) -> dict[str, str]:
    """Return name → value of the facts that are choices, of the variables, and of the packages.

    A hidden value is `(not shown)` in all runs, so two secrets count as equal. Variables with a value for each rank
    are left out.
    """
    values: dict[str, list[str]] = {}
    env = next((fact.value for fact in page.facts if fact.label == "Environment"), "")
    for fact in page.facts:
        if fact.label in ("Tag", "Hosts", "Environment", "Stack", "Backend", "Started by", "Commit"):
            values.setdefault(fact.label, []).append(fact.value)
        elif fact.label == "Script":  # without its arguments
            values["Script"] = fact.value.split()[:1]
    for row in page.settings:
        is_of_ranks = row.where.startswith("rank") or row.where.endswith(_BY_RANK)
        if is_of_ranks or _OF_ONE_RUN.search(row.name):
            continue
        shown = "(not shown)" if row.is_hidden else "(removed)" if row.value is None else row.value
        # Some variables hold the run's id or the environment's path, which are no settings.
        shown = shown.replace(page.run, "RUN").replace(f"/{env}/", "/ENVIRONMENT/")
        values.setdefault(row.name, []).append(f"{shown} on {row.where}" if row.where else shown)
    return {name: ", ".join(shown) for name, shown in values.items()} | {**page.versions}


def _change(now: ReportPage, then: ReportPage) -> Change | Incomparable:
    """Return how the throughput changed from the run `then` to the run `now`, or why that cannot be said.

    - Tokens/s are compared if both runs have them, because a sample may be several packed texts.
    - If both have samples/s and no tokens/s, the samples of a step must be equal, in all or per rank: a larger batch
      often gives more samples/s.
    - If the statuses have no rate in common, the means of the curves are compared.
    - The change has bounds only if the runs have equal steps and as many ranks. Whether two steps are equal shows in
      the tokens or samples of a step; if only steps are counted, the arguments of the scripts must be equal.
    """
    curves = [page.throughput for page in (now, then) if page.throughput is not None and any(page.throughput.values)]
    if len(curves) < 2:
        return "not-measured"
    unit = curves[0].unit
    if unit != curves[1].unit:
        return "other-unit"
    parts = [_equal_parts(curve.values) for curve in curves]
    if not all(parts):
        return "too-short"
    names = ("steps_per_s",) if unit == "steps/s" else _RATES
    rates = {name: _known_rates(name, now, then) for name in names}
    name = next((name for name, known in rates.items() if len(known) == 2), "")
    new, old = rates.get(name) or map(statistics.fmean, parts)
    steps = _known_rates("steps_per_s", now, then) or [new, old]
    batches = new / steps[0], old / steps[-1]
    counts_work = name in ("tokens_per_s", "samples_per_s")
    has_equal_steps = math.isclose(*batches, rel_tol=_SAME_BATCH) and (counts_work or now.words == then.words)
    batches_of_a_rank = batches[0] / (now.ranks or 1), batches[1] / (then.ranks or 1)
    has_equal_batches = has_equal_steps or math.isclose(*batches_of_a_rank, rel_tol=_SAME_BATCH)
    if name == "samples_per_s" and not has_equal_batches:
        return "other-batch"
    bounds: tuple[float, ...] = ()
    if has_equal_steps and now.ranks == then.ranks:
        # The mean of a run's parts becomes the throughput that the page shows.
        scaled = [
            [part * shown / statistics.fmean(own_parts) for part in own_parts]
            for own_parts, shown in zip(parts, (new, old), strict=True)
        ]
        bounds = _welch_interval(*scaled)
    return Change(new / old - 1, name.replace("_per_", "/") or unit, *(bound / old for bound in bounds))


def _known_rates(name: str, *pages: ReportPage) -> list[float]:
    """Return a field of the throughput of each page whose status has it; 0 counts as unknown."""
    return [rate for page in pages if (rate := getattr(page.measured, name, None))]


def _equal_parts(values: Sequence[float | None]) -> list[float]:
    """Return the means of equal parts of a curve, without the warm-up and without the zeros around the steps.

    There are `PARTS` of them, up to twice as many if the columns do not divide evenly, and fewer for a short run. Empty
    if nothing is left.
    """
    known = [value for value in values if value is not None]
    columns_with_steps = [column for column, value in enumerate(known) if value]
    if not columns_with_steps:
        return []
    known = known[columns_with_steps[0] : columns_with_steps[-1] + 1]
    known = known[math.ceil(len(known) * _WARM_UP) :]
    size = max(1, len(known) // PARTS)
    return [statistics.fmean(known[start : start + size]) for start in range(0, len(known) - size + 1, size)]


def _welch_interval(now: Sequence[float], then: Sequence[float]) -> tuple[float, ...]:
    """Return the 95 % bounds of the difference of two means; empty with fewer than `MIN_PARTS` values of a run."""
    if min(len(now), len(then)) < MIN_PARTS:
        return ()
    variance_now, variance_then = statistics.variance(now) / len(now), statistics.variance(then) / len(then)
    difference = statistics.fmean(now) - statistics.fmean(then)
    if variance_now + variance_then == 0:
        return difference, difference
    freedom = (variance_now + variance_then) ** 2 / (
        variance_now**2 / (len(now) - 1) + variance_then**2 / (len(then) - 1)
    )
    t = _T_95[max((known for known in _T_95 if known <= freedom), default=4)]
    half = t * math.sqrt(variance_now + variance_then)
    return difference - half, difference + half
