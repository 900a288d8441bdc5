"""Why there is no stack: who is at fault, by which rule, and what to do then."""

from __future__ import annotations

import pytest
from stack_helpers import AMONG_PYPI, AVX, AVX2, NEWEST, PYPI, host, index, refused

from ipexctl.facts.facts import Facts
from ipexctl.stack.choice.request import StackRequest
from ipexctl.stack.choice.resolver import projects, resolve


@pytest.mark.parametrize(
    ("request_", "hosts", "reason", "fix", "at_fault"),
    [
        (
            StackRequest(torch="2.8"),
            {"node1": host("2.36", "3.9"), "node3": host("2.17", "3.9")},
            "node3 has glibc 2.17; IPEX 2.8 needs 2.28; newest that fits: 2.5",
            "--stack ipex-2.5",
            ("node3",),
        ),
        (
            StackRequest(stack="torch-2.13"),
            {"node3": host("2.17", "3.9")},
            "node3 has glibc 2.17; torch 2.13 needs 2.28; newest that fits: 2.6",
            "--stack torch-2.6",
            ("node3",),
        ),
        (
            StackRequest(stack="ipex"),
            {"node1": host("2.36", "3.14", "3.13"), "node2": host("2.36", "3.14")},
            "node2 has only Python 3.14; IPEX 2.8 is built for 3.9 to 3.13",
            "install Python 3.13 there, or --stack torch",
            ("node2",),
        ),
        (
            StackRequest(torch="2.7"),
            {"node2": host("2.36", "3.14")},
            "node2 has only Python 3.14; IPEX 2.7 is built for 3.9 to 3.13",
            "install Python 3.13 there, or --stack torch",
            ("node2",),
        ),
        (
            NEWEST,
            {"a": host("2.36", "3.10"), "b": host("2.36", "3.11"), "c": host("2.36", "3.11")},
            (
                "no Python that IPEX 2.8 is built for (3.9 to 3.13) is on all hosts: a has only Python 3.10; "
                "b and c have only Python 3.11"
            ),
            "install Python 3.11 on a",
            ("a",),
        ),
        (
            NEWEST,
            {"a": host(), "n": host(arch="aarch64")},
            "n is aarch64; the wheels are for x86_64",
            "--limit '!n'",
            ("n",),
        ),
        (
            NEWEST,
            {"n": host(kernel="Darwin", libc=None, glibc=None)},
            "n runs Darwin; the wheels are for Linux",
            "",
            ("n",),
        ),
        (NEWEST, {"n": host("1.2", libc="musl")}, "n has musl instead of glibc", "a system with glibc", ("n",)),
        (
            NEWEST,
            {"n": host("2.12"), "m": host("2.12")},
            "n and m have glibc 2.12; every row needs 2.17",
            "",
            ("n", "m"),
        ),
        (
            NEWEST,
            {"n": host("2.36", "3.7")},
            "n has only Python 3.7; ipexctl needs 3.8 or newer",
            "install Python",
            ("n",),
        ),
        (NEWEST, {"n": Facts(complete=True)}, "n has no Python 3 that runs", "install Python 3.13 there", ("n",)),
        (
            StackRequest(stack="ipex"),
            {"n": host(flags=AVX)},
            "n has no AVX2, which IPEX 2.8 needs",
            "--stack torch",
            ("n",),
        ),
        (
            StackRequest(torch="1.10"),
            {"n": host("2.31", "3.8", flags=AVX2)},
            "n has no AVX-512, which IPEX 1.10 needs; newest that fits: 2.4",
            "--stack torch-1.10",
            ("n",),
        ),
    ],
)
def test_a_refusal_names_the_hosts_the_rule_and_the_way_out(
    request_: StackRequest, hosts: dict[str, Facts], reason: str, fix: str, at_fault: tuple[str, ...]
) -> None:
    why = refused(resolve(request_, hosts, None))
    assert why.reason.startswith(reason)
    assert fix in why.fix
    assert why.hosts == at_fault
    assert not why.wrong_call


def test_many_hosts_with_one_fault_are_one_clause() -> None:
    hosts = {f"n{number}": host("2.17", "3.9") for number in range(9)}
    reason = refused(resolve(StackRequest(torch="2.8"), hosts, None)).reason
    assert reason.startswith("n0, n1, n2, n3, n4 and 4 more have glibc 2.17; IPEX 2.8 needs 2.28")


@pytest.mark.parametrize(
    ("asked", "reason", "fix"),
    [
        (StackRequest(torch="2.16"), "the version table has no torch '2.16'", "did you mean 2.15?"),
        (StackRequest(torch="3.0"), "the version table has no torch '3.0'", "did you mean 2.15?"),
        (StackRequest(torch="latest"), "the version table has no torch 'latest'", "1.10 to 2.15"),
        (StackRequest(torch="2.8.3"), "of torch 2.8 there is 2.8.0", "--torch 2.8.0"),
        (StackRequest(stack="ipex2.7"), "there is no stack called 'ipex2.7'", "ipex-2.7"),
        (StackRequest(stack="IPEX-2.7"), "there is no stack called 'IPEX-2.7'", "ipex-2.7"),
        (StackRequest(ipex="2.7.1"), "the version table has no IPEX '2.7.1'", "did you mean 2.7.0?"),
        (StackRequest(ipex="2.9"), "the version table has no IPEX '2.9'", "did you mean 2.8.0?"),
        (StackRequest(oneccl="2021.15"), "the version table has no oneccl_bind_pt '2021.15'", "1.10.0 to 2.8.0"),
        (StackRequest(python="3.16"), "no row of the version table is for Python '3.16'", "did you mean 3.15?"),
        (StackRequest(python="3.11.4"), "by its first two numbers", "did you mean 3.11?"),
        (StackRequest(python="python3"), "no row of the version table is for Python 'python3'", "3.6 to 3.15"),
        (StackRequest(torch=""), "the version table has no torch ''", ""),
    ],
)
def test_what_nobody_knows_is_a_wrong_call(asked: StackRequest, reason: str, fix: str) -> None:
    why = refused(resolve(asked, {}, None))
    assert why.wrong_call
    assert reason in why.reason
    assert fix in why.fix
    assert projects(asked) == ()


@pytest.mark.parametrize(
    ("asked", "reason", "fix"),
    [
        (
            StackRequest(torch="1.12.1", oneccl="1.12.0"),
            "oneccl_bind_pt 1.12.0 does not work with torch 1.12.1; 1.12.100 does",
            "--oneccl 1.12.100",
        ),
        (
            StackRequest(torch="2.6", oneccl="2.7.0"),
            "oneccl_bind_pt 2.7.0 does not work with torch 2.6; 2.6.0 does",
            "2.6.0",
        ),
        (StackRequest(torch="2.8", ipex="2.7"), "IPEX 2.7 does not work with torch 2.8", "--ipex 2.8.0 for torch 2.8"),
        (StackRequest(torch="2.13", ipex="2.8.0"), "IPEX 2.8.0 does not work with torch 2.13", "--torch 2.8"),
        (StackRequest(torch="2.13", stack="ipex"), "there is no IPEX for torch 2.13", "--stack torch-2.13"),
        (StackRequest(torch="2.8", stack="ipex-2.7"), "the stack ipex-2.7 has torch 2.7, not 2.8", "--stack ipex-2.8"),
        (
            StackRequest(stack="torch-2.7", ipex="2.7.0"),
            "the stack torch-2.7 is PyTorch without IPEX",
            "--stack ipex-2.7",
        ),
        (StackRequest(stack="torch", ipex="2.7.0"), "the stack torch is PyTorch without IPEX", "--stack ipex-2.7"),
        (StackRequest(stack="torch", oneccl="2.7.0"), "the stack torch has no oneCCL bindings", "--stack ipex-2.7"),
        (
            StackRequest(stack="torch-2.7", oneccl="2.7.0"),
            "the stack torch-2.7 has no oneCCL bindings",
            "--stack ipex-2.7",
        ),
        (StackRequest(stack="torch", require_oneccl=True), "stock PyTorch has no oneCCL bindings", "leave one"),
        (
            StackRequest(stack="torch-2.6", require_oneccl=True),
            "no oneCCL bindings for torch 2.6",
            "--stack ipex-2.6 has",
        ),
        (
            StackRequest(stack="ipex", python="3.14"),
            "IPEX 2.8 is built for Python 3.9 to 3.13, not for 3.14",
            "--python",
        ),
        (StackRequest(torch="2.13", require_oneccl=True), "there are no oneCCL bindings for torch 2.13", "ipex-2.7"),
        (
            StackRequest(torch="2.8", require_oneccl=True),
            "never published for torch 2.8; newest that has them: 2.7",
            "gloo",
        ),
        (
            StackRequest(torch="2.8", python="3.14"),
            "IPEX 2.8 is built for Python 3.9 to 3.13, not for 3.14",
            "--python",
        ),
        (StackRequest(python="3.6"), "Python 3.6 is too old for ipexctl's own part", "3.8"),
    ],
)
def test_what_cannot_go_together_is_a_refusal_of_a_right_call(asked: StackRequest, reason: str, fix: str) -> None:
    why = refused(resolve(asked, {}, None))
    assert not why.wrong_call
    assert reason in why.reason
    assert fix in why.fix


def test_bindings_that_must_be_and_that_nobody_has() -> None:
    why = refused(resolve(StackRequest(require_oneccl=True), {"n1": host()}, AMONG_PYPI))
    assert why.reason == "nobody in reach has oneccl_bind_pt (asked: pypi.org)"
    assert "--wheelhouse DIR" in why.fix
    assert "leave out --require-oneccl for ipex-2.8 with gloo" in why.fix


def test_a_wheelhouse_for_another_python_says_for_which_it_is() -> None:
    why = refused(resolve(NEWEST, {"n1": host("2.36", "3.12")}, index(*PYPI, source="/mnt/wheels")))
    assert "not as a CPU wheel for Python 3.12" in why.reason
    assert "(there are those of Python 3.11, 3.13)" in why.reason


def test_nothing_to_be_had_at_all() -> None:
    why = refused(resolve(NEWEST, {"n1": host()}, index(source="/mnt/empty")))
    assert why.reason == "nobody in reach has torch and IPEX (asked: /mnt/empty)"
