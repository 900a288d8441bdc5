"""Out-of-memory kills are detected by the counters of cgroup v1 or v2, or by the kernel log."""

from __future__ import annotations

from pathlib import Path

import pytest

from ipexctl.node.run.rank import oom

PID = 4711
GB = 1 << 30


class Machine:
    """A fake /proc and cgroup hierarchy."""

    def __init__(self, base: Path, cgroup: str, mounts: list[str]) -> None:
        self.base = base
        for name in (str(PID), "self"):
            (base / "proc" / name).mkdir(parents=True)
        self.proc = str(base / "proc")
        self.move(cgroup)
        (base / "proc/self/mountinfo").write_text("".join(f"{mount}\n" for mount in mounts))

    def move(self, cgroup: str) -> None:
        (self.base / f"proc/{PID}/cgroup").write_text(cgroup)

    def move_own(self, cgroup: str) -> None:
        (self.base / "proc/self/cgroup").write_text(cgroup)

    def put(self, path: str, text: str) -> None:
        file = self.base / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


def machine_with_cgroup_v2(base: Path, path: str = "/user.slice/job") -> Machine:
    mount = f"30 24 0:26 / {base}/cg rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate"
    machine = Machine(base, f"0::{path}\n", ["22 1 8:1 / / rw - ext4 /dev/sda rw", mount])
    machine.put(f"cg{path}/memory.events", "low 0\nhigh 0\nmax 7\noom 1\noom_kill 1\n")
    return machine


def machine_with_cgroup_v1(base: Path, path: str = "/job", root: str = "/") -> Machine:
    mount = f"35 30 0:31 {root} {base}/cg/memory rw - cgroup cgroup rw,memory"
    other = f"36 30 0:32 / {base}/cg/cpu rw - cgroup cgroup rw,cpu"
    machine = Machine(base, f"5:cpu:/\n4:memory:{path}\n0::/\n", [other, mount])
    inside = path[len(root.rstrip("/")) :]
    machine.put(f"cg/memory{inside}/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n")
    return machine


def test_cgroup_v2_oom_kill_counter_is_detected_with_the_lowest_parent_limit(tmp_path: Path) -> None:
    machine = machine_with_cgroup_v2(tmp_path)
    machine.put("cg/user.slice/job/memory.max", "max\n")
    machine.put("cg/user.slice/memory.max", f"{2 * GB}\n")
    watched = oom.OutOfMemoryWatch(PID, 0.0, machine.proc)
    assert watched.find_kill(2000.0) == oom.KillCount(0, "cgroup")
    machine.put("cg/user.slice/job/memory.events", "low 0\nhigh 0\nmax 9\noom 2\noom_kill 2\n")
    assert watched.find_kill(2000.0) == oom.KillCount(1, "cgroup", 2 * GB)


@pytest.mark.parametrize(
    ("path", "root", "limit", "expected"),
    [
        ("/job", "/", GB, GB),
        ("/docker/abc", "/docker/abc", GB, GB),
        ("/docker/abc/x", "/docker", GB, GB),
        ("/job", "/", 9223372036854771712, None),
    ],
)
def test_a_counter_of_version_1_is_found_in_a_container_too_and_no_limit_is_no_number(
    tmp_path: Path, path: str, root: str, limit: int, expected: int | None
) -> None:
    machine = machine_with_cgroup_v1(tmp_path, path, root)
    inside = path[len(root.rstrip("/")) :]
    machine.put(f"cg/memory{inside}/memory.limit_in_bytes", f"{limit}\n")
    watched = oom.OutOfMemoryWatch(PID, 0.0, machine.proc)
    machine.put(f"cg/memory{inside}/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n")
    assert watched.find_kill(2000.0) == oom.KillCount(1, "cgroup", expected)


def test_counters_of_the_new_cgroup_are_used_after_a_move(tmp_path: Path) -> None:
    machine = machine_with_cgroup_v2(tmp_path)
    watched = oom.OutOfMemoryWatch(PID, 0.0, machine.proc)
    machine.put("cg/scope/memory.events", "oom_kill 5\n")
    machine.put("cg/scope/memory.max", f"{GB}\n")
    machine.move("0::/scope\n")
    watched.update(1000.0)
    assert watched.find_kill(2000.0) == oom.KillCount(0, "cgroup")
    machine.put("cg/scope/memory.events", "oom_kill 6\n")
    machine.put("cg/memory.events", "oom_kill 0\n")
    machine.move("0::/\n")  # the kernel shows this for a dead process
    watched.update(1001.0)
    assert watched.find_kill(2000.0) == oom.KillCount(1, "cgroup", GB)


@pytest.mark.parametrize(("version", "after", "limit"), [(2, 2, GB), (2, 1, None), (1, 2, GB), (1, 1, None)])
def test_limit_is_named_only_if_it_was_reached(tmp_path: Path, version: int, after: int, limit: int | None) -> None:
    """The counter of kills rises, too, when the memory of the machine ran out."""
    machine = machine_with_cgroup_v2(tmp_path) if version == 2 else machine_with_cgroup_v1(tmp_path, "/user.slice/job")

    def put(kills: int, reached: int) -> None:
        if version == 2:
            machine.put("cg/user.slice/job/memory.events", f"low 0\nmax 7\noom 0\noom_kill {kills}\n")
            machine.put("cg/user.slice/memory.events", f"low 0\nmax 7\noom {reached}\noom_kill {kills}\n")
            machine.put("cg/user.slice/memory.max", f"{GB}\n")
        else:
            place = "cg/memory/user.slice"
            machine.put(f"{place}/job/memory.oom_control", f"oom_kill_disable 0\nunder_oom 0\noom_kill {kills}\n")
            machine.put(f"{place}/job/memory.failcnt", "0\n")
            machine.put(f"{place}/memory.failcnt", f"{reached}\n")
            machine.put(f"{place}/job/memory.stat", f"cache 0\nhierarchical_memory_limit {GB}\n")

    put(1, 1)
    watched = oom.OutOfMemoryWatch(PID, 0.0, machine.proc)
    put(2, after)
    assert watched.find_kill(2000.0) == oom.KillCount(1, "cgroup", limit)


def test_kill_is_counted_by_the_kernel_where_no_cgroup_is_visible(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "4:memory:/job\n", ["22 1 8:1 / / rw - ext4 /dev/sda rw"])
    machine.put("proc/vmstat", "pgfault 1\noom_kill 3\nx 1\n")
    watched = oom.OutOfMemoryWatch(PID, 0.0, machine.proc)
    assert watched.find_kill(2000.0) == oom.KillCount(0, "vmstat")
    machine.put("proc/vmstat", "pgfault 1\noom_kill 4\nx 1\n")
    assert watched.find_kill(2000.0) == oom.KillCount(1, "vmstat", None)
    watched.update(1e9)
    watched.update(1e9 + 100)
    assert watched.find_kill(2000.0) == oom.KillCount(0, "vmstat")


def test_a_kill_in_another_cgroup_of_the_machine_is_not_of_this_process(tmp_path: Path) -> None:
    machine = machine_with_cgroup_v2(tmp_path)
    machine.put("proc/vmstat", "oom_kill 3\n")
    watched = oom.OutOfMemoryWatch(PID, 0.0, machine.proc)
    machine.put("proc/vmstat", "oom_kill 4\n")
    assert watched.find_kill(2000.0) == oom.KillCount(0, "cgroup")


def test_oom_kills_of_long_ago_are_ignored(tmp_path: Path) -> None:
    machine = machine_with_cgroup_v2(tmp_path)
    watched = oom.OutOfMemoryWatch(PID, 0.0, machine.proc)
    machine.put("cg/user.slice/job/memory.events", "oom_kill 2\n")
    for at in (10_000.0, 10_030.0, 10_100.0):
        watched.update(at)
    assert watched.find_kill(2000.0) == oom.KillCount(0, "cgroup")


@pytest.mark.parametrize(
    ("files", "found", "said"),
    [
        ({"proc/vmstat": "oom_kill 3\n"}, oom.KillCount(0, "vmstat"), ["oom-none"]),
        ({"cg/memory.events": "oom_kill 1\n"}, oom.KillCount(0, "cgroup"), ["oom-none"]),
        ({"cg/memory.max": "max\n"}, oom.KillCount(None), ["oom-unread"]),
        ({"proc/vmstat": "pgfault 3\n"}, oom.KillCount(None), ["oom-unread"]),
        (
            {"proc/vmstat": "oom_kill 3\n", "proc/meminfo": "MemTotal: 100 kB\nMemAvailable: 4 kB\n"},
            oom.KillCount(0, "vmstat"),
            ["oom-none", "memory-low"],
        ),
        (
            {"proc/meminfo": "MemTotal: 100 kB\nMemAvailable: 60 kB\n", "proc/99/comm": "earlyoom\n"},
            oom.KillCount(None),
            ["oom-unread", "memory-free", "guard"],
        ),
    ],
)
def test_none_counted_is_told_from_not_readable(
    tmp_path: Path, files: dict[str, str], found: oom.KillCount, said: list[str]
) -> None:
    mount = f"30 24 0:26 / {tmp_path}/cg rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate"
    machine = Machine(tmp_path, "0::/\n", [mount])
    for path, text in files.items():
        machine.put(path, text)
    watch = oom.OutOfMemoryWatch(PID, 0.0, machine.proc)
    assert watch.find_kill(2000.0, reads_log=False) == found
    assert [each.kind for each in watch.describe(found)] == said
    assert [each.text for each in watch.describe(found) if each.kind == "guard"] in ([], ["earlyoom"])


@pytest.mark.parametrize("group", ["user.slice/job", "user.slice"])
def test_a_refused_thread_is_counted_where_the_process_or_where_the_limit_is(tmp_path: Path, group: str) -> None:
    """By kernels before 6.11, and since."""
    machine = machine_with_cgroup_v2(tmp_path)
    machine.move_own("0::/user.slice/job\n")
    machine.put(f"cg/{group}/pids.events", "max 3\n")
    watch = oom.OutOfMemoryWatch(PID, 0.0, machine.proc)
    assert [each.kind for each in watch.describe(oom.KillCount(0, "cgroup"))] == ["oom-none"]
    machine.put(f"cg/{group}/pids.events", "max 5\n")
    (proof,) = (each for each in watch.describe(oom.KillCount(0, "cgroup")) if each.kind == "limit-pids")
    assert "refused 2 processes or threads" in proof.text


def test_nothing_is_known_of_a_process_whose_files_are_gone(tmp_path: Path) -> None:
    watch = oom.OutOfMemoryWatch(PID, 0.0, str(tmp_path / "nowhere"))
    assert watch.find_kill(2000.0, reads_log=False) == oom.KillCount(None)
    assert [each.kind for each in watch.describe(oom.KillCount(None))] == ["oom-unread"]


@pytest.mark.parametrize(("available", "said"), [(60, "oom-elsewhere"), (4, "oom-counted")])
def test_a_kill_counted_on_a_machine_that_had_memory_left_may_be_of_another_process(
    tmp_path: Path, available: int, said: str
) -> None:
    machine = Machine(tmp_path, "4:memory:/job\n", ["22 1 8:1 / / rw - ext4 /dev/sda rw"])
    machine.put("proc/vmstat", "oom_kill 3\n")
    machine.put("proc/meminfo", f"MemTotal: 100 kB\nMemAvailable: {available} kB\n")
    watch = oom.OutOfMemoryWatch(PID, 0.0, machine.proc)
    machine.put("proc/vmstat", "oom_kill 4\n")
    assert watch.describe(watch.find_kill(2000.0, reads_log=False))[0].kind == said


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"Memory cgroup out of memory: Killed process 4711 (python3) total-vm:217320kB, anon-rss:58240kB", "cgroup"),
        (b"Out of memory: Killed process 4711 (python3) total-vm:217320kB", "machine"),
        (b"Memory cgroup out of memory: Killed process 47110 (python3)", None),
        (b"python3[4711]: segfault at 0 ip 0 sp 0 error 4", None),
    ],
)
def test_oom_kills_are_found_in_the_kernel_log(line: bytes, said: str | None) -> None:
    assert oom.find_kill_in_log(b"eth0: link up\n" + line + b"\noom_reaper: reaped process 4711", PID) == said
