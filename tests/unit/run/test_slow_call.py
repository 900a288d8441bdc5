"""Slow ranks in the answer of `why`: the look at a suspect's host, hosts that do not answer, and what is printed."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from slow_helpers import CALM, HEALTHY, changed, hog, ranks_of, run_of, steady, verdict_of

from ipexctl.commands import why_command
from ipexctl.doctor.product_speeds import ProductSpeeds, remember
from ipexctl.homes.registry import RunRegistry
from ipexctl.hosts.host import Host
from ipexctl.node.common.lever_records import Lever
from ipexctl.node.common.records import NetworkCost, RunStatus, State, WireAdvice
from ipexctl.node.run.run_replies import SuspectSnapshot
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.outcome import HostError, Unreachable
from ipexctl.remote.reply import Reply
from ipexctl.run.why import why as explanation
from ipexctl.run.why.diagnosis import Diagnosis
from ipexctl.run.why.read_snapshot import RunSnapshot, read_snapshot
from ipexctl.run.why.slow_verdict import SlowVerdict
from ipexctl.run.why.why import WhyResult, why
from ipexctl.ui.run.end_of_run import end_lines, network_text
from ipexctl.ui.run.slow_report import ToldRun, comparison_lines, cost_lines, slow_entries
from ipexctl.ui.run.why_document import why_json
from message_data import missing
from record_helpers import run_record

NODES = tuple(Host(name=f"node{number}", address=f"10.0.0.{number}") for number in (1, 2))
RECORD = run_record("train-1", NODES[0], "/h", "/p", hosts=("node1", "node2"), nodes=NODES, world_size=2)
QUEUED = changed(HEALTHY, cpu=0.5, queue=0.45)
STATUS: dict[str, Any] = {
    "id": "train-1",
    "state": "running",
    "ranks": [{"rank": rank, "host": f"node{rank + 1}", "state": "running", "pid": 70 + rank} for rank in range(2)],
}


class Hosts:
    """Answers in place of the hosts; `looks` is which process on which host was looked at."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, *ranks: Any, state: str = "running", backend: str = "gloo"
    ) -> None:
        self.looks: list[tuple[str, int]] = []
        self.look: SuspectSnapshot | HostError = hog()
        plan = {"backend": backend, "allreduce": {"mode": "backend"}}
        self.snapshot = read_snapshot({"status": {**STATUS, "state": state}, "plan": plan}, (), "node1")
        windows = run_of(ranks_of(*(steady(rates, 5) for rates in ranks)))
        monkeypatch.setattr(explanation, "_read_snapshot", self._read)
        monkeypatch.setattr(explanation, "_with_fresh_dump", lambda snapshot, *_: snapshot)
        monkeypatch.setattr(explanation, "fetch_windows", lambda *_, **__: windows)
        monkeypatch.setattr(explanation, "call", self._on_host)

    def open(self, host: Host) -> Any:
        return host

    def _read(self, session: Any, *_: Any, **__: Any) -> RunSnapshot:
        assert session == RECORD.node0
        return self.snapshot

    def _on_host(self, session: Any, command: str, action: str, request: Any, place: Any, **_: Any) -> Reply:
        self.looks.append((session.name, request["pid"]))
        if isinstance(self.look, HostError):
            raise self.look
        return Reply(json.loads(json.dumps(self.look._asdict() | {"others": [p._asdict() for p in self.look.others]})))


def test_the_host_of_a_suspect_is_looked_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hosts = Hosts(monkeypatch, HEALTHY, QUEUED)
    answer = why(RECORD, hosts.open, tmp_path, Cancel())
    assert hosts.looks == [("node2", 71)]
    assert [found.cause for found in answer.slow.findings] == [("other-programs", "likely")]
    text = "\n".join(why_command.lines_of(answer))
    assert missing(text, "rank 1 on node2 is slow stress 4711 eve") == []
    assert why_json(answer)["slow"]["findings"][0]["evidence"]["look"]["others"][0]["pid"] == 4711


@pytest.mark.parametrize(("ranks", "state"), [((HEALTHY, HEALTHY), "running"), ((HEALTHY, QUEUED), "ok")])
def test_no_host_is_looked_at_without_need(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ranks: tuple[Any, ...], state: str
) -> None:
    hosts = Hosts(monkeypatch, *ranks, state=state)
    assert why(RECORD, hosts.open, tmp_path, Cancel()).exit_code == 0
    assert hosts.looks == []


def test_a_look_that_fails_leaves_the_verdict(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hosts = Hosts(monkeypatch, HEALTHY, QUEUED)
    hosts.look = Unreachable("it is down")
    answer = why(RECORD, hosts.open, tmp_path, Cancel())
    assert [found.cause for found in answer.slow.findings] == [("other-programs", "possible")]
    assert (answer.exit_code, answer.look_error) == (0, "node2: it is down")
    assert "node2: it is down; so it is unknown who uses its cores" in why_command.lines_of(answer)


def test_a_host_that_the_record_does_not_know_is_not_looked_at(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hosts = Hosts(monkeypatch, HEALTHY, QUEUED)
    answer = why(replace(RECORD, nodes=()), hosts.open, tmp_path, Cancel())
    assert hosts.looks == []
    assert "node2" in answer.look_error


@pytest.mark.parametrize(
    ("state", "backend", "text"),
    [
        ("running", "gloo", "no rank of run train-1 is slow in 4 windows"),
        ("running", "none", ""),
        ("ok", "gloo", ""),
    ],
)
def test_why_says_that_nothing_is_slow_of_a_live_run_alone(
    state: str, backend: str, text: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hosts = Hosts(monkeypatch, HEALTHY, HEALTHY, state=state, backend=backend)
    answer = why(RECORD, hosts.open, tmp_path, Cancel())
    told = [line for line in why_command.lines_of(answer) if "slow" in line or "compare" in line]
    assert (text in "\n".join(told), len(told)) == (True, bool(text))
    assert why_json(answer)["slow"]["unjudged"] == ("independent" if backend == "none" else "")


@pytest.mark.parametrize(("error", "code"), [(Unreachable("down"), 3), (HostError("no record"), 1)])
def test_node0_is_away_and_there_is_no_copy(tmp_path: Path, error: HostError, code: int) -> None:
    def open_session(_: Host) -> Any:
        raise error

    answer = why(RECORD, open_session, tmp_path, Cancel())
    assert (answer.exit_code, answer.slow.unjudged, answer.from_copy) == (code, "no-windows", False)
    document = why_json(answer)
    assert (document["slow"]["findings"], document["reason"]) == ([], f"node1: {error.reason}")


def test_a_complete_copy_answers_in_place_of_node0(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    directory = tmp_path / "runs" / "train-1"
    directory.mkdir(parents=True)
    (directory / "status.json").write_text(json.dumps({**STATUS, "state": "ok", "supervisor": {}, "started": 1.0}))
    (directory / "plan.json").write_text(json.dumps({"backend": "gloo", "allreduce": {"mode": "backend"}}))
    windows = run_of(ranks_of(*(steady(rates, 5) for rates in (HEALTHY, QUEUED))))
    monkeypatch.setattr(explanation, "read_copied_windows", lambda *_: windows)

    def open_session(_: Host) -> Any:
        raise Unreachable("down")

    answer = why(RECORD, open_session, tmp_path / "runs", Cancel())
    assert (answer.exit_code, answer.from_copy, answer.slow.findings[0].rank) == (0, True, 1)


HOST = Host(name="node1", address="10.0.0.1")
SHOWN_RECORD = run_record("train-1", HOST, "/h", "/env/bin/python", script="my train.py", hosts=("node1", "node2"))
LATE = changed(HEALTHY, cpu=0.4, queue=0.1)
HALF = changed(HEALTHY, cpu=0.4)
SLOW_LINK = CALM._replace(sent_per_s=6e7)
BOTH = {"node1": SLOW_LINK, "node2": SLOW_LINK}


def result(verdict: SlowVerdict, state: State = "running") -> WhyResult:
    return WhyResult(SHOWN_RECORD, Diagnosis("train-1", state, ""), slow=verdict)


def notes(verdict: SlowVerdict) -> list[str]:
    """Below the entries of a run that is over."""
    return [*comparison_lines(ToldRun(SHOWN_RECORD, True), verdict), *cost_lines(verdict)]


@pytest.mark.parametrize("looks", [{}, {1: hog()}])
def test_no_advice_ends_a_process(looks: dict[int, SuspectSnapshot]) -> None:
    document = why_json(result(verdict_of(HALF, LATE, looks=looks, hosts=BOTH)))["slow"]
    for found in (*document["findings"], *document["links"]):
        assert not re.search(r"\bp?kill(all)?\b|ipexctl stop", found["fix"])
        assert "my train.py" not in found["fix"]


def test_entries_of_a_page() -> None:
    rank, link = slow_entries(ToldRun(SHOWN_RECORD, True), verdict_of(HALF, LATE, hosts=BOTH))
    assert missing(rank.headline, "1 node2") == missing(link.headline, "node[1-2]") == []
    assert (len(rank.details), len(link.details)) == (2, 0)
    assert slow_entries(ToldRun(SHOWN_RECORD, True), verdict_of(HEALTHY, HEALTHY)) == []
    assert notes(verdict_of(HEALTHY, HEALTHY))


def test_slow_ranks_of_one_host_with_one_cause_are_one_entry() -> None:
    (found, *_) = verdict_of(HEALTHY, LATE, hosts=BOTH).findings
    later = replace(found, rank=3, percent=found.percent / 2, end=found.end + 60)
    (entry,) = slow_entries(ToldRun(SHOWN_RECORD, True), SlowVerdict(findings=(found, later)))
    assert f" on {found.host} were slow: their own time was up to {found.percent:.0f} %" in entry.headline
    assert entry.headline.startswith("ranks 0,3 on node1 ")
    assert entry.details[1].endswith("(rank 0, the slowest)")
    other = replace(later, host="node2", rank=1)
    assert len(slow_entries(ToldRun(SHOWN_RECORD, True), SlowVerdict(findings=(found, other)))) == 2


def test_of_many_slow_ranks_the_worst_are_shown() -> None:
    late = [changed(HEALTHY, cpu=0.5, queue=0.30 + 0.05 * number) for number in range(5)]
    answer = result(verdict_of(*[HEALTHY] * 8, *late))
    lines = [*why_command.lines_of(answer)]
    assert len(answer.slow.findings) == 5
    assert sum("is slow:" in line for line in lines) == 3
    assert "2 more: ipexctl why train-1 --json" in lines


COST = NetworkCost(0.61, 26.4e6, 0.94e9 / 8, "eth0", WireAdvice("bf16", 1.52))
ADVICE = (
    "gradients between hosts take 61 % of a step: 26.4 MB over eth0 at 0.94 Gbit/s; with --wire bf16 a step would be "
    "about 1.5x as fast"
)


@pytest.mark.parametrize(
    ("cost", "text"),
    [
        (COST, ADVICE),
        (
            COST._replace(advice=None),
            "transfers between hosts take 61 % of a step: 26.4 MB over eth0 at 0.94 Gbit/s",
        ),
        (COST._replace(iface="", share=0.2), ADVICE.replace("61 %", "20 %").replace(" over eth0", "")),
        (COST._replace(share=0.19), ""),
        (
            COST._replace(bytes_per_step=1850.0, advice=None),
            "ranks wait 61 % of a step: for one another, or asleep in the script; only 0.00185 MB go over eth0",
        ),
        (None, ""),
    ],
)
def test_the_network_is_named_where_it_takes_a_good_part_of_a_step(cost: NetworkCost | None, text: str) -> None:
    found = network_text(cost)
    assert text in found
    assert bool(text) == bool(found)
    verdict = SlowVerdict(unjudged="too-short", network=cost)
    assert bool(found) == (found in [line for line in why_command.lines_of(result(verdict)) if line])
    assert (found in notes(verdict)) == bool(found)


SPEEDS = {"card-1": ProductSpeeds(180e9, 890.4e9), "card-2": ProductSpeeds(180e9, 190e9)}
FP32 = "the script multiplies in fp32; AMX is idle on {}"
TRY = "--fast lets it multiply in bf16, and a run with --profile measures what that would bring"
UNKNOWN = f"{FP32}: {TRY}"
SMOKE = "one core of node1 by doctor --smoke: 180 GFLOP/s, with bf16 inputs 890"


@pytest.mark.parametrize(
    ("hosts", "measured", "text"),
    [
        ({}, SPEEDS, ""),
        ({"node1": "card-1"}, {}, UNKNOWN.format("node1")),
        (
            {"node1": "card-1", "node2": "card-2"},
            SPEEDS,
            f"{FP32.format('node[1-2]')}; {SMOKE}; {TRY}",
        ),
        ({"node2": "card-2"}, SPEEDS, ""),
        ({"node3": "card-3"}, SPEEDS, UNKNOWN.format("node3")),
        # Another machine of this name was measured; of an unknown one nothing is kept.
        ({"node1": "card-4"}, SPEEDS, UNKNOWN.format("node1")),
        ({"node1": ""}, SPEEDS, UNKNOWN.format("node1")),
    ],
)
def test_idle_amx_is_named_with_what_was_measured(
    hosts: dict[str, str],
    measured: dict[str, ProductSpeeds],
    text: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    remember({"card-3": ProductSpeeds(0.0, 1.0), "": ProductSpeeds(1.0, 9.0)})
    remember(measured)
    verdict = SlowVerdict(unjudged="too-short", amx_idle=hosts)
    status = RunStatus("r", "ok", world_size=2, amx_idle=hosts)
    of_page = notes(verdict)
    for lines in (why_command.lines_of(result(verdict)), of_page, end_lines(status, 0)):
        assert [line.strip() for line in lines if "AMX" in line] == [text] * bool(text)
    measured_by_profile = status._replace(levers=(Lever("autocast", "--autocast bf16", speedup=1.5),))
    assert [line for line in end_lines(measured_by_profile, 0) if "AMX" in line] == []
    assert any("1.50x as fast with --autocast bf16" in line for line in end_lines(measured_by_profile, 0))


def test_idle_amx_is_told_once_a_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    project = tmp_path / "project"
    project.mkdir()
    for run in ("train-1", "train-2"):
        RunRegistry().save(replace(SHOWN_RECORD, id=run, project=str(project)))
    idle = RunStatus("train-1", "ok", world_size=2, amx_idle={"node1": ""})
    lines = [end_lines(idle._replace(id=run), 0) for run in ("train-1", "train-2")]
    assert ["AMX" in "".join(each) for each in lines] == [True, False]
