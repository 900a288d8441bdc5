"""The stack doctor recommends is the one install would take, and what its rules say of versions is the table's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from doctor_rules_helpers import amended, healthy

from ipexctl.doctor import host_software
from ipexctl.doctor.recommend import recommend
from ipexctl.facts.software import Python
from ipexctl.stack.catalog.table import rows
from ipexctl.stack.catalog.user_table import merged
from ipexctl.stack.resolve.model import StackPlan, StackRequest
from ipexctl.stack.resolve.resolver import resolve

if TYPE_CHECKING:
    from ipexctl.facts.facts import Facts
    from ipexctl.stack.catalog.table import StackSpec


def with_pythons(*versions: str) -> Facts:
    pythons = tuple(Python(f"/usr/bin/python{v}", f"{v}.1", "x86_64", "glibc", True) for v in versions)
    return amended(healthy(), software={"pythons": pythons})


@pytest.mark.parametrize(
    "facts",
    [
        healthy(),
        with_pythons("3.14"),
        with_pythons("3.8"),
        amended(healthy(), system={"libc_version": "2.17"}),
        amended(healthy(), cpu={"arch": "aarch64"}),
    ],
)
def test_the_stack_is_the_one_install_takes_by_the_table(facts: Facts) -> None:
    advice = recommend({"n1": facts}, {})
    plan = resolve(StackRequest(), {"n1": facts}, None)
    assert advice is not None
    if isinstance(plan, StackPlan):
        assert (advice.stack, advice.backend, advice.why["stack"]) == (plan.row.name, plan.backend, plan.why)
    else:
        assert advice.stack is None
        assert advice.why["stack"].startswith(plan.reason)


def test_rows_of_the_users_own_count() -> None:
    text = '[{"name": "ipex-2.9", "torch": "2.9.1", "torch_pythons": ["3.11"], "ipex": [{"version": "2.9.0"}], '
    table = merged(text + '"oneccl": [{"version": "2.9.0", "mpi": "2021.15"}]}]', "rows.json")
    advice = recommend({"n1": healthy()}, {}, table)
    assert advice is not None
    assert (advice.stack, advice.backend) == ("ipex-2.9", "ccl")


def test_what_rules_say_of_versions_is_what_the_table_has() -> None:
    with_ipex: list[StackSpec] = [row for row in rows() if row.ipex]
    newest = with_ipex[0].pythons
    assert tuple(map(int, newest[0].split("."))) == host_software.FIRST
    assert tuple(map(int, newest[-1].split("."))) == host_software.LAST
    assert tuple(map(int, with_ipex[0].glibc.split("."))) == host_software.NEWER_GLIBC
    assert min(tuple(map(int, row.glibc.split("."))) for row in rows()) == host_software.OLDEST_GLIBC
