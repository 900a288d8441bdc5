"""A training that outlives hosts: `steps.py STEPS PACE EVERY NOTES TOP`, with checkpoints as a Trainer writes them.

Each step, all ranks meet at rank 0, as in an all-reduce, which sends the sum of what they send to all. Every EVERY
steps rank 0 writes `TOP/checkpoint-N`, the other ranks their own files in it, and rank 0 removes all but two.
A rank begins with the newest checkpoint that it has; ranks that begin with different ones end with exit code 9. Each
rank notes in the directory NOTES what it has done: a line `EVENT STEP WORLD_SIZE TIME`.
"""

import json
import os
import shutil
import socket
import sys
import time

steps, pace, every, notes = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
rank, size, attempt = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "RESTART_COUNT"))
assert len(os.environ["IPEXCTL_HOSTS"].split(",")) * int(os.environ["LOCAL_WORLD_SIZE"]) == size
first_size = int(os.environ["IPEXCTL_FIRST_WORLD_SIZE"])
top = sys.argv[5]
os.makedirs(top, exist_ok=True)
os.makedirs(notes, exist_ok=True)
log = open(f"{notes}/{rank}.{attempt}", "a", buffering=1)  # noqa: SIM115


def note(event: str, step: int) -> None:
    log.write(f"{event} {step} {size} {time.time():.2f}\n")


def newest() -> int:
    return max((int(name.partition("-")[2]) for name in os.listdir(top) if name.startswith("checkpoint-")), default=0)


def write(name: str, text: str) -> None:
    with open(name, "w") as file:
        file.write(text)


def save(step: int) -> None:
    place = f"{top}/checkpoint-{step}"
    os.makedirs(place, exist_ok=True)
    if size > 1:
        write(f"{place}/rng_state_{rank}.pth", f"{rank} {step}")
    if rank:
        return
    note("saving", step)
    header = json.dumps({"w": {"dtype": "U8", "shape": [1 << 20], "data_offsets": [0, 1 << 20]}}).encode()
    with open(f"{place}/model.safetensors", "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for _ in range(8):
            file.write(bytes(1 << 17))
            file.flush()
            time.sleep(pace / 8)
    write(f"{place}/training_args.bin", "arguments")
    write(f"{place}/trainer_state.json", json.dumps({"global_step": step}))
    note("saved", step)
    for old in sorted(int(name.partition("-")[2]) for name in os.listdir(top))[:-2]:
        shutil.rmtree(f"{top}/checkpoint-{old}")


class Ring:
    """All ranks, connected with rank 0."""

    def __init__(self) -> None:
        address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        if rank == 0:
            server = socket.create_server(address)
            self.files = [server.accept()[0].makefile("rw") for _ in range(size - 1)]
            return
        until = time.monotonic() + 30
        while True:
            try:
                self.files = [socket.create_connection(address).makefile("rw")]
                return
            except OSError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.05)

    def add(self, values: dict[str, int]) -> list[dict[str, int]]:
        """What each rank sends, on all ranks."""
        if rank:
            print(json.dumps(values), file=self.files[0], flush=True)
            everyone: list[dict[str, int]] = json.loads(self.files[0].readline())
            return everyone
        everyone = [values, *(json.loads(file.readline()) for file in self.files)]
        for file in self.files:
            print(json.dumps(everyone), file=file, flush=True)
        return everyone


ring = Ring()
began_at = newest()
note("began", began_at)
if len({each["step"] for each in ring.add({"step": began_at})}) > 1:
    sys.exit(9)
for step in range(began_at + 1, steps + 1):
    time.sleep(pace)
    assert len(ring.add({"step": step})) == size
    note("step", step)
    if step % every == 0:
        save(step)
        ring.add({"saved": step})
print("done", steps, size, first_size, attempt, flush=True)
