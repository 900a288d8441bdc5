"""Plays what slows a rank or a link on a lab, and compares the verdict of `ipexctl slow` with what was done."""

import sys
from pathlib import Path

sys.path += [str(Path(__file__).parents[1])]
