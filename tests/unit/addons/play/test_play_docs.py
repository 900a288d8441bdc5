"""docs/playbooks.md and the page of commands match the code: examples are valid, modules and options are listed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ipexctl.addons.play.modules import MODULES
from ipexctl.addons.play.playbook import find_shipped_playbooks
from ipexctl.launch.run_declarations import DECLARED
from playbook_helpers import book, play_of

DOCS = (Path(__file__).parents[4] / "docs" / "playbooks.md").read_text()
COMMANDS = (Path(__file__).parents[4] / "docs" / "commands.md").read_text()
EXAMPLES = re.findall(r"```yaml\n(.*?)```", DOCS + COMMANDS, re.DOTALL)


@pytest.mark.parametrize("text", EXAMPLES, ids=range(len(EXAMPLES)))
def test_every_example_of_the_docs_is_a_valid_playbook(tmp_path: Path, text: str) -> None:
    (tmp_path / "data").mkdir()
    for name in ("data/tiny.bin", "train.toml.j2", "train.py"):
        (tmp_path / name).write_text("")
    assert book(tmp_path, text if "hosts: all" in text else play_of(text)).plays


def test_docs_list_every_module_and_bundled_playbook() -> None:
    for name in MODULES:
        assert re.search(rf"\*\*{name}\*\*|\(`{name}` is the same\)", DOCS), name
    for name in find_shipped_playbooks():
        assert f"| `{name}` |" in DOCS


def test_docs_list_every_module_option() -> None:
    for spec in MODULES.values():
        of_run = DECLARED if spec.name == "run" else {}  # which `ipexctl run --help` lists
        for name in spec.options.keys() - of_run.keys():
            assert f"`{name}" in DOCS or f"{name}:" in DOCS, f"{spec.name}: {name}"
