"""Runs the commands of the pages in their order, and compares the output with the page.

`page_scenes` says where a page is executed and with which preparations; the real torch has a test beside the
real wheels, a checkout one beside the package. A block that isn't executed says why, above it in the page.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

import reader
from doc_blocks import PAGES, ROOT, Block, PageCommand, blocks
from doc_output import find_difference, matches_page
from doc_shell import Shell
from ipexctl.addons.lab.lab_plan import LabSpec
from ipexctl.addons.lab.lab_record import Lab
from message_data import missing
from page_fixtures import wheels_of
from page_scenes import (
    ALONE,
    BARE,
    BASTION,
    LAB,
    REASONS,
    SCENES,
    Scene,
    left_out,
    play,
    scenes,
    scenes_in,
)

ALL = [block for page in PAGES for block in blocks(page) if block.commands()]


@pytest.mark.timeout(600)
@scenes(ALONE)
def test_pages_on_localhost(context: Scene, wheel_dir: Path, tmp_path: Path) -> None:
    assert play(context, Shell(tmp_path, {**wheels_of(wheel_dir), "IPEXCTL_HOME": str(tmp_path / "ours")})) == []


@pytest.mark.lab
@scenes(BASTION)
def test_pages_behind_a_bastion(context: Scene, make_lab: Callable[[LabSpec], Lab], tmp_path: Path) -> None:
    lab = make_lab(LabSpec(hosts=4, bastion=True))
    config = lab.hosts[0].dir.parent / "ssh_config"
    shell = Shell(tmp_path, ssh_config=config)
    shell.write("ssh_config", config.read_text())
    assert play(context, shell) == []


@pytest.mark.lab
@scenes(LAB)
def test_pages_that_create_a_lab(context: Scene, own_lab: str, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("a lab needs root")
    assert play(context, Shell(tmp_path, lab=own_lab)) == []


def test_every_block_is_executed_once_or_has_a_reason() -> None:
    """One that stands on two pages, too."""
    executed = [block.text for context in SCENES for _, block in context.wanted()]
    assert sorted(executed) == sorted({block.text for block in ALL if block.left_out is None})


def test_blocks_for_a_bare_system_are_those_that_its_reader_types() -> None:
    typed = [
        block.text
        for name in (
            *(reader.USE, reader.INSTALL, reader.REMOVE, reader.IN_A_CLONE),
            *(reader.OTHER_INSTALLERS, reader.LAB),
        )
        for block in reader.section(*name)
    ]
    assert typed == [block.text for scene in scenes_in(BARE) for _, block in scene.wanted()]


def test_few_commands_are_skipped_for_known_reasons() -> None:
    out = left_out()
    assert {block.left_out for block in out} == set(REASONS)
    number = sum(len(block.commands()) for block in ALL)
    assert sum(len(block.commands()) for block in out) <= number * 0.14


def test_setup_commands_of_scenes_refer_to_existing_blocks() -> None:
    for context in SCENES:
        assert set(context.before) <= {number for number, _ in context.wanted()}, context.page


@pytest.mark.parametrize(
    ("told", "came", "same"),
    [
        ("3 of 12 in 0.4 s", "3 of 9 in 12.0 s", True),
        ("node1: …", "node3: hello", True),
        ("node1: a", "node1: b", False),
        ("ranks 0,2 on node[1,3]", "ranks 0,2-3 on node[1,3-4]", True),
        ("run train-1120-162108-591d failed", "run train-0101-000000-abcd failed", True),
        ("run train-1120-162108-591d failed", "run other-0101-000000-abcd failed", False),
    ],
)
def test_different_output_is_detected(told: str, came: str, same: bool) -> None:
    assert matches_page(told, came) is same


def test_missing_lines_without_ellipsis_are_detected() -> None:
    assert missing(find_difference(["a", "b"], ["a", "b", "c"], []) or "", "2 3 stdout 0 stderr") == []
    assert find_difference(["a", "…"], ["a", "b", "c"], []) is None
    assert find_difference(["a"], ["a"], ["said along the way"]) is None


def test_page_with_wrong_output_fails(tmp_path: Path) -> None:
    lie = Block(ROOT / "README.md", 1, "console", "$ ipexctl exec -- echo yes\nlocalhost: no\n")
    assert lie.commands() == [PageCommand("ipexctl exec -- echo yes", ("localhost: no",))]
    shell = Shell(tmp_path)
    shell.follow(lie)
    (found,) = shell.differences
    assert "localhost: no" in found
