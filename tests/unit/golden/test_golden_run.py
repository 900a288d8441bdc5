"""The texts of runs that cannot start, and of silent runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import test_gpu_code as gpus
import test_run_ranks
import test_run_refusals as refusals
import test_run_script as scripts
import test_stall_report as silence
from golden_file import Case, golden_diff, refusal, rows_of
from test_run_refusals import ADDRESSES, OK

from ipexctl.facts.cpu import CpuList
from ipexctl.hosts.host import Host
from ipexctl.launch.other_runs import OtherRun, notes_on
from ipexctl.node.common.records import Silence, SilentRank
from ipexctl.node.network.replies import NodeResult
from ipexctl.remote.reply import Reply
from ipexctl.run.ranks import parse_ranks
from ipexctl.run.stall_report import describe_activity, silence_lines
from ipexctl.run.start.exclusive import Obstacles
from ipexctl.run.start.exclusive import refusal as occupied
from ipexctl.run.start.preflight import connectivity
from ipexctl.run.start.preflight.imports import (
    ScriptFile,
    check_imports,
    check_syntax,
    project_script,
    read_script,
)
from ipexctl.run.start.request import StartError, check_ranks, check_request
from ipexctl.run.start.start_notes import check_gpu_code
from ipexctl.spec import RunSpec


def refused(name: str, call: Callable[..., object], *arguments: Any) -> Case:
    with pytest.raises(StartError) as caught:
        call(*arguments)
    return Case(name, caught.value.failure.reason, caught.value.failure.fix)


def between_hosts() -> list[Case]:
    login, back, there = (NodeResult(kind, "TEXT") for kind in ("login", "back", "there"))
    lacking = rows_of(refusals.test_missing_or_different_files_are_reported_with_their_host)
    return [
        refused("connectivity: login", connectivity.evaluate_connectivity, "a", ADDRESSES, {"b": OK, "c": login}),
        refused(
            "connectivity: no connection back to node0",
            connectivity.evaluate_connectivity,
            "a",
            ADDRESSES,
            {"b": back, "c": back},
        ),
        refused(
            "connectivity: no connection from node0",
            connectivity.evaluate_connectivity,
            "a",
            ADDRESSES,
            {"b": OK, "c": there},
        ),
        *(
            refused("paths", refusals.evaluate, dict(zip("abc", answers, strict=False)), python)
            for python, answers, *_ in lacking
        ),
        Case("an argument", *refusals.evaluate(dict.fromkeys("abc", "argument /data/set\n"), None).notes),
    ]


def request_with(**more: Any) -> RunSpec:
    return RunSpec(**{"kind": "script", "argv": ("train.py",), **more})


def calls() -> list[Case]:
    hosts = [Host(name, name) for name in ADDRESSES]
    wrong = rows_of(refusals.test_invalid_requests_are_refused_before_connecting)
    ranks = rows_of(refusals.test_impossible_ranks_are_refused_before_connecting)
    texts = rows_of(test_run_ranks.test_invalid_rank_sets_are_refused_with_examples)
    return [
        *(refusal("run request", check_request, request_with(**each)) for each in wrong),
        *(refusal("ranks of these hosts", check_ranks, spec, hosts, parse_ranks(text)) for spec, text, _ in ranks),
        *(refusal(f"--ranks {text!r}", parse_ranks, text) for text in texts),
        refusal("--ranks 8-9 of 4", parse_ranks("8-9").within, 4),
    ]


def of_scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Case]:
    rows = rows_of(scripts.test_files_that_are_no_python_are_refused_with_a_command)
    cases = [refusal(f"script {name}", read_script, name, data) for name, data, _ in rows]
    lines = rows_of(scripts.test_changes_of_the_import_path_put_the_check_in_doubt)
    for line in lines:
        script = read_script("train.py", f"import os, sys, site, subprocess\n{line}\nimport tqdm\n".encode())
        cases.append(Case(f"doubt: {line}", script.doubt))
    lacking = scripts.needs("tqdm", "yaml", install="ipexctl install --torch 2.13")
    both = {"n1": ["tqdm", "yaml"], "n2": ["tqdm", "yaml"]}
    cases += [
        refused("modules: one host", check_imports, lacking, {"n1": [], "n3": ["tqdm"]}),
        refused("modules: two", check_imports, scripts.needs("tqdm", "yaml"), both),
        Case("modules: doubt", str(check_imports(scripts.needs("tqdm", doubt="DOUBT"), {"a": ["tqdm"]}))),
    ]
    for wanted in (
        scripts.needs("intel_extension_for_pytorch"),
        scripts.needs("cv2", own=False, install="ipexctl exec -- /opt/py -m pip install"),
    ):
        cases.append(refused("modules: another fix", check_imports, wanted, {"a": [wanted.imports[0].module]}))
    for_gpus = read_script("train.py", gpus.DDP.encode())
    cases.append(refused("written for GPUs", check_gpu_code, for_gpus, request_with(), {}))
    fault = {"kind": "SyntaxError", "what": "WHAT", "line": 2, "column": 7, "python": "3.11"}
    cases.append(refusal("syntax", check_syntax, ScriptFile("train.py", "x = 1\ndef f(:\n"), Reply(fault)))
    directory = tmp_path / "train.py"
    directory.mkdir()
    monkeypatch.chdir(tmp_path)
    return [
        *cases,
        refusal("a script that can't be read", project_script, "train.py", directory, tmp_path, at=tmp_path),
    ]


def of_silence() -> list[Case]:
    waiting = [SilentRank(rank, f"node{rank // 2 + 1}", "step 7", 0.0, "S", "do_epoll_wait") for rank in (0, 1, 2)]
    odd = SilentRank(3, "node2", "step 6", 0.0, "D", "nfs_wait_bit_killable")
    many = tuple(SilentRank(rank, "a", f"step {rank}") for rank in range(20))
    rows = rows_of(silence.test_process_activity_is_described)
    return [
        *(Case(f"doing: {rank.process} {rank.waits_in}", describe_activity(rank)) for rank, _ in rows),
        Case("silence", "\n".join(silence_lines("run1", Silence(0.0, 600.0, (*waiting, odd))))),
        Case("silence of many", "\n".join(silence_lines("run1", Silence(0.0, 90.0, many)))),
    ]


def of_other_runs() -> list[Case]:
    since = time.mktime((2026, 11, 24, 9, 12, 0, 0, 0, -1))
    cores = {"node1": CpuList.of(range(4)), "node2": CpuList.of(range(4))}
    running = OtherRun("train-1", "alice", ("node1", "node2"), cores, {"node1": CpuList.of((0, 1))}, since)
    starting = OtherRun("tune-2", "bob", ("node2",), {}, {}, since, is_starting=True)
    apart = replace(running, shared={}, cores={"node1": CpuList.of((3,))})
    return [
        *(
            Case(f"other runs: {name}", *notes_on(others, since + later))
            for name, others, later in (
                ("shared cores", [running], 60),
                ("none shared, another day", [apart], 90_000),
                ("several", [starting, *(replace(running, id=f"train-{number}") for number in (1, 3, 4))], 60),
            )
        ),
        *(
            Case(f"other runs: {name}", failure.reason, failure.fix)
            for name, failure in (
                ("--exclusive", occupied(Obstacles((running,)), now=since)),
                ("--wait", occupied(Obstacles((starting,)), 30, now=since)),
                ("a call that is not seen", occupied(Obstacles(locked="node1"), now=since)),
            )
        ),
    ]


def test_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not (
        diff := golden_diff(
            "run", [*between_hosts(), *calls(), *of_scripts(tmp_path, monkeypatch), *of_silence(), *of_other_runs()]
        )
    ), diff
