"""Stack dumps of a rank's Python processes, and the notes that these processes send when an exception ends them.

Stacks come from py-spy, if the environment has it and it is permitted, or from the process itself, on an otherwise
unused signal (`rank_hooks.py`). Only processes with a handler get the signal, because it would kill others.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
from typing import TYPE_CHECKING, Iterator, Sequence, Tuple

from ipexctl.node.common.clock import Countdown, Stopwatch, wait_until
from ipexctl.node.common.processes import (
    ProcessIdentity,
    ProcessStat,
    descendants,
    is_caught,
    is_in_mask,
    read_stat,
    read_text,
)
from ipexctl.node.run.rank import rank_processes as processes

if TYPE_CHECKING:
    from ipexctl.node.common.answer import Json

SIGNAL, NAME = 61, "ipexctl-stacks"
"""As in `rank_hooks.py`."""
SHARED_NAME, WAITS_FOR = "memfd:ipexctl-allreduce", 128
"""As in `inrank/segment.py`: name of the all-reduce memory, and offset of 1 + the number of the awaited rank."""
REPLY_TIME = 2.0
SETTLE_TIME = 0.5
"""A dump counts as complete after this many seconds without new data."""
PY_SPY_TIME = 4.0
MAX_PROCESS_TEXT = 1 << 17
MAX_RANK_TEXT = 1 << 20
MAX_PROCESSES = 64
Raised = Tuple[ProcessIdentity, int, str, str]
"""A process that an uncaught exception is ending, its future exit code, a description of the exception, and its place
(`rank_hooks.describe_place`). With code 0 there is no exception: the text is a fact, such as `fact read weights.bin` or
`child 4711 -9`, or says that the command's script has ended (`left`)."""


class ProcessStacks:
    """The stacks of one rank. Call `poll` whenever `reader` is readable."""

    def __init__(self, rundir: str, command: Sequence[str]) -> None:
        self.reader, self._writer = os.pipe()
        os.set_blocking(self.reader, False)
        os.set_blocking(self._writer, False)
        self.is_dumping = False
        self._hooks_directory = os.path.join(rundir, "hooks")
        self._bin = os.path.dirname(command[0]) if command else ""
        self._path = ""
        self._pid = 0
        self._partial_line = b""
        self._requests: list[str] = []
        self._replies: list[list[Json]] = []

    def prepare(self, environ: dict[str, str]) -> dict[str, str]:
        """Return the environment with the hooks first on PYTHONPATH; unchanged with IPEXCTL_HOOKS=off, or if the hooks
        can't be on a path."""
        self._path = os.pathsep.join(filter(None, (self._bin, environ.get("PATH"))))
        if (
            environ.get("IPEXCTL_HOOKS") == "off"
            or ":" in self._hooks_directory
            or not os.path.isdir(self._hooks_directory)
        ):
            return environ
        os.set_inheritable(self._writer, True)
        before = environ.get("PYTHONPATH")
        path = f"{self._hooks_directory}:{before}" if before else self._hooks_directory
        return {**environ, "PYTHONPATH": path, "IPEXCTL_NOTES": f"{self._writer}:{os.fstat(self._writer).st_ino}"}

    def set_pid(self, pid: int) -> None:
        """Note the pid of the command, once it is started."""
        self._pid = pid

    def poll(self) -> tuple[list[Json], list[Raised]]:
        """Return finished dumps as messages, and what Pythons of the command have noted about their end. Does not
        wait."""
        try:
            data = os.read(self.reader, 1 << 16)
        except BlockingIOError:
            data = b""
        *lines, self._partial_line = (self._partial_line + data).split(b"\n")
        raised = [note for line in lines if line for note in self._read_note(line.decode(errors="replace"))]
        messages: list[Json] = []
        if self._replies:
            messages = self._replies.pop()
            self.is_dumping = False
            self._start_dump()
        return messages, raised

    def _read_note(self, line: str) -> Iterator[Raised]:
        pid, code, text = [*line.split(" ", 2), "", ""][:3]
        has_ended = code == "0" and pid == str(self._pid)
        is_told = code.isdigit() and (int(code) or text.startswith("fact "))
        if has_ended or (pid.isdigit() and is_told and self._is_of_command(int(pid))):
            with contextlib.suppress(OSError):
                text, _, place = text.rpartition("\t") if "\t" in text else (text, "", "")
                yield ProcessIdentity(int(pid), read_stat(int(pid)).start), int(code), text, place

    def _is_of_command(self, pid: int) -> bool:
        """True for the command itself, or a Python that its shell script started; not for a child of another Python."""
        for _ in range(64):
            if pid == self._pid:
                return True
            try:
                pid = read_stat(pid).parent
            except OSError:
                return False
            if is_python(pid):
                return False
        return False

    def dump(self, id: str) -> None:  # noqa: A002
        """Ask for a dump; `poll` returns it later. A request during a dump waits for the next one."""
        self._requests.append(id)
        self._start_dump()

    def _start_dump(self) -> None:
        """Start a dump, unless one is running. It answers all requests made so far."""
        if self._requests and not self.is_dumping:
            self.is_dumping = True
            ids, self._requests = self._requests, []
            threading.Thread(target=self._dump, args=(ids,), daemon=True).start()

    def _dump(self, ids: list[str]) -> None:
        from shutil import which  # 2 ms, and few ranks are dumped

        entries: list[Json] = []
        try:
            spy = which("py-spy", path=self._path) or ""
            command = [stat for stat in descendants(os.getpid()) if stat.pid == self._pid]
            entries = dump_processes([*command, *descendants(self._pid)], spy)
        finally:
            self._replies.append([{"id": id_, "processes": entries} for id_ in ids])
            os.write(self._writer, b"\n")


def is_python(pid: int) -> bool:
    """Return True if the process runs a program named python… or pypy…; False if that can't be read."""
    try:
        name = os.path.basename(os.readlink(f"/proc/{pid}/exe"))
    except OSError:
        return False
    return name.startswith(("python", "pypy"))


def dump_processes(stats: list[ProcessStat], spy: str) -> list[Json]:
    """Return an entry for each Python process, or one for the command if none is a Python."""
    pythons = [stat for stat in stats if is_python(stat.pid)]
    entries = [new_entry(stat) for stat in pythons[:MAX_PROCESSES] or stats[:1]]
    if not pythons:
        for entry in entries:
            entry["why"] = f"{entry['name'] or 'it'} is not a Python process"
        return entries
    countdown = Countdown(PY_SPY_TIME)
    for entry in entries if spy else ():
        entry["text"], entry["why"] = dump_with_py_spy(spy, entry["pid"])
        entry["how"] = "py-spy" if entry["text"] else ""
        if entry["why"] or countdown.is_over:
            break
    dump_with_signal([entry for entry in entries if not entry["text"]])
    room = MAX_RANK_TEXT
    for entry in entries:
        entry["text"] = entry["text"][: min(MAX_PROCESS_TEXT, room)]
        room -= len(entry["text"])
    return entries


def new_entry(stat: ProcessStat) -> Json:
    """Return a dump's entry for a process: its state and what it waits for, without stacks."""
    name, wchan = read_text(f"/proc/{stat.pid}/comm").strip(), processes.read_wait_channel(stat.pid)
    entry: Json = {"pid": stat.pid, "name": name, "state": stat.state, "wchan": wchan, "how": "", "text": "", "why": ""}
    entry["waits_for"] = awaited_rank(stat.pid)
    return entry


def awaited_rank(pid: int) -> int | None:
    """Return the rank that a process waits for in shared memory, which each process group may have; None if it waits
    for none."""
    with contextlib.suppress(OSError):
        for path in find_descriptors(pid, SHARED_NAME):
            with open(path, "rb", buffering=0) as file:
                file.seek(WAITS_FOR)
                number = int.from_bytes(file.read(4), "little")
            if number:
                return number - 1
    return None


def find_descriptors(pid: int, name: str) -> Iterator[str]:
    """Yield the paths in /proc of a process's open files whose names contain `name`."""
    for number in os.listdir(f"/proc/{pid}/fd"):
        path = f"/proc/{pid}/fd/{number}"
        with contextlib.suppress(OSError):
            if name in os.readlink(path):
                yield path


def dump_with_py_spy(spy: str, pid: int) -> tuple[str, str]:
    """Return the process's stacks as JSON, and why there are none; one of the two is empty."""
    argv = [spy, "dump", "--nonblocking", "--json", "--pid", str(pid)]
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=PY_SPY_TIME, check=False)
    except subprocess.TimeoutExpired:
        return "", f"py-spy took longer than {PY_SPY_TIME:g} s"
    except OSError as error:
        return "", f"py-spy: {error.strerror or error}"
    text = done.stdout.decode(errors="replace")
    if text.lstrip().startswith("["):
        return text, ""
    lines = [line.strip() for line in done.stderr.decode(errors="replace").splitlines() if line.strip()]
    return "", f"py-spy: {lines[0] if lines else 'no output'}"


class SignalDump:
    def __init__(self, entry: Json, path: str) -> None:
        self.entry, self.path = entry, path
        self.start = self.size = os.stat(path).st_size
        self.silence = Stopwatch()

    def is_complete(self) -> bool:
        """True once the main thread's stack is written. It comes last and ends with the script's frame."""
        try:
            with open(self.path, "rb") as file:
                file.seek(self.start)
                data = file.read(MAX_PROCESS_TEXT)
        except OSError:
            return True
        if len(data) != self.size - self.start:
            self.size = self.start + len(data)
            self.silence.restart()
        is_complete = data.endswith(b" in <module>\n") or (bool(data) and self.silence.seconds > SETTLE_TIME)
        if is_complete:
            self.entry.update(text=data.decode(errors="replace"), how="faulthandler", why="")
        return is_complete


def dump_with_signal(entries: list[Json]) -> None:
    """Have each process write its own stacks, and put these, or the reason why there are none, into its entry. Waits up
    to REPLY_TIME."""
    dumps: list[SignalDump] = []
    seen = set()
    for entry in entries:
        reason, path = find_dump_file(entry["pid"])
        if not reason:
            try:
                inode = os.stat(path).st_ino
                dump = SignalDump(entry, path)
                if inode in seen:
                    reason = "it shares its parent's file"
                elif is_in_mask(entry["pid"], "ShdPnd", SIGNAL):
                    reason = "it has not answered an earlier request"
                else:
                    seen.add(inode)
                    os.kill(entry["pid"], SIGNAL)
                    dumps.append(dump)
            except OSError as error:
                reason = error.strerror or str(error)
        entry["why"] = "; ".join(filter(None, [entry["why"], reason]))

    def are_complete() -> bool:
        dumps[:] = [dump for dump in dumps if not dump.is_complete()]
        return not dumps

    wait_until(are_complete, REPLY_TIME, 0.01)
    for dump in dumps:
        dump.entry["why"] = "; ".join(filter(None, [dump.entry["why"], f"it didn't answer within {REPLY_TIME:g} s"]))


def find_dump_file(pid: int) -> tuple[str, str]:
    """Return why the process must not get the signal (or empty), and the file to which it would write."""
    if not is_caught(pid, SIGNAL):
        return "its Python has no hook for stacks (python -I, -E or -S, or it is exiting)", ""
    try:
        path = next(find_descriptors(pid, NAME), "")
        if path:
            return "", path
    except OSError as error:
        return f"its descriptors can't be read: {error.strerror}", ""
    return "it has closed the file for its stacks", ""
