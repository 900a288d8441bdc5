"""Options that make a training faster, and what became of each: the note of a rank (`inrank/acted.py`), the row of
status.json, and what `why`, the last lines and the page say. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Iterable, Iterator, Mapping, NamedTuple, Sequence

from ipexctl.node.common.json_records import NATURAL, FieldDecoder, check_type
from ipexctl.node.common.rank_options import RANK_OPTIONS, mode_asked

if TYPE_CHECKING:
    from ipexctl.node.common.plan import Plan

WORTH = 1.05
"""Least speedup worth advising."""
_MAX_TEXT = 200
_REASONS: Mapping[str, str] = {
    "no-bf16": "not all processors have bf16 instructions",
    "torch-too-old": "torch is too old",
    "hooks-off": "ipexctl's hooks are off",
}


class LeverNote(NamedTuple):
    """What a process of a rank says."""

    name: str
    acted: bool
    steps: int
    reason: str


class Lever(NamedTuple):
    name: str
    option: str
    """As typed: `--autocast bf16`."""
    asked: bool = True
    """False if only --profile measured it, or if it acted by default."""
    acted: bool | None = None
    """None if unknown."""
    steps: int = 0
    """Optimizer steps of a rank in which it acted."""
    reason: str = ""
    """Why it did not act, or not everywhere."""
    speedup: float | None = None
    """With it, the run would make this many times as many steps in the same time; None unless --profile measured it."""

    @property
    def sentence(self) -> str:
        """What became of the option, as a sentence for the user."""
        if self.acted is None:
            return f"{self.option}: unknown whether it acted, as {self.reason}"
        if not self.acted:
            return f"{self.option} changed no step: {self.reason}"
        more = f"; {self.reason}" if self.reason else ""
        steps = (
            f"in {self.steps:,} step{'' if self.steps == 1 else 's'}"
            if self.steps
            else "but in no step of an optimizer"
        )
        return f"{self.option} acted{'' if self.steps else ','} {steps}{more}"

    @property
    def is_worth_it(self) -> bool:
        """True if --profile measured that it is at least WORTH times as fast."""
        return self.speedup is not None and self.speedup >= WORTH


def asked_levers(plan: Plan, ranks: Iterable[Sequence[LeverNote]]) -> tuple[Lever, ...]:
    """Return what became of each option that was asked for. Unasked, also of options that ranks measure if a rank tells
    it, and of silent ones that the plan uses and that acted on a rank."""
    notes: dict[str, list[LeverNote]] = {name: [] for name, option in RANK_OPTIONS.items() if option.is_lever}
    for rank in ranks:
        for note in rank[: len(notes)]:
            if note.name in notes:
                notes[note.name].append(note)
    levers = {name: _became(name, of_option, plan) for name, of_option in notes.items()}
    return tuple(
        lever
        for name, lever in levers.items()
        if mode_asked(plan.asked, RANK_OPTIONS[name])
        or (notes[name] and RANK_OPTIONS[name].is_measured)
        or (lever.acted and RANK_OPTIONS[name].is_silent and plan.uses(RANK_OPTIONS[name]))
    )


def _became(name: str, notes: Sequence[LeverNote], plan: Plan) -> Lever:
    option = RANK_OPTIONS[name]
    choice = plan.choice(option)
    asked = mode_asked(plan.asked, option)
    typed = option.typed.format(mode=asked or (option.modes[0] if option.is_measured else choice.mode))
    lever = Lever(name, typed, asked=bool(asked) or option.is_measured)
    acted = [note for note in notes if note.acted]
    if acted:
        reason = next((note.reason for note in acted if note.reason), "")
        return lever._replace(acted=True, steps=max(note.steps for note in acted), reason=reason)
    if notes:
        reason = notes[0].reason
    elif not plan.uses(option):
        reason = _REASONS.get(choice.reason, f"the plan has left it out ({choice.reason})")
    elif not plan.asked.meter:
        return lever._replace(reason="--no-meter counts nothing")
    else:
        return lever._replace(reason="no process of a rank told it before its end")
    return lever._replace(acted=False, reason=reason)


def with_speedups(levers: Sequence[Lever], speedups: Mapping[str, float]) -> tuple[Lever, ...]:
    """Add what --profile measured, also of options that were not asked for."""
    asked = tuple(lever._replace(speedup=speedups.get(lever.name)) for lever in levers)
    return (*asked, *_others(speedups, {lever.name for lever in levers}))


def _others(speedups: Mapping[str, float], known: set[str]) -> Iterator[Lever]:
    for name, speedup in speedups.items():
        typed = "--fast" if name == "fast" else RANK_OPTIONS[name].advice if name in RANK_OPTIONS else ""
        if typed and name not in known:
            yield Lever(name, typed, asked=False, acted=False, reason="not asked", speedup=speedup)


def measured(levers: Iterable[Lever]) -> tuple[Lever, ...]:
    """Return the options that --profile measured, the best first."""
    known = (lever for lever in levers if lever.speedup is not None)
    return tuple(sorted(known, key=lambda lever: -(lever.speedup or 0.0)))


def measured_sentence(levers: Sequence[Lever]) -> str:
    """Say which of the options that --profile measured are worth it, the best first, or that none is. Empty if nothing
    was measured."""
    best_first = measured(levers)
    if not best_first:
        return ""
    how = "by its own products and optimizer, timed in the other form"
    worth = [f"{lever.speedup:.2f}x as fast with {lever.option}" for lever in best_first if lever.is_worth_it]
    if worth:
        return f"a step would be {', '.join(worth)}: {how}"
    return f"{', '.join(lever.option for lever in best_first)}: none makes a step {WORTH:.2f}x as fast, {how}"


def _text(value: object, field: str) -> str:
    return check_type(str, value, field)[:_MAX_TEXT]


FIELD_DECODERS: dict[str, FieldDecoder] = {**NATURAL, "str": _text}
