"""Starting a run: one job file a home, no secret on a command line, and a word about logind where it matters."""

from __future__ import annotations

import io
import json
import tarfile
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO

import pytest

from ipexctl.errors import UserError
from ipexctl.facts.system import Logind
from ipexctl.hosts.host import Host
from ipexctl.jobs.retention import RetentionLimits
from ipexctl.jobs.submit.failure import PreflightFailure
from ipexctl.jobs.submit.start import LaunchSpec, StartFailure, SupervisorStarted, merged, start
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.fanout import fan_out
from ipexctl.remote.outcome import Unreachable
from ipexctl.remote.session import Ended

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ipexctl.remote.command import Command
    from ipexctl.remote.fanout import HostOutcome
    from ipexctl.remote.session import Session, Stream

HOSTS = (Host("a", "a"), Host("b", "b"))


def job(host: str, ranks: Sequence[int], **variables: str) -> dict[str, Any]:
    plans = {str(rank): {"host": host, "local_rank": 0, "local_size": 1, "variables": {}} for rank in ranks}
    return {
        "world_size": 2,
        "master": {"addr": "10.0.0.1", "port": None},
        "variables": variables,
        "unset": [],
        "prepended": [],
        "ranks": plans,
    }


@dataclass
class Node:
    """Unpacks what it is given, and answers as the supervisor does."""

    host: Host
    server_key: tuple[str, bytes] | None = None
    lost: bool = False
    after_go: str = ""
    """Once it was told to go the connection is lost: what its record says then, or `nothing` where it stays lost."""
    scripts: list[str] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
    modes: dict[str, int] = field(default_factory=dict)
    go: dict[str, Any] = field(default_factory=dict)

    def run(
        self,
        command: Command,
        sink: Callable[[Stream, bytes], None],
        *,
        stdin: BinaryIO | None = None,
        timeout: float | None = None,
        cancel: Cancel | None = None,
    ) -> Ended:
        self.scripts.append(command.script)
        if self.lost:
            raise Unreachable("the connection was lost")
        if "run.supervisor" in command.script:
            assert stdin is not None
            size = int(command.script.partition("head -c ")[2].split()[0])
            came = stdin.read()
            self._unpack(came[:size])
            self.files["request"] = came[size:]
            sink("stdout", b'{"event": "listening", "port": 4242}\n')
            line = stdin.read()
            if not line:
                return Ended(1)
            self.go = json.loads(line)
            if self.after_go:
                self.lost = self.after_go == "nothing"
                raise Unreachable("the connection was lost")
            sink("stdout", b'{"event": "done", "pid": 7, "master_port": 29999}\n')
        elif command.label == "look for the record":
            return Ended(0 if self.after_go in ("stopped", "running") else 1)
        elif command.label == "stop the run":
            answer = {"event": "done", "status": {"state": self.after_go}, "was": "running"}
            sink("stdout", json.dumps(answer).encode() + b"\n")
        elif "tar -x" in command.script:
            assert stdin is not None
            self._unpack(stdin.read())
        return Ended(0)

    def _unpack(self, packed: bytes) -> None:
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            for node in archive:
                content = archive.extractfile(node)
                assert content is not None
                self.files[node.name] = content.read()
                self.modes[node.name] = node.mode

    def close(self) -> None: ...


class Crew:
    def __init__(self, **more: Any) -> None:
        self.cancel = Cancel()
        self.nodes = {host.name: Node(host, **more.get(host.name, {})) for host in HOSTS}

    def session(self, host: Host) -> Node:
        return self.nodes[host.name]

    def detach(self, host: Host) -> Node:
        return self.nodes[host.name]

    def each(self, hosts: Sequence[Host], work: Callable[[Host, Session], Any]) -> Iterator[HostOutcome[Any]]:
        return fan_out(hosts, lambda host: work(host, self.session(host)), forks=2, cancel=self.cancel)


def begin(
    pool: Crew, may_go: Callable[[], PreflightFailure | None] = lambda: None, **more: Any
) -> SupervisorStarted | StartFailure:
    jobs = {"a": job("a", [0], TOKEN="s3cr3t"), "b": job("b", [1], TOKEN="s3cr3t")}
    given: dict[str, Any] = {"jobs": jobs, "argv": ["mpiexec.hydra"], "launcher_env": {}, **more}
    spec = LaunchSpec(id="r", home="/h o", python="/e/bin/python", bind="10.0.0.1", **given)
    return start(HOSTS, spec, pool, may_go)  # type: ignore[arg-type]


def test_every_home_gets_its_job_with_port_and_token_by_stdin() -> None:
    pool = Crew()
    started = begin(pool)
    assert isinstance(started, SupervisorStarted)
    assert (started.pid, started.port, started.master_port, started.notes) == (7, 4242, 29999, ())
    jobs = [json.loads(pool.nodes[name].files["job.json"]) for name in "ab"]
    assert [list(each["ranks"]) for each in jobs] == [["0"], ["1"]]
    assert jobs[0]["supervisor"] == jobs[1]["supervisor"] == {"address": "10.0.0.1", "port": 4242}
    assert jobs[0]["token"] == jobs[1]["token"] == json.loads(pool.nodes["a"].files["request"])["token"]
    assert len(jobs[0]["token"]) == 64
    for node in pool.nodes.values():
        assert set(node.modes.values()) == {0o600}
        assert not any("s3cr3t" in script or jobs[0]["token"] in script for script in node.scripts)
    assert pool.nodes["a"].go["ranks"] == [
        {"rank": 0, "host": "a", "store": "alone:a"},
        {"rank": 1, "host": "b", "store": "alone:b"},
    ]
    assert "token" not in pool.nodes["a"].go
    assert "s3cr3t" not in json.dumps(pool.nodes["a"].go)


def test_hosts_of_one_home_get_one_job_between_them() -> None:
    pool = Crew()
    begin(pool, stores={"a": "one", "b": "one"})
    assert list(json.loads(pool.nodes["a"].files["job.json"])["ranks"]) == ["0", "1"]
    assert pool.nodes["b"].files == {}


def test_a_merged_job_gives_each_rank_what_its_host_had() -> None:
    one, two = job("a", [0], IFACE="eth0", SAME="x"), job("b", [1], IFACE="eth1", SAME="x")
    one["unset"] = ["GONE"]
    two["ranks"]["1"]["variables"] = {"SAME": "of the rank"}
    two["prepended"] = ["PATH"]
    both = merged([one, two])
    assert both["ranks"]["0"]["variables"] == {"GONE": None, "IFACE": "eth0", "SAME": "x"}
    assert both["ranks"]["1"]["variables"] == {"IFACE": "eth1", "SAME": "of the rank"}
    assert (both["variables"], both["unset"], both["prepended"]) == ({}, [], ["PATH"])


def test_a_host_that_is_lost_keeps_the_run_from_going_and_what_was_brought_is_taken_back() -> None:
    pool = Crew(b={"lost": True})
    outcome = begin(pool)
    assert isinstance(outcome, StartFailure)
    assert list(outcome.errors) == ["b"]
    assert pool.nodes["a"].go == {}
    assert "rm -rf '/h o/runs/r'" in pool.nodes["a"].scripts


@pytest.mark.parametrize(
    ("after", "unsure"), [("nothing", True), ("running", True), ("stopped", False), ("never", False)]
)
def test_a_run_that_was_told_to_go_is_over_or_said_to_be_unsure(
    after: str, unsure: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ipexctl.jobs.submit.start._UNHEARD", 0.1)
    outcome = begin(Crew(a={"after_go": after}))
    assert isinstance(outcome, StartFailure)
    assert outcome.unsure == unsure


def test_older_runs_are_pruned_in_the_round_trip_that_brings_the_job() -> None:
    pool = Crew()
    begin(pool, keep=RetentionLimits(days=7))
    for name in "ab":
        (brings,) = [script for script in pool.nodes[name].scripts if "run.retention" in script]
        assert "tar -x" in brings
        assert '"days": 7' in brings
        assert "agent.zip" in pool.nodes[name].files
    assert len(pool.nodes["b"].scripts) == 1


def test_a_run_that_may_not_go_leaves_nothing() -> None:
    pool = Crew()
    outcome = begin(pool, lambda: PreflightFailure("no way"))
    assert isinstance(outcome, StartFailure)
    assert outcome.refused == PreflightFailure("no way")
    assert pool.nodes["a"].go == {}
    for node in pool.nodes.values():
        assert "rm -rf '/h o/runs/r'" in node.scripts


def test_a_call_that_turns_out_to_be_wrong_leaves_nothing_either() -> None:
    def wrong() -> PreflightFailure | None:
        raise UserError("a syntax error")

    pool = Crew()
    with pytest.raises(UserError):
        begin(pool, wrong)
    assert pool.nodes["a"].go == {}
    assert "rm -rf '/h o/runs/r'" in pool.nodes["b"].scripts


def test_where_logind_ends_processes_the_supervisor_gets_a_scope_and_the_user_a_word() -> None:
    pool = Crew()
    started = begin(pool, logind=Logind(present=True, kill_user_processes=True, linger=False))
    assert isinstance(started, SupervisorStarted)
    assert "loginctl enable-linger" in started.notes[0]
    assert any("systemd-run --user --scope" in script for script in pool.nodes["a"].scripts)
    lingering = begin(Crew(), logind=Logind(present=True, kill_user_processes=True, linger=True))
    assert isinstance(lingering, SupervisorStarted)
    assert lingering.notes == ()
