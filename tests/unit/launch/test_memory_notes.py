"""Notes about ranks that may not fit into the memory of their hosts, and what earlier runs say about it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from launch_helpers import cpu, machine, plan, request

from ipexctl.errors import Refusal
from ipexctl.facts.system_facts import Limits, Memory
from ipexctl.homes.registry import RunRegistry
from ipexctl.hosts.host import Host
from ipexctl.launch.planner import plan_launch
from ipexctl.launch.rank_distribution import TORCH_START
from ipexctl.launch.run_context import EarlierMemory
from ipexctl.node.common.plan import Plan
from ipexctl.node.run.meter.rates import RankRates
from ipexctl.node.run.meter.window_file import WindowWriter
from ipexctl.run.windows import earlier_memory
from message_data import missing
from plan_helpers import changed
from record_helpers import run_record

GB = 10**9
FREE = Memory(total=24 * GB, available=22 * GB)


def notes(memory: Memory, ranks: int, earlier: EarlierMemory | None = None) -> list[str]:
    hosts = [machine(cpu(64), number, memory=memory) for number in (1, 2)]
    found = plan(*hosts, ppn=ranks, earlier_memory=earlier)
    return [note for note in found.notes if "signal 9" in note]


@pytest.mark.parametrize(
    ("memory", "ranks", "words"),
    [
        (FREE, 100, "100 ranks node[1-2] 220 MB torch --ppn"),
        (FREE, 40, None),
        (FREE._replace(limit=4 * GB), 10, "10 ranks 400 MB"),
        (FREE._replace(available=4 * TORCH_START - 1), 2, "2 ranks 440 MB"),
        (FREE._replace(available=4 * TORCH_START), 2, None),
        (FREE._replace(available=TORCH_START), 1, None),  # one rank is no choice
        (Memory(), 100, None),  # not known
    ],
)
def test_ranks_that_torch_alone_fills_a_host_with_are_noted(memory: Memory, ranks: int, words: str | None) -> None:
    found = notes(memory, ranks)
    assert len(found) == (words is not None)
    assert words is None or missing(found[0], words) == []


def test_what_a_rank_took_in_an_earlier_run_counts_for_more() -> None:
    earlier = EarlierMemory(6 * GB, "train-1120-174210-5c1e")
    (found,) = notes(FREE, 4, earlier)
    assert missing(found, "4 ranks node[1-2] 24.0 GB 6.0 GB train-1120-174210-5c1e 22.0 GB --ppn") == []
    assert notes(FREE, 3, earlier) == []
    assert notes(FREE, 100, EarlierMemory(200_000_000, "x")) == []


@pytest.mark.parametrize(("left", "is_noted"), [(33, True), (34, False), (None, False)])
def test_threads_that_the_cgroup_does_not_allow_are_noted(left: int | None, is_noted: bool) -> None:
    hosts = machine(cpu(16), 1), machine(cpu(16), 2, limits=Limits(pids_left=left))
    found = [note for note in plan(*hosts, ppn=2).notes if "pids.max" in note]  # 8 threads a rank
    assert [missing(note, "2 ranks node2 34 33 --ppn TasksMax") for note in found] == [[]] * is_noted


@pytest.mark.parametrize(
    ("memory", "ranks", "earlier", "kind", "fix"),
    [
        (FREE, 105, None, "script", "--ppn 99"),
        (FREE, 105, None, "command", None),
        (FREE, 95, None, "script", None),
        (FREE._replace(available=TORCH_START // 2), 1, None, "script", None),
        (Memory(), 105, None, "script", None),
        (FREE, 4, EarlierMemory(6 * GB, "train-1", 2), "command", "--ppn 3"),
        (FREE, 4, EarlierMemory(6 * GB, "train-1", 4), "script", None),  # these fitted
        (FREE, 2, EarlierMemory(30 * GB, "train-1", 1), "script", "--ppn 1"),
        (FREE, 105, EarlierMemory(GB // 10, "train-1", 1), "script", None),
    ],
)
def test_ranks_that_cannot_fit_are_refused(
    memory: Memory, ranks: int, earlier: EarlierMemory | None, kind: str, fix: str | None
) -> None:
    host = machine(cpu(128), memory=memory)
    wanted = request(host, ppn=ranks, kind=kind, oversubscribe=False, earlier_memory=earlier)
    found = plan_launch(wanted, "r")
    assert isinstance(found, Refusal) == (fix is not None)
    if isinstance(found, Refusal) and fix is not None:
        assert (found.hosts, found.exit_code) == (("node1",), 2)
        assert missing(f"{found.reason} {found.fix}", f"{ranks} ranks 22.0 GB {fix} --oversubscribe") == []
        allowed = plan_launch(replace(wanted, spec=changed(wanted.spec, oversubscribe=True)), "r")
        assert isinstance(allowed, Plan)


def test_the_newest_run_of_the_same_script_in_the_same_project_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    registry = RunRegistry()

    def save(number: int, script: str, project: str, *sizes: float) -> str:
        run = f"train-1120-17421{number}-5c1e"
        host = Host("node1", "node1")
        ranks = ("node1", "node2", "node1")
        registry.save(
            run_record(run, host, "/h", "python3", script=script, started=number, project=project, ranks=ranks)
        )
        (registry.directory / run / "ranks").mkdir(parents=True)
        for rank, size in enumerate(sizes):
            path = registry.directory / run / "ranks" / f"{rank:04}.meter"
            writer = WindowWriter(str(path), RankRates)
            writer.add(0, RankRates(rss=size / 2), 0.0, 0.0)
            writer.add(1, RankRates(rss=size), 10.0, 10.0)
            writer.close()
        return run

    assert earlier_memory(Path("/p"), "train.py") is None
    meant = save(1, "train.py --lr 1", "/p", 1e9, 3e9, 2e9)
    save(2, "train.py", "/p")  # not followed
    save(3, "train.py", "/other", 9e9)
    save(4, "train.pyc", "/p", 9e9)
    found = earlier_memory(Path("/p"), "train.py")
    assert found is not None
    assert (found.run, found.ppn) == (meant, 2)
    assert found.size == pytest.approx(3 * GB, rel=0.01)
    assert earlier_memory(Path("/p"), "other.py") is None
