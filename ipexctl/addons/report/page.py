"""The content of a run's page, in the order in which a reader asks. Pure; `html.py` draws it and decides nothing. A
part that the record lacks is named in `missing`, so older records also give a page. Texts are as hosts sent them.
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
_FEW_VALUES: Final = 2
"""A variable with more values, each for some ranks, is shown as one row."""
_BRIDGED: Final = 5
_MAX_GROUPS: Final = 64
_MAX_FRAMES: Final = 60
_CREDENTIAL: Final = re.compile(
    r"(?:^|_)(?:API_?KEYS?|ACCESS_KEYS?|AUTH|CREDENTIALS?|KEY|PASS|PASSWD|PASSWORD|SECRETS?|TOKENS?)(?:_|$)",
    re.IGNORECASE,
)
"""Variables whose values are hidden, whatever set them, because a page is made to be passed on."""


@dataclass(frozen=True, slots=True)
class Fact:
    label: str
    value: str


_BY_RANK: Final = "by rank"
"""Where a variable has another value in each rank."""


@dataclass(frozen=True, slots=True)
class SettingRow:
    name: str
    value: str | None
    """None: the variable is removed."""
    reason: str
    where: str
    is_hidden: bool = False


@dataclass(frozen=True, slots=True)
class StackText:
    title: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TimeCurve:
    """One value per column; `low` and `high` are the slowest and the fastest rank."""

    title: str
    unit: str
    values: tuple[float | None, ...]
    columns: Columns
    bridged: int = 0
    """Number of columns without a value that do not make a gap, for values printed now and then."""
    low: tuple[float | None, ...] = ()
    high: tuple[float | None, ...] = ()


@dataclass(frozen=True, slots=True)
class ReportPage:
    run: str
    diagnosis: Diagnosis
    facts: tuple[Fact, ...] = ()
    took: float | None = None
    """Seconds from the start of the ranks to the end."""
    measured: Throughput | None = None
    throughput: TimeCurve | None = None
    loss: TimeCurve | None = None
    series: tuple[TimeCurve, ...] = ()
    """What rank 0 printed beside the loss."""
    grid: RankGrid | None = None
    hosts: tuple[HostCurves, ...] = ()
    phases: tuple[RunPhase, ...] = ()
    settings: tuple[SettingRow, ...] = ()
    more_settings: int = 0
    stacks: tuple[StackText, ...] = ()
    missing: tuple[str, ...] = ()
    comparison: RunComparison | None = None
    record: RunRecord | None = None
    """Used for the commands in the section on slow ranks."""
    slow: SlowVerdict | None = None
    profile: RunProfile | None = None
    words: tuple[str, ...] = ()
    """Of the command line, after the script."""
    tag: str = ""
    ranks: int = 0
    losses: tuple[PrintedNumber, ...] = ()
    last_loss: float | None = None
    versions: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def title(self) -> str:
        return f"{self.tag}, {self.run}" if self.tag else self.run

    @property
    def span(self) -> float:
        ends = [phase.end for phase in self.phases]
        return max([*ends, self.grid.columns.span if self.grid is not None else 0.0, 1.0])


def report_page(
    record: RunRecord,
    snapshot: RunSnapshot,
    diagnosis: Diagnosis,
    plan: Plan,
    measured: Measurements = NO_MEASUREMENTS,
) -> ReportPage:
    status = snapshot.status
    before = before_start(plan.before_start)
    start = (status.started or record.started) - sum(before.values())
    end = max(start, status.ended or snapshot.now or start)
    hosts = {row.rank: row.host for row in status.ranks}
    grid = rank_grid(measured, hosts, start, end, {row.rank: row.throughput for row in status.ranks})
    curves = host_curves(measured, hosts, start, end)
    settings = tuple(_settings(plan.settings))
    dump = _dump_of_end(snapshot, diagnosis)
    together = not describe_apart(status.group)
    return ReportPage(
        snapshot.id or record.id,
        diagnosis,
        facts=tuple(_facts(record, snapshot, plan)),
        took=snapshot.took,
        measured=status.throughput,
        throughput=throughput_of(grid, together=together) if grid is not None else None,
        loss=_printed("Loss", measured.losses, start, end),
        series=tuple(filter(None, (_printed(*each, start, end) for each in measured.series.items()))),
        grid=grid,
        hosts=curves,
        phases=tuple(find_phases(snapshot, measured, before, start, end)),
        settings=settings[:MAX_SETTINGS],
        more_settings=max(0, len(settings) - MAX_SETTINGS),
        stacks=_stacks(dump) if dump is not None else (),
        missing=tuple(_missing(grid, curves, settings)),
        words=plan.asked.argv[1:],
        tag=plan.asked.tag or "",
        ranks=status.world_size or record.plan.world_size,
        losses=measured.losses,
        last_loss=status.progress.loss if status.progress is not None else None,
        versions=plan.versions,
    )


def _dump_of_end(snapshot: RunSnapshot, diagnosis: Diagnosis) -> Dump | None:
    """The newest stacks, unless the run went on after them."""
    dump, status = snapshot.current_dump, snapshot.status
    if dump is None or status.state == "ok":
        return None
    silent_since = status.silent.since if status.silent is not None else math.inf
    is_last = dump.at >= min(silent_since, (status.ended or 0.0) - DUMP_FRESH)
    return dump if is_last or diagnosis.hang is not None else None


def _missing(grid: RankGrid | None, hosts: Sequence[HostCurves], settings: Sequence[SettingRow]) -> Iterator[str]:
    if grid is None:
        yield "throughput, and work and waiting of each rank: the record has no measurements of ranks"
    elif not any(row.steps for row in grid.rows):
        yield "throughput: no rank called a torch optimizer's step"
    if not hosts:
        yield "memory and network of each host: the record has no measurements of hosts"
    if not settings:
        yield "the plan's variables: the plan of this run is not on the control machine"


def _facts(record: RunRecord, snapshot: RunSnapshot, plan: Plan) -> Iterator[Fact]:
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
    """Samples/s of all ranks that train `together`; else steps/s and the ranks' range."""
    if not any(row.steps for row in grid.rows):
        return None
    columns = range(grid.columns.count)
    if together and all(row.samples_per_s for row in grid.rows) and any(row.samples for row in grid.rows):
        total = [[r for row in grid.rows if (r := row.samples_per_s[column]) is not None] for column in columns]
        values = tuple(sum(rates) if rates else None for rates in total)
        return TimeCurve("Throughput of all ranks", "samples/s", values, grid.columns)
    rates = [[r for row in grid.rows if (r := row.steps_per_s[column]) is not None] for column in columns]
    return TimeCurve(
        "Throughput of a rank: median, and the range from the slowest to the fastest",
        "steps/s",
        tuple(statistics.median(each) if each else None for each in rates),
        grid.columns,
        0,
        tuple(min(each, default=None) for each in rates),
        tuple(max(each, default=None) for each in rates),
    )


def _printed(title: str, printed: Sequence[PrintedNumber], start: float, end: float) -> TimeCurve | None:
    points = [(each.at, each.value) for each in printed if start <= each.at <= end]
    if len(points) < 2:
        return None
    columns = columns_for(start, end, (end - start) / len(points), MAX_COLUMNS)
    sums, counts = [0.0] * columns.count, [0] * columns.count
    for at, value in points:
        column = min(columns.count - 1, int((at - columns.start) / columns.width))
        sums[column] += value
        counts[column] += 1
    means = tuple(total / count if count else None for total, count in zip(sums, counts, strict=True))
    return TimeCurve(title, "", means, columns, _BRIDGED)


def _settings(settings: Sequence[Setting]) -> Iterator[SettingRow]:
    """Variables with equal values and reasons share a row; so do removed variables, and variables of ranks."""
    rows: dict[tuple[str, str, str], list[SettingRow]] = {}
    for row in _equal_settings(settings):
        is_own = row.value is not None and row.where.startswith("rank")
        key = ("", row.reason, row.where) if row.value is None else (row.name, row.reason, "" if is_own else row.where)
        rows.setdefault(key, []).append(row)
    for (name, reason, _), found in rows.items():
        first = found[0]
        if first.value is None:
            yield replace(first, name=", ".join(dict.fromkeys(row.name for row in found)))
        elif len(found) > _FEW_VALUES:
            values = list(dict.fromkeys(row.value or "" for row in found))
            yield SettingRow(name, f"{values[0]} … {values[-1]}", reason, f"{len(values)} values, {_BY_RANK}")
        else:
            yield from found


def _equal_settings(settings: Sequence[Setting]) -> Iterator[SettingRow]:
    groups: dict[tuple[str, str | None, str, bool], list[Setting]] = {}
    for each in settings:
        if not each.name:  # damaged
            continue
        hidden = each.secret or _CREDENTIAL.search(each.name) is not None
        groups.setdefault((each.name, "" if hidden else each.value, each.reason, hidden), []).append(each)
    for (name, shown, reason, hidden), found in groups.items():
        yield SettingRow(name, shown, reason, _where(found), hidden)


def _where(settings: Sequence[Setting]) -> str:
    if ranks := sorted({each.rank for each in settings if each.rank is not None}):
        return describe_ranks(ranks)
    hosts = [each.host for each in settings if each.host is not None]
    return fold(dict.fromkeys(hosts)) if hosts else ""


def _stacks(dump: Dump) -> tuple[StackText, ...]:
    texts = []
    for group in dump.groups[:_MAX_GROUPS]:
        ranks = [rank.rank for rank in group.ranks]
        title = f"{describe_ranks(ranks)} on {fold(dict.fromkeys(rank.host for rank in group.ranks))}: {group.place}"
        frames = group.frames[:_MAX_FRAMES]
        lines = [f"{frame.function}  {frame.place}:{'?' if frame.line is None else frame.line}" for frame in frames]
        if len(group.frames) > len(frames):
            lines.append(f"… {format_count(len(group.frames) - len(frames), 'more call')}")
        texts.append(StackText(title, tuple(lines)))
    if dump.mute:
        mute = [f"rank {rank.rank} on {rank.host}: {rank.reason}" for rank in dump.mute[:_MAX_GROUPS]]
        texts.append(StackText(f"{format_count(len(dump.mute), 'rank')} without a stack", tuple(mute)))
    return tuple(texts)


PARTS: Final = 10
MIN_PARTS: Final = 5
_WARM_UP: Final = 0.1
_RATES: Final = ("tokens_per_s", "samples_per_s", "steps_per_s")
_SAME_BATCH: Final = 0.03
"""Difference of two batches that count as the same: an epoch's last one is smaller."""
_T_95: Final = {4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26, 10: 2.23, 12: 2.18, 14: 2.14, 16: 2.12}
"""Student's t for 95 % by degrees of freedom; for numbers not listed, the next lower one, whose interval is wider."""


@dataclass(frozen=True, slots=True)
class Change:
    """Throughput of this run divided by the other's, minus 1, with 95 % bounds."""

    ratio: float
    unit: str
    low: float | None = None
    high: float | None = None


Incomparable = Literal["not-measured", "other-unit", "other-batch", "too-short"]
"""A run has no steps, the runs have different units or batches, or a run has only windows of its start."""


Differences = Mapping[str, tuple[str | None, ...]]
"""Name → value in each run; None if a run lacks it."""


@dataclass(frozen=True, slots=True)
class RunComparison:
    runs: tuple[ReportPage, ...]
    """In the order of their starts."""
    names: tuple[str, ...]
    """Their tags, or their ids."""
    words: tuple[str, ...]
    """What differs in their command lines."""
    settings: Differences
    changes: tuple[Change | Incomparable, ...]
    """Of each run after the first, compared with the first."""


def compare(page: ReportPage, *others: ReportPage) -> RunComparison:
    """What differs, and the change of throughput with Welch's interval. Windows within a run are correlated, so each
    run gives the means of a few equal parts; with fewer than `MIN_PARTS` there is none."""
    runs = sorted((*others, page), key=lambda each: each.record.started if each.record is not None else 0.0)
    tags = [each.tag for each in runs]
    return RunComparison(
        tuple(runs),
        tuple(each.tag if each.tag and tags.count(each.tag) == 1 else each.run for each in runs),
        tuple(differing_words([each.words for each in runs])),
        _differences(list(map(_shown_settings, runs))),
        tuple(_change(each, runs[0]) for each in runs[1:]),
    )


def _differences(runs: Sequence[Mapping[str, str]]) -> Differences:
    values = {name: tuple(each.get(name) for each in runs) for name in dict.fromkeys(chain(*runs))}
    return {name: found for name, found in values.items() if len(set(found)) > 1}


_OF_A_RUN: Final = re.compile(r"(?:_ADDR|_PORT|_RUN_ID|_HOSTS?)$|^IPEXCTL_RUN")


def _shown_settings(page: ReportPage) -> dict[str, str]:
    """Name → value, including the facts that are choices, and the packages; hidden values count as equal."""
    values: dict[str, list[str]] = {}
    env = next((fact.value for fact in page.facts if fact.label == "Environment"), "")
    for fact in page.facts:
        if fact.label in ("Tag", "Hosts", "Environment", "Stack", "Backend", "Started by", "Commit"):
            values.setdefault(fact.label, []).append(fact.value)
        elif fact.label == "Script":  # without its arguments
            values["Script"] = fact.value.split()[:1]
    for row in page.settings:
        if row.where.startswith("rank") or row.where.endswith(_BY_RANK) or _OF_A_RUN.search(row.name):
            continue
        shown = "(not shown)" if row.is_hidden else "(removed)" if row.value is None else row.value
        # Some variables hold the run's id or the environment's path, which are no settings.
        shown = shown.replace(page.run, "RUN").replace(f"/{env}/", "/ENVIRONMENT/")
        values.setdefault(row.name, []).append(f"{shown} on {row.where}" if row.where else shown)
    return {name: ", ".join(found) for name, found in values.items()} | {**page.versions}


def _change(now: ReportPage, then: ReportPage) -> Change | Incomparable:
    """Of tokens/s where both runs have them, because samples may be packed; of samples/s only with like batches."""
    curves = [each.throughput for each in (now, then) if each.throughput is not None and any(each.throughput.values)]
    if len(curves) < 2:
        return "not-measured"
    if curves[0].unit != curves[1].unit:
        return "other-unit"
    parts = [_parts(curve.values) for curve in curves]
    if not all(parts):
        return "too-short"
    rates = {
        name: _measured(name, now, then) for name in _RATES if name == "steps_per_s" or curves[0].unit != "steps/s"
    }
    name = next((name for name, found in rates.items() if len(found) == 2), "")
    new, old = rates.get(name) or map(statistics.fmean, parts)
    steps = _measured("steps_per_s", now, then) or [new, old]
    batches = new / steps[0], old / steps[-1]
    # What a step is, only the command lines tell.
    is_alike = math.isclose(*batches, rel_tol=_SAME_BATCH) and (name in _RATES[:2] or now.words == then.words)
    per_rank = batches[0] / (now.ranks or 1), batches[1] / (then.ranks or 1)
    if name == "samples_per_s" and not is_alike and not math.isclose(*per_rank, rel_tol=_SAME_BATCH):
        return "other-batch"
    bounds: tuple[float, ...] = ()
    if is_alike and now.ranks == then.ranks:
        # A run's parts get the mean that the page shows.
        bounds = _interval(
            *(
                [part * mean / statistics.fmean(own) for part in own]
                for own, mean in zip(parts, (new, old), strict=True)
            )
        )
    return Change(new / old - 1, name.replace("_per_", "/") or curves[0].unit, *(bound / old for bound in bounds))


def _measured(name: str, *pages: ReportPage) -> list[float]:
    return [found for page in pages if (found := getattr(page.measured, name, None))]


def _parts(values: Sequence[float | None]) -> list[float]:
    known = [value for value in values if value is not None]
    with_steps = [place for place, value in enumerate(known) if value]
    if not with_steps:
        return []
    known = known[with_steps[0] : with_steps[-1] + 1]
    known = known[math.ceil(len(known) * _WARM_UP) :]
    size = max(1, len(known) // PARTS)
    return [statistics.fmean(known[at : at + size]) for at in range(0, len(known) - size + 1, size)]


def _interval(now: Sequence[float], then: Sequence[float]) -> tuple[float, ...]:
    if min(len(now), len(then)) < MIN_PARTS:
        return ()
    one, two = statistics.variance(now) / len(now), statistics.variance(then) / len(then)
    difference = statistics.fmean(now) - statistics.fmean(then)
    if one + two == 0:
        return difference, difference
    freedom = (one + two) ** 2 / (one**2 / (len(now) - 1) + two**2 / (len(then) - 1))
    t = _T_95[max((known for known in _T_95 if known <= freedom), default=4)]
    half = t * math.sqrt(one + two)
    return difference - half, difference + half
