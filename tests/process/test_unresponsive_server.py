"""An ssh server that stops responding at any step of a connection: timeouts and cancellation."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import paramiko
import pytest

from agent_helpers import wait_until
from ipexctl import limits
from ipexctl.hosts.host import Host
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.command import Command
from ipexctl.remote.connector import ConnectOptions, Connector
from ipexctl.remote.outcome import Cancelled, HostError, TimedOut, Unreachable
from ipexctl.remote.session import capture
from ipexctl.transports import transport_named

Step = Literal["banner", "kex", "auth", "channel", "exec", "status", "late banner", "late auth", "late channel"]
HOST_KEY = paramiko.ECDSAKey.generate()


class Server(paramiko.ServerInterface):
    """An ssh server without authentication that stops responding at one step, or refuses it."""

    def __init__(self, step: str, commands: list[bytes], waits: Callable[[], None]) -> None:
        self.step = step
        self.commands = commands
        self.waits = waits
        self.over = threading.Event()

    def _at(self, step: str) -> bool:
        if self.step == f"late {step}":
            time.sleep(3)
        if self.step == step:
            self.waits()
            self.over.wait(30)
        return self.step == f"refuse {step}"

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        self._at("auth")
        return int(paramiko.common.AUTH_SUCCESSFUL)

    def check_channel_request(self, kind: str, chanid: int) -> int:
        if self._at("channel"):
            return int(paramiko.common.OPEN_FAILED_RESOURCE_SHORTAGE)
        return int(paramiko.common.OPEN_SUCCEEDED)

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        self.commands.append(command)
        if self._at("exec"):
            return False
        if self.step == "slow exec" and len(self.commands) == 1:
            time.sleep(0.5)
        nonce = re.search(rb" ([0-9a-f]{16}) [$][$]", command)
        assert nonce
        threading.Thread(target=self._answer, args=(channel, nonce[1].decode()), daemon=True).start()
        return True

    def _answer(self, channel: paramiko.Channel, nonce: str) -> None:
        time.sleep(0.1)  # paramiko confirms the request only after its callback has returned
        with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
            channel.sendall(f"\x1e{nonce} 4711\n".encode())
            channel.sendall_stderr(f"\x1e{nonce}\n".encode())
            if self.step == "status":
                channel.shutdown_write()
                self.waits()
                self.over.wait(30)
            else:
                channel.sendall(b"hello\n")
                channel.send_exit_status(0)
                channel.close()


@contextlib.contextmanager
def server(step: str, commands: list[bytes] | None = None, waits: Callable[[], None] = lambda: None) -> Iterator[int]:
    """`waits` is called when it falls silent."""
    listener = socket.create_server(("127.0.0.1", 0))
    made = Server(step, [] if commands is None else commands, waits)

    def serve() -> None:
        with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
            while True:
                connection, _ = listener.accept()
                if step == "banner":
                    held.append(connection)
                    waits()
                elif step == "kex":
                    held.append(connection)
                    connection.sendall(b"SSH-2.0-silent\r\n")
                    waits()
                else:
                    time.sleep(3 if step == "late banner" else 0)
                    transport = paramiko.Transport(connection)
                    transport.add_server_key(HOST_KEY)
                    transport.start_server(event=threading.Event(), server=made)
                    held.append(transport)

    held: list[object] = []
    serving = threading.Thread(target=serve, daemon=True)
    serving.start()
    yield listener.getsockname()[1]
    made.over.set()
    listener.shutdown(socket.SHUT_RDWR)
    serving.join()  # else its next accept may be of the next server's socket, which gets the same descriptor
    listener.close()
    for each in held:
        each.close()  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("account") / "key"
    paramiko.ECDSAKey.generate().write_private_key_file(str(path))
    path.with_name("none").touch()
    return path


TRANSPORT = "ssh"


def connect_and_run(
    port: int,
    key: Path,
    cancel: Cancel,
    *,
    connect_timeout: float,
    timeout: float | None,
    told: list[str] | None = None,
) -> bytes:
    host = Host("silent", "127.0.0.1", user="me", port=port, identity=key, ssh_config=key.with_name("none"))
    options = ConnectOptions(connect_timeout, "off", transport=transport_named(TRANSPORT))
    with Connector(options._replace(on_warning=None if told is None else told.append)) as connector:
        session = connector.open(host, cancel)
        try:
            return capture(session, Command.argv("true"), timeout=timeout).stdout
        finally:
            session.close()


@pytest.mark.core
def test_responsive_server_returns_its_output(key: Path) -> None:
    with server("nothing") as port:
        assert connect_and_run(port, key, Cancel(), connect_timeout=10, timeout=10) == b"hello\n"


@pytest.mark.core
@pytest.mark.parametrize("step", ["banner", "kex", "auth"])
@pytest.mark.parametrize("transport", ["ssh", "openssh"])
def test_server_that_is_silent_before_the_session_is_unreachable(
    key: Path, step: Step, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PATIENCE", 0.6)
    monkeypatch.setitem(globals(), "TRANSPORT", transport)
    started = time.monotonic()
    with server(step) as port, pytest.raises(Unreachable, match=r"accepts connections.* 0\.6 s") as caught:
        connect_and_run(port, key, Cancel(), connect_timeout=30, timeout=30)
    assert time.monotonic() - started < 12
    assert "hang" not in f"{caught.value.reason} {caught.value.fix}"


@pytest.mark.core
@pytest.mark.parametrize("step", ["late banner", "late auth", "late channel"])
@pytest.mark.parametrize("transport", ["ssh", "openssh"])
def test_a_port_that_has_answered_gets_patience_and_a_person_is_told(
    key: Path, step: Step, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A login of 3 s with --connect-timeout 1."""
    monkeypatch.setattr(limits, "TOLD_AFTER", 1.0)
    monkeypatch.setitem(globals(), "TRANSPORT", transport)
    told: list[str] = []
    with server(step) as port:
        assert connect_and_run(port, key, Cancel(), connect_timeout=1, timeout=None, told=told) == b"hello\n"
    what = "start a command in its login shell" if step == "late channel" else "log in"
    assert [text.partition(": 1 s so far, waiting for up to 2 min")[0] for text in told] == [f"silent: slow to {what}"]


@pytest.mark.parametrize("piece", [b"x" * 65536, b"x\r\n" * 1000, b"SSH-2.0-x\r\n" + b"\0" * 65536])
def test_port_that_sends_without_end_before_the_login_is_unreachable_in_time(key: Path, piece: bytes) -> None:
    def flood() -> None:
        client, _ = listening.accept()
        with contextlib.suppress(OSError), client:
            while True:
                client.sendall(piece)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=flood, daemon=True).start()
        begun = time.monotonic()
        with pytest.raises(Unreachable):
            connect_and_run(listening.getsockname()[1], key, Cancel(), connect_timeout=20, timeout=None)
        assert time.monotonic() - begun < 5


@pytest.mark.parametrize("step", ["channel", "exec", "status"])
def test_server_that_is_silent_after_it_ends_in_the_timeout_of_the_command(key: Path, step: Step) -> None:
    started = time.monotonic()
    with server(step) as port, pytest.raises(TimedOut, match=re.escape("0.4 s")):
        connect_and_run(port, key, Cancel(), connect_timeout=30, timeout=0.4)
    assert time.monotonic() - started < 12  # the rest is to end the processes


@pytest.mark.parametrize("step", ["banner", "kex", "auth", "channel", "exec", "status"])
def test_cancel_ends_the_wait_for_a_silent_server_at_any_step(key: Path, step: Step) -> None:
    cancel = Cancel()
    started = time.monotonic()
    with server(step, waits=lambda: threading.Timer(0.1, cancel.throw).start()) as port, pytest.raises(Cancelled):
        connect_and_run(port, key, cancel, connect_timeout=60, timeout=None)
    assert time.monotonic() - started < 12


def test_cancel_ends_a_command_whose_start_is_not_confirmed_yet(key: Path) -> None:
    """sshd starts a command before it answers the request."""
    cancel, commands = Cancel(), list[bytes]()

    def cancel_at_the_request() -> None:
        wait_until(lambda: commands)
        cancel.throw()

    threading.Thread(target=cancel_at_the_request, daemon=True).start()
    with server("slow exec", commands) as port, pytest.raises(Cancelled):
        connect_and_run(port, key, cancel, connect_timeout=10, timeout=None)
    assert [b"sibling" in command for command in commands] == [False, True]


@pytest.mark.parametrize(
    ("step", "said"), [("refuse channel", "opens no session"), ("refuse exec", "refuses to run commands")]
)
def test_refused_channel_or_exec_is_not_a_lost_connection(key: Path, step: str, said: str) -> None:
    with server(step) as port, pytest.raises(HostError, match=said):
        connect_and_run(port, key, Cancel(), connect_timeout=10, timeout=10)
