"""`python -m tests.faults --count 30 --seed 7`: so many rounds, a line for each; exit 1 at the first lie."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from ipexctl.lab import LabSpec, down, up
from lab_run_helpers import Cluster, lab_with_mpi

from .play import Lie
from .rounds import possible, rounds, say, show
from .stage import Stage

if TYPE_CHECKING:
    from ipexctl.lab import Lab


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--count", type=int, default=30)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--only", default="", help="rounds whose name has this")
    asked = parser.parse_args()
    base = Path(tempfile.mkdtemp(prefix="faults-"))
    lab: Lab | None = None
    stage: Stage | None = None
    try:
        lab = up(LabSpec(hosts=3, name=f"faults-{os.getpid()}"))
        lab_with_mpi(lab, base)
        project = base / "project"
        project.mkdir()
        stage = Stage(Cluster(lab, project, base / "state"))
        stage.prepare()
        figures = rounds(stage, asked.count, asked.seed, possible(stage, asked.only))
    except Lie:
        say(f"again: python -m tests.faults --count {asked.count} --seed {asked.seed}; what was shown: {base}")
        return 1
    finally:
        if lab is not None:
            down(lab.name)
        if stage is not None:
            stage.dismiss()
    show(figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
