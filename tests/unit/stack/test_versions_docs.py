"""docs/versions.md against the table it describes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from ipexctl.stack.catalog.table import StackSpec, rows
from ipexctl.stack.catalog.user_table import ROW_KEYS, merged

DOCS = (Path(__file__).parents[3] / "docs" / "versions.md").read_text(encoding="utf-8")


def test_the_docs_have_all_rows_newest_first() -> None:
    assert [row.name for row in rows()] == re.findall(r"^\| `((?:torch|ipex)-[\d.]+)` \|", DOCS, re.MULTILINE)


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.name)
def test_the_docs_have_every_row_as_it_is(row: StackSpec) -> None:
    line = next(line for line in DOCS.splitlines() if line.startswith(f"| `{row.name}` |"))
    _, _, torch, ipex, oneccl, mpi, python, glibc, cpu, _ = (cell.strip() for cell in line.split("|"))
    assert torch.split(" ")[0] == row.torch
    assert all(patch in torch for patch in row.torch_patches)
    states = {"available": "there", "yanked": "withdrawn", "absent": "not there"}
    assert {f"{build.version} ({states[build.pypi]})" for build in row.ipex_builds} == set(ipex.split("<br>")) - {"-"}
    wheels = {"published": "", "unverified": " (listed, not verified)", "none": " (GPUs only)"}
    builds = {f"{b.version} → {'/'.join(b.works_with)}{wheels[b.cpu_wheel]}" for b in row.oneccl_builds}
    assert builds == set(oneccl.split("<br>")) - {"-"}
    assert mpi == (row.bundled_mpi or "from pip")
    assert python == f"{row.pythons[0]}–{row.pythons[-1]}"  # noqa: RUF001
    assert (glibc, cpu) == (row.glibc, row.isa or "any")


def test_the_example_of_own_rows_is_right() -> None:
    (example,) = re.findall(r"```json\n(.*?)```", DOCS, re.DOTALL)
    assert merged(example, "rows.json")[0].name == json.loads(example)[1]["name"]


def test_every_key_of_a_row_is_explained() -> None:
    explained = DOCS[DOCS.index("| key | meaning") : DOCS.index("## Where this is from")]
    assert [key for key in ROW_KEYS if f"`{key}`" not in explained] == []
