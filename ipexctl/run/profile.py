"""Make the profile of a run from the profiles of its ranks, and the advice that follows from it. Pure.

- The run's parts are those of the rank that waits least for the others, because all ranks step as fast as that one.
- A collective takes all ranks as long as it takes the last one to arrive. So in each step the shortest communication of
  any rank is the all-reduce, and what another rank has above that is waiting.
- Each advice has the number that it follows from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from ipexctl.node.common.fix import Fix
from ipexctl.node.common.json_records import document_from
from ipexctl.node.common.lever_records import Lever, measured, measured_sentence, with_speedups
from ipexctl.node.run.meter.rank_profile import OperatorTime, RankProfile
from ipexctl.run.ranks import describe_ranks
from ipexctl.text import format_count

STEP_PARTS: Final = ("data", "forward", "backward", "wait", "all_reduce", "optimizer", "rest")
"""Parts of a step."""
PART_NAMES: Final = {"data": "data", "wait": "waiting for other ranks", "all_reduce": "collectives"}
_ADVISED: Final = {"data": 0.1, "wait": 0.15, "all_reduce": 0.15}
"""Part → share of a step from which it is worth an advice."""
PYTHON: Final = 0.25
"""Share of a step from which time between operators is worth an advice."""
SMALL_PRODUCT: Final = 50e-6
"""Seconds below which a matrix product is too small for several threads."""
LOW_SHARE: Final = 0.3
"""Share of what the processors can do, below which small products are worth an advice."""
IDLE: Final = 0.5
"""Share of a step that threads compute. If it is smaller, there is an advice."""
SLOWED: Final = 3.0
"""Worst time of a matrix product, compared with its best, from which other programs must use the cores."""
PRODUCTS_MATTER: Final = 0.5
"""Share of a step below which matrix products do not explain the FLOP/s."""


@dataclass(frozen=True, slots=True)
class RankParts:
    """Where the time of a rank's step goes."""

    rank: int
    step: float
    """Seconds of a profiled step."""
    parts: Mapping[str, float] = field(hash=False)
    """Part → its seconds; together they are the step."""

    def share(self, name: str) -> float:
        """Return the part of a step that `name` takes, from 0 to 1."""
        return self.parts[name] / self.step


class ProfileDocument(NamedTuple):
    """Of the rank that waits least: the others wait for it."""

    step: float | None
    """Seconds of a profiled step."""
    usual_step: float | None
    """Seconds of a step without the profiler."""
    steps: int
    first_step: int | None
    rank: int | None
    parts: Mapping[str, float]
    """Part → seconds of a step; they add up to it."""
    ranks: tuple[RankParts, ...]
    operators: tuple[OperatorTime, ...]
    flops: float | None
    """FLOP/s of all profiled ranks; null if not counted."""
    peak: float | None
    """FLOP/s that the processors reach in a large product."""
    share: float | None
    dtype: str | None
    cost: float | None
    levers: tuple[Lever, ...]
    advice: tuple[str, ...]
    notes: tuple[str, ...]


_NONE: Final = RankProfile()


@dataclass(frozen=True, slots=True)
class RunProfile:
    """The newest profile of a run."""

    ranks: tuple[RankParts, ...] = ()
    main: RankParts | None = None
    """The rank that waits least; None if no rank was profiled."""
    of_main: RankProfile = _NONE
    """The profile of `main`."""
    operators: tuple[OperatorTime, ...] = ()
    """Operators of `main`, per step."""
    flops: float | None = None
    """FLOP/s of all profiled ranks; None if not counted."""
    peak: float | None = None
    """FLOP/s that the processors reach in a large product; None if not measured on all ranks."""
    cores: int = 0
    """Cores that the profiled ranks use."""
    notes: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()

    @property
    def share(self) -> float | None:
        """Part of what the processors can compute that the ranks did, from 0 to 1; None if either is unknown."""
        return self.flops / self.peak if self.flops is not None and self.peak else None

    def document(self) -> ProfileDocument:
        """Return the profile as JSON shows it."""
        main, own = self.main, self.of_main
        return document_from(
            ProfileDocument,
            *(self, own),
            step=main.step if main else None,
            usual_step=own.usual if main else None,
            rank=main.rank if main else None,
            parts=main.parts if main else {},
            dtype=own.dtype or None,
            cost=own.cost if main else None,
            levers=measured(with_speedups((), own.speedups)),
        )


def profile_of(profiles: Mapping[int, RankProfile], omp: int | None = None) -> RunProfile | None:
    """Return the profile of the newest request. Profiles of earlier requests are of other steps, and are left out.

    None if no rank was profiled, nor said why not. `omp`: threads of a rank that the user chose; None if ipexctl did.
    """
    newest = max((profile.order for profile in profiles.values()), default=(0, 0))
    profiles = {rank: profile for rank, profile in sorted(profiles.items()) if profile.order == newest}
    usable = {rank: profile for rank, profile in profiles.items() if profile.is_usable}
    notes = tuple(_notes(profiles))
    if not usable:
        return RunProfile(notes=notes) if notes else None
    shared = _all_reduce(list(usable.values()))
    ranks = tuple(_parts(rank, profile, shared) for rank, profile in usable.items())
    main = min(ranks, key=lambda rank: rank.parts["wait"])
    main_profile = usable[main.rank]
    is_counted = all(profile.flops and not profile.is_compiled for profile in usable.values())
    flops = sum(profile.flops / profile.seconds for profile in usable.values()) if is_counted else None
    peaks = [profile.peak for profile in usable.values()]
    profile = RunProfile(
        ranks=ranks,
        main=main,
        of_main=main_profile,
        operators=tuple(_per_step(main_profile)),
        flops=flops,
        peak=sum(peaks) if all(peaks) else None,
        cores=sum(min(profile.threads, profile.cores) for profile in usable.values()),
        notes=notes,
    )
    return replace(profile, advice=tuple(_advice(profile, omp)))


def _notes(profiles: Mapping[int, RankProfile]) -> Iterator[str]:
    """Yield which ranks have no profile, or an incomplete one, and why."""
    reasons: dict[str, list[int]] = {}
    for rank, profile in profiles.items():
        if profile.note:
            reasons.setdefault(f"no profile of {{}}: {profile.note}", []).append(rank)
        elif not profile.is_usable:
            reasons.setdefault("no profile of {}: its figures contradict each other", []).append(rank)
        elif not profile.steps:
            reasons.setdefault("only the beginning of a step of {} was profiled: it took too long", []).append(rank)
        if profile.trace.startswith("!"):
            reasons.setdefault(f"no trace of {{}}: {profile.trace[1:]}", []).append(rank)
    for reason, ranks in reasons.items():
        yield reason.format(describe_ranks(ranks))


def _all_reduce(profiles: Sequence[RankProfile]) -> float:
    """Return the seconds that the all-reduce itself takes in a step: what the rank that comes last spends in it."""
    steps = min(len(profile.communication) for profile in profiles)
    return sum(min(profile.communication[step] for profile in profiles) for step in range(steps)) / steps


def _parts(rank: int, profile: RankProfile, all_reduce: float) -> RankParts:
    """Return where the time of the rank's step goes."""
    steps = max(1, profile.steps)
    seconds = {name: getattr(profile, name) / steps for name in ("data", "forward", "backward", "optimizer", "rest")}
    communication = sum(profile.communication) / steps
    seconds["all_reduce"] = min(all_reduce, communication)
    seconds["wait"] = communication - seconds["all_reduce"]
    return RankParts(rank, profile.seconds / steps, {name: seconds[name] for name in STEP_PARTS})


def _per_step(profile: RankProfile) -> Iterator[OperatorTime]:
    """Yield the operators with calls and seconds of one step."""
    steps = max(1, profile.steps)
    for operator in profile.operators:
        yield operator._replace(calls=-(-operator.calls // steps), seconds=operator.seconds / steps)


def step_sentence(profile: RunProfile) -> str:
    """Return `a profiled step takes 0.21 s: backward 41 %, forward 23 %, …`; empty if no rank was profiled."""
    main = profile.main
    if main is None:
        return ""
    order = sorted(STEP_PARTS, key=lambda name: -main.parts[name])
    named = ", ".join(
        f"{PART_NAMES.get(name, name)} {100 * main.share(name):.0f} %" for name in order if main.share(name) >= 0.005
    )
    who = f" of rank {main.rank}, which waits least," if len(profile.ranks) > 1 else ""
    return f"a profiled step{who} takes {seconds_text(main.step)}: {named}"


def share_sentence(profile: RunProfile) -> str:
    """Return how much of what the processors can do the ranks reached; empty if FLOP/s were not counted."""
    own, share = profile.of_main, profile.share
    if own.is_compiled:
        return "compiled code is not counted in FLOP/s"
    if profile.flops is None:
        return ""
    speed = f"{profile.flops / 1e9:.3g} GFLOP/s"
    if share is None or profile.peak is None:
        return speed
    cores = f"these {profile.cores} cores" if profile.cores != 1 else "this core"
    text = f"{100 * share:.0f} % of what {cores} can do in {own.dtype} ({speed} of {profile.peak / 1e9:.3g})"
    products = own.product_seconds / own.seconds
    if products < PRODUCTS_MATTER:
        text = f"{text}; matrix products take only {100 * products:.0f} % of a step"
    return text


def cost_sentence(profile: RunProfile) -> str:
    """Return what the profiling itself took; empty if no rank was profiled."""
    own = profile.of_main
    if profile.main is None:
        return ""
    first, last = own.first_step, own.first_step + max(1, own.steps) - 1
    steps = f"steps {first} and {last}" if last > first else f"step {first}"
    cost = f"profiling {steps} cost {seconds_text(own.cost)}, and is in no throughput"
    return f"{cost}; a step before took {seconds_text(own.usual)}"


def seconds_text(seconds: float) -> str:
    """Return `0.21 s` or `12 ms`."""
    return f"{seconds:.3g} s" if seconds >= 0.1 else f"{1000 * seconds:.3g} ms"


def _advice(profile: RunProfile, omp: int | None) -> Iterator[str]:
    """Yield what would make the step faster."""
    main, own = profile.main, profile.of_main
    if main is None:
        return
    if levers := measured_sentence(with_speedups((), own.speedups)):
        yield levers
    used = min(own.threads, own.cores) or 1
    if main.share("data") >= _ADVISED["data"]:
        yield f"waiting for data takes {100 * main.share('data'):.0f} % of a step: more DataLoader workers"
    most = max(profile.ranks, key=lambda rank: rank.share("wait"))
    if most.share("wait") >= _ADVISED["wait"]:
        waiting = f"rank {most.rank} waits {100 * most.share('wait'):.0f} % of a step for rank {main.rank}"
        yield f"{waiting}: give both the same work, and their own cores"
    if main.share("all_reduce") >= _ADVISED["all_reduce"]:
        text = f"collectives take {100 * main.share('all_reduce'):.0f} % of a step"
        yield f"{text}: larger batches or gradient accumulation"
    has_gaps = own.gaps >= PYTHON * own.seconds
    if has_gaps:
        yield _gaps_sentence(own)
    average = own.product_seconds / own.products if own.products else SMALL_PRODUCT
    if used > 1 and average < SMALL_PRODUCT and (profile.share or 0.0) < LOW_SHARE:
        text = (
            f"a matrix product takes {1e6 * average:.0f} µs on average, too little for {format_count(used, 'thread')}"
        )
        yield f"{text}: larger batches, or more ranks with fewer threads (--ppn)"
    busy = own.cpu / (own.seconds * used)
    if 2 * own.threads <= own.cores and own.threads != omp:
        text = f"torch uses {format_count(own.threads, 'thread')} on {own.cores} cores"
        yield f"{text}: --omp {own.cores}, and no torch.set_num_threads"
    elif busy < IDLE and not has_gaps and main.share("data") + sum(own.communication) / own.seconds < _ADVISED["data"]:
        text = f"{format_count(used, 'thread')} worked {100 * busy:.0f} % of a step"
        yield f"{text}: larger batches, or more ranks on each host (--ppn)"
    if own.peak_spread >= SLOWED:
        text = f"the same matrix product took {own.peak_spread:.1f} times its best time, at load {own.load:.0f}"
        yield Fix(f"{text}: other programs use these cores: `ipexctl doctor`")


def _gaps_sentence(own: RankProfile) -> str:
    """Return what the time between operators is, as the kernel's figures say: Python, sleep, or a queue for a
    processor.
    """
    share = f"{100 * own.gaps / own.seconds:.0f} % of a step"
    if own.thread_cpu is None or own.queued is None:
        return f"{share} passes between operators, in Python or asleep, or in a queue for a processor: not measured"
    idle = min(own.gaps, own.seconds - own.data - sum(own.communication) - own.thread_cpu)
    if idle - own.queued >= own.gaps / 2:
        return f"the script sleeps or waits outside torch for {100 * (idle - own.queued) / own.seconds:.0f} % of a step"
    if idle >= own.gaps / 2:
        queued = f"its thread waited {100 * own.queued / own.seconds:.0f} % of a step for a processor"
        return Fix(f"{share} passes between operators, and {queued}: other programs use these cores: `ipexctl doctor`")
    return f"Python between operators takes {share}: larger batches, or torch.compile"


def lines_of(profile: RunProfile | None) -> tuple[str, ...]:
    """Return the lines about a profile that `why` shows; empty without a profile."""
    if profile is None:
        return ()
    texts = (step_sentence(profile), share_sentence(profile), *profile.advice, *profile.notes)
    return tuple(text for text in texts if text)
