"""The reasons that the supervisor gives for the end of a run, and those for which a directory can't be a home."""

from __future__ import annotations

import test_verdict
from golden_file import Case, golden_diff, rows_of
from supervised_run import Supervised, closed_by_peer, exit_of
from test_verdict import cluster

from ipexctl.node.common.home import REFUSALS, HomeRefused
from ipexctl.node.common.records import OutOfMemory
from ipexctl.node.run.connection.messages import Signalled
from ipexctl.node.run.decisions.supervisor_state import LauncherExited, RankSent


def test_node() -> None:
    cases = []

    def note(name: str, run: Supervised) -> None:
        cases.append(Case(name, run.reason))

    for code, by, oom in ((3, None, None), (139, 11, None), (137, 9, OutOfMemory("cgroup", 2 << 30))):
        run = cluster().at(5, exit_of(3, code, signal=by, oom=oom))
        note(f"exited: {code} {by} {oom and oom.by}", run)
    for silent, *_ in rows_of(test_verdict.test_silent_nodes_are_named_with_their_ranks):
        run = cluster().run_until(100)
        run.silent_since = {rank: 100 - seconds for rank, seconds in silent.items()}
        note(f"silent: {sorted(silent)}", run.at(100, run.tick()))
    note("connection lost", cluster().run_until(5).at(5, closed_by_peer(3)).run_until(9))
    signalled = cluster().run_until(5).at(5, RankSent(3, Signalled("outside-signal", 15)))
    note("signal from outside the run", signalled.run_until(7))
    for code, ending in ((-9, (137, 9)), (255, (255, None))):
        note(f"without mpirun: {ending}", cluster().run_until(5).at(5, LauncherExited(code)).run_until(8))
    for kind in REFUSALS:
        refused = HomeRefused(kind, "/home/me/my proj", " (train.py, runs)" if kind == "other_files" else "")
        cases.append(Case(f"home refused: {kind}", f"{refused.reason}\n{refused.fix}"))
    assert not (diff := golden_diff("node", cases)), diff
