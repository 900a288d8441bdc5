"""Trainings that are wrong though they succeed: what a rank's process says of its training (`inrank/evidence.py`),
what the ranks together show (the row of status.json), and what `why`, the last lines and the page say. Pure.

A doubt is no finding: ranks may hold different parameters on purpose (shards, stages, experts, local steps), or train
on the same data. So parameters that differ count only if nothing that could carry them was sent, and batches that are
the same only if the losses are, too.
"""

from __future__ import annotations

from typing import Iterator, Mapping, NamedTuple, Sequence

from ipexctl.node.common.json_records import NATURAL, FieldDecoder, decode_float
from ipexctl.node.common.levers import LeverNote  # noqa: TC001  # `decode` looks it up

_ALONE = "each trained a model alone, and a checkpoint contains only one of these models"
_WRONG: Mapping[str, tuple[str, str]] = {
    "same-data": (
        "trained on the same data, so together they did no more than one of them",
        "give the DataLoader a DistributedSampler",
    ),
    "same-order": (
        "had the same order of samples in each epoch",
        "call sampler.set_epoch(epoch) before each epoch",
    ),
    "no-exchange": (
        f"{_ALONE}: no gradient was exchanged",
        "wrap the model in DistributedDataParallel, or start copies with --backend none",
    ),
    "bypassed": (
        f"{_ALONE}: no forward pass went through DistributedDataParallel",
        "call the wrapped model, not its .module",
    ),
    "no-sync": (
        f"{_ALONE}: each backward was in no_sync()",
        "leave the last backward before each step out of no_sync()",
    ),
    "small-groups": (
        f"{_ALONE}: DistributedDataParallel has a process group of one rank",
        "leave process_group out",
    ),
    "no-gradients": (
        "trained nothing: no parameter of the optimizer ever had a gradient",
        "call the model whose parameters the optimizer has, outside torch.no_grad()",
    ),
    "zero-gradients": (
        "trained nothing: each gradient was 0",
        "look for a frozen or detached part between the loss and the parameters of the optimizer",
    ),
    "unchanged": (
        "trained nothing: no step changed a weight",
        "set a learning rate that changes weights of this type",
    ),
    "same-losses": (
        "trained on the same data, so together they did no more than one of them",
        "draw other inputs on each rank, as with a seed that contains the rank",
    ),
    "summed-twice": (
        "exchanged their gradients twice, in DistributedDataParallel and by the script's own all-reduce",
        "leave one of them out",
    ),
    "apart": (
        "averaged gradients of different parameters, and a checkpoint contains only the parameters of one rank",
        "broadcast the parameters of rank 0 before the first step, as DistributedDataParallel does",
    ),
    "statistics": (
        "have different running statistics in BatchNorm, and a checkpoint contains only the statistics of one rank",
        "use torch.nn.SyncBatchNorm.convert_sync_batchnorm(model), or leave broadcast_buffers=False out",
    ),
}
"""Kind → what the ranks did, and what to change."""
ALONE = frozenset(("no-exchange", "bypassed", "no-sync", "small-groups"))
"""Kinds of trainings whose ranks exchange nothing."""
FEWEST_STEPS = 8
STEPS_OF_LIVE = 200
"""While a run goes on: ranks may exchange parameters later."""
FEW_NUMBERS = 4
"""A loss and some metrics."""
SMALL_SHARE = 0.01
"""Of the parameters' numbers, a step."""


Loss = float
"""The only number that may be negative."""


class WrongTraining(NamedTuple):
    """A training that is wrong though it succeeds."""

    kind: str
    ranks: tuple[int, ...]
    evidence: str

    @property
    def sentence(self) -> str:
        first, last = min(self.ranks, default=0), max(self.ranks, default=0)
        is_row = len(self.ranks) == last - first + 1
        named = f"{first}-{last}" if is_row else ", ".join(map(str, self.ranks[:16]))
        who = f"rank {first}" if len(self.ranks) == 1 else f"ranks {named}"
        what, fix = _WRONG.get(self.kind, ("trained wrongly", "update ipexctl"))
        return f"{who} {what} ({self.evidence}); fix: {fix}"


class RankProgress(NamedTuple):
    step: int = 0
    """Optimizer steps of the process."""
    before: int = 0
    """Steps before it, if the script resumed."""
    planned: int = 0
    """Steps that the script will have made, with those before; 0 if unknown."""
    loss: Loss | None = None
    began: int = 0
    """Number of the process's first step; 0 if unknown."""
    is_of_trainer: bool = False
    """True if a Trainer counts so, and not only its optimizer."""


class RankTraining(NamedTuple):
    levers: tuple[LeverNote, ...] = ()
    progress: RankProgress = RankProgress()
    steps: int = 0
    """Of the first optimizer."""
    has_gradients: bool = True
    """True once an optimizer was about to step with a gradient."""
    has_nonzero: bool = True
    """True once a gradient was not 0, and a weight has changed, as far as that is looked at."""
    is_changed: bool = True
    rate: float | None = None
    """Highest learning rate that was seen."""
    elements: int = 0
    """Numbers in the parameters of the first optimizer."""
    largest: int = 0
    """Numbers in the largest of them."""
    parameters: Mapping[int, int] = {}
    """Step → hash of the parameters before it."""
    is_seeded: bool = True
    """False if torch had a seed of its own at the first step."""
    sent: int = 0
    """Numbers in the script's own collectives, all and in the largest; DDP's are not among them."""
    most_sent: int = 0
    summed: int = 0
    """Numbers in the script's own all-reduces over all ranks."""
    is_peer_to_peer: bool = False
    batches: tuple[int, ...] = ()
    """Hashes of the first batches of DataLoaders, and of the first losses."""
    losses: tuple[int, ...] = ()
    is_varied: bool = False
    """True if two batches of one DataLoader differ, or the targets of two losses."""
    is_order_repeated: bool = False
    """True if a DistributedSampler gave two epochs of steps the same order."""
    models: int = 0
    """Models of DistributedDataParallel."""
    group: tuple[int, ...] = ()
    """First rank and size of the smallest group of a model."""
    is_synced: bool = False
    """True once a model has prepared to exchange gradients."""
    is_skipped: bool = False
    """True if a forward pass was in `no_sync()`."""
    is_hooked: bool = False
    """True if the script gave a model a communication hook, whose collectives count as the script's."""
    statistics: Mapping[int, int] = {}
    """Step → hash of BatchNorm's running means, if DDP does not broadcast them."""
    statistics_size: int = 0
    tokens_per_sample: float | None = None
    """None without a batch with `input_ids`."""

    @property
    def trains_alone(self) -> bool:
        """True if nothing has left the rank that may have been parameters or gradients."""
        few = max(SMALL_SHARE * self.elements, min(FEW_NUMBERS, self.elements / 2))
        is_large = 2 * self.most_sent >= self.largest or self.sent > few * max(1, self.steps)
        is_synced = self.is_synced and self.group[1:] != (1,)
        return not (self.is_peer_to_peer or is_synced or is_large)

    @property
    def sums_each_step(self) -> bool:
        """True if the script's own all-reduces sum as many numbers as the parameters have, at each step."""
        share = self.summed / (self.elements * (self.steps - 1)) if self.elements and self.steps > 1 else 0.0
        return 1 - SMALL_SHARE < share < 1 + 2 * SMALL_SHARE


def find_wrong(ranks: Mapping[int, RankTraining], world_size: int, *, is_over: bool) -> tuple[WrongTraining, ...]:
    fewest = FEWEST_STEPS if is_over else STEPS_OF_LIVE
    if len(ranks) < world_size or any(rank.steps < fewest for rank in ranks.values()):
        return ()
    return tuple(_find(dict(sorted(ranks.items()))))


def _find(ranks: Mapping[int, RankTraining]) -> Iterator[WrongTraining]:
    found, all_ranks = list(ranks.values()), tuple(ranks)
    if nothing := _trained_nothing(found):
        yield WrongTraining(nothing[0], all_ranks, f"{found[0].steps} steps of the optimizer{nothing[1]}")
        return
    if repeated := tuple(number for number, rank in ranks.items() if rank.is_order_repeated):
        yield WrongTraining("same-order", repeated, "two epochs of its DistributedSampler")
    if len(ranks) < 2:
        return
    for group in _groups(ranks).values():
        first = ranks[group[0]]
        is_same = len({(ranks[rank].batches, ranks[rank].losses) for rank in group}) == 1
        if len(group) < 2 or not is_same or len(first.losses) < FEWEST_STEPS or len(set(first.losses)) < 2:
            continue
        if not all(ranks[rank].is_varied for rank in group):  # one batch again and again, as in a benchmark
            continue
        if len(first.batches) >= FEWEST_STEPS:
            evidence = f"the batches and losses of the first {len(first.batches)} steps are equal"
            yield WrongTraining("same-data", group, evidence)
        elif not first.batches:
            yield WrongTraining("same-losses", group, f"the losses of the first {len(first.losses)} steps are equal")
    if (since := _apart_since(found)) and all(rank.trains_alone for rank in found):
        yield WrongTraining(_kind_of_apart(found), all_ranks, f"parameters differ since step {since}")
    if doubled := _sums(found):
        yield WrongTraining(doubled[0], all_ranks, doubled[1])
    is_one_model = all(rank.models == 1 and rank.is_synced for rank in found)
    is_small = all(rank.most_sent < rank.statistics_size for rank in found)
    if is_one_model and is_small and (since := _first_difference([rank.statistics for rank in found])):
        yield WrongTraining("statistics", all_ranks, f"BatchNorm's running means differ since step {since}")


def _trained_nothing(ranks: Sequence[RankTraining]) -> tuple[str, str] | None:
    """Kind, and more evidence than the number of steps."""
    if not any(rank.has_gradients for rank in ranks):
        return "no-gradients", ""
    if not any(rank.has_nonzero for rank in ranks):
        return "zero-gradients", ""
    if any(rank.is_changed for rank in ranks):
        return None
    return "unchanged", f", learning rate {ranks[0].rate:g} at most" if ranks[0].rate is not None else ""


def _sums(ranks: Sequence[RankTraining]) -> tuple[str, str] | None:
    """What is wrong with the script's own sums of as many numbers as the parameters have, at each step."""
    if not all(rank.sums_each_step for rank in ranks):
        return None
    if all(rank.models == 1 and rank.is_synced and not (rank.is_skipped or rank.is_hooked) for rank in ranks):
        return "summed-twice", f"{ranks[0].summed:,} numbers in {ranks[0].steps} steps"
    if not any(rank.models for rank in ranks) and _differ_always(ranks):
        return "apart", f"parameters differ at each of {ranks[0].steps} steps"
    return None


def _groups(ranks: Mapping[int, RankTraining]) -> dict[tuple[int, ...], tuple[int, ...]]:
    """Group of a model that exchanges gradients → its ranks."""
    groups: dict[tuple[int, ...], tuple[int, ...]] = {}
    for number, rank in ranks.items():
        if rank.is_synced and rank.models:
            groups[rank.group] = (*groups.get(rank.group, ()), number)
    return groups


def _apart_since(ranks: Sequence[RankTraining]) -> int:
    """The first step before which no two ranks had the same parameters any more; 0 if ranks were equal later, or hold
    different ones on purpose."""
    steps = sorted(set.intersection(*(set(rank.parameters) for rank in ranks)))
    if not steps or len({rank.elements for rank in ranks}) > 1:
        return 0
    is_equal = {step: len({rank.parameters[step] for rank in ranks}) == 1 for step in steps}
    if not is_equal[steps[0]] and any(rank.is_seeded for rank in ranks):
        return 0
    later = [step for step in steps[1:] if not is_equal[step]]
    return later[0] if later and len(later) == len(steps) - 1 else 0


def _differ_always(ranks: Sequence[RankTraining]) -> bool:
    steps = set.intersection(*(set(rank.parameters) for rank in ranks))
    is_one_model = len({(rank.elements, rank.largest) for rank in ranks}) == 1
    return (
        is_one_model
        and len(steps) >= FEWEST_STEPS
        and all(len({rank.parameters[step] for rank in ranks}) > 1 for step in steps)
    )


def _first_difference(hashes: Sequence[Mapping[int, int]]) -> int:
    steps = sorted(set.intersection(*map(set, hashes)))
    differs = [step for step in steps if len({each[step] for each in hashes}) > 1]
    return differs[0] if differs and steps[-1] in differs else 0


def _kind_of_apart(ranks: Sequence[RankTraining]) -> str:
    if not all(rank.models for rank in ranks):
        return "no-exchange"
    if any(rank.group[1:] == (1,) for rank in ranks):
        return "small-groups"
    return "no-sync" if any(rank.is_skipped for rank in ranks) else "bypassed"


FIELD_DECODERS: dict[str, FieldDecoder] = {**NATURAL, "Loss": decode_float}
