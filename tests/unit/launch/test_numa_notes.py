"""Notes about ranks and NUMA nodes: more ranks than sockets by default, and ranks with cores of several nodes."""

from __future__ import annotations

from typing import Any

import pytest
from launch_helpers import counts, cpu, machine, plan

from ipexctl.facts.cpu import CpuList, NumaNode
from ipexctl.launch.run_context import EarlierMemory
from ipexctl.node.common.plan import Plan
from message_data import missing

SNC4 = cpu(112, 8, sockets=2)
"""Two sockets of a Xeon 8480+ with four NUMA nodes of 14 cores each."""
TWO = cpu(48, 2, sockets=2)


def notes(found: Plan, word: str) -> list[str]:
    return [note for note in found.notes if word in note]


def test_default_with_more_ranks_than_sockets_says_what_it_means() -> None:
    found = plan(machine(SNC4, 1), machine(SNC4, 2))
    assert counts(found) == [8, 8]
    assert len(found.hosts[0].ranks[0].cores) == 14
    (note,) = notes(found, "per-device batch")
    assert missing(note, "8 copies model optimizer 16 --ppn 2") == []


@pytest.mark.parametrize(
    ("what", "options"),
    [
        (TWO, {}),  # one rank for each socket already
        (cpu(28), {}),
        (SNC4, {"ppn": 8}),  # the user's own number
        (SNC4, {"n": 8}),
        (SNC4, {"slots": (8,)}),
    ],
)
def test_no_note_with_a_rank_for_each_socket_or_a_number_of_the_user(what: Any, options: dict[str, Any]) -> None:
    assert notes(plan(machine(what), **options), "per-device batch") == []


@pytest.mark.parametrize(
    ("what", "options", "ranks"),
    [
        (TWO, {"ppn": 3}, "1"),
        (TWO, {"ppn": 1}, "0"),  # on both sockets
        (SNC4, {"ppn": 3}, "0-2"),
        (TWO, {"ppn": 2}, None),
        (TWO, {"ppn": 4}, None),
        (SNC4, {"ppn": 2}, None),  # four whole NUMA nodes of one socket each
        (SNC4, {"ppn": 4}, None),
        (TWO, {"ppn": 3, "bind": "socket"}, None),  # asked for
        (TWO, {"ppn": 64}, None),  # more ranks than cores have a note of their own
        (cpu(28), {"ppn": 3}, None),
    ],
)
def test_ranks_that_straddle_numa_nodes_are_noted(what: Any, options: dict[str, Any], ranks: str | None) -> None:
    found = notes(plan(machine(what), **options), "NUMA nodes, and memory")
    assert len(found) == (ranks is not None)
    if ranks is not None:
        assert missing(found[0], "node1 --ppn") == []
        print(found)


@pytest.mark.parametrize(("earlier_gib", "memory", "noted"), [(None, (1,), False), (64, (1,), False), (65, (0,), True)])
def test_hbm_that_was_too_little_in_an_earlier_run_is_left_with_a_note(
    earlier_gib: int | None, memory: tuple[int, ...], noted: bool
) -> None:
    ddr = NumaNode(0, CpuList.of(range(112)), 252 << 30)
    xeon_max = cpu(56, model_name="Intel(R) Xeon(R) CPU Max 9480", numa=(ddr, NumaNode(1, memory=64 << 30)))
    earlier = EarlierMemory(earlier_gib << 30, "calm-otter") if earlier_gib else None
    found = plan(machine(xeon_max), earlier_memory=earlier)
    assert found.ranks[0].memory == memory
    texts = notes(found, "HBM") if noted else [choice for choice in found.choices if "HBM" in choice]
    assert [missing(text, "node1 64 GiB") for text in texts] == [[]]
    assert not noted or missing(texts[0], "65 GiB calm-otter DDR") == []
    assert noted or notes(found, "HBM") == []
