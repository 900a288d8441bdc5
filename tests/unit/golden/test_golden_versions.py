"""The texts of choosing a stack: refusals, reasons and notes of the resolver, and the user's rows."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import test_resolver_refusals as refusals
import test_table as table
import test_user_table as user_rows
from golden_file import Case, golden_diff, refusal, rows_of
from stack_helpers import AVX, AVX2, BINDINGS_2_7, NEWEST, PYPI, PYPI_INDEX, host, index, planned, refused

from ipexctl.facts.facts import Facts
from ipexctl.stack.catalog.table import rows
from ipexctl.stack.catalog.user_table import known_rows
from ipexctl.stack.lock.wheels import Availability
from ipexctl.stack.resolve.compatibility import incompatibility
from ipexctl.stack.resolve.model import StackRequest
from ipexctl.stack.resolve.resolver import resolve


def describe_request(request: StackRequest) -> str:
    given = {field.name: getattr(request, field.name) for field in fields(request)}
    return " ".join(f"{name}={value}" for name, value in given.items() if value != getattr(NEWEST, name)) or "nothing"


def refusal_of(request: StackRequest, hosts: dict[str, Facts], have: Availability | None = None) -> Case:
    why = refused(resolve(request, hosts, have))
    return Case(f"refused: {describe_request(request)}, {len(hosts)} hosts", why.reason, why.fix)


def refused_cases() -> list[Case]:
    nine = {f"n{number}": host("2.17", "3.9") for number in range(9)}
    three = {"a": host("2.36", "3.9", "3.11", "3.12")}
    rows_ = rows_of(refusals.test_refusal_names_hosts_rule_and_fix)
    wrong = rows_of(refusals.test_unknown_versions_and_names_have_exit_code_2)
    wrong += rows_of(refusals.test_incompatible_requests_have_exit_code_1)
    for_gpus = index(
        "torch-2.8.0+cu126-cp311-cp311-manylinux_2_28_x86_64.whl",
        *(wheel for wheel in PYPI if not wheel.startswith("torch-2.8.0")),
    )
    return [
        *(refusal_of(request, hosts) for request, hosts, *_ in rows_),
        *(refusal_of(request, {}) for request, *_ in wrong),
        refusal_of(StackRequest(torch="2.8"), nine),
        refusal_of(StackRequest(torch="2.7", python="3.10"), three),
        refusal_of(StackRequest(ipex="1.12.0"), {"n1": host("2.31", "3.8", flags=AVX2)}),
        refusal_of(StackRequest(oneccl="2.8.0"), {}),
        refusal_of(StackRequest(require_oneccl=True), {"n1": host()}, PYPI_INDEX),
        refusal_of(NEWEST, {"n1": host("2.36", "3.12")}, index(*PYPI, source="/mnt/wheels")),
        refusal_of(NEWEST, {"n1": host()}, index(source="/mnt/empty")),
        refusal_of(StackRequest(torch="2.8"), {"n1": host()}, for_gpus),
    ]


def planned_of(request: StackRequest, hosts: dict[str, Facts], have: Availability | None = None) -> list[Case]:
    plan = planned(resolve(request, hosts, have))
    name = f"{plan.row.name} for {describe_request(request)}"
    return [
        Case(f"why {name}", plan.reason.text),
        *(Case(f"note of {name}", note.text) for note in plan.notes),
    ]


def planned_cases() -> list[Case]:
    one = {"n1": host()}
    torch = "torch-{}-cp311-cp311-manylinux_2_28_x86_64.whl"
    older = index(
        *PYPI,
        "oneccl_bind_pt-2.1.0+cpu-cp311-cp311-linux_x86_64.whl",
        "torch-2.1.1+cpu-cp311-cp311-linux_x86_64.whl",
        "intel_extension_for_pytorch-2.1.100-cp311-cp311-manylinux2014_x86_64.whl!",
    )
    without_mpi = index(*(wheel for wheel in PYPI if "impi_rt" not in wheel))
    scenes: list[tuple[StackRequest, dict[str, Facts], Availability | None]] = [
        (NEWEST, one, None),
        (NEWEST, {"new": host("2.36", "3.9"), "old": host("2.17", "3.9")}, None),
        (NEWEST, one, index(*PYPI, failures=("pytorch-extension.intel.com",))),
        (NEWEST, one, index(*PYPI, BINDINGS_2_7)),
        (NEWEST, one, older),
        (NEWEST, {"n1": host("2.36", "3.9")}, None),
        (NEWEST, {"n1": host("2.36", "3.10")}, None),
        (NEWEST, {"n1": host("2.36", "3.14")}, None),
        (NEWEST, {"n1": host("2.17", "3.12")}, None),
        (NEWEST, {"n1": host(flags=AVX)}, None),
        (NEWEST, one, index(*PYPI, "oneccl_bind_pt-2.8.0+cpu-cp311-cp311-linux_x86_64.whl")),
        (NEWEST, {"n1": host(mpi=True), "n2": host()}, without_mpi),
        (NEWEST, {"n1": host(mpi=True), "n2": host(mpi=True)}, without_mpi),
        (NEWEST, one, index(*(wheel for wheel in PYPI if "openmp" not in wheel))),
        (StackRequest(stack="torch"), one, PYPI_INDEX),
        (StackRequest(stack="ipex"), one, PYPI_INDEX),
        (StackRequest(stack="torch"), one, index(*(torch.format(v) for v in ("2.15.0", "2.13.0+cpu")))),
        (StackRequest(stack="torch"), one, index(*(torch.format(v) for v in ("2.15.0", "2.8.0+cpu")))),
        (StackRequest(torch="2.5"), one, PYPI_INDEX),
        (StackRequest(torch="2.5"), {}, None),
        (StackRequest(torch="2.7"), one, PYPI_INDEX),
        (StackRequest(torch="2.7", python="3.11"), one, None),
        (StackRequest(torch="2.8"), one, None),
        (StackRequest(ipex="2.3.0"), {}, None),
    ]
    return [case for context in scenes for case in planned_of(*context)]


def misfits() -> list[Case]:
    row = next(row for row in rows() if row.name == "ipex-2.7")
    found = [incompatibility(row, facts) for facts, _ in rows_of(table.test_incompatible_hosts_get_a_reason)]
    return [Case("misfit of a host to ipex-2.7", problem.text) for problem in found if problem]


def wrong_rows(tmp_path: Path) -> list[Case]:
    cases = []
    wrong = rows_of(user_rows.test_invalid_rows_are_errors_that_name_row_and_key)
    for text, *_ in (*wrong, *rows_of(user_rows.test_text_that_is_no_json_is_an_error_with_line_and_column)):
        error = user_rows.error_of(text)
        cases.append(Case(f"rows.json: {' '.join(text[:90].split())}", error.message, error.fix))
    (tmp_path / "latin").write_bytes(b'[{"name": "\xe9"}]')
    files = {name: {"IPEXCTL_ROWS": str(tmp_path / name)} for name in ("none.json", "latin")}
    return [
        *cases,
        *(refusal(f"rows: {name}", known_rows, variables, at=tmp_path) for name, variables in files.items()),
    ]


def test_versions(tmp_path: Path) -> None:
    assert not (
        diff := golden_diff("versions", [*refused_cases(), *planned_cases(), *misfits(), *wrong_rows(tmp_path)])
    ), diff
