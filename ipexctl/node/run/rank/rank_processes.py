"""The processes of a rank: binds them to cores, measures them, and ends them.

What a host lacks becomes a note, not a failure. Processes are never found by name: they are descendants of the wrapper,
which adopts orphans, or belong to the command's session. If the wrapper is killed, the kernel kills the command, and
`Guard` the rest of its session.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import signal
import time
from typing import TYPE_CHECKING, Any, Callable, Collection, Iterator

from ipexctl.node.common.clock import Countdown, Stopwatch, wait_until
from ipexctl.node.common.files import format_size
from ipexctl.node.common.processes import (
    all_processes,
    descendants,
    end_with_parent,
    is_caught,
    is_running,
    memory_of,
    read_stat,
    read_text,
)
from ipexctl.node.common.records import KEEPS_TCP_STORE

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
    """Prefer memory of these NUMA nodes; an empty list resets that. Return why that is impossible, or an empty text.

    If the kernel does not know MPOL_PREFERRED_MANY, its default remains: memory of the thread's own node.
    """
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
        error = ctypes.get_errno()
        if error == errno.EINVAL and len(nodes) > 1:
            return "this kernel can't prefer several NUMA nodes: each page is on the node that first writes it"
        return f"the planned memory of NUMA node {_list(nodes)} may not be used here: {os.strerror(error)}"
    return ""


def describe_far_memory(pids: Collection[int], nodes: Collection[int]) -> str:
    """Return how much memory the processes have on other NUMA nodes than these, which they prefer; empty if that is
    less than a quarter of their memory, or than 64 MB.

    Files do not count, nor memory for which the script has a policy of its own.
    """
    sizes: dict[int, int] = {}
    for line in "".join(read_text(f"/proc/{pid}/numa_maps") for pid in pids).splitlines():
        page = re.findall(r"^\S+ prefer(?!.* file=).* kernelpagesize_kB=(\d+)", line)
        for node, count in re.findall(r" N(\d+)=(\d+)", line) if page else ():
            sizes[int(node)] = sizes.get(int(node), 0) + (int(count) * int(page[0]) << 10)
    far, total = {node: size for node, size in sizes.items() if node not in nodes}, sum(sizes.values())
    if sum(far.values()) < max(64 << 20, total / 4):
        return ""
    texts = (read_text(f"/sys/devices/system/node/node{node}/meminfo") for node in nodes)
    free = sum(int(size) << 10 for text in texts for size in re.findall(r"MemFree: +(\d+) kB", text))
    return (
        f"{format_size(sum(far.values()))} of its {format_size(total)} of memory lay on NUMA node {_list(far)} instead "
        f"of {_list(nodes)}, where {format_size(free)} were free"
    )


@contextlib.contextmanager
def bind_as_planned(plan: RankPlan, mismatches: list[str]) -> Iterator[None]:
    """Set cores, memory and policy for processes started in this context; `mismatches` gets what can't be set."""
    before = os.sched_getaffinity(0)
    batch = False
    cores, nodes = set(plan.cores), list(plan.memory)
    if cores:
        try:
            os.sched_setaffinity(0, cores)
        except (OSError, ValueError, OverflowError):
            mismatches.append(f"the planned cores {_list(cores)} may not be used here; it runs on {_list(before)}")
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
            if os.sched_getscheduler(0) == os.SCHED_OTHER:  # else the user chose a policy for the whole run
                os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
                batch = True
        except OSError as error:
            mismatches.append(f"SCHED_BATCH can't be set here, so its threads interrupt each other: {error.strerror}")
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


def prepare_child(limits: ProcessLimits) -> Callable[[], None]:
    """Return a preexec_fn with settings that the wrapper itself must not have: it might fail with a setup file's
    limits."""
    die_with_wrapper = end_with_parent(signal.SIGKILL)

    def prepare() -> None:
        die_with_wrapper()
        limits.apply()

    return prepare


def _list(cores: Any) -> str:
    return ",".join(map(str, sorted(cores)))


def process_state(pid: int) -> tuple[str | None, str | None]:
    """Return the state of a process (R, S, D …), and the kernel function in which it sleeps; None for what is
    unknown."""
    try:
        return read_stat(pid).state, read_wait_channel(pid) or None
    except OSError:
        return None, None


def read_wait_channel(pid: int) -> str:
    """Return the kernel function in which a process sleeps; empty if it runs or that is unknown.

    For a rank 0 that only keeps its TCP store, return KEEPS_TCP_STORE.
    """
    if read_text(f"/proc/{pid}/comm").strip() == KEEPS_TCP_STORE:
        return KEEPS_TCP_STORE
    wchan = read_text(f"/proc/{pid}/wchan").strip()
    return "" if wchan == "0" else wchan


def has_children(except_pid: int) -> bool:
    """True if this process has another child or adopted orphan, or the kernel does not list children."""
    children: list[str] = []
    try:
        for thread in os.listdir("/proc/self/task"):
            with open(f"/proc/self/task/{thread}/children", encoding="ascii") as file:
                children += file.read().split()
    except OSError:
        return True
    return children != [str(except_pid)]


def daemons(command: int, except_pid: int) -> list[str]:
    """Return the running descendants in a session that the command did not get, such as those of setsid: `tensorboard
    (4711)`."""
    if not has_children(except_pid):
        return []
    own = (os.getsid(0), command)
    left = [stat.pid for stat in descendants(os.getpid(), except_pid) if stat.session not in own]
    names = [(read_text(f"/proc/{pid}/comm").strip(), pid) for pid in left]
    return [f"{name} ({pid})" for name, pid in names if not name.startswith(_SHARES_TENSORS)]


_SHARES_TENSORS = "torch_shm_manag"
"""A daemon of torch, which exits with the processes that share tensors. The kernel keeps 15 letters."""


def signal_descendants(number: int, except_pid: int) -> list[int]:
    """Send a signal to all descendants of this process but `except_pid` and its own, and return their pids."""
    victims = [stat.pid for stat in descendants(os.getpid(), except_pid)]
    for pid in victims:
        with contextlib.suppress(OSError):
            os.kill(pid, number)
    return victims


def lacking_interpreter(script: str) -> str:
    """Return the program that the first line of an existing script names, if that program does not exist; else
    empty."""
    try:
        with open(script, "rb") as file:
            parts = file.readline(4096).partition(b"#!")
    except OSError:
        return ""
    interpreter = os.fsdecode(parts[2].rstrip(b"\n").strip(b" \t").partition(b" ")[0])
    return interpreter if not parts[0] and interpreter and not os.path.exists(interpreter) else ""


def signal_handlers(pid: int, number: int) -> bool:
    """Send a signal to a process or, if it has no handler, to its nearest descendants with one; returns whether there
    was a handler. Without one, most signals kill a process. A forked worker inherits its parent's handler."""
    if is_caught(pid, number):
        with contextlib.suppress(OSError):
            os.kill(pid, number)
        return True
    answers = [signal_handlers(stat.pid, number) for stat in descendants(pid) if stat.parent == pid]
    return any(answers)


def end_descendants(except_pid: int) -> list[int]:
    """End all descendants of this process but `except_pid`: with SIGTERM, half a second later with SIGKILL. Return the
    pids that got SIGTERM.

    After a second and a half, processes that do not end are left alone.
    """
    if not has_children(except_pid):  # reading all processes is slow on a node with many ranks
        return []
    all_time, is_term = Countdown(1.5), Countdown(0.5)
    victims = signal_descendants(signal.SIGTERM, except_pid)
    left = len(victims)
    while left and not all_time.is_over:
        time.sleep(0.02)
        list(reap())
        if not is_term.is_over:
            left = len(descendants(os.getpid(), except_pid))
        else:
            left = len(signal_descendants(signal.SIGKILL, except_pid))
    list(reap())
    return victims


def reap() -> Iterator[tuple[int, int, int, float]]:
    """Yield pid, status, peak memory in bytes and processor time of exited children, including adopted orphans."""
    while True:
        try:
            pid, status, usage = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        yield pid, status, usage.ru_maxrss << 10, usage.ru_utime + usage.ru_stime


class Usage:
    def __init__(self, pid: int, sharers: int) -> None:
        """`sharers`: ranks of the host."""
        self.pids = {pid}
        self._pid, self._sharers = pid, sharers
        self._seconds = 0.0
        self._since = Stopwatch()

    def now(self) -> tuple[float, int]:
        """Return CPU use since the last call, in percent of one core, and current memory in bytes."""
        seconds, memory, left = 0.0, 0, [self._pid]
        self.pids = set()
        while left:
            pid = left.pop()
            self.pids.add(pid)
            with contextlib.suppress(OSError, ValueError):
                stat = read_stat(pid)
                seconds += stat.seconds
                memory += memory_of(stat, self._sharers)
                with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
                    left += map(int, file.read().split())
        cpu = 100 * max(0.0, seconds - self._seconds) / max(0.001, self._since.seconds)
        self._seconds = seconds
        self._since.restart()
        return cpu, memory


class OpenmpFiles:
    """Removes the files in /dev/shm that libiomp5 leaves behind for killed processes and DataLoader workers."""

    def __init__(self) -> None:
        self._pids: set[int] = set()

    def update(self, pids: Collection[int]) -> None:
        """Remove the files of processes that have exited. `pids`: the rank's current processes."""
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
        """Name the session to kill if this process is killed. The last one named counts."""
        os.write(self._writer, b"%d\n" % pid)

    def dismiss(self) -> None:
        """Have the guard exit without killing, and wait for that."""
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
            session = int(received.split()[-1])
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
