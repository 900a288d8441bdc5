"""A run on a pipe, in a log, on a dumb terminal: `[RANK] line`, stdout on ours, stderr on ours, nothing lost.

Lines are whole and in each rank's own order. Our own words go to stderr without a rank.
"""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING, Final

from ipexctl.jobs.events import Chunk, RunEnded, RunNotice
from ipexctl.jobs.ranks import EVERY_RANK
from ipexctl.text import printable
from ipexctl.ui.exec import neutralise
from ipexctl.ui.messages import wants_color
from ipexctl.ui.run.lines import PrefixedLines
from ipexctl.ui.run.summary import end_lines
from ipexctl.ui.safe_output import Pipe

if TYPE_CHECKING:
    from collections.abc import Callable

    from ipexctl.jobs.events import Event, Stream
    from ipexctl.jobs.ranks import RankSet
    from ipexctl.remote.cancel import Cancel


_OURS: Final = re.compile(
    rb"\[ipexctl: (restart \d+ of \d+ after: .*|\d+ bytes are missing here: there was no room for them on .*)\]|"
    rb"ipexctl: ([^\s:]+: .*)"
)
"""What node0 or a rank's wrapper put in a rank's output in its own name."""


class PlainRun:
    """Shows events as one thread brings them.

    A reader of ours that doesn't read makes `watch` wait, and with it whoever follows; the run itself never. Once
    `cancel` is thrown, what there is no room for is dropped. Where our output can't be written any more,
    `on_broken` is called once, `broken` says why, and the rest is dropped.
    """

    def __init__(
        self,
        cancel: Cancel,
        on_broken: Callable[[], None] | None = None,
        *,
        ranks: RankSet = EVERY_RANK,
        no_color: bool = False,
        quiet: bool = False,
    ) -> None:
        self._cancel = cancel
        self._ranks = ranks
        self._quiet = quiet
        broken = on_broken or cancel.throw
        self._pipes: dict[Stream, Pipe] = {
            "stdout": Pipe(sys.stdout.fileno(), cancel, broken),
            "stderr": Pipe(sys.stderr.fileno(), cancel, broken),
        }
        self._terminal: dict[Stream, bool] = {"stdout": sys.stdout.isatty(), "stderr": sys.stderr.isatty()}
        self._tinted: dict[Stream, bool] = {
            "stdout": wants_color(sys.stdout, os.environ, no_color=no_color),
            "stderr": wants_color(sys.stderr, os.environ, no_color=no_color),
        }
        self._lines: dict[tuple[int, Stream], PrefixedLines] = {}
        self._restarts: set[bytes] = set()

    def __enter__(self) -> PlainRun:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def broken(self) -> OSError | None:
        return self._pipes["stdout"].broken or self._pipes["stderr"].broken

    def watch(self, event: Event) -> None:
        if isinstance(event, Chunk):
            if event.rank in self._ranks:
                lines = self._lines.get((event.rank, event.stream)) or self._begin(event.rank, event.stream)
                if whole := lines.feed(event.data):
                    self._show(event.rank, event.stream, whole)
        elif isinstance(event, RunNotice):
            if event.warning or not self._quiet:
                text = "\n".join(printable(line) for line in event.text.split("\n"))
                self._say(f"{'warning: ' if event.warning else ''}{text}")
        elif isinstance(event, RunEnded):
            self._flush()
            if event.status is not None and not (self._quiet and event.exit_code == 0):
                self._say("\n".join(end_lines(event.status, event.exit_code)))

    def close(self) -> None:
        """Show lines that never ended and wait until all is written; where we were stopped, not for long."""
        self._flush()
        for pipe in self._pipes.values():
            pipe.finish(1.0 if self._cancel.thrown else None)

    def _begin(self, rank: int, stream: Stream) -> PrefixedLines:
        lines = self._lines[rank, stream] = PrefixedLines(self._prefix(rank, stream))
        return lines

    def _flush(self) -> None:
        for (rank, stream), lines in sorted(self._lines.items()):
            if rest := lines.flush():
                self._show(rank, stream, rest)

    def _show(self, rank: int, stream: Stream, lines: bytes) -> None:
        """Whole lines; those that are ours are said without a rank, a restart once for all of them."""
        if b"ipexctl: " not in lines:
            self._write(stream, lines)
            return
        theirs: list[bytes] = []
        for line in lines.removesuffix(b"\n").split(b"\n"):
            found = _OURS.fullmatch(line[len(self._prefix(rank, stream)) :])
            if found is None or (found[2] and stream == "stdout"):
                theirs.append(line + b"\n")
                continue
            self._write(stream, b"".join(theirs))
            theirs.clear()
            self._say_ours(rank, stream, found[1] or found[2])
        self._write(stream, b"".join(theirs))

    def _say_ours(self, rank: int, stream: Stream, said: bytes) -> None:
        text = printable(said.decode(errors="replace"))
        if not said.startswith(b"restart "):
            self._say(f"rank {rank}, {stream}: {text}")
        elif said not in self._restarts:
            self._restarts.add(said)
            self._say(text)

    def _prefix(self, rank: int, stream: Stream) -> bytes:
        color = "36" if stream == "stdout" else "33"
        return (f"\x1b[{color}m[{rank}]\x1b[0m " if self._tinted[stream] else f"[{rank}] ").encode()

    def _write(self, stream: Stream, lines: bytes) -> None:
        self._pipes[stream].write(neutralise(lines) if self._terminal[stream] else lines)

    def _say(self, text: str) -> None:
        # Through the same pipe as the ranks' stderr: written past it, our words could land inside a line.
        self._pipes["stderr"].write(f"{text}\n".encode(sys.stderr.encoding, "backslashreplace"))
