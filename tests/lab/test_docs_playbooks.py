"""The playbooks of the page about them, played on lab hosts."""

from __future__ import annotations

import json
import textwrap

import pytest

from doc_blocks import ROOT, Block, blocks
from doc_shell import Shell
from page_fixtures import PageHosts
from page_scenes import CLUSTER, TRAIN, Scene

PLAYS = [block for block in blocks(ROOT / "docs/playbooks.md") if block.language == "yaml"]
TASKS_ALONE = "- hosts: all\n  vars: {{archive: /nfs/data.tar}}\n  tasks:\n{}"


@pytest.fixture(scope="module")
def playbook_shell(page_hosts: PageHosts, tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """A directory with the files that playbooks need, and a run to fetch from."""
    shell = page_hosts.shell(Scene("", CLUSTER), tmp_path_factory.mktemp("playbook_shell"))
    shell.write("train.toml.j2", "lr = 0.1\n")
    shell.write("data/tiny.bin", "few bytes")
    for line in (TRAIN, "ipexctl run train.py"):
        shell.type(line)
    return shell


@pytest.mark.lab
@pytest.mark.timeout(600)
@pytest.mark.parametrize("block", PLAYS, ids=lambda block: block.place)
def test_playbooks_of_the_pages_run(block: Block, playbook_shell: Shell) -> None:
    """Single tasks get a play. Plays as root are only checked: hosts share the kernel of this machine."""
    tasks = textwrap.indent(block.text, "    ")
    playbook_shell.write("site.yml", block.text if "hosts:" in block.text else TASKS_ALONE.format(tasks))
    for options in ("--check --diff", "") if "become: true" not in block.text else ("--check --diff",):
        report = json.loads(playbook_shell.type(f"ipexctl play site.yml --json {options}"))
        for name, counts in report["recap"].items():
            assert counts["failed"] == counts["unreachable"] == 0, name
            assert sum(counts.values()) > 0, f"nothing was played on {name}"
