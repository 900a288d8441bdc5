"""The script of every rank: it prints numbered lines and notes each in a file, until its fault comes.

`lines.py FAULT VICTIM DIRECTORY COUNT PACE`; a time is noted when the victim does what it is told to.
"""

import contextlib
import os
import random
import signal
import sys
import time

fault, victim, directory, count, pace = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), float(sys.argv[5])
rank = int(os.environ["RANK"])
os.makedirs(directory, exist_ok=True)
own = os.open(f"{directory}/{rank}.lines", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
chance = random.Random(f"{directory}{rank}")


def told(*_: object) -> None:
    raise RuntimeError("as it was told to")


signal.signal(signal.SIGUSR1, told)


def never() -> None:
    if rank == victim:
        time.sleep(3600)


for number in range(count):
    if fault == "hang" and number > 20:
        time.sleep(3600)
    if rank == victim and number == 40 and fault != "none":
        with open(f"{directory}/died", "w") as file:
            file.write(str(time.time()))
        if fault == "raise":
            raise RuntimeError("as it was told to")
        if fault == "exit":
            sys.exit(3)
        if fault == "atexit":
            import atexit

            atexit.register(never)
            raise RuntimeError("as it was told to")
        if fault == "oom":
            held = []
            while True:
                held.append(bytearray(b"x" * (8 << 20)))
    line = f"rank {rank} says {number} {'y' * chance.randrange(60)}\n".encode()
    os.write(1, line)
    with contextlib.suppress(OSError):  # its disk is full
        os.write(own, line)
    time.sleep(pace * chance.random() * 2)
