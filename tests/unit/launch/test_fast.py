"""Plans with --fast and its parts: where they are on, what the ranks get, and what the user is told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from launch_helpers import AMX, AVX512, STOCK, cpu, machine, plan, value

from ipexctl.node.common.plan import to_json
from ipexctl.node.common.rank_options import AUTOCAST as AUTOCAST_OPTION
from ipexctl.node.common.rank_options import FUSED_OPTIMIZER
from ipexctl.node.common.run_options import Export

TORCH = {version: replace(STOCK, packages={"torch": version}) for version in ("2.0.1", "2.3.1", "2.4.0")}
OFF = {"exports": (Export("IPEXCTL_HOOKS", "-x", "off"),)}
BF16 = AVX512 | {"avx512_bf16"}
BOTH, NODE2 = (AMX, BF16), (AMX, AVX512)
FAST, AUTOCAST, FUSED = {"fast": True}, {"autocast": "bf16"}, {"fused_optimizer": True}


@pytest.mark.parametrize(
    ("isas", "options", "on", "reasons", "note"),
    [
        (BOTH, {}, "", "default default", ""),
        (NODE2, {}, "", "default default", ""),
        (BOTH, {"autocast": "off"}, "", "asked default", ""),
        (BOTH, FAST, "autocast fused", "asked asked", ""),
        (BOTH, AUTOCAST, "autocast", "asked default", ""),
        (BOTH, FUSED, "fused", "default asked", ""),
        (NODE2, FUSED, "fused", "default asked", ""),
        (BOTH, {**FAST, "autocast": "off"}, "fused", "asked asked", ""),
        (NODE2, FAST, "fused", "no-bf16 asked", "--fast leaves autocast out…on node2…--autocast bf16"),
        (NODE2, {**FAST, **AUTOCAST}, "autocast fused", "asked asked", "--autocast bf16 may be slower…node2"),
        (BOTH, {**FAST, "env": TORCH["2.4.0"]}, "autocast fused", "asked asked", ""),
        (
            BOTH,
            {**FAST, "env": TORCH["2.3.1"]},
            "autocast",
            "asked torch-too-old",
            "--fused…torch is 2.3.1…2.4",
        ),
        (BOTH, {**AUTOCAST, "env": TORCH["2.0.1"]}, "", "torch-too-old default", "--autocast…torch is 2.0.1…2.1"),
        (BOTH, {**FAST, "env": replace(STOCK, packages={})}, "autocast fused", "asked asked", ""),
        (BOTH, {**FAST, **OFF}, "", "hooks-off hooks-off", "--fast has no effect…leave IPEXCTL_HOOKS out"),
        (
            BOTH,
            {**AUTOCAST, **FUSED, **OFF},
            "",
            "hooks-off hooks-off",
            "--autocast bf16 and --fused…have no effect",
        ),
    ],
)
def test_each_part_is_on_if_asked_for_and_possible_on_all_hosts(
    isas: tuple[frozenset[str], ...], options: dict[str, Any], on: str, reasons: str, note: str
) -> None:
    found = plan(*(machine(cpu(4, flags=isa), number) for number, isa in enumerate(isas, 1)), **options)
    autocast, fused = "bf16" if "autocast" in on else "off", "fused" in on
    chosen = {option.name: found.choice(option) for option in (AUTOCAST_OPTION, FUSED_OPTIMIZER)}
    of_parts = dict(zip(("autocast", "fused_optimizer"), reasons.split(), strict=True))
    assert {name: choice.reason for name, choice in chosen.items()} == of_parts
    assert [choice.mode for choice in chosen.values()] == [autocast, "on" if fused else "off"]
    fast = {"autocast": autocast, "fused_optimizer": fused, "reasons": of_parts}
    assert {name: to_json(found)["fast"][name] for name in fast} == fast
    given = {"IPEXCTL_AUTOCAST": "bf16" * ("autocast" in on) or None, "IPEXCTL_FUSED_OPTIMIZER": "on" * fused or None}
    assert {name: value(found, name) for name in given} == given
    notes = [line for line in found.notes if "--fast" in line or "--autocast" in line or "--fused" in line]
    assert [all(part in line for part in note.split("…")) for line in notes] == [True] * bool(note)
    assert bool(found.amx_hosts) is (autocast == "off")


def test_hosts_without_bf16_are_named_and_reasons_name_the_option() -> None:
    found = plan(*(machine(cpu(4, flags=isa), number) for number, isa in enumerate(NODE2, 1)), **FAST, **AUTOCAST)
    assert found.choice(AUTOCAST_OPTION).hosts == ("node2",)
    reasons = {each.name: each.reason for each in found.settings}
    assert "(--autocast)" in reasons["IPEXCTL_AUTOCAST"]
    assert "(--fast)" in reasons["IPEXCTL_FUSED_OPTIMIZER"]


@pytest.mark.parametrize(("isas", "last"), [(BOTH, "--lr 1"), (NODE2, "--lr 1 --bf16 False")])
def test_a_command_gets_arguments_for_processors_without_bf16(isas: tuple[frozenset[str], ...], last: str) -> None:
    machines = [machine(cpu(4, flags=isa), number) for number, isa in enumerate(isas, 1)]
    found = plan(*machines, command=("train.py", "--lr", "1"), without_bf16=("--bf16", "False"))
    assert " ".join(found.command[2:]) == last
    notes = [note for note in found.notes if note.startswith("--bf16 False is added: node2")]
    assert len(notes) == (isas is NODE2)
