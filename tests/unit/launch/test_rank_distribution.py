"""The number of ranks of each host."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from launch_helpers import counts, cpu, eth, machine, plan, refusal

from ipexctl.errors import Refusal
from ipexctl.facts.cpu import Cpu, CpuList
from ipexctl.facts.facts import Facts
from ipexctl.facts.system_facts import System
from ipexctl.hosts.host import Host
from ipexctl.launch.plan_draft import RankDistribution
from ipexctl.launch.rank_distribution import distribute_ranks
from message_data import missing

BIG, SMALL = cpu(64, 2, sockets=2), cpu(16, 1)


def shared(
    *hosts: tuple[int | None, int | None], n: int | None = None, ppn: int | None = None, default: int = 2
) -> RankDistribution:
    made = [Host(f"node{at}", f"node{at}", slots=slots, max_slots=most) for at, (slots, most) in enumerate(hosts, 1)]
    found = distribute_ranks(made, n, ppn, 2)
    assert isinstance(found, RankDistribution), found
    return found


NO = (None, None)


@pytest.mark.parametrize(
    ("hosts", "n", "ppn", "expected"),
    [
        ((NO, NO), None, None, (2, 2)),
        ((NO, NO), None, 3, (3, 3)),
        ((NO, NO), 4, 2, (2, 2)),
        ((NO, NO), 3, 2, (2, 1)),
        ((NO, NO, NO), 2, 2, (2, 0, 0)),
        ((NO, NO, NO), 4, None, (2, 1, 1)),
        ((NO, NO, NO), 2, None, (1, 1, 0)),
        ((NO, NO), 100, None, (50, 50)),
        (((4, None), (2, None)), None, None, (4, 2)),
        (((4, None), NO), None, None, (4, 2)),
        (((4, None), (4, None)), 4, None, (2, 2)),
        (((1, None), (4, None)), 5, None, (1, 4)),
        (((1, None), (4, None)), 7, None, (2, 5)),
        (((1, 1), (4, None)), 7, None, (1, 6)),
        (((1, 2), (1, 2)), 4, None, (2, 2)),
        (((None, 1), NO), None, None, (1, 2)),
        (((2, None), (2, None)), None, 3, (3, 3)),
    ],
)
def test_ranks_are_distributed_evenly_within_slots(
    hosts: tuple[tuple[int | None, int | None], ...], n: int | None, ppn: int | None, expected: tuple[int, ...]
) -> None:
    assert shared(*hosts, n=n, ppn=ppn).counts == expected


def test_default_ranks_per_host_is_the_smallest_numa_node_count() -> None:
    assert counts(plan(machine(BIG, 1), machine(BIG, 2))) == [2, 2]
    assert counts(plan(machine(BIG, 1), machine(SMALL, 2))) == [1, 1]
    assert counts(plan(machine("lab-sapphirerapids", 1))) == [8]


def test_as_many_ranks_as_cores_are_planned_and_more_with_a_note() -> None:
    assert plan(machine(SMALL), ppn=64).world_size == 64
    machines = machine(BIG, 1), machine(SMALL, 2)
    assert plan(*machines, oversubscribe=False, ppn=16).world_size == 32
    assert any("more ranks than cores" in note for note in plan(*machines, ppn=17).notes)


def test_the_cores_that_ranks_may_use_count_for_their_number() -> None:
    for some, ppn in ((SMALL._replace(quota=1.5), 2), (SMALL._replace(affinity=CpuList.of(range(3))), 3)):
        assert plan(machine(some), ppn=ppn, oversubscribe=False).world_size == ppn
        assert refusal(machine(some), ppn=ppn + 1, oversubscribe=False).exit_code == 2
    assert plan(machine(Cpu()), ppn=9, oversubscribe=False).world_size == 9  # not known


def test_ranks_are_numbered_host_after_host() -> None:
    found = plan(machine(BIG, 1), machine(SMALL, 2), slots=(3, 2))
    assert [(rank.rank, rank.local_rank, rank.host) for rank in found.ranks] == [
        (0, 0, "node1"), (1, 1, "node1"), (2, 2, "node1"), (3, 0, "node2"), (4, 1, "node2"),
    ]  # fmt: skip


def test_names_of_one_machine_are_noted() -> None:
    def host(at: int, boot: str | None, mac: str) -> Facts:
        nic = eth("eth0", f"10.1.0.{at}")._replace(mac=mac)
        return machine(cpu(16), at, nics=(nic,), system=System(boot=boot))

    hosts = host(1, "b1", "02:1"), host(2, "b1", "02:2"), host(3, "b1", "02:1"), host(4, None, "02:1")
    found = [note for note in plan(*hosts, host(5, None, "02:1")).notes if "one machine" in note]
    assert [missing(note, "node[1,3] cores") for note in found] == [[]]


def test_a_host_without_ranks_is_no_part_of_the_plan() -> None:
    found = plan(machine(BIG, 1), machine(BIG, 2), n=1)
    assert [host.name for host in found.hosts] == ["node1"]
    assert (found.master_addr, found.flavor, len(found.files)) == ("127.0.0.1", "none", 0)
    found = plan(machine(BIG, 1), machine(BIG, 2), n=1, mpi="intel")
    assert (found.master_addr, found.flavor, len(found.files)) == ("127.0.0.1", "intel", 1)


slots = st.tuples(st.one_of(st.none(), st.integers(1, 9)), st.one_of(st.none(), st.integers(1, 9)))


@given(st.lists(slots, min_size=1, max_size=9), st.one_of(st.none(), st.integers(1, 200)), st.integers(1, 8))
def test_counts_add_up_and_keep_to_max_slots(
    hosts: list[tuple[int | None, int | None]], n: int | None, default: int
) -> None:
    made = [Host(f"n{at}", f"n{at}", slots=slots, max_slots=most) for at, (slots, most) in enumerate(hosts)]
    found = distribute_ranks(made, n, None, default)
    if isinstance(found, Refusal):
        assert n is not None
        assert all(host.max_slots for host in made)
        return
    assert n is None or sum(found.counts) == n
    assert all(count <= (host.max_slots or count) for host, count in zip(made, found.counts, strict=True))


@given(st.integers(1, 60), st.integers(1, 9), st.integers(1, 9))
def test_with_ppn_hosts_are_filled_in_order(n: int, ppn: int, hosts: int) -> None:
    found = distribute_ranks([Host(f"n{at}", f"n{at}") for at in range(hosts)], n, ppn, 1)
    if isinstance(found, Refusal):
        assert n > ppn * hosts
        return
    assert sum(found.counts) == n
    assert list(found.counts) == sorted(found.counts, reverse=True)
    assert max(found.counts) <= ppn
