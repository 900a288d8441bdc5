"""The tier rules, and how many cores an account may use."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipexctl.extras.lab.cpu_profiles import CPU_PROFILES
from ipexctl.facts.cpu import TIERS, Cpu, CpuList, parse_cpulist, tier_of

_AVX512 = "avx2 fma avx512f avx512bw avx512dq avx512vl".split()  # noqa: SIM905


@pytest.mark.parametrize(
    ("flags", "tier"),
    [
        ([], None),
        (["sse4_2", "avx"], "unsupported"),
        (["avx2"], "unsupported"),
        (["avx2", "fma"], "avx2"),
        (["avx2", "fma", "avx512f", "avx512cd", "avx512er", "avx512pf"], "avx2"),
        (_AVX512, "avx512"),
        ([*_AVX512, "avx512_bf16"], "avx512_bf16"),
        ([*_AVX512, "amx_tile", "amx_bf16"], "avx512"),
        ([*_AVX512, "avx512_bf16", "amx_tile", "amx_int8"], "avx512_bf16"),
        ([*_AVX512, "avx512_bf16", "amx_tile", "amx_bf16"], "amx"),
    ],
)
def test_tier_is_the_strongest_with_all_its_flags(flags: list[str], tier: str | None) -> None:
    assert tier_of("x86_64", flags) == tier


def test_other_architectures_are_unsupported() -> None:
    assert tier_of("aarch64", ["sve", "bf16"]) == "unsupported"
    assert tier_of("aarch64", []) == "unsupported"
    assert tier_of("i686", ["avx2", "fma"]) == "unsupported"


@given(st.sampled_from(CPU_PROFILES), st.data())
def test_removing_flags_never_raises_the_tier(cpu_profile: object, data: st.DataObject) -> None:
    flags = getattr(cpu_profile, "flags").split()  # noqa: B009  # any CPU profile
    fewer = data.draw(st.sets(st.sampled_from(flags)))
    more, less = tier_of("x86_64", flags), tier_of("x86_64", fewer or {"fpu"})
    assert more is not None
    assert less is not None
    assert TIERS.index(less) <= TIERS.index(more)


def _cpu(affinity: str | None = None, quota: float | None = None) -> Cpu:
    """Two cores of two threads a socket, two sockets."""
    siblings = tuple(CpuList((core, core + 4)) for core in range(4))
    mask = parse_cpulist(affinity) if affinity else None
    return Cpu(cores=4, threads=8, online=parse_cpulist("0-7"), siblings=siblings, affinity=mask, quota=quota)


@pytest.mark.parametrize(
    ("affinity", "quota", "allowed"),
    [
        (None, None, 4),
        ("0-7", None, 4),
        ("0-3", None, 4),
        ("0,4", None, 1),
        ("0,1,4", None, 2),
        ("0-7", 2.5, 3),
        ("0-7", 0.1, 1),
        ("0-7", 64.0, 4),
        ("0,4", 2.0, 1),
    ],
)
def test_allowed_cores_are_limited_by_affinity_and_quota(
    affinity: str | None, quota: float | None, allowed: int
) -> None:
    assert _cpu(affinity, quota).allowed == allowed


def test_allowed_threads_of_each_core() -> None:
    assert [str(core) for core in _cpu("1,2,6").allowed_cores] == ["1", "2,6"]


@pytest.mark.parametrize("text", ["", "x", "1-", "3-1", "0-99999999", "1,,2", "-1", "0x1"])
def test_invalid_cpu_lists_are_none(text: str) -> None:
    assert parse_cpulist(text) is None


@given(st.sets(st.integers(0, 511), min_size=1))
def test_cpu_list_is_parsed_back_from_its_text(numbers: set[int]) -> None:
    assert parse_cpulist(str(CpuList.of(numbers))) == CpuList.of(numbers)
    assert str(CpuList.of((5, 0, 1, 7, 8))) == "0-1,5,7-8"
