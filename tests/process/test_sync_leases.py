"""Leases of runs on a synced tree, and the sync after one that was interrupted."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from sync_helpers import Place, contents, put

from agent_helpers import wait_until
from ipexctl.node.common.processes import boot_id, own_identity
from ipexctl.node.files.tree import ProjectTree, has_ended, runs_with_programs
from ipexctl.remote import node_call

pytest_plugins = ["sync_fixtures"]


def write_run_status(place: Place, run: str, state: str | None = "running") -> None:
    """Write the status of a run on node0; its lease exists already."""
    if state is not None:
        status = {"state": state, "supervisor": own_identity()._asdict()}
        put(place.home, f"runs/{run}/status.json", json.dumps(status))


@pytest.mark.core
def test_tree_used_by_a_run_is_not_changed(place: Place) -> None:
    put(place.root, "train.py", "1")
    first = place.synced(lease="r1")
    assert (place.tree / ".ipexctl/leases/r1").exists()
    write_run_status(place, "r1")
    put(place.tree, "out/last.pt", "of r1")
    beside = place.sync(lease="r2")
    assert beside.hosts[0].path == f"{first.path}.gen2", "runs of the same files would share out/, too"
    assert any("ipexctl wait r1" in note for note in beside.notes)
    assert not (place.tree / ".ipexctl/leases/r2").exists()
    assert not Path(f"{first.path}.gen2/out").exists()
    write_run_status(place, "r2", "ok")
    put(place.root, "train.py", "2")
    assert place.synced(dry_run=True, lease="r0").generation == 2
    assert not (place.tree / ".ipexctl/leases/r0").exists()
    report = place.sync(lease="r3")
    (second,) = report.hosts
    assert (second.generation, second.path) == (2, f"{first.path}.gen2")
    assert any("r1" in note and "r2" not in note for note in report.notes)
    assert place.there() == {"train.py": "1", "out": "/", "out/last.pt": "of r1"}
    put(place.root, "train.py", "3")
    assert place.synced().path == f"{first.path}.gen3", "r1 still uses the first, r3 the second"
    put(place.root, "train.py", "2")
    write_run_status(place, "r3", "failed")
    write_run_status(place, "r1", "ok")
    third = place.synced()
    assert (third.generation, third.path) == (1, first.path)
    assert place.there() == {"train.py": "2", "out": "/", "out/last.pt": "of r1"}


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


HERE = {"machine": os.uname().nodename, "boot": boot_id()}
ELSEWHERE = {"machine": "node2", "boot": "another"}
HOUR, DAY = 3600.0, 86400.0
ALIVE = own_identity()._asdict()
ON_NODE2 = {**ALIVE, "host": "node2", **ELSEWHERE}


class Lease(NamedTuple):
    """Of a run, so many seconds ago. On another node than node0, only the job file goes once the ranks have started."""

    made: Mapping[str, str | None]
    seconds: float
    files: str = ""
    supervisor: Mapping[str, Any] | None = None

    def write(self, home: Path) -> ProjectTree:
        made = {**self.made, "made": time.time() - self.seconds}
        put(home, "code/p-1/.ipexctl/leases/r1", json.dumps(made))
        lock = put(home, "code/p-1/.ipexctl/lock")  # the clock of the filesystem
        os.utime(lock, (time.time() + self.seconds,) * 2)
        for name in self.files.split():
            put(home, f"runs/r1/{name}")
        if self.supervisor is not None:
            put(home, "runs/r1/status.json", json.dumps({"state": "running", "supervisor": self.supervisor}))
        runs_with_programs.cache_clear()
        return ProjectTree(os.fsencode(home), "p-1", 1)


@pytest.mark.parametrize(
    ("lease", "expected"),
    {
        "about to start": (Lease(HERE, 0), False),
        "never started": (Lease(HERE, HOUR), True),
        "its ranks run here": (Lease(HERE, HOUR, "job.json"), False),
        "the machine was started anew": (Lease({**HERE, "boot": "another"}, 0, "job.json"), True),
        "a host that may join again": (Lease(HERE, HOUR, "agent.zip reserved"), False),
        "a host that joins no more": (Lease(HERE, HOUR, "agent.zip"), True),
        "its agent came just now": (Lease(HERE, 0, "agent.zip"), False),
        "its rank has come and gone": (Lease(HERE, 30, "agent.zip"), True),
        "its supervisor is at work": (Lease(HERE, HOUR, "", ALIVE), False),
        "its supervisor is gone": (Lease(HERE, 0, "", {**ALIVE, "pid": 2**22}), True),
        "another process has its pid": (Lease(HERE, 0, "", {**ALIVE, "start": (ALIVE["start"] or 0) - 1}), True),
        "another machine's, which shares the home": (Lease(ELSEWHERE, HOUR, "agent.zip"), False),
        "another machine's, whose ranks are about to start": (Lease(ELSEWHERE, HOUR, "agent.zip job.json"), False),
        "another machine's, which may be gone": (Lease(ELSEWHERE, 2 * DAY, "agent.zip job.json"), True),
        "another machine's, whose status is an hour old": (Lease(ELSEWHERE, HOUR, "", ON_NODE2), False),
        "another machine's, whose status is two days old": (Lease(ELSEWHERE, 2 * DAY, "", ON_NODE2), True),
    }.items(),
)
def test_a_lease_ends_with_its_run(tmp_path: Path, lease: str, expected: tuple[Lease, bool]) -> None:
    row, is_over = expected
    assert has_ended(row.write(tmp_path), "r1") == is_over, lease


@pytest.mark.parametrize(
    "command",
    ["run.rank", "run.supervisor", "run.host_starter"],
    ids=["rank", "supervisor that waits", "starter that waits"],
)
def test_a_program_of_the_run_holds_its_tree(tmp_path: Path, command: str) -> None:
    agent = put(tmp_path, "runs/r1/agent.zip", "import time\ntime.sleep(600)")
    program = subprocess.Popen([sys.executable, "-I", agent, command, "/runs/r1/job.json"])
    try:
        # A new process has no command line until the kernel has set up its memory.
        wait_until(Path(f"/proc/{program.pid}/cmdline").read_bytes)
        assert not has_ended(Lease(HERE, HOUR).write(tmp_path), "r1")
        assert not has_ended(Lease({**HERE, "machine": "node2"}, 2 * DAY).write(tmp_path), "r1")
    finally:
        program.kill()
        program.wait()
    assert has_ended(Lease(HERE, 30).write(tmp_path), "r1")


@pytest.mark.parametrize("clock", [-300.0, 0.0, 300.0])
def test_age_of_a_lease_is_measured_by_the_filesystem_clock(
    clock: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a shared home, the clocks of the file server and of this machine may differ by minutes."""
    tree, real_time = Lease(HERE, 0, "agent.zip").write(tmp_path), time.time
    monkeypatch.setattr(time, "time", lambda: real_time() + clock)
    assert not has_ended(tree, "r1")
    os.utime(tree.state_directory + b"/lock", (0, real_time() + 60))
    assert has_ended(tree, "r1")


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
