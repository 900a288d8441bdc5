"""Round after round: which, in what order, and what each took."""

from __future__ import annotations

import random
import statistics
import sys
from typing import TYPE_CHECKING

from .happenings import HAPPENINGS
from .play import Lie, Play

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .happenings import Happening
    from .play import Played
    from .stage import Stage


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def chosen(count: int, seed: int, among: list[Happening]) -> list[Happening]:
    """All of them before any comes again."""
    chance = random.Random(seed)
    found: list[Happening] = []
    while len(found) < count:
        found += chance.sample(among, len(among))
    return found[:count]


def rounds(stage: Stage, count: int, seed: int, among: list[Happening]) -> dict[str, list[Played]]:
    """Raises the first Lie."""
    figures: dict[str, list[Played]] = {}
    for number, happening in enumerate(chosen(count, seed, among)):
        play = Play(stage, happening, random.Random(f"{seed}/{number}"))
        try:
            played = play.play()
        except Lie as lie:
            say(f"{number + 1:3} {happening.name}: A LIE ({play.run}, rank {play.victim}): {lie}")
            raise
        figures.setdefault(happening.name, []).append(played)
        say(f"{number + 1:3} {happening.name}: true; all gone after {played.gone:.1f} s, prompt {played.prompt:.1f} s")
    return figures


def possible(stage: Stage, only: str) -> list[Happening]:
    found = [each for each in HAPPENINGS if only in each.name]
    if any(each.needs_memory for each in found) and not stage.groups:
        say("left out, as this machine has no memory cgroup of version 1 that we may write to: want of memory")
    return [each for each in found if stage.groups or not each.needs_memory]


def show(figures: Mapping[str, Sequence[Played]]) -> None:
    say(f"\n{'seconds from the fault':40} {'last process gone':>20} {'prompt':>16}   median, worst")
    for name, played in sorted(figures.items()):
        gone, prompt = [each.gone for each in played], [each.prompt for each in played]
        words = [f"{statistics.median(values):.1f} {max(values):.1f}" for values in (gone, prompt)]
        say(f"{name:40} {words[0]:>20} {words[1]:>16}   of {len(played)}")
