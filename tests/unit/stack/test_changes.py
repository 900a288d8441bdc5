"""Changes that an install would make, and which changes need --downgrade."""

from __future__ import annotations

from typing import Any

import pytest

from ipexctl.node.env.replies import EnvRecord
from ipexctl.stack.changes import PackageChange, changes_of, refuse_downgrade, with_packages
from ipexctl.stack.resolve.model import EnvRequest, StackRequest

BEFORE = {"torch": "2.13.0", "transformers": "5.24.0", "peft": "0.14.0", "numpy": "2.3.0"}


def refused(after: dict[str, str], request: EnvRequest, row: str = "torch-2.13") -> set[str]:
    made_for: dict[str, Any] = {**EnvRequest(StackRequest(), ("transformers", "peft")).to_json()}
    record = EnvRecord("", "e", "torch-2.13", "3.11", "", "", packages=BEFORE, backend="gloo", requests=(made_for,))
    refusal = refuse_downgrade(changes_of(BEFORE, after), record, row, request, "default")
    return {name for name in BEFORE if refusal is not None and f"{name} " in refusal.reason}


@pytest.mark.parametrize(
    ("after", "extras", "stack", "row", "names"),
    [
        ({}, (), StackRequest(), "torch-2.13", set()),
        ({"transformers": "5.25.0", "new": "1"}, (), StackRequest(), "torch-2.13", set()),
        ({"transformers": "5.17.0"}, (), StackRequest(), "torch-2.13", {"transformers"}),
        ({"transformers": "5.17.0"}, ("transformers",), StackRequest(), "torch-2.13", {"transformers"}),
        ({"transformers": "5.17.0"}, ("Transformers==5.17",), StackRequest(), "torch-2.13", set()),
        ({"transformers": "5.17.0"}, ("transformers<5.20",), StackRequest(), "torch-2.13", set()),
        ({"transformers": "5.17.0"}, ("transformers>=5",), StackRequest(), "torch-2.13", {"transformers"}),
        ({"peft": None, "numpy": "1.26.4"}, (), StackRequest(), "torch-2.13", {"peft", "numpy"}),
        # Another stack, which the call names: only what an earlier call asked for counts.
        ({"torch": "2.8.0", "numpy": "1.26.4"}, (), StackRequest(stack="ipex"), "ipex-2.8", set()),
        ({"torch": "2.8.0", "peft": None}, (), StackRequest(stack="ipex"), "ipex-2.8", {"peft"}),
        ({"torch": "2.8.0"}, (), StackRequest(), "ipex-2.8", {"torch"}),
    ],
)
def test_lower_and_lost_packages_are_refused_unless_the_call_names_them(
    after: dict[str, str | None], extras: tuple[str, ...], stack: StackRequest, row: str, names: set[str]
) -> None:
    packages = {name: version for name, version in {**BEFORE, **after}.items() if version is not None}
    assert refused(packages, EnvRequest(stack, extras), row) == names


@pytest.mark.parametrize(
    ("added", "both"),
    [
        (("trl",), ("peft==0.14", "Transformers>=5", "./own.whl", "trl")),
        (("PEFT==0.13",), ("Transformers>=5", "./own.whl", "PEFT==0.13")),
        (("transformers", "transformers<6"), ("peft==0.14", "./own.whl", "transformers", "transformers<6")),
    ],
)
def test_a_later_line_for_a_package_replaces_the_earlier_one(added: tuple[str, ...], both: tuple[str, ...]) -> None:
    present = EnvRequest(StackRequest(stack="torch"), ("peft==0.14", "Transformers>=5", "./own.whl"), ("peft<1", "a<2"))
    merged = with_packages(present, EnvRequest(StackRequest(), added))
    assert (merged.stack, merged.extras) == (present.stack, both)
    assert ("peft<1" in merged.constraints, "a<2" in merged.constraints) == (added[0] != "PEFT==0.13", True)


def test_changes_are_named_and_versions_that_cannot_be_compared_are_no_downgrade() -> None:
    assert changes_of({"a": "1", "b": "2", "c": "odd"}, {"a": "1", "b": "3", "d": "4", "c": "odder"}) == (
        PackageChange("b", "2", "3"),
        PackageChange("c", "odd", "odder"),
        PackageChange("d", None, "4"),
    )
    assert [change.is_lower for change in changes_of({"c": "odd", "e": "1"}, {"c": "odder"})] == [False, True]
