"""Tasks that would sync a home directory are refused before a host is changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from ipexctl.commands.app import app
from ipexctl.errors import FileError, raise_all
from ipexctl.extras.play.prepare import TaskSelection, check_projects, load_playbook, prepare
from ipexctl.extras.play.templater import Templater
from playbook_helpers import HOSTS, play_of

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "proj").mkdir()
    (tmp_path / "proj/two words.py").touch()
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def check(directory: Path, word: str, *, cwd: Path | None = None, tags: frozenset[str] = frozenset()) -> None:
    raise_all(errors_of(directory, word, cwd or directory, tags))


def errors_of(directory: Path, word: str, cwd: Path, tags: frozenset[str] = frozenset()) -> list[FileError]:
    with Templater() as templater:
        ready, _ = prepare(load_playbook(word, directory, templater), TaskSelection(tags), HOSTS, HOSTS)
        return list(check_projects(ready, cwd))


@pytest.mark.parametrize(
    "tasks",
    [
        "- sync: proj",
        "- run: proj/two words.py",
        "- sync: {src: '{{ x }}'}",
        "- run: {script: proj/train.py, cwd: proj}",
        "- run: {cmd: hostname, sync: no}",
        "- run: '{{ x }}'",
        "- run: {script: a.py, sync: '{{ x }}'}",
        "- run: {cmd: hostname, cwd: '{{ here }}/proj'}",
        "- {sync: ~, tags: [never]}",
    ],
)
def test_projects_below_home_and_unknown_paths_are_not_refused(home: Path, tasks: str) -> None:
    (home / "site.yml").write_text(play_of(tasks))
    assert errors_of(home, "site.yml", home) == []


def test_bundled_train_playbook_is_refused_in_a_home_directory(home: Path) -> None:
    with pytest.raises(FileError):
        check(home, "train")
    check(home / "proj", "train")


@pytest.mark.parametrize("task", ["sync:", "run: a.py"])
def test_play_command_refuses_a_home_directory_before_it_connects(
    home: Path, task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "site.yml").write_text(play_of(f"- exec: hostname\n- {task}"))
    monkeypatch.chdir(home)
    ran = CliRunner().invoke(app, ["play", "site.yml", "--hosts", "10.0.0.1"])
    assert isinstance(ran.exception, FileError)
    assert (ran.exception.line, ran.output) == (4, "")
