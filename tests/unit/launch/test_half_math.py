"""Plans with --half-math: what the ranks get, and the reason before they start."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from launch_helpers import AMX, AVX512, IPEX, STOCK, cpu, machine, plan, value

from ipexctl.node.common.lever_records import LeverNote, asked_levers
from ipexctl.node.common.plan import Plan, to_json
from ipexctl.node.common.rank_options import HALF_MATH, Choice
from ipexctl.node.common.run_options import Export, RunOptions

OFF = (Export("IPEXCTL_HOOKS", "-x", "off"),)
OWN, ACTED = LeverNote("half_math", False, 0, "own"), LeverNote("half_math", True, 7, "")


def planned(*isas: frozenset[str], **options: Any) -> Plan:
    return plan(*(machine(cpu(4, flags=isa), number) for number, isa in enumerate(isas, 1)), **options)


@pytest.mark.parametrize(
    ("isas", "options", "choice", "given"),
    [
        ((AMX, AMX), {}, Choice("auto", "default"), "auto"),
        ((AMX, AVX512), {}, Choice("auto", "no-bf16", ("node2",)), "auto"),
        ((AMX, AVX512), {"env": IPEX}, Choice("auto", "default"), "auto"),
        ((AVX512,), {"half_math": "own"}, Choice("own", "asked"), "own"),
        ((AVX512,), {"exports": OFF}, Choice("own", "hooks-off"), None),
        ((AVX512,), {"env": replace(STOCK, packages={"torch": "1.13.1"})}, Choice("own", "torch-too-old"), None),
        (
            (AVX512,),
            {"env": replace(STOCK, packages={"torch": "2.0.1"})},
            Choice("auto", "no-bf16", ("node1",)),
            "auto",
        ),
    ],
)
def test_ranks_measure_unless_their_hooks_could_not(
    isas: tuple[frozenset[str], ...], options: dict[str, Any], choice: Choice, given: str | None
) -> None:
    found = planned(*isas, **options)
    assert found.choice(HALF_MATH) == choice
    shown = {"mode": choice.mode, "reason": choice.reason, "hosts": [*choice.hosts]}
    assert {name: to_json(found)["half_math"][name] for name in shown} == shown
    assert value(found, "IPEXCTL_HALF_MATH") == given
    reasons = [each.reason for each in found.settings if each.name == "IPEXCTL_HALF_MATH"]
    assert [bool(choice.hosts) and choice.hosts[-1] in reason for reason in reasons] == [bool(choice.hosts)] * bool(
        given
    )


def test_fast_leaves_autocast_out_where_bf16_is_widened() -> None:
    found = planned(AMX, AVX512, fast=True)
    assert found.choice(HALF_MATH).hosts == ("node2",)
    assert value(found, "IPEXCTL_AUTOCAST") is None


@pytest.mark.parametrize(
    ("notes", "acted", "steps"),
    [
        ([], None, None),
        ([[OWN]], False, 0),
        ([[OWN], [ACTED]], True, 7),
        ([[LeverNote("wire", True, 1, "")]], None, None),
    ],
)
def test_the_end_of_a_run_tells_of_it_if_a_rank_does(
    notes: list[list[LeverNote]], acted: bool | None, steps: int | None
) -> None:
    levers = asked_levers(Plan("", "", "", RunOptions()), notes)
    assert [(lever.option, lever.acted, lever.steps) for lever in levers] == (
        [("--half-math auto", acted, steps)] if acted is not None else []
    )
