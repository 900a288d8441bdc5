"""Ranks and threads for a CPU."""

from __future__ import annotations

import pytest
from launch_helpers import cpu

from ipexctl.facts.cpu import Cpu, CpuList
from ipexctl.launch.topology import common_layout, dtype
from message_data import missing


@pytest.mark.parametrize(
    ("machine", "backend", "ppn", "threads"),
    [
        (cpu(24, 1), "ccl", 1, 23),
        (cpu(64, 2), "ccl", 2, 31),
        (cpu(64, 2), "gloo", 2, 32),
        (cpu(112, 8), "ccl", 8, 13),
        (cpu(2, 1, threads=1), "ccl", 1, 1),
        (cpu(1, 1, threads=1), "ccl", 1, 1),
        (cpu(4, 4), "gloo", 4, 1),
        (cpu(64, 2, affinity=CpuList.of(range(32))), "ccl", 1, 31),
        (cpu(64, 2, affinity=CpuList.of(range(30, 34))), "gloo", 2, 2),
        (cpu(64, 2, quota=3.5), "gloo", 2, 2),
        (cpu(64, 2, quota=0.5), "gloo", 1, 1),
        (Cpu(), "ccl", 1, 1),
    ],
)
def test_default_layout_is_one_rank_per_numa_node(machine: Cpu, backend: str, ppn: int, threads: int) -> None:
    found = common_layout([machine], 1 if backend == "ccl" else 0)
    assert (found.ppn, found.omp_num_threads) == (ppn, threads)
    assert found.ccl_worker_count == (1 if backend == "ccl" else 0)


def test_mixed_hosts_get_the_layout_of_the_smallest() -> None:
    found = common_layout([cpu(112, 8), cpu(24, 2)], 1)
    assert (found.ppn, found.omp_num_threads) == (2, 11)
    found = common_layout([cpu(112, 8), cpu(128, 2)], 1)
    assert (found.ppn, found.omp_num_threads) == (2, 55)
    assert missing(found.reason, "112 2 1 oneCCL") == []


def test_bfloat16_only_where_every_host_has_it_in_hardware() -> None:
    assert dtype(["amx", "avx512_bf16"]) == "bfloat16"
    assert dtype(["amx", "avx512"]) == "float32"
    assert cpu(2, 1)._replace(arch="aarch64").tier == "unsupported"
