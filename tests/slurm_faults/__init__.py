"""Random ends of runs over srun in a lab with Slurm, and checks of the reported results."""

import sys
from pathlib import Path

sys.path += [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "lab")]
