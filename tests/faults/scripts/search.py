"""A training without torch: it writes the steps of a minute into the ring of the step meter, and waits to be ended.

    train.py FAULT MARK

With one thread, which only a candidate has, it raises, hangs, fills its memory, or finds its disk full.
"""

from __future__ import annotations

import errno
import importlib
import os
import sys
import threading
import time
from pathlib import Path

sys.path.append(os.environ["IPEXCTL_RUN_DIR"].replace("/results/", "/runs/") + "/shim")
ring_module = importlib.import_module("ipexctl_inrank.meter_ring")  # the package beside the hooks of a rank
Totals = ring_module.Totals

if __name__ == "__main__":
    is_candidate = os.environ["OMP_NUM_THREADS"] == "1"
    fault = sys.argv[1] if is_candidate else ""
    Path("checkpoint").open("x").close()
    if fault == "raise":
        raise RuntimeError("no such kernel")
    if fault == "disk":
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "checkpoint")
    if fault == "memory":
        kept = [bytes(1 << 20) * 1024]  # a GiB, of which every page is written
    ring = ring_module.RingWriter(os.environ["IPEXCTL_METER"])
    begun, thread = time.monotonic_ns(), threading.get_native_id() << 32
    for step in range(1, 7 if fault == "hang" else 101):
        ring.write(Totals(begun + step * (100_000_000 if is_candidate else 110_000_000), step, 8 * step, 0, 0, thread))
    time.sleep(600)
