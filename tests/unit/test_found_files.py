"""Found files that count: the decision as a table, and the same with real owners, modes, groups and links."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from ipexctl.commands import complete
from ipexctl.errors import UserError
from ipexctl.found_files import (
    Distrust,
    Objection,
    check_found,
    check_own,
    describe,
    find_distrust,
    is_entry,
    is_listed,
    objection_to,
    read_trusted_directories,
)
from ipexctl.node.common.walk import PathPart, callers, who_else_may_write
from ipexctl.run.registry import RunRegistry
from ipexctl.stack.install_context import ControlMachine
from ipexctl.sync.root import own_directories
from ipexctl.user_directories import cache_directory, data_directory, state_directory
from message_data import missing

ME, ROOT, OTHER = 1000, 0, 1001
MINE, TEAM = 1000, 5000


def part(path: str, uid: int, gid: int, mode: int) -> PathPart:
    """One that this account sees, whose own group is MINE."""
    uids = frozenset({ME, ROOT})
    by_group = who_else_may_write(None, gid, lambda group: group == MINE, uids) if mode & 0o020 else ""
    status = SimpleNamespace(st_uid=uid, st_gid=gid, st_mode=mode)
    return PathPart(path, status, uids, lambda: "others" if mode & 0o002 else by_group)


HOME = (ME, MINE, 0o755)
STICKY = (ROOT, ROOT, 0o1777)
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")

DECISIONS: tuple[tuple[str, tuple[int, int, int], tuple[int, int, int], tuple[str, Objection] | None], ...] = (
    ("own file in an own directory", (ME, MINE, 0o644), HOME, None),
    ("umask 002 with an own group", (ME, MINE, 0o664), (ME, MINE, 0o775), None),
    ("another's file", (OTHER, TEAM, 0o600), HOME, ("FILE", "owner")),
    ("own file that the team writes", (ME, TEAM, 0o664), HOME, ("FILE", "group")),
    ("own file that all write", (ME, MINE, 0o646), HOME, ("FILE", "others")),
    ("setgid project of a team", (ME, TEAM, 0o644), (ME, TEAM, 0o2775), ("DIR", "group")),
    ("another's directory", (ME, MINE, 0o644), (OTHER, TEAM, 0o755), ("DIR", "owner")),
    ("open directory", (ME, MINE, 0o644), (ROOT, ROOT, 0o777), ("DIR", "others")),
    ("own file in a sticky directory", (ME, MINE, 0o644), STICKY, None),
    ("another's file in a sticky directory", (OTHER, TEAM, 0o644), STICKY, ("FILE", "owner")),
    ("a file system where every mode is 0777", (ME, MINE, 0o777), (ME, MINE, 0o777), ("FILE", "others")),
)


@pytest.mark.parametrize(
    ("file", "directory", "expected"), [row[1:] for row in DECISIONS], ids=[d[0] for d in DECISIONS]
)
def test_decision(
    file: tuple[int, int, int], directory: tuple[int, int, int], expected: tuple[str, Objection] | None
) -> None:
    problem = objection_to(part("FILE", *file), part("DIR", *directory))
    assert (problem and (problem[0].path, problem[1])) == expected


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
def test_links_count_with_their_owner_and_their_target(project: Path) -> None:
    link = project / "link"
    link.symlink_to("hostfile")
    assert find_distrust(link) is None
    os.lchown(link, OTHER, OTHER)
    distrust = find_distrust(link)
    assert distrust is not None
    assert (distrust.part.path, distrust.objection) == (str(link), "owner")
    os.lchown(link, 0, 0)
    elsewhere = project.parent / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "hosts").write_text("node1\n")
    link.unlink()
    link.symlink_to("../elsewhere/hosts")
    assert find_distrust(link) is None
    elsewhere.chmod(0o777)
    distrust = find_distrust(link)
    assert distrust is not None
    assert (distrust.directory, distrust.objection) == (str(elsewhere), "others")
    trust(project, project)
    with pytest.raises(UserError):
        check_found(link)
    trust(project, elsewhere)
    check_found(link)
    os.lchown(link, OTHER, OTHER)
    with pytest.raises(UserError):
        check_found(link)
    trust(project, elsewhere, project)
    check_found(link)


@AS_ROOT
def test_under_sudo_the_files_of_its_caller_count(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.chown(project / "hostfile", OTHER, OTHER)
    os.chown(project, OTHER, OTHER)
    with pytest.raises(UserError):
        check_found(project / "hostfile")
    monkeypatch.setenv("SUDO_UID", str(OTHER))
    check_found(project / "hostfile")


def test_a_sticky_directory_is_fine_for_own_files(project: Path) -> None:
    project.chmod(0o1777)
    check_found(project / "hostfile")


def test_an_account_without_a_name_is_shown_by_its_number() -> None:
    file = part("/x", 4_000_000_123, 4_000_000_124, 0o100640)
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
