"""Choose each rank option, set the variable that tells the ranks, and write what the user is told.

There is a row for each option of `node/common/rank_options.py`. All ranks must round alike, so an option that changes
rounding is on for all hosts or for none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from ipexctl.hosts.nodeset import fold
from ipexctl.launch.allreduce import (
    HOOKS_SWITCH,
    OLDEST_TORCH,
    Version,
    choose_allreduce,
    choose_share_weights,
    choose_wire,
    obstacle_of_hooks,
    reason_text,
)
from ipexctl.launch.plan_draft import NodeLayout, PlanDraft
from ipexctl.node.common.fix import Fix
from ipexctl.node.common.plan import Plan, Setting
from ipexctl.node.common.rank_options import (
    ALLREDUCE,
    AUTOCAST,
    FP32_MATH,
    FUSED_OPTIMIZER,
    GPU_CODE,
    HALF_MATH,
    SHARE_WEIGHTS,
    WIRE,
    Choice,
    ChoiceReason,
    RankOption,
    mode_asked,
)

IPEX: Final = "intel-extension-for-pytorch"
OLDEST_ROUNDING: Final[Version] = (2, 3)
"""The same as in `node/run/rank/rank_hooks.py`. With an older torch, only IPEX rounds on CPUs."""
OLDEST_FUSED: Final[Version] = (2, 4)
"""The first torch with fused optimizers for CPUs."""
OLDEST_HALF: Final[Version] = (2, 0)
"""The first torch for which the hooks can change products of bf16 and fp16."""
OLDEST_GPU_CODE: Final[Version] = (2, 0)
"""The first torch with `torch.utils._device`, which knows all functions that make tensors on a device."""
_BF16_TIERS: Final = ("avx512_bf16", "amx")
_INSTRUCTIONS: Final = "bf16 instructions (AMX or AVX512_BF16)"


@dataclass(frozen=True, slots=True)
class RankRule:
    """One rank option: how it is chosen and explained."""

    option: RankOption
    choose: Callable[[PlanDraft], Choice]
    """Returns the choice. It may read the choices of earlier rows in `context.plan`."""
    reason: str
    """Why the plan sets the variable; `{mode}` stands for the chosen mode."""
    oldest: Version = OLDEST_TORCH
    """The oldest torch that the option needs, for sentences about reasons."""
    way: str = "it"
    """What is not possible, for sentences about reasons."""
    sentences: Mapping[ChoiceReason, str] = field(default_factory=dict)
    """Reason of a choice → the note, if the option was asked for and some `{hosts}` are the reason.

    Other reasons are explained by `reason_text`.
    """

    def value(self, choice: Choice) -> str:
        """Return the value of the variable.

        It is `auto` for shared memory that the user did not ask for: ranks then use it for large collectives and the
        gradients of DDP only.
        """
        return "auto" if choice.reason == "possible" else choice.mode


def hosts_without_bf16(nodes: Sequence[NodeLayout]) -> tuple[str, ...]:
    """Return the names of the nodes whose processor has no bf16 instructions."""
    return tuple(node.name for node in nodes if node.facts.cpu.tier not in _BF16_TIERS)


def _choose_fp32_math(draft: PlanDraft) -> Choice:
    """Return the mode that the user asked for. The reason `no-amx` names hosts where it saves little time."""
    mode = mode_asked(draft.context.asked, FP32_MATH)
    if not mode:
        return FP32_MATH.off
    oldest = (0, 0) if IPEX in draft.context.env.packages else OLDEST_ROUNDING
    if (against := obstacle_of_hooks(draft, oldest)) is not None:
        return FP32_MATH.off._replace(reason=against)
    without = tuple(node.name for node in draft.nodes if node.facts.cpu.tier != "amx")
    return Choice(mode, "no-amx" if without else "asked", without)


def _choose_half_math(draft: PlanDraft) -> Choice:
    """Return `auto`, with which the ranks measure what is faster, unless the user turned it off.

    `no-bf16` names the hosts without bf16 instructions, unless the script may use IPEX.
    """
    if draft.context.asked.half_math == "own":
        return HALF_MATH.off
    if (against := obstacle_of_hooks(draft, OLDEST_HALF)) is not None:
        return HALF_MATH.off._replace(reason=against)
    without = () if IPEX in draft.context.env.packages else hosts_without_bf16(draft.nodes)
    return Choice("auto", "no-bf16" if without else "default", without)


def _choose_autocast(draft: PlanDraft) -> Choice:
    """Return the mode that the user asked for. --fast turns it on only if all processors have bf16 instructions."""
    asked = draft.context.asked
    mode = mode_asked(asked, AUTOCAST)
    if not mode:
        return AUTOCAST.off if asked.autocast == "auto" else AUTOCAST.off._replace(reason="asked")
    if (against := obstacle_of_hooks(draft, OLDEST_TORCH)) is not None:
        return AUTOCAST.off._replace(reason=against)
    without = hosts_without_bf16(draft.nodes)
    if without and asked.autocast == "auto":
        return Choice("off", "no-bf16", without)
    return Choice(mode, "asked", without)


def _choose_fused_optimizer(draft: PlanDraft) -> Choice:
    """Return whether ranks use fused optimizers, as the user asked."""
    mode = mode_asked(draft.context.asked, FUSED_OPTIMIZER)
    against = obstacle_of_hooks(draft, OLDEST_FUSED) if mode else "default"
    return Choice(mode, "asked") if against is None else FUSED_OPTIMIZER.off._replace(reason=against)


def _choose_gpu_code(draft: PlanDraft) -> Choice:
    """Return the mode. Ranks leave a torch alone that finds a GPU."""
    mode = draft.context.asked.gpu_code
    if mode == "off":
        return GPU_CODE.off
    if (against := obstacle_of_hooks(draft, OLDEST_GPU_CODE)) is not None:
        return GPU_CODE.off._replace(reason=against)
    return Choice(mode, "default" if mode == "auto" else "asked")


RULES: Final = (
    RankRule(ALLREDUCE, choose_allreduce, "ranks on one host add gradients up in shared memory", way="shared memory"),
    RankRule(WIRE, choose_wire, "gradients go between hosts as {mode}"),
    RankRule(
        SHARE_WEIGHTS,
        choose_share_weights,
        "frozen parameters that ranks hold alike are not sent, and are one copy a host",
    ),
    RankRule(
        GPU_CODE,
        _choose_gpu_code,
        "what the script places on GPUs is placed on the CPU",
        oldest=OLDEST_GPU_CODE,
    ),
    RankRule(
        FP32_MATH,
        _choose_fp32_math,
        "fp32 matrices are multiplied with bf16 inputs",
        oldest=OLDEST_ROUNDING,
        way="without IPEX it",
        sentences={
            "no-amx": "--fp32-math bf16 saves little time on {hosts}, without AMX; it changes the rounding on all hosts"
        },
    ),
    RankRule(
        HALF_MATH,
        _choose_half_math,
        "bf16 and fp16 products in fp32 where faster; own: never",
        oldest=OLDEST_HALF,
    ),
    RankRule(
        AUTOCAST,
        _choose_autocast,
        "models run under bf16 autocast; parameters, optimizer state and checkpoints stay fp32",
        sentences={
            "no-bf16": f"--fast leaves autocast out: no {_INSTRUCTIONS} on {{hosts}}; --autocast bf16 turns it on "
            "anyway",
            "asked": f"--autocast bf16 may be slower than fp32 on {{hosts}}, without {_INSTRUCTIONS}",
        },
    ),
    RankRule(
        FUSED_OPTIMIZER,
        _choose_fused_optimizer,
        "Adam, AdamW, SGD and Adagrad step with one kernel, unless the script says otherwise",
        oldest=OLDEST_FUSED,
    ),
)


def choose_rank_options(draft: PlanDraft) -> Plan:
    """Return the plan with the choice of each option, in the order of the rows."""
    for rule in RULES:
        chosen = {**draft.plan.rank_options, rule.option.name: rule.choose(draft)}
        draft = draft.with_plan(rank_options=chosen)
    return draft.plan


def settings(draft: PlanDraft) -> Iterator[Setting]:
    """Yield the variable of each option that is on, and of a measured option that was turned off."""
    for rule in RULES:
        choice = draft.plan.choice(rule.option)
        if choice.mode != rule.option.off.mode or (rule.option.is_measured and choice.reason == "asked"):
            without = f"; no {_INSTRUCTIONS} on {fold(choice.hosts)}" * (choice.reason == "no-bf16")
            reason = f"{rule.reason.format(mode=choice.mode)} ({_flag(draft, rule.option)}){without}"
            yield Setting(rule.option.variable, rule.value(choice), reason)


def notes(draft: PlanDraft) -> Iterator[str]:
    """Warn that options that the user asked for are off, or gain little."""
    run_options, without_effect = draft.context.asked, dict[str, list[str]]()
    for rule in RULES:
        option, choice = rule.option, draft.plan.choice(rule.option)
        mode = mode_asked(run_options, option)
        if not mode or choice.reason == "one-rank":  # a single rank has nobody to exchange with, and loses nothing
            continue
        sentence = rule.sentences.get(choice.reason)
        if sentence is not None and choice.hosts:
            yield sentence.format(hosts=fold(choice.hosts))
        elif choice.mode == option.off.mode:
            reason = reason_text(draft, choice, rule.way, rule.oldest) + _FIXES.get(choice.reason, "")
            is_of_all = choice.reason == "hooks-off" and _is_by_fast(draft, option)
            typed = "--fast" if is_of_all else option.typed.format(mode=mode)
            without_effect.setdefault(reason, []).append(typed)
    for reason, options in without_effect.items():
        names = tuple(dict.fromkeys(options))
        yield f"{' and '.join(names)} {'has' if len(names) == 1 else 'have'} no effect: " + reason


_FIXES: Final[Mapping[ChoiceReason, str]] = {
    "other-backend": "; --backend gloo",
    "hooks-off": f"; leave {HOOKS_SWITCH} out",
    "torch-too-old": Fix("; for a newer one: `ipexctl install`"),
}
"""Reason of a choice → what the user can type, appended to the note."""


def _is_by_fast(draft: PlanDraft, option: RankOption) -> bool:
    """True if only --fast turns the option on."""
    asked = draft.context.asked
    return option.is_of_fast and asked.fast and not mode_asked(asked._replace(fast=False), option)


def _flag(draft: PlanDraft, option: RankOption) -> str:
    """Return the flag that turned the option on."""
    return "--fast" if _is_by_fast(draft, option) else option.typed.partition(" ")[0]
