"""The directories of ipexctl on the control machine are private, also if an older version created them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ipexctl.commands import complete
from ipexctl.errors import UserError
from ipexctl.run.registry import RunRegistry
from ipexctl.stack.install_context import ControlMachine
from ipexctl.sync.root import own_directories
from ipexctl.user_directories import cache_directory, data_directory, state_directory
from message_data import missing

KINDS = {"XDG_STATE_HOME": state_directory, "XDG_CACHE_HOME": cache_directory, "XDG_DATA_HOME": data_directory}


@pytest.fixture(params=KINDS)
def open_directory(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, Path]:
    """A directory as an older version created it with umask 0, below a directory of other programs."""
    for variable in KINDS:
        monkeypatch.setenv(variable, str(tmp_path / variable))
    parent = tmp_path / request.param
    directory = parent / "ipexctl"
    (directory / "runs").mkdir(parents=True)
    for path, mode in ((parent, 0o777), (directory, 0o777), (directory / "runs", 0o755)):
        path.chmod(mode)
    return request.param, directory


def test_open_directory_is_made_private_and_its_parent_is_unchanged(open_directory: tuple[str, Path]) -> None:
    variable, directory = open_directory
    assert KINDS[variable]() == directory
    assert directory.stat().st_mode & 0o777 == 0o700
    assert directory.parent.stat().st_mode & 0o777 == 0o777


def test_a_directory_of_another_account_is_refused_and_not_changed(
    open_directory: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    variable, directory = open_directory
    monkeypatch.setattr(os, "geteuid", lambda: directory.stat().st_uid + 1)
    with pytest.raises(UserError) as caught:
        KINDS[variable]()
    assert missing(caught.value.message + caught.value.fix, f"{directory} {variable}") == []
    assert directory.stat().st_mode & 0o777 == 0o777
    assert complete.runs() == ["last"], "completion prints no error"


@pytest.mark.parametrize(
    ("use", "variables"),
    [
        (lambda: RunRegistry().directory, {"XDG_STATE_HOME"}),
        (ControlMachine.find, {"XDG_CACHE_HOME"}),
        (own_directories, set(KINDS)),
    ],
)
def test_commands_make_private_the_directories_they_use(
    use: Callable[[], object], variables: set[str], open_directory: tuple[str, Path]
) -> None:
    variable, directory = open_directory
    use()
    assert (directory.stat().st_mode & 0o777 == 0o700) == (variable in variables)


def test_missing_directory_is_not_created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "none"))
    assert cache_directory() == tmp_path / "none/ipexctl"
    assert not (tmp_path / "none").exists()
