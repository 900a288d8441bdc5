"""A tree to every host as a tar stream through plain paramiko: own socket with NODELAY, aes-gcm first.

push_paramiko.py KEY KNOWN_HOSTS USER TREE DESTINATION ADDRESS…
"""

from __future__ import annotations

import shlex
import socket
import sys
import tarfile
from concurrent.futures import ThreadPoolExecutor
from typing import IO, cast

import paramiko

BLOCK = 1 << 18


class _ToChannel:
    """The one thing a streamed archive needs of a file."""

    def __init__(self, channel: paramiko.Channel) -> None:
        self._channel = channel

    def write(self, data: bytes) -> int:
        self._channel.sendall(data)
        return len(data)


def push(key: paramiko.PKey, known: paramiko.HostKeys, user: str, tree: str, destination: str, address: str) -> int:
    keys = known.lookup(address)
    if keys is None:
        raise paramiko.SSHException(f"{address} is in no known_hosts")
    sock = socket.create_connection((address, 22))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    transport = paramiko.Transport(sock)
    options = transport.get_security_options()
    options.ciphers = sorted(options.ciphers, key=lambda name: "gcm" not in name)
    try:
        transport.connect(hostkey=next(iter(keys.values())), username=user, pkey=key)
        with transport.open_session() as channel:
            where = shlex.quote(destination)
            channel.exec_command(f"mkdir -p {where} && exec tar -xpof - -C {where}")
            out = cast("IO[bytes]", _ToChannel(channel))
            with tarfile.open(fileobj=out, mode="w|", format=tarfile.GNU_FORMAT, bufsize=BLOCK) as archive:
                archive.add(tree, arcname=".")
            channel.shutdown_write()
            return channel.recv_exit_status()
    finally:
        transport.close()


def main() -> None:
    key_file, known_hosts, user, tree, destination, *addresses = sys.argv[1:]
    key = paramiko.Ed25519Key.from_private_key_file(key_file)
    known = paramiko.HostKeys(known_hosts)
    with ThreadPoolExecutor(32) as pool:
        codes = list(pool.map(lambda address: push(key, known, user, tree, destination, address), addresses))
    sys.exit(max(codes))


if __name__ == "__main__":
    main()
