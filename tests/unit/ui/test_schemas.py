"""The schemas of the package: made from the records' annotations, valid for real documents, and what the pages say."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from functools import cache
from inspect import get_annotations
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from slow_helpers import HEALTHY, hog
from slow_helpers import verdict_of as slow_ranks
from test_event_fields import FAILED, RECORD, RUNNING, shown
from test_json_documents import DOCTOR, WHY
from test_show_plan import MIXED
from test_slow_call import BOTH, HALF, QUEUED
from test_slow_call import result as slow_result
from why_helpers import NO_MODULE, answer, judged

from ipexctl.commands import install_command, ps_command, ps_hosts, sync_command, wait_command
from ipexctl.hosts.host import Host
from ipexctl.node.common.frames import Chunk
from ipexctl.node.common.json_records import encode
from ipexctl.node.common.lever_records import Lever
from ipexctl.node.common.plan import OtherRun, Plan, to_json
from ipexctl.node.common.records import (
    NanLoss,
    NetworkCost,
    OutOfMemory,
    RankFigures,
    RankStatus,
    RunStatus,
    StopRecord,
    Throughput,
    TrainingProgress,
    WireAdvice,
)
from ipexctl.node.run.meter.rank_profile import RankProfile
from ipexctl.node.run.record.run_document import CallDocument, RunDocument, document_of_run, run_json
from ipexctl.remote.outcome import Notice
from ipexctl.run.follow_run import RunEnded
from ipexctl.run.hosts_now import RunOnHosts
from ipexctl.run.profile import ProfileDocument, RunProfile
from ipexctl.run.ps import KnownRun
from ipexctl.run.start.start_request import StartFailure
from ipexctl.run.why.diagnosis import Diagnosis
from ipexctl.run.why.why import WhyResult
from ipexctl.stack.install_context import InstallReport, InstallResult
from ipexctl.sync.node_calls import SyncReport, SyncResult
from ipexctl.ui.launch_plan import show_refused_json
from ipexctl.ui.run.events import FiguresEvent
from ipexctl.ui.run.why_document import WhyDocument, why_json
from schemas import DIRECTORY, annotations_of, schemas, text_of

DOCS = Path(__file__).parents[3] / "docs"
N1 = Host("n1", "n1")
FIGURES = RankFigures(790.5, 2 << 30, "S", "futex_wait", 40, 3, lost=9)
TRAINING = RUNNING._replace(ranks=(RankStatus(0, "n1", "running", 7, FIGURES, oom=OutOfMemory("cgroup", 1, 2)),))


@cache
def schema(name: str) -> Any:
    return json.loads((DIRECTORY / f"{name}.json").read_text())


def problems(name: str, document: Any) -> list[str]:
    checker = jsonschema.Draft202012Validator(schema(name))
    return [error.message for error in checker.iter_errors(json.loads(json.dumps(document, allow_nan=False)))]


def test_the_schemas_are_those_of_the_annotations() -> None:
    made = {DIRECTORY / f"{name}.json": text_of(schema) + "\n" for name, schema in schemas().items()}
    if os.environ.get("IPEXCTL_GOLDEN") == "write":
        for path, text in made.items():
            path.write_text(text)
    assert {path: path.read_text() for path in DIRECTORY.glob("*.json")} == made, "python -m tools.schemas"
    for path in made:
        jsonschema.Draft202012Validator.check_schema(schema(path.stem))


def runs() -> Iterator[RunDocument]:
    measured = FAILED._replace(
        throughput=Throughput(2.0, 64.0, 0.1, "dataloader", 6400.0),
        stopped=StopRecord("me", "here", 3.0),
        nan=NanLoss(16, 1),
        network=NetworkCost(0.3, 1e6, 2e7, "eth0", WireAdvice("bf16", 1.5)),
        levers=(Lever("autocast", "--autocast bf16", acted=True, steps=9),),
        amx_idle={"n1": "box"},
        checkpoint="out/last.pt",
    )
    for status in (None, RUNNING, TRAINING, FAILED, measured):
        yield document_of_run(RECORD.plan, status, 1.0)
    yield RunDocument(call=CallDocument(2, 0.1, ()))


OF_RUN = "env hosts tag started seconds exit_code cause checkpoint step_age slow amx_idle attempts ranks"


@pytest.mark.parametrize(
    ("kind", "sources", "own"),
    [
        (RunDocument, (Plan, RunStatus, TrainingProgress), OF_RUN),
        (FiguresEvent, (RunStatus, TrainingProgress), "ranks step_age speed"),
        (WhyDocument, (Diagnosis, WhyResult), "slow profile reason"),
        (ProfileDocument, (RunProfile, RankProfile), "step usual_step rank parts dtype cost levers"),
    ],
)
def test_what_a_document_has_from_its_sources_has_their_types(kind: Any, sources: tuple[Any, ...], own: str) -> None:
    def type_in(source: Any, name: str) -> str | None:
        of_property = getattr(getattr(source, name, None), "fget", None)
        return dict(annotations_of(source)).get(name) or (of_property and get_annotations(of_property).get("return"))

    for name, wanted in annotations_of(kind):
        found = next(filter(None, (type_in(source, name) for source in sources)), wanted)
        found = found.replace("Computed", "float")
        assert name in own.split() or wanted in (found, f"{found} | None"), name


def test_a_run_is_valid_in_each_of_its_documents() -> None:
    for run in runs():
        assert problems("run", run_json(run)) == []
    known = [KnownRun(RECORD, FAILED), KnownRun(RECORD, None, "n1: down", "wait")]
    for listed in (ps_command.as_json(known)["runs"], wait_command.as_json(known, 0)["runs"]):
        assert [problems("run", {"schema": "ipexctl.run/1", **run}) for run in listed] == [[], []]
    assert ps_command.as_json(known)["runs"][0] == encode(known[0].document)


def test_why_is_valid() -> None:
    assert problems("why", WHY) == []
    for verdict in (slow_ranks(HEALTHY, QUEUED, looks={1: hog()}), slow_ranks(HALF, HALF, hosts=BOTH)):
        assert problems("why", why_json(slow_result(verdict))) == []
    assert problems("why", why_json(answer(judged([({"state": "ok"}, NO_MODULE)], state="ok", first=None)))) == []


def test_a_plan_and_its_refusal_are_valid(capsys: pytest.CaptureFixture[str]) -> None:
    assert problems("plan", to_json(MIXED)) == []
    show_refused_json(StartFailure("n1: down", fix="", exit_code=3), "ipexctl.plan/1")
    assert problems("plan", json.loads(capsys.readouterr().out)) == []


def test_commands_on_hosts_are_valid() -> None:
    install = install_command.as_json(InstallReport((InstallResult(N1, "unreachable", "down"),), 0.0))
    sync = sync_command.as_json(SyncReport((SyncResult(N1, "ok"),), 0.0, Path("/p"), "p", "d", 1, 2))
    for document in (DOCTOR, install, sync):
        assert problems("hosts", document) == []


def test_events_are_valid(capfd: pytest.CaptureFixture[str]) -> None:
    updates = (RUNNING, Chunk(0, "stdout", b"loss 2.5 step 1/9\n"), Notice("away", True), RunEnded(5, FAILED))
    events = shown(capfd, *updates, code=5)
    assert len({event["kind"] for event in events}) == 7
    assert [problems("event", event) for event in events] == [[]] * len(events)


@pytest.mark.parametrize(
    ("name", "document", "change"),
    [
        ("run", run_json(RunDocument()), {"hosts": None}),
        ("run", run_json(RunDocument()), {"state": "queued"}),
        ("why", WHY, {"run": {}}),
        ("plan", to_json(MIXED), {"schema": "ipexctl.run/1"}),
        ("hosts", DOCTOR, {"hosts": [{"name": "n1"}]}),
        ("event", {"schema": "ipexctl.run-event/1", "kind": "start", "time": 0.0, "attempt": 0}, {"attempt": "0"}),
    ],
)
def test_another_document_is_refused(name: str, document: dict[str, Any], change: dict[str, Any]) -> None:
    assert problems(name, document) == []
    assert problems(name, {**document, **change}) != []


PROMISED = {
    "run": """id state tag script cause checkpoint stopped.by stopped.host stopped.at by.user by.host group.planned
        group.seen untrained nan.step exchange throughput.steps_per_s throughput.samples_per_s throughput.data_wait
        throughput.source throughput.tokens_per_s
        network.share network.bytes_per_step network.rate network.advice levers.name levers.acted
        levers.steps levers.reason wrong.kind wrong.ranks wrong.evidence ranks.port""",
    "why": """run.group run.untrained run.nan run.exchange run.network run.stopped cause.evidence
        slow.findings.rank slow.findings.host slow.findings.percent slow.findings.cause slow.findings.evidence
        slow.findings.fix profile.step profile.parts profile.operators profile.flops profile.peak profile.share
        profile.first_step unprofiled""",
    "plan": """allreduce.mode allreduce.reason allreduce.calls wire.mode wire.reason launcher.mode launcher.reason
        launcher.path fp32_math.mode fp32_math.reason share_weights.mode share_weights.reason
        gpu_code.mode gpu_code.reason
        fast.autocast fast.fused_optimizer fast.reasons apart""",
    "hosts": """hosts.name hosts.address hosts.status hosts.reason hosts.facts hosts.findings.id hosts.findings.level
        hosts.findings.message hosts.findings.fix hosts.findings.hosts cluster.findings recommendation.stack
        recommendation.dtype recommendation.ppn recommendation.omp_num_threads recommendation.ccl_worker_count
        recommendation.backend recommendation.iface summary seconds""",
}
"""Keys that scripts are written against."""


def resolved(part: Any, name: str) -> Any:
    part = part.get("items", part)
    options = [resolved(each, name) for each in part["anyOf"] if each != {"type": "null"}] if "anyOf" in part else []
    if options:
        return options[0]
    if "$ref" in part:
        return schema(name)["$defs"][part["$ref"].rpartition("/")[2]]
    return part


@pytest.mark.parametrize("name", PROMISED)
def test_the_promised_keys_are_there(name: str) -> None:
    for path in PROMISED[name].split():
        part = resolved(schema(name), name)
        for key in path.split("."):
            assert key in part["properties"], path
            part = resolved(part["properties"][key], name)


def test_the_pages_name_the_keys_of_the_schemas() -> None:
    (listed,) = re.findall(r'`\{schema: "ipexctl.run/1", (.*?)\}`', (DOCS / "run-end.md").read_text(), re.DOTALL)
    names = re.sub(r" \{[^}]*\}|\[\]", "", listed)
    assert [name.strip() for name in names.split(",")] == schema("run")["required"][1:]
    page = (DOCS / "events.md").read_text()
    for kind in schema("event")["anyOf"]:
        name, keys = kind["properties"]["kind"]["const"], kind["required"][3:]
        (row,) = re.findall(rf"^\| `{name}` \|[^|]*\| (.*) \|$", page, re.MULTILINE)
        assert name == "end" or [key for key in re.findall(r"`(\w+)(?:\[\])?`", row) if key in keys] == keys, name


def test_a_run_of_another_account_is_a_run_as_far_as_it_is_known() -> None:
    other = OtherRun("r1", "ann", "running", ("n1",), {"n1": "0-3"}, {}, since=5.0)
    shown = ps_hosts.run_json(RunOnHosts(other, 2, "train.py"))
    assert problems("run", {"schema": "ipexctl.run/1", **shown}) == []
    assert (shown["account"], shown["cores"], shown["rank_count"], shown["started"]) == ("ann", {"n1": "0-3"}, 2, 5.0)
