"""Searches on made-up responses: how often the algorithm of `autotune` finds the optimum, and claims what is not there.

    python -m tests.search_simulations [SEEDS]

A response has 5 groups of settings; each start of a plan is noisy as a whole (5 %), and each of its 20 steps (10 %).
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ipexctl.extras.autotune.model import Observation, SearchLimits, Settings, Space
from ipexctl.extras.autotune.search import SearchState, Verdict

STARTS = 70
FINAL_STARTS = 16
BETWEEN_STARTS, WITHIN_START, STEPS = 0.05, 0.10, 20

Response = Sequence[Mapping[str, float]]
"""Of each group the gain of each candidate."""
RESPONSES: Mapping[str, Response] = {
    "one setting gains 20 %": (
        {"b": 0.20, "c": -0.10}, {"b": -0.05}, {"b": 0.0, "c": 0.0}, {"b": 0.0, "c": -0.2}, {"b": -0.03, "c": -0.3},
    ),
    "two gain 12 and 7 %": (
        {"b": 0.12, "c": -0.10}, {"b": 0.07, "c": -0.06}, {"b": -0.05, "c": 0.0}, {"b": 0.0, "c": -0.2},
        {"b": -0.08, "c": -0.3},
    ),
    "two gain, one candidate a group": ({"b": 0.12}, {"b": 0.07}, {"b": -0.1}, {"b": -0.2}, {"b": -0.1}),
    "three gain 12, 5 and 2 %": (
        {"b": 0.12, "c": -0.10}, {"b": 0.05, "c": -0.06}, {"b": 0.02, "c": 0.0}, {"b": 0.0, "c": -0.2},
        {"b": -0.03, "c": -0.3},
    ),
    "five gain 4 % each": ({"b": 0.04}, {"b": 0.04}, {"b": 0.04}, {"b": 0.04}, {"b": 0.04}),
}  # fmt: skip
EQUAL: Response = ({"b": 0.0, "c": 0.0},) * 5
PROVED = tuple(RESPONSES)[:4]
"""The responses for which the optimum is found in 95 of 100 searches; smaller gains need more starts than 70."""


class Simulated(NamedTuple):
    verdict: Verdict
    starts: int
    reached: float
    """The speed of what the search leaves the user with, by that of the optimum."""


def simulate(response: Response, seed: int, *, batch_cheat: float = 0.0) -> Simulated:
    """One search. `batch_cheat`: a further candidate seems so much faster, as it halves the batch."""
    noise = random.Random(seed)
    gains = {f"g{number}": dict(group) for number, group in enumerate(response)}
    if batch_cheat:
        gains["g0"]["cheat"] = batch_cheat
    space = Space(tuple(gains), lambda group, _: tuple(((group, name),) for name in gains[group]))
    state = SearchState(space, SearchLimits(math.inf, STARTS - FINAL_STARTS), seed)
    while (trial := (progress := state.progress()).next) is not None:
        state = state.after(_observe(trial.settings, gains, noise))
    assert progress.verdict is not None
    adopted = progress.verdict.settings if progress.verdict.ending == "gain" else ()
    optimum = math.prod(1 + max(0.0, *group.values()) for group in response)
    return Simulated(progress.verdict, len(state.observations), _speed(adopted, gains) / optimum)


def _speed(settings: Settings, gains: Mapping[str, Mapping[str, float]]) -> float:
    return math.prod(1 + gains[group][name] for group, name in settings)


def _observe(settings: Settings, gains: Mapping[str, Mapping[str, float]], noise: random.Random) -> Observation:
    rate = _speed(settings, gains) * math.exp(noise.gauss(0, BETWEEN_STARTS))
    seconds = sum(max(0.1, noise.gauss(1, WITHIN_START)) for _ in range(STEPS)) / rate
    samples = 128.0 if "cheat" in dict(settings).values() else 256.0
    return Observation(20.0, STEPS / seconds, samples)


def main(seeds: int) -> None:
    for name, response in RESPONSES.items():
        found = [simulate(response, seed) for seed in range(seeds)]
        near, most = sum(one.reached >= 0.97 for one in found), max(one.starts for one in found)
        print(f"{name}: within 3 % of the optimum in {near} of {seeds}, at most {most} starts")
    equal = [simulate(EQUAL, seed) for seed in range(seeds)]
    print(f"all equal: a gain claimed in {sum(one.verdict.ending == 'gain' for one in equal)} of {seeds}")
    cheats = [simulate(RESPONSES[PROVED[1]], seed, batch_cheat=0.8) for seed in range(seeds)]
    chosen = sum("cheat" in dict(one.verdict.settings).values() for one in cheats)
    print(f"a candidate that halves the batch: chosen in {chosen} of {seeds}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
