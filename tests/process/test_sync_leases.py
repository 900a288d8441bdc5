"""Leases of runs on a synced tree, and the sync after one that was interrupted."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import time

import pytest
from sync_helpers import Place, contents, put

from ipexctl.node.common.processes import own_identity
from ipexctl.node.files.tree import ProjectTree, has_ended
from ipexctl.remote import node_call

pytest_plugins = ["sync_fixtures"]


def write_run_status(place: Place, run: str, state: str | None = "running") -> None:
    """Write the status of a run on node0; its lease exists already."""
    if state is not None:
        status = {"state": state, "supervisor": own_identity()._asdict()}
        put(place.home, f"runs/{run}/status.json", json.dumps(status))


def next_generation(place: Place) -> int | None:
    """The generation that the next sync of a changed project would change."""
    put(place.root, "train.py", str(time.monotonic_ns()))
    return place.synced(dry_run=True).generation


def change_lease(place: Place, **changes: object) -> None:
    lease = place.tree / ".ipexctl/leases/r1"
    lease.write_text(json.dumps({**json.loads(lease.read_text()), **changes}))


@pytest.mark.core
def test_tree_used_by_a_run_is_not_changed(place: Place) -> None:
    put(place.root, "train.py", "1")
    first = place.synced(lease="r1")
    assert (place.tree / ".ipexctl/leases/r1").exists()
    write_run_status(place, "r1")
    assert place.synced(lease="r2").path == first.path, "nothing changes, so they can share it"
    write_run_status(place, "r2", "ok")
    put(place.root, "train.py", "2")
    assert place.synced(dry_run=True).generation == 2
    report = place.sync(lease="r3")
    (second,) = report.hosts
    assert (second.generation, second.path) == (2, f"{first.path}.gen2")
    assert any("r1" in note and "r2" not in note for note in report.notes)
    assert place.there() == {"train.py": "1"}
    put(place.root, "train.py", "3")
    assert place.synced().path == f"{first.path}.gen3", "r1 still uses the first, r3 the second"
    assert place.there() == {"train.py": "1"}
    put(place.root, "train.py", "2")
    write_run_status(place, "r3", "failed")
    write_run_status(place, "r1", "ok")
    third = place.synced()
    assert (third.generation, third.path) == (1, first.path)
    assert place.there() == {"train.py": "2"}


def test_lease_of_a_run_that_never_started_is_released(place: Place) -> None:
    put(place.root, "train.py", "1")
    place.synced(lease="r1")
    put(place.root, "train.py", "2")
    assert place.synced(dry_run=True).generation == 2
    freed = place.synced(lease="r2", ended=["r1"])
    assert freed.generation == 1
    assert place.there() == {"train.py": "2"}
    assert not (place.tree / ".ipexctl/leases/r1").exists()


def test_secrets_of_a_run_whose_call_was_killed_are_removed_by_the_next_sync(place: Place) -> None:
    put(place.root, "train.py", "1")
    place.synced(lease="r1")
    for run in ("r1", "r2"):
        put(place.home, f"runs/{run}/job.json", "{}")
    place.synced(ended=["r1"], dry_run=True)
    assert (place.home / "runs/r1/job.json").exists()
    place.synced(ended=["r1", "../r2", ".."])
    assert not (place.home / "runs/r1/job.json").exists()
    assert (place.home / "runs/r2/job.json").exists()


def test_lease_ends_with_its_supervisor_a_reboot_or_a_missing_start(place: Place) -> None:
    put(place.root, "train.py", "0")
    place.sync(lease="r1")
    made = json.loads((place.tree / ".ipexctl/leases/r1").read_text())
    assert next_generation(place) == 2, "it is about to start"
    change_lease(place, made=time.time() - 3600)
    assert next_generation(place) == 1, "it never started"
    put(place.home, "runs/r1/job.json", "{}")
    assert next_generation(place) == 2, "its ranks run here"
    change_lease(place, **{**made, "boot": "another"})
    assert next_generation(place) == 1, "the machine was started anew"
    change_lease(place, **made)
    (place.home / "runs/r1/job.json").rename(place.home / "runs/r1/reserved")
    put(place.home, "runs/r1/agent.zip", "")
    assert later_generation(place, 3600) == 2, "it is a spare, and may be used later"
    (place.home / "runs/r1/reserved").unlink()
    assert later_generation(place, 3600) == 1, "it waits no more"
    supervisor = own_identity()
    for change, generation, reason in (
        ({}, 2, "its supervisor is at work"),
        ({"pid": 2**22}, 1, "its supervisor is gone"),
        ({"start": (supervisor.start or 0) - 1}, 1, "another process has its pid"),
    ):
        status = {"state": "running", "supervisor": {"host": "node1", **supervisor._asdict(), **change}}
        put(place.home, "runs/r1/status.json", json.dumps(status))
        assert next_generation(place) == generation, reason


def later_generation(place: Place, seconds: float) -> int | None:
    """The next generation by the clock of the filesystem, so much later."""
    lock = place.tree / ".ipexctl/lock"
    lock.write_text("")
    os.utime(lock, (time.time() + seconds,) * 2)
    return next_generation(place)


@pytest.mark.parametrize(
    "agent",
    [("agent.zip", "run.rank"), ("agent.zip", "run.supervisor"), ("agent.zip", "run.host_starter"), ("rank.py",)],
    ids=["rank", "supervisor that waits", "starter that waits", "rank of an older version"],
)
def test_ranks_hold_the_tree_until_they_end_on_nodes_without_a_run_record(place: Place, agent: tuple[str, ...]) -> None:
    """On nodes other than node0 the job file is removed once the ranks have started."""
    put(place.root, "train.py", "0")
    place.sync(lease="r1")
    rundir = place.home / "runs/r1"
    name, *command = agent
    put(place.home, f"runs/r1/{name}", "import time\ntime.sleep(600)")
    change_lease(place, made=time.time() - 3600)
    rank = subprocess.Popen([sys.executable, "-I", rundir / name, *command, rundir / "job.json"])
    try:
        assert next_generation(place) == 2, "an hour later its rank still runs here"
        change_lease(place, machine="node2")
        assert later_generation(place, 2 * 86400) == 2, "node2, which shares the home, has made the lease long ago"
        change_lease(place, machine=os.uname().nodename)
    finally:
        rank.kill()
        rank.wait()
    change_lease(place, made=time.time())
    assert later_generation(place, 0) == 2, "it may be about to start"
    assert later_generation(place, 30) == 1, "its rank has come and gone"


def test_ranks_on_another_machine_with_a_shared_home_hold_the_tree(place: Place) -> None:
    """Two nodes share a home and node0 has another: neither the run record nor processes are on this machine."""
    put(place.root, "train.py", "0")
    place.sync(lease="r1")
    change_lease(place, machine="node2", boot="another")
    put(place.home, "runs/r1/agent.zip", "")
    assert later_generation(place, 3600) == 2, "an hour later"
    put(place.home, "runs/r1/job.json", "{}")
    assert later_generation(place, 3600) == 2, "its ranks are about to start"
    assert later_generation(place, 2 * 86400) == 1, "the machine may be gone"
    supervisor = {**own_identity()._asdict(), "host": "node2", "machine": "another", "boot": "another"}
    put(place.home, "runs/r1/status.json", json.dumps({"state": "running", "supervisor": supervisor}))
    assert later_generation(place, 3600) == 2, "its status is an hour old"
    assert later_generation(place, 2 * 86400) == 1, "its status is two days old"


def test_sync_killed_at_any_step_is_repaired_by_the_next_sync(place: Place) -> None:
    """The agent kills itself at its n-th change of the filesystem. Each sync changes, adds and removes a file.

    Six of the steps in each run, drawn with a seed that a failure prints.
    """
    seed = int(os.environ.get("IPEXCTL_TESTS_SEED") or time.time())
    put(place.root, "a", "0")
    put(place.root, "new-0/c", "c0")
    put(place.root, "dir/b", "1")
    place.sync()
    kept = put(place.tree, "ckpt.pt", "weights")
    counter = place.home.parent / "steps"
    boot = KILL_AFTER_N_CHANGES.format(counter=counter) + node_call._BOOT
    for number, step in enumerate(random.Random(seed).sample(range(1, FEWEST_CHANGES + 1), 6), 1):
        put(place.root, "a", f"{number}")
        put(place.root, f"new-{number}/c", f"c{number}")
        shutil.rmtree(place.root / f"new-{number - 1}")
        counter.write_text(f"{step}")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(node_call, "_BOOT", boot)
            (done,) = place.sync().hosts
        assert done.status == "failed", f"IPEXCTL_TESTS_SEED={seed}, step {step}"
        place.synced()
        assert {**contents(place.root), "ckpt.pt": "weights"} == place.there(), (
            f"IPEXCTL_TESTS_SEED={seed}, step {step}"
        )
    state = [path.name for path in (place.tree / ".ipexctl").iterdir() if not path.name.startswith(".")]
    assert sorted(state) == ["leases", "state.json"]
    assert kept.read_text() == "weights"


@pytest.mark.parametrize("clock", [-300.0, 0.0, 300.0])
def test_age_of_a_lease_is_measured_by_the_filesystem_clock(
    clock: float, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a shared home, the clocks of the file server and of this machine may differ by minutes."""
    put(place.root, "train.py", "0")
    place.sync(lease="r1")
    put(place.home, "runs/r1/agent.zip", "")
    tree = ProjectTree(os.fsencode(place.home), place.tree.name, 1)
    real_time = time.time
    with tree.lock(), monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: real_time() + clock)
        assert not has_ended(tree, "r1")
        os.utime(tree.state_directory + b"/lock", (0, real_time() + 60), follow_symlinks=False)
        assert has_ended(tree, "r1")


FEWEST_CHANGES = 13
"""A sync of this test changes the filesystem at least so often before it releases its lock."""

KILL_AFTER_N_CHANGES = """
import os as _os, sys as _sys
with open("{counter}") as _file:
    _left = [int(_file.read())]
def _counted(real):
    def call(*args, **more):
        _left[0] -= 1
        if _left[0] <= 0:
            _os.kill(_os.getpid(), 9)
        return real(*args, **more)
    return call
if _sys.argv[4].startswith("files.tree_"):
    for _name in ("replace", "rename", "unlink", "rmdir", "mkdir", "chmod", "symlink"):
        setattr(_os, _name, _counted(getattr(_os, _name)))
"""
