"""Plans with --fp32-math: where it is on, what the ranks get, and what the user is told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from launch_helpers import AMX, AVX512, IPEX, STOCK, cpu, machine, plan, value

from ipexctl.node.common.plan import to_json
from ipexctl.node.common.rank_options import FP32_MATH, Choice
from ipexctl.node.common.run_options import Export

OLD = replace(STOCK, packages={"torch": "2.2.2"})
OLD_IPEX = replace(IPEX, packages={**IPEX.packages, "torch": "2.2.0"})
OFF = (Export("IPEXCTL_HOOKS", "-x", "off"),)
BOTH, NODE2 = (AMX, AMX), (AMX, AVX512 | {"avx512_bf16"})


@pytest.mark.parametrize(
    ("isas", "options", "choice", "note"),
    [
        (BOTH, {}, Choice("fp32", "default"), ""),
        (NODE2, {}, Choice("fp32", "default"), ""),
        (BOTH, {"fp32_math": "bf16"}, Choice("bf16", "asked"), ""),
        (NODE2, {"fp32_math": "bf16"}, Choice("bf16", "no-amx", ("node2",)), "saves little time on node2"),
        (BOTH, {"fp32_math": "bf16", "exports": OFF}, Choice("fp32", "hooks-off"), "leave IPEXCTL_HOOKS out"),
        (BOTH, {"fp32_math": "bf16", "env": OLD}, Choice("fp32", "torch-too-old"), "torch is 2.2.2"),
        (BOTH, {"fp32_math": "bf16", "env": OLD_IPEX}, Choice("bf16", "asked"), ""),
        (BOTH, {"fp32_math": "bf16", "env": replace(STOCK, packages={})}, Choice("bf16", "asked"), ""),
    ],
)
def test_it_is_on_where_a_user_asks_for_it_and_torch_can(
    isas: tuple[frozenset[str], ...], options: dict[str, Any], choice: Choice, note: str
) -> None:
    found = plan(*(machine(cpu(4, flags=isa), number) for number, isa in enumerate(isas, 1)), **options)
    assert found.choice(FP32_MATH) == choice
    assert to_json(found)["fp32_math"]["mode"] == choice.mode
    assert value(found, "IPEXCTL_FP32_MATH") == ("bf16" if choice.mode == "bf16" else None)
    notes = [line for line in found.notes if "--fp32-math" in line]
    assert [note in line for line in notes] == [True] * bool(note)
