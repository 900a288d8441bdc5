"""On each kind of machine: doctor's facts are lscpu's and numactl's, the plan is what an expert would type, and ranks
of a real training run and have their memory where the plan put them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from machine_helpers import PROJECT, TRAINING, as_list, booted, call, doctor, expand, findings_of, plan_of, train

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
    "snc4": {
        (): [(threads(2 * node, 2 * node + 1), f"{node}") for node in range(8)],
        ("--ppn", "2"): [(threads(0, 7), "0,1,2,3"), (threads(8, 15), "4,5,6,7")],
    },
    "hbm": {
        (): [(threads(2 * node, 2 * node + 1), f"{8 + node}") for node in range(8)],
        ("--ppn", "2"): [(threads(0, 7), "8,9,10,11"), (threads(8, 15), "12,13,14,15")],
    },
    "small": {(): [("0,2", "0")], ("--ppn", "2"): [("0", "0"), ("2", "0")]},
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
ALONE: list[float] = []
"""Losses of one process, on the first machine that trains: they do not depend on the kind."""
TRAINED = {"two-sockets": ("--ppn", "2"), "snc4": ("--ppn", "2"), "hbm": ("--ppn", "2"), "trixie": ("--ppn", "2")}


@pytest.fixture(scope="module")
def machine(request: pytest.FixtureRequest) -> Iterator[Machine]:
    with booted(request.param) as found:
        yield found


@pytest.mark.parametrize("machine", EXPERT, indirect=True)
def test_facts_of_a_kind_are_the_kernels_and_its_plans_are_an_experts(machine: Machine) -> None:
    compare_with_kernel(machine, doctor(machine))
    expected = EXPERT[machine.kind]
    assert {options: plan_of(machine, *options) for options in expected} == expected


@pytest.mark.parametrize("machine", TRAINED, indirect=True)
def test_ranks_of_a_training_and_their_memory_are_where_the_plan_put_them(machine: Machine) -> None:
    compare_with_ranks(machine, TRAINED[machine.kind])


@pytest.mark.parametrize("machine", ["two-sockets"], indirect=True)
def test_cpus_that_are_switched_off_are_told_and_have_no_rank(machine: Machine) -> None:
    switch_cpus(machine, "0")
    try:
        report = doctor(machine)
        compare_with_kernel(machine, report)
        assert "CPUs 12-15 are switched off" in findings_of(report)["cpu.offline"]
        assert plan_of(machine) == [("0,2", "0"), ("8,10", "1")]
    finally:
        switch_cpus(machine, "1")


def switch_cpus(machine: Machine, state: str) -> None:
    files = " ".join(f"/sys/devices/system/cpu/cpu{number}/online" for number in range(12, 16))
    machine.run(f"for file in {files}; do echo {state} >$file; done", account="root")


@pytest.mark.parametrize("machine", ["arm"], indirect=True)
def test_arm_is_refused_with_all_its_facts(machine: Machine) -> None:
    report = doctor(machine)
    compare_with_kernel(machine, report)
    cpu = report["facts"]["cpu"]
    assert (cpu["arch"], cpu["vendor"], cpu["model_name"]) == ("aarch64", "ARM", "Neoverse-N1")
    assert report["status"] == "fail"
    assert "An ARM processor is not supported" in findings_of(report)["cpu.arch"]
    said = call(machine, "run --dry-run", *PROJECT, TRAINING)
    assert (said.rc, "is aarch64; the wheels are for x86_64" in said.err) == (1, True), said.err


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
    python = machine.run("python3 --version").split()[1]
    assert python in [each["version"] for each in report["facts"]["software"]["pythons"]]


def compare_with_ranks(machine: Machine, options: tuple[str, ...]) -> None:
    planned = plan_of(machine, *options)
    said, ranks = train(machine, *options)
    assert (said.rc, len(ranks)) == (0, len(planned)), said.err
    for rank, (cores, memory) in zip(ranks, planned, strict=True):
        assert as_list(expand(rank["cpus"])) == cores
        assert set(expand(memory)) <= set(expand(rank["mems"])), rank
        assert all(set(expand(each)) <= set(expand(cores)) for each in rank["threads"]), rank
        assert rank["omp"] == len(expand(cores))
        near = sum(size for node, size in rank["memory"].items() if node in memory.split(","))
        total = sum(rank["memory"].values())
        assert near > 0.9 * total > 64, rank
    if not ALONE:
        (alone,) = train(machine, "-n", "1")[1]
        ALONE.extend(alone["losses"])
    assert ranks[0]["losses"] == pytest.approx(ALONE, rel=1e-4)
    assert ranks[0]["losses"][0] > ranks[0]["losses"][-1]
