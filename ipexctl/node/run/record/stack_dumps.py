"""Files of users' requests, of stack dumps, and of answers to requests for a profile in `RUNDIR/stacks`. A rank without
stacks, or without a profile, has a row with the reason."""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING, Iterator, Sequence

from ipexctl.node.common.files import read_json, write_json_atomically
from ipexctl.node.common.frames import MAX_FRAME, encode_json

if TYPE_CHECKING:
    from ipexctl.node.common.answer import Json

KEPT = 20


def new_dump_id(at: float) -> str:
    """Return a new id, which sorts by time: `20260131-184502-1a2b3c4d`."""
    return f"{time.strftime('%Y%m%d-%H%M%S', time.localtime(at))}-{os.urandom(4).hex()}"


def dump_path(directory: str, id: str, kind: str = "dump") -> str:  # noqa: A002
    """Return the path of a file of this id. `kind`: `ask` for a request, `dump` or `profile` for its answer."""
    return os.path.join(directory, f"{kind}-{id}.json")


def newest_dump(directory: str) -> str:
    """Return the id of the newest dump; empty without one."""
    names = dump_names(directory, "dump-")
    return names[-1][len("dump-") : -len(".json")] if names else ""


def dump_names(directory: str, prefix: str) -> list[str]:
    """Return the names of files with this prefix, oldest first; empty if the directory can't be read."""
    try:
        names = os.listdir(directory)
    except OSError:
        return []
    return sorted(name for name in names if name.startswith(prefix) and name.endswith(".json"))


def encode_dump(directory: str, dump_id: str) -> Iterator[bytes]:
    """Return the frames of a dump on disk; none if it does not exist."""
    return dump_frames(read_json(dump_path(directory, dump_id)))


def dump_frames(document: Json) -> Iterator[bytes]:
    """Yield a frame for each rank of a dump. Stacks that are too large for a frame are replaced by a reason."""
    rows = document.get("ranks") or ()
    for row in rows:
        frame = encode_json({"stacks": row, "at": document.get("at"), "of": len(rows)})
        if len(frame) > MAX_FRAME:
            short = {**row, "processes": None, "why": "its stacks are too large to send"}
            frame = encode_json({"stacks": short, "at": document.get("at"), "of": len(rows)})
        yield frame


def take_requests(directory: str) -> Iterator[tuple[str, str, tuple[int, ...] | None]]:
    """Yield id, kind of answer, and ranks (None for all) of each new request, and remove the request's file."""
    for name in dump_names(directory, "ask-"):
        path = os.path.join(directory, name)
        request = read_json(path)
        ranks = request.get("ranks")
        if "ranks" not in request or not (ranks is None or isinstance(ranks, list)):
            continue
        try:
            os.unlink(path)
        except OSError:
            continue
        yield name[len("ask-") : -len(".json")], str(request.get("kind")), None if ranks is None else tuple(ranks)


def write_dump(directory: str, dump_id: str, at: float, rows: Sequence[Json], kind: str = "dump") -> None:
    """Write an answer, unless the disk is full, and remove all but the newest of its kind."""
    with contextlib.suppress(OSError):
        write_json_atomically(dump_path(directory, dump_id, kind), {"at": at, "ranks": rows}, durable=False)
        for name in dump_names(directory, f"{kind}-")[:-KEPT]:
            os.unlink(os.path.join(directory, name))


def remove_dump(directory: str, dump_id: str) -> None:
    """Remove a dump that is no longer of use. One that is gone is no error."""
    with contextlib.suppress(OSError):
        os.unlink(dump_path(directory, dump_id))
