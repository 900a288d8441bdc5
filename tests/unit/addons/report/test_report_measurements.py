"""Windows become columns: nothing is lost, nothing is invented; and what the command `report` asks for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from test_cli import run_program

from ipexctl.addons.report.measurements import (
    MAX_CELLS,
    MAX_COLUMNS,
    Columns,
    HostWindow,
    Measurements,
    Window,
    columns_for,
    host_curves,
    measurements_of,
    rank_columns,
    rank_grid,
    windows_of,
)
from ipexctl.homes.registry import RunRegistry
from ipexctl.hosts.host import Host
from ipexctl.node.run.meter.rates import HostRates, RankRates
from ipexctl.node.run.meter.window_file import HostWindows, RankWindows
from record_helpers import run_record


def windows(count: int, *, start: float = 1000.0, samples: int | None = 64, wait: float = 1.0) -> list[Window]:
    return [Window(start + 10 * n, 10.0, 20, samples, wait, 40.0) for n in range(count)]


def test_a_column_is_no_narrower_than_a_window() -> None:
    assert columns_for(1000, 1060, 10, MAX_COLUMNS) == Columns(1000, 10, 6)
    assert columns_for(1000, 1000 + 86400, 10, MAX_COLUMNS).count == MAX_COLUMNS


@pytest.mark.parametrize(("start", "end"), [(1000, 1000), (1000, 999), (0, 0)])
def test_a_run_without_duration_has_one_column(start: float, end: float) -> None:
    assert columns_for(start, end, 10, MAX_COLUMNS).count == 1


def test_more_ranks_have_fewer_columns_each() -> None:
    assert rank_columns(64) == MAX_COLUMNS
    assert rank_columns(1024) * 1024 <= MAX_CELLS
    assert rank_columns(100_000) >= 60


def test_a_rate_is_that_of_the_windows_also_between_their_borders() -> None:
    grid = rank_grid(Measurements({0: windows(6, start=1003.0)}), {0: "a"}, 1000.0, 1063.0)
    assert grid is not None
    (row,) = grid.rows
    assert all(rate == pytest.approx(2.0) for rate in row.steps_per_s)
    assert all(cpu == pytest.approx(4.0) for cpu in row.cpu)
    assert all(wait == pytest.approx(0.1) for wait in row.waits)
    assert (row.steps, row.samples) == (120, 384)


def test_the_steps_of_all_columns_are_those_of_all_windows() -> None:
    grid = rank_grid(Measurements({0: windows(97, start=1001.7)}), {0: "a"}, 1000.0, 1001.7 + 970)
    assert grid is not None
    assert grid.rows[0].steps == 97 * 20


def test_a_column_without_a_window_has_no_value() -> None:
    gap = windows(2) + windows(2, start=1050.0)
    grid = rank_grid(Measurements({0: gap}), {0: "a"}, 1000.0, 1070.0)
    assert grid is not None
    assert [value is None for value in grid.rows[0].cpu] == [False, False, True, True, True, False, False]


def test_windows_outside_the_run_do_not_count_in_a_column() -> None:
    early = [Window(500.0, 10.0, 20, 1, 0.0, 1.0), *windows(2), Window(9000.0, 10.0, 20, 1, 0.0, 1.0)]
    grid = rank_grid(Measurements({0: early}), {0: "a"}, 1000.0, 1020.0)
    assert grid is not None
    assert grid.rows[0].steps_per_s == (2.0, 2.0)


def test_samples_are_unknown_if_one_window_does_not_know_them() -> None:
    mixed = [*windows(2), *windows(1, start=1020.0, samples=None)]
    grid = rank_grid(Measurements({0: mixed}), {0: "a"}, 1000.0, 1030.0)
    assert grid is not None
    assert (grid.rows[0].samples, grid.rows[0].samples_per_s) == (None, ())


def test_ranks_of_a_host_stand_together_in_the_order_of_the_hosts() -> None:
    measured = Measurements({rank: windows(2) for rank in range(4)})
    grid = rank_grid(measured, {0: "b", 1: "a", 2: "b", 3: "a"}, 1000.0, 1020.0)
    assert grid is not None
    assert [(row.host, row.rank) for row in grid.rows] == [("b", 0), ("b", 2), ("a", 1), ("a", 3)]


def test_a_run_without_windows_has_no_grid_and_no_curves() -> None:
    assert rank_grid(Measurements(), {0: "a"}, 0.0, 10.0) is None
    assert host_curves(Measurements(), {0: "a"}, 0.0, 10.0) == ()


def test_a_figure_that_a_host_lacks_is_empty_and_no_zero() -> None:
    measured = Measurements(
        hosts={"a": [HostWindow(1000.0 + 10 * n, 10.0, sent) for n, sent in enumerate((0.4, None, 0.6))]}
    )
    (curves,) = host_curves(measured, {0: "a", 1: "b"}, 1000.0, 1030.0)
    assert (curves.memory, curves.sent) == ((), (0.4, None, 0.6))


def test_waiting_and_work_that_are_not_known_are_no_zeros() -> None:
    mixed = [Window(1000.0, 10.0, 20.0, 64.0, 5.0, 40.0), Window(1010.0, 10.0, 0.0), Window(1020.0, 10.0, 20.0)]
    grid = rank_grid(Measurements({0: mixed}), {0: "a"}, 1000.0, 1030.0)
    assert grid is not None
    row = grid.rows[0]
    assert (row.cpu, row.waits, row.steps_per_s) == ((4.0, None, None), (0.5, None, None), (2.0, None, 2.0))
    assert (row.mean_cpu, row.mean_wait) == (4.0, 0.5)


def test_a_window_without_a_step_does_not_make_samples_unknown() -> None:
    idle = [*windows(2), Window(1020.0, 10.0, 0.0)]
    grid = rank_grid(Measurements({0: idle}), {0: "a"}, 1000.0, 1030.0)
    assert grid is not None
    assert grid.rows[0].samples_per_s == (6.4, 6.4, None)


def test_windows_of_rates_are_at_their_time() -> None:
    made = windows_of(1000.0, 20.0, [RankRates(2.0, 8.0, 0.15, collective_wait=0.1, cpu=0.4), None, RankRates(0.0)])
    assert made == (Window(1000.0, 20.0, 40.0, 160.0, 5.0, 8.0), Window(1040.0, 20.0, 0.0))


def test_windows_of_the_record_become_measurements() -> None:
    host = HostRates(5e7)
    rank = RankRates(2.0, 8.0, 0.1, cpu=0.4)
    ranks, hosts = {3: RankWindows(1000.0, 10.0, (rank, None))}, {"a": HostWindows(990.0, 20.0, (None, host))}
    made = measurements_of(ranks, hosts, ())
    assert made.ranks == {3: (Window(1000.0, 10.0, 20.0, 80.0, 1.0, 4.0),)}
    assert made.hosts["a"] == (HostWindow(1010.0, 20.0, 5e7),)


def test_a_rank_that_has_measured_nothing_has_no_chart() -> None:
    nothing = Measurements({0: [Window(1000.0, 10.0, 0)] * 3})
    assert rank_grid(nothing, {0: "a"}, 1000.0, 1030.0) is None
    assert rank_grid(Measurements({0: [Window(1000.0, 10.0, 0, cpu=0.1)]}), {0: "a"}, 1000.0, 1030.0) is not None


def test_the_memory_of_a_hosts_ranks_is_summed() -> None:
    ranks = {
        0: [Window(1000.0, 10.0, 1, memory=2.0), Window(1010.0, 10.0, 1, memory=4.0)],
        1: [Window(1010.0, 10.0, 1, memory=8.0)],
        2: [Window(1000.0, 20.0, 1, memory=100.0)],
    }
    hosts = {"a": [HostWindow(1000.0 + 10 * n, 10.0, None) for n in range(2)]}
    (curves,) = host_curves(Measurements(ranks, hosts), {0: "a", 1: "a", 2: "b"}, 1000.0, 1020.0)
    assert (curves.memory, curves.sent) == ((2.0, 12.0), ())


RUN = "train-1120-132512-9f3a"
OTHER = "train-1121-100000-1234"


@pytest.fixture
def account(tmp_path: Path) -> dict[str, str]:
    """An account with copies of two runs that node0, this machine, has no more."""
    for name, threads in ((RUN, "4"), (OTHER, "8")):
        copy = tmp_path / ".local/state/ipexctl/runs" / name
        (copy / "ranks").mkdir(parents=True)
        ranks = [{"rank": 0, "host": "localhost", "state": "failed", "exit_code": 1, "pid": 7}]
        status = {"id": name, "state": "failed", "started": 1000.0, "ended": 1013.0, "exit_code": 1, "ranks": ranks}
        first = {"rank": 0, "host": "localhost", "exit_code": 1, "kind": "exit", "at": 1012.0}
        document = {
            "schema": "ipexctl.status/1",
            **status,
            "script": "train.py",
            "first_failure": first,
            "supervisor": {},
        }
        (copy / "status.json").write_text(json.dumps(document))
        settings = [
            {"name": "OMP_NUM_THREADS", "value": threads, "reason": "cores a rank"},
            {"name": "HF_TOKEN", "value": "hunter2", "reason": "-x", "secret": True},
        ]
        (copy / "ranks/0000.err").write_text("Traceback\nModuleNotFoundError: No module named 'frob<script>'\n")
        record = run_record(
            name, Host("localhost", "localhost"), str(tmp_path / ".ipexctl"), sys.executable, "train.py"
        )
        record = replace(record, started=1000.0 + 100 * (name == OTHER))
        RunRegistry(copy.parent).save(record)
        (copy / "plan.json").write_text(json.dumps({"settings": settings}))
    kept = {name: os.environ[name] for name in ("PATH", "COVERAGE_PROCESS_START") if name in os.environ}
    return {**kept, "HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}


def call(env: dict[str, str], *args: str) -> subprocess.CompletedProcess[str]:
    argv = (sys.executable, "-m", "ipexctl", "report", *args)
    return run_program(*argv, stdin=subprocess.DEVNULL, cwd=env["HOME"], env=env)


def test_the_page_is_a_private_file_in_this_directory(account: dict[str, str]) -> None:
    done = call(account, RUN)
    assert (done.returncode, done.stdout) == (0, f"report-{RUN}.html\n"), done.stderr
    path = Path(account["HOME"], f"report-{RUN}.html")
    assert path.stat().st_mode & 0o777 == 0o600
    text = path.read_text()
    assert "frob&lt;script&gt;" in text
    assert "OMP_NUM_THREADS" in text
    assert "hunter2" not in text


def test_two_runs_are_compared(account: dict[str, str]) -> None:
    done = call(account, RUN, "--compare", OTHER, "-o", "both.html")
    assert done.returncode == 0, done.stderr
    text = Path(account["HOME"], "both.html").read_text()
    assert "Runs compared" in text
    assert f'<th scope="col">{RUN}</th><th scope="col">{OTHER}</th>' in text  # the one that began first
    assert '<th scope="row">OMP_NUM_THREADS</th><td>4</td><td>8</td>' in text


def test_three_runs_are_a_table_of_what_differs(account: dict[str, str]) -> None:
    done = call(account, RUN, "--compare", OTHER, "--compare", OTHER, "-o", "three.html")
    assert done.returncode == 0, done.stderr
    text = Path(account["HOME"], "three.html").read_text()
    assert '<th scope="row">OMP_NUM_THREADS</th><td>4</td><td>8</td><td>8</td>' in text


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        (("-o", "/"), "it is a directory"),
        (("-o", "none/x.html"), "there is no directory none"),
        (("-o", "/dev/null"), "it is not a regular file"),
        (("--json",), "no --json"),
        (("--compare", "none"), "none"),
    ],
)
def test_what_cannot_be_written_is_refused(account: dict[str, str], args: tuple[str, ...], reason: str) -> None:
    done = call(account, RUN, *args)
    assert done.returncode == 2
    assert reason in done.stderr
    assert not list(Path(account["HOME"]).glob("*.html"))


@pytest.mark.parametrize("option", ["--detach", "--dry-run"])
def test_a_run_that_is_not_followed_writes_no_page(option: str, account: dict[str, str]) -> None:
    argv = (sys.executable, "-m", "ipexctl", "run", option, "--report", "run.html", "train.py")
    done = run_program(*argv, stdin=subprocess.DEVNULL, cwd=account["HOME"], env=account)
    assert done.returncode == 2
    assert "ipexctl report" in done.stderr


@pytest.mark.parametrize("state", ["failed", "ok"])
def test_why_names_the_page_unless_a_cause_says_what_to_do(state: str, account: dict[str, str]) -> None:
    file = Path(account["HOME"], ".local/state/ipexctl/runs", RUN, "status.json")
    file.write_text(json.dumps({**json.loads(file.read_text()), "state": state}))
    argv = (sys.executable, "-m", "ipexctl", "why", RUN, "--json")
    done = run_program(*argv, stdin=subprocess.DEVNULL, cwd=account["HOME"], env=account)
    assert (f"ipexctl report {RUN}" in json.loads(done.stdout)["next"]) == (state == "ok")


def test_a_file_that_is_no_page_is_not_replaced(account: dict[str, str]) -> None:
    script = Path(account["HOME"], "train.py")
    script.write_text("import torch\n")
    done = call(account, RUN, "-o", "train.py")
    assert (done.returncode, done.stdout) == (2, "")
    assert script.read_text() == "import torch\n"
    for _ in range(2):  # an older page is replaced
        assert call(account, RUN, "-o", "page.html").returncode == 0
