"""The texts of why; docs/troubleshooting.md has those of causes with a known text, and `test_run_why` compares it."""

from __future__ import annotations

import time
from typing import Any

import test_run_why as runs
import test_why_output as outputs
from golden_file import Case, golden_diff
from known_texts import examples, is_printed
from why_helpers import FAILED, FIRST, NO_MODULE, STOPPED, answer, judged

from ipexctl.commands.why_command import cause_lines, lines_of

_LOCAL = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(outputs.REFUSED.at))
BUSY = "Traceback (most recent call last):\nOSError: [Errno 98] Address already in use"
FIRST_FAILURES: tuple[dict[str, Any], ...] = (
    {"exit_code": 3},
    {"signal": 9, "exit_code": 137},
    {"signal": 11, "exit_code": 139},
    {"signal": 9, "kind": "oom"},
    {"signal": 9, "oom": {"by": "cgroup", "limit": None}},
    {"signal": 64, "exit_code": 192},
    {"exit_code": None, "kind": "lost"},
    {"exit_code": None},
)
STATES: tuple[dict[str, Any], ...] = (
    {"state": "ok", "status": {"exit_code": 0}},
    {"state": "stopped", "status": {"exit_code": 130}},
    {"state": "stopped", "status": {"exit_code": 143}},
    {"state": "running", "status": {"ended": None}},
    {"state": "running", "status": {"ended": None}, "silent": {"since": 860.0, "after": 600.0, "ranks": []}},
    {"reason": "the run reached its time limit of 60 s", "status": {"exit_code": 124}},
    {"reason": "mpirun ended (exit code 255) before ranks 0-1 on node1, node2 began", "mpirun": ["hm"]},
)


def causes() -> list[Case]:
    found = [
        judged([(FAILED, NO_MODULE)] * 3).cause,
        judged([(STOPPED, ""), (FAILED, NO_MODULE)], plan={"install": "", "python": "/opt/py"}).cause,
        judged(
            [(STOPPED, ""), (FAILED, 'Traceback (most recent call last):\n  File "/p/a.py", line 7\nKeyError: 1')]
        ).cause,
    ]
    for more in ({}, {"lacks_files": True}):
        failed = {**FAILED, "disk": {**runs.FULL_DISK, **more}}
        found.append(judged([(STOPPED, ""), (failed, runs.WRITE_FAILED)]).cause)
    of_records = [cause for causes in examples().values() for text, cause in causes if not is_printed(text)]
    return [
        Case(f"{cause.id} ({cause.confidence}, {cause.source})", cause.sentence, cause.fix)
        for cause in (*found, *of_records)
        if cause
    ]


def headlines() -> list[Case]:
    cases = []
    for first in FIRST_FAILURES:
        reason = "node2 stopped responding (rank 1)" if first.get("kind") == "lost" else ""
        verdict = judged([(STOPPED, ""), (FAILED, "")], first={**FIRST, **first}, reason=reason)
        cases.append(Case(f"headline, {first}", verdict.headline))
    for more in STATES:
        verdict = judged([({"state": more.get("state", "stopped")}, "")] * 2, first=None, **more)
        cases.append(Case(f"headline, {more}", verdict.headline, "\n".join(verdict.next)))
    for restarted in (False, True):
        verdict = judged([({"state": "lost"}, "")], state="lost", first=None, restarted=restarted)
        cases.append(Case(f"headline, lost, restarted={restarted}", verdict.headline, "\n".join(verdict.next)))
    return cases


def others_and_notes() -> list[Case]:
    rows: list[tuple[dict[str, Any], str]] = [
        (FAILED, BUSY),
        (FAILED, BUSY),
        (FAILED, BUSY),
        ({"state": "ok"}, ""),
        (STOPPED, ""),
        (STOPPED, ""),
    ]
    at = [
        {"rank": 0, "host": "node1", "last": "epoch 3", "cpu": 99.0, "waits_in": None},
        {"rank": 1, "host": "node2", "last": "epoch 3", "cpu": 0.0, "waits_in": "futex_wait"},
    ]
    running = {"since": 860.0, "after": 600.0, "ranks": at}
    silent = judged([({"state": "running"}, "")] * 2, state="running", first=None, silent=running)
    ended = {"state": "stopped", "status": {"exit_code": 143}, "silent": {"since": 1001.0, "after": 5.0, "ranks": at}}
    stopped = judged([({"state": "stopped"}, "")] * 2, first=None, **ended)
    verdicts = (judged(rows), silent, stopped)
    apart = [
        judged([({"state": "ok"}, "")] * 4, state="ok", first=None, status={"group": {"planned": 4, "seen": seen}})
        for seen in (1, 2, 4)
    ]
    untrained = {"untrained": {"rank": 1, "line": "needs 2 GPUs"}}
    apart.append(judged([({"state": "ok"}, "")], state="ok", first=None, status=untrained))
    return [
        *(Case("other ranks", each.sentence) for verdict in verdicts for each in verdict.others),
        *(Case("note", note) for note in (*stopped.notes, *runs.notes_of_a_run(), runs.note_of_attempts())),
        *(Case("note", note) for note in runs.notes_of_notify(exit_code=3, line="sh: mail: not found")),
        *(Case("note", note) for note in runs.notes_of_notify(exit_code=None)),
        *(Case("note", note) for verdict in apart for note in verdict.notes),
    ]


def shown() -> list[Case]:
    verdict = judged([(STOPPED, ""), (FAILED, NO_MODULE), (STOPPED, "")])
    lost = runs.diagnosis_of_lost_output()
    # The first line has the local time.
    refused = [line.replace(_LOCAL, "TIME") for line in lines_of(outputs.answer_after_failed_call(), 80)]
    return [
        Case("after a call that began no run", "\n".join(refused[: refused.index("") + 3])),
        Case("after lost output", "\n".join(lines_of(answer(lost), 80))),
        Case("the whole answer", "\n".join(lines_of(answer(verdict), 80))),
        Case("at the end of a followed run", "\n".join(cause_lines("train-1", verdict.cause))),
        Case("at the end of a followed run without a cause", "\n".join(cause_lines("train-1", None))),
    ]


def test_why() -> None:
    assert not (diff := golden_diff("why", [*causes(), *headlines(), *others_and_notes(), *shown()])), diff
