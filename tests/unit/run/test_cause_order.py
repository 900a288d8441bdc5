"""The order of causes: for each row of `CAUSE_FINDERS`, a run that this row explains although later rows would, too."""

from __future__ import annotations

from typing import Any, Final

import pytest
from known_texts import account
from why_helpers import FAILED, FIRST, STOPPED

from ipexctl.run.why.cause import CAUSE_FINDERS, choose_cause, find_first_failure
from ipexctl.run.why.read_snapshot import read_snapshot

LOST: Final = "Traceback (most recent call last):\nRuntimeError: Connection closed by peer [10.0.0.3]:4725"
RAISED: Final = "Traceback (most recent call last):\nKeyError: 'x'"
FULL: Final = "OSError: [Errno 28] No space left on device"
APART: Final = {"apart": {"what": "train.py names last.pt, which is on node1, and not on node2", "place": "last.pt"}}
DISK: Final = {"path": "/home/me", "free": 0, "size": 1 << 30, "lacks_files": False}


def first(**more: Any) -> dict[str, Any]:
    return {**FIRST, "kind": "exit", **more}


ROWS: Final[dict[str, tuple[str, tuple[tuple[dict[str, Any], str], ...], dict[str, Any]]]] = {
    "the exchange of the checkpoint": (
        "run.checkpoint",
        ((STOPPED, ""), (FAILED, RAISED)),
        {"first": first(kind="checkpoint"), "reason": "the checkpoint could not be copied to all hosts"},
    ),
    "the loss": (
        "script.nan",
        ((STOPPED, ""), (FAILED, RAISED)),
        {"first": first(kind="nan", detail={"kind": "nan", "fields": {"step": "16"}})},
    ),
    "the kernel's report on memory": (
        "memory.oom",
        ((STOPPED, ""), ({**FAILED, "oom": {"by": "cgroup", "limit": 1 << 30}}, RAISED)),
        {"first": first(signal=9)},
    ),
    "a disk that was full when the rank could not write": (
        "disk.full",
        ((STOPPED, "resumed at step 1"), ({**FAILED, "disk": DISK}, f"resumed at step 2\n{FULL}")),
        {},
    ),
    "the checkpoints from which the ranks said that they resumed": (
        "run.resumed_apart",
        ((STOPPED, "resumed at step 1\n40 batches"), (FAILED, f"resumed at step 2\n30 batches\n{LOST}")),
        {"plan": APART},
    ),
    "the amounts of data that the ranks printed": (
        "run.data_apart",
        ((STOPPED, "40 batches"), (FAILED, f"30 batches\n{LOST}")),
        {"plan": APART},
    ),
    "the checkpoints of the hosts before the start": (
        "run.resumed_apart",
        (({"state": "ok", "exit_code": 0, "ended_at": 1011.0}, ""), (FAILED, LOST)),
        {"plan": APART},
    ),
    "a rank that ended before one that needed it": (
        "peer.ended",
        (
            ({"state": "ok", "exit_code": 0, "ended_at": 1011.0}, ""),
            (FAILED, "Timed out waiting 9ms for recv operation"),
        ),
        {
            "first": first(
                kind="left", rank=0, host="node1", exit_code=0, detail={"kind": "left", "fields": {"lost": "1"}}
            ),
        },
    ),
    "autocast, and an exception about types": (
        "script.autocast",
        ((STOPPED, ""), (FAILED, "Traceback (most recent call last):\nRuntimeError: another dtype: BFloat16")),
        {"plan": {"autocast": {"mode": "bf16"}}},
    ),
    "the text of the rank that failed first": (
        "script.raised",
        ((FAILED, "ModuleNotFoundError: No module named 'frobnicate'"), (FAILED, RAISED)),
        {},
    ),
    "mpirun's log": (
        "mpi.ssh_failed",
        ((FAILED, "ModuleNotFoundError: No module named 'frobnicate'"), (FAILED, "")),
        {
            "first": None,
            "mpirun": ["[mpiexec@node1] Error: Unable to run bstrap_proxy on node2 (pid 4711, exit code 65280)"],
        },
    ),
    "the other ranks": (
        "script.no_module",
        ((FAILED, "ModuleNotFoundError: No module named 'frobnicate'"), (FAILED, LOST)),
        {},
    ),
    "the rank's own text, though it follows from another end": ("peer.gone", ((STOPPED, ""), (FAILED, LOST)), {}),
    "the record": ("script.exited", ((STOPPED, ""), (FAILED, "")), {}),
}


def test_each_row_has_its_run() -> None:
    assert list(ROWS) == [finder.place for finder in CAUSE_FINDERS]


@pytest.mark.parametrize("place", ROWS)
def test_a_row_wins_over_all_later_ones(place: str) -> None:
    id_, ranks, more = ROWS[place]
    snapshot = read_snapshot(*account(list(ranks), **{"first": first(), **more}), "node1")
    failure = find_first_failure(snapshot)
    found = [(finder.place, finder.find(snapshot, failure)) for finder in CAUSE_FINDERS]
    answering = [name for name, cause in found if cause is not None]
    assert answering[0] == place
    assert len(answering) > 1 or place == "the record"
    cause = choose_cause(snapshot, failure)
    assert cause is not None
    assert cause.id == id_
    assert cause.evidence
    assert all(seen.text for seen in cause.evidence)
