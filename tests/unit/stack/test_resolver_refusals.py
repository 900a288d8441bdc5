"""Refusals of the stack resolver: the hosts, the rule and the fix."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stack_helpers import AVX, AVX2, AVX512, NEWEST, PYPI, PYPI_INDEX, host, index, refused

from ipexctl.facts.facts import Facts
from ipexctl.stack.catalog.table import minor, rows, version_key
from ipexctl.stack.lock.wheels import Availability
from ipexctl.stack.resolve.compatibility import incompatibility, usable_pythons
from ipexctl.stack.resolve.constraints import stacks
from ipexctl.stack.resolve.model import StackPlan, StackRequest
from ipexctl.stack.resolve.resolver import indexes, projects, resolve
from message_data import missing


@pytest.mark.parametrize(
    ("request_", "hosts", "reason", "fix", "at_fault"),
    [
        (
            StackRequest(torch="2.8"),
            {"node1": host("2.36", "3.9"), "node3": host("2.17", "3.9")},
            "node3 glibc 2.17 IPEX 2.8 2.28 2.5",
            "--stack ipex-2.5",
            ("node3",),
        ),
        (
            StackRequest(stack="torch-2.13"),
            {"node3": host("2.17", "3.9")},
            "node3 glibc 2.17 torch 2.13 2.28 2.6",
            "--stack torch-2.6",
            ("node3",),
        ),
        (
            StackRequest(stack="ipex"),
            {"node1": host("2.36", "3.14", "3.13"), "node2": host("2.36", "3.14")},
            "node2 Python 3.14 IPEX 2.8 3.9 3.13",
            "Python 3.13 --stack torch",
            ("node2",),
        ),
        (
            StackRequest(torch="2.7"),
            {"node2": host("2.36", "3.14")},
            "node2 Python 3.14 IPEX 2.7 3.9 3.13",
            "Python 3.13 --stack torch",
            ("node2",),
        ),
        (
            NEWEST,
            {"a": host("2.36", "3.10"), "b": host("2.36", "3.11"), "c": host("2.36", "3.11")},
            ("a torch 2.15 3.10 3.11"),
            "Python 3.11",
            ("a",),
        ),
        (NEWEST, {"a": host(), "n": host(arch="aarch64")}, "n aarch64 x86_64", "--limit '!n'", ("n",)),
        (NEWEST, {"n": host(kernel="Darwin", libc=None, glibc=None)}, "n Darwin", "", ("n",)),
        (NEWEST, {"n": host("1.2", libc="musl")}, "n musl glibc", "glibc", ("n",)),
        (NEWEST, {"n": host("2.12"), "m": host("2.12")}, "n m glibc 2.12 2.17", "", ("n", "m")),
        (NEWEST, {"n": host("2.36", "3.7")}, "n Python 3.7 3.8", "Python", ("n",)),
        (NEWEST, {"n": Facts(complete=True)}, "n Python 3", "Python 3.15", ("n",)),
        (StackRequest(stack="ipex"), {"n": host(flags=AVX)}, "n AVX2 IPEX 2.8", "--stack torch", ("n",)),
        (
            StackRequest(torch="1.10"),
            {"n": host("2.31", "3.8", flags=AVX2)},
            "n AVX-512 IPEX 1.10 2.4",
            "--stack torch-1.10",
            ("n",),
        ),
    ],
)
def test_refusal_names_hosts_rule_and_fix(
    request_: StackRequest, hosts: dict[str, Facts], reason: str, fix: str, at_fault: tuple[str, ...]
) -> None:
    why = refused(resolve(request_, hosts, None))
    assert missing(why.reason, reason) == []
    assert missing(why.fix, fix) == []
    assert why.hosts == at_fault
    assert why.exit_code == 1


def test_many_hosts_with_the_same_problem_are_abbreviated() -> None:
    hosts = {f"n{number}": host("2.17", "3.9") for number in range(9)}
    reason = refused(resolve(StackRequest(torch="2.8"), hosts, None)).reason
    assert missing(reason, "n0 n1 n2 n3 n4 4 2.17 2.8 2.28") == []
    assert missing(reason, "n5 n6 n7 n8") == ["n5", "n6", "n7", "n8"]


@pytest.mark.parametrize(
    ("asked", "reason", "fix"),
    [
        (StackRequest(torch="2.16"), "2.16 torch", "2.15"),
        (StackRequest(torch="3.0"), "3.0 torch", "2.15"),
        (StackRequest(torch="latest"), "latest torch", "1.10 2.15"),
        (StackRequest(torch="2.8.3"), "torch 2.8 2.8.0", "--torch 2.8.0"),
        (StackRequest(stack="ipex2.7"), "ipex2.7", "ipex-2.7"),
        (StackRequest(stack="IPEX-2.7"), "IPEX-2.7", "ipex-2.7"),
        (StackRequest(ipex="2.7.1"), "2.7.1 IPEX", "2.7.0"),
        (StackRequest(ipex="2.9"), "2.9 IPEX", "2.8.0"),
        (StackRequest(oneccl="2021.15"), "2021.15 oneccl_bind_pt", "1.10.0 2.8.0"),
        (StackRequest(python="3.16"), "3.16 Python", "3.15"),
        (StackRequest(python="3.11.4"), "", "3.11"),
        (StackRequest(python="python3"), "python3 Python", "3.6 3.15"),
        (StackRequest(torch=""), "torch", ""),
    ],
)
def test_unknown_versions_and_names_have_exit_code_2(asked: StackRequest, reason: str, fix: str) -> None:
    why = refused(resolve(asked, {}, None))
    assert why.exit_code == 2
    assert missing(why.reason, reason) == []
    assert missing(why.fix, fix) == []
    assert projects(asked) == ()


@pytest.mark.parametrize(
    ("asked", "reason", "fix"),
    [
        (
            StackRequest(torch="1.12.1", oneccl="1.12.0"),
            "oneccl_bind_pt 1.12.0 torch 1.12.1 1.12.100",
            "--oneccl 1.12.100",
        ),
        (StackRequest(torch="2.6", oneccl="2.7.0"), "oneccl_bind_pt 2.7.0 torch 2.6 2.6.0", "2.6.0"),
        (StackRequest(torch="2.8", ipex="2.7"), "IPEX 2.7 torch 2.8", "--ipex 2.8.0 --torch 2.7"),
        (StackRequest(torch="2.13", ipex="2.8.0"), "IPEX 2.8.0 torch 2.13", "--torch 2.8"),
        (StackRequest(torch="2.13", stack="ipex"), "IPEX torch 2.13", "--stack torch-2.13"),
        (StackRequest(torch="2.8", stack="ipex-2.7"), "ipex-2.7 torch 2.7 2.8", "--stack ipex-2.8"),
        (StackRequest(stack="torch-2.7", ipex="2.7.0"), "torch-2.7 IPEX", "--stack ipex-2.7"),
        (StackRequest(stack="torch", ipex="2.7.0"), "torch IPEX", "--stack ipex-2.7"),
        (StackRequest(stack="torch", oneccl="2.7.0"), "torch oneCCL", "--stack ipex-2.7"),
        (StackRequest(stack="torch-2.7", oneccl="2.7.0"), "torch-2.7 oneCCL", "--stack ipex-2.7"),
        (StackRequest(stack="torch", require_oneccl=True), "oneCCL", ""),
        (StackRequest(stack="torch-2.6", require_oneccl=True), "oneCCL torch 2.6", "--stack ipex-2.6"),
        (StackRequest(stack="ipex", python="3.14"), "IPEX 2.8 Python 3.9 3.13 3.14", "--python"),
        (StackRequest(torch="2.13", require_oneccl=True), "oneCCL torch 2.13", "ipex-2.7"),
        (StackRequest(torch="2.8", require_oneccl=True), "torch 2.8 2.7", "gloo"),
        (StackRequest(torch="2.8", python="3.14"), "IPEX 2.8 Python 3.9 3.13 3.14", "--python"),
        (StackRequest(python="3.6"), "Python 3.6", "3.8"),
    ],
)
def test_incompatible_requests_have_exit_code_1(asked: StackRequest, reason: str, fix: str) -> None:
    why = refused(resolve(asked, {}, None))
    assert why.exit_code == 1
    assert missing(why.reason, reason) == []
    assert missing(why.fix, fix) == []


def test_required_oneccl_without_available_bindings_is_refused() -> None:
    why = refused(resolve(StackRequest(require_oneccl=True), {"n1": host()}, PYPI_INDEX))
    assert missing(why.reason, "oneccl_bind_pt pypi.org") == []
    assert missing(why.fix, "--wheelhouse --require-oneccl ipex-2.8 gloo") == []


def test_wheelhouse_for_another_python_names_its_pythons() -> None:
    why = refused(resolve(NEWEST, {"n1": host("2.36", "3.12")}, index(*PYPI, source="/mnt/wheels")))
    assert missing(why.reason, "3.12 3.11 3.14") == []


def test_empty_index_is_refused_and_named() -> None:
    why = refused(resolve(NEWEST, {"n1": host()}, index(source="/mnt/empty")))
    assert missing(why.reason, "torch /mnt/empty") == []


# Any mix of hosts, requests and wheels gives a plan for all hosts, or a refusal with a reason


LINES = [row.line for row in rows()]
PYTHONS = [f"3.{number}" for number in range(6, 17)]
hosts_ = st.one_of(
    st.just(Facts()),
    st.builds(
        lambda glibc, pythons, flags, arch, libc, kernel: host(
            glibc, *pythons, flags=flags, arch=arch, libc=libc, kernel=kernel
        ),
        st.sampled_from([None, "2.12", "2.17", "2.27", "2.28", "2.36"]),
        st.lists(st.sampled_from(PYTHONS), min_size=1, max_size=5),
        st.sampled_from([frozenset[str](), AVX, AVX2, AVX512]),
        st.sampled_from([None, "x86_64", "x86_64", "x86_64", "aarch64"]),
        st.sampled_from([None, "glibc", "glibc", "glibc", "musl"]),
        st.sampled_from([None, "Linux", "Linux", "Linux", "Darwin"]),
    ),
)
versions_ = [patch for row in rows() for patch in (*row.torch_patches, row.line)]
requests_ = st.builds(
    StackRequest,
    torch=st.none() | st.sampled_from(versions_) | st.text(max_size=6),
    stack=st.none() | st.sampled_from(["ipex", "torch", *stacks(rows())]) | st.text(max_size=8),
    ipex=st.none() | st.sampled_from([build.version for row in rows() for build in row.ipex_builds]),
    oneccl=st.none() | st.sampled_from([build.version for row in rows() for build in row.oneccl_builds]),
    python=st.none() | st.sampled_from(PYTHONS),
    require_oneccl=st.booleans(),
)
wheels_ = [
    *PYPI,
    *(f"oneccl_bind_pt-{line}.0+cpu-cp311-cp311-linux_x86_64.whl" for line in LINES),
    *(f"torch-{line}.0+cpu-cp{python}-cp{python}-linux_x86_64.whl" for line in LINES for python in (39, 311, 313)),
    "intel_extension_for_pytorch-2.3.100-cp39-cp39-manylinux2014_x86_64.whl!",
    "torch-2.8.0-garbage.whl",
    "torch.tar.gz-1-x",
    "intel_extension_for_pytorch-2.8.0+xpu-cp311-cp311-linux_x86_64.whl",
]
obtainables_ = st.none() | st.builds(lambda names: index(*names), st.lists(st.sampled_from(wheels_), max_size=40))


@given(requests_, st.dictionaries(st.sampled_from("abcdef"), hosts_, max_size=5), obtainables_)
@settings(max_examples=200, deadline=None)
def test_any_request_gives_a_plan_for_all_hosts_or_a_refusal_with_a_reason(
    request: StackRequest, hosts: dict[str, Facts], availability: Availability | None
) -> None:
    outcome = resolve(request, hosts, availability)
    if not isinstance(outcome, StackPlan):
        why = refused(outcome)
        assert why.reason
        assert why.hosts == outcome.hosts
        assert set(why.hosts) <= set(hosts)
        assert all(name in why.reason or "more" in why.reason for name in why.hosts[:1])
        assert outcome.is_wrong_call == (why.exit_code == 2)
        assert (projects(request) == ()) >= outcome.is_wrong_call
        return
    for name, facts in hosts.items():
        assert incompatibility(outcome.row, facts) is None
        known = {minor(python.version) for python in usable_pythons(facts) if python.version}
        assert not known or outcome.python in known
        assert outcome.interpreters[name]
        assert version_key(outcome.glibc) <= version_key(facts.system.libc_version or "9.9")
    assert outcome.python in outcome.row.without_oneccl().pythons
    assert (outcome.backend == "ccl") == bool(outcome.oneccl)
    assert outcome.requirements[0] == f"torch=={outcome.torch}"
    assert outcome.reason.text
    assert all(note.text for note in outcome.notes)
    assert set(projects(request)) >= {"torch", "uv"}
    assert indexes(request)
    if outcome.ipex:
        assert minor(outcome.ipex) == minor(outcome.torch)
    if outcome.oneccl:
        assert minor(outcome.oneccl) == minor(outcome.torch)
        assert (outcome.torch[:6], outcome.oneccl[:7]) != ("1.12.1", "1.12.0+")
    if request.require_oneccl:
        assert outcome.backend == "ccl"
    if request.python:
        assert outcome.python == request.python
    if availability is not None:
        have = {
            f"{each.project.replace('_', '-')}=={each.version}"
            for part in availability.candidates.values()
            for each in part
        }
        assert {pin for pin in outcome.requirements if "==" in pin and "openmp" not in pin} <= have


@given(st.dictionaries(st.sampled_from("abcdef"), hosts_, min_size=1, max_size=5), obtainables_)
@settings(max_examples=50, deadline=None)
def test_result_does_not_depend_on_the_order_of_hosts(
    hosts: dict[str, Facts], availability: Availability | None
) -> None:
    one = resolve(StackRequest(), hosts, availability)
    other = resolve(StackRequest(), dict(reversed(hosts.items())), availability)
    assert isinstance(one, StackPlan) == isinstance(other, StackPlan)
    if isinstance(one, StackPlan) and isinstance(other, StackPlan):
        assert (one.row.name, one.python, one.requirements) == (other.row.name, other.python, other.requirements)
