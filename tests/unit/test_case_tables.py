"""Every section of a table of cases has its test, so that there is no row that nothing reads."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from case_table import lines_of, reader_of

TABLES = [path for path in Path(__file__).parents[1].rglob("*.txt") if path.read_text().startswith("# The cases of ")]


@pytest.mark.parametrize("table", TABLES, ids=lambda path: path.stem)
def test_sections_are_those_that_the_tests_read(table: Path) -> None:
    reader = reader_of(table)
    source = reader.read_text()
    by_name = re.findall(r"@case_table\n(?:@.*\n)*def test_(\w+)", source)
    by_call = re.findall(r'_of\(__file__, "(\w+)"\)', source)
    sections = re.findall(r"^\[(\w+)\]$", table.read_text(), re.MULTILINE)
    assert sorted(sections) == sorted({*by_name, *by_call})
    assert all(lines_of(str(reader), section) for section in sections)
