"""Projects that a stranger made to take all memory or time of the control machine: each ends early, and tells it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ipexctl.projects.declaration import read_declaration
from ipexctl.projects.workspace import find_members
from ipexctl.sync.scan import scan_project
from message_data import missing

SECONDS = 5
MEGABYTES = 300
READ = f"""
import os, resource, sys
from pathlib import Path
resource.setrlimit(resource.RLIMIT_CPU, ({SECONDS}, {SECONDS}))
from ipexctl.projects.root import ProjectHere
from ipexctl.run.start.start_project import locate_project
from plan_helpers import spec_of
os.chdir(sys.argv[1])
ProjectHere.find()  # as `why last`
location = locate_project(spec_of(), Path.cwd())
print(*location.layout.notes, *location.script.notes, sep="\\n")
status = Path("/proc/self/status")  # ru_maxrss also counts the program that started this one
lines = status.read_text().splitlines() if status.exists() else []
used = [int(line.split()[1]) >> 10 for line in lines if line.startswith("VmHWM")]
assert not used or used[0] < {MEGABYTES}, used
"""
WORKSPACE = '[project]\nname = "x"\n[tool.uv.workspace]\nmembers = [{}]\n'
DENSE = "x = [\n" + "1,2,3,4,5,6,7,8,9,0,\n" * 250_000 + "]\n"


def doubled(first: str, more: str) -> str:
    lines = "".join(f"B{number + 1} = B{number} + B{number}\n" for number in range(40))
    return f"B0 = {first}\n{lines}from setuptools import setup\nsetup(name='x', {more})\n"


def put(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def in_setup(text: str) -> Callable[[Path], None]:
    def make(root: Path) -> None:
        put(root / "pyproject.toml", '[project]\nname = "x"\n')
        put(root / "setup.py", text)

    return make


def in_script(text: str) -> Callable[[Path], None]:
    def make(root: Path) -> None:
        put(root / "train.py", text)

    return make


def linked(target: str) -> Callable[[Path], None]:
    def make(root: Path) -> None:
        put(root / "pyproject.toml", WORKSPACE.format('"w/**"'))
        put(root / "w/m/pyproject.toml", '[project]\nname = "m"\n')
        (root / "w/a").symlink_to(target)

    return make


def with_deep_pattern(root: Path) -> None:
    put(root / "pyproject.toml", WORKSPACE.format(f'"{"**/" * 12}m"'))
    for number in range(600):
        (root / f"a{number % 3}/b{number % 20}/c{number}/d/e/f").mkdir(parents=True)


def with_large_members(root: Path) -> None:
    put(root / "pyproject.toml", WORKSPACE.format('"p*"'))
    for number in range(90):
        put(root / f"p{number}/pyproject.toml", f'[project]\nname="p{number}"\nx=[' + '"a",' * 120_000 + "]\n")


def with_many_sources(root: Path) -> None:
    names = "".join(f'p{number} = {{path = "s{number}"}}\n' for number in range(3000))
    put(root / "pyproject.toml", f'[project]\nname = "x"\n[tool.uv.sources]\n{names}')
    for number in range(3000):
        put(root / f"s{number}/pyproject.toml", f'[project]\nname = "p{number}"\n')


def with_many_directories(root: Path) -> None:
    names = ",".join(f'"s{number}"' for number in range(5000))
    put(root / "pyproject.toml", f'[project]\nname = "x"\n[tool.setuptools.packages.find]\nwhere = [{names}]\n')
    for number in range(5000):
        (root / f"s{number}").mkdir()
    put(root / "train.py", "".join(f"import m{number}\n" for number in range(200)))


def with_large_modules(root: Path) -> None:
    put(root / "train.py", "import a, b\n")
    for name in "ab":
        put(root / f"{name}.py", DENSE[:1_000_000] + "]\n")


def with_many_modules(root: Path) -> None:
    put(root / "train.py", "".join(f"import m{number}\n" for number in range(1000)))
    for number in range(1000):
        put(root / f"m{number}.py", "import os\n")


def with_many_lists_of_names(root: Path) -> None:
    put(root / "train.py", "from pkg import *\n")
    put(root / "pkg/__init__.py", "__all__=x\n" * 7000)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (in_setup(doubled("'xxxx'", "version='1'")), ""),
        (in_setup(doubled("['xxxx']", "install_requires=B40")), ""),
        (in_setup("".join(f"a{number}=1\n" for number in range(50_000))), "setup.py words and signs"),
        (linked("."), ""),
        (linked("/"), ""),
        (with_deep_pattern, ""),
        (with_large_members, "2 MB declarations"),
        (with_many_sources, "900 files declarations"),
        (with_many_directories, "pyproject.toml directories first 50"),
        (in_script(DENSE), "train.py not checked words and signs"),
        (in_script("".join(f"import m{number}\n" for number in range(20_000))), "only 500 modules"),
        (in_script("x = " + "f(" * 100_000 + ")" * 100_000 + "\n"), "train.py not checked"),
        (with_large_modules, "b.py not checked"),
        (with_many_modules, "only 400"),
        (with_many_lists_of_names, ""),
    ],
)
def test_a_project_of_any_size_is_read_in_bounds_and_what_is_left_out_is_told(
    tmp_path: Path, make: Callable[[Path], None], told: str
) -> None:
    put(tmp_path / "train.py", "print(1)\n")
    make(tmp_path)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "HOME": "/nonexistent"}
    argv = [sys.executable, "-c", READ, str(tmp_path)]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-500:]
    assert missing(done.stdout, told) == []
    assert bool(done.stdout.strip()) == bool(told)


@pytest.mark.parametrize("form", ["+".join(["'x'"] * 480), "+".join(["'x'"] * 930), "x" + "['a']" * 930])
def test_code_that_is_nested_too_deeply_for_python_has_no_value(form: str) -> None:
    text = f"x = {{'a': 'b'}}\nsetup(name={form}, version='1')\n"
    found = read_declaration(lambda name: text if name == "setup.py" else "")
    assert found is not None
    assert found.name == ""


def test_members_by_links_are_inside_and_links_of_wildcards_do_not_lead_around(tmp_path: Path) -> None:
    root = tmp_path / "project"
    for path in ("libs/a", "w/m", "w/m/below", ".hidden/x"):
        put(root / path / "pyproject.toml", "")
    put(tmp_path / "away/pyproject.toml", "")
    (root / "w/inside").symlink_to("../libs/a")
    (root / "w/outside").symlink_to(tmp_path / "away")
    (root / "w/around").symlink_to(".")
    assert find_members(root, ["w/*"]) == ("w/inside", "w/m")
    assert find_members(root, ["w/**", "*/x"]) == ("w/m", "w/m/below")
    assert find_members(root, ["./libs/a", "w/outside", "/etc", "../away"]) == ("libs/a",)


def test_a_directory_of_any_number_of_files_is_listed_up_to_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ipexctl.sync.scan.MAX_LISTED", 10)
    for number in range(100):
        put(tmp_path / f"f{number}", "")
    found = scan_project(tmp_path)
    assert (len(found.found), found.complete) == (10, False)
