"""The files of a search: trials for --resume, lines in ipexctl.toml, paths that trials may not write."""

from __future__ import annotations

from pathlib import Path

import pytest

from ipexctl.errors import UserError
from ipexctl.extras.autotune.estimates import LogRatio, estimate, expected_loss
from ipexctl.extras.autotune.model import Observation, SearchLimits, Space, Trial
from ipexctl.extras.autotune.outside_paths import leading_out, paths_in
from ipexctl.extras.autotune.save import with_result
from ipexctl.extras.autotune.search import SearchState
from ipexctl.extras.autotune.trials_file import SearchHeader, TrialsFile, resume
from ipexctl.extras.autotune.tuner import ChangedSearch, replayed
from ipexctl.refusal import Refusal

SETTINGS = (("ccl_workers", "2"), ("omp", "7"), ("x.KMP_BLOCKTIME", "0"))
TRIAL = Trial("omp", 1, (("omp", "1"),), is_baseline=False)
SEEN = Observation(12.5, 3.25, 64.0, (("step 10", 0.5),))


def test_trials_are_read_back(tmp_path: Path) -> None:
    file = TrialsFile(tmp_path, SearchHeader("abc", 7, "train.py", 1.0))
    file.begin()
    file.add(TRIAL, SEEN)
    file.add(TRIAL, Observation(2.0, failure="killed"))
    again, trials = resume(tmp_path, "abc")
    assert again.header.seed == 7
    assert trials == ((TRIAL, SEEN), (TRIAL, Observation(2.0, failure="killed")))
    assert file.path.stat().st_mode & 0o777 == 0o600


def test_a_line_that_is_cut_off_ends_what_is_read(tmp_path: Path) -> None:
    file = TrialsFile(tmp_path, SearchHeader("abc", 7, "train.py", 1.0))
    file.begin()
    file.add(TRIAL, SEEN)
    file.add(TRIAL, SEEN)
    file.path.write_bytes(file.path.read_bytes()[:-9])
    again, trials = resume(tmp_path, "abc")
    assert len(trials) == 1
    again.add(TRIAL, SEEN)
    assert len(resume(tmp_path, "abc")[1]) == 2


def test_another_call_is_not_resumed(tmp_path: Path) -> None:
    with pytest.raises(UserError):
        resume(tmp_path, "abc")
    TrialsFile(tmp_path, SearchHeader("abc", 7, "train.py", 1.0)).begin()
    with pytest.raises(UserError):
        resume(tmp_path, "other")


def test_trials_of_other_candidates_are_refused() -> None:
    space = Space(("omp",), lambda *_: ((("omp", "1"),),))
    state = SearchState(space, SearchLimits(100.0), 1)
    first = state.progress().next
    assert first is not None
    assert replayed(state, [(first, SEEN)]).observations == (SEEN,)
    with pytest.raises(ChangedSearch):
        replayed(state, [(Trial("bind", 1, (), is_baseline=True), SEEN)])


def test_a_full_disk_does_not_end_a_search(tmp_path: Path) -> None:
    file = TrialsFile(tmp_path / "file" / "below", SearchHeader("abc", 7, "train.py", 1.0))
    (tmp_path / "file").write_text("")
    file.begin()
    file.add(TRIAL, SEEN)
    assert file.error is not None


@pytest.mark.parametrize(
    "before",
    ["", "hosts = 'a'\n", "[run]", "[run]\nbind = 'none'\nomp = 2 # old\n\n[install]\nstack = 'torch'\n"],
)
def test_the_result_is_in_the_table_run_and_all_else_stays(before: str) -> None:
    text = with_result(before, SETTINGS, "2026-11-30: 1.18x (1.12 to 1.22)")
    assert isinstance(text, str)
    assert "omp = 7\n" in text
    assert "ccl-workers = 2\n" in text
    assert 'export = ["KMP_BLOCKTIME=0"]\n' in text
    assert "1.18x (1.12 to 1.22)" in text
    assert all(line in text for line in before.splitlines() if "omp" not in line)
    again = with_result(text, (("omp", "6"),), "2026-12-01: 1.05x")
    assert isinstance(again, str)
    assert again.count("# ipexctl autotune") == 1


def test_exports_of_the_file_stay() -> None:
    text = with_result('[run]\nexport = ["A=1", "KMP_BLOCKTIME=1"]\n', SETTINGS, "")
    assert isinstance(text, str)
    assert 'export = ["A=1", "KMP_BLOCKTIME=0"]' in text


@pytest.mark.parametrize("before", ["[run\n", '[run]\nexport = [\n "A=1",\n]\n', "run.omp = 3\n"])
def test_a_file_that_can_not_be_edited_safely_stays(before: str) -> None:
    assert isinstance(with_result(before, SETTINGS, ""), Refusal)


def test_absolute_paths_of_arguments_are_found() -> None:
    arguments = ["--out=/scratch/run/", "/data/x", "--lr", "0.1", "/ok/below/x", "-o/no"]
    assert paths_in(arguments, ("/ok",)) == ("/scratch/run", "/data/x")


def test_relative_paths_that_lead_out_are_found(tmp_path: Path) -> None:
    root = tmp_path / "project"
    (root / "src").mkdir(parents=True)
    (root / "inside").mkdir()
    (root / "link").symlink_to(tmp_path)
    assert leading_out(["../out", "link", "inside", "--o=../../x", "../project/y"], root, root) == (
        "../out",
        "link",
        "../../x",
    )
    assert leading_out(["../out"], root / "src", root) == ()


def test_the_interval_leaves_the_ends_out_from_six_values_on() -> None:
    assert estimate([0.0, 0.1, 0.2]).low == pytest.approx(1.0)
    assert estimate([-0.5, 0.0, 0.1, 0.2, 0.3, 0.9]).low == pytest.approx(1.0)


def test_the_expected_loss_falls_with_a_clear_lead() -> None:
    def loss(lead: float, weight: float = 1.0, deviation: float = 0.05) -> float:
        return expected_loss([LogRatio(lead, weight)] * 2, deviation)

    assert loss(0.0) > loss(0.1) > loss(0.3)
    assert loss(0.05, weight=4.0) < loss(0.05)
    assert loss(0.1, deviation=0.0) == 0.0
