"""Runs with injected faults, and checks of the reported results."""

import sys
from pathlib import Path

_TESTS = Path(__file__).parents[2] / "tests"
sys.path += [str(_TESTS), str(_TESTS / "lab")]
