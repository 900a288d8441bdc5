"""`ipexctl ps -H`: what looks at hosts make together, its table and its document."""

from __future__ import annotations

import pytest
from test_ps import known_run

from ipexctl.commands.ps_command import as_json as ps_json
from ipexctl.commands.ps_hosts import as_json, show
from ipexctl.facts.cpu import CpuList
from ipexctl.facts.live_runs import (
    BusyProgram,
    CallDetails,
    HostSnapshot,
    LockHolder,
    RunOnHost,
    RunsOnHost,
    WaitingCall,
)
from ipexctl.hosts.host import Host
from ipexctl.node.common.plan import RunBy
from ipexctl.remote.outcome import HostResult, Report, Unreachable
from ipexctl.run.hosts_now import HostsNow, hosts_now

CORES = CpuList.of(range(8))
TRAIN = RunOnHost("train-1127-102543-7553", 1001, "alice", 1e9, CORES, ranks=2)
NEXT = WaitingCall("tune-1127-103000-1234", 1002, "bob", 1e9 + 60, 1e9 + 660)
BURN = BusyProgram("python3 e\x1b[31mvil\n.py", 1003, "uid 1003", 1e9, 1.26)


def snapshot(
    *runs: RunOnHost, waiting: tuple[WaitingCall, ...] = (), programs: tuple[BusyProgram, ...] = ()
) -> HostSnapshot:
    return HostSnapshot(RunsOnHost(runs, waiting=waiting), "m", programs=programs)


NOW = hosts_now(
    {
        "node1": snapshot(TRAIN._replace(until=1e9 + 600, script="train.py"), waiting=(NEXT,), programs=(BURN, BURN)),
        "node2": snapshot(TRAIN._replace(since=1e9 + 1), TRAIN._replace(uid=1003, account="uid 1003", ranks=1)),
        "node3": snapshot(programs=(BURN,)),
        "node4": snapshot(),
        "node5": HostSnapshot(RunsOnHost((), hides_others=True), "m"),
    }
)
REPORT = Report((HostResult(Host("node1", "n1"), "ok"), HostResult.of_error(Host("n6", "n6"), Unreachable("no"))), 0.1)


def test_a_run_on_several_hosts_is_one_and_programs_of_a_name_too() -> None:
    train, other = NOW.runs
    assert (train.run.id, train.run.account, train.ranks, train.script) == (TRAIN.run, "alice", 4, "train.py")
    assert (train.run.hosts, train.run.since, train.run.until) == (("node1", "node2"), 1e9, 1e9 + 600)
    assert (other.run.account, other.run.hosts, other.ranks) == ("uid 1003", ("node2",), 1)
    assert [(call.id, call.hosts, call.until) for call in NOW.waiting] == [(NEXT.run, ("node1",), 1e9 + 660)]
    (burn,) = NOW.programs
    assert (burn.account, burn.hosts, burn.count, burn.cores) == ("uid 1003", ("node1", "node3"), 3, 3.78)
    assert (NOW.free, NOW.hiding) == (("node4",), ("node5",))


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_the_tables_fit_and_print_no_control_character(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    show(NOW)
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= columns
    assert "\x1b" not in out
    for word in (TRAIN.run, "alice", "train.py", "node[1-2]", "0-7", NEXT.run, "waiting", "3.8", "free: node4"):
        assert word in out
    show(HostsNow((), (), (), ("node4",), ()))
    assert capsys.readouterr().out == "free: node4\n"


def test_who_began_a_run_its_tag_and_a_foreign_holder_of_a_lock_are_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    call = CallDetails(RunBy("ann", "laptop"), "tune.py", "lr 3e-4")
    holder = LockHolder(5867, 1, "sleep", 1004, "uid 1004")
    runs = RunsOnHost(
        (TRAIN._replace(script="train.py", call=call),), waiting=(NEXT._replace(call=call),), holder=holder
    )
    now = hosts_now({"node1": HostSnapshot(runs, "m"), "node2": HostSnapshot(RunsOnHost(holder=holder), "n")})
    assert now.free == ()
    document = as_json(now, REPORT)
    for entry in (document["runs"][0], document["waiting"][0]):
        assert (entry["by"], entry["tag"]) == ({"user": "ann", "host": "laptop", "records": ""}, "lr 3e-4")
    assert [entry["script"] for entry in (document["runs"][0], document["waiting"][0])] == ["train.py", "tune.py"]
    assert document["holders"][1] == {"host": "node2", "pid": 5867, "name": "sleep", "account": "uid 1004"}
    for columns in (60, 200):
        monkeypatch.setenv("COLUMNS", str(columns))
        show(now)
        out = capsys.readouterr().out
        assert all(word in out for word in ("ann@laptop", "lr 3e-4", "tune.py", "node2: pid 5867 of uid 1004 (sleep)"))


def test_the_document_has_the_keys_of_ps_and_what_is_seen_on_hosts() -> None:
    document = as_json(NOW, REPORT)
    own = ps_json([known_run(0, "node{}", "train")])
    assert document["schema"] == own["schema"]
    assert set(document["runs"][0]) == {*own["runs"][0], "account", "cores", "until", "rank_count"}
    assert {name: document["runs"][0][name] for name in ("started", "until", "rank_count", "cores")} == {
        "started": 1e9, "until": 1e9 + 600, "rank_count": 4, "cores": {"node1": "0-7", "node2": "0-7"},
    }  # fmt: skip
    assert [host["status"] for host in document["hosts"]] == ["ok", "unreachable"]
    assert set(document["waiting"][0]) == {"id", "account", "by", "script", "tag", "hosts", "since", "until"}
