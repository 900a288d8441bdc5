"""Runs that something happens to, one after the other, and whether what is said of each is true."""

import sys
from pathlib import Path

sys.path += [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "lab")]
