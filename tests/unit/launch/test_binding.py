"""The cores of each rank."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from launch_helpers import IPEX, STOCK, cpu, machine, plan

from ipexctl.facts.cpu import Cpu, CpuList, NumaNode
from ipexctl.launch.topology import Binding, bind, cores_of, recommended_layout
from message_data import missing


def bound(machine: Cpu, ranks: int, workers: int = 0, mode: str = "auto") -> Binding:
    return bind(cores_of(machine), ranks, workers, mode)  # type: ignore[arg-type]


def cores(binding: Binding) -> list[str]:
    return [str(CpuList.of(slot.cores)) for slot in binding.slots]


def test_each_rank_gets_a_numa_node_and_no_second_threads() -> None:
    found = plan(machine("lab-sapphirerapids"))
    assert [str(CpuList.of(rank.cores)) for rank in found.ranks][:3] == ["0-13", "14-27", "28-41"]
    assert [rank.memory for rank in found.ranks] == [(node,) for node in range(8)]
    assert {rank.omp for rank in found.ranks} == {14}


@pytest.mark.parametrize(
    ("ppn", "expected"), [(None, ["0-3"]), (2, ["0-1", "2-3"]), (4, ["0", "1", "2", "3"]), (3, ["0", "1", "2"])]
)
def test_ranks_on_a_cloud_vm_share_its_four_cores_and_not_its_eight_threads(
    ppn: int | None, expected: list[str]
) -> None:
    found = plan(machine("lab-cloud-smt"), ppn=ppn)
    assert [str(CpuList.of(rank.cores)) for rank in found.ranks] == expected
    assert {rank.omp for rank in found.ranks} == {4 // len(expected)}


def test_fewer_ranks_than_numa_nodes_get_several_each_and_prefer_their_memory() -> None:
    found = plan(machine("lab-sapphirerapids"), ppn=2)
    assert [str(CpuList.of(rank.cores)) for rank in found.ranks] == ["0-55", "56-111"]
    assert [rank.memory for rank in found.ranks] == [(0, 1, 2, 3), (4, 5, 6, 7)]


def test_more_ranks_than_numa_nodes_split_them_and_none_spans_two() -> None:
    assert cores(bound(cpu(24, 2), 4)) == ["0-5", "6-11", "12-17", "18-23"]
    assert cores(bound(cpu(24, 2), 5)) == ["0-3", "4-7", "8-11", "12-15", "16-19"]


def test_rank_larger_than_a_numa_node_stays_within_its_socket() -> None:
    # Three nodes a socket, two ranks a socket: blocks of 3 fit no node of 2, and stay within a socket all the same.
    found = bound(cpu(12, 6, sockets=2), 4)
    assert cores(found) == ["0-2", "3-5", "6-8", "9-11"]


def test_interleaved_core_numbers_are_supported() -> None:
    even, odd = CpuList.of(range(0, 8, 2)), CpuList.of(range(1, 8, 2))
    base = cpu(8, 2, sockets=2, threads=1)
    turns = base._replace(
        numa=tuple(node._replace(cpus=cpus) for node, cpus in zip(base.numa, (even, odd), strict=True)),
        packages=(even, odd),
    )
    assert cores(bound(turns, 2)) == ["0,2,4,6", "1,3,5,7"]
    assert cores(bound(turns, 4)) == ["0,2", "4,6", "1,3", "5,7"]


def test_only_allowed_cores_are_assigned() -> None:
    found = plan(machine("container-cgroup2-cpuset"))
    # Six cores of one NUMA node, and two of the next.
    assert [(str(CpuList.of(rank.cores)), rank.memory) for rank in found.ranks] == [("8-15", ())]
    allowed = cpu(64, 2, affinity=CpuList.of(range(30, 34)))
    assert cores(bound(allowed, 2)) == ["30-31", "32-33"]
    assert cores(bound(cpu(64, 2, affinity=CpuList.of([94, 95, 96])), 3)) == ["94", "95", "96"]


def test_without_smt_every_cpu_is_a_core() -> None:
    assert cores(bound(cpu(8, 2, threads=1), 2)) == ["0-3", "4-7"]


def test_machine_with_one_core_has_no_oneccl_worker() -> None:
    found = plan(machine(cpu(1, threads=1)), env=IPEX)
    (rank,) = found.ranks
    assert (rank.cores, rank.omp, rank.ccl_cores) == ((0,), 1, ())


def test_oneccl_gets_the_last_cores_of_each_block() -> None:
    found = plan(machine(cpu(64, 2)), env=IPEX, ccl_workers=2)
    assert [(rank.cores[0], rank.cores[-1], rank.ccl_cores, rank.omp) for rank in found.ranks] == [
        (0, 29, (30, 31), 30),
        (32, 61, (62, 63), 30),
    ]


def test_workers_get_no_cores_if_none_are_left_for_compute() -> None:
    found = bound(cpu(4, 1), 2, workers=2)
    assert [slot.workers for slot in found.slots] == [(), ()]
    assert (found.threads, found.workers) == (2, 0)


def test_quota_lowers_threads_and_keeps_core_blocks() -> None:
    found = bound(cpu(64, 2, quota=8.0), 2, workers=1)
    assert cores(found) == ["0-31", "32-63"]
    assert found.threads == 3
    assert not found.alone
    assert all(slot.workers == () for slot in found.slots)
    assert plan(machine(cpu(64, 2, quota=8.0))).notes != plan(machine(cpu(64, 2))).notes


def test_rank_whose_quota_fits_one_socket_stays_there_with_its_memory() -> None:
    few = cpu(12, 2, sockets=2, threads=1, affinity=CpuList((0, 2, 4, 8, 10)))
    (slot,) = bound(few._replace(quota=3.0), 1).slots
    assert (slot.cores, slot.memory) == ((0, 2, 4), (0,))
    (slot,) = bound(few._replace(quota=4.0), 1).slots
    assert (slot.cores, slot.memory) == ((0, 2, 4, 8, 10), ())
    sizes = [len(slot.cores) for slot in bound(few._replace(quota=2.0), 2).slots]
    assert sizes == [2, 2]


def test_memory_is_of_the_nodes_that_the_cpuset_allows() -> None:
    both = cpu(8, 2, sockets=2)
    closed = bound(both._replace(mems=CpuList((0,))), 2)
    assert cores(closed) == ["0-3", "4-7"]
    assert [slot.memory for slot in closed.slots] == [(0,), (0,)]
    assert [slot.memory for slot in bound(both._replace(mems=CpuList((0, 1))), 2).slots] == [(0,), (1,)]
    near, far = CpuList.of(range(4)), CpuList.of(range(4, 8))
    twins = tuple(NumaNode(at, cpus, 1 << 30) for at, cpus in enumerate((near, near, far)))
    closed = bound(cpu(8, sockets=2, threads=1, numa=twins, mems=CpuList((0, 2))), 2)
    assert [slot.memory for slot in closed.slots] == [(0,), (2,)]


def test_more_ranks_than_cores_share_all_cores_with_a_note() -> None:
    found = plan(machine(cpu(2, threads=1)), n=3)
    assert [rank.cores for rank in found.ranks] == [(0, 1)] * 3
    assert {rank.omp for rank in found.ranks} == {1}
    assert any(missing(note, "node1 3 2 cores") == [] for note in found.notes)


def test_bind_numa_and_socket_widen_and_none_binds_nothing() -> None:
    two = cpu(32, 4, sockets=2)
    assert cores(bound(two, 4, mode="numa")) == ["0-7", "8-15", "16-23", "24-31"]
    assert cores(bound(two, 8, mode="numa"))[:3] == ["0-7", "0-7", "8-15"]
    assert cores(bound(two, 4, mode="socket")) == ["0-15", "0-15", "16-31", "16-31"]
    assert bound(two, 4, workers=1, mode="socket").slots[0].workers == (7,)
    assert 7 not in bound(two, 4, workers=1, mode="socket").slots[1].cores
    assert cores(bound(two, 4, mode="none")) == [""] * 4
    assert bound(two, 4, mode="none").threads == 8
    assert any("--bind socket" in note for note in plan(machine(two), bind="socket").notes)


def test_e_cores_are_left_out() -> None:
    hybrid = Cpu(
        vendor="GenuineIntel",
        family=6,
        model=151,
        online=CpuList.of(range(12)),
        siblings=(*(CpuList.of((at, at + 1)) for at in range(0, 8, 2)), *(CpuList.of([at]) for at in range(8, 12))),
        cores=8,
    )
    assert cores(bound(hybrid, 1)) == ["0,2,4,6"]
    assert cores_of(hybrid).left_out == 4
    assert cores_of(hybrid._replace(model=143)).left_out == 0
    assert cores(bound(hybrid._replace(model=143, p_cores=CpuList.of(range(4))), 1)) == ["0,2"]
    assert any(missing(note, "4 E-cores") == [] for note in plan(machine(hybrid)).notes)


def test_unknown_cpu_is_not_bound() -> None:
    (rank,) = plan(machine(Cpu())).ranks
    assert (rank.cores, rank.omp) == ((), 1)


@pytest.mark.parametrize("has_ccl", [True, False])
@pytest.mark.parametrize("name", ["lab-sapphirerapids", "lab-graniterapids", "lab-cooperlake", "centos7-nfs-slurm"])
def test_doctor_and_run_compute_the_same_threads(name: str, has_ccl: bool) -> None:
    facts = machine(name)
    found = plan(facts, env=IPEX if has_ccl else STOCK)
    advice, backend, _ = recommended_layout([facts.cpu], has_ccl=has_ccl)
    assert (len(found.ranks), found.ranks[0].omp, found.backend) == (advice.ppn, advice.omp_num_threads, backend)


@st.composite
def processors(draw: st.DrawFn) -> Cpu:
    sockets = draw(st.integers(1, 3))
    nodes = sockets * draw(st.integers(1, 4))
    made = cpu(draw(st.integers(nodes, 48)), nodes, sockets=sockets, threads=draw(st.integers(1, 2)))
    assert made.online is not None
    allowed = draw(st.one_of(st.none(), st.sets(st.sampled_from(made.online.cpus), min_size=1)))
    return made._replace(
        affinity=made.online if allowed is None else CpuList.of(allowed),
        quota=draw(st.one_of(st.none(), st.floats(0.1, 60))),
    )


@given(processors(), st.integers(1, 20), st.integers(0, 3), st.sampled_from(["auto", "cores"]))
def test_ranks_never_share_a_core_unless_there_are_too_few(processor: Cpu, ranks: int, workers: int, mode: str) -> None:
    found = bound(processor, ranks, workers, mode)
    everyones = [core for slot in found.slots for core in (*slot.cores, *slot.workers)]
    if ranks <= len(processor.allowed_cores):
        assert len(everyones) == len(set(everyones))
    else:
        assert found.crowded
    assert processor.allowed_cpus is not None
    assert set(everyones) <= set(processor.allowed_cpus)
    for core in processor.siblings:
        assert sum(number in everyones for number in core) <= 1, "a second thread of a core"
    assert len({len(slot.cores) for slot in found.slots}) == 1, "ranks of unlike size"
    assert all(slot.cores for slot in found.slots)
    assert {len(slot.workers) for slot in found.slots} in ({0}, {workers})
    assert 1 <= found.threads <= len(found.slots[0].cores)


@given(processors(), st.integers(1, 12))
def test_blocks_stay_within_a_numa_node_if_they_fit(processor: Cpu, ranks: int) -> None:
    cores = cores_of(processor)
    if ranks > len(cores.cores):
        return
    size = len(cores.cores) // ranks
    room = sum(sum(core.node == node for core in cores.cores) // size for node in cores.nodes)
    if room >= ranks:
        assert all(len(slot.memory) <= 1 for slot in bound(processor, ranks).slots)
