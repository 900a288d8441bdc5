"""Refusals of a run: one message with the hosts it is about and the next command."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import pytest

from case_table import case_table
from ipexctl.errors import UserError
from ipexctl.facts.facts import Facts
from ipexctl.facts.network_facts import Address, Network, Nic
from ipexctl.facts.software import Env, Python, Software
from ipexctl.facts.system_facts import Security, System
from ipexctl.files.sent_manifest import Manifest
from ipexctl.hosts.host import Host
from ipexctl.launch.run_context import RankEnv, RunContext
from ipexctl.node.common.fix import Fix
from ipexctl.node.common.job import ConnectivityRecord
from ipexctl.node.common.run_options import RunOptions
from ipexctl.node.env.env_replies import EnvRecord
from ipexctl.node.files.manifest import EntryKind, ManifestEntry
from ipexctl.option_declaration import NO_OPTIONS, CallOptions
from ipexctl.projects.script_file import ProjectLocation
from ipexctl.remote.connector import OpenHosts
from ipexctl.remote.outcome import ignore_event
from ipexctl.remote.reply import MalformedReply
from ipexctl.run.ranks import parse_ranks
from ipexctl.run.start import connection_checks as ways
from ipexctl.run.start import path_checks as places
from ipexctl.run.start.context import existing_environment
from ipexctl.run.start.start_request import StartError, StartFailure, check_request, refuse_bad_rank_counts
from ipexctl.run.start.upload import check_synced_path, check_unsynced_path
from ipexctl.stack.env.record import SCHEMA
from ipexctl.stack.install_context import InstallContext, install_request
from ipexctl.stack.install_stack import _find_known as find_known
from ipexctl.stack.resolve.model import EnvRequest, Sources, StackRequest
from message_data import missing
from plan_helpers import changed, spec_of

ADDRESSES = {"a": "10.0.0.1", "b": "10.0.0.2", "c": "10.0.0.3"}
OK = ways.NodeResult("ok")


def found(**more: Any) -> str:
    said = {"version": "3.11.2", "prefix": "/v", "packages": {"torch": "2.13.0"}, "mpi": True, "libraries": ["/v/lib"]}
    return "found " + json.dumps({**said, "providers": [], **more}) + "\n"


def evaluate(
    output: Mapping[str, str], python: str | None, data: Mapping[str, places.LocalPath] | None = None
) -> places.CheckedPaths:
    """The result of what the script printed on each host; `data`: what this machine has of --data."""
    hosts = [Host(name, name) for name in output]
    found = {name: places.parse_paths(text) for name, text in output.items()}
    arguments = {path: places.LocalPath(path, path, path) for path in ("/data/a b", "/data/set")}
    arguments["../b"] = places.LocalPath("/home/me/.ipexctl/code/b", "/p/b", "/home/me/b")
    return places.evaluate_paths(found, python, hosts, data or {}, arguments)


@pytest.mark.parametrize(
    "malformed",
    [
        "found\n",
        "found {\n",
        "found []\n",
        "found {}\n",
        "found " + "[" * 100_000 + "\n",
        found(version=3),
        found(version="3"),
        found(version="3.x.1"),
        found(version="9" * 5000 + ".1.1"),
        found(prefix=None),
        found(packages=["torch"]),
        found(packages={"torch": 2}),
        found(mpi="yes"),
        found(providers="/x"),
        found(libraries=[1]),
    ],
)
def test_malformed_reply_about_python_is_an_error_of_the_host(malformed: str) -> None:
    with pytest.raises(MalformedReply):
        places.parse_paths(malformed)


def test_open_connections_are_no_failure() -> None:
    ways.evaluate_connectivity("a", ADDRESSES, {"b": OK, "c": OK})


RECORD = '{"key": "k", "checked": 100.5}'


@pytest.mark.parametrize(
    ("rest", "is_valid"),
    [
        (f"500.25 9.9\n{RECORD}\n", True),
        (f"50.0 9.9\n{RECORD}\n", False),  # of an earlier boot
        (f"\n{RECORD}", False),
        ("500.25 9.9\n", False),
        ('500.25 9.9\n{"key": 1, "checked": 100.5}', False),
        ('500.25 9.9\n{"key": "k", "checked": NaN}', False),
        ("500.25 9.9\n[1]", False),
    ],
)
def test_only_recent_valid_connectivity_records_are_used(rest: str, is_valid: bool) -> None:
    assert ways.parse_earlier_check(rest).passed == (ConnectivityRecord("k", 100.5) if is_valid else None)


@pytest.mark.parametrize(("pythons", "taken"), [("/a /b", "/b"), ("/a", "")])
def test_connections_of_a_plan_are_tried_by_a_python_that_the_hosts_have(pythons: str, taken: str) -> None:
    programs = {"a": tuple(pythons.split()), "b": ("/b", "/c")}
    facts = {
        name: Facts(software=Software(pythons=tuple(Python(path, "3.11.2") for path in found)))
        for name, found in programs.items()
    }
    context = RunContext(ON_HOSTS, facts, ADDRESSES, "/h", RankEnv("/h/envs/default/bin/python"))
    assert context.probe_python == context.env.python
    planned = replace(context, env=replace(context.env, is_installed=False))
    assert planned.probe_python == taken


HOSTS = [Host("a", "10.0.0.1"), Host("b", "10.0.0.2")]
ON_HOSTS = spec_of(hosts=tuple(HOSTS))


@pytest.mark.parametrize(("cut", "lacks"), [((), True), (("names",), True), (("programs",), False)])
def test_a_host_whose_probe_was_cut_off_does_not_lack_its_environment(cut: tuple[str, ...], lacks: bool) -> None:
    """Else a slow host would be offered an install."""
    facts = {"a": Facts(), "b": Facts(cut=cut)}
    with pytest.raises(StartError) as caught:
        existing_environment(HOSTS, "default", facts, "/h", ())
    failure = caught.value.failure
    assert (failure.hosts, failure.lacks_environment) == ((("a", "b"), True) if lacks else (("b",), False))


def record_text(name: str, packages: Mapping[str, str], *extras: str, row: str = "torch-2.13") -> str:
    made_for = EnvRequest(StackRequest(), extras).to_json()
    packages = {"torch": "2.13.0", **packages}
    return json.dumps(EnvRecord(SCHEMA, name, row, "3.11", "", "", packages, "gloo", (made_for,))._asdict())


MORE = record_text("more", {"rich": "13.7.0", "peft": "0.14"}, "rich", "peft>=0.14")
NUMPY = record_text("numpy", {"numpy": "2.0"}, "numpy")
LIST = {f"package{number}": "1.0" for number in range(85)}
LONG = record_text("long", LIST, *(f"{name}==1.0" for name in LIST))


@pytest.mark.parametrize(
    ("records", "differing", "line", "lacking"),
    [
        ([MORE, MORE, ""], "peft (0.14, none), rich (13.7.0, none)", "ipexctl install", {"c"}),
        (
            ["", "", MORE],
            "peft (0.14, none), rich (13.7.0, none)",
            "install --with rich --with 'peft>=0.14'",
            {"a", "b"},
        ),
        (
            [MORE, NUMPY, MORE],
            "numpy (none, 2.0), peft (0.14, none), rich (13.7.0, none)",
            "packages: ipexctl install --with numpy",
            {"b"},
        ),
        ([LONG, NUMPY, NUMPY], "package0", "packages: ipexctl run --install train.py -x", {"b", "c"}),
        ([MORE, MORE, record_text("old", {"torch": "2.8.0"}, row="torch-2.8")], "ranks of different stacks", "", {"c"}),
    ],
)
def test_packages_that_some_hosts_lack_are_named_with_the_install_that_gives_them(
    records: list[str], differing: str, line: str, lacking: set[str]
) -> None:
    facts = {}
    for name, text in zip("abc", records, strict=True):
        record = text or record_text("plain", {})
        env = Env(json.loads(record)["name"], "/e", runs=True, record=record, names=("default",))
        facts[name] = Facts(software=Software(envs=(env,)))
    with pytest.raises(StartError) as caught:
        existing_environment([*HOSTS, Host("c", "10.0.0.3")], "default", facts, "/h", ("train.py", "-x"))
    failure = caught.value.failure
    assert differing in failure.reason
    assert str(failure.fix).endswith(line)
    assert set(failure.hosts) == lacking
    if line and "run" not in line and lacking != {"b"}:  # there, the install makes a new environment of both
        words = [word for option, word in pairwise(shlex.split(line)) if option == "--with"]
        request = install_request(StackRequest(), words, (), Sources(), "default", {})
        context = InstallContext(OpenHosts((), Mock()), request, ignore_event)
        context.facts = facts
        known = find_known(context)
        assert known is not None
        assert (known.record.name, lacking | {*known.hosts}) == ("more", {"a", "b", "c"})


def test_connections_are_checked_again_after_any_change_of_a_host() -> None:
    hosts = HOSTS

    def key(python: str = "/env/bin/python", **changes: Any) -> str:
        nic = Nic("eth0", kind="ethernet", mac="02:00:00:00:00:01", addresses=(Address("10.0.0.2", 24),))
        of_b = Facts(**{"system": System(boot="1"), "network": Network(nics=(nic,)), **changes})
        facts = {"a": Facts(system=System(boot="1")), "b": of_b}
        context = RunContext(ON_HOSTS, facts, ADDRESSES, "/h", RankEnv(python))
        return ways.connectivity_key(hosts, context)

    assert key() == key() != ""
    changed = [
        key(python="/other/bin/python"),
        key(system=System(boot="2")),
        key(network=Network()),
        key(security=Security(firewall=("ufw",))),
    ]
    assert len({key(), *changed}) == len(changed) + 1
    assert key(system=System()) == ""


def test_python_equal_on_all_hosts_becomes_an_environment() -> None:
    env = evaluate({"a": found(), "b": found()}, "/v/bin/python").env
    assert env is not None
    assert (env.python, env.prefix, env.ccl, env.mpi_backend) == ("/v/bin/python", "/v", False, None)
    assert env.variables == {"PATH": "/v/bin", "I_MPI_ROOT": "/v", "LD_LIBRARY_PATH": "/v/lib"}
    assert set(env.prepended) == {"PATH", "LD_LIBRARY_PATH"}
    without = evaluate({"a": found(), "b": found(mpi=False)}, "/v/bin/python")
    assert without.env is not None
    assert "I_MPI_ROOT" not in without.env.variables


MPI = "mpi /o/bin/mpirun\tmpirun (Open MPI) 5.0.11|\n"


def test_no_requested_paths_give_an_empty_result() -> None:
    assert evaluate({"a": "", "b": ""}, None) == places.CheckedPaths()


def test_fix_repeats_the_host_options() -> None:
    said = StartFailure("REASON", Fix("`ipexctl install --env x`; `ipexctl ps`"))
    assert (
        said.with_call_options(CallOptions(" -H 'my hosts' -l a")).fix
        == "ipexctl install -H 'my hosts' -l a --env x; ipexctl ps -H 'my hosts'"
    )
    assert said.with_call_options(NO_OPTIONS).fix == said.fix


@case_table
def test_checkpoint_through_a_link_of_the_project_is_refused(
    tmp_path: Path, subdirectory: str, checkpoint: str, is_refused: bool
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "ckpt").symlink_to("../../../.aws")
    (tmp_path / "a/ckpt").symlink_to("../b")
    project = ProjectLocation(tmp_path, subdirectory, ("train.py",))
    spec = spec_of(checkpoint=checkpoint, checkpoint_is_found=True, project=project)
    rows = (("a", "d", ""), ("a/ckpt", "l", "../b"), ("ckpt", "l", "../../../.aws"), ("file", "f", "hash"))
    manifest = Manifest.of(
        ManifestEntry(path, cast("EntryKind", kind), 0o777, 0, content) for path, kind, content in rows
    )
    checks: tuple[Callable[[], None], ...] = (
        lambda: check_synced_path(spec, manifest),
        lambda: check_unsynced_path(spec),
    )
    for check in checks:
        if is_refused:
            with pytest.raises(UserError) as caught:
                check()
            assert missing(caught.value.message + caught.value.fix, f"{checkpoint} link --checkpoint /PATH") == []
        else:
            check()
    check_unsynced_path(changed(spec, checkpoint_is_found=False))


@pytest.mark.parametrize(
    "more",
    [
        *({"env": name} for name in ("default", "ipex-2.8-1a2b3c4d")),
        *({"checkpoint": path} for path in ("checkpoints/last.pt", "/scratch/me/last.pt", "../../last.pt")),
        {"checkpoint": "/home/me/.ipexctl/code/p/out"},
    ],
)
def test_valid_requests_are_accepted(more: dict[str, Any]) -> None:
    check_request(RunOptions(argv=("train.py",), **more))
    refuse_bad_rank_counts(RunOptions(), [Host(name, name) for name in ADDRESSES], parse_ranks("9"))


@case_table
def test_paths_that_a_script_may_read(arguments: str, paths: list[str]) -> None:
    assert list(places.data_arguments(arguments.split())) == paths


def test_relative_arguments_are_looked_for_where_a_sync_leaves_them_out(tmp_path: Path) -> None:
    for name in ("corpus/a.csv", "p/sub/data/b.csv", "p/sub/synced/c.csv"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    words = (
        "--data",
        "data/b.csv",
        "../../corpus",
        "--x=synced",
        "synced/c.csv",
        "absent",
        "absent.json",
        "--dataset_name=absent.csv",
        "--report=out.json",
        "x" * 300,
        ".",
        "..",
        str(tmp_path),
    )
    project = ProjectLocation(tmp_path / "p", "sub", ("train.py",))
    synced = Manifest.of([ManifestEntry("sub/synced/c.csv", "f", 0o644, 0, "")])
    spec = spec_of("script", ("train.py", *words), project=project)
    found = places.unsynced_arguments(spec, synced, "/h/me/.i/code/p")
    assert {word: local[:3] for word, local in found.items()} == {
        "data/b.csv": ("/h/me/.i/code/p/sub/data/b.csv", f"{tmp_path}/p/sub/data/b.csv", "/h/me/b.csv"),
        "../../corpus": ("/h/me/.i/code/corpus", f"{tmp_path}/corpus", "/h/me/corpus"),
        "absent.json": ("/h/me/.i/code/p/sub/absent.json", "", "/h/me/absent.json"),
    }


def test_an_argument_that_no_machine_has_is_noted_and_one_that_a_host_has_is_not() -> None:
    nowhere = {path: places.LocalPath(path, "", path) for path in ("/data/gone", "/data/there")}
    output = {"node1": "argument /data/gone\nargument /data/there\n", "node2": "argument /data/gone\n"}
    found = {name: places.parse_paths(text) for name, text in output.items()}
    (note,) = places.evaluate_paths(found, None, (), {}, nowhere).notes
    assert note.startswith("/data/gone, an argument of the script, is on no host, nor here")
