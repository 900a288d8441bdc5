"""Each file, function and class that the pages for contributors name is there."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found,unused-ignore]

ROOT = Path(__file__).parents[3]
PAGES = ("ARCHITECTURE.md", "CONTRIBUTING.md")
NAMED = re.compile(r"`([\w/.{},*-]+\.(?:py|sh|awk|yaml|json))(?::\s+([A-Za-z_.]+)(?:\(\))?)?`")
"""`remote/ssh.py`, `host_*.py`, `{cpu,system}.py`, `doctor/doctor_run.py: run_doctor`."""
FOLDER = re.compile(r"`((?:tests|ipexctl|docs|addons|cli|ui|jobs|node|stack|launch|files|sync)/[\w/]+/?)`")
OF_USERS = frozenset(
    (
        "train.py",
        "__main__.py",
        "env.json",
        "plan.json",
        "status.json",
        "lab.json",
        "job.json",
        "run.json",
        "ipexctl_hooks.py",
    )
)
"""Files of a user, of a home or of a run, not of the checkout."""


def listed() -> list[str]:
    argv = ["git", "-C", str(ROOT), "ls-files", "-co", "--exclude-standard"]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()


def spelled_out(name: str) -> Iterator[str]:
    """The patterns of a name with `{a,b}`."""
    if found := re.search(r"\{([^}]*)\}", name):
        for part in found[1].split(","):
            yield from spelled_out(name[: found.start()] + part + name[found.end() :])
    else:
        yield re.escape(name).replace(r"\*", "[^/]*")


def names_of(page: str) -> list[tuple[str, str]]:
    text = re.sub(r"\s+", " ", (ROOT / page).read_text())
    return [(found[1], found[2] or "") for found in NAMED.finditer(text)]


@pytest.mark.needs("git")
@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_names_is_there(page: str) -> None:
    files, missing = listed(), []
    for name, symbol in names_of(page):
        if name.rpartition("/")[2] in OF_USERS:
            continue
        for pattern in spelled_out(name):
            found = [file for file in files if re.search(f"(^|/){pattern}$", file)]
            if not found:
                missing.append(name)
            elif symbol and not any(has(file, symbol) for file in found):
                missing.append(f"{name}: {symbol}")
    assert missing == []


def test_the_order_of_packages_is_that_of_the_contract() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    drawn = re.search(r"^    (addons → .*?)\n\n", text, re.MULTILINE | re.DOTALL)
    assert drawn
    layers = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]["layers"]
    assert " ".join(drawn[1].split()).split(" → ") == [layer.replace("ipexctl.", "") for layer in layers]


@pytest.mark.needs("git")
@pytest.mark.parametrize("page", PAGES)
def test_folders_and_paths_of_commands_are_there(page: str) -> None:
    text = re.sub(r"\s+", " ", (ROOT / page).read_text())
    files = [f"/{file}" for file in listed()]
    folders = [name.rstrip("/") for name in FOLDER.findall(text)]
    missing = [name for name in folders if not any(f"/{name}/" in file for file in files)]
    commands = re.findall(r"`([^`]*-m pytest [^`]*)`", text)
    named = [word for command in commands for word in command.split() if word.startswith("tests/")]
    assert missing + [word for word in named if not (ROOT / word).exists()] == []


@pytest.mark.needs("git")
def test_files_that_openings_name_are_there() -> None:
    files = [f"/{file}" for file in listed()]
    openings = {
        path.relative_to(ROOT): re.sub(r"\s+", " ", ast.get_docstring(ast.parse(path.read_text())) or "")
        for path in sorted((ROOT / "ipexctl").rglob("*.py"))
    }
    missing = [
        f"{path}: {name}"
        for path, opening in openings.items()
        for name in re.findall(r"`([\w/]+\.(?:py|sh|awk|yaml))`", opening)
        if name not in OF_USERS and not any(file.endswith(f"/{name}") for file in files)
    ]
    assert missing == []


def has(file: str, symbol: str) -> bool:
    """Whether the module defines that function, class, method or constant."""
    if not file.endswith(".py"):
        return False
    name = symbol.rpartition(".")[2]
    for node in ast.walk(ast.parse((ROOT / file).read_text())):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
            return True
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store):
            return True
    return False
