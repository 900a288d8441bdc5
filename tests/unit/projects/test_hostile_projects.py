"""Projects that a stranger wrote to reach beyond their directory: nothing of them runs, and each has its message."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from ipexctl.errors import UserError
from ipexctl.projects.declaration import read_declaration
from ipexctl.projects.dist_info import dist_info_files
from ipexctl.projects.layout import read_layout
from ipexctl.projects.project_files import DECLARATION, TextReader
from ipexctl.projects.requirement_files import find_requirement_files
from ipexctl.run.start.start_project import locate_project
from ipexctl.stack.install_context import install_request
from ipexctl.stack.resolve.model import Sources, StackRequest
from message_data import missing
from plan_helpers import spec_of

ENTRY_POINTS = """\
[project]
name = "x"
version = "1"
[project.scripts]
"../go" = "m:f"
go = "m:f\\n[evil]"
up = "m"
[project.entry-points."a\\nb"]
k = "m:f"
[project.entry-points.g]
"k\\nl" = "m:f"
"""


def put(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("declared", "noted"),
    [
        ('[tool.setuptools.packages.find]\nwhere = ["/etc"]\n', "/etc"),
        ('[tool.setuptools.packages.find]\nwhere = ["../.."]\n', "../.."),
        ('[tool.setuptools]\npackage-dir = {"" = "away"}\n', "away"),
        ('[tool.pdm.build]\npackage-dir = "a:/etc"\n', "a:/etc"),
    ],
)
def test_directories_outside_the_root_do_not_count(tmp_path: Path, declared: str, noted: str) -> None:
    root = tmp_path / "project"
    put(root / "pyproject.toml", f'[project]\nname = "x"\n{declared}')
    (root / "away").symlink_to("/etc")
    layout = read_layout(root, root)
    assert layout.paths == (".",)
    assert missing(" ".join(layout.notes), f"pyproject.toml {noted}") == []


@pytest.mark.parametrize(
    "text",
    [
        '[project]\nname = "a/../../b"\nversion = "1"\n',
        '[project]\nname = "x\\ny"\nversion = "1"\n',
        '[project]\nname = "x"\nversion = "1\\nRequires-Dist: evil"\ndependencies = ["a\\nb"]\n',
        ENTRY_POINTS,
    ],
)
def test_no_line_is_added_to_a_generated_file_and_no_name_leaves_the_directory(tmp_path: Path, text: str) -> None:
    put(tmp_path / "pyproject.toml", text)
    for name, content in dist_info_files(read_layout(tmp_path, tmp_path)):
        assert "/" not in name.removeprefix("own/").partition("/")[2]
        assert ".." not in name
        assert "evil" not in content
        assert "go" not in content


def test_files_of_others_or_of_any_size_do_not_count(tmp_path: Path) -> None:
    root = tmp_path / "project"
    put(root / "pyproject.toml", '[project]\nname = "x"\n').chmod(0o666)
    layout = read_layout(root, root)
    assert (layout.own, [str(root / "pyproject.toml") in note for note in layout.notes]) == ((), [True])
    put(root / "pyproject.toml", "# " + "x" * 10_000_000 + "\n").chmod(0o600)
    began = time.monotonic()
    layout = read_layout(root, root)
    assert time.monotonic() - began < 1
    assert (layout.own, missing(layout.notes[0], "pyproject.toml")) == ((), [])
    (root / "pyproject.toml").unlink()
    os.mkfifo(root / "setup.py")
    assert read_layout(root, root).own == ()
    assert DECLARATION.limit < 1_000_000


def test_a_workspace_of_many_members_is_told(tmp_path: Path) -> None:
    put(tmp_path / "pyproject.toml", '[tool.uv.workspace]\nmembers = ["m*"]\n')
    for number in range(500):
        put(tmp_path / f"m{number}/pyproject.toml", f'[project]\nname = "m{number}"\n')
    layout = read_layout(tmp_path, tmp_path / "m499")
    assert [package.name for package in layout.own if package.name] == ["m499"]
    assert missing(layout.notes[0], "900 files declarations") == []


def test_members_and_sources_are_below_the_root(tmp_path: Path) -> None:
    root = tmp_path / "project"
    put(tmp_path / "away/pyproject.toml", '[project]\nname = "away"\n')
    put(
        root / "pyproject.toml",
        '[project]\nname = "x"\n[tool.uv.workspace]\nmembers = ["../away", "link"]\n'
        '[tool.uv.sources]\naway = {path = "link"}\n',
    )
    (root / "link").symlink_to(tmp_path / "away")
    layout = read_layout(root, root)
    assert [package.name for package in layout.own if package.name] == ["x"]
    assert "away" not in layout.members


def test_setup_py_is_not_run(tmp_path: Path) -> None:
    put(
        tmp_path / "setup.py",
        "import pathlib\npathlib.Path('ran').touch()\nfrom setuptools import setup\n"
        "setup(name=open('/etc/hostname').read(), version='1')\n",
    )
    put(tmp_path / "train.py", "import pathlib\npathlib.Path('ran').touch()\n")
    location = locate_project(spec_of(), tmp_path)
    assert (location.root, find_requirement_files(location.layout, tmp_path).files) == (tmp_path, ())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["setup.py", "train.py"]


@pytest.mark.parametrize("entry", ["os:system", "shutil:rmtree"])
def test_a_command_of_a_module_that_the_project_lacks_is_refused(tmp_path: Path, entry: str) -> None:
    put(tmp_path / "pyproject.toml", f'[project]\nname = "x"\n[project.scripts]\ngo = "{entry}"\n')
    with pytest.raises(UserError, match=entry.partition(":")[0]):
        locate_project(spec_of("script", ("go",)), tmp_path)


@pytest.mark.parametrize("name", ["torch", "Intel_Extension.for-pytorch"])
def test_a_project_with_a_name_of_the_stack_installs_nothing(tmp_path: Path, name: str) -> None:
    put(tmp_path / "pyproject.toml", f'[project]\nname = "{name}"\n')
    with pytest.raises(UserError, match="part of the stack"):
        install_request(StackRequest(), (), (), Sources(), "default", {}, (), read_layout(tmp_path, tmp_path))


@pytest.mark.parametrize("text", ["a = [", "[project]\nname = 5\n", "[project]\nscripts = 5\n", 'tool = "x"\n', "\0"])
def test_damaged_declarations_are_read(text: str) -> None:
    found = read_declaration(lambda name: text if name == "pyproject.toml" else "")
    assert found is not None
    assert (found.name, found.commands) == ("", {})


def test_texts_are_read_once(tmp_path: Path) -> None:
    read = TextReader(tmp_path)
    put(tmp_path / "setup.cfg", "a")
    assert read("setup.cfg") == "a"
    put(tmp_path / "setup.cfg", "b")
    assert read("setup.cfg") == "a"
