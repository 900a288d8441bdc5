"""The questions of `slow` to hosts, and hosts that do not answer."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from slow_helpers import HEALTHY, changed, hog, ranks_of, run_of, steady

from ipexctl.extras.slow import slow as calls
from ipexctl.extras.slow.slow import slow
from ipexctl.hosts.host import Host
from ipexctl.node.run.replies import SuspectLook
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.outcome import HostError, Unreachable
from ipexctl.remote.reply import Reply
from ipexctl.run.registry import RunRecord

NODES = tuple(Host(name=f"node{number}", address=f"10.0.0.{number}") for number in (1, 2))
RECORD = RunRecord("train-1", NODES[0], "/h", "/p", hosts=("node1", "node2"), nodes=NODES, world_size=2)
QUEUED = changed(HEALTHY, cpu=0.5, queue=0.45)
STATUS: dict[str, Any] = {
    "id": "train-1",
    "state": "running",
    "ranks": [{"rank": rank, "host": f"node{rank + 1}", "state": "running", "pid": 70 + rank} for rank in range(2)],
}


class Hosts:
    """Answers in place of the hosts; `asked` is what they were asked."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, *ranks: Any, state: str = "running", backend: str = "gloo"
    ) -> None:
        self.asked: list[tuple[str, str, Any]] = []
        self.look: SuspectLook | HostError = hog()
        self.reply = {"status": {**STATUS, "state": state}, "backend": backend, "allreduce": "backend"}
        windows = run_of(ranks_of(*(steady(rates, 5) for rates in ranks)))
        monkeypatch.setattr(calls, "call_on_node0", self._on_node0)
        monkeypatch.setattr(calls, "call", self._on_host)
        monkeypatch.setattr(calls, "fetch_windows", lambda *_, **__: windows)

    def open(self, host: Host) -> Any:
        self.asked.append((host.name, "", None))
        return host

    def _on_node0(self, session: Any, record: Any, command: str, action: str, request: Any, **_: Any) -> Reply:
        self.asked.append((session.name, command, request))
        return Reply(self.reply)

    def _on_host(self, session: Any, command: str, action: str, request: Any, **_: Any) -> Reply:
        self.asked.append((session.name, command, request))
        if isinstance(self.look, HostError):
            raise self.look
        return Reply(json.loads(json.dumps(self.look._asdict() | {"others": [p._asdict() for p in self.look.others]})))

    def looks(self) -> list[tuple[str, int]]:
        return [(name, request["pid"]) for name, _, request in self.asked if request and "pid" in request]


def test_the_host_of_a_suspect_is_looked_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hosts = Hosts(monkeypatch, HEALTHY, QUEUED)
    result = slow(RECORD, hosts.open, tmp_path, Cancel())
    assert hosts.looks() == [("node2", 71)]
    assert [found.cause.kind for found in result.verdict.findings] == ["other-programs"]
    assert result.exit_code == 0


@pytest.mark.parametrize(("ranks", "state"), [((HEALTHY, HEALTHY), "running"), ((HEALTHY, QUEUED), "ok")])
def test_no_host_is_looked_at_without_need(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ranks: tuple[Any, ...], state: str
) -> None:
    hosts = Hosts(monkeypatch, *ranks, state=state)
    assert slow(RECORD, hosts.open, tmp_path, Cancel()).exit_code == 0
    assert hosts.looks() == []


def test_a_look_that_fails_leaves_the_verdict(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hosts = Hosts(monkeypatch, HEALTHY, QUEUED)
    hosts.look = Unreachable("it is down")
    result = slow(RECORD, hosts.open, tmp_path, Cancel())
    assert [found.cause.kind for found in result.verdict.findings] == ["other-programs"]
    assert (result.exit_code, "node2" in result.look_error) == (0, True)


def test_a_host_that_the_record_does_not_know_is_not_looked_at(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hosts = Hosts(monkeypatch, HEALTHY, QUEUED)
    result = slow(replace(RECORD, nodes=()), hosts.open, tmp_path, Cancel())
    assert hosts.looks() == []
    assert "node2" in result.look_error


def test_exit_code_without_a_verdict(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hosts = Hosts(monkeypatch, HEALTHY, HEALTHY, backend="none")
    result = slow(RECORD, hosts.open, tmp_path, Cancel())
    assert (result.exit_code, result.verdict.unjudged) == (1, "independent")


@pytest.mark.parametrize(("error", "code"), [(Unreachable("down"), 3), (HostError("no record"), 1)])
def test_node0_is_away_and_there_is_no_copy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: HostError, code: int
) -> None:
    def open_session(_: Host) -> Any:
        raise error

    assert slow(RECORD, open_session, tmp_path, Cancel()).exit_code == code


def test_a_complete_copy_answers_in_place_of_node0(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    directory = tmp_path / "train-1"
    directory.mkdir()
    (directory / "status.json").write_text(json.dumps({**STATUS, "state": "ok"}))
    (directory / "plan.json").write_text(json.dumps({"backend": "gloo", "allreduce": {"mode": "backend"}}))
    windows = run_of(ranks_of(*(steady(rates, 5) for rates in (HEALTHY, QUEUED))))
    monkeypatch.setattr(calls, "read_copied_windows", lambda *_: windows)

    def open_session(_: Host) -> Any:
        raise Unreachable("down")

    result = slow(RECORD, open_session, tmp_path, Cancel())
    assert (result.exit_code, result.from_copy, result.verdict.findings[0].rank) == (0, True, 1)
