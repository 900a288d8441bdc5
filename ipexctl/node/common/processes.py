"""Processes: status from /proc, whether a recorded process is still running, and children that exit with their parent.

What a sandbox or an old kernel lacks makes an answer weaker, not an error.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import resource
import signal
from typing import Any, Callable, Collection, Iterator, NamedTuple

from ipexctl.node.common import macos
from ipexctl.node.common.clock import Stopwatch, age_of

_TICKS = os.sysconf("SC_CLK_TCK")
_DAY = 86400.0
_PAGE = os.sysconf("SC_PAGE_SIZE")
_PR_SET_CHILD_SUBREAPER = 36
_PDEATHSIG = 1
SHARED_WEIGHTS = "/memfd:ipexctl-weights"
"""In /proc/PID/maps: frozen parameters of which the ranks of a host have one copy (`inrank/shared_weights.py`)."""
_FEW_SHARED = 64 << 20
"""Bytes of shared memory up to which it is not looked at which part are frozen parameters."""
_SIZE = re.compile(r"^Rss(\w+):\s*([0-9]+) kB$", re.MULTILINE)


class ProcessStat(NamedTuple):
    pid: int
    state: str
    parent: int
    session: int
    seconds: float
    """CPU time, user plus system."""
    start: int
    """Kernel ticks since boot. A reused pid has another start."""
    rss: int
    """Bytes."""
    faults: int = 0
    """Page faults that read from a disk."""

    @property
    def is_alive(self) -> bool:
        """False for a zombie."""
        return self.state not in "ZX"


class ProcessIdentity(NamedTuple):
    """A recorded process, recognizable although pids are reused and another machine with the same home may read the
    record."""

    pid: int
    start: int | None = None
    machine: str | None = None
    """Hostname; None (this machine) in older records."""
    boot: str | None = None
    """The kernel's boot id, because hostnames may repeat."""

    @property
    def is_of_this_machine(self) -> bool:
        """True if the record names this machine, by its hostname, or none."""
        return self.machine in (None, os.uname().nodename)

    @property
    def is_alive(self) -> bool:
        """True if the process is running on this machine and was recorded since its last boot."""
        if not self.is_of_this_machine or self.boot not in (None, boot_id()):
            return False
        try:
            return start_of(self.pid) == self.start
        except OSError:
            return False

    @property
    def is_gone(self) -> bool:
        """True if the process is known to have exited, which is never known on another machine."""
        return self.is_of_this_machine and not self.is_alive

    @property
    def was_before_restart(self) -> bool:
        """True if this machine, or its container, has been started again since the process was recorded."""
        if not self.is_of_this_machine or not self.pid:
            return False
        if self.boot not in (None, boot_id()):
            return True
        try:
            return self.start is not None and start_of(1) > self.start
        except OSError:
            return False

    def send_signal(self, number: int) -> bool:
        """Send a signal; returns False if the process is not on this machine. Raises an OSError if this account may
        not."""
        try:
            handle = os.pidfd_open(self.pid)  # type: ignore[attr-defined, unused-ignore]
        except ProcessLookupError:
            return False
        except (AttributeError, OSError):  # Python 3.8, a kernel before 5.3, a sandbox: only the pid can be used
            if not self.is_alive:
                return False
            os.kill(self.pid, number)
            return True
        try:
            if not self.is_alive:
                return False
            signal.pidfd_send_signal(handle, number)
        except ProcessLookupError:
            return False
        finally:
            os.close(handle)
        return True


def read_text(path: str) -> str:
    """Return the text of a file, as of /proc; empty if it can't be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def read_stat(pid: int, proc: str = "/proc") -> ProcessStat:
    """Return the status of a process, also of a zombie. Raises an OSError if it is gone."""
    with open(f"{proc}/{pid}/stat", "rb") as file:
        data = file.read()
    try:
        fields = data.rpartition(b")")[2].split()
        seconds = (int(fields[11]) + int(fields[12])) / _TICKS
        start, rss, faults = int(fields[19]), int(fields[21]) * _PAGE, int(fields[9])
        state, parent, session = fields[0].decode(), int(fields[1]), int(fields[3])
        return ProcessStat(pid, state, parent, session, seconds, start, rss, faults)
    except (ValueError, IndexError):
        raise ProcessLookupError(0, f"process {pid} has no status") from None


def memory_of(stat: ProcessStat, sharers: int = 1, proc: str = "/proc") -> int:
    """Return the bytes of a process of a rank. Mapped files and frozen parameters are shared by the `sharers` ranks of
    a host, so each has its part of them."""
    sizes = dict(_SIZE.findall(read_text(f"{proc}/{stat.pid}/status")))
    if "Anon" not in sizes:  # a kernel before 4.5
        return stat.rss
    own, files, shared = (int(sizes.get(name, 0)) << 10 for name in ("Anon", "File", "Shmem"))
    weights = 0
    if shared > _FEW_SHARED:
        lines = read_text(f"{proc}/{stat.pid}/maps").splitlines()
        spans = [line.split(None, 1)[0].split("-") for line in lines if SHARED_WEIGHTS in line]
        weights = min(shared, sum(int(last, 16) - int(first, 16) for first, last in spans))
    return own + shared - weights + (files + weights) // sharers


def start_of(pid: int) -> int:
    """Return the start of a process: ticks since boot, on a Mac seconds since the epoch. Raises an OSError if the
    process has exited."""
    if not macos.has_proc():
        return macos.process_start(pid)
    stat = read_stat(pid)
    if not stat.is_alive:
        raise ProcessLookupError(0, f"process {pid} has exited")
    return stat.start


def all_processes() -> list[ProcessStat]:
    """Return the status of all processes that this one can see, zombies included."""
    stats = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                stats.append(read_stat(int(name)))
    return stats


def descendants(pid: int, except_pid: int | None = None) -> list[ProcessStat]:
    """Return the running descendants of a process, parents before children, without `except_pid` and its
    descendants."""
    children: dict[int, list[ProcessStat]] = {}
    for stat in sorted(all_processes(), key=lambda stat: (stat.start, stat.pid)):
        if stat.pid != except_pid:
            children.setdefault(stat.parent, []).append(stat)
    below = list(children.get(pid, ()))
    for stat in below:
        below += children.get(stat.pid, ())
    return [stat for stat in below if stat.is_alive]


class Delays:
    """Time in which what this process started was kept waiting by others: for a processor, or while it read a disk."""

    def __init__(self) -> None:
        self._lap = Stopwatch()
        self._before: dict[int, tuple[float, int]] = {}

    def seconds(self) -> float:
        """Return how long the process that waited longest was kept waiting since the last call."""
        passed, before = self._lap.seconds, self._before
        self._lap.restart()
        self._before = {stat.pid: _delay_of(stat.pid) for stat in descendants(os.getpid())} if macos.has_proc() else {}
        waited = 0.0
        for pid, (delay, read) in self._before.items():
            had_waited, had_read = before.get(pid, (0.0, 0))
            waited = max(waited, passed if read > had_read else delay - had_waited)
        return min(passed, waited)


def _delay_of(pid: int | str) -> tuple[float, int]:
    """Return the seconds in the queue for a processor, and the bytes read from disks; zero where the kernel does not
    tell."""
    queued, read = (
        read_text(f"/proc/{pid}/schedstat").split(),
        re.search(r"read_bytes: (\d+)", read_text(f"/proc/{pid}/io")),
    )
    return (int(queued[1]) / 1e9 if len(queued) > 1 else 0.0), int(read[1]) if read else 0


def seconds_queued() -> float:
    """Return the seconds that the threads of this process have waited for a processor; zero where the kernel does not
    tell."""
    with contextlib.suppress(OSError):
        return sum(_delay_of(f"self/task/{thread}")[0] for thread in os.listdir("/proc/self/task"))
    return 0.0


def kill_sessions(leaders: Collection[int]) -> None:
    """Kill the process groups that these processes lead, then every process in the sessions that they lead."""
    for pid in leaders:
        with contextlib.suppress(OSError):
            os.killpg(pid, signal.SIGKILL)
    for stat in all_processes():
        if stat.session in leaders:
            with contextlib.suppress(OSError):
                os.kill(stat.pid, signal.SIGKILL)


def command_lines(*more: str) -> Iterator[tuple[int, bytes]]:
    """Yield pid and command line of every other process that this account may look at. `more`: further files of
    /proc/PID, such as `environ`, which are yielded likewise."""
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            for kind in ("cmdline", *more):
                with contextlib.suppress(OSError), open(f"/proc/{name}/{kind}", "rb") as file:
                    yield int(name), file.read()


def allow_many_files(maximum: int = 1 << 16) -> None:
    """Raise this process's limit of open files to `maximum`, or as far as the system lets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for target in macos.file_limits(maximum, -1 if hard == resource.RLIM_INFINITY else hard):
        if soft < target:
            with contextlib.suppress(ValueError, OSError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
                return


def own_identity() -> ProcessIdentity:
    """Return by which other processes recognize this one."""
    return ProcessIdentity(os.getpid(), start_of(os.getpid()), os.uname().nodename, boot_id())


def pid_scope() -> str:
    """Return the kernel and pid namespace in which this process's pid is valid, or the hostname if /proc hides them."""
    boot = boot_id()
    try:
        return f"{boot}-{os.stat('/proc/self/ns/pid').st_ino}" if boot else os.uname().nodename
    except OSError:
        return os.uname().nodename


def partial_name(prefix: str) -> str:
    """Return a new name for a file that this process is writing, in a directory that machines may share."""
    return f"{prefix}.{pid_scope()}.{os.getpid()}.{os.urandom(4).hex()}.part"


def is_partial_in_use(path: str) -> bool:
    """True if the process that writes the file is running, or is on another machine and wrote within a day."""
    scope, _, pid = os.path.basename(path).rpartition(".part")[0].rpartition(".")[0].rpartition(".")
    try:
        if scope.endswith(f".{pid_scope()}"):
            return is_running(int(pid))
        return age_of(path) < _DAY
    except (OSError, ValueError):
        return False


def is_running(pid: int) -> bool:
    """Return True if a process has this pid. A zombie does not count."""
    try:
        start_of(pid)
    except OSError:
        return False
    return True


def has_exited(pid: int, start: int, scope: str) -> bool:
    """True if the process is known to have exited, which is never known of one in another `pid_scope`."""
    try:
        return scope == pid_scope() and start_of(pid) != start
    except OSError:
        return True


def boot_id() -> str | None:
    """Return the kernel's id of this boot; None where the kernel does not tell."""
    return read_text("/proc/sys/kernel/random/boot_id").strip() or None


def is_caught(pid: int, number: int) -> bool:
    """True if the process has a handler for the signal; without one, many signals would kill it."""
    return is_in_mask(pid, "SigCgt", number)


def is_in_mask(pid: int, mask: str, number: int) -> bool:
    """True if a signal is in a mask of /proc/PID/status: SigCgt (caught), ShdPnd (pending) …"""
    for line in read_text(f"/proc/{pid}/status").splitlines():
        name, _, value = line.partition(":")
        if name == mask:
            return bool(int(value, 16) >> (number - 1) & 1)
    return False


@functools.lru_cache(maxsize=None)
def _prctl() -> Any:
    try:
        import ctypes

        return ctypes.CDLL(None).prctl
    except (ImportError, OSError, AttributeError):  # a Python without ctypes, or no Linux
        return None


def adopt_descendants() -> bool:
    """Become the parent of orphaned descendants. Return False if the kernel can't do that."""
    prctl = _prctl()
    return prctl is not None and prctl(_PR_SET_CHILD_SUBREAPER, 1) == 0


def end_with_parent(number: int) -> Callable[[], None]:
    """Return a preexec_fn that has the kernel send this signal to the child when the starting thread exits."""
    prctl = _prctl()  # nothing may be imported between fork and exec

    def set_signal() -> None:
        if prctl is not None:
            prctl(_PDEATHSIG, int(number))

    return set_signal
