"""What `ipexctl why` shows of a verdict, as text or JSON, and the two lines that end a run somebody watched."""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
from typing import TYPE_CHECKING, Any, Final

from ipexctl.text import printable
from ipexctl.ui.messages import wants_color

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ipexctl.jobs.why.diagnosis import Diagnosis, Line
    from ipexctl.jobs.why.patterns.match import Cause
    from ipexctl.jobs.why.why import Answer

SCHEMA: Final = "ipexctl.why/1"
_WIDE: Final = 100
"""Sentences are no longer than that, however wide the terminal."""
_ROWS_OF_A_LINE: Final = 3
_PIPED: Final = 500
_HEADINGS: Final = {"stdout": "stdout", "stderr": "stderr", "mpirun": "mpirun.log", "supervisor": "supervise.log"}
_SURE: Final = {"likely": "likely cause", "possible": "possible cause"}


def as_json(answer: Answer) -> dict[str, Any]:
    record, verdict = answer.record, answer.verdict
    cause = verdict.cause
    return {
        "schema": SCHEMA,
        "run": {
            "id": record.id,
            "script": record.script,
            "env": record.env,
            "node0": record.node0.name,
            "hosts": list(record.hosts),
            "world_size": record.world_size,
            "started": record.started,
        },
        "state": verdict.state,
        "headline": printable(verdict.headline),
        "first_failure": _first_failure(verdict),
        "cause": _cause(cause) if cause else None,
        "lines": [{"stream": line.stream, "text": printable(line.text)} for line in verdict.lines],
        "others": [
            {
                "what": each.what,
                "ranks": list(each.ranks),
                "hosts": list(each.hosts),
                "sentence": printable(each.sentence),
            }
            for each in verdict.others
        ],
        "notes": [printable(note) for note in verdict.notes],
        "next": list(verdict.next),
    }


def _first_failure(verdict: Diagnosis) -> dict[str, Any] | None:
    first = verdict.first
    if first is None:
        return None
    return {
        "rank": first.rank,
        "host": first.host,
        "kind": first.kind,
        "exit_code": first.exit_code,
        "signal": first.signal,
        "oom": first.oom is not None,
        "limit": first.oom.limit if first.oom else None,
        "ranks": list(first.ranks),
        "at": first.at,
        "after": max(0.0, first.at - verdict.started) if first.at is not None and verdict.started else None,
    }


def _cause(cause: Cause) -> dict[str, Any]:
    return {
        "id": cause.id,
        "sentence": printable(cause.sentence),
        "fix": printable(cause.fix),
        "confidence": cause.confidence,
        "rank": cause.rank,
        "host": cause.host,
    }


def show_json(answer: Answer) -> None:
    sys.stdout.write(json.dumps(as_json(answer), indent=2, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def show(answer: Answer, *, no_color: bool = False) -> None:
    """On stdout: it is the answer."""
    terminal = sys.stdout.isatty()
    columns = shutil.get_terminal_size().columns if terminal else 0
    colors = wants_color(sys.stdout, os.environ, no_color=no_color)
    text = "".join(f"{line}\n" for line in lines_of(answer, columns, colors=colors))
    sys.stdout.write(text.encode(sys.stdout.encoding or "utf-8", "replace").decode(sys.stdout.encoding or "utf-8"))
    sys.stdout.flush()


def lines_of(answer: Answer, columns: int = 0, *, colors: bool = False) -> Iterator[str]:
    """What ended it first; without columns nothing is folded, for grep."""
    verdict = answer.verdict
    bold, dim, plain = ("\x1b[1m", "\x1b[2m", "\x1b[0m") if colors else ("", "", "")
    for line in _folded(verdict.headline, columns, ""):
        yield f"{bold}{line}{plain}"
    yield from _last_lines(verdict.lines, verdict.whose, columns, dim, plain)
    if verdict.others or verdict.notes:
        yield ""
    for each in verdict.others:
        yield from _folded(each.sentence, columns, "")
    for note in verdict.notes:
        yield from _folded(note, columns, "")
    cause = verdict.cause
    if cause is not None:
        yield ""
        of = ""
        if cause.rank is not None and verdict.first is not None and cause.rank != verdict.first.rank:
            of = f" (by what rank {cause.rank} on {cause.host} said)"
        for line in _folded(f"{_SURE[cause.confidence]}{of}: {cause.sentence}", columns, ""):
            yield f"{bold}{line}{plain}"
        for clause in cause.fix.split("; "):
            yield from _to_do(clause, columns)
    after = [command for command in verdict.next if cause is None or not _holds(cause.fix, command)]
    if after:
        yield ""
        for at, command in enumerate(after):
            yield f"{'      ' if at else 'next: '}{printable(command)}"


def _holds(fix: str, command: str) -> bool:
    """Whether it was just named."""
    return any(part.strip() == command for piece in fix.split("; ") for part in (piece, piece.rpartition(": ")[2]))


def _last_lines(lines: Sequence[Line], whose: str, columns: int, dim: str, plain: str) -> Iterator[str]:
    most = columns * _ROWS_OF_A_LINE - 8 if columns else _PIPED
    stream = ""
    for line in lines:
        if line.stream != stream:
            stream = line.stream
            yield ""
            yield f"{dim}{whose}, last lines of {_HEADINGS[stream]}:{plain}"
        yield f"  {_cut(printable(line.text.expandtabs(8)), most)}".rstrip()


def _cut(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    half = max(10, most // 2 - 2)
    return f"{text[:half]} … {text[-half:]}"


def _to_do(clause: str, columns: int) -> Iterator[str]:
    """Words, and a command behind them that stays in one piece: it is there to be copied."""
    words, colon, command = clause.rpartition(": ")
    if not columns or len(clause) + 2 <= columns or not command.startswith("ipexctl "):
        yield from _folded(clause, columns, "  ")
        return
    if words:
        yield from _folded(words + colon.rstrip(), columns, "  ")
    yield f"    {printable(command)}"


def _folded(text: str, columns: int, indent: str) -> Iterator[str]:
    text = printable(text)
    if not columns:
        yield indent + text
        return
    width = min(columns, _WIDE)
    yield from textwrap.wrap(
        text,
        width,
        initial_indent=indent,
        subsequent_indent=indent + "  ",
        break_long_words=False,
        break_on_hyphens=False,
    ) or [indent]


def end_words(run: str, cause: Cause | None) -> list[str]:
    """What stands below the sentence that a watched run failed: the likely cause, and where there is more."""
    known = [f"  {_SURE[cause.confidence]}: {printable(cause.sentence)}"] if cause is not None else []
    return [*known, f"  why, and what to do: ipexctl why {run}"]
