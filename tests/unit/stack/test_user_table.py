"""The user's rows.json: its format, and errors with their position."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stack_helpers import host, planned

from ipexctl.errors import UserError
from ipexctl.stack.catalog.table import packaged, rows
from ipexctl.stack.catalog.user_table import ROW_KEYS, known_rows, merged, rows_file
from ipexctl.stack.resolve.model import StackRequest
from ipexctl.stack.resolve.resolver import resolve

NEW = {"name": "torch-2.16", "torch": "2.16.0", "torch_pythons": ["3.11", "3.12"]}


def with_rows(*own: dict[str, Any]) -> tuple[Any, ...]:
    return merged(json.dumps(list(own)), "rows.json")


def test_new_user_row_is_the_newest_stack_and_can_be_chosen() -> None:
    table = with_rows(NEW)
    assert len(table) == len(rows()) + 1
    assert table[0].name == "torch-2.16"
    assert (table[0].origin, table[0].torch_patches, table[0].glibc) == ("rows.json", ("2.16.0",), "2.28")
    plan = planned(resolve(StackRequest(stack="torch"), {"n1": host("2.36", "3.12")}, None, rows=table))
    assert (plan.row.name, plan.torch) == ("torch-2.16", "2.16.0")


def test_user_row_changes_single_keys_of_a_packaged_row() -> None:
    bindings = [{"version": "2.8.0", "pythons": ["3.11"], "mpi": "2021.15"}]
    table = with_rows({"name": "ipex-2.8", "oneccl": bindings, "setvars": None, "note": "our own bindings"})
    assert len(table) == len(rows())
    plan = planned(resolve(StackRequest(), {"n1": host("2.36", "3.11", "3.12")}, None, rows=table))
    assert (plan.row.name, plan.oneccl, plan.python, plan.backend) == ("ipex-2.8", "2.8.0", "3.11", "ccl")
    assert plan.row.ipex == "2.8.0"
    assert plan.row.note == "our own bindings"


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ({"requires": ["oneccl==2021.15.*"]}, ("intel-openmp==2024.1.2", "oneccl==2021.15.*")),
        ({"requires": ["intel_openmp==2025.0.0"]}, ("intel_openmp==2025.0.0",)),
        ({"replaces": ["oneccl==2021.15.*"]}, ("oneccl==2021.15.*",)),
        ({"replaces": []}, ()),
        ({"replaces": ["peft>=0.17rc1,<1.0.post2", "numpy==2.*"]}, ("peft>=0.17rc1,<1.0.post2", "numpy==2.*")),
        ({"replaces": ["numpy"], "requires": ["peft"]}, ("numpy", "peft")),
        ({}, ("intel-openmp==2024.1.2",)),
    ],
)
def test_requires_extends_and_replaces_overrides_the_requirements(
    own: dict[str, Any], expected: tuple[str, ...]
) -> None:
    row = next(row for row in with_rows({"name": "ipex-2.8", **own}) if row.name == "ipex-2.8")
    assert row.requires == expected


def test_row_for_another_torch_patch_needs_only_its_version() -> None:
    table = with_rows({"name": "torch-2.15", "torch": "2.15.1"})
    assert table[0].torch == "2.15.1"
    assert table[0].torch_patches == ("2.15.0", "2.15.1")


def test_user_row_precedes_a_packaged_row_for_the_same_torch() -> None:
    site = {**next(dict(row) for row in packaged() if row["name"] == "ipex-2.7"), "name": "ipex-2.7-site"}
    plan = planned(resolve(StackRequest(torch="2.7"), {}, None, rows=with_rows(site)))
    assert plan.row.name == "ipex-2.7-site"


json_ = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*ROW_KEYS, "x"]), inner, max_size=4),
    max_leaves=12,
)


@given(st.text(max_size=30) | json_.map(json.dumps) | st.lists(json_, max_size=2).map(json.dumps))
@settings(max_examples=200, deadline=None)
def test_any_text_is_parsed_or_an_error_that_names_the_file(text: str) -> None:
    try:
        table = merged(text, "rows.json")
    except UserError as error:
        assert error.message.startswith("rows.json:")
    else:
        assert len(table) >= len(rows())


def test_rows_file_is_from_ipexctl_rows_or_the_config_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert known_rows({}) == rows()
    (tmp_path / "ipexctl").mkdir()
    usual = tmp_path / "ipexctl" / "rows.json"
    usual.write_text(json.dumps([NEW]))
    assert rows_file({}) == usual
    assert known_rows({})[0].name == "torch-2.16"
    own = tmp_path / "own.json"
    own.write_text("\ufeff[]", encoding="utf-8")
    assert known_rows({"IPEXCTL_ROWS": str(own)}) == rows()
