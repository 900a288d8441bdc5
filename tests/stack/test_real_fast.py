"""`run --fast` and its parts with real torch, on a script that knows nothing of them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from training_lab import Training

from lab_run_helpers import by_rank

pytest_plugins = ["training_lab"]
pytestmark = [pytest.mark.stack, pytest.mark.timeout(900)]

SCRIPT = Path(__file__).with_name("fast_cases.py")
AUTOCAST, FUSED = ("--autocast", "bf16"), ("--fused-optimizer",)
OWN = "the script has autocast of its own"
KERNELS = {"sgd": "sgd", "plain_sgd": "sgd", "adam": "adam", "adagrad": "adagrad", "subclass": "adamw"}


@pytest.fixture(scope="module")
def found(training: Training) -> dict[str, tuple[dict[str, Any], str]]:
    """What the script finds with the options and arguments of each call, and what is said; in this order, so that a
    checkpoint is resumed with other options."""
    shutil.copy(SCRIPT, training.project)
    calls: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
        "plain": ((), ()),
        "autocast": (AUTOCAST, ()),
        "accelerate": ((), ("accelerate",)),
        "both": (AUTOCAST, ("accelerate",)),
        "fused": (FUSED, ()),
        "own_fused": ((), ("fused",)),
    }
    results = {}
    for name, (options, arguments) in calls.items():
        ran = training.call("run", "-n", 1, "--omp", "1", *options, SCRIPT.name, *arguments)
        assert ran.rc == 0, ran.err + ran.out
        results[name] = json.loads(by_rank(ran.out)[0][-1]), ran.err
    return results


def test_autocast_trains_as_mixed_precision_of_accelerate(found: dict[str, tuple[dict[str, Any], str]]) -> None:
    asked, said = found["autocast"]
    assert "--autocast bf16 is on" in said
    assert asked["losses"] == found["accelerate"][0]["losses"], "the same operations"
    assert asked["losses"] != found["plain"][0]["losses"]
    assert asked["losses"] == pytest.approx(found["plain"][0]["losses"], rel=0.05)
    assert found["both"][0]["losses"] == asked["losses"], "nothing twice"
    assert OWN in found["both"][1]


def test_only_fp32_models_compute_in_bf16_and_outputs_are_fp32(found: dict[str, tuple[dict[str, Any], str]]) -> None:
    wide, half = "torch.float32", "torch.bfloat16"
    outputs = dict.fromkeys(("outer", "evaluation", "method", "compiled"), wide)
    kept = {"fp64": "torch.float64", "bf16": half, "threads": [wide]}
    assert found["autocast"][0]["precision"] == {"inner": half, "adapter": half, **outputs, **kept}
    assert found["plain"][0]["precision"] == {"inner": wide, "adapter": wide, **outputs, **kept}
    assert found["autocast"][0]["careful"][0] == [half, wide], "the script's own choice inside of a model"
    assert found["autocast"][0]["own"] == half


def test_optimizers_fuse_unless_the_script_says_otherwise(found: dict[str, tuple[dict[str, Any], str]]) -> None:
    plain, (asked, said) = found["plain"][0], found["fused"]
    assert "--fused-optimizer is on" in said
    assert asked["losses"] == found["own_fused"][0]["losses"], "the same kernel"
    assert asked["losses"] == pytest.approx(plain["losses"], abs=5e-5)
    kernels = {name: found for name, (_, found) in asked["optimizers"].items()}
    fused = {name: [f"aten::_fused_{kernel}_"] for name, kernel in KERNELS.items()}
    assert kernels == {**fused, "own_loop": [], "tensor_lr": []}
    assert not any(kernels for _, kernels in plain["optimizers"].values())
    for name, (loss, _) in asked["optimizers"].items():
        assert loss == pytest.approx(plain["optimizers"][name][0], abs=5e-5), name
    assert asked["refused"] == plain["refused"], "another memory order, sparse, complex and other types"
    assert "leaves sgd as it is" in said


def test_checkpoints_are_the_scripts_own_with_every_option(found: dict[str, tuple[dict[str, Any], str]]) -> None:
    kept = [found[name][0]["kept"] for name in ("plain", "autocast", "accelerate", "both", "fused")]
    assert [(dtypes, fused) for _, dtypes, fused in kept] == [(["torch.float32"], None)] * len(kept)
    losses = [loss for each, *_ in kept for loss in each]
    assert losses == sorted(losses, reverse=True), "each call continues the training of the one before"
