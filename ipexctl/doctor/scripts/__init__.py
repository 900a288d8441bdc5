"""What the doctor runs on hosts for longer than one answer: scripts as text, and how to talk with all of them at once.

What they are told, and what their answers mean, is `ports` and `smoke`.
"""

from __future__ import annotations

import functools
import io
import queue
import threading
import time
from importlib import resources
from typing import TYPE_CHECKING, BinaryIO, Generic, TypeVar, cast

from ipexctl.remote.command import Command
from ipexctl.remote.outcome import HostError, TimedOut

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ipexctl.remote.cancel import Cancel
    from ipexctl.remote.session import Session, Stream

T = TypeVar("T")


@functools.cache
def text_of(name: str) -> str:
    """A script as it is shipped."""
    return resources.files(__name__).joinpath(name).read_text(encoding="utf-8")


def script(name: str, *words: str, label: str) -> Command:
    """A piece of sh with its arguments, into which no shell looks."""
    return Command(Command.argv("/bin/sh", "-c", text_of(name), "ipexctl", *words).script, label)


class Concurrent(Generic[T]):
    """The same for every host, each in a thread of its own; whoever is late is left to itself, and told of as late.

    A fan-out waits for the last. Here the time all of them have is worth more than one host's answer.
    """

    def __init__(self, works: Mapping[str, Callable[[], T]]) -> None:
        self._began = time.monotonic()
        self._names = tuple(works)
        self._finished: queue.SimpleQueue[tuple[str, T | BaseException]] = queue.SimpleQueue()
        for name, work in works.items():
            threading.Thread(target=self._do, args=(name, work), name=f"look-{name}", daemon=True).start()

    def _do(self, name: str, work: Callable[[], T]) -> None:
        try:
            self._finished.put((name, work()))
        except BaseException as error:  # noqa: BLE001  # carried to the caller's thread and raised there
            self._finished.put((name, error))

    def results(self, until: float) -> dict[str, T | HostError]:
        found: dict[str, T | HostError] = {}
        while len(found) < len(self._names):
            try:
                name, result = self._finished.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                break
            if isinstance(result, BaseException) and not isinstance(result, HostError):
                raise result
            found[name] = result
        for name in self._names:
            found.setdefault(name, TimedOut(f"no answer within {until - self._began:.0f} s"))
        return found


class _Orders(io.RawIOBase):
    """A command's stdin, written to as we go on."""

    def __init__(self) -> None:
        self._waiting: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def put(self, data: bytes) -> None:
        """Nothing at all is the end."""
        self._waiting.put(data)

    def read(self, size: int = -1, /) -> bytes:  # noqa: ARG002
        return self._waiting.get()


class ScriptDialog:
    """Commands on many hosts at once that print lines and take orders, until they are told that there are no more."""

    def __init__(self, cancel: Cancel) -> None:
        self._cancel = cancel
        self._heard: queue.SimpleQueue[tuple[str, str | HostError | None]] = queue.SimpleQueue()
        self._orders: dict[str, _Orders] = {}
        self._present: set[str] = set()
        self._bug: BaseException | None = None

    @property
    def present(self) -> frozenset[str]:
        """Those whose command still runs, as far as was heard."""
        return frozenset(self._present)

    def start(self, name: str, session: Session, command: Command, *, timeout: float) -> None:
        self._orders[name] = _Orders()
        self._present.add(name)
        args = (name, session, command, timeout)
        threading.Thread(target=self._run, args=args, name=f"talk-{name}", daemon=True).start()

    def tell(self, name: str, text: str) -> None:
        self._orders[name].put(text.encode("ascii", "replace"))

    def hear(self, until: float) -> tuple[str, str | HostError | None] | None:
        """The next line of whichever host, its error where it is lost, None where its command is over.

        Nothing at all where the time is up, the switch is thrown, or nobody is left.
        """
        while self._present and not self._cancel.thrown:
            left = until - time.monotonic()
            if left <= 0:
                return None
            try:
                name, said = self._heard.get(timeout=min(left, 0.2))
            except queue.Empty:
                continue
            if self._bug is not None:
                raise self._bug
            if not isinstance(said, str):
                self._present.discard(name)
            return name, said
        return None

    def end(self, until: float) -> None:
        """No more orders: the commands end by themselves."""
        for orders in self._orders.values():
            orders.put(b"")
        while self.hear(until) is not None:
            pass

    def _run(self, name: str, session: Session, command: Command, timeout: float) -> None:
        unread = b""

        def sink(stream: Stream, data: bytes) -> None:
            nonlocal unread
            if stream == "stdout":
                *lines, unread = (unread + data).split(b"\n")
                for line in lines:
                    self._heard.put((name, line.decode("utf-8", "replace")))

        gone: HostError | None = None
        try:
            stdin = cast("BinaryIO", self._orders[name])
            session.run(command, sink, stdin=stdin, timeout=timeout, cancel=self._cancel)
        except HostError as error:
            gone = error
        except BaseException as error:  # noqa: BLE001  # carried to the caller's thread and raised there
            self._bug = error
        finally:
            self._orders[name].put(b"")
            self._heard.put((name, gone))
