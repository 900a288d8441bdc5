"""A stranger on the ranks' network who writes into their store while ranks agree: `store_stranger.py HOST PORT RANKS
ATTACK [ROUND]`, where ROUND is the name of what they agree about, by default DDP's first model. Prints `attacked` once
it has done what it came for."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist

ROUND = f"default_pg/0//ipexctl/allreduce/{sys.argv[5] if len(sys.argv) > 5 else 1}"
OFFERS = [f"{ROUND}/offer/{rank}" for rank in range(int(sys.argv[3]))]
DECISION, CLAIM = f"{ROUND}/decision", f"{ROUND}/claim"
BETWEEN_READERS = 0.2
"""Seconds; the second host reads later."""
TABLES = [b'{"hosts": [[0, 1]]}', b'{"hosts": [[2, 3]]}']


def joined(host: str, port: int) -> Any:
    for _ in range(3000):
        try:
            socket.create_connection((host, port), 1).close()
        except OSError:
            time.sleep(0.02)
        else:
            return dist.TCPStore(host, port, is_master=False, timeout=timedelta(seconds=20), wait_for_workers=False)
    raise SystemExit("no rank made a store")


def decide(store: Any, first: bytes, second: bytes) -> None:
    """Another decision for each host."""
    store.add(CLAIM, 1)
    store.wait(OFFERS)
    store.set(DECISION, first)
    time.sleep(BETWEEN_READERS)
    store.set(DECISION, second)


def divide(store: Any) -> None:
    """As `decide`, at the place where the ranks once had their table of hosts."""
    for key in ("mapped", "offers"):
        store.add(f"{ROUND}/{key}/claim", 1)
    store.set(f"{ROUND}/offers/decision", b'{"offers": [1e999, {"cores": 5}, [], null]}')
    for table in TABLES:
        store.set(f"{ROUND}/mapped/decision", table)
    decide(store, b"+", b"+")


def write_wrong_types(store: Any) -> None:
    for rank, key in enumerate(OFFERS):
        store.set(key, [b"\xff" * 100_000, b"[" * 100_000, b'{"cores": 5, "pid": 1e400}', b""][rank % 4])
    store.set(DECISION, b"\x1b[2J" + b"9" * 1_000_000)


def lead_elsewhere(store: Any) -> None:
    """Give the ranks of one place the addresses of the other place's, where the hosts meet."""
    until = time.monotonic() + 20
    while time.monotonic() < until:
        places = sorted(key for key in store.list_keys() if "/place" in key and "claim" not in key)
        if len(places) >= len(OFFERS):
            values = [store.get(key) for key in places]
            for key, value in zip(places, values[1:] + values[:1], strict=True):
                store.set(key, value)
            return


ATTACKS: dict[str, Callable[[Any], None]] = {
    "on for the first host alone": lambda store: decide(store, b"+", b"-stranger"),
    "on for the second host alone": lambda store: decide(store, b"-stranger", b"+"),
    "no decision": lambda store: decide(store, b"", b""),
    "tables": divide,
    "types": write_wrong_types,
    "places": lead_elsewhere,
}


if __name__ == "__main__":
    ATTACKS[sys.argv[4]](joined(sys.argv[1], int(sys.argv[2])))
    sys.stdout.write("attacked\n")
