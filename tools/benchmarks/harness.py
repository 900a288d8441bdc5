"""Running contenders in turns and adding up what each has spent. A run that fails ends everything, loudly."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO, Any, Final, TypeVar

from ipexctl.node.common.processes import read_stat

from .figures import compared, median, median_interval, ratio, ratios

TOO_LONG = 1800.0
"""Seconds after which a contender counts as hung."""
LOOK_INTERVAL = 0.05
TIMES: Final = "s (ipexctl's time / this time)"
"""What a cell of `table` has."""

Measured = TypeVar("Measured")


class Failed(Exception):
    """A contender did not do what it was measured for, so there is no figure."""


@dataclass(frozen=True, slots=True)
class Contender:
    """A program, its words and what its environment adds to ours."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict, hash=False)
    stdin: bytes = b""


@dataclass(frozen=True, slots=True)
class Spent:
    """What one run took: seconds on the wall, seconds of processor in the process and its children."""

    wall: float
    cpu: float


@dataclass(frozen=True, slots=True)
class Exit:
    """How a child ended."""

    code: int
    spent: Spent
    stderr: str


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def clean_environment(home: str) -> dict[str, str]:
    """No agent, no user's settings: everyone starts with the same empty home, and with its bytecode cached.

    Installed programs are compiled once; a checkout may be told not to be, and would compile itself at every start.
    """
    dropped: tuple[str, ...] = ("SSH_", "ANSIBLE_", "PYINFRA_", "PDSH_", "IPEXCTL_", "_IPEXCTL_", "XDG_", "NO_COLOR")
    dropped += (
        "OMP_",
        "KMP_",
        "MKL_",
        "OPENBLAS_",
        "NVPL_",
        "MALLOC_",
        "GLIBC_",
        "LD_",
    )  # they reach only some launchers' ranks
    dropped += ("PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED", "PYTHONPROFILEIMPORTTIME")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    return {**kept, "HOME": home, "TERM": "dumb", "PYTHONPYCACHEPREFIX": f"{home}/.bytecode"}


@contextmanager
def started(
    contender: Contender, base: Mapping[str, str], stdout: int | IO[bytes]
) -> Iterator[tuple[subprocess.Popen[bytes], Callable[[], Exit]]]:
    """The running contender and how to wait for it. Leaving early ends it and all it has started."""
    with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as stderr:
        stdin.write(contender.stdin)
        stdin.seek(0)
        begun = time.perf_counter()
        process = subprocess.Popen(
            contender.argv,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            env={**base, **contender.env},
            cwd=base["HOME"],
            start_new_session=True,
        )
        watchdog = threading.Timer(TOO_LONG, _kill_group, [process.pid])
        watchdog.daemon = True
        watchdog.start()

        def wait() -> Exit:
            _, status, usage = os.wait4(process.pid, 0)
            wall = time.perf_counter() - begun
            watchdog.cancel()
            process.returncode = os.waitstatus_to_exitcode(status)
            stderr.seek(0)
            said = stderr.read().decode(errors="replace")
            return Exit(process.returncode, Spent(wall, usage.ru_utime + usage.ru_stime), said)

        try:
            yield process, wait
        finally:
            watchdog.cancel()
            if process.returncode is None:
                _kill_group(process.pid)
                process.wait()
            if process.stdout is not None:
                process.stdout.close()


def _kill_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def end_of(
    contender: Contender, base: Mapping[str, str], look: Callable[[int], None] | None = None
) -> tuple[Exit, str]:
    """Run it to its end, whatever that is; its output. `look` is called with its pid again and again meanwhile."""
    with tempfile.TemporaryFile() as stdout, started(contender, base, stdout) as (process, wait):
        while look is not None and read_stat(process.pid).is_alive:  # it is not waited for yet, and keeps its usage
            look(process.pid)
            time.sleep(LOOK_INTERVAL)
        end = wait()
        stdout.seek(0)
        return end, stdout.read().decode(errors="replace")


def good_end_of(
    contender: Contender, base: Mapping[str, str], look: Callable[[int], None] | None = None
) -> tuple[Spent, str]:
    """What one run took, and its output; raises Failed unless it ended well."""
    end, stdout = end_of(contender, base, look)
    if end.code != 0:
        raise failure(contender, end, stdout)
    return end.spent, stdout


def spend(contender: Contender, base: Mapping[str, str]) -> Spent:
    return good_end_of(contender, base)[0]


def failure(contender: Contender, end: Exit, stdout: str = "") -> Failed:
    said = "\n".join((end.stderr or stdout).strip().splitlines()[-30:])
    hung = " (it hung and was killed)" if end.code == -signal.SIGKILL and end.spent.wall >= TOO_LONG else ""
    return Failed(f"{contender.name} ended with {end.code}{hung}: {shlex.join(contender.argv)}\n{said}")


def printed(contender: Contender, base: Mapping[str, str], word: str) -> list[Any]:
    """The documents that rank 0 of a run prints behind this word; raises Failed if it ends badly or prints none."""
    _, output = good_end_of(contender, base)
    begin = f"[0] {word} "
    found = [json.loads(line.removeprefix(begin)) for line in output.splitlines() if line.startswith(begin)]
    if not found:
        raise Failed(f"{contender.name} printed no figures:\n{output[-2000:]}")
    return found


def in_turns(
    names: Sequence[str], runs: int, measure: Callable[[str], Measured], pause: float = 0.0
) -> dict[str, list[Measured]]:
    """Every contender once a round, each round beginning with another one, so that noise hits all alike."""
    figures: dict[str, list[Measured]] = {name: [] for name in names}
    for number in range(runs):
        for name in rotated(names, number):
            time.sleep(pause)
            figures[name].append(measure(name))
    return figures


def spend_in_turns(
    contenders: Iterable[Contender], runs: int, base: Mapping[str, str], pause: float = 0.0
) -> dict[str, list[Spent]]:
    by_name = {contender.name: contender for contender in contenders}
    return in_turns(list(by_name), runs, lambda name: spend(by_name[name], base), pause)


def rotated(names: Sequence[str], number: int) -> list[str]:
    """The names of that round: each begins with another one."""
    shift = number % len(names)
    return [*names[shift:], *names[:shift]]


def walls_ratio(figures: Mapping[str, Sequence[Spent]], name: str, beside: str) -> float:
    return ratio([spent.wall for spent in figures[name]], [spent.wall for spent in figures[beside]])


def table(columns: Iterable[Mapping[str, Sequence[Spent]]], ours: str) -> tuple[tuple[str, ...], ...]:
    """A row for each contender with its wall and, in each column, our wall by its wall."""
    columns = list(columns)
    return tuple((name, *(_cell(figures, name, ours) for figures in columns)) for name in columns[0])


def _wall(figures: Mapping[str, Sequence[Spent]], name: str) -> float:
    return median([spent.wall for spent in figures[name]])


def _cell(figures: Mapping[str, Sequence[Spent]], name: str, ours: str) -> str:
    wall = f"{_wall(figures, name):.2f}"
    if name == ours:
        return wall
    walls, others = ([spent.wall for spent in figures[each]] for each in (ours, name))
    return f"{wall} ({compared(median_interval(ratios(walls, others)))})"
