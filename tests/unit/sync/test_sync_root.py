"""Directories that cannot be a project: home directories, their parents, and ipexctl's own."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from sync_helpers import Place, put

from ipexctl.errors import UserError
from ipexctl.jobs.submit.project import locate_project, project_fix
from ipexctl.jobs.submit.request import RunRequest
from ipexctl.launch.request import LaunchOptions
from ipexctl.sync import scan as walk
from ipexctl.sync.project import data_patterns, read_project
from ipexctl.sync.root import describe_root_problem, home_directories, path_problem

HOMES = (Path("/home/me"), Path("/data/me"))
OWN = (Path("/home/me/.ipexctl"), Path("/home/me/.cache/ipexctl"))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of the user's that is not the one in passwd, with a script and a project in it."""
    directory = tmp_path / "me"
    put(directory, "a.py", "print()")
    put(directory, "proj/train.py", "print()")
    monkeypatch.setenv("HOME", str(directory))
    for name in ("XDG_CACHE_HOME", "XDG_STATE_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    return directory


def wishes(*words: str, **more: object) -> RunRequest:
    return RunRequest("script", words, LaunchOptions(), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("root", ["/", "/home", "/home/me", "/data", "/data/me", *map(str, OWN)])
def test_a_directory_with_a_home_in_it_is_no_project(root: str) -> None:
    assert describe_root_problem(Path(root), HOMES, OWN).startswith(f"{root} ")


@pytest.mark.parametrize(
    "root", ["/home/me/proj", "/home/you", "/etc", "/tmp", "/home/me2", "/home/me/.ipexctl/code/x"]
)
def test_other_directories_are_projects(root: str) -> None:
    assert describe_root_problem(Path(root), HOMES, OWN) == ""


def test_the_home_is_known_by_the_environment_and_by_passwd(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert home_directories()[0] == home
    monkeypatch.delenv("HOME")
    (passwd,) = home_directories()
    monkeypatch.setenv("HOME", str(home))
    assert home_directories() == (home, passwd)
    link = home.parent / "link"
    link.symlink_to(home)
    monkeypatch.setenv("HOME", str(link))
    assert home_directories() == (home, passwd)


def test_a_script_in_the_home_itself_is_refused_before_it_is_read(home: Path) -> None:
    with pytest.raises(UserError) as refused:
        locate_project(wishes("a.py"), home)
    assert str(home) in refused.value.message
    assert "mkdir ~/project" in refused.value.fix


def test_from_home_a_projects_script_takes_its_project_and_no_more(home: Path) -> None:
    put(home, "pyproject.toml")
    location = locate_project(wishes("proj/train.py"), home)
    assert (location.root, location.subdirectory, location.hint) == (home / "proj", ".", "")


@pytest.mark.parametrize("kind", ["module", "command"])
def test_a_run_without_a_script_is_refused_there_as_well(home: Path, kind: str) -> None:
    with pytest.raises(UserError) as refused:
        locate_project(RunRequest(kind, ("x",), LaunchOptions()), home)  # type: ignore[arg-type]
    assert "--cwd DIR" in refused.value.fix
    assert "--no-sync" in refused.value.fix


def test_a_named_root_of_the_file_system_is_refused_with_the_scripts_directory(home: Path) -> None:
    with pytest.raises(UserError) as refused:
        locate_project(wishes(str(home / "proj/train.py"), cwd=Path("/")), Path("/"))
    assert refused.value.fix.endswith(f"--cwd {home}/proj")
    assert locate_project(wishes(str(home / "proj/train.py")), Path("/")).root == home / "proj"


def test_ranks_start_in_the_directory_of_the_call_if_it_is_in_the_project(home: Path) -> None:
    put(home, "proj/pyproject.toml")
    put(home, "proj/tools/x")
    put(home, "proj/src/a.py", "print()")
    inside = locate_project(wishes("../src/a.py"), home / "proj/tools")
    assert (inside.root, inside.subdirectory, inside.command) == (home / "proj", "tools", ("../src/a.py",))
    outside = locate_project(wishes("me/proj/src/a.py"), home.parent)
    assert (outside.root, outside.subdirectory, outside.command) == (home / "proj", ".", ("src/a.py",))


def test_the_current_directory_above_an_unmarked_project_is_offered(home: Path) -> None:
    put(home, "proj/src/a.py", "print()")
    location = locate_project(wishes("src/a.py"), home / "proj")
    assert location.root == home / "proj/src"
    assert "--cwd ." in location.hint


def test_what_copies_nothing_may_begin_at_home(home: Path) -> None:
    assert locate_project(wishes("a.py", sync=False), home).root == home


def test_a_fix_is_a_line_for_the_shell(home: Path) -> None:
    odd = put(home, "it's a dir/x.py")
    assert project_fix(odd).endswith("""--cwd '""" + str(home) + """/it'"'"'s a dir'""")
    assert project_fix(odd, "cwd: ").partition("cwd: ")[1]


@pytest.mark.parametrize("root", [".", "..", "/", ".ipexctl", ".cache/ipexctl"])
def test_no_other_way_to_send_a_project_sends_a_home(home: Path, root: str) -> None:
    with pytest.raises(UserError) as refused:
        read_project(home / root)
    assert "ipexctl sync DIR" in refused.value.fix
    assert read_project(home / "proj").manifest.count == 1


def test_ipexctls_own_directories_are_in_no_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(tmp_path / "project", tmp_path / "home")
    for name, below in (("CACHE", ".cache"), ("STATE", ".state"), ("DATA", "own")):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(place.root / below))
        put(place.root, f"{below}/ipexctl/deep/x")
        put(place.root, f"{below}/other")
    for text in ("1", "2"):
        put(place.root, "train.py", text)
        assert place.synced().status == "changed"
        assert {path for path in place.there() if "ipexctl" in path} == set()
    assert {".cache/other", ".state/other", "own/other", "train.py"} <= set(place.there())
    found = read_project(place.root, includes=("*",)).manifest.entries
    assert not [entry.path for entry in found if "ipexctl" in entry.path]


UNREADABLE = """
import os, sys
from pathlib import Path
from ipexctl.errors import UserError
from ipexctl.sync import scan as walk
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
try:
    walk.scan_project(Path(sys.argv[1]))
except UserError as error:
    print(error.message)
"""


def test_a_directory_whose_files_cannot_be_looked_at_is_named() -> None:
    """Its names can be read, and no more: as of what is below /proc/1 for others than root."""
    with tempfile.TemporaryDirectory() as directory:
        root = Path(os.path.realpath(directory))
        put(root, "sub/x")
        root.chmod(0o755)
        (root / "sub").chmod(0o704 if os.geteuid() == 0 else 0o400)
        argv = [sys.executable, "-c", UNREADABLE, str(root)]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
        (root / "sub").chmod(0o755)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == f"{root}/sub/x: Permission denied"


def test_a_link_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As /proc/1/cwd can't, where this account isn't its owner."""
    (tmp_path / "link").symlink_to("x")
    put(tmp_path, "a")

    def refuse(path: object, **_: object) -> str:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(os, "readlink", refuse)
    with pytest.raises(UserError) as refused:
        walk.scan_project(tmp_path)
    assert refused.value.message.startswith(f"{tmp_path}/link: ")
    with pytest.raises(UserError):
        read_project(tmp_path / "link")
    assert data_patterns(tmp_path / "link", [tmp_path]) == ()


def test_why_a_path_is_not_what_is_wanted(tmp_path: Path) -> None:
    put(tmp_path, "file")
    os.mkfifo(tmp_path / "pipe")
    assert [path_problem(tmp_path / name, "file") for name in ("file", ".", "none", "file/x", "pipe")] == [
        "",
        "is a directory",
        "is not there",
        "is not there",
        "is no regular file",
    ]
    assert [path_problem(tmp_path / name, "directory") for name in ("file", ".", "none")] == [
        "is no directory",
        "",
        "is not there",
    ]
    assert path_problem(tmp_path / ("x" * 300), "file").startswith("can't be read")


@pytest.mark.parametrize(
    ("script", "meant"),
    [
        ("tarin.py", "train.py"),
        ("train", "train.py"),
        ("Train.py", "train.py"),
        ("src/evl.py", "src/eval.py"),
        ("eval.py", "src/eval.py"),
        ("nothing-like-it", ""),
        ("none/x.py", ""),
    ],
)
def test_a_misspelt_script_gets_the_name_that_was_meant(tmp_path: Path, script: str, meant: str) -> None:
    for name in ("train.py", "src/eval.py", "src/x/prepare.py"):
        put(tmp_path, name, "print()")
    with pytest.raises(UserError) as refused:
        locate_project(wishes(script), tmp_path)
    assert (f"did you mean '{meant}'?" in refused.value.fix) == bool(meant)
    assert ("-m NAME" in refused.value.fix) == (not meant)
