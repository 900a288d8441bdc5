"""One command on every host with nothing but paramiko and threads: what there is to be as fast as.

bare_pool.py KEY KNOWN_HOSTS USER COMMAND ADDRESS…
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import paramiko

THREADS = 32


@dataclass(frozen=True)
class Way:
    """How to log in: read once for all hosts."""

    user: str
    key: paramiko.PKey
    known: paramiko.HostKeys

    @classmethod
    def read(cls, key: str, known_hosts: str, user: str) -> Way:
        return cls(user, paramiko.Ed25519Key.from_private_key_file(key), paramiko.HostKeys(known_hosts))


def connect(way: Way, address: str) -> paramiko.Transport:
    """A checked host key, a login, paramiko's own socket and defaults."""
    known = way.known.lookup(address)
    if known is None:
        raise paramiko.SSHException(f"{address} is in no known_hosts")
    transport = paramiko.Transport((address, 22))
    transport.connect(hostkey=next(iter(known.values())), username=way.user, pkey=way.key)
    return transport


def run(transport: paramiko.Transport, command: str) -> tuple[int, bytes]:
    """Its exit code, and what it printed on stdout."""
    with transport.open_session() as channel:
        channel.exec_command(command)
        output = b""
        while data := channel.recv(1 << 20):
            output += data
        return channel.recv_exit_status(), output


def main() -> None:
    key, known_hosts, user, command, *addresses = sys.argv[1:]
    way = Way.read(key, known_hosts, user)

    def on_one(address: str) -> int:
        transport = connect(way, address)
        try:
            return run(transport, command)[0]
        finally:
            transport.close()

    with ThreadPoolExecutor(THREADS) as pool:
        codes = list(pool.map(on_one, addresses))
    sys.exit(max(codes))


if __name__ == "__main__":
    main()
