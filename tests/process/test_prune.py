"""Old runs are pruned by age; live, new and unknown runs are kept."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from run_helpers import HERE

from agent_helpers import agent_file, follow_request, mark_home, other_pythons, wait_until
from cli_helpers import ipexctl
from env_helpers import said, start
from ipexctl.homes.prune_runs import RetentionLimits, background_prune, prune_local, prune_nodes
from ipexctl.homes.registry import RunRecord, RunRegistry
from ipexctl.hosts.host import Host
from ipexctl.node.common.processes import read_stat
from ipexctl.node.run.record.stored_status import read_pruned
from ipexctl.node.run.run_times import read_times, write_times
from ipexctl.remote.caller import removal_request
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.local import LocalSession
from ipexctl.run.ps import expired_runs, query_runs
from message_data import missing
from record_helpers import run_record

pytest_plugins = ["run_fixtures"]

DAY = 86400.0
BY_US = removal_request(force=False)
MACHINE = os.uname().nodename
DEAD_PROCESS = {"pid": 2**22 + 1, "start": 1, "machine": MACHINE}


class Runs:
    """The `runs` of a home on this machine."""

    def __init__(self, home: Path, *, exist_ok: bool = False) -> None:
        self.home = mark_home(home)
        self.place = home / "runs"
        self.place.mkdir(exist_ok=exist_ok)

    def make(self, name: str, days: float, *, size: int = 0, **status: Any) -> Path:
        """A run on node0 that ended this number of days ago."""
        at = time.time() - days * DAY
        told = {"schema": "ipexctl.status/1", "id": name, "state": "ok", "ended": at, "exit_code": 0, "ranks": []}
        return self.make_other(
            name, days, size=size, status={**told, "world_size": 1, "supervisor": DEAD_PROCESS, **status}
        )

    def make_other(
        self, name: str, days: float, *, size: int = 0, status: dict[str, Any] | None = None, machine: str = ""
    ) -> Path:
        """A run directory of another node: it has only files."""
        rundir = self.place / name
        (rundir / "ranks").mkdir(parents=True)
        (rundir / "ranks/0000.out").write_bytes(b"x" * size)
        (rundir / "agent.zip").touch()
        (rundir / "machine").write_text(f"{machine}\n")
        if status is not None:
            (rundir / "status.json").write_text(json.dumps(status))
        self.set_times(rundir, days)
        self.see(name, days)
        return rundir

    def see(self, name: str, days: float) -> None:
        times = read_times(str(self.place))
        write_times(str(self.place), times._replace(seen={**times.seen, name: times.passed - days * DAY}))

    def set_times(self, rundir: Path, days: float) -> None:
        at = time.time() - days * DAY
        for path in (*rundir.iterdir(), rundir):
            os.utime(path, (at, at))

    def prune(self, *, days: float = 30, keep: int = 0, **more: Any) -> dict[str, Any]:
        request = {
            "home": str(self.home),
            "days": days,
            "keep": keep,
            "mine": None,
            "dry_run": False,
            **BY_US,
            **more,
        }
        return said(start("run.retention", "prune", request))

    @property
    def names(self) -> list[str]:
        return sorted(path.name for path in self.place.iterdir() if not path.name.startswith("."))


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path)


@pytest.mark.core
def test_old_runs_are_pruned_but_the_newest_are_kept(runs: Runs) -> None:
    for days in range(31, 36):
        runs.make(f"r-{days}", days)
    runs.make("r-1", 1)
    done = runs.prune(keep=3)
    assert runs.names == ["r-1", "r-31", "r-32"]
    assert [each["id"] for each in done["pruned"]] == ["r-35", "r-34", "r-33"]
    assert {each["why"] for each in done["pruned"]} == {"older than 30 days"}
    assert done["kept"] == 3


def test_age_of_a_run_counts_from_its_end(runs: Runs) -> None:
    for name, days in (("old", 31), ("young", 29)):
        (runs.make(name, days) / "stacks").mkdir()  # a write of just now, as by a call that looked at it
    runs.prune()
    assert runs.names == ["young"]


def test_a_clock_that_is_ahead_makes_no_run_old_and_none_of_the_newest_an_old_one(runs: Runs) -> None:
    """The clock is 31 days ahead from the second look on, also at the newest run."""
    names = [f"r-{number:02}" for number in range(14)]
    for name in names:
        runs.make(name, 0)
    (runs.place / ".ages.json").unlink()
    runs.prune(keep=10, mine="r-13")
    in_progress = runs.make_other("starting", 0)
    (in_progress / "job.json").touch()
    for rundir in runs.place.iterdir():
        if rundir.is_dir():
            runs.set_times(rundir, 31)
            if (status := rundir / "status.json").exists():
                status.write_text(json.dumps({**json.loads(status.read_text()), "ended": time.time() - 31 * DAY}))
    runs.make("mine", 0)
    assert runs.prune(keep=10, mine="mine")["pruned"] == []
    assert (in_progress / "job.json").exists()
    assert [each["id"] for each in runs.prune(keep=10, mine="mine", days=0)["pruned"]] == names[:6]


def test_results_stay_when_their_run_is_pruned_and_empty_directories_go(runs: Runs) -> None:
    for name, content in (("a-1101-101010-aaaa", "weights"), ("b-1101-101010-bbbb", "")):
        runs.make(name, 99)
        (runs.home / "results" / name).mkdir(parents=True)
        if content:
            (runs.home / "results" / name / "last.pt").write_text(content)
    runs.prune(keep=0)
    assert runs.names == []
    assert [str(path.relative_to(runs.home)) for path in (runs.home / "results").rglob("*")] == [
        "results/a-1101-101010-aaaa",
        "results/a-1101-101010-aaaa/last.pt",
    ]


@pytest.mark.parametrize("python", other_pythons())
def test_every_python_of_a_node_can_prune(runs: Runs, python: str) -> None:
    runs.make("r", 99)
    request = RetentionLimits(days=1, newest=0).request(str(runs.home), BY_US)
    assert said(start("run.retention", "prune", request, python=python))["pruned"][0]["id"] == "r"


@pytest.fixture
def live_supervisor() -> Iterator[dict[str, Any]]:
    """A live process in place of a supervisor."""
    with subprocess.Popen(["sleep", "60"]) as process:
        yield {"pid": process.pid, "start": read_stat(process.pid).start, "machine": MACHINE}
        process.kill()


def test_live_runs_are_never_pruned(runs: Runs, live_supervisor: dict[str, Any]) -> None:
    runs.make("running", 99, state="running", ended=None, supervisor=live_supervisor)
    runs.make("closing", 99, supervisor=live_supervisor)
    runs.make("number-came-back", 99, state="running", ended=None, supervisor={**live_supervisor, "start": 1})
    runs.make("elsewhere", 20, state="running", ended=None, supervisor={**DEAD_PROCESS, "machine": "another"})
    runs.make("ended-elsewhere", 20, supervisor={**DEAD_PROCESS, "machine": "another"})
    runs.make_other("about-to-begin", 0.02)
    runs.make_other("brought", 0.5)
    (runs.place / "brought/job.json").touch()
    (runs.make_other("reserved", 20) / "reserved").touch()
    os.utime(runs.place / "reserved", (time.time() - 20 * 86400,) * 2)
    runs.make_other("ranks-elsewhere", 20, machine="another")
    runs.make_other("lost-elsewhere", 40, machine="another")
    runs.make_other("ended-here", 20, machine=os.uname().nodename)
    runs.make("mine", 99)
    runs.prune(days=0, mine="mine")
    assert runs.names == sorted(
        ("about-to-begin", "brought", "closing", "elsewhere", "mine", "ranks-elsewhere", "reserved", "running")
    )


def test_secrets_of_runs_that_are_over_are_removed_and_their_output_is_kept(
    runs: Runs, live_supervisor: dict[str, Any]
) -> None:
    names = ("job.json", "job.1.json", "job.2.json.part")  # each attempt on fewer hosts has its own
    over = [runs.make("ended", 0.1), runs.make_other("call-was-killed", 2)]
    in_progress = [
        runs.make("running", 2, state="running", ended=None, supervisor=live_supervisor),
        runs.make_other("may-restart", 0.5),
        runs.make_other("mounted-elsewhere", 2, machine="another"),
    ]
    for rundir in (*over, *in_progress):
        at = rundir.stat().st_mtime
        for path in (*(rundir / name for name in names), rundir):
            path.touch()
            os.utime(path, (at, at))
    runs.prune(dry_run=True)
    assert all((rundir / name).exists() for rundir in over for name in names)
    runs.prune()
    assert [path for rundir in over for path in rundir.glob("job*")] == []
    assert all((rundir / "ranks/0000.out").exists() for rundir in over)
    assert all((rundir / name).exists() for rundir in in_progress for name in names)


@pytest.mark.parametrize("how", ["command line", "environment"])
def test_process_of_a_run_keeps_its_directory_without_status(runs: Runs, how: str) -> None:
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
    assert runs.names == ["living"]  # its age begins now
    runs.see("living", 99)
    runs.prune()
    assert runs.names == []


def test_prune_removes_leases_and_leftovers_and_follows_no_links(runs: Runs) -> None:
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


def test_nothing_outside_is_written_or_removed_by_a_link_in_the_home(runs: Runs, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    for name in ("notes", "old", "job.json"):
        (outside / name).write_text("kept\n")
    run = runs.make("old", 99)
    (run / "link").symlink_to(outside)
    (run / "job.json").symlink_to(outside / "job.json")
    (runs.place / ".gone-x").symlink_to(outside)
    (runs.place / ".pruned.jsonl").symlink_to(outside / "notes")
    state = runs.home / "code/p-0123abcd/.ipexctl"
    state.mkdir(parents=True)
    (state / "leases").symlink_to(outside)
    start("run.retention", "prune", {**RetentionLimits().request(str(runs.home), BY_US), "keep": 0, "mine": None})
    (runs.place / ".pruned.jsonl").unlink()
    runs.prune()
    assert runs.names == []
    assert sorted(path.name for path in outside.iterdir()) == ["job.json", "notes", "old"]
    assert {path.read_text() for path in outside.iterdir()} == {"kept\n"}


def test_pruned_run_is_listed_with_its_result(runs: Runs) -> None:
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
    followed = said(start("run.follow", "follow", follow_request(runs.home, "r")))
    assert followed["reason"] == f"its logs were pruned on {time.strftime('%Y-%m-%d')}: older than 30 days"
    assert "IPEXCTL_KEEP_DAYS" in followed["fix"]


def test_prune_works_on_a_full_disk(mounted: Callable[[str], Path]) -> None:
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


def test_truncated_line_does_not_hide_later_pruned_runs(runs: Runs) -> None:
    runs.make("first", 50)
    runs.prune()
    with (runs.place / ".pruned.jsonl").open("ab") as file:
        file.write(b'{"id": "torn", "at": 17')
    runs.make("second", 40)
    runs.prune()
    runs.make("third", 40)
    runs.prune()
    assert list(read_pruned(str(runs.place))) == ["first", "second", "third"]


def test_background_prune_starts_only_with_many_runs(runs: Runs) -> None:
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


def test_every_home_of_the_runs_is_pruned_once(tmp_path: Path) -> None:
    homes = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        homes.append(Runs(tmp_path / name))
        for number in range(12):
            homes[-1].make(f"r{number}", 99)
    records = [run_record(f"r{n}", HERE, str(home.home), sys.executable) for home in homes for n in range(3)]
    opened = []

    def open_session(record: RunRecord, host: Host) -> LocalSession:
        opened.append((record.home, host.name))
        return LocalSession(host)

    done = prune_nodes(records, RetentionLimits(), open_session, Cancel())
    assert sorted(opened) == [(str(home.home), "localhost") for home in homes]
    assert [(len(each.gone), each.kept, each.newest, each.reason) for each in done] == [(2, 10, 10, "")] * 2


def test_a_limit_of_no_days_keeps_the_newest_ten_alone(tmp_path: Path) -> None:
    home = Runs(tmp_path)
    for number in range(8):
        home.make(f"r{number}", 0)
    record = run_record("r1", HERE, str(tmp_path), sys.executable)

    def prune() -> list[tuple[int, int, int]]:
        done = prune_nodes([record], RetentionLimits(0), lambda _, host: LocalSession(host), Cancel())
        return [(len(each.gone), each.kept, each.newest) for each in done]

    assert prune() == [(0, 8, 8)]
    for number in range(8, 12):
        home.make(f"r{number}", 0)
    assert prune() == [(2, 10, 10)]


def test_hosts_with_one_address_are_distinguished_by_port(tmp_path: Path) -> None:
    ways = [replace(HERE, name=f"node{port}", port=port) for port in (2201, 2202)]
    record = run_record("r1", ways[0], str(tmp_path), sys.executable, stores=("node2202",), nodes=tuple(ways))
    opened = []

    def open_session(_: RunRecord, host: Host) -> LocalSession:
        opened.append(host.port)
        return LocalSession(host)

    prune_nodes([record], RetentionLimits(), open_session, Cancel())
    assert set(opened) == {2201, 2202}


def test_only_local_copies_of_ended_runs_are_pruned(tmp_path: Path) -> None:
    register = RunRegistry(tmp_path)
    now = time.time()
    for number, (days, state) in enumerate(
        [(100, "ok"), (100, "running"), (100, None), (40, "ok"), (40, "running"), (20, "failed")]
    ):
        register.save(run_record(f"r{number}", HERE, "/h", "p", started=now - days * DAY))
        if state:
            (tmp_path / f"r{number}/ranks").mkdir(parents=True)
            (tmp_path / f"r{number}/ranks/0000.out").write_bytes(b"x" * 100_000)
            (tmp_path / f"r{number}/status.json").write_text(json.dumps({"state": state}))
    keep = RetentionLimits(newest=0)
    assert {gone.id for gone in prune_local(register, keep, dry_run=True)} == {"r0", "r3"}
    assert len(register.all()) == 6
    prune_local(register, keep)
    assert [record.id for record in register.all()] == ["r1", "r2", "r3", "r4", "r5"]
    assert [path.name for path in (tmp_path / "r3").iterdir()] == ["plan.json"]
    assert (tmp_path / "r4/ranks").exists()
    assert {gone.id for gone in prune_local(register, keep, over={"r2"})} == {"r2"}
    assert prune_local(register, RetentionLimits(newest=10), over={"r1", "r4"}) == []


def test_records_of_runs_missing_on_node0_are_forgotten_later(runs: Runs) -> None:
    now = time.time()
    records = [
        run_record(name, HERE, str(runs.home), sys.executable, started=now - days * DAY)
        for name, days in (("gone-long", 70), ("gone", 40), ("there", 70), ("out-of-reach", 70))
    ]
    runs.make("there", 70)
    known = query_runs(records[:3], lambda record: LocalSession(record.node0), Cancel())
    assert expired_runs(known, 30, now) == ["gone-long"]
    assert "has no record of it" in known[0].reason


def test_ps_prune_reports_pruned_runs_and_unreachable_hosts(tmp_path: Path) -> None:
    register = RunRegistry(tmp_path / "state/ipexctl/runs")
    homes = [tmp_path / "here", tmp_path / "there"]
    hosts = [HERE, Host("node2", "127.0.0.1", port=1)]
    for home, host in zip(homes, hosts, strict=True):
        home.mkdir()
        for number in range(12):
            name = f"{home.name}-{number:02}"
            Runs(home, exist_ok=True).make(name, 40 + number)
            register.save(run_record(name, host, str(home), sys.executable, started=time.time() - (40 + number) * DAY))

    env = {"XDG_STATE_HOME": str(tmp_path / "state")}
    dry = ipexctl("ps", "--prune", "--dry-run", env=env)
    assert "localhost: 2 runs would be pruned" in dry.out, dry
    assert "  here-11: older than 30 days" in dry.out
    assert re.search(r"; 10 runs kept, .* \(the newest 10 stay, whatever their age\)\n", dry.out)
    assert len(Runs(homes[0], exist_ok=True).names) == 12
    pruned = ipexctl("ps", "--prune", "--json", env=env)
    assert pruned.rc == 3, pruned
    told = {host["name"]: host["status"] for host in json.loads(pruned.out)["hosts"]}
    assert told == {"localhost": "changed", "node2": "unreachable"}
    assert Runs(homes[0], exist_ok=True).names == [f"here-{number:02}" for number in range(10)]
    logs = ipexctl("logs", "here-11", env=env)
    assert (logs.rc, missing(logs.err, "pruned 30 days")) == (1, [])
    listed = {run["id"]: run for run in json.loads(ipexctl("ps", "--json", env=env).out)["runs"]}
    assert (listed["here-11"]["state"], bool(listed["here-11"]["pruned"])) == ("ok", True)
    assert listed["there-11"]["state"] == "unknown"
