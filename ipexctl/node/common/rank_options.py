"""The options that act inside ranks through the run's hooks, one row each: all that both sides must know of them. Pure.

`launch/rank_rules.py` has a row for each with its rule and sentences. `node/run/rank/rank_hooks.py`, which ranks import
alone, reads the variables.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Mapping, NamedTuple

if TYPE_CHECKING:
    from ipexctl.node.common.run_options import RunOptions

ChoiceReason = Literal[
    "default", "asked", "possible", "no-process-group", "other-backend", "one-rank-a-host", "one-host", "one-rank",
    "backend-asked", "unequal-hosts", "hooks-off", "torch-unknown", "torch-too-old", "other-processor",
    "more-ranks-than-cores", "no-amx", "no-bf16",
]  # fmt: skip
"""`asked`: the option names this mode. `no-amx` and `no-bf16`: processors of `hosts` gain little or nothing.
`launch/rank_rules.py` has the sentences."""


class Choice(NamedTuple):
    mode: str
    reason: ChoiceReason
    hosts: tuple[str, ...] = ()
    """Hosts that are the reason."""
    calls: tuple[str, ...] = ()
    """For `allreduce`, what uses shared memory: collectives of torch.distributed; or `ddp`, the gradients of DDP."""


class RankOption(NamedTuple):
    name: str
    """Field of `RunOptions`, key of the plan's JSON, and `name` in the notes of `inrank/`."""
    variable: str
    """Tells the hooks of ranks the mode; only a plan sets it."""
    typed: str
    """What a user types for it, with `{mode}` if it has several modes."""
    off: Choice
    """The choice of a plan that does not use it."""
    modes: tuple[str, ...]
    """Modes in which it acts."""
    is_lever: bool = True
    """True if the end of a run tells what became of it."""
    is_silent: bool = False
    """True if the end of a run tells of it only where it was asked for, though a plan uses it by default."""
    is_of_fast: bool = False
    """True if --fast asks for it, too, unless the call says otherwise."""
    is_measured: bool = False
    """True if it is on unless the call says otherwise, and acts where ranks measure a gain; if it is off, they measure
    only. The end of a run tells of it if a rank does."""
    shown: str = ""
    """Its words in the line `precision` of a dry run, with `{mode}` and `{hosts}`, if the choice names hosts; empty if
    it changes no precision."""

    @property
    def advice(self) -> str:
        """What to type, with all modes."""
        return self.typed.format(mode=" or ".join(self.modes))


ALLREDUCE = RankOption(
    "allreduce", "IPEXCTL_ALLREDUCE", "--allreduce {mode}", off=Choice("backend", "asked"), modes=("shared",)
)
WIRE = RankOption(
    "wire", "IPEXCTL_WIRE", "--wire {mode}", off=Choice("fp32", "default"), modes=("bf16", "int8"),
    shown="gradients between hosts in {mode}",
)  # fmt: skip
SHARE_WEIGHTS = RankOption(
    "share_weights", "IPEXCTL_SHARE_WEIGHTS", "--share-weights {mode}", off=Choice("off", "asked"), modes=("auto",),
    is_lever=False,
)  # fmt: skip
GPU_CODE = RankOption(
    "gpu_code", "IPEXCTL_GPU_CODE", "--gpu-code {mode}", off=Choice("off", "asked"), modes=("auto", "assume"),
    is_silent=True,
)  # fmt: skip
FP32_MATH = RankOption(
    "fp32_math", "IPEXCTL_FP32_MATH", "--fp32-math {mode}", off=Choice("fp32", "default"), modes=("bf16",),
    shown="fp32 matrices with {mode} inputs",
)  # fmt: skip
HALF_MATH = RankOption(
    "half_math", "IPEXCTL_HALF_MATH", "--half-math {mode}", off=Choice("own", "asked"), modes=("auto",),
    is_measured=True, shown="bf16 multiplied in fp32: no bf16 instructions on {hosts}",
)  # fmt: skip
AUTOCAST = RankOption(
    "autocast", "IPEXCTL_AUTOCAST", "--autocast {mode}", off=Choice("off", "default"), modes=("bf16",),
    is_of_fast=True, shown="autocast {mode}",
)  # fmt: skip
FUSED_OPTIMIZER = RankOption(
    "fused_optimizer", "IPEXCTL_FUSED_OPTIMIZER", "--fused-optimizer", off=Choice("off", "default"), modes=("on",),
    is_of_fast=True,
)  # fmt: skip
RANK_OPTIONS: Mapping[str, RankOption] = {
    option.name: option
    for option in (AUTOCAST, FUSED_OPTIMIZER, FP32_MATH, HALF_MATH, ALLREDUCE, WIRE, SHARE_WEIGHTS, GPU_CODE)
}
"""In the order in which reports name them."""
ALL_OFF: Mapping[str, Choice] = {name: option.off for name, option in RANK_OPTIONS.items()}
OF_VARIABLES: Mapping[str, RankOption] = {option.variable: option for option in RANK_OPTIONS.values()}


def mode_asked(asked: RunOptions, option: RankOption) -> str:
    """Return the mode that the call asks for; empty if it leaves the choice to ipexctl or wants the option off."""
    value = getattr(asked, option.name)
    is_default = value == asked._field_defaults[option.name]
    if is_default and option.is_of_fast and asked.fast:
        return option.modes[0]
    return "" if is_default or value == option.off.mode else value if isinstance(value, str) else option.modes[0]
