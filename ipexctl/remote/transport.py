"""paramiko's side of an ssh connection, with four changes for many hosts at once; see `Transport`.

paramiko has no hooks for these, so this one module overrides its private methods (`_send_message`,
`_parse_channel_open_success`, `_parse_debug`, `_log`, `_channel_handler_table`). A new version can break them without
notice: `tests/unit/remote/test_handshake.py` covers each.
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
"""Seconds between keepalive checks. A dead connection wakes every waiting caller."""
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
"""Messages whose first field is a channel of the server."""


class ClosedChannels:
    """Server channels closed from this side, with numbers not reused yet.

    The thread that feeds stdin may be late, and sshd ends the connection, with all its commands, on a message for an
    unknown channel. A channel is

        open    → closed, when the close message is sent
        closed  → open, when the server opens a channel with this number: it reuses numbers that are free
    """

    def __init__(self) -> None:
        self._numbers: set[int] = set()

    def may_send(self, kind: int, channel: int) -> bool:
        """False after the close message, the last one allowed."""
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
    """Set `ended_by` of a channel whose command a signal ended, which paramiko drops; wake its waiter."""
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
    """Records exit signals, sends nothing to closed channels, does not poll and writes no log."""

    _channel_handler_table: ClassVar[dict[int, Any]] = {
        **paramiko.Transport._channel_handler_table,  # type: ignore[attr-defined]
        MSG_CHANNEL_REQUEST: _record_exit_signal,
    }

    def __init__(self, sock: socket.socket, **options: Any) -> None:
        self._closed_channels = ClosedChannels()
        super().__init__(sock, packetizer_class=_Packetizer, **options)

    # No message to a closed channel.

    def _send_message(self, data: paramiko.Message) -> None:
        """paramiko's lock serialises this, except during key exchange."""
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
    """Seconds between checks for a close. paramiko's 0.1 s take a tenth of a core with 128 idle hosts."""

    def start_client(self, event: threading.Event | None = None, timeout: float | None = None) -> None:
        """Wait for the end of the negotiation; paramiko itself polls ten times a second."""
        del event, timeout
        negotiated = threading.Event()
        super().start_client(negotiated)
        while not negotiated.wait(_LONG_WAIT) and self.is_active():
            pass
        if not self.is_active():
            raise self.get_exception() or paramiko.SSHException("Negotiation failed.")

    # No log.

    def _log(self, level: int, msg: str | list[str], *args: object) -> None:
        """Nobody reads the log, and paramiko formats 35 messages per connection."""

    def _parse_debug(self, message: paramiko.Message) -> None:
        """Ignore sshd's debug messages: paramiko formats them byte by byte for a log that is off."""


class _Packetizer(Packetizer):
    def start_handshake(self, timeout: float) -> None:
        """Start no timer thread: the deadline covers the handshake, and may be later than these 15 s."""
