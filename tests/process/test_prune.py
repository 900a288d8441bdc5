"""Old runs go by age and size; what goes on, what is new, and what can't be known stays."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent_helpers import agent_file, other_pythons, wait_until
from env_helpers import said, start
from ipexctl.errors import UserError
from ipexctl.hosts.host import Host
from ipexctl.jobs.ps import forgettable, query_runs
from ipexctl.jobs.registry import RunRecord, RunRegistry
from ipexctl.jobs.retention import RetentionLimits, background_prune, prune_local, prune_nodes, read_limits
from ipexctl.node.common.processes import read_stat
from ipexctl.node.run.status_file import read_pruned
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.local import LocalSession
from message_data import missing

pytest_plugins = ["run_fixtures"]

DAY = 86400.0
MACHINE = os.uname().nodename
GONE = {"pid": 2**22 + 1, "start": 1, "machine": MACHINE}


class Runs:
    """The `runs` of a home on this machine."""

    def __init__(self, home: Path, *, exist_ok: bool = False) -> None:
        self.home = home
        self.place = home / "runs"
        self.place.mkdir(exist_ok=exist_ok)

    def make(self, name: str, days: float, *, size: int = 0, **status: Any) -> Path:
        """A run on node0 that ended so long ago."""
        at = time.time() - days * DAY
        told = {"schema": "ipexctl.status/1", "id": name, "state": "ok", "ended": at, "exit_code": 0, "ranks": []}
        return self.make_other(name, days, size=size, status={**told, "world_size": 1, "supervisor": GONE, **status})

    def make_other(
        self, name: str, days: float, *, size: int = 0, status: dict[str, Any] | None = None, machine: str = ""
    ) -> Path:
        """On another node it is only files."""
        rundir = self.place / name
        (rundir / "ranks").mkdir(parents=True)
        (rundir / "ranks/0000.out").write_bytes(b"x" * size)
        (rundir / "agent.zip").touch()
        (rundir / "machine").write_text(f"{machine}\n")
        if status is not None:
            (rundir / "status.json").write_text(json.dumps(status))
        at = time.time() - days * DAY
        for path in (*rundir.iterdir(), rundir):
            os.utime(path, (at, at))
        return rundir

    def prune(self, *, days: float = 30, gb: float = 2, keep: int = 0, **more: Any) -> dict[str, Any]:
        request = {"home": str(self.home), "days": days, "gb": gb, "keep": keep, "mine": None, **more}
        return said(start("run.retention", "prune", request))

    @property
    def names(self) -> list[str]:
        return sorted(path.name for path in self.place.iterdir() if not path.name.startswith("."))


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path)


def test_what_is_old_goes_the_newest_stay_however_old(runs: Runs) -> None:
    for days in range(31, 36):
        runs.make(f"r-{days}", days)
    runs.make("r-1", 1)
    done = runs.prune(keep=3)
    assert runs.names == ["r-1", "r-31", "r-32"]
    assert [each["id"] for each in done["pruned"]] == ["r-35", "r-34", "r-33"]
    assert {each["why"] for each in done["pruned"]} == {"older than 30 days"}
    assert done["kept"] == 3


@pytest.mark.parametrize("python", other_pythons())
def test_every_python_of_a_node_can_prune(runs: Runs, python: str) -> None:
    runs.make("r", 99)
    request = {"home": str(runs.home), "days": 1, "gb": 1, "keep": 0, "mine": None}
    assert said(start("run.retention", "prune", request, python=python))["pruned"][0]["id"] == "r"


def test_where_all_take_too_much_the_oldest_go(runs: Runs) -> None:
    for days in (1, 2, 3, 4):
        runs.make(f"r-{days}", days, size=2_000_000)
    done = runs.prune(gb=0.0045)
    assert runs.names == ["r-1", "r-2"]
    assert done["bytes"] < 4_500_000
    assert done["pruned"][0]["why"] == "all runs took more than 0.0045 GB"


def test_a_dry_run_takes_nothing_away(runs: Runs) -> None:
    runs.make("r", 99)
    assert [each["id"] for each in runs.prune(dry_run=True)["pruned"]] == ["r"]
    assert runs.names == ["r"]


@pytest.fixture
def lives() -> Iterator[dict[str, Any]]:
    """A supervisor that is there."""
    with subprocess.Popen(["sleep", "60"]) as process:
        yield {"pid": process.pid, "start": read_stat(process.pid).start, "machine": MACHINE}
        process.kill()


def test_a_run_that_goes_on_is_never_pruned(runs: Runs, lives: dict[str, Any]) -> None:
    runs.make("running", 99, state="running", ended=None, supervisor=lives)
    runs.make("closing", 99, supervisor=lives)
    runs.make("number-came-back", 99, state="running", ended=None, supervisor={**lives, "start": 1})
    runs.make("elsewhere", 20, state="running", ended=None, supervisor={**GONE, "machine": "another"})
    runs.make("ended-elsewhere", 20, supervisor={**GONE, "machine": "another"})
    runs.make_other("about-to-begin", 0.02)
    runs.make_other("brought", 0.5)
    (runs.place / "brought/job.json").touch()
    runs.make_other("ranks-elsewhere", 20, machine="another")
    runs.make_other("lost-elsewhere", 40, machine="another")
    runs.make_other("ended-here", 20, machine=os.uname().nodename)
    runs.make("mine", 99)
    runs.prune(days=0, gb=0, mine="mine")
    assert runs.names == ["about-to-begin", "brought", "closing", "elsewhere", "mine", "ranks-elsewhere", "running"]


@pytest.mark.parametrize("how", ["command line", "environment"])
def test_a_process_of_a_run_keeps_its_directory_where_there_is_no_status(runs: Runs, how: str) -> None:
    rundir = runs.make_other("living", 99)
    runs.make_other("dead", 99)
    argv = [sys.executable, "-c", "import time; time.sleep(60)"]
    more = {"args": [*argv, f"{rundir}/job.json"]} if how == "command line" else {"args": argv}
    env = {**os.environ, "IPEXCTL_RUN": "living"} if how == "environment" else None
    with subprocess.Popen(more["args"], env=env) as process:
        try:
            time.sleep(0.3)
            runs.prune()
            assert runs.names == ["living"]
        finally:
            process.kill()
    runs.prune()
    assert runs.names == []


def test_leases_and_what_an_earlier_call_left_go_too_and_links_are_not_followed(runs: Runs) -> None:
    runs.make("r", 99)
    for lease in ("r", "other"):
        path = runs.home / "code/p-1/.ipexctl/leases" / lease
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (runs.place / ".gone-x").mkdir()
    precious = runs.home / "precious"
    precious.mkdir()
    (runs.place / "link").symlink_to(precious)
    runs.prune()
    assert runs.names == ["link"]
    assert [path.name for path in (runs.home / "code/p-1/.ipexctl/leases").iterdir()] == ["other"]
    assert not (runs.place / ".gone-x").exists()
    assert precious.exists()


def test_damaged_records_are_no_reason_to_stop(runs: Runs) -> None:
    for name, text in (("a", "{"), ("b", "[]"), ("c", '{"supervisor": {}}')):
        (runs.make_other(name, 99) / "status.json").write_text(text)
        os.utime(runs.place / name / "status.json", (1, 1))
        os.utime(runs.place / name, (1, 1))
    runs.prune()
    assert runs.names == []
    assert runs.prune() == {"event": "done", "pruned": [], "kept": 0, "bytes": 0}


def test_a_pruned_run_is_told_as_such_and_how_it_ended_is_known(runs: Runs) -> None:
    runs.make("r", 40, state="failed", exit_code=3, script="train.py")
    runs.make("whole", 1)
    runs.prune(keep=1)
    ids = ["r", "whole", "never"]
    answer = said(start("run.runs", "list", {"home": str(runs.home), "ids": ids}))
    assert answer["runs"]["r"]["state"] == "failed"
    assert answer["runs"]["r"]["pruned"] > time.time() - 60
    assert answer["runs"]["whole"]["state"] == "ok"
    assert answer["runs"]["never"] is None
    everything = said(start("run.runs", "list", {"home": str(runs.home), "ids": None}))
    assert list(everything["runs"]) == ["whole"]
    followed = said(start("run.follow", "follow", {"home": str(runs.home), "id": "r", "ranks": None}))
    assert followed["reason"] == f"its logs were pruned on {time.strftime('%Y-%m-%d')}: older than 30 days"
    assert "IPEXCTL_KEEP_DAYS" in followed["fix"]


def test_a_full_disk_is_freed_and_what_was_pruned_is_known(mounted: Callable[[str], Path]) -> None:
    runs = Runs(mounted("size=1m"))
    runs.make("old", 40, size=100_000)
    runs.make("older", 50, size=100_000)
    with (runs.home / "ballast").open("wb", buffering=0) as ballast, contextlib.suppress(OSError):
        while ballast.write(b"\0" * 4096):
            pass
    answer = runs.prune()
    assert [run["id"] for run in answer["pruned"]] == ["older", "old"]
    assert runs.names == []
    assert set(read_pruned(str(runs.place))) == {"older", "old"}


def test_a_torn_line_hides_no_run_that_is_pruned_later(runs: Runs) -> None:
    runs.make("first", 50)
    runs.prune()
    with (runs.place / ".pruned.jsonl").open("ab") as file:
        file.write(b'{"id": "torn", "at": 17')
    runs.make("second", 40)
    runs.prune()
    runs.make("third", 40)
    runs.prune()
    assert list(read_pruned(str(runs.place))) == ["first", "second", "third"]


def test_in_the_background_it_begins_only_where_there_are_many(runs: Runs) -> None:
    rundir = runs.make("new", 0, state="running")
    shutil.copy(agent_file("run"), rundir / "agent.zip")
    for number in range(9):
        runs.make(f"r{number}", 99)
    line = background_prune(RetentionLimits(), str(runs.home), sys.executable, "new")
    subprocess.run(["sh", "-c", line], check=True)
    time.sleep(0.5)
    assert len(runs.names) == 10
    runs.make("one-more", 98)
    subprocess.run(["sh", "-c", line], check=True)
    wait_until(lambda: len(runs.names) <= 10)
    assert len(runs.names) == 10
    assert "new" in runs.names


HERE = Host("localhost", "localhost")


def test_all_homes_of_all_runs_are_pruned_once(tmp_path: Path) -> None:
    homes = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        homes.append(Runs(tmp_path / name))
        for number in range(12):
            homes[-1].make(f"r{number}", 99)
    records = [RunRecord(f"r{n}", HERE, str(home.home), sys.executable) for home in homes for n in range(3)]
    opened = []

    def open_session(record: RunRecord, host: Host) -> LocalSession:
        opened.append((record.home, host.name))
        return LocalSession(host)

    done = prune_nodes(records, RetentionLimits(), open_session, Cancel())
    assert sorted(opened) == [(str(home.home), "localhost") for home in homes]
    assert [(len(each.gone), each.kept, each.reason) for each in done] == [(2, 10, "")] * 2


def test_hosts_behind_one_address_are_told_apart_by_their_ports(tmp_path: Path) -> None:
    ways = [replace(HERE, name=f"node{port}", port=port) for port in (2201, 2202)]
    record = RunRecord("r1", ways[0], str(tmp_path), sys.executable, stores=("node2202",), nodes=tuple(ways))
    opened = []

    def open_session(_: RunRecord, host: Host) -> LocalSession:
        opened.append(host.port)
        return LocalSession(host)

    prune_nodes([record], RetentionLimits(), open_session, Cancel())
    assert set(opened) == {2201, 2202}


def test_of_this_machines_copies_only_those_of_runs_that_are_over_go(tmp_path: Path) -> None:
    register = RunRegistry(tmp_path)
    now = time.time()
    for number, (days, state) in enumerate(
        [(100, "ok"), (100, "running"), (100, None), (40, "ok"), (40, "running"), (20, "failed")]
    ):
        register.save(RunRecord(f"r{number}", HERE, "/h", "p", started=now - days * DAY))
        if state:
            (tmp_path / f"r{number}/ranks").mkdir(parents=True)
            (tmp_path / f"r{number}/ranks/0000.out").write_bytes(b"x" * 100_000)
            (tmp_path / f"r{number}/status.json").write_text(json.dumps({"state": state}))
    keep = RetentionLimits(newest=0)
    assert {gone.id for gone in prune_local(register, keep, dry_run=True)} == {"r0", "r3"}
    assert len(register.all()) == 6
    prune_local(register, keep)
    assert [record.id for record in register.all()] == ["r1", "r2", "r3", "r4", "r5"]
    assert not (tmp_path / "r3").exists()
    assert (tmp_path / "r4").exists()
    assert {gone.id for gone in prune_local(register, keep, over={"r2"})} == {"r2"}
    assert {gone.id for gone in prune_local(register, RetentionLimits(gb=0.0003, newest=0))} == {"r5"}
    assert prune_local(register, RetentionLimits(newest=10), over={"r1", "r4"}) == []


def test_records_of_what_node0_has_no_more_are_forgotten_in_the_end(runs: Runs) -> None:
    now = time.time()
    records = [
        RunRecord(name, HERE, str(runs.home), sys.executable, started=now - days * DAY)
        for name, days in (("gone-long", 70), ("gone", 40), ("there", 70), ("out-of-reach", 70))
    ]
    runs.make("there", 70)
    known = query_runs(records[:3], lambda record: LocalSession(record.node0), Cancel())
    assert forgettable(known, 30, now) == ["gone-long"]
    assert "has no record of it" in known[0].reason


@pytest.mark.parametrize("text", ["-1", "two", "nan", "inf", "1,5"])
def test_a_limit_that_is_no_number_is_a_wrong_call(text: str) -> None:
    with pytest.raises(UserError, match="IPEXCTL_KEEP_GB"):
        read_limits({"IPEXCTL_KEEP_GB": text})
    assert read_limits({"IPEXCTL_KEEP_DAYS": "7.5", "IPEXCTL_KEEP_GB": ""}) == RetentionLimits(days=7.5)


def test_a_call_tells_what_is_pruned_and_where_nobody_answers(tmp_path: Path) -> None:
    register = RunRegistry(tmp_path / "state/ipexctl/runs")
    homes = [tmp_path / "here", tmp_path / "there"]
    hosts = [HERE, Host("node2", "127.0.0.1", port=1)]
    for home, host in zip(homes, hosts, strict=True):
        home.mkdir()
        for number in range(12):
            name = f"{home.name}-{number:02}"
            Runs(home, exist_ok=True).make(name, 40 + number)
            register.save(RunRecord(name, host, str(home), sys.executable, started=time.time() - (40 + number) * DAY))

    def call(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "ipexctl", *words]
        env = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)

    dry = call("ps", "--prune", "--dry-run")
    assert "localhost: 2 runs would be pruned" in dry.stdout, dry
    assert "  here-11: older than 30 days" in dry.stdout
    assert len(list((homes[0] / "runs").iterdir())) == 12
    pruned = call("ps", "--prune", "--json")
    assert pruned.returncode == 3, pruned
    told = {host["name"]: host["status"] for host in json.loads(pruned.stdout)["hosts"]}
    assert told == {"localhost": "changed", "node2": "unreachable"}
    assert Runs(homes[0], exist_ok=True).names == [f"here-{number:02}" for number in range(10)]
    logs = call("logs", "here-11")
    assert (logs.returncode, missing(logs.stderr, "pruned 30 days")) == (1, [])
    listed = {run["id"]: run for run in json.loads(call("ps", "--json").stdout)["runs"]}
    assert (listed["here-11"]["state"], bool(listed["here-11"]["pruned"])) == ("ok", True)
    assert listed["there-11"]["state"] == "unknown"
