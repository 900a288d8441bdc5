"""Doctor recommends settings for the chosen stack; version limits of its rules match the version table."""

from __future__ import annotations

import pytest
from doctor_rules_helpers import amended, healthy

from ipexctl.doctor import software_rules
from ipexctl.doctor.recommend import recommend
from ipexctl.facts.facts import Facts
from ipexctl.facts.software import Python
from ipexctl.refusal import Refusal
from ipexctl.stack.catalog.table import StackSpec, rows
from ipexctl.stack.catalog.user_table import merged
from ipexctl.stack.resolve.model import StackPlan, StackRequest, Undecided
from ipexctl.stack.resolve.reasons import Reason
from ipexctl.stack.resolve.resolver import resolve_by_table


def with_pythons(*versions: str) -> Facts:
    pythons = tuple(Python(f"/usr/bin/python{v}", f"{v}.1", "x86_64", "glibc", True) for v in versions)
    return amended(healthy(), software={"pythons": pythons})


def _choice(request: StackRequest, facts: Facts, table: tuple[StackSpec, ...]) -> StackPlan | Undecided | Refusal:
    chosen = resolve_by_table(request, {"n1": facts}, table)
    return chosen.refusal() if isinstance(chosen, Reason) else chosen


@pytest.mark.parametrize(
    ("facts", "stack", "candidates", "backend"),
    [
        (healthy(), None, ("ipex-2.7", "torch-2.15"), "gloo"),
        (with_pythons("3.14"), "torch-2.15", ("torch-2.15",), "gloo"),
        (amended(healthy(), cpu={"arch": "aarch64"}), None, (), None),
    ],
)
def test_the_recommendation_is_for_the_chosen_stack(
    facts: Facts, stack: str | None, candidates: tuple[str, ...], backend: str | None
) -> None:
    chosen = _choice(StackRequest(), facts, rows())
    advice = recommend({"n1": facts}, {}, chosen)
    assert advice is not None
    assert (advice.stack, advice.candidates, advice.backend) == (stack, candidates, backend)
    reason = chosen.reason if isinstance(chosen, Refusal) else chosen.reason.text
    assert advice.why["stack"].startswith(reason)


def test_recommendation_uses_rows_of_the_user() -> None:
    text = '[{"name": "ipex-2.9", "torch": "2.9.1", "torch_pythons": ["3.11"], "ipex": [{"version": "2.9.0"}], '
    table = merged(text + '"oneccl": [{"version": "2.9.0", "mpi": "2021.15"}]}]', "rows.json")
    request = StackRequest(require_oneccl=True)
    advice = recommend({"n1": healthy()}, {}, _choice(request, healthy(), table))
    assert advice is not None
    assert (advice.stack, advice.backend) == ("ipex-2.9", "ccl")


def test_version_limits_of_rules_match_the_version_table() -> None:
    with_ipex: list[StackSpec] = [row for row in rows() if row.ipex]
    newest = with_ipex[0].pythons
    assert tuple(map(int, newest[0].split("."))) == software_rules.FIRST
    assert tuple(map(int, newest[-1].split("."))) == software_rules.LAST
    assert tuple(map(int, with_ipex[0].glibc.split("."))) == software_rules.NEWER_GLIBC
    assert min(tuple(map(int, row.glibc.split("."))) for row in rows()) == software_rules.OLDEST_GLIBC
