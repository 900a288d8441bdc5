"""Names that lead to one file on a Mac: what is written over another, and the form in which a name goes to hosts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ipexctl.files.file_names import NameRules, composed_name, find_equal, rules_of, stored_path
from ipexctl.node.common.guarded_directory import GuardedDirectory
from ipexctl.sync.scan import scan_project

NFC, NFD = "caf\u00e9", "cafe\u0301"
MAC = NameRules()
CASE, FORM = NameRules(ignores_form=False), NameRules(ignores_case=False)


@pytest.mark.parametrize(
    ("rules", "paths", "found"),
    [
        (MAC, ["a", "b", "a/c"], {}),
        (MAC, ["README", "Readme", "readme.md"], {1: "README"}),
        (CASE, ["x/A", "X/a"], {1: "x"}),
        (CASE, ["Data", "Data/x", "data", "data/y", "data/y/z"], {2: "Data", 3: "Data", 4: "Data"}),
        (CASE, ["Data/x", "data/y"], {1: "Data"}),
        (CASE, [NFC, NFD], {}),
        (FORM, [NFC, NFD, "Caf\u00e9"], {1: NFC}),
        (FORM, ["a", "A"], {}),
        (NameRules(False, False), ["a", "A", NFC, NFD], {}),
        (MAC, ["\ud800", "a/" * 2000 + "a"], {}),
    ],
)
def test_an_entry_that_would_be_written_over_an_earlier_one_is_found(
    rules: NameRules, paths: list[str], found: dict[int, str]
) -> None:
    assert find_equal(dict(enumerate(paths)), rules) == found


def test_a_file_system_of_linux_tells_all_names_apart_and_nothing_stays_of_the_question(tmp_path: Path) -> None:
    with GuardedDirectory.open(str(tmp_path)) as directory:
        assert rules_of(directory) == NameRules(ignores_case=False, ignores_form=False)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("rules", [MAC, CASE, FORM])
def test_a_file_system_is_asked_what_it_does_not_tell_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rules: NameRules
) -> None:
    def status_of(_: GuardedDirectory, name: bytes) -> os.stat_result | None:
        folded = rules.fold(os.fsdecode(name))
        return next((path.stat() for path in tmp_path.iterdir() if rules.fold(path.name) == folded), None)

    monkeypatch.setattr(GuardedDirectory, "status_of", status_of)
    with GuardedDirectory.open(str(tmp_path)) as directory:
        assert rules_of(directory) == rules
    assert not list(tmp_path.iterdir())


@pytest.fixture
def mac_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """lstat and listdir as on HFS+ and APFS: a name is looked up in any case and form."""
    real = os.lstat

    def lstat(path: bytes) -> os.stat_result:
        above, name = os.path.split(path)
        folded = MAC.fold(os.fsdecode(name))
        same = (entry for entry in os.listdir(above) if MAC.fold(os.fsdecode(entry)) == folded)
        return real(os.path.join(above, next(same, name)))

    monkeypatch.setattr(os, "lstat", lstat)


@pytest.mark.usefixtures("mac_disk")
def test_a_project_has_one_path_however_it_is_typed(tmp_path: Path) -> None:
    (tmp_path / "Project" / NFD).mkdir(parents=True)
    assert stored_path(f"{tmp_path}/pROJECT/{NFC}") == f"{tmp_path}/Project/{NFD}"
    assert stored_path(f"{tmp_path}/Project/none") == f"{tmp_path}/Project/none"


def test_a_path_of_linux_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "A").mkdir()
    assert stored_path(f"{tmp_path}/A") == f"{tmp_path}/A"


@pytest.mark.usefixtures("mac_disk")
def test_names_of_a_mac_go_to_the_hosts_composed(tmp_path: Path) -> None:
    (tmp_path / f"{NFD}.py").touch()
    assert [found.path for found in scan_project(tmp_path).found] == [f"{NFC}.py"]


def test_names_that_linux_tells_apart_stay(tmp_path: Path) -> None:
    (tmp_path / NFD).touch()
    (tmp_path / NFC).hardlink_to(tmp_path / NFD)
    assert {found.path for found in scan_project(tmp_path).found} == {NFC, NFD}
    (tmp_path / NFC).unlink()
    assert composed_name(os.fsencode(tmp_path), NFD, [NFD]) == NFD
