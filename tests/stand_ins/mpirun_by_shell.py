"""Stands in for hydra on two hosts: `mpirun_by_shell.py SHELL HOST THERE N PROGRAM WORD…`.

It starts N of PROGRAM, each told its number: the last THERE of them by one line of `SHELL HOST LINE`, as hydra starts
its proxy by ssh. Like hydra it waits for that call, ends all on TERM, and ends with some rank's code.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from typing import NoReturn


def main() -> NoReturn:
    shell, host, there, size, *command = sys.argv[1:]
    first = int(size) - int(there)

    def told(rank: int, local: int, count: int) -> dict[str, str]:
        names = ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")
        return {name: str(value) for name, value in zip(names, (rank, size, local, count), strict=True)}

    started = []
    for rank in range(first):
        environ = {**os.environ, **told(rank, rank, first)}
        started.append(subprocess.Popen(command, env=environ, stdin=subprocess.DEVNULL))
    words = []
    for rank in range(first, int(size)):
        variables = [f"{name}={value}" for name, value in told(rank, rank - first, int(there)).items()]
        words.append(shlex.join(["env", *variables, *command]) + ' & pids="$pids $!"; ')
    line = "".join(words) + "code=0; for pid in $pids; do wait $pid || code=$?; done; exit $code"
    started.append(subprocess.Popen([shell, "-x", host, line], stdin=subprocess.DEVNULL))

    def end(*_: object) -> None:
        for process in started:
            if process.returncode is None:
                process.kill()
        os._exit(255)

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    sys.exit(max(abs(process.wait()) for process in started))


if __name__ == "__main__":
    main()
