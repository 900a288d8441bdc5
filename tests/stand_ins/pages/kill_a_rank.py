"""Follows what a run prints and kills its rank 1 at the line that says so, as one would from another terminal."""

import os
import signal
import sys
from pathlib import Path

OURS = (os.getcwd(), os.environ["IPEXCTL_HOME"])


def is_rank_1(process: Path) -> bool:
    try:
        return (
            b"\0RANK=1\0" in (process / "environ").read_bytes()
            and (process / "cmdline").read_bytes().endswith(b"train_digits.py\0")
            and str((process / "cwd").readlink()).startswith(OURS)
        )
    except OSError:
        return False


for line in sys.stdin:
    if "epoch 2/3 step 20/60" in line:
        for process in Path("/proc").glob("[0-9]*"):
            if is_rank_1(process):
                os.kill(int(process.name), signal.SIGKILL)
