"""Mutants: one small change of the code each, which the unit tests of its package should notice."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "tests"))
