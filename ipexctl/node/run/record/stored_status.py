"""Reads a run's `status.json` on node0, and marks the run as lost if its supervisor has died."""

from __future__ import annotations

import contextlib
import os
import time
from typing import NamedTuple

from ipexctl.node.common.answer import AgentError, Json
from ipexctl.node.common.clock import seconds_since
from ipexctl.node.common.files import write_json_atomically
from ipexctl.node.common.fix import Fix
from ipexctl.node.common.json_records import JsonError, parse_object, read_json_file
from ipexctl.node.common.liveness import REPORT_LIMITS, age_for_follower, liveness_of
from ipexctl.node.common.records import FINAL, RunStatus, read_status

SPARE_FILE = "status.spare"
"""Blank until the run ends."""


class NoRecord(AgentError):
    """Raised if the run has no record, or no longer has one."""


class StoredStatus(NamedTuple):
    status: RunStatus
    document: Json
    """The file's content, with fields of newer versions."""
    written: float
    """When the file was written, in seconds since the epoch."""


def read_status_file(rundir: str, *, is_copy: bool = False, unchanged_for: float | None = None) -> StoredStatus:
    """Read a status. `is_copy`: the supervisor is not checked. `unchanged_for`: seconds since the caller saw a new
    status; None if it does not watch the file."""
    path = os.path.join(rundir, "status.json")
    stored = read_document(path)
    age = seconds_since(stored.written)
    if unchanged_for is not None:  # does not depend on another machine's clock
        age = age_for_follower(age, unchanged_for)
    if is_copy or stored.status.is_over:
        return stored
    if liveness_of(stored.status, age, REPORT_LIMITS) != "dead":
        return stored
    stored = read_document(path)  # the supervisor may have written its last status just before it exited
    if stored.status.is_over:
        return stored
    lost = as_lost(stored.document, stored.written)
    if stored.status.supervisor.is_of_this_machine:
        try:
            write_json_atomically(path, lost, durable=False)
        except OSError as error:  # the supervisor has met the same
            lost["unrecorded"] = error.strerror or str(error)
    return stored._replace(status=read_status(lost), document=lost)


def read_document(path: str) -> StoredStatus:
    """Read a status without checking the supervisor. The last one may be in the room reserved for it alone."""
    stored = _read_document(path)
    if not stored.status.is_over:
        with contextlib.suppress(AgentError):
            last = _read_document(os.path.join(os.path.dirname(path), SPARE_FILE))
            return last if last.status.is_over else stored
    return stored


def _read_document(path: str) -> StoredStatus:
    try:
        document: Json = read_json_file(path)
        written = os.stat(path).st_mtime
    except FileNotFoundError:
        raise no_record(os.path.dirname(path)) from None
    except (OSError, JsonError) as error:
        raise AgentError(f"{path} can't be read: {getattr(error, 'strerror', None) or error}") from None
    kinds = {"state": str, "supervisor": dict, "ranks": list}
    if not isinstance(document, dict) or not all(isinstance(document.get(name), kinds[name]) for name in kinds):
        raise AgentError(f"{path} can't be read: it is not the record of a run")
    return StoredStatus(read_status(document), document, written)


def as_lost(document: Json, at: float) -> Json:
    """Return a status whose run and unfinished ranks are lost. `at`: when the run counts as ended."""
    ranks = [
        {**entry, "state": entry.get("state") if entry.get("state") in FINAL else "lost"}
        for entry in document["ranks"]
        if isinstance(entry, dict)
    ]
    return {**document, "state": "lost", "reason": "its supervisor on node0 has died", "ended": at, "ranks": ranks}


def read_pruned(runs_directory: str) -> dict[str, Json]:
    """Return run → what is remembered of it after its directory was removed: `at`, `why` and its last status."""
    pruned: dict[str, Json] = {}
    with contextlib.suppress(OSError), open(os.path.join(runs_directory, ".pruned.jsonl"), "rb") as file:
        for line in file:
            # A full disk or a killed call may have left an incomplete line.
            with contextlib.suppress(ValueError, KeyError, TypeError):
                entry = parse_object(line)
                pruned[str(entry["id"])] = {**entry, "at": float(entry["at"]), "why": str(entry["why"])}
    return pruned


def no_record(rundir: str) -> NoRecord:
    """Return the error that says why there is no record: the run was pruned, or nothing is known."""
    runs_directory, run = os.path.split(rundir)
    entry = read_pruned(runs_directory).get(run)
    if entry is None:
        return NoRecord("there is no record of this run there (any more)", Fix("`ipexctl ps` lists the runs"))
    day = time.strftime("%Y-%m-%d", time.localtime(entry["at"]))
    return NoRecord(
        f"its logs were pruned on {day}: {entry['why']}",
        "to keep logs longer, set IPEXCTL_KEEP_DAYS and IPEXCTL_KEEP_GB for ipexctl run",
    )
