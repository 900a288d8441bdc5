"""Limit what reading a playbook and filling a template may cost: seconds, and memory beyond what this process has.

A playbook may come with a cloned repository, and a template may never end. A signal handler of Python ends most of
them. A template can also keep C code busy in which no handler runs, such as the comparison of nested lists. Then
`faulthandler` ends the process, which can't say why any more, so a sh that waits at a pipe says it.
"""

from __future__ import annotations

import faulthandler
import os
import resource
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Final

from ipexctl.errors import UserError
from ipexctl.limits import TEMPLATE_INTERRUPTED, TEMPLATE_RENDERED
from ipexctl.text import printable

MEMORY: Final = 512 << 20
"""Enough for the stacks of the threads that connect to hosts meanwhile."""
_STATUS: Final = Path("/proc/self/statm")
_DATA: Final = 5
"""Field with the pages that RLIMIT_DATA limits: unlike RLIMIT_AS, not what threads only reserve."""
_LAST_WORDS: Final = """\
while IFS= read -r line; do
  case $line in "at "*) at=${line#at } ;; Timeout*) printf '%s: %s\\n  %s\\n' "$at" "$1" "$2" >&2; exit ;; esac
done
"""


class TimeUp(BaseException):
    """Raised if a limit of time is exceeded; a BaseException, so that templates can't catch it."""


@contextmanager
def reading_limits(shown: str) -> Iterator[None]:
    """Limit what reading all files of a playbook costs together. Raises a UserError. `shown`: the playbook's name."""
    try:
        with limits(shown, "reading it"):
            yield
    except (TimeUp, MemoryError) as error:
        what = str(error) if isinstance(error, TimeUp) else "reading it needs too much memory"
        raise UserError(f"{shown}: {what}", fix="take out parts that repeat: `loop` repeats a task") from None


@contextmanager
def limits(at: str, what: str = "this template") -> Iterator[None]:
    """Raise TimeUp in the main thread, the only one that fills templates, or MemoryError. `at`: what is filled."""

    def time_up(*_: object) -> None:
        raise TimeUp(f"{what} took longer than {TEMPLATE_RENDERED:g} s")

    listener = _listener().stdin
    assert listener is not None
    with suppress(BrokenPipeError):  # somebody ended the sh
        os.write(listener.fileno(), os.fsencode(f"at {printable(at)}\n"))
    memory = resource.getrlimit(resource.RLIMIT_DATA)
    before = signal.signal(signal.SIGALRM, time_up)
    try:
        faulthandler.dump_traceback_later(TEMPLATE_INTERRUPTED, file=listener, exit=True)
        signal.setitimer(signal.ITIMER_REAL, TEMPLATE_RENDERED)
        resource.setrlimit(resource.RLIMIT_DATA, (_lowered(*memory), memory[1]))
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        resource.setrlimit(resource.RLIMIT_DATA, memory)
        faulthandler.cancel_dump_traceback_later()
        signal.signal(signal.SIGALRM, before)


def _lowered(soft: int, hard: int) -> int:
    """Return the limit of memory in bytes: `MEMORY` more than this process has, or a limit that is lower already."""
    if not _STATUS.exists():  # a Mac limits no memory: time and results are limited there, too
        return soft
    allowed = int(_STATUS.read_text().split()[_DATA]) * resource.getpagesize() + MEMORY
    return min([allowed, *(limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY)])


@cache
def _listener() -> subprocess.Popen[bytes]:
    """Start the sh that prints why this process ended; one for all templates."""
    what = f"this took longer than {TEMPLATE_INTERRUPTED:g} s and could not be interrupted, so ipexctl ended"
    fix = "it does work that belongs in a task; what hosts had done by then stays done"
    sh = ["sh", "-c", _LAST_WORDS, "sh", what, fix]
    return subprocess.Popen(sh, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True)
