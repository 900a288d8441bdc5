"""Random faults of ranks that add gradients up in shared memory, and checks of the reported results."""

import sys
from pathlib import Path

sys.path += [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "lab")]
