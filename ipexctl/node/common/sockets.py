"""Sockets of a node: addresses, a listening socket and a free port."""

from __future__ import annotations

import os
import socket
from typing import Any

LOCAL = "@"
"""Prefix of a Unix socket without a file, reachable only from this machine."""


def resolve(address: str, port: int = 0) -> tuple[socket.AddressFamily, Any]:
    """Family and socket address; raises an OSError. A local name has no port."""
    if address.startswith(LOCAL):
        return socket.AF_UNIX, "\0" + address[len(LOCAL) :]
    family, _, _, _, socket_address = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
    return family, socket_address


def listen(address: str, port: int = 0) -> socket.socket:
    family, socket_address = resolve(address, port)
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        if address == "::":  # both families, whatever this machine's default
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind(socket_address)
        listener.listen(4096)  # every rank reconnects while the supervisor waits for a disk
    except OSError:
        listener.close()
        raise
    return listener


def is_of_this_machine(address: str) -> bool:
    try:
        listen(address).close()
    except OSError:
        return False
    return True


def free_port(address: str) -> int:
    """A free port outside the range for outgoing connections, where a rank might take it before rank 0 listens."""
    low, high = 15000, 32000
    try:
        with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as file:
            first = int(file.read().split()[0])
    except (OSError, ValueError, IndexError):
        first = 32768
    if first <= low:
        low, high = 1024, max(1025, first - 1)
    family, socket_address = resolve(address)
    size = high - low + 1
    start = int.from_bytes(os.urandom(4), "big") % size
    for index in range(min(size, 2000)):
        port = low + (start + index) % size
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            try:
                probe.bind((socket_address[0], port, *socket_address[2:]))
            except OSError:
                continue
            return port
    raise OSError(0, f"no free port among {low} to {high}")
