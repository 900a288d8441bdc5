"""QEMU's options for the kinds of machines: their processors, memory and distances."""

from __future__ import annotations

import re

import pytest

from ipexctl.facts.cpu import parse_cpulist
from machines.kinds import KINDS, distance, topology


@pytest.mark.parametrize("name", KINDS)
def test_each_processor_of_a_kind_is_in_one_node_and_its_memory_is_that_of_its_nodes(name: str) -> None:
    kind = KINDS[name]
    words = list(topology(kind))
    numbers = [number for node in kind.nodes if node.cpus for number in parse_cpulist(node.cpus) or ()]
    counts = [int(each) for each in re.findall(r"(?:^|maxcpus=)(\d+)", kind.smp)]
    assert sorted(numbers) == list(range(max(counts)))
    sizes = [int(size) for word in words for size in re.findall(r"size=(\d+)M", word)]
    assert f"{sum(sizes)}M" == words[words.index("-m") + 1]
    assert sum(word.startswith("node,") for word in words) == len(kind.nodes)


@pytest.mark.parametrize(
    ("name", "one", "other", "expected"),
    [
        ("two-sockets", 0, 1, 21),
        ("snc4", 2, 2, 10),
        ("snc4", 0, 3, 12),
        ("snc4", 3, 4, 21),
        ("hbm", 5, 13, 13),
        ("hbm", 0, 3, 12),
        ("hbm", 0, 11, 14),
        ("hbm", 8, 11, 16),
        ("hbm", 8, 12, 25),
    ],
)
def test_distances_are_those_of_the_machines(name: str, one: int, other: int, expected: int) -> None:
    assert distance(KINDS[name], one, other) == distance(KINDS[name], other, one) == expected
