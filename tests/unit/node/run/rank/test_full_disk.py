"""The full file system that a failed rank may have written to."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from ipexctl.node.common.plan import HostPlan, Plan, RankPlan
from ipexctl.node.common.run_options import RunOptions
from ipexctl.node.run.rank import rank_env

PLAN = Plan(
    "r", "/h", "n", RunOptions(), cwd="/h/code/p", hosts=(HostPlan("n", "n", "n", (RankPlan(0, 0, "n", (), 1),), None),)
)


@pytest.mark.parametrize(("full", "found"), [("/mnt/small", "/mnt/small"), ("/h/code/p", "/h/code/p"), ("", None)])
def test_a_full_mount_is_named_after_the_places_of_the_run(
    monkeypatch: pytest.MonkeyPatch, full: str, found: str | None
) -> None:
    def statvfs(path: str) -> SimpleNamespace:
        free = 0 if path == full else 1 << 30
        counts = {"f_files": 9, "f_ffree": 9, "f_favail": 9, "f_flag": 0}
        return SimpleNamespace(f_bfree=free, f_bavail=free, f_frsize=1, f_blocks=1 << 31, **counts)

    monkeypatch.setattr(rank_env, "_local_mounts", lambda: iter(("/mnt/small", "/mnt/large")))
    monkeypatch.setattr(os, "statvfs", statvfs)
    disk = rank_env.find_full_disk(PLAN, 0, {})
    assert (disk and disk.path) == found


def test_the_mounts_of_this_machine_are_local() -> None:
    mounts = list(rank_env._local_mounts())
    assert all(mount.startswith("/") for mount in mounts)
