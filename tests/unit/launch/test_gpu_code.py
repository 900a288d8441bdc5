"""Plans with --gpu-code: whether ranks place on CPUs what a script places on GPUs, and the reason if they don't."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from launch_helpers import STOCK, cpu, machine, plan, value

from ipexctl.node.common.lever_records import LeverNote, asked_levers
from ipexctl.node.common.plan import to_json
from ipexctl.node.common.rank_options import GPU_CODE, Choice
from ipexctl.node.common.run_options import Export

FOR_GPUS = {"torch": "2.13.0", "nvidia-cublas-cu12": "12.8"}


@pytest.mark.parametrize(
    ("options", "choice"),
    [
        ({}, Choice("auto", "default")),
        ({"backend": "none"}, Choice("auto", "default")),
        ({"gpu_code": "assume"}, Choice("assume", "asked")),
        ({"gpu_code": "off"}, Choice("off", "asked")),
        ({"exports": (Export("IPEXCTL_HOOKS", "-x", "off"),)}, Choice("off", "hooks-off")),
        ({"env": replace(STOCK, packages=FOR_GPUS)}, Choice("auto", "default")),
        ({"env": replace(STOCK, packages={"torch": "1.13.1"})}, Choice("off", "torch-too-old")),
        ({"env": replace(STOCK, packages={})}, Choice("auto", "default")),
    ],
)
def test_ranks_are_told_the_mode_unless_they_could_not_act(options: dict[str, Any], choice: Choice) -> None:
    found = plan(machine(cpu(4)), n=2, **options)
    assert found.choice(GPU_CODE) == choice
    assert to_json(found)["gpu_code"]["mode"] == choice.mode
    assert value(found, "IPEXCTL_GPU_CODE") == (None if choice.mode == "off" else choice.mode)


def test_an_end_names_what_acted_by_default_and_is_silent_otherwise() -> None:
    made = plan(machine(cpu(4)), n=1)
    note = LeverNote("gpu_code", acted=True, steps=3, reason="NCCL became gloo")
    (lever,) = asked_levers(made, [[note]])
    assert (lever.option, lever.asked, lever.acted, lever.steps) == ("--gpu-code auto", False, True, 3)
    assert lever.reason == "NCCL became gloo"
    assert asked_levers(made, [[note._replace(acted=False)]]) == ()
    assert asked_levers(made, [[]]) == ()
    (lever,) = asked_levers(plan(machine(cpu(4)), n=1, gpu_code="assume"), [[]])
    assert (lever.asked, lever.acted) == (True, None)
