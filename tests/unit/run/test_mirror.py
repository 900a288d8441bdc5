"""fetch --follow: passes until the run is over, a node0 that is away, and what is said meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ipexctl.files.requested import FetchResult, FileFailure
from ipexctl.hosts.host import Host
from ipexctl.node.common.plan import with_ranks
from ipexctl.node.common.records import RunStatus
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.local import LocalSession
from ipexctl.remote.outcome import AgentEnded, Cancelled, HostError, Notice, ProgressEvent, Unreachable
from ipexctl.remote.session import Session
from ipexctl.run import mirror as mirror_module
from ipexctl.run.fetch import fetch as fetch_files
from ipexctl.run.fetch import order_of_run, orders_of_all_hosts
from ipexctl.run.mirror import RunMirror, add_pass, lasting_failures
from ipexctl.run.ps import KnownRun
from ipexctl.run.registry import RunRecord
from message_data import missing
from record_helpers import run_record

pytest_plugins = ["compiled_agent"]
pytestmark = pytest.mark.usefixtures("compiled_agent")
HERE, OTHER = Host("localhost", "localhost"), Host("node2", "10.0.0.2")
GONE = FileFailure("a.pt", "it changed while it was read")


def test_result_of_all_passes() -> None:
    first = FetchResult(HERE, "changed", seconds=2, brought=("a", "b"), unchanged=1, size=9, received=7, failed=(GONE,))
    latest = FetchResult(HERE, "changed", seconds=1, brought=("b", "c"), unchanged=2, size=5, received=2)
    total = add_pass(add_pass(None, first), latest)
    assert (total.brought, total.unchanged, total.received, total.size) == (("a", "b", "c"), 1, 9, 9)
    assert (total.seconds, total.failed, total.status) == (3, (), "changed")
    assert add_pass(latest, FetchResult(HERE, "ok", unchanged=4)).status == "changed"
    assert add_pass(first, replace(latest, status="failed")).status == "failed"


def test_only_what_fails_twice_in_a_row_is_noted() -> None:
    other = FileFailure("b.pt", "there is a directory of that name")
    assert lasting_failures((GONE,), (other, GONE)) == (GONE,)
    assert lasting_failures((), (other,)) == ()


class LiveRun:
    """A run on this machine. Each step is what happens before node0 is asked again; the last ends the run."""

    def __init__(self, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.record = run_record(
            "r-1", HERE, f"{base}/home", "", nodes=(HERE,), stores=(HERE.name,), cwd=f"{base}/work"
        )
        self.results = base / "home/results/r-1"
        self.work = base / "work"
        self.work.mkdir()
        self.out = base / "out"
        self.steps: list[Callable[[], object]] = []
        self.notices: list[str] = []
        self.cancel = Cancel()
        monkeypatch.setattr(mirror_module, "poll_status", self._poll_status)
        monkeypatch.setattr(mirror_module, "MIRROR_INTERVAL", 0)
        monkeypatch.setattr(mirror_module, "RETRY_INTERVALS", (0.01,))

    def _poll_status(self, session: Session, record: RunRecord, cancel: Cancel) -> KnownRun:
        self.steps.pop(0)()
        return KnownRun(record, RunStatus(record.id, "running" if self.steps else "ok", "t.py", "", 1, 1, 0.0))

    def mirror(self, path: str | None = None, *, reconnect: float = 300, dest: str | None = None) -> RunMirror:
        """Of a path, of the results with None, of the whole run with an empty one."""
        target = dest or f"{self.out}/"
        requests = (
            orders_of_all_hosts(self.record, None, target, results=True)
            if path is None
            else [order_of_run(self.record, path or None, target, rank=None, host=None, others=())]
        )

        def watch(event: ProgressEvent) -> None:
            if isinstance(event, Notice):
                self.notices.append(event.text)

        return RunMirror(self.record, requests, LocalSession, watch, self.cancel, reconnect=reconnect)

    def write(self, path: Path, text: str) -> Callable[[], object]:
        def append() -> None:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a") as file:
                file.write(text)

        return append

    @staticmethod
    def fail(error: Exception) -> Callable[[], object]:
        def raise_error() -> None:
            raise error

        return raise_error


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LiveRun:
    return LiveRun(tmp_path, monkeypatch)


def nothing() -> None:
    """Before a pass."""


def test_files_are_mirrored_until_the_end_and_once_more(run: LiveRun) -> None:
    events = run.results / "tb/events"
    run.steps = [nothing, run.write(events, "1"), run.write(events, "23"), run.write(events, "4")]
    mirror = run.mirror()
    mirror.follow(is_over=False)
    (result,) = mirror.results()
    assert (result.status, result.brought, result.received) == ("changed", ("tb/events",), 4)
    assert (run.out / "localhost/tb/events").read_text() == "1234"
    nothing_yet, arrived = run.notices
    assert missing(nothing_yet, "localhost results/r-1 r-1") == []
    assert missing(arrived, "1 localhost r-1 Ctrl-C") == []


@pytest.mark.parametrize(("path", "name"), [("ck/", "1.pt"), ("*/1.pt", "ck/1.pt"), ("ck/1.pt", "1.pt")])
def test_a_path_that_comes_later_and_is_removed_by_the_run(run: LiveRun, path: str, name: str) -> None:
    weights = run.work / "ck/1.pt"
    run.steps = [nothing, run.write(weights, "w"), weights.unlink, nothing]
    mirror = run.mirror(path)
    mirror.follow(is_over=False)
    (result,) = mirror.results()
    assert (result.status, result.brought) == ("changed", (name,))
    assert (run.out / name).read_text() == "w"


def test_a_path_that_never_comes_is_a_failure_at_the_end(run: LiveRun) -> None:
    run.steps = [nothing, nothing]
    mirror = run.mirror("ck/")
    mirror.follow(is_over=False)
    (result,) = mirror.results()
    assert result.status == "failed"
    assert "there is no" in result.reason
    assert not run.out.exists()


def test_a_path_in_the_directory_of_results_ends_the_call_with_the_option(run: LiveRun) -> None:
    run.write(run.results / "tb/events", "1")()
    run.steps = [nothing, nothing, nothing]
    mirror = run.mirror("tb")
    mirror.follow(is_over=False)
    (result,) = mirror.results()
    assert f"ipexctl fetch r-1 {run.out}/ --results" in result.fix
    assert len(run.steps) == 2


def test_a_whole_run_is_its_record_and_the_files_it_writes(run: LiveRun) -> None:
    record = run.results.parents[1] / "runs/r-1"
    run.write(record / "status.json", '{"started": 1}')()
    out, weights = record / "ranks/0000.out", run.work / "ck/1.pt"
    run.steps = [run.write(out, "1\n"), run.write(out, "2\n"), run.write(weights, "w"), nothing]
    mirror = run.mirror("")
    mirror.follow(is_over=False)
    assert sorted(mirror.results()[0].brought) == [
        "r-1/files/ck/1.pt",
        "r-1/record/ranks/0000.out",
        "r-1/record/status.json",
    ]
    assert (run.out / "r-1/record/ranks/0000.out").read_text() == "1\n2\n"


def test_one_file_keeps_its_name_after_it_was_removed(run: LiveRun) -> None:
    run.write(run.work / "log", "1")()
    run.steps = [nothing, (run.work / "log").unlink, nothing]
    mirror = run.mirror("log", dest=str(run.out))
    mirror.follow(is_over=False)
    assert mirror.results()[0].status == "changed"
    assert run.out.read_text() == "1"


def test_a_run_that_is_over_is_fetched_once(run: LiveRun) -> None:
    run.write(run.results / "a", "1")()
    mirror = run.mirror()
    mirror.follow(is_over=True)
    assert mirror.results()[0].brought == ("a",)
    assert run.notices == []


def test_a_node0_that_is_away_is_waited_for(run: LiveRun) -> None:
    lost, killed = Unreachable("connection lost"), AgentEnded("its program ended", "killed")
    run.write(run.results / "a", "1")()
    run.steps = [nothing, run.fail(lost), run.fail(lost), run.fail(killed), nothing]
    mirror = run.mirror()
    mirror.follow(is_over=False)
    assert mirror.results()[0].status == "changed"
    assert [text for text in run.notices if "--reconnect" in text] == [run.notices[1]]
    assert missing(run.notices[1], "localhost 5") == []
    assert "reached again" in run.notices[2]


def test_a_node0_that_is_away_for_too_long_ends_the_call(run: LiveRun) -> None:
    run.write(run.results / "a", "1")()
    run.steps = [nothing, *[run.fail(Unreachable("connection lost"))] * 50]
    mirror = run.mirror(reconnect=0.05)
    with pytest.raises(Unreachable) as caught:
        mirror.follow(is_over=False)
    (result,) = mirror.results(caught.value)
    assert (result.status, result.brought) == ("unreachable", ("a",))
    assert missing(result.reason, "--reconnect r-1") == []


def test_a_node0_that_was_never_reached_ends_the_call_at_once(run: LiveRun) -> None:
    run.steps = [run.fail(Unreachable("no route to host")), nothing]
    with pytest.raises(Unreachable, match="no route"):
        run.mirror().follow(is_over=False)
    assert len(run.steps) == 1


def test_ctrl_c_ends_it_with_what_has_arrived(run: LiveRun) -> None:
    run.write(run.results / "a", "1")()
    run.steps = [nothing, run.fail(Cancelled("stopped")), nothing]
    mirror = run.mirror()
    with pytest.raises(Cancelled) as caught:
        mirror.follow(is_over=False)
    (result,) = mirror.results(caught.value)
    assert (result.status, result.brought) == ("failed", ("a",))
    assert "continues" in result.fix


def test_another_host_that_is_away_is_tried_again(run: LiveRun, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = with_ranks(run.record.plan._replace(stores={}), (HERE.name, OTHER.name), (HERE.name, OTHER.name))
    run.record = replace(
        run.record, source=plan._replace(stores={name: name for name in plan.names}), nodes=(HERE, OTHER)
    )
    run.write(run.results / "a", "1")()
    outcomes: list[HostError | None] = [Unreachable("no answer"), Unreachable("no answer"), None]

    def fetch(request: object, *args: object) -> FetchResult:
        if getattr(request, "host", None) == OTHER and (error := outcomes.pop(0)) is not None:
            raise error
        return fetch_files(request, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(mirror_module, "fetch", fetch)
    run.steps = [nothing, nothing, nothing]
    mirror = run.mirror()
    mirror.follow(is_over=False)
    assert [result.status for result in mirror.results()] == ["changed", "changed"]
    assert sum("node2: no answer" in text for text in run.notices) == 1


def test_another_error_ends_the_call(run: LiveRun, monkeypatch: pytest.MonkeyPatch) -> None:
    def fetch(*_: object) -> FetchResult:
        raise HostError("/out on this machine: No space left on device")

    monkeypatch.setattr(mirror_module, "fetch", fetch)
    run.steps = [nothing, nothing]
    mirror = run.mirror()
    mirror.follow(is_over=False)
    assert (mirror.results()[0].status, len(run.steps)) == ("failed", 1)


def test_the_time_of_a_long_pass_is_no_absence_of_node0(run: LiveRun, monkeypatch: pytest.MonkeyPatch) -> None:
    reconnect = 0.5
    pauses = [1.2 * reconnect]

    def fetch_slowly(*given: Any) -> FetchResult:
        time.sleep(pauses.pop() if pauses else 0)
        return fetch_files(*given)

    monkeypatch.setattr(mirror_module, "fetch", fetch_slowly)
    lost = Unreachable("the connection was lost")
    run.write(run.results / "log", "1")()
    run.steps = [nothing, run.fail(lost), run.fail(lost), nothing]
    mirror = run.mirror(reconnect=reconnect)
    mirror.follow(is_over=False)
    assert (mirror.results()[0].status, run.steps) == ("changed", [])
