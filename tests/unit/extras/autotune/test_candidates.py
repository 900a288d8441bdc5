"""The candidates on made-up hosts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from launch_helpers import IPEX, STOCK, cpu, eth, machine, request

from ipexctl.extras.autotune.apply import typed, with_settings
from ipexctl.extras.autotune.candidates import GROUPS, HostsOfSearch, space_of
from ipexctl.extras.autotune.model import NO_CHANGE, Settings, settings_of
from ipexctl.facts.facts import Facts
from ipexctl.facts.internal import addresses_among
from ipexctl.facts.network import Address
from ipexctl.facts.software import Software
from ipexctl.facts.system import Memory
from ipexctl.launch.plan import LaunchPlan
from ipexctl.launch.planner import plan_launch
from ipexctl.refusal import Refusal
from ipexctl.spec import Export, RunSpec

LIBRARIES = {"libtcmalloc": ("/usr/lib/libtcmalloc.so.4",), "libjemalloc": ("/usr/lib/libjemalloc.so.2",)}


def candidates(group: str, *machines: Facts, base: Settings = NO_CHANGE, **options: Any) -> list[str]:
    wanted = request(*machines, **options)

    def plan_of(settings: Settings) -> LaunchPlan | None:
        iface = dict(settings).get("iface")
        internal = wanted.internal
        if iface is not None:
            found = addresses_among(wanted.hosts, wanted.facts, iface)
            assert not isinstance(found, Refusal)
            internal = found
        changed = replace(wanted, spec=with_settings(wanted.spec, settings), internal=internal)
        plan = plan_launch(changed)
        return plan if isinstance(plan, LaunchPlan) else None

    space = space_of(HostsOfSearch(wanted.hosts, wanted.facts, wanted.env, plan_of))
    return [typed(change) for change in space.candidates(group, base)]


def test_one_numa_node_has_nothing_but_its_cores_or_none() -> None:
    assert candidates("bind", machine(cpu(4))) == ["--bind none"]


def test_numa_nodes_and_sockets_are_different_bindings() -> None:
    found = candidates("bind", machine(cpu(16, 4, sockets=2)), ppn=8)
    assert found == ["--bind numa", "--bind socket", "--bind none"]


@pytest.mark.parametrize(("cores", "found"), [(8, ["--omp 7", "--omp 6"]), (2, ["--omp 1"]), (1, [])])
def test_threads_are_the_cores_and_up_to_two_less(cores: int, found: list[str]) -> None:
    assert candidates("omp", machine(cpu(cores))) == found


def test_threads_of_the_call_are_varied_too() -> None:
    assert candidates("omp", machine(cpu(8)), omp=2) == ["--omp 8", "--omp 7", "--omp 6"]


def test_intels_openmp_has_block_times_and_can_be_left_out() -> None:
    found = candidates("openmp", machine(cpu(4)), env=IPEX)
    assert found == ["-x KMP_BLOCKTIME=0", "-x KMP_BLOCKTIME=200", "-x LD_PRELOAD="]
    assert candidates("openmp", machine(cpu(4)), env=STOCK) == []


def test_backend_is_varied_where_there_is_a_choice() -> None:
    assert candidates("backend", machine(cpu(8)), ppn=1, env=IPEX) == []
    found = candidates("backend", machine(cpu(8)), ppn=2, env=IPEX)
    assert "--backend gloo --allreduce backend" in [" ".join(sorted_words(one)) for one in found]
    assert any("--ccl-workers 2" in one for one in found)
    shared, backend = "--allreduce shared --backend gloo", "--allreduce backend --backend gloo"
    assert candidates("backend", machine(cpu(8)), ppn=2, allreduce="backend") == [shared]
    assert candidates("backend", machine(cpu(8)), ppn=2, allreduce="shared") == [backend]


def sorted_words(text: str) -> list[str]:
    words = text.split()
    pairs = dict(zip(words[::2], words[1::2], strict=True))
    return [word for name in ("--backend", "--allreduce") if name in pairs for word in (name, pairs[name])]


def test_allocators_are_those_that_all_hosts_have() -> None:
    with_both = machine(cpu(4), software=Software(libraries=LIBRARIES))
    found = candidates("allocator", with_both)
    assert found[0] == "-x LD_PRELOAD="
    assert "LD_PRELOAD=/usr/lib/libjemalloc.so.2" in found[1]
    assert candidates("allocator", with_both, machine(cpu(4), 2)) == []


@pytest.mark.parametrize(("thp", "count"), [("madvise", 1), ("always", 0), ("never", 0)])
def test_huge_pages_are_asked_for_where_the_kernel_gives_them_on_request(thp: str, count: int) -> None:
    assert len(candidates("hugepages", machine(cpu(4), memory=Memory(thp=thp)))) == count


def test_interfaces_are_networks_that_all_hosts_share() -> None:
    first = machine(cpu(4), 1, nics=(eth("eth0", "10.1.0.1"), eth("eth1", "10.2.0.1")))
    second = machine(cpu(4), 2, nics=(eth("eth0", "10.1.0.2"), eth("eth1", "10.2.0.2")))
    assert candidates("iface", first, second) == ["--iface 10.2.0.0/24"]
    assert candidates("iface", first, machine(cpu(4), 2)) == []


def test_a_second_network_of_the_same_cards_is_no_candidate() -> None:
    def both(number: int) -> Facts:
        six = Address(f"fd77::{number}", 64)
        first, second = eth("eth0", f"10.1.0.{number}"), eth("eth1", f"10.2.0.{number}")
        return machine(cpu(4), number, nics=(first._replace(addresses=(*first.addresses, six)), second))

    assert candidates("iface", both(1), both(2)) == ["--iface 10.2.0.0/24"]


def test_no_group_changes_the_number_of_ranks() -> None:
    for group in GROUPS:
        for text in candidates(group, machine(cpu(16, 4, sockets=2)), env=IPEX):
            assert "-n" not in text.split()
            assert "--ppn" not in text.split()


def test_settings_are_options_and_variables_over_those_of_the_call() -> None:
    settings = settings_of({"omp": "7", "x.KMP_BLOCKTIME": "0"})
    found = with_settings(
        RunSpec("script", ("train.py",), exports=(Export("KMP_BLOCKTIME", "1"), Export("A", "b"))), settings
    )
    assert found.omp == 7
    assert [(export.name, export.value) for export in found.exports] == [("A", "b"), ("KMP_BLOCKTIME", "0")]
    assert typed(settings) == "--omp 7 -x KMP_BLOCKTIME=0"
