"""The processes of a rank: binds them to cores, sets their niceness, measures them, and ends all of them and no others.

A host that lacks what was planned gets a note, not a failure. Processes are never found by name: they are descendants
of the wrapper, which adopts orphans, or of the command's session. None outlives the rank: if the wrapper is killed, the
kernel kills the command with it, and `Guard`, its own process, the rest of the session.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from typing import TYPE_CHECKING, Any, Callable, Collection, Iterator

from ipexctl.node.common.clock import Countdown, Stopwatch, wait_until
from ipexctl.node.common.processes import (
    ProcessStat,
    all_processes,
    end_with_parent,
    is_caught,
    is_running,
    read_stat,
    read_text,
)

if TYPE_CHECKING:
    from ipexctl.node.common.environ import ProcessLimits
    from ipexctl.node.common.plan import RankPlan

_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237}
_PREFERRED, _PREFERRED_MANY = 1, 5
_SUBREAPER = 36
OPENMP_DIRECTORY = "/dev/shm"  # noqa: S108
_libc: Any = ctypes.CDLL(None, use_errno=True)
_libc.prctl.argtypes = [ctypes.c_int, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong]


def _set_memory(nodes: list[int]) -> str:
    """Prefer memory of these NUMA nodes; an empty list resets that. Returns an error text."""
    machine = os.uname().machine
    number = _SET_MEMPOLICY.get(machine)
    if number is None:
        return f"memory can't be bound on {machine}" if nodes else ""
    mask = 0
    for node in nodes:
        mask |= 1 << node
    length = mask.bit_length() // 64 + 1
    array = (ctypes.c_ulong * length)(*((mask >> (64 * index)) & (2**64 - 1) for index in range(length)))
    mode = 0 if not nodes else _PREFERRED if len(nodes) == 1 else _PREFERRED_MANY
    pointer = ctypes.cast(array, ctypes.c_void_p) if nodes else None
    ctypes.set_errno(0)
    if _libc.syscall(
        ctypes.c_long(number), ctypes.c_int(mode), pointer, ctypes.c_ulong(length * 64 + 1 if nodes else 0)
    ):
        return f"memory of NUMA node {','.join(map(str, nodes))}: {os.strerror(ctypes.get_errno())}"
    return ""


@contextlib.contextmanager
def bound(plan: RankPlan, mismatches: list[str]) -> Iterator[None]:
    """Processes started inside inherit the planned cores, memory and policy; differences are added to `mismatches`."""
    before = os.sched_getaffinity(0)
    batch = False
    cores, nodes = set(plan.cores), list(plan.memory)
    if cores:
        try:
            os.sched_setaffinity(0, cores)
        except (OSError, ValueError, OverflowError):
            mismatches.append(f"none of the planned cores {_list(cores)} may be used here; it runs on {_list(before)}")
        else:
            got = os.sched_getaffinity(0)
            if got != cores:
                mismatches.append(f"of the planned cores {_list(cores)} only {_list(got)} may be used here")
    if nodes:
        wrong = _set_memory(nodes)
        if wrong:
            mismatches.append(wrong)
    if plan.batch:
        try:
            if os.sched_getscheduler(0) == os.SCHED_OTHER:  # another policy was chosen for the whole run
                os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
                batch = True
        except OSError as error:
            mismatches.append(f"its threads interrupt each other, as SCHED_BATCH is refused here: {error.strerror}")
    try:
        yield
    finally:
        if batch:
            with contextlib.suppress(OSError):
                os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        if nodes:
            _set_memory([])
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, before)


def prepare_child(nice: int, limits: ProcessLimits) -> Callable[[], None]:
    """A preexec_fn for a rank's command: settings that the wrapper itself must not have.

    An account may raise its niceness and never lower it again: the wrapper would answer the supervisor late. With the
    limits of a setup file the wrapper might fail, so the child sets these last.
    """
    die_with_wrapper = end_with_parent(signal.SIGKILL)

    def prepare() -> None:
        die_with_wrapper()
        if nice > os.getpriority(os.PRIO_PROCESS, 0):  # a login may have a higher one
            os.setpriority(os.PRIO_PROCESS, 0, nice)
        limits.apply()

    return prepare


def _list(cores: Any) -> str:
    return ",".join(map(str, sorted(cores)))


def process_state(pid: int) -> tuple[str | None, str | None]:
    """State of a process (R, S, D …), and the kernel function it waits in, if known."""
    try:
        return read_stat(pid).state, waiting_in(pid) or None
    except OSError:
        return None, None


def waiting_in(pid: int) -> str:
    wchan = read_text(f"/proc/{pid}/wchan").strip()
    return "" if wchan == "0" else wchan


def descendants(pid: int, except_pid: int | None = None) -> list[ProcessStat]:
    """Living descendants of a process, children after their parents, except one child and its descendants."""
    children: dict[int, list[ProcessStat]] = {}
    for stat in sorted(all_processes(), key=lambda stat: (stat.start, stat.pid)):
        if stat.pid != except_pid:
            children.setdefault(stat.parent, []).append(stat)
    found = list(children.get(pid, ()))
    for stat in found:
        found += children.get(stat.pid, ())
    return [stat for stat in found if stat.is_alive]


def has_children(except_pid: int) -> bool:
    """True if this process has another child (orphaned descendants count), or if the kernel has no such files."""
    children: list[str] = []
    try:
        for thread in os.listdir("/proc/self/task"):
            with open(f"/proc/self/task/{thread}/children", encoding="ascii") as file:
                children += file.read().split()
    except OSError:
        return True
    return children != [str(except_pid)]


def signal_descendants(number: int, except_pid: int) -> list[int]:
    victims = [stat.pid for stat in descendants(os.getpid(), except_pid)]
    for pid in victims:
        with contextlib.suppress(OSError):
            os.kill(pid, number)
    return victims


def signal_handlers(pid: int, number: int) -> bool:
    """Send a signal to a process or, if it has no handler, to its nearest descendants that have one.

    Without a handler, most signals end a process. A forked worker has its parent's handler.
    """
    if is_caught(pid, number):
        with contextlib.suppress(OSError):
            os.kill(pid, number)
        return True
    answers = [signal_handlers(stat.pid, number) for stat in descendants(pid) if stat.parent == pid]
    return any(answers)


def end_descendants(except_pid: int, grace: float = 0.5) -> list[int]:
    if not has_children(except_pid):  # reading all processes of a node with many ranks takes long
        return []
    whole, is_term = Countdown(grace + 1.0), Countdown(grace)
    victims = signal_descendants(signal.SIGTERM, except_pid)
    left = len(victims)
    while left and not whole.is_over:
        time.sleep(0.02)
        list(reap())
        if not is_term.is_over:
            left = len(descendants(os.getpid(), except_pid))
        else:
            left = len(signal_descendants(signal.SIGKILL, except_pid))
    list(reap())
    return victims


def reap() -> Iterator[tuple[int, int, int]]:
    """Exited children, including orphans of the command: pid, status, and peak memory in bytes."""
    while True:
        try:
            pid, status, usage = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        yield pid, status, usage.ru_maxrss << 10


class Usage:
    def __init__(self, pid: int) -> None:
        self.pids = {pid}
        self._pid = pid
        self._seconds = 0.0
        self._since = Stopwatch()

    def now(self) -> tuple[float, int]:
        """Percent of one core since the last call, and current bytes."""
        seconds, rss, left = 0.0, 0, [self._pid]
        self.pids = set()
        while left:
            pid = left.pop()
            self.pids.add(pid)
            with contextlib.suppress(OSError, ValueError):
                stat = read_stat(pid)
                seconds += stat.seconds
                rss += stat.rss
                with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
                    left += map(int, file.read().split())
        cpu = 100 * max(0.0, seconds - self._seconds) / max(0.001, self._since.seconds)
        self._seconds = seconds
        self._since.restart()
        return cpu, rss


class OpenmpFiles:
    """Files in /dev/shm by which Intel's OpenMP registers the processes of one rank.

    libiomp5 leaves the file of a killed process, and of every worker of a data loader.
    """

    def __init__(self) -> None:
        self._pids: set[int] = set()

    def update(self, pids: Collection[int]) -> None:
        """`pids`: the rank's current processes. Files of earlier ones that have exited are removed."""
        ended = {pid for pid in self._pids if pid not in pids and not is_running(pid)}
        self._pids = (self._pids | set(pids)) - ended
        for pid in ended:
            path = f"{OPENMP_DIRECTORY}/__KMP_REGISTERED_LIB_{pid}_{os.getuid()}"
            with contextlib.suppress(OSError):
                if os.lstat(path).st_uid == os.getuid():
                    os.unlink(path)


class Guard:
    """A process that kills the command's session if the wrapper is killed."""

    def __init__(self) -> None:
        _libc.prctl(_SUBREAPER, 1, 0, 0, 0)  # orphans become children of this process
        reader, self._writer = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            try:
                self._watch_parent(reader)
            finally:
                os._exit(0)
        os.close(reader)

    def watch(self, pid: int) -> None:
        os.write(self._writer, b"%d\n" % pid)

    def dismiss(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self._writer, b"dismiss\n")
            os.close(self._writer)
            os.waitpid(self.pid, 0)

    def _watch_parent(self, reader: int) -> None:
        os.setsid()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        for name in os.listdir("/proc/self/fd"):
            if int(name) != reader:  # mpirun waits until no process has its pipes open
                with contextlib.suppress(OSError):
                    os.close(int(name))
        received = b""
        while True:
            data = os.read(reader, 64)
            if not data:
                break
            received += data
        if received and not received.endswith(b"dismiss\n"):
            session = int(received.split()[0])
            files = OpenmpFiles()
            files.update([session])

            def has_ended() -> bool:
                left = [stat.pid for stat in all_processes() if stat.session == session and stat.is_alive]
                files.update(left)
                for pid in left:
                    with contextlib.suppress(OSError):
                        os.kill(pid, signal.SIGKILL)
                return not left

            wait_until(has_ended, 1.0, 0.02)
