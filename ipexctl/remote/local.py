"""Use the control machine as a host: find its addresses, and run commands on it without ssh and login shell.

A command is over when both streams and the process have ended, because a background process may keep a stream open.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import selectors
import signal
import socket
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import IO

from ipexctl.found_files import account_name
from ipexctl.hosts.host import Host, is_loopback
from ipexctl.node.common.frames import StreamName
from ipexctl.remote.cancel import Cancel, Deadline, cleaning
from ipexctl.remote.command import Command, end_session_script
from ipexctl.remote.mux import MuxProcess
from ipexctl.remote.outcome import Cancelled, HostError
from ipexctl.remote.session import OVERTIME, CommandEnd, Readable, Session, Wakeup, copy_stdin, timeout_error
from ipexctl.text import home_directory

_POLL_INTERVAL = 0.02
"""Seconds between checks for the exit of a command with closed streams."""

_READ_SIZE = 1 << 18


class LocalSession(Session):
    is_login = False

    def __init__(self, host: Host, cancel: Cancel | None = None) -> None:
        self.host, self.cancel = host, cancel

    def _run(
        self, command: Command, sink: Callable[[StreamName, bytes], None], stdin: Readable | None, deadline: Deadline
    ) -> CommandEnd:
        """Run the command to its end. If the call ends before the command, its processes are ended."""
        process = _start(command, stdin)
        try:
            with Wakeup() as wakeup, deadline.cancel.waking(wakeup.wake):
                return follow(process, sink, wakeup, lambda: deadline)
        except BaseException:
            with cleaning("processes"):
                _end_processes(process)
            raise
        finally:
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    with contextlib.suppress(OSError):
                        stream.close()

    def close(self) -> None:
        """Do nothing, because nothing is open between commands."""


def _start(command: Command, stdin: Readable | None) -> subprocess.Popen[bytes]:
    """Start the command in the account's home and in a session of its own, and feed its stdin in a thread. Raises a
    HostError if it can't be started."""
    try:
        process = subprocess.Popen(
            ["/bin/sh", "-c", command.script],
            stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=_home(),
            start_new_session=True,
        )
    except OSError as error:
        raise HostError(f"the command can't be started: {error.strerror or error}") from None
    if stdin is not None and process.stdin is not None:
        feed_stdin(stdin, process.stdin)
    return process


def _home() -> Path:
    home = home_directory()
    return home if home.is_dir() else Path("/")


def feed_stdin(source: Readable, target: IO[bytes]) -> None:
    """Copy `source` to the stdin of a program in a thread, and close it at the end."""

    def send(data: bytes) -> None:
        target.write(data)
        target.flush()

    copy_stdin(source, send, target.close, (OSError,))


def follow(
    process: subprocess.Popen[bytes] | MuxProcess,
    sink: Callable[[StreamName, bytes], None],
    wakeup: Wakeup,
    current: Callable[[], Deadline],
) -> CommandEnd:
    """Forward the output of a program until it and both streams have ended. `current`: returns the deadline that holds
    now. Raises a Cancelled or a TimedOut."""
    assert process.stdout is not None
    assert process.stderr is not None
    names: dict[int, StreamName] = {process.stdout.fileno(): "stdout", process.stderr.fileno(): "stderr"}
    with selectors.DefaultSelector() as selector:
        for descriptor in (*names, wakeup.reader):
            selector.register(descriptor, selectors.EVENT_READ)
        overtime: Deadline | None = None
        # Streams may end long before the command, so the loop waits for both.
        while names or process.poll() is None:
            deadline = current()
            if deadline.cancelled:
                raise Cancelled("stopped")
            overtime = (overtime or Deadline(OVERTIME)) if deadline.over else None
            if overtime is not None and overtime.over:
                raise timeout_error(deadline)
            for key, _ in selector.select((overtime or deadline).left(None if names else _POLL_INTERVAL)):
                if key.fd not in names:
                    continue
                if data := os.read(key.fd, _READ_SIZE):
                    sink(names[key.fd], data)
                else:
                    selector.unregister(key.fd)
                    del names[key.fd]
    code = process.wait()
    if code < 0:
        return CommandEnd(128 - code, signal.Signals(-code).name.removeprefix("SIG"))
    return CommandEnd(code)


def _end_processes(process: subprocess.Popen[bytes]) -> None:
    """End every process in the session of the command; kill its process group if that takes more than 10 s."""
    argv = ["/bin/sh", "-c", end_session_script(process.pid)]
    with contextlib.suppress(OSError):
        try:
            subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=10)
        except subprocess.TimeoutExpired:
            if process.poll() is None:  # so its pid is not reused yet
                os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(1)


def is_this_machine(host: Host) -> bool:
    """Return True if the host's address is one of the control machine's. False if the hostfile or command line names a
    port or another user: `localhost port=2222` is a tunnel or container, `root@localhost` another account."""
    if host.port is not None or host.ssh_config is not None:
        return False
    if host.user is not None and host.user != account_name():
        return False
    return _is_own_address(host.address)


@lru_cache(maxsize=1024)
def _is_own_address(address: str) -> bool:
    """Return True for the loopback, this machine's name, or an IP address of this machine. Other names are not
    resolved, because the ssh config may map them to any host."""
    if is_loopback(address) or address == socket.gethostname():
        return True
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False  # the ssh config may map a name to any host
    return source_towards(str(parsed)) == str(parsed)


def source_towards(address: str) -> str | None:
    """Return the local address from which that address is reached. Connecting a datagram socket sends no packet."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.connect((address, 9))
            return str(sock.getsockname()[0]).partition("%")[0]
    except OSError:
        return None


def with_own_address(hosts: Sequence[Host]) -> tuple[Host, ...]:
    """Replace `localhost` among other hosts by the control machine's address on their network."""
    if not any(is_loopback(host.address) and is_this_machine(host) for host in hosts):
        return tuple(hosts)
    others = [host for host in hosts if not is_this_machine(host)]
    shared_address = next((own for host in others if (own := _own_address_towards(host))), None)
    if shared_address is None:
        return tuple(hosts)
    return tuple(
        replace(host, internal=host.internal or shared_address)
        if is_this_machine(host) and is_loopback(host.address)
        else host
        for host in hosts
    )


def _own_address_towards(host: Host) -> str | None:
    """Return this machine's address on the host's network; None for a host that is given by name, or that can't be
    reached."""
    try:
        infos = socket.getaddrinfo(host.internal or host.address, None, 0, socket.SOCK_DGRAM, 0, socket.AI_NUMERICHOST)
    except (OSError, UnicodeError):
        return None  # a name, which is resolved when connecting, within a time limit
    return next((own for *_, address in infos if (own := source_towards(str(address[0])))), None)
