"""Blocks of the pages that say so are executed as they stand: on this machine alone, or on real SSH hosts."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from doc_blocks import PAGES, ROOT, Block, Shown, blocks, our_words
from ipexctl.lab import LabSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from ipexctl.lab import Lab

STAGES = ("alone", "lab", "lab up")
MARKED = [block for page in PAGES for block in blocks(page) if block.stage is not None]
HARMLESS = (
    ("--help",),
    ("--version",),
    ("doctor",),
    ("envs",),
    ("exec",),
    ("export",),
    ("lab",),
    ("ps",),
    ("run", "--dry-run"),
    ("sync", "--dry-run"),
    ("trust",),
    ("versions",),
)
"""How a command may begin that is executed here."""


def of_stage(*stages: str) -> pytest.MarkDecorator:
    wanted = [block for block in MARKED if block.stage in stages]
    return pytest.mark.parametrize("block", wanted, ids=lambda block: block.place)


class Shell:
    """One after another, in a directory with the examples, as whoever reads the page would."""

    def __init__(self, place: Path, env: dict[str, str], renamed: tuple[str, str] | None = None) -> None:
        self._place = place
        self._renamed = renamed
        program = place / "bin/ipexctl"
        program.parent.mkdir()
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m ipexctl "$@"\n')
        program.chmod(0o755)
        shutil.copytree(ROOT / "examples", place / "examples")
        strays = ("IPEXCTL_HOSTFILE", "SLURM_JOB_NODELIST", "SLURM_NODELIST", "PBS_NODEFILE")
        kept = {name: value for name, value in os.environ.items() if name not in strays}
        own = {"PATH": f"{program.parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "COLUMNS": "200"}
        self._env = {**kept, **own, "XDG_STATE_HOME": str(place / "state"), **env}
        self._broken = False

    def follow(self, block: Block) -> None:
        for shown in block.commands():
            line = self._there(shown.line)
            if line.startswith("export "):
                name, _, value = line.removeprefix("export ").partition("=")
                self._env[name] = value
                continue
            done = subprocess.run(
                ["bash", "-c", line],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                cwd=self._place,
                env=self._env,
                timeout=100,
                check=False,
            )
            said = f"{block.place}: {line}\n{done.returncode}\n{done.stdout}\n{done.stderr}"
            assert done.returncode in self._may_end_with(line), said
            assert "\nTraceback" not in f"\n{done.stderr}", said
            if shown.output:
                told = sorted(line for line in shown.output if line)
                came = sorted(line for line in self._back(done.stdout).splitlines() if line)
                assert len(told) == len(came), said
                assert all(map(alike, told, came)), said

    def _may_end_with(self, line: str) -> set[int]:
        """What doctor thinks of the machine of the tests is not ours to say; a broken host can't be reached."""
        if " lab break" in line or " lab mend" in line:
            self._broken = " lab break" in line
            return {0}
        return {0} | ({1} if line.startswith("ipexctl doctor") else set()) | ({3} if self._broken else set())

    def _there(self, line: str) -> str:
        """The page's lab is the test's own, beside all others of this machine."""
        if self._renamed is None:
            return line
        page, ours = self._renamed
        line = line.replace(f"/labs/{page}/", f"/labs/{ours}/")
        line = re.sub(r"\blab (up|down)\b", rf"lab \1 --lab {shlex.quote(ours)}", line)
        return re.sub(r"\blab (break|mend|ssh) (?=node)", rf"lab \1 {ours}/", line)

    def _back(self, text: str) -> str:
        return text if self._renamed is None else text.replace(self._renamed[1], self._renamed[0])


def alike(told: str, came: str) -> bool:
    """Figures may differ, and what a page leaves out (…) is anything."""
    pattern = re.escape(re.sub(r"\d+", "0", told)).replace("…", ".*")
    return re.fullmatch(pattern, re.sub(r"\d+", "0", came)) is not None


def test_only_harmless_commands_are_executed_and_only_where_we_know_how() -> None:
    assert {block.stage for block in MARKED} == set(STAGES)
    for block in MARKED:
        for shown in block.commands():
            calls = our_words(shown.line)
            assert shown.line.startswith(("ipexctl ", "export IPEXCTL_HOSTFILE=")), block.place
            assert not re.search(r"[;&|<>`]", shown.line), block.place
            for words in calls:
                assert any(tuple(words[: len(begin)]) == begin for begin in HARMLESS), f"{block.place}: {words}"
                assert not {"--remove", "--prune"} & set(words), block.place


@of_stage("alone")
def test_on_this_machine_alone(block: Block, tmp_path: Path) -> None:
    Shell(tmp_path, {"IPEXCTL_HOME": str(tmp_path / "home")}).follow(block)


@pytest.fixture(scope="module")
def hosts(make_lab: Callable[[LabSpec], Lab]) -> Lab:
    return make_lab(LabSpec(hosts=3, name=f"docs-{os.getpid()}"))


@pytest.mark.lab
@of_stage("lab")
def test_on_three_hosts(block: Block, hosts: Lab, tmp_path: Path) -> None:
    Shell(tmp_path, {"IPEXCTL_HOSTFILE": str(hosts.hostfile)}).follow(block)


@pytest.fixture
def own_lab() -> Iterator[str]:
    name = f"pagelab{os.getpid()}"
    yield name
    subprocess.run([sys.executable, "-m", "ipexctl", "lab", "down", "--lab", name], capture_output=True, check=False)


@pytest.mark.lab
@of_stage("lab up")
def test_with_a_lab_of_its_own(block: Block, own_lab: str, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("a lab needs root")
    Shell(tmp_path, {}, renamed=("lab", own_lab)).follow(block)


@pytest.mark.parametrize(
    ("told", "came", "same"),
    [
        ("3 of 12 in 0.4 s", "3 of 9 in 12.0 s", True),
        ("node1: …", "node3: hello", True),
        ("node1: a", "node1: b", False),
    ],
)
def test_output_that_differs_is_seen(told: str, came: str, same: bool) -> None:
    assert alike(told, came) is same


def test_a_page_that_lies_fails(tmp_path: Path) -> None:
    lie = Block(ROOT / "README.md", 1, "console", "$ ipexctl exec -- echo yes\nlocalhost: no\n", "alone")
    assert lie.commands() == [Shown("ipexctl exec -- echo yes", ("localhost: no",))]
    with pytest.raises(AssertionError):
        Shell(tmp_path, {}).follow(lie)
