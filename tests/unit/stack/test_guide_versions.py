"""The versions in the tables of the guides: what a dry run answers for each of them, with and without the bindings."""

from __future__ import annotations

import pytest
from stack_helpers import host, index, planned, refused

from ipexctl.stack.lock.wheels import Availability
from ipexctl.stack.resolve.model import StackRequest
from ipexctl.stack.resolve.reasons import gloo_instead_of_oneccl, yanked_wheel
from ipexctl.stack.resolve.resolver import resolve

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
