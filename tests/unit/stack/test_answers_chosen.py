"""Choices of an install: answers of indexes, an environment to extend, changes, newer versions, downloads, homes."""

from __future__ import annotations

import shlex
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from lock_helpers import plan
from packaging.specifiers import SpecifierSet
from packaging.version import Version
from stack_helpers import PYPI, host, index

from ipexctl.api.open_hosts import open_sessions
from ipexctl.errors import Refusal
from ipexctl.facts.facts import Facts
from ipexctl.facts.gather import HostFacts
from ipexctl.facts.system_facts import Disk, HomeDirectory
from ipexctl.hosts.host import Host, check_same_home, find_leaders
from ipexctl.node.env.env_replies import AvailableWheel, EnvRecord, PipSettings
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.connector import ConnectOptions, OpenHosts
from ipexctl.remote.outcome import HostError, Notice
from ipexctl.stack.catalog import rows
from ipexctl.stack.env.envs import EnvsResult, _target_of
from ipexctl.stack.install_context import (
    InstallContext,
    InstallRequest,
    PackageChange,
    changes_of,
    install_line,
    install_request,
    refuse_downgrade,
    with_packages,
)
from ipexctl.stack.install_stack import install
from ipexctl.stack.lock.stack_locking import (
    LockedStack,
    _Locking,
    announce_stack,
    find_older,
    note_on_older,
)
from ipexctl.stack.lock.wheel_indexes import IndexAnswer, lacks_answer_about_mpi
from ipexctl.stack.lock.wheel_lock import Lock, Wheel, home_problem
from ipexctl.stack.lock.wheels import Availability
from ipexctl.stack.resolve.constraints import Constraints
from ipexctl.stack.resolve.model import EnvRequest, Sources, StackPlan, StackRequest
from ipexctl.stack.resolve.reasons import Reason, because, host_problems, musl_instead_of_glibc, parts_disagree
from ipexctl.stack.resolve.resolver import gloo_notes, resolve
from ipexctl.text import readable
from message_data import missing

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
        request=SimpleNamespace(
            sources=Sources(index_url=MINE), rows=rows(), env=EnvRequest(StackRequest()), ipex_use=""
        ),
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
    record: Any = SimpleNamespace(built=(), packages={})
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
        "lock.stack_locking.lock_stack": lock,
    }.items():
        monkeypatch.setattr(f"ipexctl.stack.{name if '.' in name else f'install_stack.{name}'}", function)
    request = InstallRequest(EnvRequest(StackRequest()), Sources(), rows(), dry_run=True)
    with open_sessions(ConnectOptions(), Cancel()) as pool:
        report = install(OpenHosts((Host("n1", "n1"),), pool), request)
    assert report.refusal == Refusal("REASON", "FIX")
    assert extended == [record if is_extended else None]


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
        ({"peft": None, "numpy": "1.26.4"}, (), StackRequest(), "torch-2.13", {"peft"}),  # a resolver chose numpy
        ({"numpy": None}, (), StackRequest(), "torch-2.13", set()),
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
    assert (merged.stack, merged.packages) == (present.stack, both)
    assert ("peft<1" in merged.constraints, "a<2" in merged.constraints) == (added[0] != "PEFT==0.13", True)


def test_changes_are_named_and_versions_that_cannot_be_compared_are_no_downgrade() -> None:
    assert changes_of({"a": "1", "b": "2", "c": "odd"}, {"a": "1", "b": "3", "d": "4", "c": "odder"}) == (
        PackageChange("b", "2", "3"),
        PackageChange("c", "odd", "odder"),
        PackageChange("d", None, "4"),
    )
    assert [change.is_lower for change in changes_of({"c": "odd", "e": "1"}, {"c": "odder"})] == [False, True]


def test_a_package_that_is_not_the_newest_is_noted() -> None:
    files = {name: (AvailableWheel(name, "2.0", f"{name}-2.0.tar.gz", "s"),) for name in ("deep", "pinned", "new")}
    locked = {"deep": "1.0", "pinned": "1.0", "new": "2.0"}
    older = find_older(("Deep", "pinned>=1", "new", "gone"), locked, Availability(files), "3.11")
    assert older == {"deep": Version("2.0")}
    assert note_on_older(older, locked, Availability(files)).endswith(": deep 1.0 (s has 2.0)")


@pytest.mark.parametrize(
    ("specifier", "python", "newest"), [("", "3.11", "0.19"), ("<0.19", "3.11", "0.5"), ("", "3.8", "0.5")]
)
def test_newest_release_may_be_a_source(specifier: str, python: str, newest: str) -> None:
    files = [
        AvailableWheel("deep", "0.5", "deep-0.5-py3-none-any.whl", "s"),
        AvailableWheel("deep", "0.19", "deep-0.19.tar.gz", "s", requires_python=">=3.9"),
        AvailableWheel("deep", "0.20", "deep-0.20.tar.gz", "s", yanked=True),
        AvailableWheel("deep", "1.0rc1", "deep-1.0rc1.tar.gz", "s"),
    ]
    found = Availability({"deep": tuple(files)}).newest("deep", SpecifierSet(specifier), python)
    assert str(found) == newest


def test_line_repeats_the_call_without_secrets() -> None:
    request = InstallRequest(
        EnvRequest(StackRequest(torch="2.13", require_oneccl=True), ("tqdm", "peft")),
        Sources("https://me:secret@host/simple"),
        (),
        {"peft": "requirements.txt:1"},
        named_files=(Path("requirements.txt"),),
        name="mine",
    )
    words = shlex.split(str(install_line(request, builds=["antlr4"])))
    expected = "--require-oneccl -r requirements.txt --torch 2.13 --env mine --with tqdm --build antlr4"
    assert words == ["ipexctl", "install", *expected.split(), "--index-url", "https://host/simple"]
    assert str(install_line(replace(request, builds=("b",)))).count("--build b") == 1


def test_build_takes_names() -> None:
    assert install_request(StackRequest(), (), (), Sources(), "default", {}, ("Hydra_Core",)).builds == ("hydra-core",)


CPU_BUILD = "torch-2.15.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl"
GB = 1_000_000_000


def announced(
    sizes: dict[str, int | None],
    *files: str,
    shared: frozenset[str] = frozenset(),
    request: StackRequest = StackRequest(),  # noqa: B008
    chosen: StackPlan | None = None,
) -> list[Notice]:
    """The notices for a stack whose wheels have these sizes, where the indexes have these files."""
    events: list[Any] = []
    wheels = tuple(Wheel(name, "1", f"{name}-1.whl", f"hash-{name}", size) for name, size in sizes.items())
    answer: Any = SimpleNamespace(availability=index(*PYPI, *files))
    context: Any = SimpleNamespace(
        request=InstallRequest(EnvRequest(request), Sources(), rows()),
        facts={"node1": host()},
        watch=events.append,
        notes=[],
    )
    uv = Wheel("uv", "1", "uv-1.whl", "hash-uv")
    announce_stack(
        context, LockedStack(chosen or plan(), Lock("3.11", wheels), uv, answer, True), by="BY", shared=shared
    )
    warnings = [event.text for event in events if event.warning]
    assert context.notes == warnings  # the JSON document has them, too
    return events


def test_a_small_download_is_one_line() -> None:
    (line,) = announced({"torch": 2 * GB, "numpy": None})
    assert not line.warning
    assert missing(line.text, f"ipex-2.8 3.11 2 wheels {readable(2 * GB)} BY") == []


@pytest.mark.parametrize("is_cuda", [False, True])
def test_download_above_2_gb_warns_and_names_the_smaller_stack(is_cuda: bool) -> None:
    sizes: dict[str, int | None] = {"torch": 2 * GB, "nvidia-cublas" if is_cuda else "big": GB}
    first, second = announced(sizes, CPU_BUILD)
    assert (first.warning, second.warning) == (False, True)
    assert missing(second.text, f"{readable(3 * GB)} {readable(6.3 * GB)} --stack torch-2.15") == []
    assert ("CUDA" in second.text) == is_cuda


def test_large_download_without_a_smaller_stack_names_the_pytorch_cpu_index() -> None:
    assert missing(announced({"torch": 3 * GB})[1].text, "download.pytorch.org/whl/cpu") == []


def test_wheels_already_on_the_hosts_are_not_counted() -> None:
    sizes: dict[str, int | None] = {"torch": 2 * GB, "big": GB}
    assert len(announced(sizes, CPU_BUILD)) == 2
    (line,) = announced(sizes, CPU_BUILD, shared=frozenset({"hash-torch"}))
    assert missing(line.text, readable(GB)) == []


LOCK = Lock("3.11", (Wheel("torch", "2.8.0", "torch-2.8.0-cp311-cp311-linux_x86_64.whl", "0" * 64, size=200_000_000),))


def at(**disk: object) -> Facts:
    return Facts(home=HomeDirectory("/h/.ipexctl", disk=Disk("/h", **disk)))  # type: ignore[arg-type]


def test_wheels_already_in_the_home_need_no_space() -> None:
    facts = at(writable=True, free=500_000_000)
    assert home_problem(facts, LOCK) is not None
    assert home_problem(facts, LOCK, held=200_000_000) is None


def test_unknown_facts_are_no_obstacle() -> None:
    assert home_problem(Facts(), LOCK) is None
    assert home_problem(at(), LOCK) is None


def test_equal_homes_are_no_obstacle() -> None:
    assert check_same_home({"a": "/h", "b": "/h"}, []) is None


def test_first_host_of_a_store_works_for_the_others() -> None:
    stores = {"a": "1", "b": "2", "c": "1"}
    assert find_leaders(stores, stores.__getitem__) == {"a": "a", "b": "b", "c": "a"}


@pytest.mark.parametrize(
    ("count", "text"), [(3_700_000_000, "3.7 GB"), (240_000_000, "240 MB"), (1_500, "2 kB"), (250e9, "250 GB")]
)
def test_sizes_are_formatted_in_powers_of_1000(count: float, text: str) -> None:
    assert readable(count) == text
