"""Machines that nobody here owns, from a real kernel: Debian in QEMU with the topology of a `Kind`.

    python -m tools.machines build              # the image, once: 12 minutes beside other work, 2 GB
    python -m tools.machines boot two-sockets   # prints how to log in
    python -m tools.machines list
    python -m tools.machines remove NAME        # or --all: also the image and the network

A kernel makes /proc, /sys and cgroups from the topology, so what `doctor` says, what a plan binds and where a rank's
memory lies can be compared with lscpu, numactl and the kernel's own files. Speed can't: without KVM all is emulated.
"""

import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(_ROOT), str(_ROOT / "tests")]
