"""Found files that count, and the directories that a user trusts. Each decision: test_walk_cases.py."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ipexctl.commands import complete
from ipexctl.errors import UserError
from ipexctl.found_files import (
    Distrust,
    cache_directory,
    check_found,
    check_own,
    data_directory,
    describe,
    find_distrust,
    is_entry,
    is_listed,
    read_trusted_directories,
    state_directory,
)
from ipexctl.homes.registry import RunRegistry
from ipexctl.node.common.walk import PathPart, callers
from ipexctl.projects.root import own_directories
from ipexctl.remote.cancel import Cancel
from ipexctl.stack.install_context import ControlMachine
from message_data import missing

ME, ROOT, OTHER = 1000, 0, 1001
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


@pytest.mark.parametrize(
    ("euid", "sudo_uid", "expected"),
    [
        (ME, "", {ME, ROOT}),
        (ME, str(OTHER), {ME, ROOT}),  # only a variable
        (ROOT, str(ME), {ROOT, ME}),
        (ROOT, "", {ROOT}),
        (ROOT, "x", {ROOT}),
        (ROOT, "²", {ROOT}),
        (ROOT, "-1", {ROOT}),
        (ROOT, "9" * 5000, {ROOT}),
    ],
)
def test_trusted_accounts(euid: int, sudo_uid: str, expected: set[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: euid)
    monkeypatch.setenv("SUDO_UID", sudo_uid)
    assert callers() == expected


@pytest.mark.parametrize(
    ("entry", "directory", "expected"),
    [
        ("/srv/a", "/srv/a", True),
        ("/srv/a/", "/srv/a", True),
        ("/srv/a", "/srv/a/b", False),
        ("/srv/a", "/srv", False),
        ("/srv/a/*", "/srv/a", True),
        ("/srv/a/*", "/srv/a/b/c", True),
        ("/srv/a/*", "/srv/ab", False),
        ("/srv/*", "/srv", True),
        ("/srv/a*", "/srv/ab", False),
        ("/*", "/srv/a", True),
        ("/", "/srv", False),
        ("~/team", os.path.realpath(os.path.expanduser("~/team")), True),
    ],
)
def test_entry_of_trusted_directories(entry: str, directory: str, expected: bool) -> None:
    assert is_listed(directory, (entry,)) is expected


def test_entries_are_absolute_paths() -> None:
    assert [is_entry(entry) for entry in ("/a", "~/a", "a", "", "*", 3, "/a\0")] == [True, True, *[False] * 5]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("SUDO_UID", raising=False)
    (tmp_path / "config/ipexctl").mkdir(parents=True)
    (tmp_path / "project").mkdir()
    (tmp_path / "project/hostfile").write_text("node1\n")
    return tmp_path / "project"


def trust(project: Path, *entries: object) -> Path:
    path = project.parent / "config/ipexctl/config.toml"
    path.write_text(f"trusted-directories = {[str(entry) for entry in entries]}\n")
    return path


def test_refusal_has_owner_mode_and_the_lines_to_paste(project: Path) -> None:
    project.chmod(0o777)
    with pytest.raises(UserError) as caught:
        check_found(project / "hostfile", naming="-H hostfile")
    assert missing(caught.value.message, f"{project}/hostfile {project} 0777 ({os.geteuid()})") == []
    assert f'trusted-directories = ["{project}"]' in caught.value.fix
    assert missing(caught.value.fix, f"{project.parent}/config/ipexctl/config.toml -H hostfile") == []
    trust(project, project)
    check_found(project / "hostfile")
    trust(project, project.parent)
    with pytest.raises(UserError):
        check_found(project / "hostfile")
    trust(project, f"{project.parent}/*")
    check_found(project / "hostfile")


def test_files_that_are_not_there_are_left_to_their_reader(project: Path) -> None:
    project.chmod(0o777)
    check_found(project / "missing")
    check_found(project / "hostfile/below")
    (project / "loop").symlink_to("loop")
    with pytest.raises(UserError):  # the link itself could be replaced
        check_found(project / "loop")


def test_a_config_file_that_others_can_write_trusts_nothing(project: Path) -> None:
    project.chmod(0o777)
    config = trust(project, project)
    config.chmod(0o666)
    with pytest.raises(UserError):
        check_found(project / "hostfile")
    with pytest.raises(UserError) as caught:
        check_own(config)
    assert caught.value.fix.endswith(f"chmod go-w {config}")
    config.chmod(0o644)
    check_own(config)
    check_found(project / "hostfile")


@pytest.mark.parametrize(
    "text", ["trusted-directories = 3\n", "trusted-directories = [3, 'x']\n", "[", "\xff", "[" * 9999]
)
def test_a_config_file_that_cannot_be_read_trusts_nothing(text: str, project: Path) -> None:
    trust(project).write_bytes(text.encode("latin-1"))
    assert read_trusted_directories() == ()


@AS_ROOT
def test_the_directories_of_a_link_and_of_its_target_have_to_be_trusted(project: Path) -> None:
    link, elsewhere = project / "link", project.parent / "elsewhere"
    elsewhere.mkdir()
    elsewhere.chmod(0o777)
    (elsewhere / "hosts").write_text("node1\n")
    link.symlink_to("../elsewhere/hosts")
    distrust = find_distrust(link)
    assert distrust is not None
    assert distrust.directory == str(elsewhere)
    for owner, entries, is_trusted in (
        (0, [project], False),
        (0, [elsewhere], True),
        (OTHER, [elsewhere], False),
        (OTHER, [elsewhere, project], True),
    ):
        os.lchown(link, owner, owner)
        trust(project, *entries)
        with contextlib.nullcontext() if is_trusted else pytest.raises(UserError):
            check_found(link)


@AS_ROOT
def test_under_sudo_the_files_of_its_caller_count(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.chown(project / "hostfile", OTHER, OTHER)
    os.chown(project, OTHER, OTHER)
    with pytest.raises(UserError):
        check_found(project / "hostfile")
    monkeypatch.setenv("SUDO_UID", str(OTHER))
    check_found(project / "hostfile")


def test_an_account_without_a_name_is_shown_by_its_number() -> None:
    status: Any = SimpleNamespace(st_uid=4_000_000_123, st_gid=4_000_000_124, st_mode=0o100640)
    file = PathPart("/x", status, frozenset(), str)
    assert missing(describe(Distrust(file, "owner", "/")), "4000000123, 4000000124, 0640") == []


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
        (lambda: ControlMachine.find(Cancel()), {"XDG_CACHE_HOME"}),
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
