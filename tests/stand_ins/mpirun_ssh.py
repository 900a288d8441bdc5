"""Stands in for mpirun over hosts: `mpirun_ssh.py SSH_CONFIG HOST:N,HOST:N PROGRAM WORD…`, the first being this one.

Ranks elsewhere are started over ssh. Ended, it ends what runs here and its ssh clients; as with hydra when its ssh is
cut, what runs elsewhere goes on until somebody else ends it.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from typing import NoReturn


def main() -> NoReturn:
    config, hosts, words = sys.argv[1], sys.argv[2].split(","), sys.argv[3:]
    places = [
        (host, local) for host, _, count in (each.partition(":") for each in hosts) for local in range(int(count))
    ]
    ranks = []
    for rank, (host, local) in enumerate(places):
        told = {"PMI_RANK": str(rank), "PMI_SIZE": str(len(places)), "MPI_LOCALRANKID": str(local)}
        if host == places[0][0]:
            argv, env = words, {**os.environ, **told}
        else:
            remote = shlex.join(["env", *(f"{name}={value}" for name, value in told.items()), *words])
            argv, env = ["ssh", "-q", "-x", "-F", config, host, remote], dict(os.environ)
        ranks.append(subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL))

    def end(*_: object) -> None:
        for each in ranks:
            if each.returncode is None:
                each.kill()
        os._exit(255)

    signal.signal(signal.SIGTERM, end)
    sys.exit(max(abs(each.wait()) for each in ranks))


if __name__ == "__main__":
    main()
