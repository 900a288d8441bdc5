"""Random faults of searches for the fastest settings, and checks of what they report and leave."""

import sys
from pathlib import Path

sys.path += [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "lab")]
