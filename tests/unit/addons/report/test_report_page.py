"""The page of a run, also without a part of the record: losses, known causes, slow ranks."""

from __future__ import annotations

import html
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from known_texts import TEXTS, Text, account, document, recorded_dump
from report_samples import page as sample_page
from slow_helpers import CALM, HEALTHY, changed, verdict_of
from why_helpers import FAILED, FIRST, NO_MODULE

from case_table import case_table
from ipexctl.addons.report.html import page_html
from ipexctl.addons.report.measurements import Columns, Measurements, Window
from ipexctl.addons.report.page import Change, ReportPage, TimeCurve, compare, report_page
from ipexctl.addons.report.report_command import page_without_record
from ipexctl.hosts.host import Host
from ipexctl.node.common.plan import NO_PLAN, read_valid_plan
from ipexctl.node.common.records import Throughput
from ipexctl.node.run.record.losses import MAX_POINTS, find_series, plain_text, thin, timed_lines
from ipexctl.node.run.record.output_times import TimesWriter
from ipexctl.node.run.record.printed import find_losses, read_losses
from ipexctl.run.stack_dump import Dump, RankStacks
from ipexctl.run.why.diagnosis import Diagnosis, diagnose
from ipexctl.run.why.read_snapshot import PrintedNumber, read_snapshot
from ipexctl.run.why.slow_verdict import SlowVerdict
from ipexctl.text import printable
from record_helpers import run_record

RECORD = run_record(
    "train-1", Host("node1", "node1"), "/root/.ipexctl", "python3", "train.py", hosts=("node1", "node2")
)
PLAN = {
    "stack": "torch-2.13",
    "settings": [
        {"name": "OMP_NUM_THREADS", "value": "4", "reason": "4 cores a rank", "host": None, "rank": None},
        {"name": "IFACE", "value": "eth0", "reason": "the route", "host": "node1", "rank": None},
        {"name": "IFACE", "value": "eth0", "reason": "the route", "host": "node2", "rank": None},
        {"name": "HF_TOKEN", "value": "hunter2", "reason": "-x", "secret": True},
        {"name": "LD_PRELOAD", "value": None, "reason": "it breaks torch"},
        "damaged",
        {"value": "no name"},
    ],
}


def made(plan: dict[str, Any] | None = None, measured: Measurements | None = None, **more: Any) -> ReportPage:
    more.setdefault("first", FIRST)
    snapshot = read_snapshot(*account([(FAILED, ""), (FAILED, NO_MODULE)], **more), "node1")
    return report_page(RECORD, snapshot, diagnose(snapshot), read_valid_plan(plan), measured or Measurements())


def test_the_page_says_how_the_run_ended_and_what_to_type() -> None:
    page = made()
    shown = html.unescape(page_html(page))
    assert page.diagnosis.cause is not None
    assert "rank 1" in page.diagnosis.headline
    for text in (page.diagnosis.headline, page.diagnosis.cause.sentence, "ipexctl logs train-1 -r 1"):
        assert text in shown
    assert [line.text for line in page.diagnosis.lines][-1].startswith("ModuleNotFoundError")
    assert page.took == 13


def test_equal_variables_are_one_row_and_a_secret_has_no_value() -> None:
    rows = {row.name: row for row in made(PLAN).settings}
    assert len(rows) == len(made(PLAN).settings) == 4
    assert rows["IFACE"].where == "node[1-2]"
    assert (rows["HF_TOKEN"].value, rows["HF_TOKEN"].is_hidden) == ("", True)
    assert rows["LD_PRELOAD"].value is None
    assert "hunter2" not in repr(made(PLAN))


@pytest.mark.parametrize("plan", [{}, {"settings": None}, {"settings": 3}, {"stack": 7, "commit": []}])
def test_a_damaged_plan_is_as_none(plan: dict[str, Any]) -> None:
    page = made(plan)
    assert page.settings == ()
    assert any("plan" in part for part in page.missing)


def test_a_run_without_measurements_names_what_is_missing() -> None:
    page = made()
    assert (page.throughput, page.loss, page.grid, page.hosts) == (None, None, None, ())
    assert len(page.missing) == 3
    assert [phase.kind for phase in page.phases] == ["script"]


def test_phases_follow_one_another_and_cover_the_run() -> None:
    windows = [Window(1005.0 + n, 1.0, 2, 8, 0.0, 1.0) for n in range(5)]
    events = [{"event": "start", "rank": 0, "at": 1002.0}]
    phases = made(measured=Measurements({0: windows, 1: windows}), events=events).phases
    assert [(phase.kind, phase.begin, phase.end) for phase in phases] == [
        ("start", 0.0, 2.0),
        ("import", 2.0, 5.0),
        ("steps", 5.0, 10.0),
        ("end", 10.0, 13.0),
    ]


def test_a_restart_separates_the_phases_of_two_attempts() -> None:
    attempts = [{"attempt": 0, "reason": "rank 1 was killed", "ended": 1006.0}]
    phases = made(status={"attempts": attempts, "attempt": 1}).phases
    assert [(phase.kind, phase.begin, phase.end) for phase in phases] == [
        ("script", 0.0, 6.0),
        ("restart", 6.0, 6.0),
        ("script", 6.0, 13.0),
    ]
    assert "rank 1 was killed" in phases[1].text


def test_throughput_is_in_samples_of_all_ranks_where_they_are_known() -> None:
    windows = [Window(1000.0 + n, 1.0, 2, 8, 0.0, 1.0) for n in range(13)]
    known = made(measured=Measurements({0: windows, 1: windows})).throughput
    assert known is not None
    assert (known.unit, set(known.values)) == ("samples/s", {16.0})
    slower = [window._replace(samples=None, steps=1) for window in windows]
    steps = made(measured=Measurements({0: windows, 1: slower})).throughput
    assert steps is not None
    assert (steps.unit, set(steps.values), set(steps.low), set(steps.high)) == ("steps/s", {1.5}, {1.0}, {2.0})


@pytest.mark.parametrize(("steps", "usual"), [(150, 150.0), (1, 0.5)])
def test_the_time_between_two_attempts_is_a_gap_and_a_part_of_a_rare_step_is_none(steps: int, usual: float) -> None:
    windows = [Window(1000.0 + n, 1.0, steps * (n % 2), None) for n in range(12)]
    found = made(measured=Measurements({0: windows, 1: windows})).throughput
    assert found is not None
    assert statistics.median(value for value in found.values if value is not None) == usual


def test_the_rates_of_a_rank_are_those_of_its_status() -> None:
    windows = [Window(1000.0 + n, 1.0, n % 2, None) for n in range(12)]
    ranks = [(dict(FAILED, throughput={"steps_per_s": 41.6}), "")]
    snapshot = read_snapshot(*account(ranks), "node1")
    grid = report_page(RECORD, snapshot, diagnose(snapshot), NO_PLAN, Measurements({0: windows})).grid
    assert grid is not None
    assert [row.throughput and row.throughput.steps_per_s for row in grid.rows] == [41.6]


@pytest.mark.parametrize(
    ("flavor", "shown"), [("none", "ipexctl itself"), ("openmpi", "Open MPI"), ("srun", "Slurm's srun"), ("new", "new")]
)
def test_what_ran_has_what_started_the_ranks_and_nothing_that_only_suits_the_hosts(flavor: str, shown: str) -> None:
    facts = {fact.label: fact.value for fact in made({"flavor": flavor}).facts}
    assert facts["Started by"] == shown
    assert not {"MPI", "Data type"} & facts.keys()


def test_a_script_without_steps_has_no_throughput() -> None:
    windows = [Window(1000.0 + n, 1.0, 0, None, 0.0, 1.0) for n in range(13)]
    page = made(measured=Measurements({0: windows}))
    assert page.throughput is None
    assert page.grid is not None


def test_the_loss_is_drawn_from_two_values_on() -> None:
    assert made(measured=Measurements(losses=(PrintedNumber(1001.0, 2.0),))).loss is None
    loss = made(measured=Measurements(losses=(PrintedNumber(1001.0, 2.0), PrintedNumber(1012.0, 1.0)))).loss
    assert loss is not None
    assert [value for value in loss.values if value is not None] == [2.0, 1.0]


def test_a_run_of_the_registry_alone_has_a_page() -> None:
    page = page_without_record(RECORD, diagnose(read_snapshot(*account([]), "node1")))
    assert page.run == "train-1"
    assert page.missing


def curve(values: list[float], unit: str = "steps/s") -> TimeCurve:
    return TimeCurve("", unit, tuple(values), Columns(0, 10, len(values)))


def page_with(
    values: list[float], unit: str = "steps/s", ranks: int = 2, measured: Throughput | None = None
) -> ReportPage:
    return ReportPage("a", Diagnosis("a", "ok", ""), throughput=curve(values, unit), ranks=ranks, measured=measured)


def test_the_change_of_throughput_has_an_interval_that_contains_it() -> None:
    before = [10.0 + 0.1 * (n % 3) for n in range(60)]
    change = compare(page_with([value * 1.2 for value in before]), page_with(before)).changes[0]
    assert isinstance(change, Change)
    assert change.ratio == pytest.approx(0.2, abs=0.01)
    assert change.low is not None
    assert change.high is not None
    assert change.low <= change.ratio <= change.high


def test_the_interval_has_the_factor_of_the_runs_degrees_of_freedom() -> None:
    """Two samples of five with equal variances have eight degrees, for which tables of Student's t say 2.306."""
    change = compare(page_with([2.0, 3, 4, 5, 6, 7]), page_with([1.0, 2, 3, 4, 5, 6])).changes[0]
    assert isinstance(change, Change)
    assert change.low == pytest.approx((1 - 2.306) / 4, abs=0.003)
    assert change.high == pytest.approx((1 + 2.306) / 4, abs=0.003)


def test_a_short_run_has_no_interval() -> None:
    for count, has_interval in ((5, False), (6, True)):
        change = compare(page_with([1.0, 1.1] * 30), page_with([1.0 + n / 10 for n in range(count)])).changes[0]
        assert isinstance(change, Change)
        assert (change.low is not None) == has_interval


def test_imports_before_the_first_step_do_not_count_as_slow() -> None:
    quick, slow = [1.0, 1.01] * 30, [0.0] * 40 + [1.0, 1.01] * 30 + [0.0] * 5
    change = compare(page_with(quick), page_with(slow)).changes[0]
    assert isinstance(change, Change)
    assert change.ratio == pytest.approx(0.0, abs=0.01)
    assert compare(page_with(quick), page_with([0.0] * 40)).changes[0] == "not-measured"


def test_a_run_that_has_ended_in_its_warm_up_is_too_short_for_a_comparison() -> None:
    assert compare(page_with([1.0] * 60), page_with([0.0, 1.0])).changes[0] == "too-short"
    assert isinstance(compare(page_with([1.0] * 60), page_with([1.0, 1.0])).changes[0], Change)


def test_different_units_are_not_compared() -> None:
    assert compare(page_with([1.0] * 60), page_with([1.0] * 60, "samples/s")).changes[0] == "other-unit"
    assert compare(made(), made()).changes[0] == "not-measured"


@pytest.mark.parametrize(
    ("now", "then", "ranks", "change", "has_interval"),
    [
        # A packed batch is one sample of another number of tokens.
        (Throughput(2.0, 4.0, tokens_per_s=830.0), Throughput(5.0, 10.0, tokens_per_s=1000.0), 2, -0.17, False),
        (Throughput(2.0, 4.0, tokens_per_s=830.0), Throughput(2.4, 4.8, tokens_per_s=1000.0), 2, -0.17, True),
        (Throughput(2.0, 16.0), Throughput(4.0, 32.0), 2, -0.5, True),
        (Throughput(2.0, 16.0), Throughput(2.0, 8.0), 2, "other-batch", False),
        (Throughput(2.0, 8.0), Throughput(1.0, 8.0), 2, "other-batch", False),
        (Throughput(2.0, 8.0), Throughput(2.0, 4.0), 1, 1.0, False),
        (Throughput(2.0, 16.0, tokens_per_s=99.0), Throughput(2.5, 20.0), 2, -0.2, True),
    ],
)
def test_only_like_batches_of_as_many_ranks_are_compared_by_their_samples(
    now: Throughput, then: Throughput, ranks: int, change: float | str, has_interval: bool
) -> None:
    rates = [1.0, 1.01] * 30
    found = compare(
        replace(page_with(rates, "samples/s", measured=now), record=replace(RECORD, started=2.0)),
        replace(page_with(rates, "samples/s", ranks, then), record=replace(RECORD, started=1.0)),
    ).changes[0]
    if isinstance(found, Change):
        assert (found.low is not None) == has_interval
        assert found.ratio == pytest.approx(change)
    else:
        assert found == change


def test_variables_of_single_ranks_and_of_a_run_are_not_compared() -> None:
    def page(run: str, address: str, omp: str) -> ReportPage:
        rows: list[dict[str, object]] = [{"name": "MASTER_ADDR", "value": address}, {"name": "X", "value": run}]
        rows += [{"name": "OMP_NUM_THREADS", "value": omp}, {"name": "RANK", "value": address[-1], "rank": 0}]
        return replace(made({"settings": rows}), run=run)

    assert compare(page("a-2", "10.0.0.2", "4"), page("a-1", "10.0.0.1", "2")).settings == {
        "OMP_NUM_THREADS": ("2", "4")
    }


def test_only_settings_that_differ_are_named_and_no_hidden_value() -> None:
    other = {"settings": [{**PLAN["settings"][0], "value": "8"}, *PLAN["settings"][1:]]}  # type: ignore[dict-item]
    comparison = compare(made(PLAN), made({**PLAN, **other}))
    assert comparison.settings == {"OMP_NUM_THREADS": ("8", "4")}


@case_table
def test_a_credential_that_the_call_wrote_out_is_hidden(name: str, is_hidden: bool) -> None:
    page = made({"settings": [{"name": name, "value": "hunter2", "reason": "set by -x"}]})
    assert [row.is_hidden for row in page.settings] == [is_hidden]
    assert ("hunter2" in repr(page)) != is_hidden


def test_each_attempt_has_its_own_import_and_steps() -> None:
    early = [Window(1000.0 + n / 1000, 0.001, 1) for n in range(1000, 3000)]
    late = [Window(1008.0 + n, 1.0, 1) for n in range(3)]
    attempts = [{"attempt": 0, "reason": "lost", "ended": 1006.0}]
    measured = Measurements({0: early + late})
    phases = made(measured=measured, status={"attempts": attempts, "attempt": 1}).phases
    assert [(phase.kind, round(phase.begin, 3), round(phase.end, 3)) for phase in phases] == [
        ("import", 0, 1),
        ("steps", 1, 3),
        ("end", 3, 6),
        ("restart", 6, 6),
        ("import", 6, 8),
        ("steps", 8, 11),
        ("end", 11, 13),
    ]


def test_wait_for_a_lost_host_has_its_own_name() -> None:
    windows = [Window(1000.0 + n, 1.0, 1) for n in range(3)] + [Window(1009.0 + n, 1.0, 1) for n in range(4)]
    lost = {"kind": "lost", "rank": 1, "host": "node2", "ranks": [1]}
    attempts = [{"attempt": 0, "reason": "lost", "ended": 1008.0, "first_failure": lost}]
    status = {"attempts": attempts, "attempt": 1}
    events = [{"event": "ending", "at": 1007.0}]
    phases = made(measured=Measurements({0: windows}), status=status, events=events).phases
    shown = [(phase.kind, phase.begin, phase.end) for phase in phases if phase.kind != "import"]
    assert shown == [("steps", 0, 3), ("lost", 3, 7), ("end", 7, 8), ("restart", 8, 8), ("steps", 9, 13)]
    assert "node2" in next(phase.text for phase in phases if phase.kind == "lost")


@case_table
def test_page_has_only_stacks_of_the_end(state: str, silent_since: float | None, at: float, *, is_shown: bool) -> None:
    dump = Dump(at, (RankStacks(0, "node1", "running", (), "it is reconnecting"),))
    silent = None if silent_since is None else {"since": silent_since, "after": 60.0}
    status = {"ended": None if state == "running" else 2000.0}
    snapshot = read_snapshot(*account([(FAILED, "")], state=state, silent=silent, status=status), "node1", dump)
    assert bool(report_page(RECORD, snapshot, diagnose(snapshot), NO_PLAN).stacks) == is_shown


def test_checks_and_sync_are_before_the_start_and_the_commit_is_named() -> None:
    plan = {"before_start": {"checks": 2.0, "sync": 1.5}, "commit": {"hash": "0123456789abcdef", "branch": "main"}}
    page = made(plan)
    assert [(phase.kind, phase.begin, phase.end) for phase in page.phases] == [
        ("checks", 0.0, 2.0),
        ("sync", 2.0, 3.5),
        ("script", 3.5, 16.5),
    ]
    assert page.span == 16.5
    assert {fact.label: fact.value for fact in page.facts}["Commit"] == "0123456789ab (main)"


@pytest.mark.parametrize("before", [None, 3, {"checks": -1.0, "sync": 1e9}, {"checks": "x", "sync": 0}])
def test_a_damaged_time_before_the_start_does_not_count(before: object) -> None:
    assert [phase.kind for phase in made({"before_start": before}).phases] == ["script"]


@pytest.mark.parametrize(
    ("first", "count", "has_warm_up"), [(0.9, 12, False), (0.5, 12, True), (0.5, 6, True), (0.5, 5, False)]
)
def test_steps_below_the_usual_speed_are_the_warm_up(first: float, count: int, has_warm_up: bool) -> None:
    windows = [Window(1000.0 + n, 1.0, first if n < 2 else 1.0) for n in range(count)]
    phases = made(measured=Measurements({0: windows})).phases
    assert [phase.kind for phase in phases] == [*(["warm-up"] if has_warm_up else []), "steps", "end"]
    assert phases[-2].begin == (2 if has_warm_up else 0)


def test_an_exchange_of_checkpoints_is_a_phase() -> None:
    events = [
        {"event": "connected", "at": 1001.0},
        {"event": "connected", "at": 1002.0},
        {"event": "checkpoint", "at": 1004.0},
        {"event": "start", "at": 1005.0},
    ]
    assert [(phase.kind, phase.begin, phase.end) for phase in made(events=events).phases] == [
        ("start", 0.0, 2.0),
        ("checkpoint", 2.0, 5.0),
        ("script", 5.0, 13.0),
    ]


@case_table
def test_a_line_with_a_loss(line: str, value: float | None) -> None:
    assert [found for _, found, _ in find_losses([[(1.0, plain_text(line.encode()))]])] == (
        [] if value is None else [value]
    )


def test_a_line_that_is_made_to_take_long_does_not() -> None:
    begin = time.process_time()
    texts = ("loss " * 400_000, "loss" + " " * 100_000, "loss: " + "1" * 100_000)
    find_losses([[(0.0, plain_text(text.encode())) for text in texts * 20]])
    assert time.process_time() - begin < 1.0


def test_a_line_has_the_time_at_which_its_end_arrived() -> None:
    data = b"one\ntwo\rthree\nfour"
    assert list(timed_lines(data, [(1.0, 2), (2.0, 8), (3.0, 14), (4.0, 18)])) == [
        (2.0, "one"),
        (2.0, "two"),
        (3.0, "three"),
    ]


def test_the_losses_of_a_copy(tmp_path: Path) -> None:
    assert read_losses(str(tmp_path)) == []
    (tmp_path / "ranks").mkdir()
    (tmp_path / "ranks/0000.out").write_bytes(b"loss: 2\nloss: 1\n")
    writer = TimesWriter(str(tmp_path / "output.times"))
    for at, rank, end in ((10.0, 0, 8), (11.0, 1, 100), (12.0, 0, 16)):
        writer.add(rank, "stdout", end)
        writer.write_all(at)
    writer.close()
    assert read_losses(str(tmp_path)) == [(10.0, 2.0, None), (12.0, 1.0, None)]


def test_a_loss_has_the_step_that_was_printed_with_it_or_of_the_bar_before() -> None:
    words = [[(1.0, "step 10/90 loss 2"), (2.0, "step 20/90"), (3.0, "step 20/90 loss 1")]]
    assert find_losses(words) == [(1.0, 2.0, 10), (3.0, 1.0, 20)]
    out = [(1.2, "{'loss': '6.25', 'epoch': '0.1'}"), (2.2, "{'loss': '6.0', 'epoch': '0.2'}")]
    bars = [(0.5, "Packing train dataset: 100%|#| 800/800 [00:00<00:00, 9 examples/s]")]
    bars += [(at, f" 10%|#   | {step}/60 [00:02<00:10, 4.2it/s]") for at, step in ((1.0, 5), (1.5, 7), (2.0, 10))]
    assert find_losses([out, bars]) == find_losses([bars, out]) == [(1.2, 6.25, 5), (2.2, 6.0, 10)]


def test_numbers_beside_the_loss_are_series() -> None:
    lines = [
        f"epoch 1 step {n} loss 2.{9 - n} acc {n / 10} lr=1e-3, took 0.{n} s, 'grad_norm': '{n}.5'" for n in range(4)
    ]
    found = find_series([*enumerate(lines), (9.0, "acc 7")])
    assert found == {"acc": [(n, n / 10) for n in range(4)], "grad_norm": [(n, n + 0.5) for n in range(4)]}
    assert find_series([(1.0, "loss 2 acc 1"), (2.0, "loss 1"), (3.0, "loss 1"), (4.0, "loss 1")]) == {}


def test_a_page_draws_what_was_printed_beside_the_loss() -> None:
    measured = Measurements(
        losses=(PrintedNumber(1001.0, 2.0), PrintedNumber(1005.0, 1.0)),
        series={"acc": (PrintedNumber(1001.0, 0.1), PrintedNumber(1005.0, 0.7))},
    )
    page = made(measured=measured)
    assert [curve.title for curve in page.series] == ["acc"]
    assert ">acc</h2>" in page_html(page)


def test_a_variable_with_the_run_s_id_is_no_setting_that_differs() -> None:
    def page(run: str, lr: str) -> ReportPage:
        rows = [{"name": "TORCHELASTIC_RUN_ID", "value": run}, {"name": "LR", "value": f"{lr}"}]
        return replace(made({"settings": rows}), run=run)

    changed_settings = compare(page("train-2", "0.2"), page("train-1", "0.1")).settings
    assert list(changed_settings) == ["LR"]


def test_packages_differ_and_not_the_paths_of_their_environments() -> None:
    def page(env: str, version: str) -> ReportPage:
        path = {"name": "PATH", "value": f"/h/envs/{env}/bin", "reason": "the environment's programs"}
        return made({"versions": {"torch": "2.13.0", "transformers": version}, "settings": [path]}, status={"env": env})

    differing = compare(page("torch-2", "5.18.0"), page("torch-1", "5.17.0")).settings
    assert differing == {"Environment": ("torch-1", "torch-2"), "transformers": ("5.17.0", "5.18.0")}


def test_a_sweep_differs_in_its_arguments_and_the_earliest_run_is_before() -> None:
    def page(run: str, started: float, *words: str, speed: float = 1.0, tag: str = "") -> ReportPage:
        made_page = made({"asked": {"argv": ["train.py", *words], "tag": tag}})
        losses = (PrintedNumber(0.0, 2.0, 10.0), PrintedNumber(1.0, started / 1000, 20.0))[-2 if tag else -1 :]
        return replace(
            made_page,
            run=run,
            record=replace(RECORD, id=run, started=started),
            losses=losses,
            last_loss=losses[-1].value,
            throughput=curve([speed, speed] * 30),
        )

    late = page("late", 3000.0, "--lr", "-0.1", "--sleep", "2", "data", "opt=sgd", speed=2.0)
    early = page("early", 1000.0, "--lr=0.3", "data", "opt=adam", "-v", tag="lr 0.3")
    middle = page("middle", 2000.0, "--lr", "0.2", "data", "opt=adam")
    comparison = compare(late, early, middle)
    assert [each.run for each in comparison.runs] == ["early", "middle", "late"]
    assert comparison.names == ("lr 0.3", "middle", "late")
    words = ("--lr=0.3 opt=adam -v", "--lr 0.2 opt=adam", "--lr -0.1 --sleep 2 opt=sgd")
    assert comparison.words == words
    text = html.unescape(page_html(replace(late, comparison=comparison)))
    assert "From lr 0.3 (before) to late (now), steps/s changed by +100.0 %" in text
    assert f"These differ, too: words ({words[0]} before, {words[2]} now)" in text
    assert f'<th scope="row">Command line</th>{"".join(f"<td>{each}</td>" for each in words)}' in text
    assert '<th scope="row">Last loss</th><td>1</td><td>2</td><td>3</td>' in text
    assert [f"loss of {run}" in text for run in comparison.names] == [True] * 3
    assert (text.count('<path d="M', text.index("Losses over steps")) > 0, text.count('class="line o0"')) == (True, 1)
    assert text.count('<circle cx="944"') == 2, "a single point is drawn"


def test_a_rank_s_parts_add_up_and_no_figure_is_said_twice() -> None:
    windows = [Window(1000.0 + n, 1.0, 1, 8, 0.24, 0.08) for n in range(13)]
    page = made(measured=Measurements({0: windows}))
    text = page_html(page).replace("\N{NO-BREAK SPACE}", " ")
    assert "<td>8 %</td><td>24 %</td><td>68 %</td>" in text
    assert "median" not in text


def test_a_live_run_has_no_time_after_its_steps() -> None:
    windows = {0: [Window(1000.0 + n, 1.0, 1.0) for n in range(6)]}
    live = made(measured=Measurements(windows), state="running", first=None)
    assert [phase.kind for phase in live.phases][-1] == "steps"
    assert [phase.kind for phase in made(measured=Measurements(windows)).phases][-1] == "end"


def test_of_many_losses_a_page_gets_the_means_of_groups() -> None:
    assert thin([]) == []
    assert thin([(1.0, 2.0), (2.0, 4.0)]) == [(1.0, 2.0), (2.0, 4.0)]
    found = thin([(float(at), float(at % 2)) for at in range(2 * MAX_POINTS)])
    assert (len(found), found[0]) == (MAX_POINTS, (1.0, 0.5))
    assert found[-1] == (2 * MAX_POINTS - 1, 1.0), "the last loss is no mean"


def test_a_copy_without_the_file_of_output_has_no_losses(tmp_path: Path) -> None:
    writer = TimesWriter(str(tmp_path / "output.times"))
    writer.add(0, "stdout", 8)
    writer.write_all(10.0)
    writer.close()
    assert read_losses(str(tmp_path)) == []


KNOWN_RUN = run_record("train-1", Host("node1", "node1"), "/root/.ipexctl", "python3", "train.py")


def page_of(text: Text) -> ReportPage:
    dump = recorded_dump(text.stacks) if text.stacks else None
    snapshot = read_snapshot(*document(text), "node1", dump)
    return report_page(KNOWN_RUN, snapshot, diagnose(snapshot), NO_PLAN)


def test_every_known_cause_is_on_its_page() -> None:
    for text in TEXTS:
        page = page_of(text)
        shown = html.unescape(page_html(page))
        assert page.diagnosis.cause is not None
        assert printable(page.diagnosis.headline) in shown
        assert printable(page.diagnosis.cause.sentence) in shown


def test_the_stacks_of_a_hang_are_folded_on_the_page() -> None:
    hung = [page for text in TEXTS if text.stacks and (page := page_of(text)).stacks]
    assert hung
    for page in hung:
        assert page_html(page).count("<details><summary>") >= len(page.stacks)
        assert all(stack.lines for stack in page.stacks)


@case_table
def test_a_damaged_record_gives_a_page(status: dict[str, Any]) -> None:
    events = [{"event": "start", "at": "x"}, {"event": "start", "at": 1e300}, {}, {"event": None}]
    sent, output = account([({"state": "ok"}, "")], status=status, state="running", events=events)
    snapshot = read_snapshot(sent, output, "node1")
    drawn = page_html(report_page(KNOWN_RUN, snapshot, diagnose(snapshot), NO_PLAN)).partition("<body>")[2]
    assert "<h1>" in drawn
    assert '="nan' not in drawn
    assert 'width="-' not in drawn
    assert "inf" not in drawn.partition("<script>")[0]


SLOW_RUN = run_record("train-1", Host(name="node1", address="a"), "/h", "/p", script="<b>.py", hosts=("node1", "node2"))
QUEUED = changed(HEALTHY, cpu=0.4, queue=0.1)
SLOW_LINK = CALM._replace(sent_per_s=6e7)


def slow_html(verdict: SlowVerdict | None) -> str:
    return page_html(sample_page(slow=verdict, record=SLOW_RUN))


def test_page_names_rank_host_cause_and_command() -> None:
    text = slow_html(verdict_of(changed(HEALTHY, cpu=0.4), QUEUED, hosts={"node1": SLOW_LINK, "node2": SLOW_LINK}))
    section = text.partition("Slow ranks")[2].partition("</section>")[0]
    for word in ("rank 1", "node2", "ipexctl why last", "ip -s link"):
        assert word in section
    assert "<b>" not in section


def test_page_without_a_verdict_has_no_section() -> None:
    assert "Slow ranks" not in slow_html(None)
    assert "Slow ranks" not in slow_html(SlowVerdict(unjudged="too-short"))
    assert "Slow ranks" in slow_html(verdict_of(HEALTHY, HEALTHY))
