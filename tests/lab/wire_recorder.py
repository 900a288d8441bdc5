"""Records what crosses a network: the data of each TCP segment that enters the namespace where this runs, to a file.

    python wire_recorder.py FILE          prints `recording`; at the end of stdin the number of packets that were lost

A record is a line of JSON, {"flow": [source, port, target, port], "data": hex}; each segment once, in order of arrival.
"""

from __future__ import annotations

import json
import select
import socket
import struct
import sys
from collections import defaultdict
from pathlib import Path
from typing import IO

_ETH_P_ALL, _OUTGOING = 3, 4
_SO_RCVBUFFORCE, _SOL_PACKET, _PACKET_STATISTICS = 33, 263, 6
_BUFFER = 128 << 20
Flow = tuple[str, int, str, int]


def parse(packet: bytes) -> tuple[Flow, bytes] | None:
    """The TCP data of an Ethernet frame with IPv4."""
    if len(packet) < 54 or packet[12:14] != b"\x08\x00" or packet[23] != 6:
        return None
    head = 14 + (packet[14] & 15) * 4
    (total,) = struct.unpack_from("!H", packet, 16)
    source, target = struct.unpack_from("!HH", packet, head)
    data = packet[head + (packet[head + 12] >> 4) * 4 : 14 + total if total else None]
    flow = (socket.inet_ntoa(packet[26:30]), source, socket.inet_ntoa(packet[30:34]), target)
    return (flow, data) if data else None


def record(file: IO[str]) -> None:
    tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ALL))
    tap.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER)
    print("recording", flush=True)
    is_over = False
    while True:
        readable, _, _ = select.select([tap] if is_over else [tap, sys.stdin], [], [], 0.5)
        if tap in readable:
            packet, (_, _, kind, _, _) = tap.recvfrom(1 << 17)
            if kind != _OUTGOING and (found := parse(packet)):
                file.write(json.dumps({"flow": found[0], "data": found[1].hex()}) + "\n")
        elif is_over:
            break
        else:
            file.flush()
        is_over = is_over or sys.stdin in readable
    file.flush()
    _, lost = struct.unpack("II", tap.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, 8))
    print(lost, flush=True)


def recorded_bytes(path: Path) -> bytes:
    """All bytes; those of each direction of a connection are together."""
    flows: dict[Flow, bytearray] = defaultdict(bytearray)
    for line in path.read_text().splitlines():
        row = json.loads(line)
        source, port, target, other = row["flow"]
        flows[source, port, target, other] += bytes.fromhex(row["data"])
    return b"\n".join(flows.values())


if __name__ == "__main__":
    with Path(sys.argv[1]).open("w") as file:
        record(file)
