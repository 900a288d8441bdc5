"""On a machine with systemd, each limit of a cgroup is told by doctor, counted by the plan, and named as the cause."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest
from machine_helpers import PROJECT, TRAINING, booted, call, cause_of, doctor, findings_of, plan_of, train

from machines.machine import Machine

pytestmark = [pytest.mark.machines, pytest.mark.timeout(7200)]
MIB = 1 << 20


@pytest.fixture(scope="module", params=["limits", "cgroup-v1"])
def machine(request: pytest.FixtureRequest) -> Iterator[Machine]:
    with booted(request.param) as found:
        yield found


OF_ACCOUNT = "user-1000.slice"


@contextmanager
def limited(machine: Machine, slice_name: str = "user.slice", **properties: object) -> Iterator[None]:
    """The slice has these limits: all accounts together, or one."""
    unlimited = {name: "" if name.startswith("Allowed") or name == "CPUQuota" else "infinity" for name in properties}
    set_limits(machine, slice_name, properties)
    try:
        yield
    finally:
        set_limits(machine, slice_name, unlimited)


def set_limits(machine: Machine, slice_name: str, properties: Mapping[str, object]) -> None:
    words = " ".join(f"{name}={value}" for name, value in properties.items())
    machine.run(f"systemctl set-property --runtime {slice_name} {words}", account="root")


def group_file(machine: Machine, name: str, name_in_v1: str) -> int:
    controller, _, file = name_in_v1.partition("/")
    path = f"/sys/fs/cgroup/{controller}/user.slice/{file}" if machine.kind == "cgroup-v1" else ""
    return int(machine.run(f"cat {path or f'/sys/fs/cgroup/user.slice/{name}'}"))


def used_memory(machine: Machine) -> int:
    return group_file(machine, "memory.current", "memory/memory.usage_in_bytes")


def only_v2(machine: Machine) -> None:
    if machine.kind == "cgroup-v1":
        pytest.skip("systemd sets this limit in cgroup v2 alone")


@contextmanager
def holding_memory(machine: Machine, size: int) -> Iterator[None]:
    """Another program of the account has so much memory."""
    program = f"import time; held = bytearray({size}); time.sleep(36000)"
    shell = f"python3 -c '{program}' >/dev/null 2>&1 & echo $!; sleep 20"
    pid = int(machine.run(shell).split()[0])
    try:
        yield
    finally:
        machine.run(f"kill {pid}")


def test_memory_that_other_programs_of_the_cgroup_use_is_not_free(machine: Machine) -> None:
    limit = used_memory(machine) + 900 * MIB
    with limited(machine, MemoryMax=limit), holding_memory(machine, 600 * MIB):
        memory = doctor(machine)["facts"]["memory"]
        assert memory["limit"] == group_file(machine, "memory.max", "memory/memory.limit_in_bytes")
        assert memory["limit_left"] == pytest.approx(300 * MIB, abs=120 * MIB)
        said = call(machine, "run --dry-run --ppn 2", *PROJECT, TRAINING)
        assert (said.rc, re.findall(r"2 ranks would take .* are free", said.err) != []) == (2, True), said.err


def test_a_limit_of_processes_is_told_before_and_proven_after(machine: Machine) -> None:
    most = 26
    with limited(machine, OF_ACCOUNT, TasksMax=most):
        report = doctor(machine)
        assert 10 < report["facts"]["limits"]["pids_left"] < most
        assert "pids.max" in findings_of(report)["limits.pids"]
        said, _ = train(machine, "--ppn", "2")
        assert said.rc != 0, "the limit is not low enough to end a rank"
    cause = cause_of(said)
    assert cause["id"] == "limit.threads", (cause, said.err)
    if machine.kind != "cgroup-v1":
        assert (cause["confidence"], "pids.events" in cause["sentence"]) == ("certain", True)


def test_memory_of_other_nodes_is_not_planned_if_a_cpuset_excludes_it(machine: Machine) -> None:
    only_v2(machine)
    with limited(machine, AllowedMemoryNodes="0"):
        assert "cpuset.mems is 0" in findings_of(doctor(machine))["numa.mems"]
        assert [memory for _, memory in plan_of(machine, "--ppn", "2")] in (["0", "0"], ["", ""])


def test_a_group_that_is_slowed_down_above_a_limit_is_told(machine: Machine) -> None:
    only_v2(machine)
    with limited(machine, MemoryHigh="700M"):
        report = doctor(machine)
        assert report["facts"]["memory"]["high"] == 700 * MIB
        assert "memory.high" in findings_of(report)["memory.high"]


def test_a_rank_whose_quota_fits_one_socket_stays_there(machine: Machine) -> None:
    only_v2(machine)
    with limited(machine, AllowedCPUs="0,2,4,8,10", CPUQuota="300%"):
        assert "CPUQuota=500%" in findings_of(doctor(machine))["cpu.quota"]
        assert plan_of(machine) == [("0,2,4", "0")]


def test_the_only_rank_that_reached_its_limit_is_told_to_raise_it(machine: Machine) -> None:
    with limited(machine, MemoryMax=used_memory(machine) + 700 * MIB):
        said, _ = train(machine, "-n", "1", held=1000)
        assert said.rc == 137, said.err
    cause = cause_of(said)
    assert (cause["id"], "MemoryMax=" in cause["fix"], "--ppn" in cause["fix"]) == ("memory.oom", True, False)


def test_memory_that_lies_elsewhere_than_planned_is_told_at_the_end(machine: Machine) -> None:
    """The planned node is full when the ranks start."""
    shown = machine.run("cat /sys/devices/system/node/node1/meminfo")
    free = int(re.findall(r"MemFree: +(\d+) kB", shown)[0]) // 1024
    fill = f"mount -t tmpfs -o size={free - 60}M,mpol=bind:1 full /mnt && dd if=/dev/zero of=/mnt/full bs=1M; true"
    machine.run(fill, account="root", timeout=600)
    try:
        said, ranks = train(machine, "--ppn", "2")
        assert (said.rc, ranks[1]["memory"]["0"] > 100) == (0, True), (said.err, ranks)
        assert re.search(r"rank 1 on \S+: .* of memory lay on NUMA node 0 instead of 1", said.err), said.err
        assert "rank 0 on" not in said.err
    finally:
        machine.run("umount /mnt", account="root")
