"""The figures of a run, and the files of its stack dumps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from supervised_run import Supervised, exit_of

from ipexctl.node.common.rank_options import Choice
from ipexctl.node.common.records import (
    GradientExchange,
    NanLoss,
    RankFigures,
    RunStatus,
    Stepping,
    TrainingGroup,
    TrainingProgress,
    describe_apart,
    read_status,
)
from ipexctl.node.common.training import RankProgress, RankTraining
from ipexctl.node.run.connection.messages import Beat, Exit, Message, Mismatch
from ipexctl.node.run.decisions.supervisor_state import Moment
from ipexctl.node.run.meter.host_notes import HostNotes
from ipexctl.node.run.meter.rank_notes import RankNotes
from ipexctl.node.run.meter.rates import HostRates
from ipexctl.node.run.meter.step_windows import StepWindow
from ipexctl.node.run.record import stack_dumps
from ipexctl.node.run.record.recorder import Recorder
from ipexctl.node.run.supervisor.figures import MAX_MISMATCHES, RunFigures
from plan_helpers import small_plan

NOW = Moment(5.0, 1000.0)


@pytest.fixture
def recorder(tmp_path: Path) -> Recorder:
    return Recorder(str(tmp_path), RunStatus("r", "running"))


def status_of(run: Supervised, recorder: Recorder, *received: Message) -> dict[str, Any]:
    figures = RunFigures({0: "node1", 1: "node1"}, small_plan(backend="none"))
    for message in received:
        assert figures.add(1, message, recorder.windows(1), NOW)
    return figures.rank_status(run.state.ranks[1], recorder.sinks(1, "node1")).to_json()


def test_a_rank_has_its_last_figures_and_one_that_has_ended_uses_nothing(recorder: Recorder) -> None:
    received = (Beat(RankFigures(90.0, 1), {}), Beat(RankFigures(99.0, 2 << 30, "S", "futex"), {}))
    running = status_of(Supervised(2).begin(), recorder, *received)
    wanted = {"cpu": 99.0, "rss": 2 << 30, "process": "S", "waits_in": "futex", "pid": 2001}
    assert wanted.items() <= running.items()
    ended = status_of(Supervised(2).begin().at(5, exit_of(1, 3)), recorder, *received)
    assert {**wanted, "cpu": 0.0, "rss": 0, "exit_code": 3}.items() <= ended.items()


def test_each_mismatch_counts_once_and_their_number_is_bounded(recorder: Recorder) -> None:
    figures, files = RunFigures({0: "node1"}, small_plan(backend="none")), recorder.windows(0)
    assert figures.add(0, Mismatch("cores differ"), files, NOW)
    assert not figures.add(0, Mismatch("cores differ"), files, NOW)
    for number in range(2 * MAX_MISMATCHES):
        figures.add(0, Mismatch(f"core {number} differs"), files, NOW)
    assert len(figures.of(0).mismatch) == MAX_MISMATCHES
    assert not figures.add(0, Exit(0, True), files, NOW), "it is no figure"
    throughput = figures.of(0).throughput
    figures.begin_attempt({0: "node1"})
    assert (figures.of(0).mismatch, figures.of(0).throughput) == ((), throughput)
    figures.begin_attempt({0: "node1", 1: "node1", 2: "node2"})
    told = [figures.add(rank, Mismatch("one for all"), recorder.windows(rank), NOW) for rank in (0, 1, 2)]
    assert told == [True, False, True], "once per host"
    figures.begin_attempt({0: "node1", 1: "node1"})
    assert figures.of(0).throughput is not throughput


def test_bytes_of_a_step_are_those_of_the_steps_that_a_window_had(recorder: Recorder) -> None:
    """Half of each window is an evaluation."""
    figures = RunFigures({0: "node1", 1: "node2"}, small_plan())
    notes = RankNotes(cpu=0.1, queue=0.0)
    for number in range(4):
        for rank in (0, 1):
            window = StepWindow(number, 10.0, 50, 5.0, worked=5.0, notes=notes)
            sent = HostNotes(number, 10.0, HostRates(sent_per_s=1e7), "eth0")
            assert all(figures.add(rank, each, recorder.windows(rank), NOW) for each in (window, sent))
    network = figures.run_status(RunStatus("r", "running"), [], NOW.clock).network
    assert network is not None
    assert network.bytes_per_step == 2e6


@pytest.mark.parametrize(
    ("reduce_wait", "percent"),
    [((0.4, 0.005), 39.5), ((0.4, 0.0), 40.0), ((0.0, 0.0), 30.0), ((None, None), 30.0)],
)
def test_shared_memory_that_the_ranks_refused_is_not_counted_on(
    recorder: Recorder, reduce_wait: tuple[float | None, ...], percent: float
) -> None:
    """The plan has the all-reduce in shared memory; rank 1 is slow."""
    figures = RunFigures({0: "node1", 1: "node1"}, small_plan(rank_options={"allreduce": Choice("shared", "possible")}))
    for number in range(5):
        for rank, cpu in enumerate((0.5, 0.8)):
            notes = RankNotes(cpu=cpu, queue=0.0)
            window = StepWindow(number, 10.0, 50, 10.0, reduce_wait=reduce_wait[rank], worked=10.0, notes=notes)
            assert figures.add(rank, window, recorder.windows(rank), NOW)
    slow = figures.run_status(RunStatus("r", "running"), [], NOW.clock).slow
    assert slow is not None
    assert (slow.rank, round(slow.percent, 1)) == (1, percent)


@pytest.mark.parametrize(
    ("tiers", "mode", "fp32", "idle"),
    [
        (("amx", "amx"), "fp32", (0, 1), {"node1": "of node1", "node2": "of node2"}),
        (("amx", "amx"), "fp32", (1,), {"node2": "of node2"}),
        (("avx512_bf16", "amx"), "fp32", (0, 1), {"node2": "of node2"}),
        (("amx", "amx"), "fp32", (), {}),
        (("amx", "amx"), "bf16", (0, 1), {}),
        ((None, "avx2"), "fp32", (0, 1), {}),
    ],
)
def test_amx_is_idle_where_a_host_has_it_and_the_script_multiplies_in_fp32(
    recorder: Recorder, tiers: tuple[str | None, ...], mode: str, fp32: tuple[int, ...], idle: dict[str, str]
) -> None:
    plan = small_plan(("node1", "node2"), rank_options={"fp32_math": Choice(mode, "asked")})
    plan = plan._replace(
        hosts=tuple(
            host._replace(tier=tier, hardware=f"of {host.name}") for host, tier in zip(plan.hosts, tiers, strict=True)
        )
    )
    figures = RunFigures({0: "node1", 1: "node2"}, plan)
    for rank in (0, 1):
        figures.add(rank, StepWindow(0, 10.0, 50, 10.0, is_fp32=rank in fp32), recorder.windows(rank), NOW)
    status = figures.run_status(RunStatus("r", "running"), [], NOW.clock)
    assert status.amx_idle == idle
    assert read_status(json.loads(json.dumps(status.to_json()))).amx_idle == idle


STEPS = StepWindow(1, 10.0, steps=30)


@pytest.mark.parametrize(
    ("backend", "windows", "expected"),
    [
        ("gloo", {0: STEPS._replace(group=1), 1: STEPS._replace(group=1)}, TrainingGroup(3, 1)),
        ("gloo", {0: STEPS._replace(group=1), 1: STEPS}, TrainingGroup(3, 1)),
        ("gloo", {0: STEPS._replace(group=3), 1: STEPS._replace(group=2)}, TrainingGroup(3, 2)),
        ("gloo", {0: STEPS._replace(group=3), 1: STEPS._replace(group=3)}, TrainingGroup(3, 3)),
        ("gloo", {0: STEPS._replace(group=3)}, TrainingGroup(3, 3)),
        ("gloo", {0: STEPS._replace(group=1)}, None),
        ("gloo", {0: STEPS, 1: STEPS}, None),
        ("none", {0: STEPS._replace(group=1), 1: STEPS._replace(group=1)}, None),
    ],
)
def test_the_group_is_the_smallest_of_ranks_that_train_beside_others(
    recorder: Recorder, backend: str, windows: dict[int, StepWindow], expected: TrainingGroup | None
) -> None:
    figures = RunFigures({0: "a", 1: "a", 2: "b"}, small_plan(backend=backend))
    for rank, window in windows.items():
        figures.add(rank, window, recorder.windows(rank), NOW)
    status = figures.run_status(RunStatus("r", "running"), [], NOW.clock)
    assert status.group == read_status(json.loads(json.dumps(status.to_json()))).group == expected
    assert bool(describe_apart(status.group)) == (expected is not None and expected.seen < 3)
    figures.add(0, STEPS._replace(number=2, group=3), recorder.windows(0), NOW)
    figures.add(1, STEPS._replace(number=2, group=3), recorder.windows(1), NOW)
    assert figures.group == (None if backend == "none" else TrainingGroup(3, 3))


def test_the_step_is_the_script_s_own_and_has_an_age(recorder: Recorder) -> None:
    figures = RunFigures({0: "a", 1: "b"}, small_plan())
    rows = [each.status._replace(state="running") for each in Supervised(2).begin().state.ranks.values()]
    sinks = {0: recorder.sinks(0, "a"), 1: recorder.sinks(1, "b")}
    figures.add(0, RankTraining(progress=RankProgress(20, 127, 200, 0.5)), recorder.windows(0), NOW)
    figures.add(0, Beat(RankFigures(stepping=Stepping(25, 0.1, 1.0)), {}), recorder.windows(0), NOW)
    figures.add(0, StepWindow(0, 10.0, 100, 10.0, worked=10.0), recorder.windows(0), NOW)
    status = figures.run_status(RunStatus("r", "running"), rows, NOW.clock + 1)
    assert status.progress == TrainingProgress(152, 200, 0.5, left=48, age=2.0, usual=0.1)
    still = figures.run_status(RunStatus("r", "running"), rows, NOW.clock + 5)
    assert still.progress == TrainingProgress(152, 200, 0.5, age=6.0, usual=0.1)
    assert (still.throughput, still.eta) == (None, None)
    lines = b"step 153/200 loss 2.5\nstep 154/200 loss 0.25\n"
    sinks[0]["out"].take(0, lines[:-3])
    sinks[1]["out"].take(0, b"step 1/9 loss 7\n")
    figures.read_printed(sinks)
    over = figures.run_status(RunStatus("r", "ok"), rows, NOW.clock + 5)
    assert over.progress == TrainingProgress(153, 200, 2.5, left=47, usual=0.1), "an unfinished line is not read"
    sinks[0]["out"].take(0, lines)
    figures.read_printed(sinks)
    sinks[0]["out"].close()
    figures.read_printed(sinks)
    over = figures.run_status(RunStatus("r", "ok"), rows, NOW.clock + 5)
    assert over.progress is not None
    assert over.progress[:3] == (154, 200, 0.25)


def test_a_rank_that_is_silent_is_unheard_while_it_runs(recorder: Recorder) -> None:
    figures, peer = RunFigures({0: "a"}, small_plan()), Supervised(1).begin().state.ranks[0]
    peer = peer._replace(status=peer.status._replace(state="running"))
    found = [figures.rank_status(peer, recorder.sinks(0, "a"), seconds).figures.unheard for seconds in (8.0, 10.04)]
    assert found == [None, 10.0]
    ended = peer._replace(status=peer.status._replace(state="ok"))
    assert figures.rank_status(ended, recorder.sinks(0, "a"), 99.0).figures.unheard is None


def test_the_longest_nan_and_ranks_that_exchange_nothing(recorder: Recorder) -> None:
    figures = RunFigures({0: "a", 1: "b"}, small_plan(backend="gloo"))
    alone = STEPS._replace(group=2, is_apart=True)
    figures.add(0, alone._replace(nan_since=9), recorder.windows(0), NOW)
    assert (figures.nan, figures.exchange) == (NanLoss(9, 0), None)
    figures.add(1, alone._replace(nan_since=7), recorder.windows(1), NOW)
    figures.add(1, RankTraining(progress=RankProgress(6, 0, 20, 812.5)), recorder.windows(1), NOW)
    status = figures.run_status(RunStatus("r", "running"), [], NOW.clock)
    assert (status.nan, status.exchange) == (NanLoss(7, 1, 812.5), GradientExchange(seen=False))
    assert (status.progress, "since step 7, 812.5 before" in NanLoss(7, 1, 812.5).sentence) == (
        TrainingProgress(6, 20, left=14, age=0.0),
        True,
    )
    assert read_status(json.loads(json.dumps(status.to_json()))).exchange == GradientExchange(seen=False)
    figures.add(1, STEPS._replace(number=2, group=2), recorder.windows(1), NOW)
    assert (figures.nan, figures.exchange) == (NanLoss(9, 0), None)
    copies = RunFigures({0: "a", 1: "b"}, small_plan(backend="none"))
    for rank in (0, 1):
        copies.add(rank, alone, recorder.windows(rank), NOW)
    single = RunFigures({0: "a"}, small_plan(backend="gloo"))
    single.add(0, alone._replace(group=1), recorder.windows(0), NOW)
    assert (copies.exchange, single.exchange) == (None, None)


UNUSED = StepWindow(0, 4.0, is_unused=True)


@pytest.mark.parametrize(
    ("windows", "is_untrained"),
    [
        ([(0, UNUSED), (1, UNUSED)], True),
        ([(0, UNUSED)], False),
        ([(0, UNUSED), (1, UNUSED), (1, STEPS)], False),
        ([(0, UNUSED), (1, StepWindow(0, 4.0))], False),
    ],
)
def test_a_run_is_untrained_if_no_rank_used_its_training(
    recorder: Recorder, windows: list[tuple[int, StepWindow]], is_untrained: bool
) -> None:
    figures = RunFigures({0: "a", 1: "b"}, small_plan(backend="gloo"))
    for rank, window in windows:
        figures.add(rank, window, recorder.windows(rank), NOW)
    assert figures.is_untrained == is_untrained


def test_requests_are_taken_once_and_the_newest_dumps_stay(tmp_path: Path) -> None:
    directory = str(tmp_path)
    texts = {
        "a": {"ranks": [1, 2], "kind": "dump"},
        "b": {"ranks": None, "kind": "dump"},
        "c": {},
        "d": {"ranks": "all"},
        "e": {"ranks": None, "kind": "profile"},
    }
    for name, text in texts.items():
        (tmp_path / f"ask-{name}.json").write_text(json.dumps(text))
    assert list(stack_dumps.take_requests(directory)) == [
        ("a", "dump", (1, 2)),
        ("b", "dump", None),
        ("e", "profile", None),
    ]
    assert list(stack_dumps.take_requests(directory)) == []
    ids = [f"2026-{number:03}" for number in range(stack_dumps.KEPT + 2)]
    for dump_id in ids:
        stack_dumps.write_dump(directory, dump_id, 5.0, [{"rank": 0}])
    stack_dumps.write_dump(directory, "2027", 5.0, [], "profile")
    stack_dumps.remove_dump(directory, ids[-1])
    stack_dumps.remove_dump(directory, "not there")
    assert stack_dumps.newest_dump(directory) == ids[-2]
    assert len(stack_dumps.dump_names(directory, "dump-")) == stack_dumps.KEPT - 1


def test_a_wrong_training_is_told_once_the_run_has_succeeded_and_once(recorder: Recorder) -> None:
    figures = RunFigures({0: "node1", 1: "node1"}, small_plan(("node1", "node1"), backend="gloo"))
    parameters = [{1: 7, 2: 1, 3: 1}, {1: 7, 2: 2, 3: 2}]
    for rank in (0, 1):
        training = RankTraining(steps=20, elements=100, largest=50, sent=20, most_sent=1, parameters=parameters[rank])
        assert figures.add(rank, training, recorder.windows(rank), NOW)
    rows = [each.status for each in Supervised(2).begin().state.ranks.values()]
    running = figures.run_status(RunStatus("r", "running"), rows, NOW.clock)
    ended = figures.run_status(RunStatus("r", "ok"), [row._replace(state="ok") for row in rows], NOW.clock)
    stopped = figures.run_status(RunStatus("r", "stopped"), [row._replace(state="stopped") for row in rows], NOW.clock)
    assert [[each.kind for each in status.wrong] for status in (running, ended, stopped)] == [[], ["no-exchange"], []]
    for rank in (0, 1):
        window = StepWindow(1, 10.0, steps=20, group=2, is_apart=True)
        assert figures.add(rank, window, recorder.windows(rank), NOW)
        training = RankTraining(steps=20, elements=100, largest=50, parameters=parameters[rank])
        assert figures.add(rank, training, recorder.windows(rank), NOW)
    status = figures.run_status(RunStatus("r", "ok"), [row._replace(state="ok") for row in rows], NOW.clock)
    assert status.exchange is not None
    assert [each.kind for each in status.wrong] == ["no-exchange"]
    assert len(status.training_notes) == 1
    figures.add(1, RankTraining(steps=20, elements=100, largest=50, sent=100, most_sent=50), recorder.windows(1), NOW)
    assert figures.exchange is None, "its parameters were averaged at the end"
