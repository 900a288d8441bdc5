"""The page for users: what it shows is what happens."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hosts_helpers import file_error
from ipexctl.hosts.detect import read_hosts_file
from ipexctl.hosts.hostfile import read_hostfile

PAGE = (Path(__file__).parents[3] / "docs" / "hostfile.md").read_text()
BLOCKS = re.findall(r"```(text|ini|yaml)\n(.*?)```", PAGE, re.DOTALL)
ERROR = next(block for _, block in BLOCKS if block.startswith("hostfile:3: "))


@pytest.mark.parametrize("block", [block for _, block in BLOCKS if block is not ERROR])
def test_every_example_is_read(tmp_path: Path, block: str) -> None:
    path = tmp_path / "hosts"
    path.write_text(block)
    assert read_hosts_file(path)


def test_the_error_shown_is_the_error_given() -> None:
    message, *shown = ERROR.splitlines()
    line, caret, fix = (text.removeprefix("  ") for text in shown)
    error = file_error(read_hostfile, f"\n\n{line}\n")
    assert (error.message, error.text, error.fix) == (message, line, fix)
    assert caret.index("^") == error.column - 1
