"""The texts of dump."""

from __future__ import annotations

import pytest
from golden_file import Case, golden_diff
from test_run_dump import LOAD, MAIN, REDUCE, document, rank, said

from ipexctl.run.stack_dump import Dump, read_dump
from ipexctl.ui.stacks_output import as_json, show_stacks


def test_dump(capsys: pytest.CaptureFixture[str]) -> None:
    mute = read_dump(
        document(
            {"rank": 0, "processes": [said(how="py-spy", text='[{"thread_name": null}]')]},
            {"rank": 2, "processes": None, "why": "WHY", "last": {"process": "D", "waits_in": "nfs_wait"}},
            {"rank": 3, "processes": [], "state": "ok"},
        )
    )
    cases = [Case(f"reason of rank {row['rank']}", row["reason"]) for row in as_json(mute, "run")["ranks"]]
    odd = tuple(rank(number, *((LOAD, MAIN) if number == 5 else (REDUCE, MAIN))) for number in range(16))
    deep = (rank(0, *((f"f{number}", "train.py", number) for number in range(60))),)
    for name, ranks in {
        "one is elsewhere": odd,
        "one has no stack": (rank(0, REDUCE, MAIN), rank(1, why="WHY")),
        "a deep stack": deep,
    }.items():
        show_stacks(Dump(0.0, ranks), "train-1")
        out, err = capsys.readouterr()
        cases += [Case(f"stdout, {name}", out), Case(f"stderr, {name}", err)]
    assert not (diff := golden_diff("dump", cases)), diff
