"""Whose a file is: the record that each run's end makes on a host."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from recorded_run import FIRST, SECOND, THIRD, content, running, save

from ipexctl.node.common.home_entries import is_run
from ipexctl.node.run.record import run_files
from ipexctl.node.run.record.file_owner import FileOwners, read_status_now, separate
from ipexctl.node.run.record.run_files import HostRank, adopt, recorded_files

ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir(mode=0o700)
    return tmp_path / "home"


@pytest.fixture
def cwd(tmp_path: Path) -> Path:
    (tmp_path / "project").mkdir()
    return tmp_path / "project"


def owner(home: Path, run: str, path: Path) -> str | None:
    return FileOwners(str(home / "runs" / run)).owner(os.path.realpath(path), path.stat())


def test_a_run_has_what_changed_between_its_begin_and_its_end(home: Path, cwd: Path) -> None:
    before = save(cwd / "train.py", "project")
    with running(home, FIRST, cwd):
        during = save(cwd / "out/last.pt")
    after = save(cwd / "later.pt")
    assert [owner(home, FIRST, path) for path in (before, during, after)] == [None, FIRST, ""]
    assert owner(home, SECOND, during) == FIRST


@pytest.mark.parametrize(
    ("change", "whose"),
    [
        (lambda path: path.chmod(0o600), FIRST),
        (lambda path: os.link(path, path.with_name("link.pt")), FIRST),
        (lambda path: path.write_bytes(b"of the user"), ""),
        (lambda path: Path(shutil.copy2(path, f"{path}.new")).replace(path), ""),
        (lambda path: os.utime(path, (1, 1)), ""),
    ],
)
def test_a_file_is_the_runs_as_long_as_its_bytes_are_those_at_the_end(
    home: Path, cwd: Path, change: object, whose: str
) -> None:
    with running(home, FIRST, cwd):
        path = save(cwd / "out/last.pt")
    assert callable(change)
    change(path)
    assert owner(home, FIRST, path) == whose


def test_a_later_run_takes_a_file_over_whatever_time_it_bears(home: Path, cwd: Path) -> None:
    with running(home, FIRST, cwd):
        path = save(cwd / "out/last.pt", "first")
    with running(home, SECOND, cwd):
        save(path, "second")
        os.utime(path, (1, 1))
    assert (owner(home, FIRST, path), owner(home, SECOND, path)) == (SECOND, SECOND)


def test_two_runs_at_once_leave_a_file_that_is_nobodys(home: Path, cwd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_files, "runs_with_processes", lambda _: {FIRST, SECOND})
    with running(home, FIRST, cwd), running(home, SECOND, cwd):
        path = save(cwd / "out/last.pt")
        assert owner(home, FIRST, path) == ""
    assert (owner(home, FIRST, path), owner(home, SECOND, path)) == ("", "")


def test_a_resumed_run_has_the_files_of_the_runs_before_it(home: Path, cwd: Path) -> None:
    with running(home, FIRST, cwd):
        path = save(cwd / "out/last.pt")
    with running(home, SECOND, cwd, resumed=[FIRST]):
        pass
    owners = FileOwners(str(home / "runs" / SECOND))
    assert owners.owner(str(path), path.stat()) == FIRST
    assert owners.other_writer(str(path), path.stat()) is None


def test_a_killed_run_is_recorded_by_the_next_look_and_before_the_next_run(home: Path, cwd: Path) -> None:
    rundir = home / "runs" / FIRST
    rundir.mkdir(parents=True)
    HostRank(str(rundir)).begin(str(cwd), "")
    path = save(cwd / "out/last.pt")
    with running(home, SECOND, cwd):
        other = save(cwd / "out/other.pt")
    assert (owner(home, FIRST, path), owner(home, SECOND, path)) == (FIRST, FIRST)
    assert owner(home, FIRST, other) == SECOND


def test_a_run_that_has_processes_is_open(home: Path, cwd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_files, "runs_with_processes", lambda _: {FIRST})
    with running(home, FIRST, cwd):
        path = save(cwd / "last.pt")
        recorded = recorded_files(str(home / "runs" / FIRST))
        assert recorded is not None
        assert not recorded.is_closed
        assert list(recorded.paths()) == [str(path)]
        assert owner(home, FIRST, path) == FIRST


def test_the_last_rank_makes_the_record(home: Path, cwd: Path) -> None:
    rundir = home / "runs" / FIRST
    rundir.mkdir(parents=True)
    ranks = [HostRank(str(rundir)) for _ in range(3)]
    for rank in ranks:
        rank.begin(str(cwd), "")
    assert [rank.end() for rank in ranks] == [False, False, True]
    assert not ranks[0].end()


def test_hosts_that_share_a_home_have_a_record_each(home: Path, cwd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A look on one of them does not close the record of the other while the run goes on there."""
    rundir = home / "runs" / FIRST
    rundir.mkdir(parents=True)
    here = os.uname()
    other = type(here)(("Linux", "other", *here[2:]))
    first, second = HostRank(str(rundir)), HostRank(str(rundir))
    first.begin(str(cwd), "")
    with monkeypatch.context() as patch:
        patch.setattr("os.uname", lambda: other)
        second.begin(str(cwd), "")
    first.end()
    path = save(cwd / "last.pt")
    recorded = recorded_files(str(rundir))
    assert recorded is not None
    assert (sorted(bool(host.path) for host in recorded.hosts), recorded.is_closed) == ([False, True], False)
    assert owner(home, FIRST, path) == FIRST
    (rundir / "status.json").write_text(
        '{"schema": "ipexctl.status/1", "id": "x", "state": "failed", "supervisor": {}, "ranks": [], "ended": 1}'
    )
    again = recorded_files(str(rundir))
    assert again is not None
    assert again.is_closed


def test_a_file_that_was_put_in_place_is_the_run_it_was_put_for(home: Path, cwd: Path) -> None:
    with running(home, FIRST, cwd):
        path = save(cwd / "last.pt", "first")
    kept = shutil.copy2(path, home / "copy.pt")
    with running(home, SECOND, cwd):
        save(path, "second")
        shutil.copy2(kept, path)  # as an exchange at a restart does
        adopt(str(home / "runs" / FIRST), [str(path)])
    assert (owner(home, FIRST, path), owner(home, SECOND, path)) == (FIRST, FIRST)


def test_a_run_that_never_was_here_adopts_files_that_another_host_sent(home: Path, cwd: Path) -> None:
    path = save(cwd / "last.pt")
    adopt(str(home / "runs" / FIRST), [str(path)])
    assert owner(home, SECOND, path) == FIRST


@ROOT
@pytest.mark.parametrize("target", ["..", "/", "."])
def test_a_link_to_a_directory_above_brings_nothing_of_it(home: Path, cwd: Path, target: str) -> None:
    (cwd / "up").symlink_to(target)
    with running(home, FIRST, cwd):
        own, others = save(cwd / "out/last.pt"), save(cwd.parent / "elsewhere/last.pt")
    recorded = recorded_files(str(home / "runs" / FIRST))
    assert recorded is not None
    assert [*recorded.paths()] == [str(own)]
    assert owner(home, FIRST, others) is None


def test_files_of_other_accounts_are_never_recorded(home: Path, cwd: Path) -> None:
    with running(home, FIRST, cwd):
        path = save(cwd / "last.pt")
        os.chown(path, 61002, -1)
    assert owner(home, FIRST, path) == ""
    os.chown(path, 0, -1)
    assert owner(home, FIRST, path) == ""


def test_links_are_followed_and_a_directory_on_another_device_has_its_own_clock(
    home: Path, cwd: Path, tmp_path: Path
) -> None:
    elsewhere = Path("/dev/shm") / f"ipexctl-tests-{os.getpid()}"
    near = tmp_path / "near"
    near.mkdir()
    elsewhere.mkdir()
    try:
        (cwd / "far").symlink_to(elsewhere)
        (cwd / "out").symlink_to(near)
        assert elsewhere.stat().st_dev != cwd.stat().st_dev
        old = save(elsewhere / "old.pt")
        with running(home, FIRST, cwd, checkpoint=str(elsewhere / "ck")):
            paths = [save(cwd / "far/a.pt"), save(cwd / "out/b.pt"), save(elsewhere / "ck/c.pt")]
        assert [owner(home, FIRST, path) for path in (*paths, old)] == [FIRST, FIRST, FIRST, None]
    finally:
        shutil.rmtree(elsewhere)


def test_a_record_of_too_many_files_is_incomplete_and_the_begin_decides(
    home: Path, cwd: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_files, "_MOST_ENTRIES", 2)
    with running(home, FIRST, cwd):
        paths = [save(cwd / f"{number}.pt") for number in range(5)]
    after = save(cwd / "after.pt")
    assert [owner(home, FIRST, path) for path in paths] == [FIRST] * 5
    assert owner(home, FIRST, after) == ""


@pytest.mark.parametrize("text", ["", "[]", "{", '{"tops": 7}', '{"tops": [["a"]], "complete": true}\n{}'])
def test_a_damaged_record_leaves_the_begin(home: Path, cwd: Path, text: str) -> None:
    with running(home, FIRST, cwd) as rundir:
        path = save(cwd / "last.pt")
    next(rundir.glob("files/*[!bk].json")).write_text(text)
    assert owner(home, FIRST, path) in (FIRST, "")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"machine": 1, "tops": 7}', '{"machine": "a", "tops": [["b"]]}'])
def test_a_damaged_begin_is_no_begin(home: Path, cwd: Path, text: str) -> None:
    with running(home, FIRST, cwd) as rundir:
        path = save(cwd / "last.pt")
        next(rundir.glob("files/*.begin.json")).write_text(text)
    with running(home, SECOND, cwd):
        pass
    assert owner(home, SECOND, path) is None


def test_a_home_knows_the_directory_of_a_run_that_only_left_files_there(home: Path, cwd: Path) -> None:
    adopt(str(home / "runs" / FIRST), [str(save(cwd / "last.pt"))])
    assert is_run(str(home / "runs" / FIRST))


def test_a_checkpoint_directory_has_files_of_one_run_after_its_end(home: Path, cwd: Path) -> None:
    with running(home, FIRST, cwd):
        save(cwd / "out/checkpoint-20/model.bin", "first")
        adapter = save(cwd / "out/checkpoint-20/adapter.bin", "first")
        final = save(cwd / "out/final.bin", "first")
    with running(home, SECOND, cwd) as rundir:
        model = save(cwd / "out/checkpoint-20/model.bin", "second")
        save(cwd / "out/other.bin", "second")
    separate(str(rundir))
    assert (adapter.exists(), content(model), content(final)) == (False, "second", "first")
    assert content(Path(f"{home}/results/{FIRST}/.ipexctl-kept{adapter}")) == "first"


def test_the_status_of_an_ended_run_names_who_has_its_checkpoint_now(home: Path, cwd: Path) -> None:
    with running(home, FIRST, cwd) as rundir:
        path = save(cwd / "out/checkpoint-20/model.bin")
    status = (rundir / "status.json").read_text()
    (rundir / "status.json").write_text(status.replace("{", '{"checkpoint": "out/checkpoint-20", ', 1))
    assert read_status_now(str(rundir)).status.overwritten is None
    with running(home, SECOND, cwd):
        save(path, "second")
    overwritten = read_status_now(str(rundir)).status.overwritten
    assert overwritten is not None
    assert overwritten.run == SECOND
    with running(home, THIRD, cwd):
        path.unlink()
    assert read_status_now(str(rundir)).status.checkpoint == ""
