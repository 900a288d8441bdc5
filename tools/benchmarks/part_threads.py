"""How long an idle OpenMP thread spins: as torch's own OpenMP does it, and shorter; on a quiet machine, beside load."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Final

from .part_train import FP32, OURS, SHORT_SPIN, Speeds, prepare_place, trained
from .report import Report
from .rig import Rig

BLOCKS: Final = replace(FP32, warm_up=2)
_BURN: Final = "while True: pass"


def measure(rig: Rig) -> Report:
    place = prepare_place(rig)
    cores = len(os.sched_getaffinity(0))
    found: dict[str, Speeds] = {}
    for title, burners in (("quiet", 0), (f"beside {cores} busy programs", cores)):
        with _busy(burners):
            found[title] = trained(rig, place, BLOCKS, 1, rig.runs, (OURS, SHORT_SPIN), share_rounds=0)
    header = (f"tokens/s, 1 rank, {cores} threads", *found)
    rows = (
        ("as it is", *(f"{speeds.median(OURS):.0f}" for speeds in found.values())),
        (SHORT_SPIN.rpartition(" ")[2], *(f"{speeds.median(SHORT_SPIN):.0f}" for speeds in found.values())),
        ("time of a step with it / as it is", *(str(speeds.beside(OURS, SHORT_SPIN)) for speeds in found.values())),
    )
    return Report(rig.runs, header, rows)


@contextmanager
def _busy(count: int) -> Iterator[None]:
    """Programs that use a core each."""
    with ExitStack() as stack:
        for _ in range(count):
            program = stack.enter_context(subprocess.Popen([sys.executable, "-c", _BURN]))
            stack.callback(program.kill)
        yield
