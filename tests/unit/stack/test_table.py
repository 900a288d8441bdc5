"""The version table is consistent, docs/versions.md has its values, and the guides' versions have a plan."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stack_helpers import AVX, AVX2, host, index, planned, refused

from ipexctl.errors import UserError
from ipexctl.facts.facts import Facts
from ipexctl.stack import catalog
from ipexctl.stack.catalog import (
    ROW_KEYS,
    StackSpec,
    known_rows,
    merged,
    minor,
    newest_first,
    packaged,
    row_from,
    rows,
    rows_file,
    version_key,
)
from ipexctl.stack.lock.wheels import Availability
from ipexctl.stack.resolve.compatibility import incompatibility
from ipexctl.stack.resolve.model import StackRequest
from ipexctl.stack.resolve.reasons import gloo_instead_of_oneccl, yanked_wheel
from ipexctl.stack.resolve.resolver import resolve


def shipped_rows() -> tuple[StackSpec, ...]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(catalog, "TABLE", Path(catalog.__file__).with_name("rows.json"))
        for row in (found := packaged.__wrapped__()):
            catalog._check_keys(row, f"the row {row['name']}")
        return newest_first(map(row_from, found))


SHIPPED = shipped_rows()
BY_NAME = {row.name: row for row in rows()}
UNDECLARED = {
    "ipex-1.10": ("numpy", "psutil"),
    "ipex-1.11": ("numpy",),
    "ipex-1.12": ("numpy",),
    "ipex-2.0": ("packaging",),
}
"""What the wheel of IPEX imports and does not require; later ones require psutil, numpy and packaging."""

every_row = pytest.mark.parametrize("row", SHIPPED, ids=lambda row: row.name)


@every_row
def test_stack_specs_are_consistent(row: StackSpec) -> None:
    assert row.torch in row.torch_patches
    assert {minor(patch) for patch in row.torch_patches} == {row.line}
    assert row.name == ("ipex-" if row.ipex else "torch-") + row.line
    assert row.retired == bool(row.ipex)
    assert row.backend == ("ccl" if row.oneccl else "gloo")
    assert row.sources
    assert row.indexes[-1].url == "https://pypi.org/simple"
    assert any(index.url == "https://download.pytorch.org/whl/cpu" for index in row.indexes)
    old = version_key(row.line) <= (2, 7)  # their IPEX imports setuptools, some of them its pkg_resources
    openmp = ("intel-openmp==2024.1.2", *(("setuptools<81",) if old else ()))
    assert row.requires == ((*UNDECLARED.get(row.name, ()), *openmp) if row.ipex else ("numpy",))
    assert bool(row.hugging_face) == bool(row.ipex)
    assert bool(row.constraints) == (version_key(row.line) <= (2, 4))
    assert [floor for floor, _ in row.mpi] == (["2.28"] if row.torch_glibc == "2.28" else ["2.28", "2.17"])
    versions = [version_key(build.version) for build in row.ipex_builds]
    assert versions == sorted(versions, reverse=True), "the newest of several builds is preferred"
    for build in row.ipex_builds:
        assert minor(build.version) == row.line
        assert minor(build.built_for) == row.line
        assert set(build.works_with) <= set(row.torch_patches)
        assert build.source
        assert set(build.pypi_pythons) <= set(build.pythons)
        assert build.pypi == ("absent" if not build.pypi_pythons else build.pypi)
    for bindings in row.oneccl_builds:
        assert minor(bindings.version) == row.line
        assert set(bindings.works_with) <= set(row.torch_patches)
        assert bindings.built_for in row.torch_patches
        assert bindings.source
    if row.oneccl:
        assert row.module == ("torch_ccl" if version_key(row.line) < (1, 12) else "oneccl_bindings_for_pytorch")
        assert row.setvars == "env/setvars.sh"


@every_row
def test_stock_gives_a_stack_with_torch_alone(row: StackSpec) -> None:
    alone = row.stock()
    assert alone.name == f"torch-{row.line}"
    assert (alone.ipex, alone.oneccl, alone.isa, alone.retired) == (None, None, None, False)
    assert alone.requires == ("numpy",)
    assert alone.pythons == row.torch_pythons
    assert alone.glibc == row.torch_glibc


def test_a_row_is_like_one_that_is_itself_like_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = [
        {"name": "torch-2", "torch": "2.0.0", "torch_pythons": ["3.11"], "requires": ["numpy"]},
        {"name": "torch-3", "like": "torch-2", "torch": "3.0.0"},
        {"name": "torch-4", "like": "torch-3", "torch": "4.0.0", "torch_pythons": ["3.12"]},
    ]
    (tmp_path / "rows.json").write_text(json.dumps(own))
    monkeypatch.setattr(catalog, "TABLE", tmp_path / "rows.json")
    newest = row_from(packaged.__wrapped__()[2])
    assert (newest.torch, newest.torch_pythons, newest.requires) == ("4.0.0", ("3.12",), ("numpy",))


def test_torch_2_6_and_ipex_2_5_are_the_last_for_old_systems() -> None:
    assert next(row.name for row in rows() if row.glibc == "2.17") == "ipex-2.5"
    assert next(row.stock().name for row in rows() if row.stock().glibc == "2.17") == "torch-2.6"


@pytest.mark.parametrize("facts", [host(), host(flags=AVX2), Facts()])
def test_hosts_that_fit_or_are_not_known_get_no_reason(facts: Facts) -> None:
    assert incompatibility(BY_NAME["ipex-2.7"], facts) is None
    assert incompatibility(BY_NAME["torch-2.9"], host(flags=AVX)) is None


# docs/versions.md against the table it describes


DOCS = (Path(__file__).parents[3] / "docs" / "versions.md").read_text(encoding="utf-8")


def test_docs_list_all_stacks_newest_first() -> None:
    assert [row.name for row in SHIPPED] == re.findall(r"^\| `((?:torch|ipex)-[\d.]+)` \|", DOCS, re.MULTILINE)


@every_row
def test_docs_have_the_values_of_every_stack(row: StackSpec) -> None:
    line = next(line for line in DOCS.splitlines() if line.startswith(f"| `{row.name}` |"))
    _, _, torch, ipex, oneccl, mpi, python, glibc, cpu, _ = (cell.strip() for cell in line.split("|"))
    assert torch.split(", ")[0] == row.torch
    assert all(patch in torch for patch in row.torch_patches)
    states = {"available": "available", "yanked": "withdrawn", "absent": "absent"}
    assert {f"{build.version} ({states[build.pypi]})" for build in row.ipex_builds} == set(ipex.split("<br>")) - {"-"}
    wheels = {"published": "", "unverified": " (listed, not verified)", "none": " (GPUs only)"}
    builds = {f"{b.version} → {'/'.join(b.works_with)}{wheels[b.cpu_wheel]}" for b in row.oneccl_builds}
    assert builds == set(oneccl.split("<br>")) - {"-"}
    assert mpi == (row.bundled_mpi or "from pip")
    assert python == f"{row.pythons[0]}–{row.pythons[-1]}"  # noqa: RUF001
    assert (glibc, cpu) == (row.glibc, row.isa or "any")


def test_docs_example_of_rows_json_is_valid() -> None:
    (example,) = re.findall(r"```json\n(.*?)```", DOCS, re.DOTALL)
    assert merged(example, "rows.json")[0].name == json.loads(example)[1]["name"]


def test_every_key_of_a_row_is_explained() -> None:
    explained = DOCS[DOCS.index("- `name`: the name for") : DOCS.index("The packaged table is from")]
    assert [key for key in ROW_KEYS if f"`{key}`" not in explained] == []


IPEX = [
    ("2.1.100", "2.1.1", "3.11"),
    ("2.1.100+cpu", "2.1.1", "3.11"),
    ("2.0.100", "2.0.1", "3.11"),
    ("1.13.0", "1.13.1", "3.10"),
    ("1.12.300", "1.12.1", "3.10"),
    ("1.11.200", "1.11.0", "3.10"),
    ("1.10.100", "1.10.0", "3.9"),
]
"""`pip install intel_extension_for_pytorch==VERSION -f URL`, the torch that fits it best, and the newest Python."""
ONECCL = [
    ("2.1.0", "2.1.1", ("3.8", "3.9", "3.10", "3.11")),
    ("2.0.0", "2.0.1", ("3.8", "3.9", "3.10", "3.11")),
    ("1.13.0", "1.13.1", ("3.8", "3.9", "3.10")),
    ("1.12.100", "1.12.1", ("3.8", "3.9", "3.10")),
    ("1.12.0", "1.12.0", ("3.8", "3.9", "3.10")),
    ("1.11.0", "1.11.0", ("3.8", "3.9", "3.10")),
    ("1.10.0", "1.10.0", ("3.8", "3.9")),
]
"""`pip install oneccl_bind_pt==VERSION -f URL`, with the Pythons of the guides that run on a node (3.8 and later)."""
OF_ALL = (
    "setuptools-75.3.2-py3-none-any.whl",
    "numpy-1.24.4-py3-none-any.whl",
    "psutil-6.0.0-py3-none-any.whl",
    "packaging-24.0-py3-none-any.whl",
)


def pypi(torch: str, python: str, ipex: str = "", oneccl: str = "") -> Availability:
    tag = f"cp{python.replace('.', '')}"
    line = ".".join(torch.split(".")[:2])
    ipex = ipex or {"2.1": "2.1.100", "2.0": "2.0.100", "1.13": "1.13.100", "1.12": "1.12.300"}.get(line, f"{line}.200")
    ipex = "1.10.100" if line == "1.10" else ipex
    bindings = (f"oneccl_bind_pt-{oneccl}+cpu-{tag}-{tag}-linux_x86_64.whl",) if oneccl else ()
    return index(
        *OF_ALL,
        f"torch-{torch}-{tag}-{tag}-manylinux1_x86_64.whl",
        f"intel_extension_for_pytorch-{ipex}-{tag}-{tag}-manylinux2014_x86_64.whl!",
        *bindings,
    )


@pytest.mark.parametrize(("version", "torch", "python"), IPEX)
def test_each_version_of_ipex_is_planned_as_it_is_named(version: str, torch: str, python: str) -> None:
    public = version.removesuffix("+cpu")
    wheels = pypi(torch, python, public)
    plan = planned(resolve(StackRequest(ipex=version), {"n1": host("2.31", python)}, wheels))
    assert (plan.ipex, plan.torch, plan.python, plan.backend) == (public, torch, python, "gloo")
    assert {gloo_instead_of_oneccl, yanked_wheel} <= {note.kind for note in plan.notes}


@pytest.mark.parametrize(("version", "torch", "pythons"), ONECCL)
def test_each_version_of_the_bindings_is_planned_for_its_pythons(
    version: str, torch: str, pythons: tuple[str, ...]
) -> None:
    for python in ("3.8", "3.9", "3.10", "3.11", "3.12"):
        request = StackRequest(oneccl=version)
        outcome = resolve(request, {"n1": host("2.31", python)}, pypi(torch, python, oneccl=version))
        if python not in pythons:
            assert python in refused(outcome).reason
            continue
        plan = planned(outcome)
        assert (plan.oneccl, plan.torch, plan.backend) == (f"{version}+cpu", torch, "ccl")


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
    plan = planned(resolve(StackRequest(stack="ipex"), {"n1": host("2.36", "3.11", "3.12")}, None, rows=table))
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
