"""What to type in place of commands and options that do not exist, but whose names people know."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ipexctl.node.common.fix import Fix

COMMANDS: Final[Mapping[str, str]] = {
    "submit": Fix("`sbatch -N 2 --exclusive --wrap {call}`", call="ipexctl run train.py"),
    "slow": Fix("`ipexctl why`"),
    "trust": Fix("`ipexctl run train.py`; no node has to log in to another"),
    "hub": Fix("models and datasets are directories: `ipexctl exec --shell 'du -sh ~/.ipexctl/hub/hub/*--*'`"),
    "export": Fix("`ipexctl run --dry-run --json train.py`; it has ranks, cores and variables with their reasons"),
}
"""Command → what to type."""
OPTIONS: Final[Mapping[tuple[str, str], str]] = {
    ("run", "--metric"): "leave it out: the meter counts steps and samples by itself",
    ("run", "--offline-hub"): Fix("`ipexctl run -x HF_HUB_OFFLINE=1 train.py`"),
    ("run", "--nice"): Fix("`ipexctl run -- nice -n 10 python train.py`"),
    ("run", "--spares"): Fix(
        "name a host more, and allow the run to go on with fewer: `ipexctl run --min-hosts 2 --max-restarts 3 train.py`"
    ),
    ("install", "--no-requirements"): "leave it out: install takes only the lists that -r names",
    ("fetch", "--follow"): Fix("fetch again: it skips equal files: `ipexctl fetch last ./out --results`"),
}
"""Command and option → what to type."""
