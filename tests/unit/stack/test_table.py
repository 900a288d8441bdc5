"""The version table is consistent, docs/versions.md has its values, and the guides' versions have a plan."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from stack_helpers import AVX, AVX2, host, index, planned, refused

from ipexctl.facts.facts import Facts
from ipexctl.stack.catalog.table import StackSpec, minor, rows, version_key
from ipexctl.stack.catalog.user_table import ROW_KEYS, merged
from ipexctl.stack.lock.wheels import Availability
from ipexctl.stack.resolve.compatibility import incompatibility
from ipexctl.stack.resolve.model import StackRequest
from ipexctl.stack.resolve.reasons import gloo_instead_of_oneccl, yanked_wheel
from ipexctl.stack.resolve.resolver import resolve

BY_NAME = {row.name: row for row in rows()}
UNDECLARED = {
    "ipex-1.10": ("numpy", "psutil"),
    "ipex-1.11": ("numpy",),
    "ipex-1.12": ("numpy",),
    "ipex-2.0": ("packaging",),
}
"""What the wheel of IPEX imports and does not require; later ones require psutil, numpy and packaging."""

every_row = pytest.mark.parametrize("row", rows(), ids=lambda row: row.name)


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
    assert [row.name for row in rows()] == re.findall(r"^\| `((?:torch|ipex)-[\d.]+)` \|", DOCS, re.MULTILINE)


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.name)
def test_docs_have_the_values_of_every_stack(row: StackSpec) -> None:
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


def test_docs_example_of_rows_json_is_valid() -> None:
    (example,) = re.findall(r"```json\n(.*?)```", DOCS, re.DOTALL)
    assert merged(example, "rows.json")[0].name == json.loads(example)[1]["name"]


def test_every_key_of_a_row_is_explained() -> None:
    explained = DOCS[DOCS.index("| key | meaning") : DOCS.index("## Where this is from")]
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
