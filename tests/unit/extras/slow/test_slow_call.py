"""The questions of `slow` to hosts, and hosts that do not answer; and what is printed."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from slow_helpers import CALM, HEALTHY, changed, hog, ranks_of, run_of, steady, verdict_of

from ipexctl.doctor.product_speeds import ProductSpeeds, remember
from ipexctl.extras.slow import slow as calls
from ipexctl.extras.slow.slow import SlowResult, slow
from ipexctl.extras.slow.slow_report import VerdictOfRun, as_json, lines_of, section_of
from ipexctl.extras.slow.slow_verdict import SlowVerdict
from ipexctl.hosts.host import Host
from ipexctl.node.common.records import Lever, NetworkCost, RunStatus, WireAdvice
from ipexctl.node.run.run_replies import ProcessShare, SuspectSnapshot
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.outcome import HostError, Unreachable
from ipexctl.remote.reply import Reply
from ipexctl.run.registry import RunRegistry
from ipexctl.ui.run.end_of_run import end_lines, network_text
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
    """Answers in place of the hosts; `asked` is what they were asked."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, *ranks: Any, state: str = "running", backend: str = "gloo"
    ) -> None:
        self.asked: list[tuple[str, str, Any]] = []
        self.look: SuspectSnapshot | HostError = hog()
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


HOST = Host(name="node1", address="10.0.0.1")
SHOWN_RECORD = run_record("train-1", HOST, "/h", "/env/bin/python", script="my train.py", hosts=("node1", "node2"))
LATE = changed(HEALTHY, cpu=0.4, queue=0.1)
HALF = changed(HEALTHY, cpu=0.4)
SLOW_LINK = CALM._replace(sent_per_s=6e7)
BOTH = {"node1": SLOW_LINK, "node2": SLOW_LINK}


def result(verdict: SlowVerdict) -> SlowResult:
    return SlowResult(SHOWN_RECORD, verdict, "running")


def test_names_that_processes_gave_themselves_are_made_printable() -> None:
    evil = SuspectSnapshot((ProcessShare(7, "\x1b[2Jls\n", "e\x07ve", 0.5),), 0.0)
    verdict = verdict_of(HEALTHY, QUEUED, looks={1: evil})
    for text in ("\n".join(lines_of(result(verdict))), json.dumps(as_json(result(verdict)), ensure_ascii=False)):
        assert "\x1b" not in text
        assert "\x07" not in text


@pytest.mark.parametrize("looks", [{}, {1: hog()}])
def test_no_advice_ends_a_process(looks: dict[int, SuspectSnapshot]) -> None:
    verdict = verdict_of(HALF, LATE, looks=looks, hosts=BOTH)
    document = as_json(result(verdict))
    for found in (*document["findings"], *document["links"]):
        assert not re.search(r"\bp?kill(all)?\b|ipexctl stop", found["fix"])
        assert "my train.py" not in found["fix"]


def test_a_line_for_other_views() -> None:
    verdict = verdict_of(HEALTHY, QUEUED)
    assert missing(VerdictOfRun(verdict).line("train-1", is_over=False), "1 node2 ipexctl slow train-1") == []
    assert VerdictOfRun(verdict).document() == {"rank": 1, "host": "node2", "percent": 24.0, "cause": "other-programs"}
    nothing = VerdictOfRun(verdict_of(HEALTHY, HEALTHY))
    assert nothing.line("train-1", is_over=True) == ""
    assert nothing.document() is None


def test_section_of_a_page() -> None:
    section = section_of(SHOWN_RECORD, verdict_of(HALF, LATE, hosts=BOTH), is_over=True)
    rank, link = section.entries
    assert missing(rank.headline, "1 node2") == missing(link.headline, "node[1-2]") == []
    assert (len(rank.details), len(link.details)) == (2, 0)
    assert section_of(SHOWN_RECORD, verdict_of(HEALTHY, HEALTHY), is_over=True).entries == ()
    assert section_of(SHOWN_RECORD, verdict_of(HEALTHY, HEALTHY), is_over=True).closing


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
        (COST._replace(iface="e\x1b[2J", advice=None, rate=0.0), "at 0 Gbit/s"),
        (None, ""),
    ],
)
def test_the_network_is_named_where_it_takes_a_good_part_of_a_step(cost: NetworkCost | None, text: str) -> None:
    found = network_text(cost)
    assert "\x1b" not in found
    assert text in found
    assert bool(text) == bool(found)
    verdict = SlowVerdict(unjudged="too-short", network=cost)
    assert (found in list(lines_of(result(verdict)))) == bool(found)
    assert (found in section_of(SHOWN_RECORD, verdict, is_over=True).closing) == bool(found)


def test_programs_read_what_the_network_costs() -> None:
    document = json.loads(json.dumps(as_json(result(SlowVerdict(network=COST)))))
    advice = {"wire": "bf16", "speedup": 1.52}
    assert document["network"] == {**COST._asdict(), "advice": advice}
    assert json.loads(json.dumps(as_json(result(SlowVerdict()))))["network"] is None


SPEEDS = {"card-1": ProductSpeeds(180e9, 890.4e9), "card-2": ProductSpeeds(180e9, 190e9)}
FP32 = "the script multiplies in fp32; AMX is idle on {}"
TRY = "a run with --profile measures what bf16 would bring to it"
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
    of_page = section_of(SHOWN_RECORD, verdict, is_over=True).closing
    for lines in (lines_of(result(verdict)), of_page, end_lines(status, 0)):
        assert [line.strip() for line in lines if "AMX" in line] == [text] * bool(text)
    measured_by_profile = status._replace(levers=(Lever("--autocast bf16", 1.5),))
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
