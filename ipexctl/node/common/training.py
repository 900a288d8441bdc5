"""Trainings that are wrong though they succeed: what a rank's process says of its training (`inrank/evidence.py`),
what the ranks together show (the row of status.json), and what `why`, the last lines and the page say. Pure.

A training is called wrong for what was done to its gradients and parameters. Where ranks may do the same on purpose
(folds, an ensemble, parts of a model of their own, a global loss), the sentence says what was seen and what to check.
"""

from __future__ import annotations

from typing import Iterable, Iterator, Mapping, NamedTuple, Sequence

from ipexctl.node.common.json_records import (
    NATURAL,
    Computed,
    FieldDecoder,
)
from ipexctl.node.common.lever_records import LeverNote  # noqa: TC001  # `decode` looks it up

_ALONE = "each trained a model alone, and a checkpoint contains only one of these models"
_SHARED = "wrap the model in DistributedDataParallel if they should train one; folds or an ensemble need nothing"
_DATA = "look at the sampler and the seed of the data"
_WRONG: Mapping[str, tuple[str, str]] = {
    "same-data": (
        "trained on the same data, so together they did no more than one of them",
        "give the DataLoader a DistributedSampler, or draw data with a seed that contains the rank",
    ),
    "same-order": (
        "had the same order of samples in each epoch",
        "call sampler.set_epoch(epoch) before each epoch",
    ),
    "bypassed": (
        f"{_ALONE}: no forward pass went through DistributedDataParallel",
        "call the wrapped model, not its .module",
    ),
    "no-sync": (
        f"{_ALONE}: each backward was in no_sync()",
        "leave the last backward before each step out of no_sync()",
    ),
    "no-gradients": (
        "trained nothing: no parameter of the optimizer ever had a gradient",
        "call the model whose parameters the optimizer has, outside torch.no_grad()",
    ),
    "cleared": (
        "trained nothing: no step had a gradient that was not 0, and the backward's were cleared before it",
        "call zero_grad() before the backward, or after the step",
    ),
    "zero-gradients": (
        "trained nothing: each gradient was 0",
        "look for a frozen or detached part between the loss and the parameters of the optimizer",
    ),
    "unchanged": (
        "trained nothing: after all steps, each weight is what it was before the first",
        "set a learning rate that changes weights of this type",
    ),
    "not-cleared": (
        "stepped with the sum of all gradients since the start: nothing cleared them between two steps",
        "call optimizer.zero_grad() before each backward",
    ),
    "summed-twice": (
        "exchanged their gradients twice, in DistributedDataParallel and by the script's own all-reduce",
        "leave one of them out",
    ),
    "apart": (
        "averaged gradients of different parameters, and a checkpoint contains only the parameters of one rank",
        "broadcast the parameters of rank 0 before the first step, as DistributedDataParallel does",
    ),
    "differ": (
        "have different parameters although DistributedDataParallel averages gradients: a checkpoint is of one rank",
        "load weights before DistributedDataParallel(model), and step alike on all ranks (learning rate, clipping)",
    ),
    "no-step": (
        "made no step of an optimizer, though others did, and kept the first parameters",
        "call optimizer.step() on all ranks",
    ),
}
"""Kind → what the ranks did, and what to change."""
_QUESTIONS: Mapping[str, tuple[str, str]] = {
    "nothing-yet": (
        "have changed no weight yet",
        "look for a learning rate of 0, and for a frozen or detached part between the loss and the optimizer",
    ),
    "no-exchange": ("exchanged no gradients", _SHARED),
    "small-groups": ("are in process groups of one rank each, and exchanged no gradients", _SHARED),
    "outside": (
        "trained parameters outside of DistributedDataParallel, which differ",
        "wrap the model that has these, too, if the ranks should share them",
    ),
    "divided-twice": (
        "have datasets that differ, of which a DistributedSampler gives each rank a part",
        "give the sampler the whole dataset, or a rank its own part without that sampler",
    ),
    "same-inputs": ("fed their models the same inputs", _DATA),
    "same-losses": ("had losses that are equal to the last digit", f"if this is no global loss, {_DATA}"),
}
"""Kind → what was seen, which may be right, and what to look at."""
_OF_ALL = ("same-order", "not-cleared")
"""Kinds that a later epoch or step may refute."""
ALONE = frozenset(("no-exchange", "bypassed", "no-sync", "small-groups"))
"""Kinds of trainings whose ranks exchange nothing."""
FEWEST_STEPS = 8
STEPS_OF_LIVE = 200
"""While a run goes on: ranks may exchange parameters later."""
FEW_NUMBERS = 4
"""A loss and some metrics."""
SMALL_SHARE = 0.01
"""Of the parameters' numbers, a step."""
ROUNDED = 1e-4
"""Measures of equal parameters differ by less, also on processors that round in other ways."""


class WrongTraining(NamedTuple):
    """A training that is wrong though it succeeds, or that may be."""

    kind: str
    ranks: tuple[int, ...]
    evidence: str
    certain: bool = True
    """False if the ranks may have done this on purpose."""

    @classmethod
    def seen(cls, kind: str, ranks: Iterable[int], evidence: str) -> WrongTraining:
        """Return the wrong training of a kind; a kind of `_QUESTIONS` is not certain."""
        return cls(kind, tuple(ranks), evidence, kind in _WRONG)

    @property
    def sentence(self) -> str:
        """Return who did what, by which evidence, and what to change or to check."""
        first, last = min(self.ranks, default=0), max(self.ranks, default=0)
        is_row = len(self.ranks) == last - first + 1
        named = f"{first}-{last}" if is_row else ", ".join(map(str, self.ranks[:16]))
        who = f"rank {first}" if len(self.ranks) == 1 else f"ranks {named}"
        unknown = "trained wrongly", "update ipexctl"
        what, advice = _WRONG.get(self.kind) or _QUESTIONS.get(self.kind, unknown)
        return f"{who} {what} ({self.evidence}); {'fix' if self.certain else 'check'}: {advice}"


class RankProgress(NamedTuple):
    """How far a rank's training has come."""

    step: int = 0
    """Optimizer steps of the process."""
    before: int = 0
    """Steps before it, if the script resumed."""
    planned: int = 0
    """Steps that the script will have made, with those before; 0 if unknown."""
    loss: Computed | None = None
    began: int = 0
    """Number of the process's first step; 0 if unknown."""
    is_of_trainer: bool = False
    """True if a Trainer counts so, and not only its optimizer."""


class RankTraining(NamedTuple):
    """What one rank's process says of its training. The defaults accuse nobody."""

    levers: tuple[LeverNote, ...] = ()
    """What became of each option that makes a training faster, in this rank."""
    progress: RankProgress = RankProgress()
    steps: int = 0
    """Of the first optimizer."""
    backwards: int = 0
    """Calls of backward, also those without a step."""
    has_gradients: bool = True
    """True once an optimizer was about to step with a gradient; of all steps."""
    is_cleared: bool = False
    """True if a parameter of the optimizer had a gradient after a backward, and none at the step."""
    has_nonzero: bool = True
    """True once a gradient was not 0 at a step; of all steps."""
    is_changed: bool = True
    """False if the weights of all optimizers are what they were before the first step, or are not known to differ."""
    rate: float | None = None
    """Highest learning rate that was seen."""
    intervals: int = 0
    """Pairs of successive steps that were looked at, and those between which a backward added to the gradients."""
    carried: int = 0
    is_written: bool = False
    """True once something cleared or changed a gradient between a step and the next backward, of all steps; or if the
    optimizer is not torch's."""
    elements: int = 0
    """Numbers in the parameters of the first optimizer."""
    largest: int = 0
    """Numbers in the largest of them."""
    parameters: Mapping[int, Computed] = {}
    """Step → measure of the parameters before it; only those in DistributedDataParallel if there are some."""
    outside: Mapping[int, Computed] = {}
    """The others, then, without those that DistributedDataParallel was told to ignore."""
    ends: tuple[Computed, ...] = ()
    """The step after the last, and the measures of both at the end of the optimizer; empty if it is not known."""
    sent: int = 0
    """Numbers in the script's own collectives, all and in the largest; DDP's are not among them."""
    most_sent: int = 0
    reduced: int = 0
    """Steps that were looked at in which the script's own all-reduces summed the gradients; with DDP only in place."""
    is_peer_to_peer: bool = False
    inputs: tuple[int, ...] = ()
    """Hashes of what the model was fed, or of a DataLoader's batches, and of the losses, of backwards that were looked
    at."""
    losses: tuple[int, ...] = ()
    all_losses: int = 0
    """Hash of the losses of all steps; 0 if unknown."""
    is_varied: bool = False
    """True if two of the inputs differ, or the targets of two losses."""
    is_joint: bool = False
    """True if a loss may depend on other ranks: a collective came before it, or a function that torch does not know."""
    divided: tuple[int, ...] = ()
    """Hash and number of the rows that a DistributedSampler divides among so many ranks; 0 if the rows are unknown."""
    is_order_repeated: bool = False
    """True if a DistributedSampler gave all epochs of steps the same order."""
    models: int = 0
    """Models of DistributedDataParallel."""
    group: tuple[int, ...] = ()
    """First rank and size of the smallest group of a model."""
    is_synced: bool = False
    """True once a model has prepared to exchange gradients."""
    is_skipped: bool = False
    """True if a forward pass was in `no_sync()`."""
    is_bypassed: bool = False
    """True if a backward followed no forward pass of a model in DistributedDataParallel."""
    is_hooked: bool = False
    """True if the script gave a model a communication hook, whose collectives count as the script's."""
    tokens_per_sample: float | None = None
    """None without a batch with `input_ids`."""

    @property
    def trains_alone(self) -> bool:
        """True if nothing has left the rank that may have been parameters or gradients."""
        is_synced = self.is_synced and self.group[1:] != (1,)
        return not (is_synced or self.may_share)

    @property
    def may_share(self) -> bool:
        """True if the script's own collectives may have carried parameters."""
        few = max(SMALL_SHARE * self.elements, min(FEW_NUMBERS, self.elements / 2))
        is_large = 2 * self.most_sent >= self.largest or self.sent > few * max(1, self.steps)
        return self.is_peer_to_peer or is_large

    @property
    def is_plain(self) -> bool:
        """True if DistributedDataParallel alone exchanges its gradients, at each backward."""
        return self.models == 1 and self.is_synced and not (self.is_skipped or self.is_bypassed or self.is_hooked)

    def measures(self, *, outside: bool = False) -> Mapping[int, float]:
        """Return step → measure of the parameters, with that at the end. `outside`: of those outside of
        DistributedDataParallel."""
        by_step: Mapping[int, float] = self.outside if outside else self.parameters
        is_known = len(self.ends) == 3 and bool(by_step)
        return {**by_step, int(self.ends[0]): self.ends[2 if outside else 1]} if is_known else by_step

    @property
    def is_never_cleared(self) -> bool:
        """Return True if no gradient was cleared or changed between two steps, and each backward added to it."""
        return self.intervals > 0 and self.has_always(self.carried) and not self.is_written

    def has_always(self, steps: int) -> bool:
        """Return True if so many of the steps that were looked at are all of them: one fewer than there are measures of
        the parameters, and FEWEST_STEPS - 1 at least."""
        return steps >= max(FEWEST_STEPS, len(self.parameters)) - 1


def find_wrong(ranks: Mapping[int, RankTraining], world_size: int, *, is_over: bool) -> tuple[WrongTraining, ...]:
    """Return what is wrong with the training of all ranks; empty if nothing is, or if too little is known.

    `is_over`: the run has ended. Before that, only what later steps can't refute is returned, after STEPS_OF_LIVE
    steps.
    """
    if len(ranks) < world_size:
        return ()
    if is_over and (idle := _idle(ranks)):
        return (WrongTraining.seen("no-step", idle, f"{ranks[idle[0]].backwards:,} backward passes"),)
    if any(rank.steps < (FEWEST_STEPS if is_over else STEPS_OF_LIVE) for rank in ranks.values()):
        return ()
    if not is_over and not any(rank.is_changed for rank in ranks.values()):
        steps = min(rank.steps for rank in ranks.values())
        return (WrongTraining.seen("nothing-yet", sorted(ranks), f"{steps:,} steps of the optimizer"),)
    wrong = tuple(_find(dict(sorted(ranks.items()))))
    return wrong if is_over else tuple(fault for fault in wrong if fault.certain and fault.kind not in _OF_ALL)


def _idle(ranks: Mapping[int, RankTraining]) -> tuple[int, ...]:
    """Return the ranks that exchanged gradients with others, and made no step and changed nothing while the others
    train."""
    idle = [number for number, rank in ranks.items() if not rank.steps and rank.is_plain and not rank.is_changed]
    others = [rank for number, rank in ranks.items() if number not in idle]
    is_training = all(rank.steps >= FEWEST_STEPS and rank.is_plain for rank in others)
    return tuple(sorted(idle)) if others and is_training else ()


def _find(ranks: Mapping[int, RankTraining]) -> Iterator[WrongTraining]:
    trainings, all_ranks, seen = list(ranks.values()), tuple(ranks), WrongTraining.seen
    if nothing := _trained_nothing(trainings):
        yield seen(nothing[0], all_ranks, f"{trainings[0].steps} steps of the optimizer{nothing[1]}")
        return
    if kept := [number for number, rank in ranks.items() if rank.is_never_cleared]:
        yield seen("not-cleared", kept, f"each of the {ranks[kept[0]].carried} times that were looked at")
    if repeated := [number for number, rank in ranks.items() if rank.is_order_repeated]:
        yield seen("same-order", repeated, "all epochs of its DistributedSampler")
    if len(ranks) < 2:
        return
    rows = {rank.divided[0] for rank in trainings if rank.divided[2:] == (len(trainings),)}
    if 0 not in rows and len(rows) == len(trainings):
        yield seen(
            "divided-twice", all_ranks, f"1 of {len(trainings)} of the {trainings[0].divided[1]:,} rows of rank 0"
        )
    if all(rank.is_plain and rank.has_always(rank.reduced) for rank in trainings):
        yield seen("summed-twice", all_ranks, f"in each of {trainings[0].reduced} steps that were looked at")
    for group in _groups(ranks).values():
        yield from _alike(group, [ranks[number] for number in group])
        yield from _differing(group, [ranks[number] for number in group])
    since = _apart_since([rank.measures() for rank in trainings]) if _is_one_model(trainings) else 0
    if since and all(rank.trains_alone for rank in trainings):
        yield seen(_kind_of_apart(trainings), all_ranks, f"parameters differ since step {since}")
    elif (
        since
        and not any(rank.models for rank in trainings)
        and all(rank.has_always(rank.reduced) for rank in trainings)
    ):
        yield seen("apart", all_ranks, f"parameters differ since step {since}")


def _alike(numbers: tuple[int, ...], ranks: Sequence[RankTraining]) -> Iterator[WrongTraining]:
    """Yield what is wrong with the data on which ranks of one model trained."""
    first = ranks[0]
    if len(ranks) < 2 or len(first.losses) < FEWEST_STEPS or not all(rank.is_varied for rank in ranks):
        return  # one batch again and again, as in a benchmark
    if any(rank.is_joint for rank in ranks):
        return
    is_fed_alike = all(first.inputs) and len({rank.inputs for rank in ranks}) == 1
    is_known = all(map(all, (rank.inputs for rank in ranks)))
    is_equal = len({(rank.losses, rank.all_losses) for rank in ranks}) == 1
    if is_fed_alike and first.is_synced:
        inputs = f"the inputs of the {len(first.losses)} steps that were looked at"
        kind, which = ("same-data", f"{inputs} and all losses") if is_equal else ("same-inputs", inputs)
        yield WrongTraining.seen(kind, numbers, f"{which} are equal")
    elif is_equal and (is_fed_alike or not is_known) and len(set(first.losses)) > 1:
        yield WrongTraining.seen("same-losses", numbers, f"the losses of all {first.steps} steps")


def _differing(numbers: tuple[int, ...], ranks: Sequence[RankTraining]) -> Iterator[WrongTraining]:
    """Yield that the parameters of one model in DistributedDataParallel are not equal any more, or those beside it."""
    if not all(rank.is_plain for rank in ranks) or not _is_one_model(ranks) or any(rank.may_share for rank in ranks):
        return
    if since := _apart_since([rank.measures() for rank in ranks]):
        yield WrongTraining.seen("differ", numbers, f"since step {since}")
    if since := _apart_since([rank.measures(outside=True) for rank in ranks]):
        yield WrongTraining.seen("outside", numbers, f"since step {since}")


def _trained_nothing(ranks: Sequence[RankTraining]) -> tuple[str, str] | None:
    """Return the kind, and more evidence than the number of steps; None if a weight has changed by the end, or may
    have."""
    if any(rank.is_changed for rank in ranks):
        return None
    if not any(rank.has_gradients for rank in ranks):
        return "cleared" if all(rank.is_cleared for rank in ranks) else "no-gradients", ""
    if not any(rank.has_nonzero for rank in ranks):
        return "cleared" if all(rank.is_cleared for rank in ranks) else "zero-gradients", ""
    return "unchanged", f", learning rate {ranks[0].rate:g} at most" if ranks[0].rate is not None else ""


def _groups(ranks: Mapping[int, RankTraining]) -> dict[tuple[int, ...], tuple[int, ...]]:
    """Return group of a model that exchanges gradients → its ranks; all ranks together if there is no such model."""
    groups: dict[tuple[int, ...], tuple[int, ...]] = {}
    for number, rank in ranks.items():
        key = rank.group if rank.is_synced and rank.models else ()
        groups[key] = (*groups.get(key, ()), number)
    return groups


def _is_one_model(ranks: Sequence[RankTraining]) -> bool:
    return len({(rank.elements, rank.largest) for rank in ranks}) == 1


def _apart_since(measures: Sequence[Mapping[int, float]]) -> int:
    """Return the first step since which the parameters of ranks differ at each step that was looked at; 0 if they were
    equal at the last, or differ at that one only."""
    steps = sorted(set.intersection(*map(set, measures)))
    differs = [
        max(values) - min(values) > ROUNDED for values in ([of_rank[step] for of_rank in measures] for step in steps)
    ]
    equal = [at for at, differ in enumerate(differs) if not differ]
    later = steps[equal[-1] + 1 if equal else 0 :]
    return later[0] if len(later) > 1 else 0


def _kind_of_apart(ranks: Sequence[RankTraining]) -> str:
    if not all(rank.models for rank in ranks):
        return "no-exchange"
    if any(rank.group[1:] == (1,) for rank in ranks):
        return "small-groups"
    return "no-sync" if any(rank.is_skipped for rank in ranks) else "bypassed"


FIELD_DECODERS: dict[str, FieldDecoder] = {**NATURAL}
