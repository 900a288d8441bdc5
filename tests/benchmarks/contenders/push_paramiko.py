"""A tree to every host as a tar stream through plain paramiko: own socket with NODELAY, aes-gcm first.

push_paramiko.py each|once KEY KNOWN_HOSTS USER TREE DESTINATION ADDRESS…

each: every host's thread packs the tree into its channel. once: it is packed into memory while the hosts are dialled.
"""

from __future__ import annotations

import io
import shlex
import socket
import sys
import tarfile
from concurrent.futures import ThreadPoolExecutor
from typing import IO, TYPE_CHECKING, cast

import paramiko

if TYPE_CHECKING:
    from collections.abc import Callable

BLOCK = 1 << 15
"""A packet's worth: `sendall` copies all that is left of what it is given after each packet."""


class _ToChannel:
    """The one thing a streamed archive needs of a file."""

    def __init__(self, channel: paramiko.Channel) -> None:
        self._channel = channel

    def write(self, data: bytes) -> int:
        self._channel.sendall(data)
        return len(data)


def pack(tree: str, out: IO[bytes]) -> None:
    with tarfile.open(fileobj=out, mode="w|", format=tarfile.GNU_FORMAT, bufsize=BLOCK) as archive:
        archive.add(tree, arcname=".")


def packed(tree: str) -> bytes:
    whole = io.BytesIO()
    pack(tree, whole)
    return whole.getvalue()


def connect(key: paramiko.PKey, known: paramiko.HostKeys, user: str, address: str) -> paramiko.Transport:
    keys = known.lookup(address)
    if keys is None:
        raise paramiko.SSHException(f"{address} is in no known_hosts")
    sock = socket.create_connection((address, 22))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    transport = paramiko.Transport(sock)
    options = transport.get_security_options()
    options.ciphers = sorted(options.ciphers, key=lambda name: "gcm" not in name)
    transport.connect(hostkey=next(iter(keys.values())), username=user, pkey=key)
    return transport


def push(transport: paramiko.Transport, destination: str, send: Callable[[paramiko.Channel], None]) -> int:
    with transport.open_session() as channel:
        where = shlex.quote(destination)
        channel.exec_command(f"mkdir -p {where} && exec tar -xpof - -C {where}")
        send(channel)
        channel.shutdown_write()
        return channel.recv_exit_status()


def main() -> None:
    how, key_file, known_hosts, user, tree, destination, *addresses = sys.argv[1:]
    key = paramiko.Ed25519Key.from_private_key_file(key_file)
    known = paramiko.HostKeys(known_hosts)
    with ThreadPoolExecutor(32) as pool:
        once = pool.submit(packed, tree) if how == "once" else None

        def send(channel: paramiko.Channel) -> None:
            if once is None:
                pack(tree, cast("IO[bytes]", _ToChannel(channel)))
            else:
                archive = once.result()
                for start in range(0, len(archive), BLOCK):
                    channel.sendall(archive[start : start + BLOCK])

        def on_one(address: str) -> int:
            transport = connect(key, known, user, address)
            try:
                return push(transport, destination, send)
            finally:
                transport.close()

        codes = list(pool.map(on_one, addresses))
    sys.exit(max(codes))


if __name__ == "__main__":
    main()
