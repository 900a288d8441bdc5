"""Checks on node0 whether rank 0 can listen on the user's MASTER_PORT, and finds the process that listens on it.

Like PyTorch, it binds with SO_REUSEADDR on all addresses, so a port whose last connections are closing is free.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket

from ipexctl.node.common import listener
from ipexctl.node.common.processes import read_text
from ipexctl.node.common.records import Detail

_TAKEN = re.compile(rb"port: (\d{1,5})\b[^\n]*EADDRINUSE")


class PortError(OSError):
    def __init__(self, reason: str, fix: str) -> None:
        super().__init__(0, reason)
        self.fix = fix


def check_master_port(address: str, port: int) -> None:
    """Raise a PortError with its cause and a fix if rank 0 could not listen on this port of node0. `address`: node0's,
    to find a free port for the fix."""
    problem = bind_problem(port)
    if problem is None:
        return
    process = listening_process(port)
    by = f": {process} listens on it" if process else f": {problem}"
    try:
        other = f"; or give a free one, such as --master-port {listener.free_port(address)}"
    except OSError:
        other = ""
    raise PortError(
        f"the master port {port} can't be used{by}",
        f"leave out --master-port, so that node0 takes a free port for each start{other}",
    )


def find_holder(*outputs: bytes) -> Detail | None:
    """Return the port that torch could not take, as the last line of an output says, and the process that listens on
    it. None if no output says so, or no such process of this account is found."""
    ports = _TAKEN.findall(b"\n".join(output.rstrip().rpartition(b"\n")[2] for output in outputs))
    holder = listening_process(int(ports[-1])) if ports else ""
    return Detail("port-taken", {"port": ports[-1].decode(), "holder": holder}) if holder else None


def bind_problem(port: int) -> str | None:
    """Return why no process can listen on the port on all addresses; None if one can."""
    for family, address in ((socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")):  # noqa: S104
        try:
            listener = socket.socket(family, socket.SOCK_STREAM)
        except OSError:  # a machine without IPv6
            continue
        with listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                if family == socket.AF_INET6:
                    listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                listener.bind((address, port))
                listener.listen(1)
            except OSError as error:
                if family == socket.AF_INET6 and error.errno not in (13, 98):  # IPv6 is disabled
                    continue
                return error.strerror or str(error)
    return None


def listening_process(port: int) -> str:
    """Return the process that listens on a port, as in `python3 (pid 4711) of rank 0 of run r-1`; empty if there is
    none, or it belongs to another account."""
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in read_text(table).splitlines()[1:]:
            fields = line.split()
            if len(fields) > 9 and fields[3] == "0A" and fields[1].rpartition(":")[2] == f"{port:04X}":
                inodes.add(f"socket:[{fields[9]}]")
    for pid in filter(str.isdigit, os.listdir("/proc")) if inodes else ():
        with contextlib.suppress(OSError):
            for number in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    if os.readlink(f"/proc/{pid}/fd/{number}") in inodes:
                        pairs = (text.partition("=")[::2] for text in read_text(f"/proc/{pid}/environ").split("\0"))
                        names, command = dict(pairs), read_text(f"/proc/{pid}/comm").strip() or "a process"
                        is_rank = names.get("IPEXCTL_RUN") and names.get("RANK", "").isdecimal()
                        of_run = f" of rank {names['RANK']} of run {names['IPEXCTL_RUN'][:80]}" if is_rank else ""
                        return f"{command} (pid {pid}){of_run}"
    return ""
