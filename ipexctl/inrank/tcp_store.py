"""Keep rank 0's rendezvous store for the other ranks until they have closed their connections to it.

The store's server is a thread of rank 0, which ends with the last reference, often in `destroy_process_group`.
torchrun has the server in its agent. `rank_hooks.py` calls `keep_tcp_store_for_other_ranks` at exit, unless the script
failed.

- No rank leaves its group before all ranks have made it: gloo would fail in the ranks that still connect.
- Only existing connections are served once the script has destroyed its groups. A rank that connects later waits for
  the server of the next group, whose keys are other ones.
- What else rank 0's exit would close is closed before it waits, so that a rank that needs rank 0 in a collective fails
  at once. A rank that sums in shared memory sees rank 0's NAME (`waiting.py`).
- An MPI's finalization waits for all ranks, so nothing is kept if one is in use.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import socket
import sys
import time
from typing import Any, Iterator, NamedTuple

NAME = b"ipexctl-store"
"""Name of the process while only its store is needed. `node/run/rank/rank_processes.py` reads it."""
LIMIT = 3600.0
"""Seconds to keep the store; STORE_KEPT in `node/common/node_limits.py`."""
INTERVAL = 0.02
DESCRIPTORS = "/proc/self/fd"
MADE = "ipexctl/made"
MADE_LIMIT = 30.0
"""Seconds for the other ranks to return from `init_process_group`, from this rank's destruction of the group."""
ENGINES = ("mpi4py", "oneccl_bindings_for_pytorch", "torch_ccl", "horovod")
_kept: dict[int, Any] = {}
"""Port → store with its server in this process."""
_sizes: set[int] = set()
"""World sizes for which this process has met other ranks at a store."""
_pid = os.getpid()


class Connection(NamedTuple):
    """A TCP socket of this process."""

    number: int
    """Its descriptor."""
    socket: str
    """What the descriptor leads to, by which a closed and reused descriptor is noticed."""
    local: tuple[str, int]
    peer: tuple[str, int] | None
    """None for a socket that listens or is not connected."""


def watch_rendezvous(module: Any) -> None:
    """Keep each store whose server is in this process. `module`: torch.distributed.rendezvous."""
    create = module._create_c10d_store

    @functools.wraps(create)
    def create_and_keep(hostname: str, port: int, rank: int, world_size: int, *args: Any, **kwargs: Any) -> Any:
        _kept.pop(port, None)  # torch would use that server again, with the keys of the last group
        store = create(hostname, port, rank, world_size, *args, **kwargs)
        _sizes.add(world_size)
        if rank == 0 and world_size > 1:
            _kept[port] = store
        return store

    module._create_c10d_store = create_and_keep


def watch_groups(module: Any) -> None:
    """Count the ranks that have made the default group, and stop listening once the script has destroyed all groups.
    `module`: torch.distributed.distributed_c10d."""
    make, destroy = module.init_process_group, module.destroy_process_group

    @functools.wraps(make)
    def make_and_count(*args: Any, **kwargs: Any) -> None:
        make(*args, **kwargs)
        with contextlib.suppress(Exception):
            module._get_default_store().add(MADE, 1)

    @functools.wraps(destroy)
    def destroy_and_close(group: Any = None) -> None:
        if group is None:
            wait_for_ranks(module)
        destroy(group)
        if not module.is_initialized():
            stop_listening()

    module.init_process_group, module.destroy_process_group = make_and_count, destroy_and_close


def wait_for_ranks(module: Any) -> None:
    """Wait until all ranks have made the default group, if this rank has."""
    until = time.monotonic() + MADE_LIMIT
    with contextlib.suppress(Exception):  # rank 0 has failed, and its store is gone
        if module.is_initialized() and module.get_world_size() in _sizes:
            store, size = module._get_default_store(), module.get_world_size()
            while store.add(MADE, 0) < size and time.monotonic() < until:
                time.sleep(INTERVAL)


def stop_listening() -> None:
    """Let the store's server take no new connections; those that it has are still served."""
    if not _kept or os.getpid() != _pid:
        return
    for connection in connections():
        if connection.peer is None and connection.local[1] in _kept:
            # The server polls the descriptor, so it becomes a pipe that never is readable.
            reader, _ = os.pipe()
            os.dup2(reader, connection.number, inheritable=False)
            os.close(reader)


def keep_tcp_store_for_other_ranks() -> None:
    """Wait until no other process is connected to the store."""
    if os.getpid() == _pid:
        wait_for_ranks(sys.modules.get("torch.distributed.distributed_c10d"))
    if not _kept or os.getpid() != _pid or any(name in sys.modules for name in ENGINES):
        return
    stop_listening()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    users, is_told, until = close_all_but_tcp_store(), [], time.monotonic() + LIMIT
    if not users:
        return
    signal.signal(signal.SIGTERM, lambda number, _: is_told.append(number))
    set_name(NAME)
    while not is_told and any(os.path.realpath(f"{DESCRIPTORS}/{user.number}") == user.socket for user in users):
        if time.monotonic() > until:
            text = f"kept the rendezvous store {LIMIT / 60:g} minutes after its script ended, and ends now"
            print(f"ipexctl: rank 0 {text}; {len(users)} connections are still open", file=sys.stderr)  # noqa: T201
            break
        time.sleep(INTERVAL)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the script's own exit code stays


def close_all_but_tcp_store() -> list[Connection]:
    """Return the connections that other processes have to the store."""
    connected = [connection for connection in connections() if connection.peer is not None]
    own = {connection.local for connection in connected if connection.peer is not None and connection.peer[1] in _kept}
    for connection in connected:
        if connection.local[1] not in _kept and connection.local not in own:
            with open_copy(connection.number) as sock, contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
    return [each for each in connected if each.local[1] in _kept and each.peer not in own]


def connections() -> Iterator[Connection]:
    """Yield the TCP sockets of this process."""
    for number in map(int, os.listdir(DESCRIPTORS)):
        name = os.path.realpath(f"{DESCRIPTORS}/{number}")
        if "/socket:" not in name:
            continue
        with contextlib.suppress(OSError), open_copy(number) as sock:
            if sock.family in (socket.AF_INET, socket.AF_INET6) and sock.type == socket.SOCK_STREAM:
                peer = None
                with contextlib.suppress(OSError):
                    peer = address(sock.getpeername())
                yield Connection(number, name, address(sock.getsockname()), peer)


def open_copy(number: int) -> socket.socket:
    """Return a socket of a copy of the descriptor. A socket with a default timeout would make `number` non-blocking,
    too, so there is none meanwhile."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(None)
    try:
        return socket.socket(fileno=os.dup(number))
    finally:
        socket.setdefaulttimeout(before)


def address(name: tuple[Any, ...]) -> tuple[str, int]:
    """Return host and port of a socket's name, an IPv4 address without the IPv6 prefix."""
    return name[0].replace("::ffff:", ""), name[1]


def set_name(name: bytes) -> None:
    """Set the process's name, as `ps` shows it. Failures are ignored."""
    with contextlib.suppress(OSError), open("/proc/self/comm", "wb", buffering=0) as file:
        file.write(name)
