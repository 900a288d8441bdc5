"""The lines of later plans about a gain that autotune has shown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from launch_helpers import cpu, machine, plan

from ipexctl.run.measured import Fingerprint, Measured, find, fingerprint_of, has_settings, save
from ipexctl.spec import Export, RunSpec

MADE = Fingerprint("cpu 8", "1", "1 1", "2.13.0", "abc")
FOUND = Measured("2026-11-30", 1.18, 1.12, 1.22, (("omp", "7"), ("x.KMP_BLOCKTIME", "0")), MADE)


def test_results_are_kept_for_each_script(tmp_path: Path) -> None:
    other = replace(FOUND, ratio=1.5)
    save(tmp_path, "train.py", FOUND)
    save(tmp_path, "other.py", other)
    assert find(tmp_path, "train.py") == FOUND
    assert find(tmp_path, "other.py") == other
    assert find(tmp_path, "third.py") is None


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"schema": "ipexctl.measured/1", "scripts": {"train.py": {"date": 1}}}']
)
def test_a_damaged_file_says_nothing(text: str, tmp_path: Path) -> None:
    (tmp_path / "measured.json").write_text(text)
    assert find(tmp_path, "train.py") is None


@pytest.mark.parametrize(
    ("omp", "block_time", "expected"), [(7, "0", True), (6, "0", False), (7, "1", False), (None, "0", False)]
)
def test_only_a_call_with_these_settings_is_meant(omp: int | None, block_time: str, expected: bool) -> None:
    spec = RunSpec("script", ("train.py",), omp=omp, exports=(Export("KMP_BLOCKTIME", block_time),))
    assert has_settings(spec, FOUND.settings) == expected


def test_another_cpu_torch_or_script_is_another_fingerprint() -> None:
    def of(cores: int, torch: str = "2.13.0", script: str = "a") -> Fingerprint:
        facts = machine(cpu(cores))
        return fingerprint_of(plan(facts), {"node1": facts}, {"torch": torch}, script)

    assert not of(8).differences(of(8))
    assert of(8).differences(of(4)) == ("the CPUs",)
    assert of(8).differences(of(8, "2.12.0", "b")) == ("torch", "the script")
