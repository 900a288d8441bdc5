"""Programs without a token that fill a port with connections."""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress


class UnauthenticatedClients:
    """Keep many connections from one address open, and replace those that are closed."""

    def __init__(self, connect: Callable[[], socket.socket], count: int) -> None:
        self._over = threading.Event()
        self._open, self._count = connect, count
        self._thread = threading.Thread(target=self._connect, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()
        time.sleep(1.0)

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _connect(self) -> None:
        with ExitStack() as stack, selectors.DefaultSelector() as held:
            while not self._over.is_set():
                for _ in range(self._count - len(held.get_map())):
                    try:
                        stranger = self._open()
                    except OSError:  # the port is closed by now
                        break
                    held.register(stack.enter_context(stranger), selectors.EVENT_READ)
                for key, _ in held.select(0.02):
                    assert isinstance(key.fileobj, socket.socket)
                    with suppress(OSError):
                        if key.fileobj.recv(1 << 16):
                            continue
                    held.unregister(key.fileobj)
                    key.fileobj.close()
