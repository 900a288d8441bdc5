"""The fields of JSON documents made from reports, and the schema of a command that fails early."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from slow_helpers import HEALTHY, hog
from slow_helpers import verdict_of as slow_ranks
from test_run_dump import LOAD, MAIN, REDUCE, rank
from test_show_plan import MIXED
from test_slow_call import BOTH, HALF, QUEUED
from test_slow_call import result as slow_result
from why_helpers import FAILED, NO_MODULE, STOPPED, answer, judged

from case_table import case_table
from ipexctl.commands import (
    doctor_command,
    envs_command,
    fetch_command,
    install_command,
    push_command,
    sync_command,
    uninstall_command,
)
from ipexctl.doctor.finding import ClusterReport, DoctorReport, Finding, HostReport, Recommendation
from ipexctl.facts.facts import parse
from ipexctl.files.push_files import PushReport, PushResult
from ipexctl.files.requested import FetchResult
from ipexctl.homes.uninstall_hosts import UninstallReport, UninstallResult
from ipexctl.hosts.host import Host
from ipexctl.node.common.plan import to_json
from ipexctl.node.env.env_replies import EnvEntry, EnvListing
from ipexctl.node.run.record.run_document import RunDocument
from ipexctl.run.stack_dump import Dump
from ipexctl.stack.env.envs import EnvsReport, EnvsResult
from ipexctl.stack.install_context import InstallReport, InstallResult
from ipexctl.sync.node_calls import SyncReport, SyncResult
from ipexctl.ui import stacks_output
from ipexctl.ui.error_output import requested_schema
from ipexctl.ui.run.why_document import WhyDocument, why_json
from recorded_probes import recorded

N1 = Host("n1", "n1")
HOST = "name address status reason fix seconds"
REPORT = "schema hosts summary seconds"
UNINSTALLED = UninstallResult(N1, "ok")
ENV = EnvEntry("e", ("default",), "/h/envs/e", "ipex-2.8", "3.11", "gloo", None, {"torch": "2.8.0"}, 7, True)
ENVS = envs_command.as_json(EnvsReport((EnvsResult(N1, "ok", listing=EnvListing((ENV,), 0, 0, 0, 0)),), 0.0))
DUMP = stacks_output.as_json(Dump(2.0, (rank(0, REDUCE, MAIN), rank(1, LOAD, MAIN))), "run-1")
SLOW = why_json(slow_result(slow_ranks(HEALTHY, QUEUED, looks={1: hog()})))["slow"]
LINK = why_json(slow_result(slow_ranks(HALF, HALF, hosts=BOTH)))["slow"]["links"][0]
WHY = why_json(answer(judged([(STOPPED, ""), (FAILED, NO_MODULE)], out={1: "hello"})))


@pytest.mark.parametrize(
    ("document", "names", "of_host"),
    [
        (
            sync_command.as_json(SyncReport((SyncResult(N1, "ok"),), 0.0, Path("/p"), "p", "d", 1, 2)),
            "root project path generation digest files bytes notes left_out fetched dry_run",
            "path generation sent_bytes files_sent files_deleted kept blocked would_send would_delete aside",
        ),
        (
            push_command.as_json(PushReport((PushResult(N1, "ok"),), 0.0, "/d", "d", 1, 2)),
            "source path files bytes force dry_run",
            "path files_sent sent_bytes same differing replaced refused would_send",
        ),
        (
            install_command.as_json(InstallReport((InstallResult(N1, "ok"),), 0.0)),
            "stack refused path wheels bytes notes dry_run changes unread",
            "env packages verify",
        ),
        (
            envs_command.as_json(EnvsReport((EnvsResult(N1, "ok"),), 0.0)),
            "",
            "home envs wheels leftovers prunable_bytes removed verify foreign",
        ),
        (
            uninstall_command.as_json(UninstallReport((UNINSTALLED,), 0.0, UNINSTALLED)),
            "control obstacles with_results dry_run",
            "home store found left logins live foreign",
        ),
    ],
)
def test_report_documents_have_these_fields(document: dict[str, Any], names: str, of_host: str) -> None:
    assert sorted(document) == sorted(f"{REPORT} {names}".split())
    assert sorted(document["hosts"][0]) == sorted(f"{HOST} {of_host}".split())


@pytest.mark.parametrize(
    ("part", "names"),
    [
        (ENVS["hosts"][0]["envs"][0], "name names path row python backend created packages bytes complete by"),
        (
            uninstall_command.as_json(UninstallReport((UNINSTALLED,), 0.0, UNINSTALLED))["control"],
            "fix found left live logins reason status",
        ),
        (
            fetch_command.as_json(FetchResult(N1, "ok")),
            """schema status host source dest brought resumed unchanged bytes received_bytes failed left_out older
            other_hosts also_on reason fix seconds""",
        ),
        (
            WHY,
            "schema " + " ".join(WhyDocument._fields),
        ),
        (DUMP, "schema id at reason hang groups ranks"),
        (DUMP["groups"][1], "ranks frames"),
        (DUMP["groups"][1]["frames"][0], "function file line"),
        (DUMP["ranks"][0]["processes"][0], "pid name state wchan waits_for by reason threads"),
        (
            SLOW,
            "findings links windows seconds waiting unjudged from_copy look_error",
        ),
        (
            SLOW["findings"][0],
            """rank host percent cost_percent cost_seconds cause confidence evidence sentence reason fix since until
            windows current""",
        ),
        (
            SLOW["findings"][0]["evidence"],
            """own usual_own cpu_more queue_more data_more usual_cpu usual_queue samples_ratio faults_more mhz usual_mhz
            look""",
        ),
        (LINK, "hosts transfer_percent bytes_per_s sentence fix since until windows current"),
        (WHY["run"], " ".join(RunDocument._fields)),
        (WHY["cause"], "id sentence fix confidence rank host source evidence"),
        (WHY["lines"][0], "stream text"),
        (WHY["others"][0], "ranks hosts what sentence"),
        (
            to_json(MIXED),
            """schema hosts world_size master_addr master_port backend backend_reason allreduce wire flavor stack env
            python command cwd launcher argv launcher_env files hostfile settings choices
            notes other_runs candidates id home node0 asked stores has_starters install packages
            install_by_run project_packages project commit before_start job python_version local_rank ends_at_logout
             spares setup first_world_size share_weights gpu_code fp32_math half_math autocast fused_optimizer fast by
             apart versions memory resumes_from""",
        ),
        (to_json(MIXED)["hosts"][0], "name address word iface tier cores ranks hardware"),
    ],
)
def test_parts_of_documents_have_these_fields(part: dict[str, Any], names: str) -> None:
    assert sorted(part) == sorted(names.split())
    json.dumps(part, allow_nan=False)


RUNS = """
rdma mlx5_0|4: ACTIVE|InfiniBand|200 Gb/sec|ib0
process 12 99 train-1
run.supervisor train-1 7 {"pid": 1, "start": 7}
run.program 71 rank train-1 1001 600
run.program 72 wait train-2 1001 700 60
run.call 71 {"user": "ann", "host": "laptop"}
run.call 72 {"user": "ann", "host": "laptop"}
run.holder 5867 1004 1 sleep
"""
FOUND = Finding("a.b", "warn", "")
DOCTOR = doctor_command.as_json(
    DoctorReport(
        (HostReport(N1, "ok", 0.0, facts=parse(recorded("ubuntu2004-docker") + RUNS), findings=(FOUND,)),),
        ClusterReport((FOUND,)),
        Recommendation(None, (), None, None, None, None, None, None, {}),
        0.0,
    )
)


@case_table
def test_no_key_of_doctor_is_dropped(part: str, names: tuple[str, ...]) -> None:
    """Programs and playbooks read them: a row may get more names, and loses none."""
    found: Any = DOCTOR
    for step in part.split("."):
        found = found[0] if step == "0" else found[step] if step else found
    assert set(names) <= set(found)


def test_values_of_documents() -> None:
    schemas = [document["schema"] for document in (WHY, to_json(MIXED), DUMP)]
    assert schemas == [f"ipexctl.{name}/1" for name in ("why", "plan", "dump")]
    (found,) = SLOW["findings"]
    assert [found[name] for name in ("rank", "host", "cause", "confidence")] == [1, "node2", "other-programs", "likely"]
    assert found["evidence"]["look"]["others"][0]["pid"] == 4711
    assert LINK["hosts"] == ["node1", "node2"]
    assert DUMP["groups"][1]["frames"][0] == {"function": "load", "file": "train.py", "line": 3}
    assert ENVS["hosts"][0]["envs"][0]["names"] == ["default"]
    nothing = fetch_command.as_json(FetchResult(N1, "ok"))
    assert [nothing[name] for name in ("unchanged", "bytes", "received_bytes")] == [0, 0, 0]
    well = why_json(answer(judged([({"state": "ok"}, "")], state="ok", first=None)))
    assert (well["run"]["first_failure"], well["cause"]) == (None, None)
    assert "hunter2" not in json.dumps(to_json(MIXED))


@case_table
def test_requested_schema_needs_the_json_option_of_the_command(call: str, schema: str | None) -> None:
    assert requested_schema(call.split()) == schema
