"""The texts about slow ranks: each cause, each link, and each reason why there is no verdict."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import pytest
from golden_file import Case, golden_diff
from slow_helpers import CALM, HEALTHY, changed, hog, only, verdict_of

from ipexctl.commands.why_command import lines_of
from ipexctl.hosts.host import Host
from ipexctl.node.common.records import State
from ipexctl.node.run.run_replies import ProcessShare, SuspectSnapshot
from ipexctl.option_declaration import CallOptions, TypedCall
from ipexctl.run.why import slow_verdict
from ipexctl.run.why.diagnosis import Diagnosis
from ipexctl.run.why.slow_verdict import SlowCause, SlowVerdict, Unjudged
from ipexctl.run.why.why import WhyResult
from ipexctl.ui.run import slow_report as texts
from ipexctl.ui.run.slow_report import comparison_lines
from record_helpers import run_record

HOST = Host(name="node1", address="10.0.0.1")
RECORD = run_record(
    *("train-1", HOST, "/h", "/env/bin/python"),
    hosts=("node1", "node2"),
    options=CallOptions("-H hosts"),
    typed=TypedCall(directory="/project"),
)


@pytest.fixture(autouse=True)
def fixed_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Local times differ between machines."""
    monkeypatch.setattr(texts, "format_clock", lambda at: f"12:00:{at % 60:02.0f}")


def answer(verdict: SlowVerdict, state: State = "unknown", **more: Any) -> WhyResult:
    return WhyResult(RECORD, Diagnosis("train-1", state, f"run train-1: {state}"), slow=verdict, **more)


def cause_cases() -> list[Case]:
    slow = only(verdict_of(HEALTHY, changed(HEALTHY, cpu=0.9)))
    run_look = SuspectSnapshot((ProcessShare(12, "python3", "ipex", 0.5, is_of_run=True),))
    figures: list[tuple[str, slow_verdict.CauseKind, slow_verdict.SlowConfidence, dict[str, Any]]] = [
        ("another process", "other-programs", "likely", {"look": hog(), "queue_more": 0.4}),
        ("another rank", "other-programs", "likely", {"look": run_look, "queue_more": 0.4}),
        (
            "an invisible process",
            "other-programs",
            "likely",
            {"look": SuspectSnapshot(unseen_share=0.5), "queue_more": 0.4},
        ),
        ("other programs", "other-programs", "possible", {"queue_more": 0.4}),
        ("slower cores", "slower-cores", "possible", {"mhz": 1900.0, "usual_mhz": 2900.0}),
        ("data", "data", "likely", {"data_more": 0.4}),
        ("memory", "memory", "possible", {"faults_more": 50.0}),
        ("more samples", "more-work", "likely", {"samples_ratio": 1.2}),
        ("more work", "more-work", "possible", {}),
        ("not known", "unknown", "insufficient", {"cpu_more": 0.03, "queue_more": 0.19}),
    ]
    assert {kind for _, kind, _, _ in figures} == {*get_args(slow_verdict.CauseKind)}
    cases = []
    for name, kind, confidence, more in figures:
        found = replace(slow, cause=SlowCause(kind, confidence), evidence=replace(slow.evidence, **more))
        fix, later = (texts.fix_of(found, texts.ToldRun(RECORD, is_over)) for is_over in (False, True))
        cases.append(Case(f"reason, {name}", texts.reason_of(found), fix))
        if later != fix:
            cases.append(Case(f"reason, {name}, of a run that is over", texts.reason_of(found), later))
    return cases


def whole_answers() -> list[Case]:
    queued = changed(HEALTHY, cpu=0.5, queue=0.45)
    slow_link = CALM._replace(sent_per_s=6e7)
    half = changed(HEALTHY, cpu=0.45)
    named = {"node1": slow_link, "node2": slow_link}
    verdicts = {
        "a slow rank": verdict_of(changed(HEALTHY, cpu=0.5), queued, looks={1: hog()}),
        "a slow link": verdict_of(half, half, hosts=named),
        "nothing slow": verdict_of(HEALTHY, HEALTHY),
        "ranks that spin": verdict_of(HEALTHY, HEALTHY, waiting="spins"),
    }
    failed = answer(verdict_of(HEALTHY, queued), look_error="node2: it is down")
    cases = [Case("the look failed", "\n".join(lines_of(failed)))]
    judged = SlowVerdict(windows=5, seconds=50.0)
    for unjudged in get_args(Unjudged):
        for end, is_over in (("", False), (" of a run that is over", True)):
            lines = comparison_lines(texts.ToldRun(RECORD, is_over), replace(judged, unjudged=unjudged))
            cases.append(Case(f"no verdict{end}, {unjudged or 'but one'}", "\n".join(lines)))
    for state in ("running", "ok"):
        for name, judgement in verdicts.items():
            cases.append(
                Case(f"in why of a run that is {state}, {name}", "\n".join(lines_of(answer(judgement, state))))
            )
    return cases


def test_slow() -> None:
    assert not (diff := golden_diff("slow", [*cause_cases(), *whole_answers()])), diff
