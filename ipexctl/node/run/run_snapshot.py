"""Reads the record of a run on node0: status, events, the last lines of every rank and of the launcher.

The answer is frames with the last lines of each rank's stdout and stderr and the newest stack dump, then {"event":
"done", …}. Output that several ranks printed is sent once: `ranks` is {"5": {"out": N, "err": N}, …}. Each line
is what a terminal would finally show; long lines are shortened.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from typing import TYPE_CHECKING

from ipexctl.node.common.answer import Json, answer
from ipexctl.node.common.files import RunReference, last_lines, read_json
from ipexctl.node.common.frames import (
    SUFFIXES,
    Chunk,
    CompressedFrameWriter,
    StreamName,
    emit_frames,
    encode_chunk,
    last_state,
)
from ipexctl.node.common.home import rundir_of
from ipexctl.node.common.json_records import JsonError, parse_object
from ipexctl.node.common.plan import PLAN_FILE
from ipexctl.node.common.records import as_list
from ipexctl.node.run.notify import end_on_node0
from ipexctl.node.run.rank.oom import kills_of_machine
from ipexctl.node.run.record.file_owner import read_status_now
from ipexctl.node.run.record.losses import read_series
from ipexctl.node.run.record.output_notes import NotesReader
from ipexctl.node.run.record.printed import read_losses
from ipexctl.node.run.record.stack_dumps import encode_dump, newest_dump

if TYPE_CHECKING:
    from ipexctl.node.common.records import RunStatus

FAILED_RANK_BYTES = 8 << 20
"""One line may be a megabyte."""
RANK_BYTES = 256 << 10
ALL_RANKS_BYTES = 32 << 20
MIN_RANK_BYTES = 4 << 10
LINES, FEW_LINES = 2000, 120
MAX_LINE = 2000
MAX_EVENTS = 400
MAX_SETTINGS = 2000
"""Settings of single ranks are last in the list."""
FAILED_STATES = ("failed", "lost")


class SnapshotRequest(RunReference):
    copy: bool
    """True if the directory is a copy from node0. Its status is then not checked, and `now` is when it was written."""
    losses: bool
    """True to read the losses that rank 0 printed."""


_RAISED = re.compile(rb"(?:\[rank\d+\]: )?[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit|Timeout)(?::|\r|$)")
"""A line that begins with an exception. Its text may have carriage returns, as that of a command's output."""


def shorten(line: bytes) -> bytes:
    """Return the line with its middle left out, if it is longer than MAX_LINE."""
    if len(line) <= MAX_LINE:
        return line
    half = MAX_LINE // 2
    return line[:half] + b" [... %d bytes ...] " % (len(line) - 2 * half) + line[-half:]


def tail(path: str, max_bytes: int, count: int, begin: int = 0) -> list[bytes]:
    """Return the last lines, as a terminal would show them, but exceptions whole; empty if the file does not exist."""
    lines = last_lines(path, max_bytes, count, begin)
    whole = (line.rstrip(b"\r").replace(b"\r", b" ") if _RAISED.match(line) else last_state(line) for line in lines)
    return [shorten(line) for line in whole]


def text_lines(path: str, lines: int = 80) -> list[str]:
    """Return the last lines of a file as text, as a terminal would show them; empty if it can't be read."""
    return [line.decode(errors="replace") for line in tail(path, RANK_BYTES, lines)]


def events_of(path: str) -> list[Json]:
    """Return the events, oldest first; beyond MAX_EVENTS, those in the middle are missing."""
    events = []
    for line in tail(path, FAILED_RANK_BYTES, 100000):
        with contextlib.suppress(JsonError):
            events.append(parse_object(line))
    half = MAX_EVENTS // 2
    return events if len(events) <= MAX_EVENTS else events[:half] + events[-half:]


def plan_of(path: str) -> Json:
    """Return the plan with at most MAX_SETTINGS settings; empty if it can't be read."""
    plan = read_json(path)
    return {**plan, "settings": as_list(plan.get("settings"))[:MAX_SETTINGS]} if plan else {}


def last_output_time(path: str) -> float | None:
    """Return when any rank printed something last; None if unknown."""
    try:
        return os.stat(path).st_mtime
    except OSError:
        return None


def ranks_to_inspect(status: RunStatus) -> list[int]:
    """Return at most 16 ranks that failed, the first failure first. More of their output is read than of others."""
    first = status.first_failure.rank if status.first_failure is not None else None
    ranks = [rank.rank for rank in status.ranks if rank.state in FAILED_STATES]
    return sorted(ranks, key=lambda rank: rank != first)[:16]


def send_output(rundir: str, status: RunStatus, writer: CompressedFrameWriter) -> Json:
    """Send the last lines of every rank; returns for each rank and stream under which rank they were sent."""
    ranks = [rank.rank for rank in status.ranks]
    failed_ranks = set(ranks_to_inspect(status))
    bytes_per_rank = max(MIN_RANK_BYTES, min(RANK_BYTES, ALL_RANKS_BYTES // max(1, 2 * len(ranks))))
    notes = NotesReader(os.path.join(rundir, "output.notes"))
    notes.refresh()
    sent: dict[tuple[StreamName, bytes], int] = {}
    sent_as: Json = {str(rank): {} for rank in ranks}
    for rank in ranks:
        max_bytes, lines = (FAILED_RANK_BYTES, LINES) if rank in failed_ranks else (bytes_per_rank, FEW_LINES)
        for stream, suffix in SUFFIXES.items():
            path = os.path.join(rundir, "ranks", f"{rank:04}.{suffix}")
            begin = notes.end_of_last(rank, stream, "restart")
            output = b"\n".join(tail(path, max_bytes, lines, begin))
            if (stream, output) not in sent:
                sent[stream, output] = rank
                writer.send(encode_chunk(Chunk(rank, stream, output)))
            sent_as[str(rank)][suffix] = sent[stream, output]
    return sent_as


def read_run_snapshot(request: SnapshotRequest, _: object) -> Json:
    """Send output and the newest dump of a run as frames, and return the rest of its record.

    What only node0 knows now, such as kills for memory, is None or false of a copy.
    """
    rundir, is_copy = rundir_of(request), request["copy"]
    status, document, written = read_status_now(rundir, is_copy=is_copy)
    stacks = os.path.join(rundir, "stacks")
    with emit_frames() as writer:
        ranks = send_output(rundir, status, writer)
        for frame in encode_dump(stacks, newest_dump(stacks)):
            writer.send(frame)
    plan = plan_of(os.path.join(rundir, PLAN_FILE))
    return {
        "status": document,
        "now": written if is_copy else time.time(),
        "printed": None if is_copy else last_output_time(os.path.join(rundir, "output.times")),
        "restarted": not is_copy and status.supervisor.was_before_restart,
        "kills": None if is_copy else kills_of_machine(),
        "plan": plan,
        "mpirun": text_lines(os.path.join(rundir, "mpirun.log")),
        "supervise": text_lines(os.path.join(rundir, "supervise.log"), 30),
        "events": events_of(os.path.join(rundir, "events.jsonl")),
        "ranks": ranks,
        "notify": end_on_node0(rundir),
        "losses": read_losses(rundir) if request.get("losses") else [],
        "series": read_series(rundir) if request.get("losses") else {},
    }


def main(action: str) -> int:
    """Answer the agent's call `read`, and return its exit code."""
    return answer({"read": read_run_snapshot}[action])
