"""Decides whether ranks multiply fp32 matrices with bf16 inputs (--fp32-math). Pure.

It changes the training, so only the user chooses it. oneDNN's kernels for it need AMX to be much faster; the plan names
the hosts without.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from ipexctl.hosts.nodeset import fold
from ipexctl.launch.allreduce import SHIM, torch_version
from ipexctl.launch.context import LaunchContext, NodeLayout
from ipexctl.launch.overrides import requested_variables
from ipexctl.launch.request import Gathered
from ipexctl.launch.threads import IPEX
from ipexctl.node.common.plan import AS_THEY_ARE, FP32_MATH, Choice, Setting

OLDEST_TORCH: Final = (2, 3)
"""As in `node/run/rank_hooks.py`. Before, only IPEX has it."""


def choose(gathered: Gathered, nodes: Sequence[NodeLayout]) -> Choice:
    if gathered.spec.fp32_math == "fp32":
        return AS_THEY_ARE
    if requested_variables(gathered).get(SHIM) == "off":
        return Choice("fp32", "hooks-off")
    version = torch_version(gathered)
    if version is not None and version < OLDEST_TORCH and IPEX not in gathered.env.packages:
        return Choice("fp32", "torch-too-old")
    without = tuple(node.name for node in nodes if node.facts.cpu.tier != "amx")
    return Choice("bf16", "no-amx" if without else "asked", without)


def settings(context: LaunchContext) -> Iterator[Setting]:
    if context.fp32_math.mode == "bf16":
        yield Setting(FP32_MATH, "bf16", "fp32 matrices are multiplied with bf16 inputs (--fp32-math)")


def notes(context: LaunchContext) -> Iterator[str]:
    found, torch = context.fp32_math, context.gathered.env.packages.get("torch")
    if found.reason == "hooks-off":
        yield f"--fp32-math bf16 has no effect: {SHIM}=off keeps ipexctl's hooks out of the ranks; leave {SHIM} out"
    elif found.reason == "torch-too-old":
        needed = "{}.{}".format(*OLDEST_TORCH)
        yield (
            f"--fp32-math bf16 has no effect: torch is {torch}, and needs to be {needed} or newer, or to have IPEX; "
            "ipexctl install brings a newer one"
        )
    elif found.reason == "no-amx":
        hosts = fold(found.hosts)
        yield f"--fp32-math bf16 brings little on {hosts}, without AMX; on all hosts it changes the rounding"
