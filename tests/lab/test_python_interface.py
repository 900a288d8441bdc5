"""`import ipexctl` on real hosts: in a thread, within a running event loop, and with Ctrl-C in a wait."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import ipexctl
from agent_helpers import wait_until
from ipexctl.addons.lab.faults import break_host
from ipexctl.addons.lab.lab_plan import LabSpec
from ipexctl.node.common.plan import to_json
from lab_run_helpers import WAIT_SCRIPT, Cluster
from message_data import missing

LAB = LabSpec(hosts=2)
OPTIONS: dict[str, Any] = {"python": "/usr/bin/python3", "omp": 1, "ppn": 1, "launcher": "direct"}
SCRIPT = "import os, sys; print('rank', os.environ['RANK'], *sys.argv[1:])"
pytestmark = [pytest.mark.lab, pytest.mark.timeout(240)]


@pytest.fixture
def hosts(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> ipexctl.Cluster:
    """The hosts of the lab, seen from the project's directory."""
    monkeypatch.chdir(cluster.project)
    for name, value in cluster.env.items():
        monkeypatch.setenv(name, value)
    cluster.write("train.py", SCRIPT)
    cluster.write("wait.py", WAIT_SCRIPT)
    return ipexctl.Cluster.from_hostfile(cluster.lab.hostfile, home=None)


@pytest.mark.core
def test_several_threads_start_runs_that_wait_for_each_other(hosts: ipexctl.Cluster) -> None:
    def train(rate: str) -> tuple[int, list[str]]:
        run = hosts.run("train.py", [rate], exclusive=True, wait=100, **OPTIONS)
        return run.wait().exit_code, [line.text for line in run.logs(0)]

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(train, ("a", "b"))) == [(0, ["rank 0 a"]), (0, ["rank 0 b"])]


def test_calls_within_a_running_event_loop_see_all_events(hosts: ipexctl.Cluster) -> None:
    async def cell() -> list[Any]:
        printed = hosts.exec(["hostname"])
        assert [host.stdout.strip() for host in printed.hosts] == ["node1", "node2"]
        run = await asyncio.to_thread(hosts.run, "train.py", **OPTIONS)
        return list(run.events())

    events = asyncio.run(cell())
    chunks = [event.data for event in events if isinstance(event, ipexctl.Chunk)]
    assert sorted(b"".join(chunks).splitlines()) == [b"rank 0", b"rank 1"]
    assert isinstance(events[-1], ipexctl.RunEnded)
    assert events[-1].exit_code == 0


def test_run_without_mpirun_is_begun_anew_on_the_host_that_is_left(hosts: ipexctl.Cluster, cluster: Cluster) -> None:
    size = "import os; print(os.environ['WORLD_SIZE'], 'of', os.environ['IPEXCTL_FIRST_WORLD_SIZE'], flush=True)"
    cluster.write("wait.py", f"{size}\n{WAIT_SCRIPT}")
    options = ("-H", cluster.lab.hostfile, *(word for name in OPTIONS for word in (f"--{name}", OPTIONS[name])))
    typed = cluster.good("run", *options, "-n", 2, "--detach", "wait.py").strip()
    run = hosts.run("wait.py", n=2, **OPTIONS)
    with pytest.raises(ipexctl.CallError, match="alive on node") as alive:
        hosts.run("wait.py", n=2, resume=run, **OPTIONS)
    assert alive.value.fix == f"ipexctl stop {run.id}"
    for number in (run.id, typed):
        cluster.good("stop", number)
    break_host(cluster.lab.hosts[0], "link-down")
    runs = [hosts.run("wait.py", n=2, resume=run.id, **OPTIONS)]
    again = cluster.call("run", "--resume", typed, "--detach", "--connect-timeout", 5)
    assert missing(again.err, "node1 is left out is resumed on node2") == []
    runs.append(ipexctl.Run.find(again.out.strip()))
    for anew in runs:
        wait_until(anew.logs, 20)
        assert [line.text for line in anew.logs()][:1] == ["1 of 2"]
        assert anew.stop().status.is_over


def test_plan_and_list_are_those_of_the_commands(hosts: ipexctl.Cluster, cluster: Cluster) -> None:
    words = [word for name, value in OPTIONS.items() for word in (f"--{name}", value)]
    planned = json.loads(cluster.run("--dry-run", "--json", *words, "train.py").out)
    own = json.loads(json.dumps(to_json(hosts.plan("train.py", **OPTIONS))))
    for name in ("is_followed", "takes_own_requirements"):  # a command's defaults
        assert [plan["asked"].pop(name) for plan in (own, planned)] == [False, True]
    assert own == planned
    run = hosts.run("train.py", **OPTIONS)
    run.wait()
    (known,) = hosts.ps(newest=1).runs
    assert (known.record.id, known.state) == (run.id, "ok")
    assert hosts.ps(running=True).runs == []


def test_a_run_has_its_verdict_and_its_page(hosts: ipexctl.Cluster) -> None:
    run = hosts.run("train.py", **OPTIONS)
    run.wait()
    answer = run.why()
    assert (answer.slow.unjudged, answer.exit_code) == ("no-windows", 0)
    other = hosts.run("train.py", ["again"], **OPTIONS)
    other.wait()
    page = run.report("page.html", compare=other).read_text()
    assert missing(page, f"{run.id} {other.id}") == []
    assert run.report().name == f"report-{run.id}.html"


@pytest.mark.signals
@pytest.mark.parametrize(("on_interrupt", "is_over"), [("detach", False), ("stop", True)])
def test_ctrl_c_in_a_wait_leaves_the_run_or_stops_it(hosts: ipexctl.Cluster, on_interrupt: Any, is_over: bool) -> None:
    run = hosts.run("wait.py", **OPTIONS)
    main = threading.main_thread().ident or 0
    threading.Timer(2.0, signal.pthread_kill, (main, signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        run.wait(on_interrupt=on_interrupt)
    assert run.wait(timeout=1).is_over == is_over
    assert run.stop().status.is_over
    assert ipexctl.Run.find("last").why().record.id == run.id
