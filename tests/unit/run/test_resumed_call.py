"""`run --resume`: the words of the new call, the runs it refuses, and the hosts and ranks that are left."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.main import get_command

from ipexctl.commands.app import app
from ipexctl.commands.resumed_arguments import TypedWords
from ipexctl.commands.run_command import merged, refuse_typed
from ipexctl.errors import UserError
from ipexctl.facts.live_runs import HostSnapshot, RunOnHost, RunsOnHost
from ipexctl.homes.registry import RunRegistry
from ipexctl.hosts.host import Host
from ipexctl.launch.spec import RunSpec
from ipexctl.node.common.fix import Fix
from ipexctl.node.files.kept_checkpoint import KeptCheckpoint
from ipexctl.option_declaration import CallOptions, TypedCall
from ipexctl.projects.script_file import ProjectLocation
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.fanout import Outcome
from ipexctl.remote.local import LocalSession
from ipexctl.remote.outcome import HostError, TimedOut, Unreachable
from ipexctl.remote.reply import Reply
from ipexctl.run.start.resume import keep_checkpoint, lost_checkpoint, resumed_spec
from ipexctl.run.start.start_request import StartError
from message_data import missing
from plan_helpers import changed, spec_of
from record_helpers import run_record

HOSTS = tuple(Host(f"n{number}", f"n{number}") for number in (1, 2, 3))
RECORD = run_record(
    "train-1",
    HOSTS[0],
    "/h",
    "python3",
    "train.py",
    world_size=6,
    hosts=("n1", "n2", "n3"),
    typed=TypedCall(directory="/project"),
)
SPEC = spec_of(
    *("script", ("train.py",)),
    hosts=HOSTS,
    project=ProjectLocation(Path("/project"), "", ("train.py",)),
    options=CallOptions(" -H hosts -l gpu"),
)
FREE = HostSnapshot(RunsOnHost(), "m")
BUSY = HostSnapshot(RunsOnHost((RunOnHost("train-1", 1000, "ann"),)), "m")
GONE = Unreachable("no route")


@pytest.mark.parametrize(
    ("snapshots", "spec", "typed", "hosts", "left"),
    [
        ((FREE, FREE, FREE), {"n": 6}, (), "n1 n2 n3", {"n": 6}),
        ((GONE, FREE, FREE), {"n": 6}, (), "n2 n3", {"n": 4}),
        ((GONE, FREE, FREE), {"n": 6}, ("n",), "n2 n3", {"n": 6}),
        ((GONE, FREE, FREE), {"ppn": 2, "min_hosts": 2}, (), "n2 n3", {"ppn": 2, "n": None}),
        ((FREE, TimedOut("asleep"), GONE), {"n": 1}, (), "n1", {"n": 1}),
        ((FREE, HostError("no awk"), FREE), {}, (), "n1 n2 n3", {}),
    ],
)
def test_hosts_that_answer_have_as_many_ranks_as_before(
    snapshots: tuple[Any, ...], spec: dict[str, Any], typed: tuple[str, ...], hosts: str, left: dict[str, Any]
) -> None:
    asked = changed(SPEC, **spec)
    found = resumed_spec(asked, RECORD, dict(zip(("n1", "n2", "n3"), snapshots, strict=True)), typed)
    assert isinstance(found, RunSpec)
    assert " ".join(host.name for host in found.hosts) == hosts
    assert {name: getattr(found.asked, name) for name in left} == left
    assert found.asked.first_world_size == 6
    again = RECORD.plan._replace(first_world_size=9, asked=RECORD.plan.asked._replace(resumed=("train-0",)))
    assert resumed_spec(asked, replace(RECORD, source=again), dict.fromkeys(("n1", "n2", "n3"), FREE), ()) == changed(
        asked, first_world_size=9, resumed=("train-0", "train-1")
    )


def test_commands_to_type_leave_out_the_lost_hosts() -> None:
    found = resumed_spec(SPEC, RECORD, {"n1": GONE, "n2": FREE, "n3": FREE}, ())
    assert isinstance(found, RunSpec)
    assert found.options.apply(Fix("`ipexctl doctor`")) == "ipexctl doctor -H hosts -l 'gpu,!n1'"
    assert found.options.apply(RECORD.resume_command) == "ipexctl run --resume train-1"


def test_a_call_of_its_directory_can_be_begun_anew() -> None:
    refuse_typed(RECORD, "/project", TypedWords(), frozenset())


RECORDED = [("hostfile", ("-H", "old")), ("limit", ("-l", "a")), ("ppn", ("--ppn=2",)), ("module", ("-m", "train"))]


@pytest.mark.parametrize(
    ("typed", "options"),
    [
        ([], "-H old -l a --ppn=2 -m train"),
        ([("limit", ("-l", "b"))], "-H old -l a --ppn=2 -l b -m train"),
        ([("hosts", ("--hosts", "c"))], "--ppn=2 --hosts c -m train"),
        ([("ppn", ("--ppn", "1")), ("quiet", ("-q",))], "-H old -l a --ppn=2 --ppn 1 -q -m train"),
    ],
)
def test_typed_options_come_last_and_set_aside_their_alternatives(
    typed: list[tuple[str, tuple[str, ...]]], options: str
) -> None:
    assert " ".join(word for option in merged(RECORDED, typed) for word in option) == options


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--ppn 2 train.py --resume x --lr=1", "train.py --resume x --lr=1"),
        ("-q -n2 -m package.train -- --lr 1", "-- --lr 1"),
        ("-m train --lr 1 -n 2", "--lr 1 -n 2"),
        ("-m train", ""),
        ("--no-sync -- mpirun -n 4 python train.py", "mpirun -n 4 python train.py"),
    ],
)
def test_words_of_a_call_are_read_as_they_were_typed_also_from_a_run_that_was_resumed(
    line: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    commands: Any = get_command(app)
    above = commands.make_context("ipexctl", ["run", "train.py"])
    run = commands.get_command(above, "run")
    first = run.make_context("run", line.split(), parent=above)
    assert list(first.params["words"] or ()) == words.split()
    found = first
    for _ in range(2):
        RunRegistry().save(replace(RECORD, typed=found.obj["typed"]))
        found = run.make_context("run", ["--resume", "last", "--time-limit", "9"], parent=above)
        assert found.obj["dashes"] == first.obj["dashes"]
        assert found.obj["given"] == {"resume_run", "time_limit"}
        assert found.params == {**first.params, "resume_run": "last", "time_limit": 9.0}


def test_a_resumed_call_has_the_typed_arguments_and_so_has_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    commands: Any = get_command(app)
    above = commands.make_context("ipexctl", ["run", "train.py"])
    run = commands.get_command(above, "run")
    asked = RECORD.plan.asked._replace(argv=("train.py", "--steps", "20", "-n", "1"))
    typed = TypedCall(("--ppn", "2"), ("train.py", "--steps", "20", "-n", "1"), str(tmp_path))
    RunRegistry().save(replace(RECORD, typed=typed, source=RECORD.plan._replace(asked=asked)))
    line = "--ppn=1 --resume last --steps 40 -H hosts --plain -- -n 3"
    found = run.make_context("run", line.split(), parent=above)
    assert list(found.params["words"]) == ["train.py", "--steps", "40", "-n", "3"]
    assert (found.params["ppn"], found.params["plain"], found.params["n"]) == (1, True, None)
    assert found.obj["typed"].words == tuple(found.params["words"])
    assert missing(found.obj["changes"], "--steps 20 --steps 40 -n 3") == []
    with pytest.raises(UserError) as caught:
        run.make_context("run", ["--resume", "last", "--lr", "2", "--plain", "9"], parent=above)
    assert str(caught.value.fix) == "leave that out: ipexctl run --resume train-1 --lr 2"


@pytest.mark.parametrize(
    ("options", "anew"),
    [
        (("--ppn", "2", "-H", "hosts", "-lgpu"), "ipexctl run -H hosts -l 'gpu,!n1' --ppn 2 train.py 'a b'"),
        (("--hostfile=hosts", "--limit", "gpu", "-m"), "ipexctl run -H hosts -l 'gpu,!n1' -m train.py 'a b'"),
    ],
)
def test_a_lost_checkpoint_is_refused_with_the_line_that_starts_over(options: tuple[str, ...], anew: str) -> None:
    failure = lost_checkpoint("ck", "train-1", ["n2", "n3"], ["n1"], TypedCall(options, ("train.py", "a b")))
    assert (failure.exit_code, failure.hosts) == (2, ("n1",))
    assert missing(failure.reason, "train-1 ck n[2-3]") == []
    fix = SPEC.options.without(["n1"]).apply(failure.fix)
    assert fix == f"when n1 answers again: ipexctl run --resume train-1; to start over: {anew}"


@pytest.mark.parametrize(
    ("had", "written", "silent", "refused"),
    [
        (True, 0, (), True),
        (True, 40, (), True),
        (True, 999, (), False),
        (True, 0, ("n3",), True),
        (False, 0, (), False),
    ],
    ids=["nowhere", "half-written", "on a host", "a host that cannot say", "none before"],
)
def test_a_run_is_begun_anew_only_with_its_checkpoint(
    tmp_path: Path, had: bool, written: int, silent: tuple[str, ...], refused: bool
) -> None:
    registry = RunRegistry(tmp_path / "state")
    registry.save(RECORD)
    registry.directory.joinpath("train-1").mkdir(exist_ok=True)
    status = {"schema": "ipexctl.status/1", "id": "train-1", "state": "lost", "has_checkpoint": had}
    registry.directory.joinpath("train-1/status.json").write_text(json.dumps(status))
    (tmp_path / "work").mkdir()
    if written:
        with zipfile.ZipFile(tmp_path / "work/last.pt", "w") as archive:
            archive.writestr("step", "20" * 20)
        os.truncate(tmp_path / "work/last.pt", min(written, (tmp_path / "work/last.pt").stat().st_size))

    def each(nodes: Sequence[Host], ask: Callable[[Host, LocalSession], object]) -> Iterator[Outcome[Host, object]]:
        for node in nodes:
            error = GONE if node.name in silent else None
            yield Outcome(node, None if error else ask(node, LocalSession(node)), error)

    spec = changed(SPEC, checkpoint="last.pt", resumed=("train-1",))
    plan = RECORD.plan._replace(cwd=str(tmp_path / "work"), home=str(tmp_path / "home"))
    pool: Any = SimpleNamespace(each=each, cancel=Cancel())
    with pytest.raises(StartError) if refused else nullcontext() as caught:
        keep_checkpoint(spec, HOSTS[1:], plan, pool, registry)
    assert caught is None or caught.value.failure.hosts == (silent or ("n1",))


@pytest.mark.parametrize(
    ("runs", "asked_again", "words"),
    [
        (("train-1", "train-1"), "", "out/a.pt is there on n[2-3], and is kept"),
        (("train-1", ""), "", "is there on n2, and is kept"),
        (("other-2", "train-1"), "n2", "is there on n3 what other-2 wrote ipexctl fetch other-2:out/b.pt out/"),
        (("other-2", "other-2"), "", "out/a.pt on n[2-3] is no longer of run train-1 ipexctl run --resume other-2"),
        (("other-2", ""), "", "out/a.pt on n2 is no longer of run train-1 ipexctl run --resume other-2"),
        (("no;run", "train-1"), "n2", "out/a.pt on n2 is no longer of run train-1 ipexctl run --resume 'no;run'"),
    ],
)
def test_what_another_run_wrote_makes_way_only_where_a_host_has_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: tuple[str, str], asked_again: str, words: str
) -> None:
    registry, calls = RunRegistry(tmp_path), list[str]()
    has = dict(zip(("n2", "n3"), runs, strict=True))

    def call(session: LocalSession, *_: object, **__: object) -> Reply:
        host, request = session.host.name, _[2]
        assert isinstance(request, dict)
        calls.append(host)
        kept = KeptCheckpoint("/work/out/a.pt" if has[host] else "", has[host], 5.0)
        if request["keep"]["sets_aside"] and has[host] != "no;run":  # a host that answers the same for ever
            kept = KeptCheckpoint(replaced=f"{has[host]}:/work/out/b.pt")
        return Reply({"kept": kept._asdict()})

    def each(nodes: Sequence[Host], ask: Callable[[Host, LocalSession], object]) -> Iterator[Outcome[Host, object]]:
        return (Outcome(node, ask(node, LocalSession(node))) for node in nodes)

    monkeypatch.setattr("ipexctl.run.start.resume.call", call)
    pool: Any = SimpleNamespace(each=each, cancel=Cancel())
    spec = changed(SPEC, checkpoint="out", resumed=("train-1",))
    plan = RECORD.plan._replace(cwd="/work", home="/h")
    try:
        said: str = keep_checkpoint(spec, HOSTS[1:], plan, pool, registry)[0]
    except StartError as error:
        said = f"{error.failure.reason} {error.failure.fix}"
        assert error.failure.exit_code == 2
    assert missing(said, words) == []
    assert calls == ["n2", "n3", *filter(None, [asked_again])]
