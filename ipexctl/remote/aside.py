"""Work that goes on beside the caller's own: begun now, its result asked for when it is needed."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class Aside(Generic[T]):
    """One piece of work in a thread. Whoever never asks for its result never hears of its end, good or bad."""

    def __init__(self, work: Callable[[], T], name: str) -> None:
        self._work = work
        self._results: list[T] = []
        self._error: BaseException | None = None
        self._over = threading.Event()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def _run(self) -> None:
        try:
            self._results.append(self._work())
        except BaseException as error:  # noqa: BLE001  # raised where the result is asked for
            self._error = error
        finally:
            self._over.set()

    def result(self) -> T:
        """Waits for it; raises what the work raised. Asked again, the same."""
        self._over.wait()
        if self._error is not None:
            raise self._error
        return self._results[0]
