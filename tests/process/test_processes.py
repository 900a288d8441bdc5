"""A recorded process is alive if its pid and start time match the record; a look at those that disturb a slow rank."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest

from ipexctl.node.common.answer import AgentError
from ipexctl.node.common.plan import RankPlan
from ipexctl.node.common.processes import Delays, ProcessIdentity, is_caught, own_identity, read_stat
from ipexctl.node.env.child import Child, watch
from ipexctl.node.run import slow_rank
from ipexctl.node.run.rank import rank_processes as processes
from ipexctl.node.run.rank.rank_processes import OpenmpFiles, bind_as_planned, signal_handlers
from ipexctl.node.run.slow_rank import inspect_suspect
from message_data import missing


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


def identity_of(process: subprocess.Popen[bytes]) -> ProcessIdentity:
    return ProcessIdentity(process.pid, read_stat(process.pid).start, os.uname().nodename)


def test_process_is_identified_by_pid_and_start_time(sleeper: subprocess.Popen[bytes]) -> None:
    identity = identity_of(sleeper)
    others = [identity._replace(start=(identity.start or 0) - 1), identity._replace(start=None)]
    assert [each.is_alive for each in (identity, own_identity(), *others)] == [True, True, False, False]
    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert not identity.is_alive, "a zombie has ended"


@pytest.mark.parametrize("has_pidfd", [True, False])
def test_process_with_a_reused_pid_is_not_signalled(
    sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch, has_pidfd: bool
) -> None:
    if not has_pidfd:
        monkeypatch.delattr(os, "pidfd_open", raising=False)
    identity = identity_of(sleeper)
    assert not identity._replace(start=1).send_signal(signal.SIGKILL)
    assert sleeper.poll() is None
    assert identity.send_signal(signal.SIGKILL)
    assert sleeper.wait() == -signal.SIGKILL
    assert not identity.send_signal(signal.SIGKILL)


@pytest.mark.parametrize(("machine", "boot"), [("elsewhere", None), (None, "another boot")])
def test_same_pid_and_start_on_another_machine_is_not_signalled(
    sleeper: subprocess.Popen[bytes], machine: str | None, boot: str | None
) -> None:
    here = own_identity()._replace(pid=sleeper.pid, start=read_stat(sleeper.pid).start)
    identity = here._replace(machine=machine or here.machine, boot=boot or here.boot)
    assert (here.is_alive, identity.is_alive, identity.send_signal(signal.SIGKILL)) == (True, False, False)
    assert sleeper.poll() is None


def test_record_without_machine_is_of_this_machine() -> None:
    assert ProcessIdentity(1, 1).is_of_this_machine
    assert not ProcessIdentity(1, 1, "another-machine").is_of_this_machine


def test_is_caught_detects_signal_handlers(sleeper: subprocess.Popen[bytes]) -> None:
    code = "import signal, time; signal.signal(10, print); print('on', flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert is_caught(process.pid, signal.SIGUSR1)
        assert not is_caught(sleeper.pid, signal.SIGUSR1)
        process.kill()


def test_signal_goes_to_the_nearest_processes_that_handle_it() -> None:
    """A launcher without a handler would be ended; a forked worker has the handler of its parent."""
    code = (
        # The signal may come while `print` is at work, which cannot be called again then.
        "import os, signal, time; signal.signal(10, lambda *_: os.write(1, b'got it %d\\n' % os.getpid())); "
        "parent = os.getpid(); os.fork() == 0 or print('on', flush=True); \n"
        "while True: time.sleep(60)"
    )
    argv = ["sh", "-c", f'{sys.executable} -c "$0"; true', code]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, start_new_session=True) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            assert signal_handlers(process.pid, signal.SIGUSR1)
            said = process.stdout.readline().split()
            assert said[:2] == [b"got", b"it"]
            assert read_stat(int(said[2])).parent == process.pid
            assert not signal_handlers(process.pid, signal.SIGUSR2)
            assert process.poll() is None
        finally:
            os.killpg(process.pid, signal.SIGKILL)
        assert process.stdout.read() == b"", "one process got it"


@pytest.mark.core
def test_descendants_are_searched_only_if_the_guard_has_siblings() -> None:
    code = (
        "import os, subprocess, sys\nfrom ipexctl.node.run.rank import rank_processes as ours\nguard = ours.Guard()\n"
    )
    code += "print(ours.has_children(guard.pid))\n"
    code += "orphan = subprocess.Popen(['sh', '-c', 'sleep 600 & echo $!'], stdout=subprocess.PIPE)\n"
    code += "pid = int(orphan.stdout.readline())\norphan.wait()\nprint(ours.has_children(guard.pid))\n"
    code += "print(ours.end_descendants(guard.pid) == [pid], ours.has_children(guard.pid))\nguard.dismiss()\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines() == ["False", "True", "True False"]


@pytest.mark.parametrize("policy", [os.SCHED_IDLE, os.SCHED_OTHER | 0x40000000])
def test_scheduling_policy_of_the_caller_is_kept(monkeypatch: pytest.MonkeyPatch, policy: int) -> None:
    """The second is SCHED_OTHER that children don't inherit."""
    monkeypatch.setattr(os, "sched_getscheduler", lambda _: policy)
    monkeypatch.setattr(os, "sched_setscheduler", lambda *_: pytest.fail("it was changed"))
    mismatches: list[str] = []
    with bind_as_planned(RankPlan(0, 0, "node1", (), 1, batch=True), mismatches):
        pass
    assert mismatches == []


@pytest.mark.parametrize("refused", ["sched_getscheduler", "sched_setscheduler"])
def test_rank_starts_if_scheduling_policies_are_refused(monkeypatch: pytest.MonkeyPatch, refused: str) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "sched_getscheduler", lambda _: os.SCHED_OTHER)
    monkeypatch.setattr(os, refused, refuse)
    for batch in (True, False):
        mismatches: list[str] = []
        with bind_as_planned(RankPlan(0, 0, "node1", (), 1, batch=batch), mismatches):
            pass
        assert [missing(text, "SCHED_BATCH Operation not permitted") for text in mismatches] == [[]] * batch


def test_kernel_that_cannot_prefer_several_nodes_lets_the_first_write_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for kernels before 5.15, which answer EINVAL to MPOL_PREFERRED_MANY; and for a node without memory."""
    modes: list[int] = []

    def answer(_number: object, mode: ctypes.c_int, *_: object) -> int:
        modes.append(mode.value)
        ctypes.set_errno(errno.EINVAL)
        return -1 if mode.value else 0

    monkeypatch.setattr(processes, "_libc", SimpleNamespace(syscall=answer))
    told: dict[tuple[int, ...], list[str]] = {(1, 2): [], (3, 4): [], (1,): []}
    for nodes, mismatches in told.items():
        with bind_as_planned(RankPlan(0, 0, "node1", (), 1, memory=nodes), mismatches):
            pass
    assert modes == [5, 0, 5, 0, 1, 0]
    assert told[1, 2] == told[3, 4], "equal texts are told once per host"
    assert [missing(told[nodes][0], words) for nodes, words in (((1, 2), "several NUMA"), ((1,), "1 Invalid"))] == [
        [],
        [],
    ]


def test_memory_of_a_node_that_exists_can_be_preferred() -> None:
    mismatches: list[str] = []
    with bind_as_planned(RankPlan(0, 0, "node1", (), 1, memory=(0,)), mismatches):
        pass
    assert mismatches == []


NUMA_MAPS = """\
55d0 prefer:1 file=/usr/bin/python3.11 mapped=90000 N0=90000 kernelpagesize_kB=4
55d1 prefer:1 heap anon=20480 dirty=20480 active=0 N0={far} N1={near} kernelpagesize_kB=4
7f00 prefer:1 huge anon=16 dirty=16 N1=16 kernelpagesize_kB=2048
7f01 interleave:0-1 anon=60000 dirty=60000 N0=60000 kernelpagesize_kB=4
7f02 default anon=60000 dirty=60000 N0=60000 kernelpagesize_kB=4
"""


@pytest.mark.parametrize(
    ("far", "near", "said"),
    [
        (20480, 0, "83.9 MB of its 117.4 MB on NUMA node 0 instead of 1, 2.0 GB"),
        (16384, 40961, ""),
        (16384, 40960, "67.1 MB of its 268.4 MB"),
        (16383, 0, ""),
        (16384, 8192, "67.1 MB of its 134.2 MB"),
    ],
)
def test_memory_that_is_not_on_the_planned_node_is_told_of_a_quarter_and_64_mib(
    monkeypatch: pytest.MonkeyPatch, far: int, near: int, said: str
) -> None:
    """A stand-in for a machine with two NUMA nodes; tests/machines has one with a real kernel."""
    texts = {"/proc/7/numa_maps": NUMA_MAPS.format(far=far, near=near)}
    texts["/sys/devices/system/node/node1/meminfo"] = "Node 1 MemTotal: 4000 kB\nNode 1 MemFree:  1953125 kB\n"
    monkeypatch.setattr(processes, "read_text", lambda path: texts.get(path, ""))
    text = processes.describe_far_memory([7, 8], (1,))
    assert (bool(text), missing(text, said)) == (bool(said), [])


def test_memory_of_this_machine_is_near() -> None:
    assert processes.describe_far_memory([os.getpid()], (0,)) == ""


def test_intel_openmp_files_of_workers_that_have_ended_are_removed(
    sleeper: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the rank runs: a data loader may start workers for days."""
    monkeypatch.setattr(processes, "OPENMP_DIRECTORY", str(tmp_path))
    files = OpenmpFiles()
    worker = subprocess.Popen(["sleep", "60"])
    paths = [tmp_path / f"__KMP_REGISTERED_LIB_{pid}_{os.getuid()}" for pid in (sleeper.pid, worker.pid)]
    for path in paths:
        path.touch()
    files.update([sleeper.pid, worker.pid])
    files.update([sleeper.pid])
    assert sorted(tmp_path.iterdir()) == sorted(paths), "it still runs"
    worker.kill()
    worker.wait()
    files.update([sleeper.pid])
    assert list(tmp_path.iterdir()) == paths[:1]


SPIN = "import os, sys; os.sched_setaffinity(0, {int(sys.argv[1])}); print(flush=True)\nwhile True: pass"


@pytest.fixture
def started() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def spin(stack: ExitStack, core: int, **variables: str) -> int:
    process = stack.enter_context(
        subprocess.Popen(
            [sys.executable, "-c", SPIN, str(core)], stdout=subprocess.PIPE, env={**os.environ, **variables}
        )
    )
    stack.callback(process.kill)
    assert process.stdout is not None
    process.stdout.readline()
    return process.pid


@pytest.mark.core
def test_look_names_the_process_that_disturbs_and_no_other_rank_as_such(
    started: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slow_rank, "LEAST_SHARE", 0.001)  # other tests use the processor, too
    monkeypatch.setattr(slow_rank, "MOST_OTHERS", 1000)
    monkeypatch.setattr(slow_rank, "MOST_CANDIDATES", 1000)
    core = min(os.sched_getaffinity(0))
    rank = spin(started, core, IPEXCTL_RUN="train-1")
    hog = spin(started, core)
    mate = spin(started, core, IPEXCTL_RUN="train-1")
    found = inspect_suspect({"home": "/nowhere", "id": "train-1", "pid": rank}, None)
    others = {process.pid: process for process in found.others}
    assert (others[hog].is_of_run, others[mate].is_of_run) == (False, True)
    assert others[hog].command
    assert rank not in others


def test_a_process_that_is_no_rank_of_the_run_is_not_looked_at(started: ExitStack) -> None:
    other = spin(started, min(os.sched_getaffinity(0)), IPEXCTL_RUN="train-2")
    with pytest.raises(AgentError):
        inspect_suspect({"home": "/nowhere", "id": "train-1", "pid": other}, None)


WAITS_FOR_A_PROCESSOR = """
import time
began = time.monotonic()
while time.monotonic() - began - time.process_time() < 1.5: pass
"""


def test_time_without_a_processor_does_not_count_as_a_programs_own() -> None:
    delays, spin = Delays(), [sys.executable, "-c", "while True: pass"]
    busy = [subprocess.Popen(spin) for _ in range(4 * (os.cpu_count() or 1))]
    try:
        delays.seconds()
        time.sleep(2)
        assert delays.seconds() > 0.5  # three of four wait at any time
        slow = Child([sys.executable, "-c", WAITS_FOR_A_PROCESSOR], dict(os.environ))
        assert watch([slow], 1.0)
    finally:
        for process in busy:
            process.kill()
            process.wait()
    hung = Child(["sleep", "30"], dict(os.environ))
    began = time.monotonic()
    assert not watch([hung], 0.5)
    assert time.monotonic() - began < 15
