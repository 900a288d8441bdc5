"""The script of every rank: it prints numbered lines and notes each in a file, until its fault comes.

`lines.py FAULT VICTIM DIRECTORY COUNT PACE [NAME=VALUE…]`. It notes in DIRECTORY when the victim comes to its fault
(`died`), and when a rank gets SIGTERM. The names: `at`, the line of the fault; `attempts`, the number of attempts with
the fault; `checkpoint`, a file that is read at the start, and that rank `writer` replaces every ten lines, with `size`
bytes.
"""

import contextlib
import os
import random
import signal
import sys
import time

fault, victim, directory, count, pace = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), float(sys.argv[5])
more = dict(text.split("=", 1) for text in sys.argv[6:])
at, attempts, checkpoint = int(more.get("at", "40")), int(more.get("attempts", "1")), more.get("checkpoint", "")
rank, attempt = int(os.environ["RANK"]), int(os.environ.get("RESTART_COUNT", "0"))
os.makedirs(directory, exist_ok=True)
own = os.open(f"{directory}/{rank}.{attempt}.lines", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
chance = random.Random(f"{directory}{rank}")


def told(*_: object) -> None:
    raise RuntimeError("as it was told to")


def note_term(*_: object) -> None:
    with open(f"{directory}/{rank}.{attempt}.term", "w") as file:
        file.write(str(time.time()))
    if fault != "deaf" or rank != victim:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)


signal.signal(signal.SIGUSR1, told)
signal.signal(signal.SIGTERM, note_term)


def never() -> None:
    if rank == victim:
        time.sleep(3600)


def say(text: str) -> None:
    line = f"rank {rank} says {text}\n".encode()
    os.write(1, line)
    with contextlib.suppress(OSError):  # its disk is full
        os.write(own, line)


def save(step: int) -> None:
    os.makedirs(os.path.dirname(checkpoint), exist_ok=True)
    with open(checkpoint + ".tmp", "w") as file:
        file.write(f"{step} ".ljust(int(more["size"]), "w"))
    with open(f"{directory}/{attempt}.saving", "w") as file:
        file.write(str(step))
    os.replace(checkpoint + ".tmp", checkpoint)
    with open(f"{directory}/{attempt}.saved", "w") as file:
        file.write(str(step))


step = 0
if checkpoint:
    with contextlib.suppress(FileNotFoundError), open(checkpoint) as file:
        step = int(file.read(32).split()[0])
    say(f"from {step}")

for number in range(count):
    if fault == "hang" and number > 20:
        time.sleep(3600)
    if checkpoint and rank == int(more["writer"]) and number % 10 == 9:
        step += 1
        save(step)
    if rank == victim and number == at and attempt < attempts and fault not in ("none", "deaf"):
        with open(f"{directory}/died", "w") as file:
            file.write(str(time.time()))
        if fault == "raise":
            raise RuntimeError("as it was told to")
        if fault == "exit":
            sys.exit(3)
        if fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if fault == "atexit":
            import atexit

            atexit.register(never)
            raise RuntimeError("as it was told to")
        if fault == "oom":
            held = []
            while True:
                held.append(bytearray(b"x" * (8 << 20)))
    say(f"{number} {'y' * chance.randrange(60)}")
    time.sleep(pace * chance.random() * 2)
