"""The texts of choosing a stack: refusals, reasons and notes of the resolver, and the user's rows."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

from golden_file import Case, golden_diff, refusal
from golden_file import refused as refused_case
from stack_helpers import AVX, AVX2, BINDINGS_2_7, NEWEST, PYPI, PYPI_INDEX, host, index, planned, refused
from test_resolver import OLD
from test_table import BY_NAME, IPEX, ONECCL, pypi

from ipexctl.facts.facts import Facts
from ipexctl.facts.system_facts import System
from ipexctl.stack.catalog import known_rows, merged
from ipexctl.stack.lock.wheels import Availability
from ipexctl.stack.resolve.compatibility import incompatibility
from ipexctl.stack.resolve.model import StackRequest
from ipexctl.stack.resolve.resolver import resolve

REFUSED: tuple[tuple[StackRequest, dict[str, Facts]], ...] = (
    (StackRequest(torch="2.8"), {"node1": host("2.36", "3.9"), "node3": host("2.17", "3.9")}),
    (StackRequest(stack="torch-2.13"), {"node3": host("2.17", "3.9")}),
    (StackRequest(stack="ipex"), {"node1": host("2.36", "3.14", "3.13"), "node2": host("2.36", "3.14")}),
    (StackRequest(torch="2.7"), {"node2": host("2.36", "3.14")}),
    (NEWEST, {"a": host("2.36", "3.10"), "b": host("2.36", "3.11"), "c": host("2.36", "3.11")}),
    (NEWEST, {"a": host(), "n": host(arch="aarch64")}),
    (NEWEST, {"n": host(kernel="Darwin", libc=None, glibc=None)}),
    (NEWEST, {"n": host("1.2", libc="musl")}),
    (NEWEST, {"n": host("2.12"), "m": host("2.12")}),
    (NEWEST, {"n": host("2.36", "3.7")}),
    (NEWEST, {"n": Facts(complete=True)}),
    (StackRequest(stack="ipex"), {"n": host(flags=AVX)}),
    (StackRequest(torch="1.10"), {"n": host("2.31", "3.8", flags=AVX2)}),
    (StackRequest(torch="2.8"), {f"n{number}": host("2.17", "3.9") for number in range(9)}),
    (StackRequest(torch="2.7", python="3.10"), {"a": host("2.36", "3.9", "3.11", "3.12")}),
    (StackRequest(ipex="1.12.0"), {"n1": host("2.31", "3.8", flags=AVX2)}),
    (StackRequest(oneccl="2.8.0"), {}),
)
WRONG: tuple[StackRequest, ...] = (
    StackRequest(torch="2.16"),
    StackRequest(torch="3.0"),
    StackRequest(torch="latest"),
    StackRequest(torch="2.8.3"),
    StackRequest(stack="ipex2.7"),
    StackRequest(stack="IPEX-2.7"),
    StackRequest(ipex="2.7.1"),
    StackRequest(ipex="2.9"),
    StackRequest(oneccl="2021.15"),
    StackRequest(python="3.16"),
    StackRequest(python="3.11.4"),
    StackRequest(python="python3"),
    StackRequest(torch=""),
    StackRequest(torch="1.12.1", oneccl="1.12.0"),
    StackRequest(torch="2.6", oneccl="2.7.0"),
    StackRequest(torch="2.8", ipex="2.7"),
    StackRequest(torch="2.13", ipex="2.8.0"),
    StackRequest(torch="2.13", stack="ipex"),
    StackRequest(torch="2.8", stack="ipex-2.7"),
    StackRequest(stack="torch-2.7", ipex="2.7.0"),
    StackRequest(stack="torch", ipex="2.7.0"),
    StackRequest(stack="torch", oneccl="2.7.0"),
    StackRequest(stack="torch-2.7", oneccl="2.7.0"),
    StackRequest(stack="torch", require_oneccl=True),
    StackRequest(stack="torch-2.6", require_oneccl=True),
    StackRequest(stack="ipex", python="3.14"),
    StackRequest(torch="2.13", require_oneccl=True),
    StackRequest(torch="2.8", require_oneccl=True),
    StackRequest(torch="2.8", python="3.14"),
    StackRequest(python="3.6"),
)
MISFITS = (
    host(arch="aarch64"),
    host(kernel="Darwin"),
    host()._replace(system=System(kernel_name="Linux", libc="musl")),
    host("2.12"),
    host("2.36", "3.7"),
    host("2.36", "3.14"),
    host("2.36", "3.14", "3.15"),
    host(flags=AVX),
    Facts(complete=True),
)
NEW = {"name": "x", "torch": "2.16.0", "torch_pythons": ["3.11"]}
WRONG_VALUES: tuple[dict[str, object], ...] = (
    {"name": "Big Row"},
    {"name": "torch"},
    {"torch": "2.8"},
    {"torch": 2.8},
    {"torch": f"2.16.{'1' * 5000}"},
    {"torch_pythons": ["3.11", "cp312"]},
    {"torch_pythons": "3.11"},
    {"retired": "no"},
    {"ipex": [{"version": "2.8.0", "pypi": "yankt"}]},
    {"ipex": [{"version": "2.8.0", "pipy": "yanked"}]},
    {"ipex": [{}]},
    {"ipex": {}},
    {"mpi": {"new": "impi-rt"}},
    {"requires": ["a==foo"]},
    {"requires": ["a; rm -rf /"]},
    {"indexes": [{"kind": "index", "url": "wheels"}]},
    {"setvars": "../../etc/x.sh"},
    {"note": "two\nlines"},
)
ROWS = (
    *(json.dumps([NEW | wrong]) for wrong in WRONG_VALUES),
    '[{"name": "x", "tourch": "2.8.0"}]',
    "{}",
    "[7]",
    "[{}]",
    '[{"name": "ipex-2.9"}]',
    '[{"name": "x", "torch": "2.8.0"}]',
    '[{"name": "torch-2.15"}, {"name": "torch-2.15"}]',
    '[{"name": "torch-2.15", "torch_patches": ["2.15.9"]}]',
    '[{"name": "ipex-2.8", "ipex": [{"version": "2.8.0", "works_with": ["2.7.0"]}]}]',
    '[{"name": "torch-2.15", "oneccl": [{"version": "2.15.0"}]}]',
    '[\n {"name": "x"\n  "torch": "2.8.0"}\n]',
    "",
    "[" * 100_000,
)


def describe_request(request: StackRequest) -> str:
    given = {field.name: getattr(request, field.name) for field in fields(request)}
    return " ".join(f"{name}={value}" for name, value in given.items() if value != getattr(NEWEST, name)) or "nothing"


def refusal_of(request: StackRequest, hosts: dict[str, Facts], have: Availability | None = None) -> Case:
    why = refused(resolve(request, hosts, have))
    return refused_case(f"refused: {describe_request(request)}, {len(hosts)} hosts", why)


def refused_cases() -> list[Case]:
    for_gpus = index(
        "torch-2.8.0+cu126-cp311-cp311-manylinux_2_28_x86_64.whl",
        *(wheel for wheel in PYPI if not wheel.startswith("torch-2.8.0")),
    )
    without_numpy = index(*(wheel for wheel in OLD if "numpy" not in wheel))
    with_bindings = {version: pypi(torch, pythons[-1]) for version, torch, pythons in ONECCL}
    return [
        *(refusal_of(request, hosts) for request, hosts in REFUSED),
        *(refusal_of(request, {}) for request in WRONG),
        refusal_of(StackRequest(require_oneccl=True), {"n1": host()}, PYPI_INDEX),
        refusal_of(NEWEST, {"n1": host("2.36", "3.12")}, index(*PYPI, source="/mnt/wheels")),
        refusal_of(NEWEST, {"n1": host()}, index(source="/mnt/empty")),
        refusal_of(StackRequest(torch="2.8"), {"n1": host()}, for_gpus),
        refusal_of(StackRequest(stack="ipex-1.12"), {"n1": host("2.31", "3.8")}, without_numpy),
        *(
            refusal_of(StackRequest(ipex=version), {"n1": host("2.31", python)}, pypi("2.8.0", "3.11", "2.8.0"))
            for version, _, python in IPEX
        ),
        *(
            refusal_of(StackRequest(oneccl=version), {"n1": host("2.31", pythons[-1])}, with_bindings[version])
            for version, _, pythons in ONECCL
        ),
    ]


IPEX_ROWS = StackRequest(stack="ipex")


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
        (IPEX_ROWS, one, index(*PYPI, failures=("pytorch-extension.intel.com",))),
        (IPEX_ROWS, one, older),
        (IPEX_ROWS, {"new": host("2.36", "3.9"), "old": host("2.17", "3.9")}, None),
        (IPEX_ROWS, one, index(*PYPI, "oneccl_bind_pt-2.8.0+cpu-cp311-cp311-linux_x86_64.whl")),
        (IPEX_ROWS, {"n1": host("2.17", "3.12")}, None),
        (NEWEST, {"new": host("2.36", "3.9"), "old": host("2.17", "3.9")}, None),
        (IPEX_ROWS, one, index(*PYPI, BINDINGS_2_7)),
        (NEWEST, {"n1": host("2.36", "3.9")}, None),
        (NEWEST, {"n1": host("2.36", "3.10")}, None),
        (NEWEST, {"n1": host("2.36", "3.14")}, None),
        (NEWEST, {"n1": host("2.17", "3.12")}, None),
        (NEWEST, {"n1": host(flags=AVX)}, None),
        (NEWEST, {"n1": host(mpi=True), "n2": host()}, without_mpi),
        (NEWEST, {"n1": host(mpi=True), "n2": host(mpi=True)}, without_mpi),
        (IPEX_ROWS, one, index(*(wheel for wheel in PYPI if "openmp" not in wheel))),
        (StackRequest(stack="torch"), one, PYPI_INDEX),
        (IPEX_ROWS, one, PYPI_INDEX),
        (StackRequest(stack="torch"), one, index(*(torch.format(v) for v in ("2.15.0", "2.13.0+cpu")))),
        (StackRequest(stack="torch"), one, index(*(torch.format(v) for v in ("2.15.0", "2.8.0+cpu")))),
        (StackRequest(torch="2.5"), one, PYPI_INDEX),
        (StackRequest(torch="2.5"), {}, None),
        (StackRequest(torch="2.7"), one, PYPI_INDEX),
        (StackRequest(torch="2.7", python="3.11"), one, None),
        (StackRequest(torch="2.8"), one, None),
        (StackRequest(ipex="2.3.0"), {}, None),
        (NEWEST, one, index(*(name for name in PYPI if "2.15" not in name))),
    ]
    return [case for context in scenes for case in planned_of(*context)]


def misfits() -> list[Case]:
    found = [incompatibility(BY_NAME["ipex-2.7"], facts) for facts in MISFITS]
    found.append(incompatibility(BY_NAME["ipex-1.10"], host("2.31", "3.8", flags=AVX2)))
    assert None not in found
    return [Case("misfit of a host to a stack", problem.text) for problem in found if problem]


def wrong_rows(tmp_path: Path) -> list[Case]:
    (tmp_path / "latin").write_bytes(b'[{"name": "\xe9"}]')
    files = {name: {"IPEXCTL_ROWS": str(tmp_path / name)} for name in ("none.json", "latin", ".")}
    return [
        *(refusal(f"rows.json: {' '.join(text[:90].split())}", merged, text, "rows.json") for text in ROWS),
        *(refusal(f"rows: {name}", known_rows, variables, at=tmp_path) for name, variables in files.items()),
    ]


def test_versions(tmp_path: Path) -> None:
    assert not (
        diff := golden_diff("versions", [*refused_cases(), *planned_cases(), *misfits(), *wrong_rows(tmp_path)])
    ), diff
