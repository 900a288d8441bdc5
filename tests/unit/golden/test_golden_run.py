"""The texts of runs that cannot start, and of silent runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import test_resume_note
import test_resumed_call as resumed
import test_run_script as scripts
import test_stall_report as silence
from doctor_rules_helpers import healthy
from golden_file import Case, golden_diff, refusal, rows_of
from golden_file import refused as refused_case
from test_run_refusals import ADDRESSES, MPI, OK, evaluate, found

from ipexctl.commands.resumed_arguments import TypedWords
from ipexctl.commands.run_command import refuse_typed
from ipexctl.errors import Refusal
from ipexctl.facts.gather import HostFacts
from ipexctl.facts.system_facts import HomeDirectory
from ipexctl.hosts.host import Host
from ipexctl.launch.other_runs import notes_on
from ipexctl.launch.spec import RunSpec
from ipexctl.node.common.fix import read_command
from ipexctl.node.common.plan import OtherRun
from ipexctl.node.common.records import Silence, SilentRank
from ipexctl.node.common.run_options import Export, RunOptions
from ipexctl.option_declaration import NOT_TYPED, TypedCall
from ipexctl.projects.script_file import ScriptFile
from ipexctl.remote.reply import Reply
from ipexctl.run.hang import describe_activity, silence_lines
from ipexctl.run.ranks import parse_ranks
from ipexctl.run.start import connection_checks
from ipexctl.run.start import path_checks as places
from ipexctl.run.start.context import complete_facts
from ipexctl.run.start.exclusive import Obstacles
from ipexctl.run.start.exclusive import refusal as occupied
from ipexctl.run.start.resume import resumed_spec
from ipexctl.run.start.script_imports import check_imports, raise_syntax_error
from ipexctl.run.start.script_reading import project_script, read_script
from ipexctl.run.start.start_request import StartError, check_request, refuse_bad_rank_counts
from plan_helpers import changed, spec_of

REQUESTS: tuple[dict[str, Any], ...] = (
    {"n": 0},
    {"ppn": -1},
    {"master_port": 99999},
    {"mpi": "foo"},
    {"exports": (Export("RANK", "-x", "0"),)},
    {"python": "python3"},
    {"setup": f"{'../' * 20}opt/env.sh"},
    {"python": "3.11"},
    {"python": f"{'../' * 20}opt/venv/bin/python", "argv": ("train.py", "--lr", "1")},
    {"kind": "command", "argv": ("/bin/sh", "-c", "mpirun -n 4 python train.py")},
    {"kind": "command", "argv": ("torchrun", "train.py")},
    {"kind": "command", "argv": ("server", "{rank}", "--port={prt}")},
    *({"env": name} for name in ("", ".", "..", "a/b", "/etc", "a\nb", "a\n", "-x", "~", "a b", "ü", "x" * 65)),
    *({"tag": text} for text in ("a\nb", "x" * 81)),
    *(
        {"checkpoint": path}
        for path in ("/", "..", "../..", ".", "a//b", "//a", "a/../b", "a\nb", "~/x", ".ipexctl", "a/.ipexctl")
    ),
)
RANKS_OF_HOSTS = (
    (spec_of(n=7, ppn=2), "all"),
    (spec_of(n=3), "3"),
    (spec_of(ppn=2), "6-9"),
)
RANK_SETS = ("", "0,,2", "3-1", "2-", "0:3", "0..3", "-1", "0-4/0", "node1", "٣")
PATHS: tuple[tuple[str | None, list[str]], ...] = (
    ("/v/bin/python", [found(), ""]),
    ("/v/bin/python", ["python it does not exist\n", "python it does not exist\n"]),
    ("/v/bin/python", [found(), "python no such library\n"]),
    ("/v/bin/python", [found(), found(version="3.12.1")]),
    ("/v/bin/python", [found(), found(packages={})]),
    ("/v/bin/python", [found(version="3.6.8")]),
    (None, ["", "--data /d\n", "--data /d\n"]),
    (None, ["--data /d\n", "--data /d\n"]),
    (None, ["", "--no-sync /data/p/train.py\n"]),
    (None, [MPI, MPI.replace("5.0.11", "4.1.6")]),
    (None, [MPI, "--mpi /o/bin/mpirun\n"]),
)
SCRIPTS = (
    ("train", b"\x7fELF\x02\x01\0\0"),
    ("data.bin", b"abc\0def"),
    ("go.sh", b"#!/bin/sh\nls\n"),
    ("bin/go", b"#!/usr/bin/env -S bash -e\nls\n"),
    ("go.pl", b"#! /usr/bin/perl -w\n1;"),
    ("plain.sh", b"for each in 1 2; do echo $each; done\n"),
    ("a.ipynb", b'{"cells": []}'),
)
CHECKPOINTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "--resume_from_checkpoint True",
        ("out/checkpoint-30 out/checkpoint-9", "out/checkpoint-60", "out/checkpoint-60 out/checkpoint-30"),
    ),
    ("--resume", ("out/checkpoint-30", "")),
    ("--resume", ("checkpoint-30", "")),
    ("--resume", ("run/step_9", "run/step_30")),
    ("--resume --output_dir=b", ("a/checkpoint-1 b/checkpoint-1", "b/checkpoint-2")),
    ("--resume out/last.pt", ("=", "")),
    ("--resume out", ("= out/checkpoint-1", "= out/checkpoint-2")),
)
DOUBTFUL = (
    "sys.path.insert(0, 'lib')",
    "sys.path += ['lib']",
    "from sys import path",
    "site.addsitedir('lib')",
    "sys.modules['tqdm'] = None",
    "os.system('pip install tqdm')",
    "subprocess.run([sys.executable, '-m', 'pip', 'install', 'tqdm'])",
)


def refused(name: str, call: Callable[..., object], *arguments: Any) -> Case:
    with pytest.raises(StartError) as caught:
        call(*arguments)
    found = caught.value.failure
    return refused_case(name, Refusal(found.reason, found.fix, found.hosts, found.exit_code))


def between_hosts() -> list[Case]:
    back, there = (connection_checks.NodeResult(kind, "TEXT") for kind in ("back", "there"))
    answers = {
        "no connection back to node0": {"b": back, "c": back},
        "no connection from node0": {"b": OK, "c": there},
    }
    ways = connection_checks.evaluate_connectivity
    exposed = "exposed --python /srv/env/bin/python\t/srv/env belongs to uid 1000\x1b\n"
    of_others = {"n1": exposed + found(), "n2": found(), "n3": exposed + found()}
    data = {"n1": "", "n2": "--data /d a\n", "n3": "--data /d a\n"}
    here = (None, places.LocalPath("/d a", "/d a", "/d a"), places.LocalPath("/d a", "/p/d", "/home/me/d"))
    sets = (
        dict.fromkeys("abc", "argument /data/set\n"),
        {"a": "argument /data/a b\nargument ../b\n", "b": "argument /data/a b\n"},
    )
    more = ({"n1": "argument ../b\nargument of nobody\n"},)
    return [
        *(refused(f"connectivity: {name}", ways, "a", ADDRESSES, answer) for name, answer in answers.items()),
        *(refused("paths", evaluate, dict(zip("abc", said, strict=False)), python) for python, said in PATHS),
        *(refused("data", evaluate, data, None, {"/d a": local} if local else {}) for local in here),
        *(Case("an argument", *evaluate(said, None).notes) for said in (*sets, *more)),
        Case("a path of others", *evaluate(of_others, "/srv/env/bin/python").notes),
    ]


def request_with(**more: Any) -> RunSpec:
    return spec_of(**{"kind": "script", "argv": ("train.py",), **more})


def not_resumed(*snapshots: Any, **spec: Any) -> Case:
    asked = changed(resumed.SPEC, **spec)
    found = resumed_spec(asked, resumed.RECORD, dict(zip(("n1", "n2", "n3"), snapshots, strict=True)), ())
    assert isinstance(found, Refusal)
    return refused_case("run --resume", found)


def calls() -> list[Case]:
    hosts = [Host(name, name) for name in ADDRESSES]
    busy, free, gone = resumed.BUSY, resumed.FREE, resumed.GONE
    in_job = resumed.RECORD.plan._replace(job="12")
    old: dict[str, dict[str, Any]] = {
        "with a script": {},
        "of a job": {"source": in_job},
        "without words": {"typed": NOT_TYPED},
        "elsewhere": {"typed": TypedCall(directory="/a b")},
    }
    script = TypedWords(options=(("--lr", "1"),), positional=("train.py",))
    option, in_shell = TypedWords(options=(("--lr", "1"),)), RunOptions("command", ("sh", "-c", "train"))
    return [
        *(refusal("run request", check_request, request_with(**each).asked) for each in REQUESTS),
        *(
            refusal("ranks of these hosts", refuse_bad_rank_counts, spec.asked, hosts, parse_ranks(text))
            for spec, text in RANKS_OF_HOSTS
        ),
        *(refusal(f"--ranks {text!r}", parse_ranks, text) for text in RANK_SETS),
        refusal("--ranks 8-9 of 4", parse_ranks("8-9").within, 4),
        *(not_resumed(*snapshots) for snapshots in ((busy, free, busy), (gone, busy, free), (gone, gone, gone))),
        not_resumed(gone, free, free, min_hosts=3),
        *(
            refusal(
                f"run --resume {name}",
                refuse_typed,
                replace(resumed.RECORD, **each),
                "/project",
                TypedWords() if each else script,
                frozenset(),
            )
            for name, each in old.items()
        ),
        refusal("run --resume with a module", refuse_typed, resumed.RECORD, "/project", option, frozenset(("module",))),
        refusal(
            "run --resume with a line of a shell",
            refuse_typed,
            replace(resumed.RECORD, source=resumed.RECORD.plan._replace(asked=in_shell)),
            "/project",
            option,
            frozenset(),
        ),
    ]


def of_scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Case]:
    cases = [refusal(f"script {name}", read_script, name, data) for name, data in SCRIPTS]
    for line in DOUBTFUL:
        script = read_script("train.py", f"import os, sys, site, subprocess\n{line}\nimport tqdm\n".encode())[0]
        cases.append(Case(f"doubt: {line}", script.doubt))
    lacking = scripts.needs("tqdm", "yaml", install=read_command("ipexctl install --torch 2.13"))
    both = {"n1": ["tqdm", "yaml"], "n2": ["tqdm", "yaml"]}
    cases += [
        refused("modules: one host", check_imports, lacking, {"n1": [], "n3": ["tqdm"]}),
        refused("modules: two", check_imports, scripts.needs("tqdm", "yaml"), both),
        Case("modules: doubt", str(check_imports(scripts.needs("tqdm", doubt="DOUBT"), {"a": ["tqdm"]}))),
    ]
    for wanted in (
        scripts.needs("intel_extension_for_pytorch"),
        scripts.needs("cv2", own=False, install=read_command("ipexctl exec -- /opt/py -m pip install")),
    ):
        cases.append(refused("modules: another fix", check_imports, wanted, {"a": [wanted.imports[0].module]}))
    fault = {"kind": "SyntaxError", "what": "WHAT", "line": 2, "column": 7, "python": "3.11"}
    cases.append(refusal("syntax", raise_syntax_error, ScriptFile("train.py", "x = 1\ndef f(:\n"), Reply(fault)))
    hosts = [Host(name, name) for name in "ab"]
    answers = [HostFacts(hosts[0], "ok", facts=healthy())]
    for own_fix in ("", "OWN"):
        lost = HostFacts(hosts[1], "failed", "REASON", own_fix)
        cases.append(refused("a host without facts", complete_facts, hosts, [*answers, lost]))
    cases.append(refused("no host with facts", complete_facts, hosts[1:], [HostFacts(hosts[1], "failed", "REASON")]))
    homes = [
        HostFacts(Host(name, name), "ok", facts=healthy()._replace(home=HomeDirectory(f"/h/{name}"))) for name in "cba"
    ]
    cases.append(refused("different homes", complete_facts, [Host(name, name) for name in "abc"], homes))
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


def of_resumes() -> list[Case]:
    return [
        *(Case(f"resumed with {words}", test_resume_note.note(words, *hosts)) for words, hosts in CHECKPOINTS),
    ]


def of_other_runs() -> list[Case]:
    since = time.mktime((2026, 11, 24, 9, 12, 0, 0, 0, -1))
    cores = {"node1": "0-3", "node2": "0-3"}
    running = OtherRun("train-1", "alice", "running", ("node1", "node2"), cores, {"node1": "0-1"}, since)
    starting = OtherRun("tune-2", "bob", "starting", ("node2",), {}, {}, since)
    apart = running._replace(shared_cores={}, cores={"node1": "3"})
    limited = running._replace(until=since + 3600)
    waiting = OtherRun("next-3", "carol", "waiting", ("node1",), {}, {}, since + 60, since + 660)
    return [
        *(
            Case(f"other runs: {name}", *notes_on(others, since + later))
            for name, others, later in (
                ("shared cores", [running], 60),
                ("none shared, another day", [apart], 90_000),
                ("one more", [running, running._replace(id="train-2")], 60),
                ("several", [starting, *(running._replace(id=f"train-{number}") for number in (1, 3, 4))], 60),
            )
        ),
        *(
            Case(f"other runs: {name}", failure.reason, failure.fix)
            for name, failure in (
                ("--exclusive", occupied(Obstacles((running,)), now=since)),
                ("--wait", occupied(Obstacles((starting,)), 30, now=since)),
                ("who is before, and for how long at most", occupied(Obstacles((limited, waiting)), now=since)),
                ("a call that is not seen", occupied(Obstacles(locked="node1"), now=since)),
            )
        ),
    ]


def test_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not (
        diff := golden_diff(
            "run",
            [
                *between_hosts(),
                *calls(),
                *of_scripts(tmp_path, monkeypatch),
                *of_silence(),
                *of_resumes(),
                *of_other_runs(),
            ],
        )
    ), diff
