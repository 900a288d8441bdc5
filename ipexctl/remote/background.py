"""Work in a daemon thread, with its result as a `Future`."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


def run_in_background(work: Callable[[], T], name: str) -> Future[T]:
    """Start `work` and return at once. An error is raised by `result()` only.

    Not a ThreadPoolExecutor: its threads are joined when the interpreter exits, so work that hangs would keep the
    process alive. This thread is a daemon.
    """
    future: Future[T] = Future()

    def run() -> None:
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001  # raised by result()
            future.set_exception(error)
        else:
            future.set_result(result)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future
