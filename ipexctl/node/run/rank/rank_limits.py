"""What a rank's own machine shows of a failure: the limits of its process, and what its Python said of its end."""

from __future__ import annotations

import re
import resource
import signal
from typing import Iterator, Sequence

from ipexctl.node.common.environ import read_limits
from ipexctl.node.common.processes import read_text
from ipexctl.node.common.records import Proof

_LETTERS = {"FSIZE": "f", "CPU": "t", "STACK": "s", "NOFILE": "n", "AS": "v", "DATA": "d"}
"""Name in `resource` → option of ulimit."""
_IN_KB = ("FSIZE", "STACK", "AS", "DATA")
_USUAL_STACK = 8 << 20
FACTS = ("read", "lfs", "content", "called", "made", "gone", "directory", "used", "raised", "exited", "group")
"""Kinds of what a rank's Python says of the exception that ended it."""
_MOST_NOTES = 64


class RankLimits:
    """The limits of a command from its start. `changed`: numbers of those that its setup file has set."""

    def __init__(self, pid: int, setup: str, changed: frozenset[int]) -> None:
        self._limits = {name: soft for name, (soft, _) in read_limits(read_text(f"/proc/{pid}/limits")).items()}
        self._setup, self._changed = setup, changed

    def describe(self, seconds: float) -> Iterator[Proof]:
        """Yield the limits that may have ended the command. `seconds`: its processor time."""
        for name, letter in _LETTERS.items():
            soft = self._limits.get(name, resource.RLIM_INFINITY)
            is_usual = (name == "STACK" and soft >= _USUAL_STACK) or (name == "CPU" and seconds < soft - 1)
            if soft != resource.RLIM_INFINITY and not is_usual:
                by = getattr(resource, f"RLIMIT_{name}") in self._changed
                size = f"{soft >> 10:,} KB" if name in _IN_KB else f"{soft:,}{' s' * (name == 'CPU')}"
                text = f"RLIMIT_{name} (ulimit -{letter}) is {size}{f', by {self._setup}' * by}"
                yield Proof(f"limit-{name.lower()}", text)


def describe_notes(notes: Sequence[str]) -> Iterator[Proof]:
    """Yield as evidence what the command's Pythons have said of their end. `notes`: of `rank_hooks.py`, such as `child
    4711 -9` or `fact read weights.bin`."""
    for match in filter(None, map(re.compile(r"fact (\w+) (.+)").fullmatch, notes[-_MOST_NOTES:])):
        if match[1] in FACTS:
            yield Proof(match[1], match[2])
    for match in filter(None, map(re.compile(r"child (\d+) (-?)(\d+)").fullmatch, notes)):
        names = {f"{known:d}": known.name for known in signal.Signals}
        how = f"was ended by {names.get(match[3], 'a signal')}" if match[2] else f"exited with code {match[3]}"
        yield Proof("child", f"process {match[1]}, which it had started, {how}")
        return


def describe_gpus(notes: Sequence[str]) -> Iterator[Proof]:
    """Yield what the end has to do with GPUs, also of a rank that succeeded: `gpu-ended train.py, line 3`."""
    for kind, _, place in (note.partition(" ") for note in notes if note.startswith("gpu-")):
        yield Proof(kind, place)


def last_exception(output: bytes) -> str:
    """Return the exception with which an output ends, below its traceback; or empty."""
    _, title, rest = output.decode(errors="replace").rstrip().rpartition("Traceback (most recent call last):\n")
    *above, last = rest.splitlines() or [""]
    is_last = title and not any(line[:1].strip() for line in above)
    return last[:200] if is_last and re.match(r"[A-Za-z_][\w.]*(?:: |$)", last) else ""
