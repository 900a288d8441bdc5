"""The scripts that write a tree on a host, executed on this machine."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from sync_helpers import LOCAL_HOST, LocalConnector, Place, contents, put

from agent_helpers import agent_argv, all_pythons
from ipexctl.errors import UserError
from ipexctl.files import file_transfer
from ipexctl.files.routes import Distributor
from ipexctl.files.stream import stream_entries
from ipexctl.hosts.host import Host
from ipexctl.node.common.answer import AgentError
from ipexctl.node.common.guarded_directory import GuardedDirectory
from ipexctl.node.files.place import StagedFiles
from ipexctl.remote.cancel import Cancel, Deadline
from ipexctl.remote.connector import OpenHosts, SessionPool
from ipexctl.remote.outcome import Cancelled, HostError
from ipexctl.remote.reply import MalformedReply, Reply
from ipexctl.sync import project_sync
from ipexctl.sync.node_calls import TreeCall, TreeCallOptions
from ipexctl.sync.project import read_project
from ipexctl.sync.project_sync import make_sync_plan

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from ipexctl.node.files.call_replies import TreesReply
    from ipexctl.node.files.call_requests import TreeRequest
    from ipexctl.sync.project_sync import SyncPlan

pytest_plugins = ["sync_fixtures"]


def test_unchanged_tree_takes_one_query_and_reads_no_file(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ipexctl.sync.project.RACY_NS", 300_000_000)
    for index in range(20):
        old = put(place.root, f"d{index}/f.py", str(index))
        os.utime(old, (1e9, 1e9))
    place.sync()
    time.sleep(0.4)  # so that the ctime of the files is old enough to be trusted
    place.sync()
    done = place.synced()
    assert (done.status, done.sent_bytes) == ("ok", 0)
    assert place.ran == ["sync the tree"]
    monkeypatch.delattr("ipexctl.sync.project.sha256_of_open")
    read_project(place.root)


@pytest.mark.core
def test_only_missing_content_is_sent(place: Place) -> None:
    put(place.root, "big", "b" * 300_000)
    put(place.root, "small", "s")
    place.sync()
    put(place.root, "small", "t")
    done = place.synced()
    assert place.ran == ["sync the tree"]
    assert (done.files_sent, done.sent_bytes < 2000) == (1, True)
    (place.root / "big").rename(place.root / "renamed")
    done = place.synced()
    assert (done.files_sent, done.files_deleted, done.sent_bytes < 2000) == (1, 1, True)
    assert place.there() == contents(place.root)


def test_without_the_cache_the_host_is_queried_for_its_content(place: Place, tmp_path: Path) -> None:
    put(place.root, "a", "a" * 300_000)
    put(place.root, "b", "1")
    place.sync()
    shutil.rmtree(tmp_path / "cache")
    put(place.root, "b", "2")
    assert place.synced().sent_bytes < 3000
    assert place.ran == ["sync the tree"]
    assert place.there() == contents(place.root)


def test_host_with_an_older_tree_gets_all_missing_files(place: Place) -> None:
    put(place.root, "a", "a" * 300_000)
    put(place.root, "b", "1")
    other = Place(place.root, place.home.with_name("other-home"))
    other.sync()
    place.sync()
    put(place.root, "a", "b" * 300_000)
    place.sync()
    put(place.root, "b", "2")
    assert other.synced().files_sent == 2
    assert other.there() == contents(place.root)


def test_fifos_are_left_out_with_a_note(place: Place) -> None:
    put(place.root, "a")
    os.mkfifo(place.root / "pipe")
    report = place.sync()
    assert set(place.there()) == {"a"}
    assert any("pipe" in note for note in report.notes)


names = st.binary(min_size=1, max_size=12).filter(lambda name: b"/" not in name and b"\0" not in name)
left_out = (b".", b"..", b".git", b".ipexctl", b".gitignore", b".hg", b".svn", b"pyvenv.cfg", b"conda-meta")
safe = names.filter(
    lambda name: name not in left_out and not name.endswith((b"__", b"cache", b".pyc", b"_checkpoints"))
)
trees = st.dictionaries(st.lists(safe, min_size=1, max_size=3).map(b"/".join), st.binary(max_size=30), max_size=24)


@settings(max_examples=4, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(trees, trees)
def test_any_file_names_and_changes_are_synced(
    tmp_path_factory: pytest.TempPathFactory, first: dict[bytes, bytes], second: dict[bytes, bytes]
) -> None:
    top = tmp_path_factory.mktemp("any")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(top / "cache"))
        place = Place(top / "project", top / "home")
        for tree in (first, second):
            shutil.rmtree(place.root, ignore_errors=True)
            place.root.mkdir()
            for path, data in tree.items():
                where = os.path.join(os.fsencode(place.root), path)
                with contextlib.suppress(OSError):
                    os.makedirs(os.path.dirname(where), exist_ok=True)
                    with open(where, "xb") as file:
                        file.write(data)
            place.sync()
            shown = ["diff", "-r", "--no-dereference", "--exclude=.ipexctl", str(place.root), str(place.tree)]
            subprocess.run(shown, check=True)


def test_hosts_with_a_shared_home_are_synced_once(place: Place) -> None:
    put(place.root, "a", "1")
    report = place.sync(hosts=(LOCAL_HOST, Host("there", "localhost")))
    assert [done.status for done in report.hosts] == ["changed", "changed"]
    assert sum("shares the home" in done.reason for done in report.hosts) == 1
    assert place.ran == ["sync the tree"] * 3, "the other host is asked again"
    assert [done.status for done in place.sync(hosts=(LOCAL_HOST, Host("there", "localhost"))).hosts] == ["ok", "ok"]
    put(place.root, "a", "2")
    report = place.sync(hosts=(LOCAL_HOST, Host("there", "localhost")))
    assert [done.status for done in report.hosts] == ["changed", "changed"]
    assert sorted(done.files_sent for done in report.hosts) == [0, 1]
    assert place.there() == {"a": "2"}


def test_host_that_is_lost_while_another_one_changes_the_shared_home_is_not_sent_to(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    queried: list[int] = []
    query = project_sync.ProjectSync._query

    def lose(self: project_sync.ProjectSync, hosts: Sequence[Host], *more: Any, **named: Any) -> None:
        queried.append(len(hosts))
        if len(queried) == 1:
            query(self, hosts, *more, **named)
            return
        for host in hosts:
            self._fail(host, HostError("REASON"))

    monkeypatch.setattr(project_sync.ProjectSync, "_query", lose)
    put(place.root, "a", "11")
    report = place.sync(hosts=(LOCAL_HOST, Host("there", "localhost")))
    assert queried == [2, 1]
    assert [(done.status, done.reason) for done in report.hosts] == [("changed", ""), ("failed", "REASON")]
    assert len(place.ran) == 2


def test_a_host_gets_what_it_lacks_in_the_call_that_asks_it(place: Place) -> None:
    put(place.root, "a", "1")
    put(place.root, "b/c", "2" * 600_000)
    assert (place.synced().files_sent, place.ran) == (2, ["sync the tree"])
    assert place.there() == contents(place.root)
    shutil.rmtree(place.home)
    assert (place.synced().files_sent, place.ran) == (2, ["sync the tree"])


def test_a_call_ends_if_its_answer_cannot_be_read(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    put(place.root, "a", "1")
    project = read_project(place.root, home=str(place.home))
    monkeypatch.setattr(Reply, "decode", _cannot_be_read)
    with SessionPool(LocalConnector([]), Cancel(), forks=1) as pool:  # type: ignore[arg-type]
        opened = OpenHosts((LOCAL_HOST,), pool, str(place.home))
        with pytest.raises(MalformedReply):
            TreeCall(pool.session(LOCAL_HOST), opened, TreeCallOptions(opened.home, project).fields)
        end = time.monotonic() + 20
        while any(thread.name == "tree" for thread in threading.enumerate()):
            assert time.monotonic() < end, "the agent waits for a request"
            time.sleep(0.05)


def _cannot_be_read(reply: Reply, *_: object) -> None:
    raise reply.error("PROBLEM")


def test_the_time_limit_counts_only_while_a_host_has_something_to_do(place: Place) -> None:
    put(place.root, "a", "1")
    project = read_project(place.root, home=str(place.home))
    with SessionPool(LocalConnector([]), Cancel(), forks=1) as pool:  # type: ignore[arg-type]
        opened = OpenHosts((LOCAL_HOST,), pool, str(place.home), timeout=2.0)
        request = TreeCallOptions(opened.home, project)

        def late() -> TreeRequest:
            time.sleep(2.5)
            return request.fields()

        called = TreeCall(pool.session(LOCAL_HOST), opened, late)
        time.sleep(2.5)
        contents_of_all = b"".join(stream_entries(os.fsencode(place.root), project.manifest.files.values()))
        reply, _ = called.put(request, 1, contents_of_all, ())
        assert reply.changes is not None
        called.end().result(10)
    assert place.there() == {"a": "1"}


def test_a_host_that_is_silent_or_answers_unasked_ends_the_call(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    project = read_project(place.root, home=str(place.home))
    with SessionPool(LocalConnector([]), Cancel(), forks=1) as pool:  # type: ignore[arg-type]
        opened = OpenHosts((LOCAL_HOST,), pool, str(place.home), timeout=1.0)
        session, request = pool.session(LOCAL_HOST), TreeCallOptions(opened.home, project, dry_run=True)
        called = TreeCall(session, opened, request.fields, dry_run=True)
        with pytest.raises(MalformedReply, match="out of order"):
            called._on_event(Reply(event="put"))
        called.end().result(10)

        def silent(*_: object, deadline: Deadline, **__: object) -> None:
            end = time.monotonic() + 20
            while not deadline.over:
                assert time.monotonic() < end
                time.sleep(0.01)
            raise HostError("no answer")

        monkeypatch.setattr("ipexctl.sync.node_calls.call", silent)
        with pytest.raises(HostError, match="no answer"):
            TreeCall(session, opened, request.fields, dry_run=True)


def test_file_that_changes_during_the_first_sync_fails_that_host(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> bytes:
        raise HostError("a on this machine: it changed since it was scanned", "run it again")

    put(place.root, "a", "1")
    monkeypatch.setattr(project_sync, "stream_entries", fail)
    (done,) = place.sync().hosts
    assert (done.status, done.fix) == ("failed", "run it again")
    assert not (place.home / "code").exists() or not list((place.home / "code").glob("*/a"))


def test_hosts_with_different_home_paths_fail_before_a_tree_is_made(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(place.root, "a", "1")
    query = project_sync.ProjectSync._query

    def move(self: project_sync.ProjectSync, *more: Any, **named: Any) -> None:
        query(self, *more, **named)
        self.answers["there"] = self.answers["there"]._replace(home="/data/h")

    monkeypatch.setattr(project_sync.ProjectSync, "_query", move)
    report = place.sync(hosts=(LOCAL_HOST, Host("there", "localhost")))
    assert [done.status for done in report.hosts] == ["failed", "failed"]
    assert not list((place.home / "code").glob("*/a"))


@pytest.mark.parametrize("sent", [b"", b'{"sha256": "%s", "size": 3}\nab' % (b"a" * 64)])
def test_truncated_stream_of_contents_is_reported(tmp_path: Path, sent: bytes) -> None:
    with pytest.raises(AgentError, match="the stream broke off"), GuardedDirectory.open(str(tmp_path)) as stage:
        StagedFiles(stage, "it has changed").receive(io.BytesIO(sent))
    assert list(tmp_path.iterdir()) == []


def test_large_data_for_several_hosts_is_distributed_and_cleaned_up(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hosts claim separate homes, but here they share one, so only the first of them changes the tree."""
    monkeypatch.setattr(project_sync, "DISTRIBUTE_SIZE", 1000)
    monkeypatch.setattr(file_transfer, "SEPARATE_SIZE", 2000)
    put(place.root, "large", "l" * 5000)
    put(place.root, "small", "s" * 900)
    put(place.root, "twice", "s" * 900)
    monkeypatch.setattr(project_sync, "make_sync_plan", _plan_without_shared_homes)
    report = place.sync(hosts=(LOCAL_HOST, Host("there", "localhost")))
    assert sorted(done.status for done in report.hosts) == ["changed", "ok"], report.hosts
    assert place.there() == contents(place.root)
    assert not (place.tree / ".ipexctl/stage").exists()


@pytest.mark.parametrize("is_interrupted", [False, True])
def test_what_arrived_before_a_failed_transfer_is_used_by_the_next_sync(
    place: Place, monkeypatch: pytest.MonkeyPatch, is_interrupted: bool
) -> None:
    """The second of two hosts gets the files first, and sends them on."""
    monkeypatch.setattr(project_sync, "DISTRIBUTE_SIZE", 1000)
    monkeypatch.setattr(file_transfer, "SEPARATE_SIZE", 2000)
    put(place.root, "large", "l" * 5000)

    fill = Distributor.fill_source

    def fail(distributor: Any, *_: object, **__: object) -> None:
        if is_interrupted:
            distributor._pool.cancel.throw()
            raise Cancelled("stopped")
        fill(distributor)
        raise HostError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(project_sync, "make_sync_plan", _plan_without_shared_homes)
        patch.setattr(
            project_sync.ProjectSync,
            "_guess_missing",
            lambda self, host, _: set(self.project.manifest.files) if host != LOCAL_HOST else set(),
        )
        patch.setattr(Distributor, "bring" if is_interrupted else "fill_source", fail)
        report = place.sync(hosts=(LOCAL_HOST, Host("there", "localhost")))
    if not is_interrupted:
        assert [done.reason for done in report.hosts] == ["no room", "no room"], "each was tried as the sender"
    assert place.there() == {}
    done = place.synced()
    assert (done.files_sent, done.sent_bytes < 1000, place.there()) == (1, True, {"large": "l" * 5000})


def _plan_without_shared_homes(hosts: Sequence[Host], answers: Mapping[str, TreesReply]) -> SyncPlan:
    return make_sync_plan(hosts, {name: answer._replace(store=f"alone:{name}") for name, answer in answers.items()})


def test_project_above_the_size_limit_is_refused_before_connecting(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ipexctl.sync.scan.MAX_FILES", 5)
    monkeypatch.setattr("ipexctl.sync.scan.MAX_SCANNED", 6)
    for index in range(9):
        put(place.root, f"data/set{index // 3}/{index}")
    with pytest.raises(UserError) as refused:
        place.sync()
    assert "data/set" in refused.value.message
    assert "--allow-big" in refused.value.fix
    assert place.ran == []
    assert place.synced(allow_big=True).files_sent == 9


@pytest.mark.parametrize("python", all_pythons())
def test_agent_scripts_run_with_every_python_of_a_node(place: Place, python: str) -> None:
    put(place.root, "a/b", "1")
    request: dict[str, object] = {"home": str(place.home), "project": "p-1", "digest": "d"}
    request.update(lease="r", ended=[], dry_run=False, data=[])
    packed = gzip.compress(b'[["d", "d", 448, 0, ""]]')
    change = {**request, "generation": 1, "parcels": [], "manifest": len(packed), "size": 0}
    done = subprocess.run(
        agent_argv(python, "files.tree_upload", ""),
        input=json.dumps(request).encode() + b"\n" + json.dumps(change).encode() + b"\n" + packed + b'{"end": true}\n',
        capture_output=True,
        check=True,
    )
    trees, changed, end = map(json.loads, done.stdout.splitlines())
    assert (trees["event"], trees["generations"], end["event"]) == ("trees", [], "done"), done.stderr
    assert changed["changes"]["changed"]
    assert not done.stderr
    assert (place.home / "code/p-1/d").is_dir()


def test_silent_connection_does_not_keep_the_tree_locked(place: Place) -> None:
    """A lost connection may stay open on the host for hours."""
    packed = gzip.compress(b"[]")
    first = "from ipexctl.node.common import node_limits as limits\nlimits.UPLOAD_SILENCE = 1"
    argv = agent_argv(sys.executable, "files.tree_upload", "", first)
    children = []
    try:
        for project, sent in (("p-1", b""), ("p-2", b'{"sha256": "%s", "size": 3000000}\nhalf' % (b"a" * 64))):
            request: dict[str, object] = {"home": str(place.home), "project": project, "digest": "d"}
            request.update(lease=None, ended=[], dry_run=False, data=[])
            change = {**request, "generation": 1, "parcels": [], "manifest": len(packed), "size": 0}
            children.append(child := subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
            assert child.stdin is not None
            child.stdin.write(b"%s\n%s\n" % (json.dumps(request).encode(), json.dumps(change).encode()) + packed + sent)
            child.stdin.flush()
        assert [child.wait(20) for child in children] == [1, 1]
    finally:
        for child in children:
            child.kill()
    for child in children:
        assert child.stdin is not None and child.stdout is not None
        failed = json.loads(child.stdout.read().splitlines()[-1])
        child.stdin.close()
        child.stdout.close()
        assert (failed["event"], failed["fix"]) == ("failed", "run it again")
    assert not list(place.home.glob("code/*/.ipexctl/lock"))


def test_file_that_receives_stdout_of_the_command_is_not_sent(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print(1)\n")
    code = (
        "import sys; from pathlib import Path; from ipexctl.sync.scan import scan_project\n"
        "print([found.path for found in scan_project(Path(sys.argv[1])).found])"
    )
    with (tmp_path / "log.txt").open("w") as log:
        subprocess.run([sys.executable, "-c", code, str(tmp_path)], stdout=log, check=True, timeout=30)
    assert (tmp_path / "log.txt").read_text() == "['train.py']\n"
