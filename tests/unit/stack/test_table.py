"""The rows of the table, and the newest that fits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ipexctl.facts.cpu import Cpu
from ipexctl.facts.facts import Facts
from ipexctl.facts.software import Python, Software
from ipexctl.facts.system import System
from ipexctl.stack.table import choose, common_python, misfit, rows

AVX2 = frozenset({"avx2", "fma"})


def host(glibc: str = "2.36", python: str = "3.11.2", flags: frozenset[str] = AVX2, arch: str = "x86_64") -> Facts:
    return Facts(
        system=System(kernel_name="Linux", arch=arch, libc="glibc", libc_version=glibc),
        cpu=Cpu(arch=arch, flags=flags),
        software=Software(pythons=(Python("/usr/bin/python3", version=python),)),
    )


def test_rows_are_newest_first_and_say_what_they_are() -> None:
    names = [row.name for row in rows()]
    assert names[0] == "torch-2.15"
    assert names[-1] == "ipex-2.0"
    assert len(set(names)) == len(names)
    by_name = {row.name: row for row in rows()}
    assert by_name["ipex-2.7"].oneccl == "2.7.0"
    assert (by_name["ipex-2.8"].ipex, by_name["ipex-2.8"].oneccl) == ("2.8.0", None)
    assert all(row.retired == bool(row.ipex) for row in rows())


@pytest.mark.parametrize(
    ("facts", "name"),
    [
        (host(), "ipex-2.7"),
        (host(python="3.13.1"), "ipex-2.7"),
        (host(glibc="2.17", python="3.9.6"), "ipex-2.5"),
        (host(python="3.8.10"), "ipex-2.4"),
        (host(python="3.14.0"), "torch-2.15"),
        (host(flags=frozenset({"avx"})), "torch-2.15"),
        (Facts(), "ipex-2.7"),
    ],
)
def test_the_newest_row_with_oneccl_that_fits(facts: Facts, name: str) -> None:
    row = choose({"n1": facts}).row
    assert row is not None
    assert row.name == name


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        (host(arch="aarch64"), "is aarch64; the wheels are for x86_64"),
        (replace(host(), system=System(kernel_name="Darwin")), "runs Darwin"),
        (replace(host(), system=System(kernel_name="Linux", libc="musl")), "has musl instead of glibc"),
        (host(glibc="2.12"), "has glibc 2.12; torch-2.15 needs 2.28"),
        (host(python="3.7.3"), "has Python 3.7; torch-2.15 is built for 3.11 to 3.15"),
    ],
)
def test_a_host_that_nothing_fits_says_why(facts: Facts, why: str) -> None:
    assert misfit(rows()[0], facts) == why
    refused = choose({"fine": host(), "n2": facts})
    assert refused.row is None
    assert "n2" in refused.why


def test_the_weakest_host_decides_and_is_named() -> None:
    found = choose({"new": host(python="3.9.2"), "old": host(glibc="2.17", python="3.9.6")})
    assert found.row is not None
    assert found.row.name == "ipex-2.5"
    assert "ipex-2.7: old has glibc 2.17; ipex-2.7 needs 2.28" in found.why


def test_pythons_must_meet() -> None:
    ipex = next(row for row in rows() if row.name == "ipex-2.7")
    assert common_python(ipex, [host(python="3.11.2"), host(python="3.11.9")]) == "3.11"
    assert common_python(ipex, [host(python="3.10.2"), host(python="3.11.9")]) is None
    assert choose({"a": host(python="3.10.2"), "b": host(python="3.14.9")}).row is None
