"""The names of paramiko that are private or undocumented, and that `ipexctl.remote` overrides, calls or replaces.

A release of paramiko may change them without notice, so pyproject.toml has an upper bound. Before raising it, let these
tests pass with the new version, and the tests on real hosts. Each name has the place here that needs it.
"""

from __future__ import annotations

import inspect
import re
import socket
from pathlib import Path

import paramiko
import pytest
from paramiko.agent import AgentKey, AgentSSH
from paramiko.common import MSG_CHANNEL_REQUEST
from paramiko.packet import Packetizer

from ipexctl.remote.cancel import Deadline
from ipexctl.remote.command import Command
from ipexctl.remote.handshake import CorrectedTransport, _Packetizer
from ipexctl.remote.outcome import Unreachable
from ipexctl.remote.session import LoginCommand
from ipexctl.remote.ssh import _OutputReader

PYPROJECT = Path(__file__).parents[3] / "pyproject.toml"
METHODS: tuple[tuple[type, str, str], ...] = (
    (paramiko.Transport, "_send_message", "data"),  # handshake.CorrectedTransport: nothing for a closed channel
    (paramiko.Transport, "_parse_channel_open_success", "m"),  # handshake.CorrectedTransport: the number counts again
    (paramiko.Channel, "_handle_request", "m"),  # handshake._record_exit_signal calls it
    (Packetizer, "start_handshake", "timeout"),  # handshake._Packetizer: no timer
    (AgentSSH, "_connect", "conn"),  # auth._Agent calls it
    (paramiko.MissingHostKeyPolicy, "missing_host_key", "client hostname key"),  # handshake._CheckHostKey
)


@pytest.mark.parametrize(("owner", "name", "parameters"), METHODS, ids=lambda value: getattr(value, "__name__", value))
def test_method_exists_with_the_expected_parameters(owner: type, name: str, parameters: str) -> None:
    found = list(inspect.signature(getattr(owner, name)).parameters)
    assert found == ["self", *parameters.split()]


@pytest.mark.parametrize("name", [name for owner, name, _ in METHODS if owner is paramiko.Transport])
def test_transport_of_its_own_takes_the_same_number_of_arguments(name: str) -> None:
    theirs, ours = (inspect.signature(getattr(owner, name)) for owner in (paramiko.Transport, CorrectedTransport))
    assert [one.kind for one in ours.parameters.values()] == [one.kind for one in theirs.parameters.values()]


def test_transport_accepts_a_class_for_its_packets() -> None:
    assert "packetizer_class" in inspect.signature(paramiko.Transport.__init__).parameters
    assert issubclass(_Packetizer, Packetizer)


def test_transport_dispatches_requests_of_a_channel_by_a_table() -> None:
    table = paramiko.Transport._channel_handler_table  # type: ignore[attr-defined]
    assert table[MSG_CHANNEL_REQUEST] is paramiko.Channel._handle_request  # type: ignore[attr-defined]
    assert set(CorrectedTransport._channel_handler_table) == set(table)


def test_channel_and_agent_key_have_the_attributes_that_are_read() -> None:
    """ssh._OutputReader reads those of a channel, auth.Login that of a key in the agent."""
    channel = paramiko.Channel(1)
    for name in ("in_buffer", "in_stderr_buffer", "eof_received", "status_event", "closed"):
        assert hasattr(channel, name), name
    assert "inner_key" in inspect.getsource(AgentKey.__init__)


@pytest.mark.parametrize("stream", ["in_buffer", "in_stderr_buffer"])
def test_connection_that_is_gone_when_a_read_opens_the_window_again_is_lost(stream: str) -> None:
    mine, theirs = socket.socketpair()
    transport, channel = CorrectedTransport(mine), paramiko.Channel(1)
    transport.active = True  # type: ignore[attr-defined]
    transport.clear_to_send.set()
    channel._set_transport(transport)  # type: ignore[attr-defined]
    channel._set_window(1000, 1000)  # type: ignore[attr-defined]
    channel.active = True
    reader = _OutputReader(channel, LoginCommand(Command("true", "read"), lambda *_: None, Deadline(5)))
    getattr(channel, stream).feed(b"x" * 500)
    theirs.close()
    with pytest.raises(Unreachable, match="the connection was lost"):
        reader.forward_output()
    mine.close()


def test_next_major_version_of_paramiko_is_excluded() -> None:
    most = re.search(r'^  "paramiko>=4\.0,<(\d+)"', PYPROJECT.read_text(), re.MULTILINE)
    assert most
    assert int(paramiko.__version__.split(".")[0]) == int(most[1]) - 1
