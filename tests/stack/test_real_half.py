"""`run --half-math` with real torch, as on processors without AVX-512: what is widened errs no more than torch's own
products, trains as well, and leaves fp32 as it is."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from training_lab import Training

from lab_run_helpers import by_rank

pytest_plugins = ["training_lab"]
pytestmark = [pytest.mark.stack, pytest.mark.timeout(900)]

SCRIPT = Path(__file__).with_name("half_cases.py")
OLD = ("-x", "ONEDNN_MAX_CPU_ISA=AVX2", "-x", "ATEN_CPU_CAPABILITY=avx2")
SAID = re.compile(r"--half-math auto is on: bfloat16 .* up to [0-9.]+x as fast here; --half-math own leaves them")
Found = dict[str, tuple[dict[str, Any], str, dict[str, Any]]]


@pytest.fixture(scope="module")
def found(training: Training) -> Found:
    """Mode → what the script finds, what is said, and the lever of the summary."""
    shutil.copy(SCRIPT, training.project)
    results = {}
    for mode in ("own", "auto"):
        summary = training.project / f"{mode}.json"
        options = (*OLD, "--half-math", mode, "--summary", summary)
        ran = training.call("run", "-n", 1, "--omp", "1", *options, SCRIPT.name, timeout=400)
        assert ran.rc == 0, ran.err + ran.out
        levers = {lever["name"]: lever for lever in json.loads(summary.read_text())["levers"]}
        results[mode] = json.loads(by_rank(ran.out)[0][-1]), ran.err, levers["half_math"]
    return results


def test_results_and_gradients_err_no_more_than_torchs_own(found: Found) -> None:
    (own, _, _), (auto, _, _) = found["own"], found["auto"]
    assert own["errors"].keys() == {"bfloat16", "float16"}
    for name, errors in own["errors"].items():
        assert len(errors) > 15
        for operator, error in errors.items():
            assert auto["errors"][name][operator] <= 1.1 * error < 0.01, (name, operator)
    assert auto["inference"] == auto["compiled"] == own["inference"]


def test_trainings_learn_as_in_fp32_and_as_with_torchs_own(found: Found) -> None:
    (own, _, _), (auto, _, _) = found["own"], found["auto"]
    for name, losses in auto["losses"].items():
        assert len(losses["bf16"]) == 200
        assert losses["bf16"] != own["losses"][name]["bf16"], "rounded at other points"
        assert losses["bf16"] == pytest.approx(own["losses"][name]["bf16"], abs=0.02)
        assert losses["bf16"] == pytest.approx(losses["fp32"], abs=0.1)
        assert sum(losses["bf16"][-20:]) < 0.4 * sum(losses["bf16"][:20]), "it learns"


def test_fp32_stays_the_same_bits_before_and_after(found: Found) -> None:
    (own, _, _), (auto, _, _) = found["own"], found["auto"]
    assert not auto["before"], "nothing is measured before a half tensor is there"
    assert len({*own["fp32"], *auto["fp32"]}) == 1
    assert auto["losses"]["classifier"]["fp32"] == own["losses"]["classifier"]["fp32"]


def test_what_torch_refuses_it_refuses_with_its_own_words(found: Found) -> None:
    assert len(found["auto"][0]["refused"]) == 3
    assert found["auto"][0]["refused"] == found["own"][0]["refused"]


def test_rank_0_says_once_that_it_acts_and_the_summary_has_both(found: Found) -> None:
    (_, own, of_own), (_, auto, of_auto) = found["own"], found["auto"]
    assert len(SAID.findall(auto)) == 1
    assert not SAID.findall(own)
    assert of_auto["acted"]
    assert of_auto["steps"] >= 400
    assert not of_own["acted"]
    assert "--half-math own keeps torch's products of bfloat16" in of_own["reason"]


def test_ranks_keep_equal_parameters_with_ddp_and_fsdp(training: Training) -> None:
    shutil.copy(SCRIPT, training.project)
    ran = training.call("run", "-n", 2, "--omp", "1", "--oversubscribe", *OLD, SCRIPT.name, "together", timeout=300)
    assert ran.rc == 0, ran.err + ran.out
    first, second = (json.loads(lines[-1]) for lines in by_rank(ran.out).values())
    assert first[1] == second[1]
    assert first[3] == second[3]
    assert len(SAID.findall(ran.err)) == 1
