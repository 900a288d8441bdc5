"""The reasons that the supervisor gives for the end of a run, and those for which a directory can't be a home."""

from __future__ import annotations

import time

import test_verdict
from golden_file import Case, golden_diff, rows_of
from test_verdict import NOW, Record, cluster, verdict

from ipexctl.node.common.home import REFUSALS, HomeRefused
from ipexctl.node.common.records import OutOfMemory
from ipexctl.node.run.messages import Exit


def test_node() -> None:
    cases = []

    def note(name: str, record: Record) -> None:
        cases.append(Case(name, record.status.reason))

    for exit_ in (
        Exit(3, True),
        Exit(139, True, 11),
        Exit(137, True, 9, OutOfMemory("cgroup", 2 << 30)),
    ):
        judge, record = verdict()
        judge.on_exit(cluster()[3], exit_)
        note(f"exited: {exit_.code} {exit_.signal} {exit_.oom and exit_.oom.by}", record)
    for quiet, *_ in rows_of(test_verdict.test_silent_nodes_are_named_with_their_ranks):
        judge, record = verdict()
        peers = cluster()
        for rank, seconds in quiet.items():
            peers[rank].quiet = seconds
        judge.on_lost([peers[rank] for rank, seconds in quiet.items() if seconds > 25], peers, NOW)
        note(f"silent: {sorted(quiet)}", record)
    judge, record = verdict()
    peers = cluster()
    peers[3].closed_by_peer, peers[3].disconnected_at, peers[3].lost_at = True, 995.0, 995.0
    judge.on_lost([peers[3]], peers, NOW)
    note("connection lost", record)
    judge, record = verdict()
    peers = cluster()
    judge.on_outside_signal(peers[3], 15)
    judge.check_outside_signals(time.monotonic() + 2, peers, False)
    note("signal from outside the run", record)
    for ending in ((137, 9), (255, None)):
        judge, record = verdict()
        judge.on_mpirun_ended(cluster(), ending)
        note(f"without mpirun: {ending}", record)
    for kind in REFUSALS:
        refused = HomeRefused(kind, "/home/me/my proj", " (train.py, runs)" if kind == "other_files" else "")
        cases.append(Case(f"home refused: {kind}", f"{refused.reason}\n{refused.fix}"))
    assert not (diff := golden_diff("node", cases)), diff
