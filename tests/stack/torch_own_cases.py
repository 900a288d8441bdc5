"""PyTorch's own tests of torch.distributed, of the installed wheel: `torch_own_cases.py RANKS [PATTERN]`. Prints a line
`NAME VERDICT TAKEN` for each case whose name matches: pass, skip, fail or late; and how many calls of rank 0 shared
memory took. Ranks are forked, because to import torch takes longer than most cases.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
import time
import traceback
from contextlib import suppress
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

sys.path.insert(0, str(next(Path(__file__).parent.glob("expecttest-*.whl"))))
ranks, pattern = int(sys.argv[1]), re.compile("".join(sys.argv[2:]))
place = Path(tempfile.mkdtemp())
os.environ.update(BACKEND="gloo", WORLD_SIZE=str(ranks), TEMP_DIR=str(place))

from torch.testing._internal.distributed.distributed_test import Barrier, DistributedTest, TestDistBackend  # noqa: E402

LIMIT = 60.0
"""Seconds of a case."""
SKIPPED = range(70, 100)
"""Exit codes of a rank whose case cannot be played here."""


class Cases(TestDistBackend, DistributedTest._DistTestBase):  # type: ignore[misc]
    """PyTorch starts new processes for each."""


def play(name: str, rank: int) -> int:
    """Exit code of a rank."""
    output = os.open(place / f"output{rank}", os.O_WRONLY | os.O_CREAT)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ["RANK"] = str(rank)
    code: Any = 1
    try:
        Barrier.init()
        Cases._run(rank, name, str(place / "store"), Pipe()[1])
    except SystemExit as left:
        code = left.code
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
    counted = sys.modules.get("ipexctl_inrank.collectives")
    (place / f"taken{rank}").write_text(str(sum(counted.taken.values()) if counted else 0))
    return int(code or 0)


def verdict_of(name: str) -> str:
    for part in ("barrier", "test_dir", "init_dir"):
        (place / part).mkdir(parents=True)
    left, codes, until = {}, [], time.monotonic() + LIMIT
    for rank in range(ranks):
        left[os.fork()] = rank
        if 0 in left:
            os._exit(play(name, rank))
    while left and time.monotonic() < until:
        for pid in list(left):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                codes.append(os.waitstatus_to_exitcode(status))
                del left[pid]
        time.sleep(0.02)
    for pid in left:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
    if left:
        return "late"
    if any(code and code not in SKIPPED for code in codes):
        return "fail"
    return "skip" if any(codes) else "pass"


for case in sorted(each for each in dir(Cases) if each.startswith("test_") and pattern.search(each)):
    verdict, taken = verdict_of(case), "0"
    with suppress(OSError):
        taken = (place / "taken0").read_text()
    if verdict in ("fail", "late"):
        for path in sorted(place.glob("output*")):
            print(path.read_text(errors="replace"))
    print(case, verdict, taken, flush=True)
    shutil.rmtree(place)
