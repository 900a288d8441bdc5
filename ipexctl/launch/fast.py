"""Chooses what `--fast` does: bf16 autocast if all processors have instructions for it, and fused optimizers. Pure.

All ranks round alike, so autocast is on for all hosts or for none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from ipexctl.hosts.nodeset import fold
from ipexctl.launch.allreduce import SHIM, torch_version
from ipexctl.launch.context import LaunchContext, NodeLayout
from ipexctl.launch.overrides import requested_variables
from ipexctl.launch.request import Gathered
from ipexctl.node.common.asked import Asked
from ipexctl.node.common.fix import Fix
from ipexctl.node.common.plan import AUTOCAST, FUSED_OPTIMIZER, NOT_FAST, FastChoice, Setting

OLDEST_TORCH: Final = {"autocast": (2, 1), "fused_optimizer": (2, 4)}
"""2.4 is the first torch with fused optimizers for CPUs."""
_BF16_TIERS: Final = ("avx512_bf16", "amx")
_INSTRUCTIONS: Final = "bf16 instructions (AMX or AVX512_BF16)"


def choose_fast(gathered: Gathered, nodes: Sequence[NodeLayout]) -> FastChoice:
    asked, version = gathered.asked, torch_version(gathered)
    wanted = _wanted_parts(asked)
    if not wanted:
        return NOT_FAST
    reasons = {"autocast": "default", "fused_optimizer": "default", **dict.fromkeys(wanted, "asked")}
    if asked.autocast == "off":
        reasons["autocast"] = "asked"
    hosts = hosts_without_bf16(nodes) if "autocast" in wanted else ()
    if hosts and asked.autocast == "auto":
        reasons["autocast"] = "no-bf16"
    for part in wanted:
        if version is not None and version < OLDEST_TORCH[part]:
            reasons[part] = "torch-too-old"
        if requested_variables(gathered).get(SHIM) == "off":
            reasons[part] = "hooks-off"
    on = [part for part in wanted if reasons[part] == "asked"]
    return FastChoice("bf16" if "autocast" in on else "off", "fused_optimizer" in on, reasons, hosts)


def hosts_without_bf16(nodes: Sequence[NodeLayout]) -> tuple[str, ...]:
    return tuple(node.name for node in nodes if node.facts.cpu.tier not in _BF16_TIERS)


def _wanted_parts(asked: Asked) -> tuple[str, ...]:
    autocast = asked.autocast == "bf16" or (asked.fast and asked.autocast == "auto")
    is_wanted = {"autocast": autocast, "fused_optimizer": asked.fast or asked.fused_optimizer}
    return tuple(part for part, wanted in is_wanted.items() if wanted)


def settings(context: LaunchContext) -> Iterator[Setting]:
    asked, choice = context.gathered.asked, context.plan.fast
    if choice.autocast == "bf16":
        reason = "models run under bf16 autocast; parameters, optimizer state and checkpoints stay fp32"
        yield Setting(AUTOCAST, "bf16", f"{reason} ({_option(asked, 'autocast')})")
    if choice.fused_optimizer:
        reason = "Adam, AdamW, SGD and Adagrad step with one kernel, unless the script says otherwise"
        yield Setting(FUSED_OPTIMIZER, "1", f"{reason} ({_option(asked, 'fused_optimizer')})")


def _option(asked: Asked, part: str) -> str:
    if part == "autocast" and asked.autocast == "bf16":
        return "--autocast bf16"
    return "--fused-optimizer" if part == "fused_optimizer" and asked.fused_optimizer else "--fast"


def notes(context: LaunchContext) -> Iterator[str]:
    asked, choice = context.gathered.asked, context.plan.fast
    wanted, torch = _wanted_parts(asked), context.gathered.env.packages.get("torch")
    options = tuple(dict.fromkeys(_option(asked, part) for part in wanted))
    if "hooks-off" in choice.reasons.values():
        named = " and ".join(options)
        effect = "has" if len(options) == 1 else "have"
        yield f"{named} {effect} no effect: {SHIM}=off keeps ipexctl's hooks out of the ranks; leave {SHIM} out"
    for part in wanted:
        if choice.reasons[part] == "torch-too-old":
            needed, name = "{}.{}".format(*OLDEST_TORCH[part]), part.replace("_", "-")
            yield (
                Fix(
                    f"--{name} has no effect: torch is {torch}, and needs to be {needed} or newer; for a "
                    "newer one: `ipexctl install`"
                )
            )
    if choice.reasons["autocast"] == "no-bf16":
        yield (
            f"--fast leaves autocast out: no {_INSTRUCTIONS} on {fold(choice.hosts)}; "
            "--autocast bf16 turns it on anyway"
        )
    elif choice.autocast == "bf16" and choice.hosts:
        yield f"--autocast bf16 may be slower than fp32 on {fold(choice.hosts)}, without {_INSTRUCTIONS}"
