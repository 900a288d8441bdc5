"""Launch: one job file for each store, no secret in a command line, nothing left of a run that does not start."""

from __future__ import annotations

import gc
import io
import json
import tarfile
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import Mock

import pytest

from agent_helpers import follow_request
from fakes import FakeSession, Sink
from ipexctl.homes.prune_runs import RetentionLimits
from ipexctl.homes.registry import RunRecord
from ipexctl.hosts.host import Host
from ipexctl.launch.run_context import RankEnv, RunContext
from ipexctl.node.common.job import Start, read_job
from ipexctl.node.common.json_records import decode
from ipexctl.node.common.plan import OtherRun, Plan, read_plan
from ipexctl.node.common.rank_options import Choice
from ipexctl.node.common.records import RankStatus, RunStatus
from ipexctl.node.run.rank import rank_hooks
from ipexctl.projects.script_file import ProjectLocation
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.connector import ConnectOptions, SessionPool
from ipexctl.remote.fanout import fan_out
from ipexctl.remote.outcome import Unreachable
from ipexctl.remote.session import CommandEnd, Session
from ipexctl.run.start import pipeline, run_start
from ipexctl.run.start.begin import Launch, hosts_with_job_files, in_rank_files
from ipexctl.run.start.run_start import RunStart
from ipexctl.run.start.start_request import StartError, StartFailure
from ipexctl.run.start.watcher import StartWatcher
from plan_helpers import changed, small_plan, spec_of
from record_helpers import run_record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from ipexctl.remote.command import Command
    from ipexctl.remote.connector import Connector
    from ipexctl.remote.fanout import Outcome
    from ipexctl.remote.session import Readable

HOSTS = (Host("a", "a"), Host("b", "b"))
REQUEST = spec_of()


SECRETS = {"TOKEN": "s3cr3t"}


@dataclass
class FakeNode(FakeSession):
    """Unpacks the files it gets, and answers as the supervisor does."""

    lost: bool = False
    is_full: bool = False
    first_event: str = "listening"
    after_go: str = ""
    """State of the record after the connection was lost at the start; `nothing` if it stays lost."""
    files: dict[str, bytes] = field(default_factory=dict)
    modes: dict[str, int] = field(default_factory=dict)
    go: dict[str, Any] = field(default_factory=dict)
    followed: Any = None
    starter: dict[str, Any] = field(default_factory=dict)
    """The request to the host's starter."""

    def answer(self, command: Command, sink: Sink, stdin: Readable | None) -> CommandEnd:
        if self.lost:
            raise Unreachable("the connection was lost")
        if "run.supervisor" in command.script:
            assert stdin is not None
            size = int(command.script.rpartition("head -c ")[2].split()[0])
            came = stdin.read()
            self._unpack(came[:size])
            self.files["request"] = came[size:]
            sink("stdout", json.dumps({"event": self.first_event}).encode() + b"\n")
            if self.first_event != "listening":
                return CommandEnd(1)
            line = stdin.read()
            if not line:
                return CommandEnd(1)
            self.go = json.loads(line)
            if self.after_go:
                self.lost = self.after_go == "nothing"
                raise Unreachable("the connection was lost")
            sink("stdout", b'{"event": "started", "pid": 7, "master_port": 29999}\n')
            self.followed = json.loads(stdin.read() or b"null")
            sink("stdout", b'{"event": "done", "status": {"state": "ok"}}\n')
        elif "run.host_starter" in command.script:
            assert stdin is not None
            size = int(command.script.partition("head -c ")[2].split()[0]) if "head -c " in command.script else 0
            came = stdin.read()
            if size:
                self._unpack(came[:size])
            self.starter = json.loads(came[size:])
            sink("stdout", b'{"event": "done", "pid": 8}\n')
        elif command.label == "look for the record":
            return CommandEnd(0 if self.after_go in ("stopped", "running", "malformed") else 1)
        elif command.label == "stop the run":
            status = [] if self.after_go == "malformed" else {"state": self.after_go}
            answer = {"event": "done", "status": status, "was": "running"}
            sink("stdout", json.dumps(answer).encode() + b"\n")
        elif "tar -x" in command.script:
            assert stdin is not None
            if self.is_full:
                sink("stderr", b"tar: No space left on device\n")
                return CommandEnd(2)
            self._unpack(stdin.read())
        return CommandEnd(0)

    def _unpack(self, packed: bytes) -> None:
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            for node in archive:
                content = archive.extractfile(node)
                assert content is not None
                self.files[node.name] = content.read()
                self.modes[node.name] = node.mode


class FakeSessionPool:
    def __init__(self, **more: Any) -> None:
        self.cancel = Cancel()
        self.nodes = {host.name: FakeNode(host, **more.get(host.name, {})) for host in HOSTS}

    def session(self, host: Host) -> FakeNode:
        return self.nodes[host.name]

    def forget(self, host: Host) -> None: ...

    def each(self, hosts: Sequence[Host], work: Callable[[Host, Session], Any]) -> Iterator[Outcome[Host, Any]]:
        return fan_out(hosts, lambda host: work(host, self.session(host)), forks=2, cancel=self.cancel)


def begin(pool: FakeSessionPool, retention: RetentionLimits | None = None, **fields: Any) -> StartFailure | None:
    plan = plan_of(**fields)
    launch = launch_on(pool, plan, retention)
    try:
        launch.upload_jobs(plan, SECRETS)
        launch.start_launcher(None)
    except StartError as error:
        launch.abandon()
        return error.failure
    return None


def plan_of(of_ranks: str = "ab", **fields: Any) -> Plan:
    return small_plan(of_ranks, **{"node0": "a", "home": "/h o", "stores": {"a": "of a", "b": "of b"}, **fields})


def launch_on(pool: FakeSessionPool, plan: Plan, retention: RetentionLimits | None = None) -> Launch:
    record = RunRecord("r", HOSTS[0], "/h o", "/e/bin/python", plan, nodes=HOSTS)
    launch = Launch(record, pool, retention)  # type: ignore[arg-type]
    launch.start_supervisor()
    return launch


def started(pool: FakeSessionPool) -> Start:
    return decode(Start, pool.nodes["a"].go, "the request")


def test_every_store_gets_its_job_and_the_token_by_stdin() -> None:
    pool = FakeSessionPool()
    assert begin(pool) is None
    own, job = started(pool).job, read_job(json.loads(pool.nodes["b"].files["job.json"]))
    assert (own.here, job.here, job.secrets) == ((), ("b",), SECRETS), "the supervisor says what is node0's"
    token = own.token
    assert token == job.token == json.loads(pool.nodes["a"].files["request"])["token"]
    assert len(token) == 64
    for node in pool.nodes.values():
        assert set(node.modes.values()) == {0o600}
        assert not any("s3cr3t" in script or token in script for script in node.commands)
    text = pool.nodes["b"].files["plan.json"].decode()
    assert started(pool).plan == read_plan(json.loads(text)) == plan_of()
    assert token not in text
    assert "s3cr3t" not in text


@pytest.mark.parametrize(
    ("uses", "is_sent"),
    [
        ({"asked": {"meter": False}, "of_ranks": "a"}, False),
        ({"asked": {"meter": True}, "of_ranks": "a"}, True),
        ({"asked": {"meter": False}}, True),
        ({"asked": {"meter": False}, "of_ranks": "a", "rank_options": {"wire": Choice("bf16", "asked")}}, True),
    ],
)
def test_the_package_of_a_rank_is_sent_only_if_the_run_uses_it(
    uses: dict[str, Any], is_sent: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("__init__.py", "other.py", "notes.txt"):
        (tmp_path / name).write_text(name)
    monkeypatch.setattr("ipexctl.run.start.begin._IN_RANK_SOURCE", tmp_path)
    pool = FakeSessionPool()
    assert begin(pool, **uses) is None
    names = ("__init__.py", "other.py") if is_sent else ()
    expected = {f"hooks/ipexctl_inrank/{name}": name.encode() for name in names}
    nodes = [node for node in pool.nodes.values() if node.files]
    assert len(nodes) == len(uses.get("of_ranks", "ab"))
    for node in nodes:
        assert {name: content for name, content in node.files.items() if "inrank" in name} == expected
        (upload,) = [script for script in node.commands if "hooks/__pycache__" in script and "tar -x" in script]
        assert ("hooks/ipexctl_inrank/__pycache__" in upload) == is_sent, "bytecode of ranks is private"


def test_the_package_of_a_rank_is_the_one_that_the_hooks_import() -> None:
    names = {file.name for file in in_rank_files()}
    assert {f"hooks/{rank_hooks.PACKAGE}/{name}.py" for name in ("__init__", "ddp", "channel", "meter")} <= names
    assert all(name.endswith(".py") for name in names)


@pytest.mark.parametrize("of_ranks", ["ab", "b"])
def test_hosts_of_one_store_get_its_files_once(of_ranks: str) -> None:
    pool = FakeSessionPool()
    begin(pool, stores={"a": "one", "b": "one"}, of_ranks=of_ranks)
    assert [rank.host for rank in started(pool).plan.ranks] == list(of_ranks)
    assert pool.nodes["b"].files == {}


@pytest.mark.parametrize(("fault", "code"), [("lost", 3), ("is_full", 1)])
def test_a_host_without_the_job_prevents_the_start_and_uploaded_files_are_removed(fault: str, code: int) -> None:
    pool = FakeSessionPool(b={fault: True})
    failure = begin(pool)
    assert failure is not None
    assert (failure.hosts, failure.exit_code) == (("b",), code)
    assert pool.nodes["a"].go == {}
    assert any("rm -rf '/h o/runs/r'" in script for script in pool.nodes["a"].commands)


@pytest.mark.parametrize(
    ("after", "is_unsure"),
    [("nothing", True), ("running", True), ("malformed", True), ("stopped", False), ("never", False)],
)
def test_a_run_that_may_have_started_is_stopped_or_reported_as_unsure(
    after: str, is_unsure: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ipexctl.run.start.begin.START_CONFIRMED", 0.1)
    failure = begin(FakeSessionPool(a={"after_go": after}))
    assert failure is not None
    assert failure.is_unsure == is_unsure


def test_older_runs_are_pruned_in_the_round_trip_that_uploads_the_agent() -> None:
    pool = FakeSessionPool()
    begin(pool, retention=RetentionLimits(days=7))
    for name in "ab":
        (upload,) = [script for script in pool.nodes[name].commands if "run.retention" in script]
        assert "tar -x" in upload
        assert '"days": 7' in upload
        assert "agent.zip" in pool.nodes[name].files
    assert len(pool.nodes["b"].commands) == 2


@pytest.mark.parametrize(("stores", "leads"), [({"a": "of a", "b": "of b"}, True), ({"a": "one", "b": "one"}, False)])
def test_a_starter_begins_in_the_round_trip_that_uploads_the_job(stores: dict[str, str], leads: bool) -> None:
    """The agent is there before: it is uploaded while the project is compared."""
    pool, plan = FakeSessionPool(), plan_of(has_starters=True, stores=stores)
    launch, node = launch_on(pool, plan), pool.nodes["b"]
    until = time.monotonic() + 10
    while leads and "agent.zip" not in node.files and time.monotonic() < until:
        time.sleep(0.01)
    uploaded = set(node.files)
    launch.upload_jobs(plan, SECRETS)
    launch.start_launcher(None)
    assert ("agent.zip" in uploaded, "job.json" in uploaded) == (leads, False)
    assert {"plan.json", "job.json"} & node.files.keys() == ({"plan.json", "job.json"} if leads else set())
    assert node.starter["host"] == "b"
    assert len(node.commands) == 1 + leads
    assert not any(node.starter["contact"]["token"] in script for script in node.commands)


def test_an_abandoned_launch_names_the_hosts_that_still_have_its_files() -> None:
    pool = FakeSessionPool()
    launch = launch_on(pool, plan_of())
    launch.upload_jobs(plan_of(), SECRETS)
    pool.nodes["b"].lost = True
    assert launch.abandon() == {"b"}
    pool.nodes["b"].lost = False
    assert launch.abandon() == frozenset()


def test_an_abandoned_launch_leaves_nothing_even_when_the_command_was_cancelled() -> None:
    pool = FakeSessionPool()
    launch = launch_on(pool, plan_of())
    launch.upload_jobs(plan_of(), SECRETS)
    pool.cancel.throw()
    launch.abandon()
    assert pool.nodes["a"].go == {}
    for node in pool.nodes.values():
        assert any("rm -rf '/h o/runs/r'" in script for script in node.commands)


def test_a_supervisor_that_answers_nonsense_is_a_failure_of_node0() -> None:
    failure = begin(FakeSessionPool(a={"first_event": "nonsense"}))
    assert failure is not None
    assert failure.hosts == ("a",)


def test_the_call_that_has_started_the_run_follows_it() -> None:
    pool = FakeSessionPool()
    launch = launch_on(pool, plan_of())
    launch.upload_jobs(plan_of(), SECRETS)
    launch.start_launcher(None)
    pool.cancel.throw()  # the run continues
    request = follow_request("/h", "r")
    reply = launch.follow(request, lambda _: None, Cancel())
    assert reply.record("status").text("state") == "ok"
    assert pool.nodes["a"].followed == request


def test_the_supervisor_gets_a_scope_if_logind_ends_processes() -> None:
    pool = FakeSessionPool()
    assert begin(pool, ends_at_logout=("a",)) is None
    assert any("systemd-run --user --scope" in script for script in pool.nodes["a"].commands)


@pytest.mark.parametrize(
    ("state", "restarts", "wrappers", "hosts"),
    [
        ("failed", 0, {"a": 7, "b": 8}, set()),
        ("failed", 0, {"a": 7, "b": None}, {"b"}),
        ("failed", 1, {"a": 7, "b": 8}, {"b"}),
        ("stopped", 0, {"a": 7, "b": 8}, set()),
        ("stopped", 1, {"a": 7, "b": 8}, {"a", "b"}),
    ],
)
def test_after_a_run_only_hosts_that_may_still_have_its_job_file_are_contacted(
    state: Any, restarts: int, wrappers: dict[str, int | None], hosts: set[str]
) -> None:
    """A host that was cut off during the run would take the whole connect timeout."""
    record = run_record("r", HOSTS[0], "/h", "python3", hosts=("a", "b"))
    ranks = (RankStatus(0, "a", "failed", wrapper=wrappers["a"]), RankStatus(1, "b", "lost", wrapper=wrappers["b"]))
    assert hosts_with_job_files(record, RunStatus("r", state, restarts=restarts, ranks=ranks)) == hosts
    assert hosts_with_job_files(record, None) == {"a", "b"}


def test_a_start_that_fails_waits_for_its_checks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ended: list[str] = []

    def check(*_: object) -> None:
        time.sleep(0.2)
        ended.append("checks")

    def fail(*_: object) -> None:
        raise StartError(StartFailure("no"))

    fakes: dict[str, Callable[..., object]] = {
        "ProjectUpload": lambda *_: Mock(release=frozenset),
        "gather_context": lambda *_, **__: RunContext(replace(REQUEST, hosts=HOSTS), {}, {}, "/h", RankEnv("python3")),
        "make_plan": lambda *_: Mock(other_runs=(), hosts=(), names=()),
        "_preflight": check,
        "new_record": fail,
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(pipeline if hasattr(pipeline, name) else run_start, name, fake)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    spec = replace(REQUEST, hosts=HOSTS, project=ProjectLocation(tmp_path, "", ("train.py",)))
    assert isinstance(pipeline.start_run(RunStart(spec, Mock(), StartWatcher())), StartFailure)
    assert ended == ["checks"]


@pytest.mark.parametrize(("host", "failure", "waits"), [("b", "went on", 1), ("c", "c is not free", 0)])
def test_a_run_that_began_after_the_locks_is_waited_for(
    host: str, failure: str, waits: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It is refused only on a host without lock: the wait could never end there."""
    others = [OtherRun("other-1", "alice", "running", (host,), {}, {}, None, None)]
    locks = Mock(hosts=HOSTS, hiding=(), has_waited=False)
    locks.wait_until_free.side_effect = others.clear
    read = Mock(return_value=Mock(release=frozenset))

    def went_on(*_: object) -> None:
        raise StartError(StartFailure("went on"))

    fakes: dict[str, Callable[..., object]] = {
        "ProjectUpload": read,
        "gather_context": lambda *_, **__: RunContext(replace(REQUEST, hosts=HOSTS), {}, {}, "/h", RankEnv("python3")),
        "make_plan": lambda *_: Mock(other_runs=tuple(others), hosts=(), names=()),
        "lock_hosts": lambda *_: locks,
        "_preflight": lambda *_: None,
        "new_record": went_on,
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(pipeline if hasattr(pipeline, name) else run_start, name, fake)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    project = ProjectLocation(tmp_path, "", ("train.py",))
    spec = changed(REQUEST, hosts=HOSTS, project=project, wait=60.0)
    result = pipeline.start_run(RunStart(spec, Mock(), StartWatcher()))
    assert isinstance(result, StartFailure)
    assert failure in result.reason
    assert locks.wait_until_free.call_count == waits
    assert read.call_count == 1 + waits, "the project may have changed since"
    assert locks.release.called


def test_a_host_without_facts_does_not_cancel_the_pool() -> None:
    """A playbook goes on after a run that could not be started."""

    class FakeConnector:
        options = ConnectOptions()

        def open(self, host: Host, _: Cancel) -> Session:
            time.sleep(0.2 * (host is HOSTS[1]))
            raise Unreachable("no route to host")

    pool = SessionPool(cast("Connector", FakeConnector()), Cancel(), forks=2)
    with pytest.raises(StartError) as caught:
        RunStart(replace(REQUEST, hosts=HOSTS), pool, StartWatcher()).gather_context()
    assert caught.value.failure.hosts == ("a", "b")
    del caught
    gc.collect()
    assert not pool.cancel.thrown


def test_a_note_is_shown_once_for_a_call_until_it_is_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    def start(*notes: str, argv: tuple[str, ...] = ("train.py",)) -> list[str]:
        shown, watcher = list[str](), StartWatcher()
        monkeypatch.setattr(watcher, "on_note", shown.append)
        spec = spec_of(argv=argv, project=ProjectLocation(tmp_path, ".", argv))
        begun = RunStart(spec, Mock(), watcher)
        keep = begun.notes.remember()
        for note in notes:
            begun.notes.show(note)
        keep()
        return shown

    assert start("a", "b", "a") == ["a", "b"]
    assert start("a", "b") == []
    assert start("a", "c") == ["c"]
    assert start("a", argv=("train.py", "--lr", "1")) == ["a"]
    assert start("a", "b", "c") == ["b"], "what came back is new"
    assert start() == []


def test_the_run_is_named_in_what_ranks_execute_and_in_its_checkpoint(tmp_path: Path) -> None:
    words = ("train.py", "--output_dir", "out/{run}")
    project = ProjectLocation(tmp_path, ".", words)
    start = RunStart(
        spec_of(project=project, argv=words, checkpoint="out/{run}"), cast("Any", None), Mock(StartWatcher)
    )
    with start.named("train-1"):
        assert start.spec.project.command == ("train.py", "--output_dir", "out/train-1")
        assert start.spec.asked.checkpoint == "out/train-1"
        assert start.spec.asked.argv == words, "printed commands repeat what was typed"
    with start.named("train-2"):
        assert start.spec.asked.checkpoint == "out/train-2", "another start has another id"
    start.spec = replace(start.spec, asked=start.spec.asked._replace(resumed=("train-1", "train-2")))
    with start.named("train-3"):
        assert start.spec.project.command[-1] == start.spec.asked.checkpoint == "out/train-1"
    start.spec = replace(start.spec, asked=start.spec.asked._replace(is_behind_dashes=True))
    with start.named("train-3"):
        assert start.spec.project.command == words, "each rank replaces it beside the others"
