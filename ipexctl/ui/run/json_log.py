"""Output of `ipexctl logs --json`: one document, written while the lines arrive."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from ipexctl.node.common.frames import Chunk, Stream
from ipexctl.remote.progress import Notice
from ipexctl.text import printable
from ipexctl.ui.messages import print_message
from ipexctl.ui.run.lines import PrefixedLines
from ipexctl.ui.safe_output import OutputPipes

if TYPE_CHECKING:
    from ipexctl.jobs.follow import Event
    from ipexctl.jobs.registry import RunRecord
    from ipexctl.remote.cancel import Cancel


class JsonLog:
    """Takes the events of one run. `reason` says why lines may be missing."""

    def __init__(self, record: RunRecord, cancel: Cancel) -> None:
        self.reason = ""
        self._hosts = record.ranks
        self._pipes = OutputPipes(cancel)
        self._lines: dict[tuple[int, Stream], tuple[PrefixedLines, float | None]] = {}
        self._separator = "\n    "
        self._write(f'{{\n  "schema": "ipexctl.logs/1",\n  "id": {json.dumps(record.id)},\n  "lines": [')

    def __enter__(self) -> JsonLog:
        return self

    def __exit__(self, *_: object) -> None:
        for (rank, stream), (lines, at) in sorted(self._lines.items(), key=lambda item: item[0]):
            self._write_lines(rank, stream, at, lines.flush())
        self._write(f'\n  ],\n  "reason": {json.dumps(printable(self.reason))}\n}}\n')
        self._pipes.close()

    @property
    def broken(self) -> OSError | None:
        return self._pipes.broken

    def watch(self, event: Event) -> None:
        if isinstance(event, Chunk):
            lines, _ = self._lines.get((event.rank, event.stream)) or (PrefixedLines(b""), None)
            self._lines[event.rank, event.stream] = lines, event.at
            self._write_lines(event.rank, event.stream, event.at, lines.feed(event.data))
        elif isinstance(event, Notice):
            print_message(printable(event.text))

    def _write_lines(self, rank: int, stream: Stream, at: float | None, lines: bytes) -> None:
        host = self._hosts[rank] if rank < len(self._hosts) else ""
        for line in lines.removesuffix(b"\n").split(b"\n") if lines else ():
            text = line.decode(errors="replace")
            document = {"rank": rank, "host": host, "stream": stream, "at": at, "text": text}
            self._write(self._separator + json.dumps(document))
            self._separator = ",\n    "

    def _write(self, text: str) -> None:
        self._pipes.write("stdout", text.encode())
