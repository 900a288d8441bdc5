"""On each kind of machine: doctor's facts are lscpu's and numactl's, the plan is what an expert would type, and ranks
of a real training run and have their memory where the plan put them."""

from __future__ import annotations

import re
from typing import Any

import pytest
from machine_helpers import as_list, booted, doctor, expand, plan_of, train

from machines.machine import Machine

pytestmark = [pytest.mark.machines, pytest.mark.timeout(7200)]


def threads(first: int, last: int, step: int = 1) -> str:
    return as_list(list(range(first, last + 1, step)))


TWO_SOCKETS = [(threads(0, 6, 2), "0"), (threads(8, 14, 2), "1")]
EXPERT: dict[str, dict[tuple[str, ...], list[tuple[str, str]]]] = {
    "two-sockets": {
        (): TWO_SOCKETS,
        ("--ppn", "4"): [("0,2", "0"), ("4,6", "0"), ("8,10", "1"), ("12,14", "1")],
        ("--ppn", "1"): [(threads(0, 14, 2), "")],
        ("--ppn", "3"): [("0,2", "0"), ("4,6", "0"), ("8,10", "1")],
    },
    "small": {(): [("0,2", "0")], ("--ppn", "2"): [("0", "0"), ("2", "0")]},
    "snc4": {
        (): [(threads(2 * node, 2 * node + 1), f"{node}") for node in range(8)],
        ("--ppn", "2"): [(threads(0, 7), "0,1,2,3"), (threads(8, 15), "4,5,6,7")],
    },
    "hbm": {
        (): [(threads(2 * node, 2 * node + 1), f"{8 + node}") for node in range(8)],
        ("--ppn", "2"): [(threads(0, 7), "8,9,10,11"), (threads(8, 15), "12,13,14,15")],
    },
    "big": {(): [(threads(0, 62, 2), "0"), (threads(64, 126, 2), "1")]},
    "no-memory": {(): [(threads(0, 7), "0")], ("--ppn", "2"): [(threads(0, 3), "0"), (threads(4, 7), "0")]},
    "asymmetric": {(): [(threads(0, 7), "")]},
    "isolated": {(): [("0,2", "0"), ("8,10", "1")]},
    "spare-slots": {(): [("0,2", "0")]},
    "no-smt": {(): TWO_SOCKETS},
    "no-ipv4": {(): TWO_SOCKETS},
    "trixie": {(): TWO_SOCKETS},
}
"""Kind → options → cores and memory nodes of each rank; no memory nodes: any."""
TRAINED = {"two-sockets": ("--ppn", "2"), "snc4": ("--ppn", "2"), "hbm": ("--ppn", "2")}


@pytest.mark.parametrize("kind", EXPERT)
def test_facts_of_a_kind_are_the_kernels_and_its_plans_are_an_experts(kind: str) -> None:
    with booted(kind) as machine:
        compare_with_kernel(machine, doctor(machine))
        assert {options: plan_of(machine, *options) for options in EXPERT[kind]} == EXPERT[kind]


@pytest.mark.parametrize("kind", TRAINED)
def test_ranks_of_a_training_and_their_memory_are_where_the_plan_put_them(kind: str) -> None:
    with booted(kind) as machine:
        compare_with_ranks(machine, TRAINED[kind])


def compare_with_kernel(machine: Machine, report: dict[str, Any]) -> None:
    cpu = report["facts"]["cpu"]
    rows = [row.split(",") for row in machine.run("lscpu -p=CPU,CORE,SOCKET,NODE").splitlines() if row[0] != "#"]
    counts = [len({row[field] for row in rows}) for field in range(3)]
    assert [cpu["threads"], cpu["cores"], cpu["sockets"]] == counts
    shown = machine.run("numactl --hardware")
    nodes = {
        int(node): expand(numbers.strip().replace(" ", ","))
        for node, numbers in re.findall(r"node (\d+) cpus:(.*)", shown)
    }
    assert {each["node"]: expand(each["cpus"]) for each in cpu["numa"]} == nodes
    sizes = {int(node): int(size) for node, size in re.findall(r"node (\d+) size: (\d+) MB", shown)}
    assert {each["node"]: (each["memory"] or 0) >> 20 for each in cpu["numa"]} == sizes
    total = int(re.findall(r"MemTotal: +(\d+) kB", machine.run("cat /proc/meminfo"))[0])
    assert report["facts"]["memory"]["total"] == total << 10
    system = report["facts"]["system"]
    assert [system["kernel"], system["arch"]] == machine.run("uname -rm").split()


def compare_with_ranks(machine: Machine, options: tuple[str, ...]) -> None:
    planned = plan_of(machine, *options)
    said, ranks = train(machine, *options)
    assert (said.rc, len(ranks)) == (0, len(planned)), said.err
    for rank, (cores, memory) in zip(ranks, planned, strict=True):
        assert as_list(expand(rank["cpus"])) == cores
        assert all(set(expand(each)) <= set(expand(cores)) for each in rank["threads"]), rank
        assert rank["omp"] == len(expand(cores))
        near = sum(size for node, size in rank["memory"].items() if node in memory.split(","))
        total = sum(rank["memory"].values())
        assert near > 0.9 * total > 64, rank
    (alone,) = train(machine, "-n", "1")[1]
    assert ranks[0]["losses"] == pytest.approx(alone["losses"], rel=1e-4)
    assert ranks[0]["losses"][0] > ranks[0]["losses"][-1]
