"""Bindings whose wheel has no oneCCL inside are refused before a lock is made, unless its packages come with them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from stack_helpers import PYPI, host, index, planned

from ipexctl.stack.lock.wheels import Availability, lacks_oneccl
from ipexctl.stack.resolve.model import StackPlan, StackRequest
from ipexctl.stack.resolve.resolver import resolve

WHEEL = "oneccl_bind_pt-2.8.0+cpu-cp311-cp311-linux_x86_64.whl"


def answer(*, oneccl: bool | None) -> Availability:
    """PyPI, and a directory with bindings that have oneCCL inside or not."""
    found = index(*PYPI, WHEEL)
    (wheel,) = found.of("oneccl-bind-pt")
    mpi = "2021.15" if oneccl else ""
    wheels = {**found.candidates, "oneccl-bind-pt": (wheel._replace(oneccl=oneccl, mpi=mpi),)}
    return replace(found, candidates=wheels)


def plan_of(available: Availability) -> StackPlan:
    return planned(resolve(StackRequest(stack="ipex-2.8"), {"n1": host()}, available))


@pytest.mark.parametrize(
    ("oneccl", "extras"),
    [
        (True, ()),
        (None, ()),  # of an index: the verification shows it
        (False, ("oneccl==2021.15.2", "impi-rt==2021.15.*")),
        (False, ("oneccl", "transformers", "impi_rt")),
    ],
)
def test_others_are_not_refused(oneccl: bool | None, extras: tuple[str, ...]) -> None:
    available = answer(oneccl=oneccl)
    assert lacks_oneccl(plan_of(available), extras, available) is None


def test_packages_of_one_kind_alone_are_not_enough() -> None:
    available = answer(oneccl=False)
    assert lacks_oneccl(plan_of(available), ("impi-rt==2021.15.*",), available) is not None
