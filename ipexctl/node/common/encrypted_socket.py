"""Encrypts a connection with TLS while both ends keep using an ordinary socket.

A thread copies between the connection and a local socket pair. Each call has its own certificate. The client knows its
SHA-256 beforehand, so no authority or host name is checked.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import select
import socket
import ssl
import threading

from ipexctl.node.common.clock import Countdown

_CHUNK = 1 << 16
_FAREWELL = 5.0
"""Seconds for the other side to close a connection that this side has closed."""
_MAX_HELD = 1 << 20


def client_context() -> ssl.SSLContext:
    """Return a client's TLS settings. No certificate is checked by them: `encrypt` compares its fingerprint instead."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def fingerprint_of(certificate: bytes) -> str:
    """Return the SHA-256 of a certificate in DER, in hex digits."""
    return hashlib.sha256(certificate).hexdigest()


def encrypt(conn: socket.socket, context: ssl.SSLContext, *, fingerprint: str = "", seconds: float) -> socket.socket:
    """Return a socket to which this side writes and from which it reads plain bytes, while TLS is on the connection.

    Closes the connection and raises an OSError if the other end has no TLS or another certificate. On the server,
    `fingerprint` is empty.
    """
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_side=not fingerprint)
    countdown = Countdown(seconds)
    try:
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                conn.settimeout(max(0.001, countdown.left))
                conn.sendall(outgoing.read())
                data = conn.recv(_CHUNK)
                if not data:
                    raise ConnectionError("the other side closed the connection") from None
                incoming.write(data)
        conn.sendall(outgoing.read())
        if fingerprint:
            shown = fingerprint_of(tls.getpeercert(binary_form=True) or b"")
            if not hmac.compare_digest(shown, fingerprint):
                raise ConnectionError("the program there has another certificate")
    except OSError:  # includes SSLError
        conn.close()
        raise
    inner, outer = socket.socketpair()
    threading.Thread(target=_Pump(conn, inner, tls, incoming, outgoing).run, name="tls", daemon=True).start()
    return outer


class _Pump:
    def __init__(
        self,
        conn: socket.socket,
        local: socket.socket,
        tls: ssl.SSLObject,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
    ) -> None:
        self._conn, self._local, self._tls, self._incoming, self._outgoing = conn, local, tls, incoming, outgoing
        self._to_conn, self._to_local = bytearray(), bytearray()
        self._is_local_over = self._is_conn_over = False

    def run(self) -> None:
        with self._conn, self._local, contextlib.suppress(OSError):
            self._conn.setblocking(False)
            self._local.setblocking(False)
            self._decrypt()
            while not self._is_done():
                self._step()
            if not self._is_conn_over:
                self._drain()

    def _drain(self) -> None:
        """Read the rest. If bytes were unread at the close, bytes on their way to the other side would be lost."""
        self._conn.shutdown(socket.SHUT_WR)
        countdown = Countdown(_FAREWELL)
        while (left := countdown.left) > 0:
            self._conn.settimeout(left)
            if not self._conn.recv(_CHUNK):
                return

    def _is_done(self) -> bool:
        if self._is_conn_over:
            return not self._to_local
        return self._is_local_over and not self._to_conn

    def _step(self) -> None:
        poll = select.poll()
        wants = {
            self._conn: (not self._is_conn_over and len(self._to_local) < _MAX_HELD, bool(self._to_conn)),
            self._local: (not self._is_local_over and len(self._to_conn) < _MAX_HELD, bool(self._to_local)),
        }
        for end, (reads, writes) in wants.items():
            poll.register(end, reads * select.POLLIN | writes * select.POLLOUT)
        for number, event in poll.poll():
            if number == self._conn.fileno():
                self._on_conn(event)
            else:
                self._on_local(event)

    def _on_conn(self, event: int) -> None:
        if event & select.POLLOUT:
            del self._to_conn[: self._conn.send(self._to_conn)]
        if event & (select.POLLIN | select.POLLHUP | select.POLLERR) and not self._is_conn_over:
            data = self._conn.recv(_CHUNK)
            if data:
                self._incoming.write(data)
                self._decrypt()
            else:
                self._is_conn_over = True

    def _on_local(self, event: int) -> None:
        if event & select.POLLOUT:
            try:
                del self._to_local[: self._local.send(self._to_local)]
            except OSError:  # this end was closed; what it sent before is still delivered
                self._to_local.clear()
        if event & (select.POLLIN | select.POLLHUP | select.POLLERR) and not self._is_local_over:
            try:
                data = self._local.recv(_CHUNK)
            except ConnectionResetError:  # closed with unread bytes
                data = b""
            if data:
                self._tls.write(data)
            else:
                self._is_local_over = True
                with contextlib.suppress(ssl.SSLError):  # not waiting for the other side's close_notify
                    self._tls.unwrap()
            self._to_conn += self._outgoing.read()

    def _decrypt(self) -> None:
        with contextlib.suppress(ssl.SSLWantReadError):
            while True:
                data = self._tls.read(_CHUNK)
                if not data:
                    self._is_conn_over = True
                    return
                self._to_local += data
        self._to_conn += self._outgoing.read()
