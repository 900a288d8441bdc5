"""paramiko's side of one ssh connection, with four changes that many hosts at once need; see `Transport`.

In comes a connected socket; out goes a transport for `handshake.py`, which adds algorithms, host key and login.
paramiko has no hook for any of these changes, so this is the one module that overrides methods of it which are private
(`_send_message`, `_parse_channel_open_success`, `_parse_debug`, `_log`, `_channel_handler_table`). A new version of
paramiko can break them without notice: `tests/unit/remote/test_handshake.py` plays each of them.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, ClassVar, Final

import paramiko
from paramiko.common import (
    MSG_CHANNEL_CLOSE,
    MSG_CHANNEL_DATA,
    MSG_CHANNEL_EOF,
    MSG_CHANNEL_EXTENDED_DATA,
    MSG_CHANNEL_REQUEST,
    MSG_CHANNEL_WINDOW_ADJUST,
)
from paramiko.packet import Packetizer

if TYPE_CHECKING:
    import socket

_LONG_WAIT: Final = 5.0
"""Seconds between two looks whether a connection is still active; its end wakes those that wait for an answer."""
_CHANNEL_MESSAGES: Final = frozenset(
    {
        MSG_CHANNEL_WINDOW_ADJUST,
        MSG_CHANNEL_DATA,
        MSG_CHANNEL_EXTENDED_DATA,
        MSG_CHANNEL_EOF,
        MSG_CHANNEL_CLOSE,
        MSG_CHANNEL_REQUEST,
    }
)
"""The messages that name a channel of the server in their first field."""


class ClosedChannels:
    """The server's channels that were closed from this side, and whose numbers it has not used again.

    The thread that feeds stdin may be late, and sshd ends the whole connection, with all its other commands, when it
    gets a message for a channel that it no longer knows. A channel is

        open    → closed, when the close message is sent
        closed  → open, when the server opens a channel with this number: it reuses numbers that are free
    """

    def __init__(self) -> None:
        self._numbers: set[int] = set()

    def may_send(self, kind: int, channel: int) -> bool:
        """Whether the message may be sent; a close message is the last one that may."""
        if kind not in _CHANNEL_MESSAGES:
            return True
        if channel in self._numbers:
            return False
        if kind == MSG_CHANNEL_CLOSE:
            self._numbers.add(channel)
        return True

    def on_opened(self, channel: int) -> None:
        self._numbers.discard(channel)


def _record_exit_signal(channel: paramiko.Channel, message: paramiko.Message) -> None:
    """Set `ended_by` of a channel whose command was ended by a signal, which paramiko drops; wake who waits for it."""
    start = message.packet.tell()
    if message.get_text() == "exit-signal":
        message.get_boolean()
        channel.ended_by = message.get_text()  # type: ignore[attr-defined]
    message.packet.seek(start)
    paramiko.Channel._handle_request(channel, message)  # type: ignore[attr-defined]
    wake = getattr(channel, "wake", None)
    if wake is not None:
        wake.set()


class Transport(paramiko.Transport):
    """A connection that records exit signals, sends nothing to closed channels, does not poll and writes no log."""

    _channel_handler_table: ClassVar[dict[int, Any]] = {
        **paramiko.Transport._channel_handler_table,  # type: ignore[attr-defined]
        MSG_CHANNEL_REQUEST: _record_exit_signal,
    }

    def __init__(self, sock: socket.socket, **options: Any) -> None:
        self._closed_channels = ClosedChannels()
        super().__init__(sock, packetizer_class=_Packetizer, **options)

    # No message to a closed channel.

    def _send_message(self, data: paramiko.Message) -> None:
        """Never called by two threads at once: paramiko holds a lock, except during key exchange."""
        with data.packet.getbuffer() as packed:
            kind, channel = packed[0], int.from_bytes(packed[1:5], "big")
        if self._closed_channels.may_send(kind, channel):
            super()._send_message(data)  # type: ignore[misc]

    def _parse_channel_open_success(self, message: paramiko.Message) -> None:
        start = message.packet.tell()
        message.get_int()  # the number on this side
        self._closed_channels.on_opened(message.get_int())
        message.packet.seek(start)
        super()._parse_channel_open_success(message)  # type: ignore[misc]

    # No polling.

    _active_check_timeout = 1.0
    """Seconds between two checks whether it was closed. paramiko's 0.1 s are a tenth of a core with 128 idle hosts."""

    def start_client(self, event: threading.Event | None = None, timeout: float | None = None) -> None:
        """Wait for the end of the negotiation. paramiko itself looks ten times a second whether it has come."""
        del event, timeout
        negotiated = threading.Event()
        super().start_client(negotiated)
        while not negotiated.wait(_LONG_WAIT) and self.is_active():
            pass
        if not self.is_active():
            raise self.get_exception() or paramiko.SSHException("Negotiation failed.")

    # No log.

    def _log(self, level: int, msg: str | list[str], *args: object) -> None:
        """Write no log: nobody reads it, and paramiko formats 35 messages for each connection."""

    def _parse_debug(self, message: paramiko.Message) -> None:
        """Ignore sshd's debug messages: paramiko formats them byte by byte for a log that is off."""


class _Packetizer(Packetizer):
    def start_handshake(self, timeout: float) -> None:
        """Start no timer, which is a thread: the deadline covers the handshake, and may be later than these 15 s."""
