"""Runs on real hosts, below `ipexctl run`: started, followed over links that break, stopped, cut off, nothing left.

mpirun is a stand-in that starts ranks over ssh, so that no test here depends on what an MPI does by itself.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cli_helpers import IPEXCTL, ipexctl, processes_with
from ipexctl.hosts.detect import read_hosts_file
from ipexctl.jobs.follow import Follower, RunEnded
from ipexctl.jobs.registry import RunRecord, RunRegistry
from ipexctl.jobs.retention import RetentionLimits
from ipexctl.jobs.stop import stop
from ipexctl.jobs.submit.start import File, Launch, LaunchSpec
from ipexctl.lab import LabSpec, break_host, mend_host
from ipexctl.node.common.frames import Chunk
from ipexctl.node.common.job import JobRecord, Master, RankJob
from ipexctl.node.common.records import RunStatus
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.connector import ConnectOptions, Connector
from ipexctl.remote.outcome import Cancelled
from ipexctl.remote.progress import Notice
from ipexctl.remote.session_pool import SessionPool
from lab_helpers import ask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ipexctl.hosts.host import Host
    from ipexctl.jobs.follow import Event
    from ipexctl.jobs.submit.request import StartFailure
    from ipexctl.lab import Lab, LabHost

pytestmark = [pytest.mark.lab, pytest.mark.timeout(180)]

LAUNCHER = Path(__file__).parents[1] / "stand_ins" / "mpirun_ssh.py"
FOR_EVER = "echo here; exec sleep 600"
SLOW = 'i=0; while [ $i -lt 150 ]; do echo "line $i"; i=$((i+1)); sleep 0.05; done'
_numbers = itertools.count()


@pytest.fixture(scope="module")
def lab(make_lab: Callable[[LabSpec], Lab]) -> Lab:
    lab = make_lab(LabSpec(hosts=2, name=f"jobs-{os.getpid()}"))
    assert ipexctl("trust", "-H", lab.hostfile).rc == 0
    return lab


@pytest.fixture(scope="module")
def lab_of_one_home(make_lab: Callable[[LabSpec], Lab]) -> Lab:
    lab = make_lab(LabSpec(hosts=2, name=f"jobs1-{os.getpid()}", shared_home=True))
    assert ipexctl("trust", "-H", lab.hostfile).rc == 0
    return lab


class Scene:
    """A lab's hosts, two ranks on each, and runs of a line of sh."""

    def __init__(self, lab: Lab, state: Path, pool: SessionPool, connector: Connector) -> None:
        self.lab = lab
        self.state = state
        self.pool = pool
        self.connector = connector
        self.hosts: tuple[Host, ...] = tuple(read_hosts_file(lab.hostfile))
        self.home = f"{lab.hosts[0].home}/.ipexctl"
        self.records: list[RunRecord] = []

    def begin(self, line: str, **more: Any) -> RunRecord:
        failure, record = self.try_to_begin(line, **more)
        assert failure is None
        return record

    def try_to_begin(self, line: str, **more: Any) -> tuple[StartFailure | None, RunRecord]:
        run = f"run{next(_numbers)}"
        rundir = f"{self.home}/runs/{run}"
        jobs = {
            host.name: JobRecord(
                2 * len(self.hosts),
                Master(self.lab.hosts[0].peer_address),
                ("sh", "-c", line),
                "/tmp",
                {2 * index + local: RankJob(host.name, local, 2) for local in range(2)},
                {"HF_TOKEN": "s3cr3t-value", "AT": host.name},
            )
            for index, host in enumerate(self.hosts)
        }
        rank = ["/usr/bin/env", "python3", "-I", f"{rundir}/agent.zip", "run.rank", f"{rundir}/job.json"]
        spread = ",".join(f"{host.name}:2" for host in self.hosts)
        given: dict[str, Any] = {
            "argv": ["/usr/bin/env", "python3", f"{rundir}/mpirun.py", f"{self.home}/ssh/config", spread, *rank],
            "launcher_env": {},
            "jobs": jobs,
            "files": [File("mpirun.py", LAUNCHER.read_bytes())],
            **more,
        }
        record = RunRecord(
            id=run,
            node0=self.hosts[0],
            home=self.home,
            python="python3",
            script=line[:20],
            started=time.time(),
            world_size=4,
            hosts=tuple(host.name for host in self.hosts),
        )
        RunRegistry(self.state / "ipexctl" / "runs").save(record)
        self.records.append(record)
        spec = LaunchSpec(record, self.lab.hosts[0].peer_address, **given)
        launch = Launch(self.hosts, spec, self.pool)
        failure = launch.prepare() or launch.start_mpirun()
        if failure is not None:
            launch.abandon()
        return failure, record

    def follower(self, record: RunRecord, watch: Callable[[Event], None], cancel: Cancel | None = None) -> Follower:
        return Follower(record, lambda cancel: self.connector.open(record.node0, cancel), watch, cancel or Cancel())

    def follow(self, record: RunRecord) -> tuple[list[Event], RunEnded]:
        events: list[Event] = []
        return events, self.follower(record, events.append).follow()

    def wait_for(self, record: RunRecord, text: bytes, rank: int) -> None:
        cancel = Cancel()
        seen = b""

        def watch(event: Event) -> None:
            nonlocal seen
            if isinstance(event, Chunk) and event.rank == rank:
                seen += event.data
                if text in seen:
                    cancel.throw()

        with contextlib.suppress(Cancelled):
            ended = self.follower(record, watch, cancel).follow()
            assert text in seen, ended

    def left(self, record: RunRecord) -> list[str]:
        return processes_with(self.lab, f"runs/{record.id}/")

    def gone(self, record: RunRecord, seconds: float) -> None:
        until = time.monotonic() + seconds
        while self.left(record) or processes_with(self.lab, "sleep 600"):
            assert time.monotonic() < until, (self.left(record), processes_with(self.lab, "sleep 600"))
            time.sleep(0.1)

    def call(self, *args: object) -> Any:
        return ipexctl(*args, env={"XDG_STATE_HOME": str(self.state)})

    def on(self, node: LabHost, command: str) -> str:
        return ask(node, command).out


@contextlib.contextmanager
def scene_of(lab: Lab, state: Path) -> Iterator[Scene]:
    with Connector(ConnectOptions()) as connector, SessionPool(connector, Cancel(), forks=8) as pool:
        context = Scene(lab, state, pool, connector)
        yield context
        for node in lab.hosts:
            mend_host(node)
        for record in context.records:
            with contextlib.suppress(Exception):
                stop(pool.session(context.hosts[0]), record)
        for record in context.records:
            context.gone(record, 70)


@pytest.fixture
def context(lab: Lab, tmp_path: Path) -> Iterator[Scene]:
    with scene_of(lab, tmp_path) as context:
        yield context


def output(events: list[Event], rank: int) -> bytes:
    """One rank's stdout; a byte that is missing or told twice fails the test."""
    data = b""
    for event in events:
        if isinstance(event, Chunk) and (event.rank, event.stream) == (rank, "stdout"):
            assert event.offset == len(data)
            data += event.data
    return data


def test_ranks_of_all_hosts_are_followed_from_their_first_line_to_the_end(context: Scene) -> None:
    record = context.begin('echo "$RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $AT"; echo oh >&2')
    events, ended = context.follow(record)
    assert ended.exit_code == 0
    names = [host.name for host in context.hosts]
    assert [output(events, rank) for rank in range(4)] == [
        f"{rank}/4 {rank % 2}/2 {names[rank // 2]}\n".encode() for rank in range(4)
    ]
    assert isinstance(events[-1], RunEnded)
    assert isinstance(events[-1].status, RunStatus)
    assert [rank.host for rank in events[-1].status.ranks] == [names[0]] * 2 + [names[1]] * 2
    context.gone(record, 2)


def test_hosts_that_share_a_home_share_a_job_file_and_each_rank_gets_its_hosts_variables(
    lab_of_one_home: Lab, tmp_path: Path
) -> None:
    with scene_of(lab_of_one_home, tmp_path) as context:
        stores = {host.name: "one" for host in context.hosts}
        record = context.begin('echo "$RANK $AT"; sleep 1', stores=stores)
        events, ended = context.follow(record)
        assert ended.exit_code == 0
        names = [host.name for host in context.hosts]
        assert [output(events, rank) for rank in range(4)] == [f"{r} {names[r // 2]}\n".encode() for r in range(4)]


def test_secrets_are_gone_from_every_node_while_the_run_goes_on_and_in_no_command_line(context: Scene) -> None:
    record = context.begin(FOR_EVER)
    context.wait_for(record, b"here", 0)
    context.wait_for(record, b"here", 3)
    assert processes_with(context.lab, "s3cr3t-value") == []
    for node in context.lab.hosts:
        until = time.monotonic() + 5
        while "job.json" in context.on(node, f"ls {record.rundir}") and time.monotonic() < until:
            time.sleep(0.1)
        assert "job.json" not in context.on(node, f"ls {record.rundir}")
        assert context.on(node, f"grep -rl s3cr3t-value {record.rundir}; stat -c %a {record.rundir}") == "700\n"
    context.call("stop", record.id)
    context.gone(record, 3)


@pytest.mark.core
def test_a_rank_that_fails_on_one_host_ends_all_on_the_other(context: Scene) -> None:
    record = context.begin('echo here; if [ "$RANK" = 3 ]; then sleep 1; exit 9; fi; exec sleep 600')
    _, ended = context.follow(record)
    assert ended.exit_code == 9
    assert ended.status is not None
    assert ended.status.first_failure is not None
    assert (ended.status.first_failure.rank, ended.status.first_failure.host) == (3, context.hosts[1].name)
    assert {rank.state for rank in ended.status.ranks} == {"failed", "stopped"}
    context.gone(record, 3)


def test_a_follower_whose_link_breaks_goes_on_where_it_was(context: Scene) -> None:
    record = context.begin(SLOW)
    events: list[Event] = []
    follower = context.follower(record, events.append)
    done: list[RunEnded] = []
    thread = threading.Thread(target=lambda: done.append(follower.follow()))
    thread.start()
    for number in (20, 60, 100):
        while f"line {number}\n".encode() not in output(list(events), 0) and thread.is_alive():
            time.sleep(0.02)
        kill_connections(context.lab.hosts[0])
    thread.join(60)
    assert done
    assert done[0].exit_code == 0
    for rank in range(4):
        assert output(events, rank) == b"".join(b"line %d\n" % i for i in range(150))
    notices = [event for event in events if isinstance(event, Notice)]
    assert any(notice.warning and context.hosts[0].name in notice.text for notice in notices)


def kill_connections(node: LabHost) -> None:
    """As if its link had been cut and mended: every connection of this machine's to its sshd is reset."""
    subprocess.run(["ss", "-K", "dst", node.address, "dport", "=", "22"], capture_output=True, check=False)


@pytest.mark.core
def test_a_killed_client_changes_nothing_and_ps_logs_stop_find_the_run(context: Scene) -> None:
    record = context.begin(FOR_EVER)
    client = subprocess.Popen(
        [*IPEXCTL, "attach", record.id, "--plain"],
        stdout=subprocess.PIPE,
        env={**os.environ, "XDG_STATE_HOME": str(context.state)},
    )
    assert client.stdout is not None
    assert client.stdout.readline().endswith(b" here\n")
    client.kill()
    client.wait()
    client.stdout.close()
    listed = json.loads(context.call("ps", "--json").out)
    assert listed["schema"] == "ipexctl.ps/1"
    assert [(run["id"], run["state"]) for run in listed["runs"]] == [(record.id, "running")]
    said = context.call("logs", "last", "-r", "1-2")
    assert sorted(said.out.splitlines()) == ["[1] here", "[2] here"]
    assert context.call("stop", record.id[:-1] if record.id[-1] != "n" else record.id).rc == 0
    context.gone(record, 3)
    assert "before: stopped" in context.call("stop", "last").err
    assert json.loads(context.call("ps", "--json").out)["runs"][0]["state"] == "stopped"


@pytest.mark.core
def test_logs_keep_the_streams_apart(context: Scene) -> None:
    record = context.begin('echo "out $RANK"; echo "err $RANK" >&2')
    context.follow(record)
    both, errors = context.call("logs", "last"), context.call("logs", "last", "--stderr", "-r", "0")
    assert sorted(both.out.splitlines()) == [f"[{rank}] out {rank}" for rank in range(4)]
    assert sorted(both.err.splitlines()) == [f"[{rank}] err {rank}" for rank in range(4)]
    assert (errors.out, errors.err) == ("[0] err 0\n", "")


def test_a_node0_that_cannot_be_reached_leaves_the_state_unknown(context: Scene) -> None:
    record = context.begin(FOR_EVER)
    break_host(context.lab.hosts[0], "sshd-dead")
    said = context.call("ps", "--json")
    mend_host(context.lab.hosts[0])
    assert said.rc == 0
    assert json.loads(said.out)["runs"][0]["state"] == "unknown"
    assert context.call("stop", record.id).rc == 0


@pytest.mark.parametrize("number", ["INT", "TERM", "HUP"])
def test_a_signal_to_who_watches_means_what_the_contract_says(context: Scene, number: str) -> None:
    record = context.begin(FOR_EVER)
    client = subprocess.Popen(
        [*IPEXCTL, "attach", "last", "--plain"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "XDG_STATE_HOME": str(context.state)},
    )
    assert client.stdout is not None
    client.stdout.readline()
    client.send_signal({"INT": 2, "TERM": 15, "HUP": 1}[number])
    client.stdout.read()
    assert client.wait(30) == {"INT": 130, "TERM": 143, "HUP": 129}[number]
    if number == "HUP":
        assert len(context.left(record)) > 8
        context.call("stop", "last")
    context.gone(record, 3)


def test_a_node_that_is_cut_off_is_named_and_its_ranks_end_themselves(context: Scene) -> None:
    record = context.begin(FOR_EVER)
    for rank in range(4):
        context.wait_for(record, b"here", rank)
    break_host(context.lab.hosts[1], "link-down")
    began = time.monotonic()
    _, ended = context.follow(record)
    assert time.monotonic() - began < 40
    assert ended.status is not None
    assert ended.status.state == "failed"
    assert ended.status.first_failure is not None
    assert ended.status.first_failure.host == context.hosts[1].name
    context.gone(record, 70)


def test_a_host_that_cannot_take_its_part_keeps_the_run_from_starting_anywhere(context: Scene) -> None:
    ask(context.lab.hosts[1], f"rm -rf {context.home}/runs; touch {context.home}/runs")
    try:
        failure, record = context.try_to_begin(FOR_EVER)
    finally:
        ask(context.lab.hosts[1], f"rm -f {context.home}/runs")
    assert failure is not None
    assert failure.hosts == (context.hosts[1].name,)
    context.gone(record, 3)
    assert context.on(context.lab.hosts[0], f"ls -d {record.rundir} 2>/dev/null") == ""


def test_where_a_run_begins_old_ones_are_pruned_and_those_that_go_on_are_not(context: Scene) -> None:
    going = context.begin(FOR_EVER)
    context.wait_for(going, b"here", 2)
    old = "cd .ipexctl/runs && for i in 1 2 3 4; do mkdir -p old$i && touch -d '40 days ago' old$i; done"
    for node in context.lab.hosts:
        context.on(node, old)
    begun = context.begin("true", retention=RetentionLimits(days=0, gb=0, newest=1))
    until = time.monotonic() + 30
    names = {going.id, begun.id}
    for node in context.lab.hosts:
        while (there := set(context.on(node, "ls .ipexctl/runs").split())) - names:
            assert time.monotonic() < until, there
            time.sleep(0.2)
        assert there >= {going.id}
    assert context.follow(begun)[1].exit_code == 0
    stopped = stop(context.pool.session(context.hosts[0]), going)
    assert stopped.is_over
