"""Stands in for mpiexec.hydra on one host: `mpirun.py [-n] N PROGRAM WORD…` starts N of it, each told its number.

Like hydra it doesn't mind a rank that fails, ends all on TERM, and ends with some rank's code.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import NoReturn


def main() -> NoReturn:
    words = [word for word in sys.argv[1:2] if word != "-n"] + sys.argv[2:]
    size, command = int(words[0]), words[1:]
    ranks = []
    for rank in range(size):
        told = {
            "PMI_RANK": str(rank),
            "PMI_SIZE": str(size),
            "MPI_LOCALRANKID": str(rank),
            "MPI_LOCALNRANKS": str(size),
        }
        ranks.append(subprocess.Popen(command, env={**os.environ, **told}, stdin=subprocess.DEVNULL))

    def end(*_: object) -> None:
        for rank in ranks:
            if rank.returncode is None:
                rank.kill()
        os._exit(255)

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    sys.exit(max(abs(rank.wait()) for rank in ranks))


if __name__ == "__main__":
    main()
