"""Checkpoints that a run may resume from are kept with the run that wrote them, and go with it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from recorded_run import FIRST, SECOND, THIRD, content, running, save

from ipexctl.node.common.answer import AgentError
from ipexctl.node.common.home_entries import drop_kept_copies, kept_copies
from ipexctl.node.common.records import RunStatus, TrainingProgress, has_gone_on
from ipexctl.node.files import kept_checkpoint
from ipexctl.node.files.earlier_files import EarlierFiles, look
from ipexctl.node.files.kept_checkpoint import KeepRequest, KeptCheckpoint, keep_checkpoint
from ipexctl.node.run.record.run_files import note_fetched


@pytest.fixture
def request_(tmp_path: Path) -> KeepRequest:
    home, cwd = tmp_path / "home", tmp_path / "project"
    home.mkdir(mode=0o700)
    cwd.mkdir()
    return {
        "home": str(home),
        "cwd": str(cwd),
        "resumed": [FIRST],
        "recorded": "",
        "path": str(cwd / "out"),
        "superseded": [],
        "sets_aside": False,
    }


def play(request: KeepRequest, run: str, *names: str, resumed: tuple[str, ...] = ()) -> dict[str, Path]:
    """A run that writes these checkpoints, the last one last."""
    out = Path(request["path"])
    with running(Path(request["home"]), run, Path(request["cwd"]), resumed=resumed):
        paths = {name: save(out / name, f"of {run}") for name in names}
        for at, path in enumerate(paths.values()):
            written = 1000 * (FIRST, SECOND, THIRD).index(run) + 1000 + at
            os.utime(path, (written, written))
    return paths


def kept_of(request: KeepRequest, run: str) -> dict[str, str]:
    base = Path(kept_copies(f"{request['home']}/runs/{run}"))
    return {str(path).replace(str(base), ""): content(path) for path in base.rglob("*") if path.is_file()}


def test_the_newest_of_each_name_is_kept_with_the_run_that_wrote_it(request_: KeepRequest) -> None:
    out = Path(request_["path"])
    save(out / "old.pt", "of no run")
    play(request_, FIRST, "ck_5.pt", "best.pt", "ck_10.pt")
    found = keep_checkpoint(request_)
    assert found == KeptCheckpoint(str(out / "ck_10.pt"), FIRST, 1002, has_record=True)
    kept = {str(out / name): f"of {FIRST}" for name in ("ck_10.pt", "best.pt")}
    assert kept_of(request_, FIRST) == kept
    play(request_, SECOND, "ck_10.pt", resumed=(FIRST,))
    assert keep_checkpoint({**request_, "resumed": [FIRST, SECOND]}).run == SECOND
    assert kept_of(request_, FIRST) == kept
    assert kept_of(request_, SECOND) == {str(out / "ck_10.pt"): f"of {SECOND}"}
    drop_kept_copies(f"{request_['home']}/runs/{FIRST}")
    assert not (Path(request_["home"]) / "results" / FIRST).exists()


@pytest.mark.parametrize("is_directory", [False, True])
def test_a_checkpoint_that_another_run_has_replaced_is_put_back(request_: KeepRequest, *, is_directory: bool) -> None:
    out = Path(request_["path"])
    first, second = (f"checkpoint-{number}/model.bin" if is_directory else f"ck_{number}.pt" for number in (10, 20))
    play(request_, FIRST, first)
    keep_checkpoint(request_)
    play(request_, SECOND, first, second)
    found = keep_checkpoint(request_)
    unit, other = (out / name.partition("/")[0] for name in (first, second))
    assert found == KeptCheckpoint(str(unit), FIRST, 1000, f"{SECOND}:{other}", has_record=True)
    assert content(out / first) == f"of {FIRST}"
    assert sorted(os.listdir(out)) == [unit.name]
    assert kept_of(request_, SECOND) == {str(out / name): f"of {SECOND}" for name in (first, second)}
    assert keep_checkpoint(request_) == found._replace(replaced="")
    back = keep_checkpoint({**request_, "resumed": [SECOND]})
    assert (back.run, content(out / second)) == (SECOND, f"of {SECOND}")


def test_files_of_another_run_leave_a_directory_and_its_own_stay(request_: KeepRequest) -> None:
    """The second run wrote one of the two files: what is left of the first is no checkpoint, and the second's is."""
    out = Path(request_["path"])
    play(request_, FIRST, "checkpoint-20/model.bin", "checkpoint-20/adapter.bin")
    play(request_, SECOND, "checkpoint-20/model.bin")
    found = keep_checkpoint({**request_, "resumed": [SECOND]})
    assert (found.run, os.listdir(out / "checkpoint-20")) == (SECOND, ["model.bin"])
    assert kept_of(request_, FIRST) == {str(out / "checkpoint-20/adapter.bin"): f"of {FIRST}"}


def test_what_the_user_edited_is_set_aside_if_a_copy_is_kept_and_refused_if_not(request_: KeepRequest) -> None:
    last = play(request_, FIRST, "last.pt")["last.pt"]
    save(last, "of the user")
    assert keep_checkpoint(request_)._replace(written=0) == KeptCheckpoint(str(last), "", 0, has_record=True)
    play(request_, THIRD, "last.pt")
    keep_checkpoint({**request_, "resumed": [THIRD]})
    save(last, "of the user")
    found = keep_checkpoint({**request_, "resumed": [THIRD]})
    aside = f"{request_['home']}/results/{THIRD}/set-aside{last}"
    assert (found.set_aside, content(Path(aside)), content(last)) == (aside, "of the user", f"of {THIRD}")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_checkpoint_of_another_account_is_refused(request_: KeepRequest) -> None:
    last = play(request_, FIRST, "last.pt")["last.pt"]
    os.chown(save(last, "of a colleague"), 61002, -1)
    with pytest.raises(AgentError, match=r"last.pt belongs to another account \(uid 61002\)"):
        keep_checkpoint(request_)
    assert not kept_of(request_, FIRST)
    with pytest.raises(AgentError, match="another account"):
        look_at(request_, "out", checkpoint="out")
    assert look_at(request_, "out") == []  # such as a model that the line names, in a colleague's directory


def test_a_live_run_is_not_moved_away(request_: KeepRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    play(request_, FIRST, "last.pt")
    keep_checkpoint(request_)
    play(request_, SECOND, "last.pt")
    monkeypatch.setattr(kept_checkpoint, "runs_with_processes", lambda _: {SECOND})
    with pytest.raises(AgentError, match=f"run {SECOND} goes on, and writes"):
        keep_checkpoint(request_)


def test_a_checkpoint_of_another_run_stays_unless_another_host_has_one_of_this_run(request_: KeepRequest) -> None:
    written = play(request_, SECOND, "last.pt", "vae.pt")
    request: KeepRequest = {**request_, "recorded": str(written["last.pt"])}
    with running(Path(request["home"]), FIRST, Path(request["cwd"])):
        pass
    assert keep_checkpoint(request) == KeptCheckpoint(str(written["last.pt"]), SECOND, 2000, has_record=True)
    moved = keep_checkpoint({**request, "sets_aside": True})
    assert moved == KeptCheckpoint(replaced=f"{SECOND}:{written['last.pt']}", has_record=True)
    assert [path.exists() for path in written.values()] == [False, True]
    assert set(kept_of(request_, SECOND)) == {str(written["last.pt"])}


def test_what_does_not_fit_is_refused_and_leaves_nothing(
    request_: KeepRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    play(request_, FIRST, "last.pt")
    monkeypatch.setattr(kept_checkpoint, "free_space", lambda _: 1000)
    with pytest.raises(AgentError, match=r"has to be kept .* the disk is full") as refused:
        keep_checkpoint(request_)
    assert f"ipexctl fetch {FIRST}:{request_['path']}/last.pt out/" in refused.value.fix
    assert not kept_of(request_, FIRST)


def look_at(
    request: KeepRequest, *paths: str, checkpoint: str = "", finished: tuple[str, ...] = ()
) -> list[EarlierFiles]:
    home, cwd = request["home"], request["cwd"]
    return list(look({"home": home, "cwd": cwd, "paths": paths, "checkpoint": checkpoint, "finished": finished}))


def test_a_fresh_start_keeps_what_an_ended_run_may_be_resumed_from(request_: KeepRequest) -> None:
    paths = play(request_, FIRST, "checkpoint-10/model.bin", "checkpoint-20/model.bin")
    size = sum(path.stat().st_size for path in paths.values())
    expected = EarlierFiles(FIRST, "out", 2, size, is_alive=False, is_kept=True)
    assert look_at(request_, "out", "nothing", ".") == [expected]
    assert set(kept_of(request_, FIRST)) == {str(paths["checkpoint-20/model.bin"])}
    play(request_, SECOND, "checkpoint-20/model.bin")
    assert keep_checkpoint(request_).run == FIRST
    assert content(paths["checkpoint-20/model.bin"]) == f"of {FIRST}"


@pytest.mark.parametrize("change", ["finished", "large"])
def test_a_fresh_start_keeps_nothing_of_a_finished_run_or_much(
    request_: KeepRequest, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    play(request_, FIRST, "last.pt")
    if change == "large":
        monkeypatch.setattr(kept_checkpoint, "free_space", lambda _: 1000)
    found = look_at(request_, "out", finished=(FIRST,) if change == "finished" else ())
    assert [(entry.files, entry.is_kept) for entry in found] == [(1, False)]
    assert not kept_of(request_, FIRST)


def test_directories_of_runs_with_ids_of_digits_are_not_in_each_others_way(request_: KeepRequest) -> None:
    names = [f"train-1201-02020{number}-1{number}34/checkpoint-20/model.bin" for number in (1, 2)]
    play(request_, FIRST, names[0])
    keep_checkpoint(request_)
    other = play(request_, SECOND, names[1])[names[1]]
    assert keep_checkpoint(request_).replaced == ""
    assert other.exists()


def test_what_was_fetched_is_not_named(request_: KeepRequest) -> None:
    paths = play(request_, FIRST, "a.pt", "b.pt")
    rundir = f"{request_['home']}/runs/{FIRST}"
    note_fetched(rundir, [str(paths["a.pt"])])
    assert [entry.files for entry in look_at(request_, "out")] == [1]
    note_fetched(rundir, [str(paths["b.pt"])])
    assert look_at(request_, "out") == []


def test_a_live_run_in_the_directory_is_told(request_: KeepRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ipexctl.node.run.record.run_files.runs_with_processes", lambda _: {FIRST})
    with running(Path(request_["home"]), FIRST, Path(request_["cwd"])):
        save(Path(request_["path"]) / "last.pt")
        assert [(entry.run, entry.is_alive) for entry in look_at(request_, "out")] == [(FIRST, True)]


@pytest.mark.parametrize(
    ("now", "before", "checkpoint", "gone_on"),
    [
        (30, 12, "a.pt", True),
        (12, 12, "a.pt", False),
        (30, 12, "", False),
        (None, 12, "a.pt", False),
        (30, None, "a", False),
    ],
)
def test_a_run_has_gone_on_with_more_steps_and_a_checkpoint(
    now: int | None, before: int | None, checkpoint: str, gone_on: bool
) -> None:
    run = RunStatus("b", "ok", checkpoint=checkpoint, progress=TrainingProgress(now))
    assert has_gone_on(run, RunStatus("a", "failed", progress=TrainingProgress(before))) == gone_on
