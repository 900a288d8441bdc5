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
from ipexctl.launch.spec import RunSpec
from ipexctl.projects.root import describe_root_problem, home_directories, path_problem
from ipexctl.run.start.start_project import locate_project, project_fix
from ipexctl.sync import scan as walk
from ipexctl.sync.project import paths_below, read_project
from plan_helpers import spec_of

HOMES = (Path("/home/me"), Path("/data/me"))
OWN = (Path("/home/me/.ipexctl"), Path("/home/me/.cache/ipexctl"))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home directory, other than the one in passwd, with a script and a project."""
    directory = tmp_path / "me"
    put(directory, "a.py", "print()")
    put(directory, "proj/train.py", "print()")
    monkeypatch.setenv("HOME", str(directory))
    for name in ("XDG_CACHE_HOME", "XDG_STATE_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    return directory


def run_spec(*words: str, **more: object) -> RunSpec:
    return spec_of("script", words, **more)


@pytest.mark.parametrize(
    "root", ["/home/me/proj", "/home/you", "/etc", "/tmp", "/home/me2", "/home/me/.ipexctl/code/x"]
)
def test_other_directories_are_accepted_as_project(root: str) -> None:
    assert describe_root_problem(Path(root), HOMES, OWN) == ""


def test_home_directories_are_from_home_variable_and_passwd(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert home_directories()[0] == home
    monkeypatch.delenv("HOME")
    (passwd,) = home_directories()
    monkeypatch.setenv("HOME", str(home))
    assert home_directories() == (home, passwd)
    link = home.parent / "link"
    link.symlink_to(home)
    monkeypatch.setenv("HOME", str(link))
    assert home_directories() == (home, passwd)


@pytest.mark.parametrize(
    ("mark", "cwd", "is_hinted"),
    [("", "work", True), ("work/proj/pyproject.toml", "work", False), ("", ".", False), ("", "work/proj", False)],
)
def test_current_directory_is_offered_where_it_could_be_a_larger_project(
    home: Path, mark: str, cwd: str, is_hinted: bool
) -> None:
    put(home, "work/proj/train.py")
    if mark:
        put(home, mark)
    script = home / "work/proj/train.py"
    location = locate_project(run_spec(str(script.relative_to(home / cwd))), home / cwd)
    assert location.root == home / "work/proj"
    assert bool(location.hint) == is_hinted
    assert "--cwd ." in location.hint or not is_hinted


def test_script_below_the_home_has_its_own_directory_as_project(home: Path) -> None:
    put(home, "pyproject.toml")
    location = locate_project(run_spec("proj/train.py"), home)
    assert (location.root, location.subdirectory, location.hint) == (home / "proj", ".", "")


def test_ranks_start_in_the_current_directory_if_it_is_in_the_project(home: Path) -> None:
    put(home, "proj/pyproject.toml")
    put(home, "proj/tools/x")
    put(home, "proj/src/a.py", "print()")
    inside = locate_project(run_spec("../src/a.py"), home / "proj/tools")
    assert (inside.root, inside.subdirectory, inside.command) == (home / "proj", "tools", ("../src/a.py",))
    outside = locate_project(run_spec("me/proj/src/a.py"), home.parent)
    assert (outside.root, outside.subdirectory, outside.command) == (home / "proj", ".", ("src/a.py",))


def test_current_directory_above_an_unmarked_project_is_suggested(home: Path) -> None:
    put(home, "proj/src/a.py", "print()")
    location = locate_project(run_spec("src/a.py"), home / "proj")
    assert location.root == home / "proj/src"
    assert "--cwd ." in location.hint


def test_run_without_sync_may_start_in_the_home(home: Path) -> None:
    assert locate_project(run_spec("a.py", sync=False), home).root == home


def test_script_below_the_root_has_its_own_directory_as_project(home: Path) -> None:
    assert locate_project(run_spec(str(home / "proj/train.py")), Path("/")).root == home / "proj"
    assert read_project(home / "proj").manifest.count == 1
    assert (path_problem(home / "a.py", "file"), path_problem(home, "directory")) == ("", "")


def test_project_fix_is_quoted_for_the_shell(home: Path) -> None:
    odd = put(home, "it's a dir/x.py")
    assert project_fix(odd).endswith("""--cwd '""" + str(home) + """/it'"'"'s a dir'""")
    assert project_fix(odd, "cwd: ").partition("cwd: ")[1]


def test_ipexctl_directories_are_left_out_of_a_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(tmp_path / "project", tmp_path / "project/scratch/ipexctl")
    for name, below in (("CACHE", ".cache"), ("STATE", ".state"), ("DATA", "own")):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(place.root / below))
        put(place.root, f"{below}/ipexctl/deep/x")
        put(place.root, f"{below}/other")
    for text in ("1", "2"):
        put(place.root, "train.py", text)
        assert place.synced().status == "changed"
        assert {path for path in place.there() if "ipexctl" in path} == set()
    assert {".cache/other", ".state/other", "own/other", "train.py"} <= set(place.there())
    found = read_project(place.root, includes=("*",), home=str(place.home)).manifest.entries
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


def test_directory_without_search_permission_is_reported() -> None:
    """The directory can be listed but not searched, like directories below /proc/1 for accounts other than root."""
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


def test_unreadable_symlink_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For example /proc/1/cwd, if another account owns the process."""
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
    assert paths_below(tmp_path / "link", [tmp_path]) == ()
