"""The choice of a stack for hosts and indexes, with its reasons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from stack_helpers import (
    AVX,
    AVX2,
    BINDINGS_2_7,
    NEWEST,
    PYPI,
    PYPI_INDEX,
    TORCH_2_7_CPU,
    host,
    index,
    notes_of,
    planned,
    refused,
)

from ipexctl.facts.facts import Facts
from ipexctl.facts.system_facts import System
from ipexctl.stack.catalog import StackSpec, rows, version_key
from ipexctl.stack.resolve.compatibility import interpreters_for
from ipexctl.stack.resolve.constraints import Constraints, read_constraints
from ipexctl.stack.resolve.model import StackPlan, StackRequest
from ipexctl.stack.resolve.reasons import Reason, known_problem
from ipexctl.stack.resolve.resolver import indexes, projects, resolve, resolve_by_table
from message_data import missing

every_row = pytest.mark.parametrize("row", rows(), ids=lambda row: row.name)


# Choice of the stack


@pytest.mark.parametrize(
    ("facts", "name", "ipex"),
    [
        (host(), "torch-2.15", "ipex-2.7"),
        (host("2.36", "3.13"), "torch-2.15", "ipex-2.7"),
        (host("2.36", "3.10"), "torch-2.14", "ipex-2.7"),
        (host("2.17", "3.9"), "torch-2.6", "ipex-2.5"),
        (host("2.27", "3.9"), "torch-2.6", "ipex-2.5"),
        (host("2.31", "3.8"), "torch-2.4", "ipex-2.4"),
        (host("2.17", "3.12"), "torch-2.6", "ipex-2.5"),
        (host("2.36", "3.14"), "torch-2.15", ""),
        (host(flags=AVX), "torch-2.15", ""),
        (host("2.17", "3.13"), "torch-2.6", ""),
        (Facts(), "torch-2.15", "ipex-2.7"),
    ],
)
def test_default_is_the_newest_torch_without_ipex_that_runs_on_the_hosts(facts: Facts, name: str, ipex: str) -> None:
    plan = planned(resolve(NEWEST, {"n1": facts}, None))
    assert (plan.row.name, plan.ipex, plan.backend, plan.row.retired) == (name, None, "gloo", False)
    of_kind = resolve(StackRequest(stack="ipex"), {"n1": facts}, None)
    assert isinstance(of_kind, Reason) if not ipex else planned(of_kind).row.name == ipex


@pytest.mark.parametrize(
    ("stack", "pythons", "request_python", "chosen", "noted"),
    [
        ("ipex-2.6", ("3.11", "3.13"), None, "3.11", False),
        ("ipex-2.7", ("3.12", "3.13"), None, "3.12", False),
        ("ipex-2.8", ("3.12", "3.13"), None, "3.12", False),
        ("ipex-2.8", ("3.13",), None, "3.13", True),
        ("ipex-2.8", ("3.12", "3.13"), "3.13", "3.13", True),
        ("torch-2.8", ("3.12", "3.13"), None, "3.13", False),
    ],
)
def test_python_with_a_known_problem_is_taken_only_if_there_is_no_other(
    stack: str, pythons: tuple[str, ...], request_python: str | None, chosen: str, noted: bool
) -> None:
    """Python 3.13 empties modules that ipex.optimize made; that of stock PyTorch is not concerned."""
    request = StackRequest(stack=stack, python=request_python)
    plan = planned(resolve(request, {"n1": host("2.36", *pythons)}, None))
    notes = [note.fields["bad"].what for note in plan.notes if note.kind is known_problem]
    assert (plan.python, notes) == (chosen, ["ipex.optimize in Python 3.13"] if noted else [])


def test_stacks_with_ipex_are_candidates_only_on_request() -> None:
    found = read_constraints(NEWEST, rows())
    assert isinstance(found, Constraints)
    assert [row.line for row in found.rows] == [row.line for row in rows()]
    assert not any(row.ipex or row.oneccl_builds or row.retired for row in found.rows)
    asked = read_constraints(StackRequest(stack="ipex"), rows())
    assert isinstance(asked, Constraints)
    assert all(row.ipex for row in asked.rows)
    kinds = ["ccl" if row.oneccl_builds else "gloo" for row in asked.rows]
    assert kinds == sorted(kinds), "bindings first"


@pytest.mark.parametrize(
    ("typed", "uses_ipex", "torch", "expected"),
    [
        (NEWEST, False, None, NEWEST),
        (NEWEST, True, None, StackRequest(stack="ipex")),
        (StackRequest(python="3.11"), True, None, StackRequest(stack="ipex", python="3.11")),
        (NEWEST, False, "2.7.1", StackRequest(stack="torch", torch="2.7.1")),
        (NEWEST, True, "2.7.1", StackRequest(stack="ipex", torch="2.7.1")),
        (StackRequest(stack="torch"), True, None, StackRequest(stack="torch")),
        (StackRequest(torch="2.7"), True, None, StackRequest(torch="2.7")),
        (StackRequest(stack="ipex"), False, "2.7.1", StackRequest(stack="ipex", torch="2.7.1")),
    ],
)
def test_a_project_decides_what_the_call_leaves_open(
    typed: StackRequest, uses_ipex: bool, torch: str | None, expected: StackRequest
) -> None:
    assert typed.for_project(uses_ipex=uses_ipex, torch=torch) == expected


def test_a_range_of_torch_leaves_the_order_of_the_rows_that_fit() -> None:
    """As requirements files have them."""
    found = read_constraints(StackRequest(torch=">=2.8,<2.12,!=2.8.1"), rows())
    assert isinstance(found, Constraints)
    assert {row.line for row in found.rows} == {"2.8", "2.9", "2.10", "2.11"}
    assert not found.named
    assert planned(resolve(StackRequest(torch=">=2.8,<2.12"), {"n": host()}, None)).torch.startswith("2.")
    assert planned(resolve(StackRequest(torch="<2.13.1,>=2.13"), {"n": host()}, None)).row.name == "torch-2.13"
    for torch in (">=3", "<1"):
        assert isinstance(refusal := read_constraints(StackRequest(torch=torch), rows()), Reason)
        assert refusal.is_wrong_call


def test_host_with_the_oldest_glibc_limits_the_stack_and_is_named() -> None:
    request = StackRequest(stack="ipex")
    plan = planned(resolve(request, {"new": host("2.36", "3.9"), "old": host("2.17", "3.9")}, None))
    assert plan.row.name == "ipex-2.5"
    assert plan.glibc == "2.17"
    assert missing(plan.reason.text, "ipex-2.7 old 2.17 2.28") == []


@pytest.mark.parametrize(
    ("request_", "facts", "names"),
    [
        (NEWEST, host(), ["torch-2.15"]),
        (StackRequest(stack="ipex"), host(), ["ipex-2.7", "ipex-2.8"]),
        (NEWEST, host("2.36", "3.14"), ["torch-2.15"]),
        (NEWEST, host("2.17", "3.9"), ["torch-2.6"]),
        (StackRequest(require_oneccl=True), host(), ["ipex-2.7"]),
        (StackRequest(torch="2.7"), host(), ["ipex-2.7"]),
        (StackRequest(stack="torch"), host(), ["torch-2.15"]),
    ],
)
def test_resolve_by_table_names_the_candidates(request_: StackRequest, facts: Facts, names: list[str]) -> None:
    outcome = resolve_by_table(request_, {"n1": facts}, rows())
    assert not isinstance(outcome, Reason)
    plans = (outcome,) if isinstance(outcome, StackPlan) else outcome.candidates
    assert [plan.row.name for plan in plans] == names
    assert len(names) == 1 or missing(outcome.reason.text, " ".join(names)) == []


def test_named_stack_falls_back_to_gloo_without_bindings() -> None:
    assert "gloo" in planned(resolve(StackRequest(torch="2.7"), {"n1": host()}, None)).reason.text


BINDINGS_2_1 = (
    "oneccl_bind_pt-2.1.0+cpu-cp311-cp311-linux_x86_64.whl",
    "torch-2.1.1+cpu-cp311-cp311-linux_x86_64.whl",
    "intel_extension_for_pytorch-2.1.100-cp311-cp311-manylinux2014_x86_64.whl!",
)
OLD = (
    "torch-1.12.1-cp38-cp38-manylinux1_x86_64.whl",
    "torch-1.12.0-cp38-cp38-manylinux1_x86_64.whl",
    "intel_extension_for_pytorch-1.12.300-cp38-cp38-manylinux2014_x86_64.whl!",
    "oneccl_bind_pt-1.12.0+cpu-cp38-cp38-linux_x86_64.whl",
    "setuptools-75.3.2-py3-none-any.whl",
    "numpy-1.24.4-cp38-cp38-manylinux2014_x86_64.whl",
)


@pytest.mark.parametrize(
    ("request_", "facts", "wheels", "row", "torch", "oneccl", "why"),
    [
        (NEWEST, host(), PYPI, "torch-2.15", "2.15.0", None, ""),
        (NEWEST, host(), (*PYPI, BINDINGS_2_7, TORCH_2_7_CPU), "torch-2.15", "2.15.0", None, ""),
        (NEWEST, host(), [name for name in PYPI if "2.15" not in name], "torch-2.8", "2.8.0", None, "torch-2.15"),
        (StackRequest(stack="ipex"), host(), (*PYPI, BINDINGS_2_7, TORCH_2_7_CPU), "ipex-2.7", "2.7.0+cpu",
         "2.7.0+cpu", ""),
        (StackRequest(stack="ipex"), host(), (*PYPI, *BINDINGS_2_1), "ipex-2.1", "2.1.1+cpu", "2.1.0+cpu",
         "ipex-2.7 oneccl_bind_pt 2.7.0"),
        (StackRequest(stack="ipex"), host(), PYPI, "ipex-2.8", "2.8.0", None, ""),
        (StackRequest(torch="2.7"), host(), PYPI, "ipex-2.7", "2.7.0", None, ""),
        (StackRequest(torch="2.7"), host(), [name for name in PYPI if not name.startswith("torch-2.7.0")],
         "ipex-2.7", "2.7.1", None, ""),
        (StackRequest(torch="2.8"), host(), (*PYPI, "torch-2.8.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl"),
         "ipex-2.8", "2.8.0+cpu", None, ""),
        (StackRequest(stack="ipex-1.12"), host("2.31", "3.8"), OLD, "ipex-1.12", "1.12.0", "1.12.0+cpu", ""),
    ],
)  # fmt: skip
def test_available_wheels_decide_the_stack_and_its_versions(
    request_: StackRequest, facts: Facts, wheels: Sequence[str], row: str, torch: str, oneccl: str | None, why: str
) -> None:
    plan = planned(resolve(request_, {"n1": facts}, index(*wheels)))
    assert (plan.row.name, plan.torch, plan.oneccl) == (row, torch, oneccl)
    assert (plan.ipex is None) == row.startswith("torch")
    assert (plan.backend, plan.python) == ("ccl" if oneccl else "gloo", "3.8" if row == "ipex-1.12" else "3.11")
    assert oneccl is None or not any("impi-rt" in requirement for requirement in plan.requirements)
    assert plan.reason.fields["gloo"] == ("yes" if plan.ipex and not oneccl else "no")
    assert missing(plan.reason.text, why) == []


@pytest.mark.parametrize(
    ("size", "name"), [(900_000_000, "torch-2.15"), (190_000_000, "torch-2.8"), (None, "torch-2.15")]
)
def test_small_torch_wheel_counts_as_a_cpu_build(size: int | None, name: str) -> None:
    small = [torch._replace(size=size) for torch in PYPI_INDEX.of("torch") if "2.8.0" in torch.version]
    large = [torch for torch in PYPI_INDEX.of("torch") if "2.8.0" not in torch.version]
    wheels = replace(PYPI_INDEX, candidates={**PYPI_INDEX.candidates, "torch": (*small, *large)})
    table = [replace(row.stock(), retired=False) for row in rows()]
    assert planned(resolve(NEWEST, {"n1": host()}, wheels, rows=table)).row.name == name


def test_custom_built_bindings_are_used_if_available() -> None:
    torch = "torch-2.8.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl"
    own = index(*PYPI, torch, "oneccl_bind_pt-2.8.0+cpu-cp311-cp311-linux_x86_64.whl")
    ipex = StackRequest(stack="ipex")
    plan = planned(resolve(ipex, {"n1": host()}, own))
    assert (plan.row.name, plan.backend) == ("ipex-2.8", "ccl")
    assert "impi-rt>=2021.14,<2021.19" in plan.requirements
    for_gpus = index(*PYPI, "oneccl_bind_pt-2.8.0+xpu-cp311-cp311-linux_x86_64.whl")
    assert planned(resolve(ipex, {"n1": host()}, for_gpus)).backend == "gloo"


@pytest.mark.parametrize(
    ("inside", "impi", "mpi"), [("2021.15", False, "2021.15"), ("", True, None), (None, True, None)]
)
def test_bindings_with_bundled_mpi_need_no_impi_package(inside: str | None, impi: bool, mpi: str | None) -> None:
    found = index(*PYPI, "oneccl_bind_pt-2.8.0+cpu-cp311-cp311-linux_x86_64.whl")
    (wheel,) = found.of("oneccl-bind-pt")
    read = {**found.candidates, "oneccl-bind-pt": (wheel._replace(mpi=inside),)}
    plan = planned(resolve(StackRequest(stack="ipex"), {"n1": host()}, replace(found, candidates=read)))
    assert ("impi-rt>=2021.14,<2021.19" in plan.requirements, plan.bundled_mpi) == (impi, mpi)


def test_bindings_wheel_without_mpi_needs_impi_despite_the_table() -> None:
    found = index(*PYPI, BINDINGS_2_7, TORCH_2_7_CPU)
    ipex = StackRequest(stack="ipex")
    assert planned(resolve(ipex, {"n1": host()}, found)).bundled_mpi == "2021.14"
    (wheel,) = found.of("oneccl-bind-pt")
    read = {**found.candidates, "oneccl-bind-pt": (wheel._replace(mpi=""),)}
    plan = planned(resolve(ipex, {"n1": host()}, replace(found, candidates=read)))
    assert plan.bundled_mpi is None
    assert any(requirement.startswith("impi-rt") for requirement in plan.requirements)


@every_row
def test_every_stack_can_be_requested_by_name_and_by_torch_version(row: StackSpec) -> None:
    newest = max((python for python in row.pythons), key=version_key)
    facts = {"n1": host("2.36", newest)}
    by_name = planned(resolve(StackRequest(stack=row.name), facts, None))
    assert by_name.row.name == row.name
    assert (by_name.torch, by_name.ipex, by_name.oneccl, by_name.python) == (row.torch, row.ipex, row.oneccl, newest)
    assert planned(resolve(StackRequest(torch=row.line), facts, None)).row.name == row.name
    for patch in row.torch_patches:
        plan = planned(resolve(StackRequest(torch=patch), facts, None))
        assert (plan.row.name, plan.torch) == (row.name, patch)
    alone = planned(resolve(StackRequest(stack=f"torch-{row.line}"), facts, None))
    assert (alone.row.name, alone.ipex, alone.backend) == (f"torch-{row.line}", None, "gloo")
    assert planned(resolve(StackRequest(torch=row.line, stack="torch"), facts, None)).row.name == f"torch-{row.line}"


@every_row
def test_every_ipex_and_bindings_version_can_be_requested(row: StackSpec) -> None:
    for build in row.ipex_builds:
        plan = planned(resolve(StackRequest(ipex=build.version), {}, None))
        assert (plan.row.name, plan.ipex) == (row.name, build.version)
    for bindings in row.oneccl_builds:
        outcome = resolve(StackRequest(oneccl=bindings.version), {}, None)
        if bindings.cpu_wheel == "none":
            assert refused(outcome).reason
        else:
            plan = planned(outcome)
            assert (plan.row.name, plan.oneccl, plan.backend) == (row.name, bindings.version, "ccl")
            assert plan.torch in bindings.works_with


# Requirements of the stack


def test_ipex_1_12_0_is_not_for_cpus_without_avx512() -> None:
    hosts = {"n1": host("2.31", "3.8", flags=AVX2)}
    assert planned(resolve(StackRequest(torch="1.12"), hosts, None)).ipex == "1.12.300"


@pytest.mark.parametrize(
    ("glibc", "wanted"),
    [("2.36", "impi-rt>=2021.14,<2021.19"), ("2.28", "impi-rt>=2021.14,<2021.19"), ("2.17", "impi-rt<2021.14")],
)
def test_intel_mpi_version_fits_the_oldest_glibc(glibc: str, wanted: str) -> None:
    plan = planned(resolve(StackRequest(stack="torch-2.5"), {"n1": host(glibc), "n2": host("2.39")}, None))
    assert plan.requirements == ("torch==2.5.0", wanted, "numpy")


def test_old_intel_mpi_is_used_if_no_newer_one_is_available() -> None:
    old = index(*(wheel for wheel in PYPI if "impi_rt" not in wheel or "2021.13" in wheel))
    assert "impi-rt<2021.14" in planned(resolve(StackRequest(torch="2.5"), {"n1": host()}, old)).requirements


def test_missing_intel_mpi_is_noted_with_a_fix() -> None:
    none = index(*(wheel for wheel in PYPI if "impi_rt" not in wheel))
    plan = planned(resolve(NEWEST, {"n1": host(mpi=True), "n2": host()}, none))
    assert not any(requirement.startswith("impi-rt") for requirement in plan.requirements)
    assert any("impi_rt" in note for note in notes_of(plan))
    own = planned(resolve(NEWEST, {"n1": host(mpi=True), "n2": host(mpi=True)}, none))
    assert any("mpirun" in note for note in notes_of(own))
    assert notes_of(own) != notes_of(plan)


def test_missing_intel_openmp_is_omitted_with_a_note() -> None:
    none = index(*(wheel for wheel in PYPI if "openmp" not in wheel))
    plan = planned(resolve(StackRequest(stack="ipex"), {"n1": host()}, none))
    assert not any(requirement.startswith("intel-openmp") for requirement in plan.requirements)
    assert any("OpenMP" in note for note in notes_of(plan))


def test_numpy_is_needed_by_ipex_and_not_by_torch() -> None:
    """The wheel of IPEX 1.12 does not require it, and fails at import without it."""
    none = index(*(wheel for wheel in OLD if "numpy" not in wheel))
    hosts = {"n1": host("2.31", "3.8")}
    assert "numpy" not in planned(resolve(StackRequest(stack="torch-1.12"), hosts, none)).requirements
    assert "numpy" in planned(resolve(StackRequest(stack="ipex-1.12"), hosts, index(*OLD))).requirements


@every_row
def test_every_ipex_stack_notes_that_ipex_is_retired(row: StackSpec) -> None:
    plan = planned(resolve(StackRequest(stack=row.name), {}, None))
    retired = [note for note in notes_of(plan) if missing(note, "IPEX March 2026 --stack torch torch-2.15") == []]
    assert bool(retired) == bool(row.ipex)
    assert plan.row.retired == bool(row.ipex)


def test_yanked_wheel_is_pinned() -> None:
    plan = planned(resolve(StackRequest(torch="2.5"), {"n1": host()}, PYPI_INDEX))
    assert "intel-extension-for-pytorch==2.5.0" in plan.requirements
    assert not any("yanked" in note for note in notes_of(resolve(StackRequest(torch="2.6"), {}, None)))


def test_stacks_up_to_torch_2_4_require_numpy_1() -> None:
    assert planned(resolve(StackRequest(torch="2.4"), {}, None)).constraints == ("numpy<2",)
    assert planned(resolve(StackRequest(torch="2.5"), {}, None)).constraints == ()


def test_known_problems_of_another_version_are_not_noted() -> None:
    of_line = notes_of(resolve(StackRequest(torch="2.3"), {}, None))
    assert not any("2.3.100" in note for note in of_line if note.startswith("known"))


# Pythons


@pytest.mark.parametrize("asked", [StackRequest(stack="ipex"), StackRequest(torch="2.5")])
def test_stack_uses_gloo_if_only_the_bindings_lack_the_python(asked: StackRequest) -> None:
    plan = planned(resolve(asked, {"n1": host("2.17", "3.12")}, None))
    assert (plan.row.name, plan.python, plan.backend) == ("ipex-2.5", "3.12", "gloo")
    assert missing(notes_of(plan)[0], "gloo oneCCL n1 3.12 oneccl_bind_pt 2.5.0 3.9 3.11") == []


def test_newest_python_common_to_all_hosts_is_chosen() -> None:
    plan = planned(resolve(NEWEST, {"a": host("2.36", "3.10", "3.11", "3.12"), "b": host("2.36", "3.9", "3.11")}, None))
    assert plan.python == "3.11"
    assert plan.interpreters == {"a": "/usr/bin/python3.11", "b": "/usr/bin/python3.11"}


def test_older_python_is_chosen_if_newer_ones_have_only_a_cuda_build() -> None:
    wheels = index(
        "torch-2.13.0-cp312-cp312-manylinux_2_28_x86_64.whl", "torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl"
    )
    facts = {"a": host("2.36", "3.11", "3.12")}
    plan = planned(resolve(StackRequest(torch="2.13", stack="torch"), facts, wheels))
    assert (plan.python, plan.torch) == ("3.11", "2.13.0+cpu")
    asked = planned(resolve(StackRequest(torch="2.13", stack="torch", python="3.12"), facts, wheels))
    assert (asked.python, asked.torch) == ("3.12", "2.13.0")


def test_older_torch_is_chosen_if_newer_ones_have_only_a_cuda_build() -> None:
    name = "torch-{}-cp311-cp311-manylinux_2_28_x86_64.whl"
    wheels = index(*(name.format(version) for version in ("2.15.0", "2.14.1", "2.13.0+cpu", "2.12.1+cpu", "2.8.0+cpu")))
    facts = {"a": host("2.36", "3.11")}
    plan = planned(resolve(StackRequest(stack="torch"), facts, wheels))
    assert (plan.row.name, plan.torch) == ("torch-2.13", "2.13.0+cpu")
    assert missing(plan.reason.text, "torch-2.15 CUDA") == []
    assert planned(resolve(StackRequest(stack="torch-2.15"), facts, wheels)).torch == "2.15.0"
    retired_only = index(*(name.format(version) for version in ("2.15.0", "2.8.0+cpu")))
    assert planned(resolve(StackRequest(stack="torch"), facts, retired_only)).torch == "2.15.0"


def test_requested_python_is_used() -> None:
    facts = {"a": host("2.36", "3.9", "3.11", "3.12")}
    assert planned(resolve(StackRequest(python="3.9"), facts, None)).python == "3.9"


def test_hosts_with_a_shared_home_use_the_same_interpreter() -> None:
    hosts = {
        "a": host("2.36", "/opt/a/python3.11=3.11", "/usr/bin/python3.11=3.11", store="nfs:1"),
        "b": host("2.36", "/usr/bin/python3.11=3.11", "/opt/b/python3.11=3.11", store="nfs:1"),
        "c": host("2.36", "/opt/c/python3.11=3.11", store="nfs:2"),
    }
    assert interpreters_for("3.11", hosts) == {
        "a": "/usr/bin/python3.11",
        "b": "/usr/bin/python3.11",
        "c": "/opt/c/python3.11",
    }


def test_musl_32_bit_and_broken_interpreters_are_ignored() -> None:
    facts = host("2.36", "3.11")
    good = facts.software.pythons[0]
    pythons = (
        good._replace(path="/musl", libc="musl"),
        good._replace(path="/i386", arch="i386"),
        good._replace(path="/broken", version=None),
        good._replace(path="/vague", arch=None, libc=None),
        good,
    )
    facts = facts._replace(software=facts.software._replace(pythons=pythons))
    assert interpreters_for("3.11", {"a": facts}) == {"a": good.path}


def test_interpreter_is_the_bare_name_if_pythons_are_unknown() -> None:
    assert interpreters_for("3.11", {"a": Facts(), "b": host("2.36", "3.12")}) == {"a": "python3.11"}


# Projects and indexes to query


def test_projects_lists_the_packages_to_query() -> None:
    ours = ("torch", "intel-extension-for-pytorch", "oneccl-bind-pt", "impi-rt", "intel-openmp")
    everything = (*ours, "setuptools", "uv")
    assert set(projects(StackRequest(stack="ipex"))) == {*everything, "numpy", "psutil", "packaging"}
    assert set(projects(StackRequest(torch="2.7"))) - {"numpy"} == set(everything)
    assert projects(NEWEST) == projects(StackRequest(stack="torch")) == ("torch", "impi-rt", "numpy", "uv")


def test_indexes_lists_the_sources_of_a_stack() -> None:
    assert [(each.kind, each.url) for each in indexes(StackRequest(torch="2.7"))] == [
        ("index", "https://download.pytorch.org/whl/cpu"),
        ("index", "https://pytorch-extension.intel.com/release-whl/stable/cpu/us/"),
        ("index", "https://pypi.org/simple"),
    ]
    assert indexes(NEWEST)[-1].url == "https://pypi.org/simple"
    assert not any("intel" in each.url for each in indexes(NEWEST)), "nothing of IPEX is asked for"
    assert indexes(StackRequest(torch="1.10"))[0].kind == "links"


def test_unknown_host_facts_are_not_refused() -> None:
    hosts = {"a": Facts(), "b": Facts(system=System(libc="glibc")), "c": host(None, flags=frozenset())}
    assert planned(resolve(NEWEST, hosts, None)).python == "3.11"
