"""--gpu-code with real torch: each private part of torch that it changes, for each torch that is there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from clean_environment import package_environ

pytestmark = [pytest.mark.stack, pytest.mark.timeout(900)]

CASES = Path(__file__).with_name("gpu_cases.py")
INRANK = Path(__file__).parents[2] / "ipexctl" / "inrank"
NAMES = "IPEXCTL_TESTS_TORCHES"
"""Pythons with a torch built for CPUs, separated by colons: one for each torch of the version table to try. Without it,
a new environment gets torch 2.13."""


@pytest.fixture(scope="module")
def pythons(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    if found := os.environ.get(NAMES):
        return tuple(found.split(":"))
    base = tmp_path_factory.mktemp("torch")
    subprocess.run([sys.executable, "-m", "venv", base], check=True, timeout=120)
    install = [f"{base}/bin/pip", "install", "-q", "torch==2.13.0", "numpy"]
    subprocess.run(install, check=True, timeout=600, env=package_environ())
    return (f"{base}/bin/python",)


@pytest.mark.parametrize("words", ["auto", "assume", "auto without-fallback"])
def test_what_a_script_places_on_a_gpu_is_on_the_cpu(pythons: tuple[str, ...], words: str) -> None:
    """`without-fallback`: as before torch 2.5, where operators are registered one by one."""
    for python in pythons:
        argv = [python, "-W", "ignore", str(CASES), str(INRANK), *words.split()]
        env = {**os.environ, "RANK": "0", "LOCAL_WORLD_SIZE": "2"}
        ran = subprocess.run(argv, capture_output=True, text=True, timeout=300, env=env, check=False)
        lines = ran.stdout.splitlines()
        assert ran.returncode == 0, f"{python}: {ran.stdout}{ran.stderr}"
        assert len(lines) > 10
        assert all(line.startswith("ok ") for line in lines)
        assert "ipexctl: what gpu_cases.py places on GPUs is on the CPU" in ran.stderr
        assert "float16 autocast became bfloat16" in ran.stderr
