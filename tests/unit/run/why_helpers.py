"""Snapshots of runs and their diagnoses."""

from __future__ import annotations

from typing import Any

from known_texts import account

from ipexctl.hosts.host import Host
from ipexctl.known_errors.match import Cause
from ipexctl.run.why.diagnosis import Diagnosis, diagnose
from ipexctl.run.why.read_snapshot import read_snapshot
from ipexctl.run.why.why import WhyResult
from record_helpers import run_record

FAILED = {"state": "failed", "exit_code": 1}
STOPPED = {"state": "stopped", "exit_code": 143, "signal": 15}
FIRST = {"rank": 1, "host": "node2", "exit_code": 1, "signal": None, "at": 1012.0}
NO_MODULE = "Traceback (most recent call last):\nModuleNotFoundError: No module named 'frobnicate'"


def judged(ranks: list[tuple[dict[str, Any], str]], **more: Any) -> Diagnosis:
    more.setdefault("first", FIRST)
    return diagnose(read_snapshot(*account(ranks, **more), "node1"))


def cause_id(verdict: Diagnosis) -> str | None:
    return verdict.cause.id if verdict.cause else None


def cause_in(verdict: Diagnosis) -> Cause:
    assert verdict.cause is not None
    return verdict.cause


def answer(verdict: Diagnosis) -> WhyResult:
    host = Host(name="node1", address="10.0.0.1")
    return WhyResult(run_record("train-1", host, "/h", "/env/bin/python", script="train.py", hosts=("node1",)), verdict)
