"""The texts of slow: each cause, each link, and each reason why there is no verdict."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import pytest
from golden_file import Case, golden_diff
from slow_helpers import CALM, HEALTHY, hog, judged, only

from ipexctl.extras.slow import causes
from ipexctl.extras.slow import view as texts
from ipexctl.extras.slow.causes import SlowCause
from ipexctl.extras.slow.slow import SlowResult
from ipexctl.extras.slow.verdict import SlowVerdict, Unjudged
from ipexctl.hosts.host import Host
from ipexctl.node.run.replies import ProcessShare, SuspectLook
from ipexctl.remote.outcome import Unreachable
from ipexctl.run.registry import RunRecord

HOST = Host(name="node1", address="10.0.0.1")
RECORD = RunRecord(
    "train-1", HOST, "/h", "/env/bin/python", hosts=("node1", "node2"), again="-H hosts", typed_in="/project"
)


@pytest.fixture(autouse=True)
def fixed_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Local times differ between machines."""
    monkeypatch.setattr(texts, "format_clock", lambda at: f"12:00:{at % 60:02.0f}")


def cause_cases() -> list[Case]:
    slow = only(judged(HEALTHY, HEALTHY._replace(main_cpu=0.9)))
    run_look = SuspectLook(1.0, (3,), 0.5, (ProcessShare(12, "python3", "ipex", 0.5, True),))
    figures: dict[str, dict[str, Any]] = {
        "cgroup-limit": {"throttled_more": 0.9, "queue_more": 0.2},
        "steal": {"steal_more": 0.2},
        "other-process": {"look": hog(), "queue_more": 0.4},
        "crowded-cores": {"look": run_look, "queue_more": 0.4},
        "contention": {"queue_more": 0.4},
        "heat": {"hot": 2.0, "mhz": 1900.0, "usual_mhz": 2900.0},
        "clock": {"mhz": 1900.0, "usual_mhz": 2900.0},
        "storage": {"data_more": 0.4, "io_pressure": 0.3},
        "data": {"data_more": 0.4},
        "paging": {"faults_more": 50.0},
        "far-memory": {"look": SuspectLook(1.0, far_memory=0.6)},
        "more-samples": {"samples_ratio": 1.2},
        "unknown": {"cpu_more": 0.03, "queue_more": 0.19},
    }
    cases = []
    for kind in get_args(causes.CauseKind):
        evidence = replace(slow.evidence, **figures.get(kind, {}))
        rank = None if kind == "all-wait-for-data" else slow.rank
        found = replace(slow, cause=SlowCause(kind, "likely"), evidence=evidence, rank=rank)
        fix, later = (texts.fix_of(found, RECORD, is_over=is_over) for is_over in (False, True))
        cases.append(Case(f"reason, {kind}", texts.reason_of(found), fix))
        if later != fix:
            cases.append(Case(f"reason, {kind}, of a run that is over", texts.reason_of(found), later))
    unseen = replace(slow.evidence, queue_more=0.4, look=SuspectLook(1.0, unseen_share=0.5))
    found = replace(slow, cause=SlowCause("other-process", "likely"), evidence=unseen)
    cases.append(
        Case("reason, an invisible process", texts.reason_of(found), texts.fix_of(found, RECORD, is_over=False))
    )
    busy = replace(slow.evidence, data_more=0.4, disk_busy=0.9)
    found = replace(slow, cause=SlowCause("storage", "likely"), evidence=busy)
    return [*cases, Case("reason, a busy disk", texts.reason_of(found))]


def whole_answers() -> list[Case]:
    queued = HEALTHY._replace(main_cpu=0.5, main_queue=0.45)
    lossy = CALM._replace(sent_per_s=1.4e7, retransmits_per_s=500.0)
    slow_link = CALM._replace(sent_per_s=6e7)
    half = HEALTHY._replace(main_cpu=0.45)
    named = {"node1": slow_link, "node2": slow_link}
    verdicts = {
        "a slow rank": judged(HEALTHY._replace(main_cpu=0.5), queued, looks={1: hog()}),
        "all ranks wait": judged(*[HEALTHY._replace(data_wait=0.2)] * 2),
        "a lossy link": judged(HEALTHY, HEALTHY, hosts={"node1": CALM, "node2": lossy}),
        "a slow link": judged(half, half, hosts=named),
        "nothing slow": judged(HEALTHY, HEALTHY),
        "a crowded host": judged(
            HEALTHY,
            HEALTHY,
            hosts={"node1": CALM._replace(cpu_pressure=0.1), "node2": CALM._replace(cpu_pressure=0.9)},
        ),
        "ranks that spin": judged(HEALTHY, HEALTHY, waiting="spins"),
    }
    cases = [Case(name, "\n".join(texts.lines_of(SlowResult(RECORD, verdict)))) for name, verdict in verdicts.items()]
    for unjudged in get_args(Unjudged):
        result = SlowResult(RECORD, SlowVerdict(unjudged=unjudged, windows=5, seconds=50.0))
        cases.append(Case(f"no verdict, {unjudged or 'but one'}", "\n".join(texts.lines_of(result))))
        ended = texts.lines_of(replace(result, state="ok"))
        cases.append(Case(f"no verdict of a run that is over, {unjudged or 'but one'}", "\n".join(ended)))
    away = SlowResult(RECORD, SlowVerdict(unjudged="no-windows"), error=Unreachable("it is down", "look at it"))
    copied = SlowResult(RECORD, judged(HEALTHY, HEALTHY), error=Unreachable("it is down"), from_copy=True)
    failed = SlowResult(RECORD, judged(HEALTHY, queued), look_error="node2: it is down")
    for name, result in {"node0 is away": away, "from the copy": copied, "the look failed": failed}.items():
        cases.append(Case(name, "\n".join(texts.lines_of(result))))
    over = judged(HEALTHY, queued)
    cases += [
        Case(f"a line elsewhere, {name}", texts.VerdictOfRun(verdict).line("train-1", is_over=name != "a slow rank"))
        for name, verdict in {**verdicts, "at the end": over}.items()
    ]
    return cases


def test_slow() -> None:
    assert not (diff := golden_diff("slow", [*cause_cases(), *whole_answers()])), diff
