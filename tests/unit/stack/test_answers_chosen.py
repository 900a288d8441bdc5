"""Choices where there are several: answers of indexes, rows for a note, an environment to extend."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from stack_helpers import PYPI, host, index

from ipexctl.facts.gather import HostFacts
from ipexctl.hosts.host import Host
from ipexctl.node.env.replies import PipSettings
from ipexctl.refusal import Refusal
from ipexctl.remote.outcome import HostError
from ipexctl.stack.catalog.table import rows
from ipexctl.stack.env.envs import EnvsResult, _target_of
from ipexctl.stack.install import install
from ipexctl.stack.install_context import InstallContext, InstallRequest
from ipexctl.stack.lock.indexes import IndexAnswer, lacks_answer_about_mpi
from ipexctl.stack.lock.pipeline import _Locking
from ipexctl.stack.lock.wheels import Availability
from ipexctl.stack.resolve.constraints import Constraints
from ipexctl.stack.resolve.model import EnvRequest, Sources, StackPlan, StackRequest
from ipexctl.stack.resolve.reasons import Reason, because, host_problems, musl_instead_of_glibc, parts_disagree
from ipexctl.stack.resolve.resolver import gloo_notes, resolve

MINE = "https://mine/simple"


def answer(*files: str, failures: tuple[str, ...] = ()) -> IndexAnswer:
    return IndexAnswer(index(*files, failures=failures), (SimpleNamespace(),), PipSettings())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("from_node0", "own", "by_node0"),
    [
        (answer(*PYPI), answer(*PYPI), True),
        (answer(), answer(*PYPI), False),
        (answer(*PYPI, failures=(MINE,)), answer(*PYPI), False),
        (answer(*PYPI, failures=(MINE,)), answer(*PYPI, failures=(MINE,)), True),
        (answer(*PYPI), answer(*PYPI, failures=(MINE,)), True),
        (None, answer(*PYPI), False),
        (answer(), HostError("REASON"), True),
    ],
)
def test_answer_of_node0_counts_unless_only_the_control_machine_reaches_what_the_call_names(
    from_node0: IndexAnswer | None, own: IndexAnswer | HostError, by_node0: bool
) -> None:
    def answered(session: str, *_: object) -> IndexAnswer:
        found = from_node0 if session == "node0" else own
        if isinstance(found, IndexAnswer):
            return found
        raise found or HostError("REASON")

    class Locking(_Locking):
        def _query(self, session: Any, python: str, *, here: bool) -> IndexAnswer:
            return answered("here" if here else "node0")

    context: Any = SimpleNamespace(
        request=SimpleNamespace(sources=Sources(index_url=MINE), dry_run=False),
        first=Host("node1", "node1"),
        pool=SimpleNamespace(session=lambda _: None),
        python=lambda _: "",
        control=SimpleNamespace(session=None, python=""),
        notes=[],
    )
    assert Locking(context, ())._query_both() == (from_node0 if by_node0 else own, by_node0)
    assert len(context.notes) == (from_node0 is None)


WITHOUT_MPI = tuple(name for name in PYPI if not name.startswith("impi_rt"))


@pytest.mark.parametrize(
    ("files", "silent", "has_mpi", "is_lacking"),
    [
        (WITHOUT_MPI, "PyPI", False, True),
        (WITHOUT_MPI, "PyTorch's CPU index", False, False),
        (WITHOUT_MPI, None, False, False),
        (WITHOUT_MPI, "PyPI", True, False),
        (PYPI, "PyPI", False, False),
    ],
)
def test_stack_without_any_mpi_is_no_stack_while_an_index_gives_no_answer(
    files: tuple[str, ...], silent: str | None, has_mpi: bool, is_lacking: bool
) -> None:
    hosts = {"n1": host(mpi=has_mpi)}
    availability = index(*files, failures=(silent,) if silent else ())
    plan = resolve(StackRequest(), hosts, availability)
    assert isinstance(plan, StackPlan)
    lacking = lacks_answer_about_mpi(plan, availability)
    assert (lacking is not None) == is_lacking
    if lacking is not None:
        assert "PyPI" in lacking[0] and "impi-rt" in lacking[0]


def test_index_without_an_answer_is_asked_once_more_where_no_mpi_was_found() -> None:
    answers = [answer(*WITHOUT_MPI, failures=("PyPI",)), answer(*PYPI), answer()]

    class Locking(_Locking):
        def query_here(self) -> IndexAnswer:
            return answers.pop(0)

        def _lock(self, plan: StackPlan, index_answer: IndexAnswer, *, by_node0: bool) -> Any:
            return [each for each in plan.requirements if each.startswith("impi-rt")]

    context: Any = SimpleNamespace(
        request=SimpleNamespace(sources=Sources(index_url=MINE), rows=rows(), env=EnvRequest(StackRequest())),
        facts={"n1": host()},
        first=Host("n1", "n1"),
        extended=None,
        timed=lambda *_: nullcontext(),
        notes=[],
    )
    assert len(Locking(context, ()).lock(node0_may=False)) == 1  # type: ignore[arg-type]
    assert (len(answers), context.notes) == (1, [])


def test_note_on_gloo_is_about_the_newest_row_whose_hosts_are_not_at_fault() -> None:
    with_oneccl = [row for row in rows() if row.oneccl_builds and row.oneccl]
    chosen = replace(with_oneccl[-1], oneccl_builds=())
    of_hosts = because(host_problems, groups=((because(musl_instead_of_glibc), ("n1",)),))
    of_indexes = because(parts_disagree, title="ipex-2.7")
    constraints = Constraints(rows(), "any", False, None, False)

    def about(*problems: Reason) -> object:
        tried = tuple(zip(with_oneccl, problems, strict=False))
        (note,) = gloo_notes(chosen, tried, constraints, Availability(queried=False))
        return note.fields["row"]

    assert about(of_hosts, of_indexes) == with_oneccl[1].name
    assert about(of_hosts, of_hosts) == with_oneccl[0].name


def test_host_without_a_usable_python_has_no_environments_to_list() -> None:
    facts = host()
    without = facts._replace(software=facts.software._replace(pythons=()))
    found = _target_of(HostFacts(Host("n1", "n1"), "ok", facts=without))
    assert isinstance(found, EnvsResult)
    assert (found.status, "doctor" in found.fix) == ("failed", True)
    assert not isinstance(_target_of(HostFacts(Host("n1", "n1"), "ok", facts=facts)), EnvsResult)


@pytest.mark.parametrize(
    ("is_known", "fits", "is_extended"), [(False, True, True), (False, False, False), (True, True, False)]
)
def test_environment_is_extended_unless_it_does_not_fit_or_one_for_this_request_exists(
    monkeypatch: pytest.MonkeyPatch, is_known: bool, fits: bool, is_extended: bool
) -> None:
    """An existing one for this request that is not built again, as no host has its lock, is locked anew."""
    record: Any = object()
    extended: list[object] = []

    def find_known(context: InstallContext) -> object | None:
        context.extended = record
        return object() if is_known else None

    def lock(context: InstallContext) -> Refusal:
        extended.append(context.extended)
        return Refusal("REASON", "FIX")

    def inspect(context: InstallContext, *_: object) -> None:
        context.facts = {"n1": host()}

    for name, function in {
        "inspect_hosts": inspect,
        "_find_known": find_known,
        "_reuse": lambda *_: None,
        "_fits": lambda *_: fits,
        "lock.pipeline.lock_stack": lock,
    }.items():
        monkeypatch.setattr(f"ipexctl.stack.{name if '.' in name else f'install.{name}'}", function)
    request = InstallRequest(EnvRequest(StackRequest()), Sources(), rows(), dry_run=True)
    report = install((Host("n1", "n1"),), request, None)  # type: ignore[arg-type]
    assert report.refusal == Refusal("REASON", "FIX")
    assert extended == [record if is_extended else None]
