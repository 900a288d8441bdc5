"""Each threshold of the rules over memory, limits and several hosts: a host just below it, and one just above."""

from __future__ import annotations

import math
from typing import Any

import pytest
from doctor_rules_helpers import alone, changed, disk, healthy, home, twins

from ipexctl.doctor.cluster_machines import gain_without_slow
from ipexctl.doctor.context import GB, MB
from ipexctl.doctor.finding import Finding
from ipexctl.facts.network import Rdma
from ipexctl.facts.system import Limit


def level(findings: tuple[Finding, ...], identifier: str) -> str | None:
    return next((finding.level for finding in findings if finding.id == identifier), None)


@pytest.mark.parametrize(
    ("memory", "identifier", "expected"),
    [
        ({"total": 4 * GB - 1, "available": 4 * GB - 1}, "memory.small", "warn"),
        ({"total": 4 * GB, "available": 4 * GB}, "memory.small", None),
        ({"limit": 256 * GB - 1}, "memory.limit", "warn"),
        ({"limit": 256 * GB}, "memory.limit", None),
        ({"total": 500 * GB, "available": 100 * GB - 1}, "memory.busy", "warn"),
        ({"total": 500 * GB, "available": 100 * GB}, "memory.busy", None),
        ({"total": 100 * GB, "hugepages_free": 2, "hugepage_size": GB - 1}, "memory.hugepages", None),
        ({"total": 100 * GB, "hugepages_free": 2, "hugepage_size": GB}, "memory.hugepages", "info"),
        ({"total": 100 * GB, "hugepages_free": 20, "hugepage_size": GB - 1}, "memory.hugepages", "info"),
        ({"total": 100 * GB, "hugepages_free": 20, "hugepage_size": GB}, "memory.hugepages", "warn"),
        ({"swap": 256 * GB - 1}, "memory.swap", None),
        ({"swap": 256 * GB}, "memory.swap", "info"),
        ({"shm_size": GB - 1, "shm_free": GB - 1}, "shm.small", "warn"),
        ({"shm_size": GB, "shm_free": GB}, "shm.small", None),
        # An eighth of the memory is enough, but Docker's 64 MB never are.
        ({"total": 4 * GB, "available": 4 * GB, "shm_size": GB // 2 - 1, "shm_free": GB // 2 - 1}, "shm.small", "warn"),
        ({"total": 4 * GB, "available": 4 * GB, "shm_size": GB // 2, "shm_free": GB // 2}, "shm.small", None),
        ({"total": 256 * MB, "available": 256 * MB, "shm_size": 64 * MB, "shm_free": 64 * MB}, "shm.small", "warn"),
        ({"total": 256 * MB, "shm_size": 64 * MB + 1, "shm_free": 64 * MB + 1}, "shm.small", None),
        ({"shm_free": 64 * MB - 1}, "shm.full", "warn"),
        ({"shm_free": 64 * MB}, "shm.full", None),
    ],
)
def test_memory_on_both_sides_of_each_threshold(memory: dict[str, Any], identifier: str, expected: str | None) -> None:
    assert level(changed(memory=memory), identifier) == expected


@pytest.mark.parametrize(
    ("is_installed", "room", "identifier", "expected"),
    [
        (True, {"free": GB - 1}, "home.full", "fail"),
        (True, {"free": GB}, "home.full", None),
        (True, {"free": 2 * GB - 1}, "home.small", "warn"),
        (True, {"free": 2 * GB}, "home.small", None),
        (False, {"free": 10 * GB - 1}, "home.small", "warn"),
        (False, {"free": 10 * GB}, "home.small", None),
        (True, {"inodes_free": 999}, "home.inodes", "fail"),
        (True, {"inodes_free": 1000}, "home.inodes", "warn"),
        (True, {"inodes_free": 99_999}, "home.inodes", "warn"),
        (True, {"inodes_free": 100_000}, "home.inodes", None),
    ],
)
def test_disk_on_both_sides_of_each_threshold(
    is_installed: bool, room: dict[str, Any], identifier: str, expected: str | None
) -> None:
    software = {} if is_installed else {"envs": ()}
    assert level(changed(home=home(**room), software=software), identifier) == expected


@pytest.mark.parametrize(("free", "expected"), [(GB - 1, "info"), (GB, None)])
def test_temporary_directory_on_both_sides_of_the_threshold(free: int, expected: str | None) -> None:
    assert level(changed(tmp=disk("/tmp", free=free)), "tmp.small") == expected


@pytest.mark.parametrize(("rdma", "soft", "expected"), [
    (False, 64 * 1024, "info"), (False, 64 * 1024 + 1, None), (False, math.inf, None),
    (True, 64 * 1024 + 1, "warn"), (True, GB - 1, "warn"), (True, GB, None), (True, math.inf, None),
])  # fmt: skip
def test_locked_memory_on_both_sides_of_each_threshold(rdma: bool, soft: float, expected: str | None) -> None:
    device = Rdma("mlx5_0", state="active")
    parts: dict[str, Any] = {"network": {"rdma": (device,)}} if rdma else {}
    assert level(changed(limits={"memlock": Limit(soft, soft)}, **parts), "limits.memlock") == expected


@pytest.mark.parametrize(
    ("peers", "soft", "expected"),
    [(1, 1023, "warn"), (1, 1024, None), (63, 1023, "warn"), (63, 1024, None), (64, 1039, "warn"), (64, 1040, None)],
)
def test_open_files_on_both_sides_of_the_threshold(peers: int, soft: float, expected: str | None) -> None:
    facts = healthy(limits={"nofile": Limit(soft, 65536)})
    assert level(alone(facts, peers=tuple(f"n{at}" for at in range(peers))), "limits.nofile") == expected


@pytest.mark.parametrize(("hard", "fix"), [(1023, "limits.d"), (1024, "ulimit -n 1024"), (1e6, "ulimit -n 65536")])
def test_open_files_are_raised_by_the_account_itself_up_to_the_hard_limit(hard: float, fix: str) -> None:
    found = changed(limits={"nofile": Limit(256, hard)})
    assert fix in next(finding.fix for finding in found if finding.id == "limits.nofile")


@pytest.mark.parametrize(("uid", "soft", "expected"), [(1000, 1023, "warn"), (1000, 1024, None), (0, 1023, None)])
def test_processes_on_both_sides_of_the_threshold(uid: int, soft: float, expected: str | None) -> None:
    found = changed(limits={"nproc": Limit(soft, soft)}, account={"uid": uid})  # 4 for each of 224 threads are fewer
    assert level(found, "limits.nproc") == expected


@pytest.mark.parametrize(("usable", "expected"), [(384 * GB - 1, "warn"), (384 * GB, None)])
def test_smaller_memory_counts_below_three_quarters_of_the_largest(usable: int, expected: str | None) -> None:
    assert level(twins(memory={"total": usable, "available": usable}), "cluster.mixed_memory") == expected


@pytest.mark.parametrize(
    ("speeds", "gain", "left_out"),
    [
        ((10, 10), 1.0, ()),
        ((10, 6), 1.0, ()),
        ((10, 4), 1.25, ("n1",)),
        ((10, 10, 7), 1.0, ()),
        ((10, 10, 6), 20 / 18, ("n2",)),
        ((10, 10, 6, 3), 20 / 12, ("n2", "n3")),
    ],
)
def test_gain_without_the_slowest_hosts(speeds: tuple[float, ...], gain: float, left_out: tuple[str, ...]) -> None:
    found, slow = gain_without_slow({f"n{at}": speed for at, speed in enumerate(speeds)})
    assert found == pytest.approx(gain)
    assert slow == left_out


@pytest.mark.parametrize(("quota", "expected"), [(75.0, None), (72.0, None), (71.0, "warn")])
def test_fewer_cores_count_if_the_others_do_five_per_cent_more_without_them(quota: float, expected: str | None) -> None:
    """Two hosts of 112 cores do as much alone as with a third that has 74.7, and 1.05 times as much at 71.1."""
    assert level(twins(cpu={"quota": quota}), "cluster.mixed_cores") == expected
