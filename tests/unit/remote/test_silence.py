"""A server that falls silent at any step costs its own timeout, and Ctrl-C at any step is obeyed."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import paramiko
import pytest

from ipexctl.hosts.host import Host
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.command import Command
from ipexctl.remote.connector import ConnectOptions, Connector
from ipexctl.remote.outcome import Cancelled, HostError, TimedOut, Unreachable
from ipexctl.remote.session import capture

Step = Literal["banner", "kex", "auth", "channel", "exec", "status"]
HOST_KEY = paramiko.RSAKey.generate(2048)


class Server(paramiko.ServerInterface):
    """Lets everybody in and answers everything up to a step; from there on it says nothing, or refuses."""

    def __init__(self, step: str) -> None:
        self.step = step
        self.over = threading.Event()

    def _at(self, step: str) -> bool:
        if self.step == step:
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
        if self._at("exec"):
            return False
        nonce = re.search(rb" ([0-9a-f]{16}) [$][$]", command)
        assert nonce
        threading.Thread(target=self._answer, args=(channel, nonce[1].decode()), daemon=True).start()
        return True

    def _answer(self, channel: paramiko.Channel, nonce: str) -> None:
        time.sleep(0.3)  # paramiko says yes to the request only once its callback has returned
        with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
            channel.sendall(f"\x1e{nonce} 4711\n".encode())
            channel.sendall_stderr(f"\x1e{nonce}\n".encode())
            if self.step == "status":
                channel.shutdown_write()
                self.over.wait(30)
            else:
                channel.sendall(b"hello\n")
                channel.send_exit_status(0)
                channel.close()


@contextlib.contextmanager
def server(step: str) -> Iterator[int]:
    listener = socket.create_server(("127.0.0.1", 0))
    made = Server(step)

    def serve() -> None:
        with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
            while True:
                connection, _ = listener.accept()
                if step == "banner":
                    held.append(connection)
                elif step == "kex":
                    held.append(connection)
                    connection.sendall(b"SSH-2.0-silent\r\n")
                else:
                    transport = paramiko.Transport(connection)
                    transport.add_server_key(HOST_KEY)
                    transport.start_server(event=threading.Event(), server=made)
                    held.append(transport)

    held: list[object] = []
    threading.Thread(target=serve, daemon=True).start()
    yield listener.getsockname()[1]
    made.over.set()
    listener.close()
    for each in held:
        each.close()  # type: ignore[attr-defined]


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    paramiko.RSAKey.generate(2048).write_private_key_file(str(path))
    return path


def reach_it(port: int, key: Path, cancel: Cancel, *, connect_timeout: float, timeout: float | None) -> bytes:
    host = Host("silent", "127.0.0.1", user="me", port=port, identity=key, ssh_config=key.with_name("none"))
    key.with_name("none").touch()
    with Connector(ConnectOptions(connect_timeout=connect_timeout, host_keys="off")) as connector:
        session = connector.open(host, cancel)
        try:
            return capture(session, Command.argv("true"), timeout=timeout, cancel=cancel).stdout
        finally:
            session.close()


def test_a_server_that_talks_is_heard(key: Path) -> None:
    with server("nothing") as port:
        assert reach_it(port, key, Cancel(), connect_timeout=10, timeout=10) == b"hello\n"


@pytest.mark.parametrize(
    ("step", "error", "data"),
    [
        ("banner", Unreachable, "1.5 s"),
        ("kex", Unreachable, "1.5 s"),
        ("auth", Unreachable, "1.5 s"),
        ("channel", TimedOut, "1 s"),
        ("exec", TimedOut, "1 s"),
        ("status", TimedOut, "1 s"),
    ],
)
def test_silence_costs_its_own_timeout(key: Path, step: Step, error: type[HostError], data: str) -> None:
    started = time.monotonic()
    with server(step) as port, pytest.raises(error, match=re.escape(data)):
        reach_it(port, key, Cancel(), connect_timeout=1.5, timeout=1)
    assert time.monotonic() - started < 12  # 1.5 to connect, 1 to run, and what ending the processes may take


@pytest.mark.parametrize("step", ["banner", "kex", "auth", "channel", "exec", "status"])
def test_the_switch_is_obeyed_wherever_the_server_is_silent(key: Path, step: Step) -> None:
    cancel = Cancel()
    threading.Timer(0.7, cancel.throw).start()
    started = time.monotonic()
    with server(step) as port, pytest.raises(Cancelled):
        reach_it(port, key, cancel, connect_timeout=60, timeout=None)
    assert time.monotonic() - started < 12


@pytest.mark.parametrize(
    ("step", "said"), [("refuse channel", "opens no session"), ("refuse exec", "refuses to run commands")]
)
def test_a_refusal_is_not_taken_for_a_lost_connection(key: Path, step: str, said: str) -> None:
    with server(step) as port, pytest.raises(HostError, match=said):
        reach_it(port, key, Cancel(), connect_timeout=10, timeout=10)
