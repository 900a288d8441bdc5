"""What a rank's Pythons tell of themselves: where they are, when asked, and that they are on their way out for good.

Their end of it is `rank_hooks.py`. A stack is py-spy's where the environment has it and may look, else
what the process itself writes when a signal nobody uses tells it to. The signal goes to no process that isn't prepared.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from typing import TYPE_CHECKING, Any, Dict

from ipexctl.node.common.processes import is_caught, is_in_mask, read_stat
from ipexctl.node.run import processes

if TYPE_CHECKING:
    from ipexctl.node.common.processes import ProcessStat

SIGNAL, NAME = 61, "ipexctl-stacks"
"""As in `rank_hooks.py`."""
STUCK = 10.0
"""Seconds for an interpreter to be gone once an exception has reached the top."""
ANSWER = 2.0
"""Seconds for a process to write its stacks."""
SETTLED = 0.5
"""Seconds without another byte until what it writes counts as whole."""
SPY = 4.0
"""Seconds for one call of py-spy."""
LONGEST = 1 << 17
MOST = 1 << 20
"""Characters of one process' stacks, and of all of a rank."""
PROCESSES = 64
Json = Dict[str, Any]


class ProcessStacks:
    """One rank's. What it says comes by `work`, whenever its descriptor can be read."""

    def __init__(self, guard: int, rundir: str, command: list[str]) -> None:
        self.reader, self._writer = os.pipe()
        os.set_blocking(self.reader, False)
        os.set_blocking(self._writer, False)
        self.stuck: Json | None = None
        self._guard = guard
        self._shim = os.path.join(rundir, "shim")
        self._spy = os.path.join(os.path.dirname(command[0]), "py-spy") if command else ""
        self._pid = 0
        self._said = b""
        self._leaving: tuple[ProcessStat, int, str, float] | None = None
        self._asked: list[str] = []
        self._is_asking = False
        self._answers: list[list[Json]] = []

    def prepare(self, environ: dict[str, str]) -> dict[str, str]:
        """The environment with our module in front, unless somebody wants it out: IPEXCTL_SHIM=off."""
        self._spy = self._spy if os.path.isfile(self._spy) else shutil.which("py-spy", path=environ.get("PATH")) or ""
        if environ.get("IPEXCTL_SHIM") == "off" or ":" in self._shim or not os.path.isdir(self._shim):
            return environ
        os.set_inheritable(self._writer, True)
        before = environ.get("PYTHONPATH")
        path = f"{self._shim}:{before}" if before else self._shim
        return {**environ, "PYTHONPATH": path, "IPEXCTL_NOTES": f"{self._writer}:{os.fstat(self._writer).st_ino}"}

    def watch(self, pid: int) -> None:
        self._pid = pid

    def work(self, now: float) -> list[tuple[str, Json]]:
        """What is to be told to the supervisor."""
        try:
            data = os.read(self.reader, 1 << 16)
        except BlockingIOError:
            data = b""
        *lines, self._said = (self._said + data).split(b"\n")
        for line in lines:
            if line:
                self._on_message(line.decode(errors="replace"), now)
        told = []
        if self._answers:
            told += [("stacks", answer) for answer in self._answers.pop()]
            self._is_asking = False
            self._ask()
        if self._is_stuck(now):
            told.append(("stuck", self._take_stuck()))
        return told

    def _on_message(self, line: str, now: float) -> None:
        pid, code, words = [*line.split(" ", 2), "", ""][:3]
        if self._leaving is None and pid.isdigit() and code.isdigit() and self._is_the_command(int(pid)):
            try:
                self._leaving = (read_stat(int(pid)), int(code) or 1, words, now)
            except OSError:
                return

    def _is_the_command(self, pid: int) -> bool:
        """Or a Python that a shell script of the command's has started; not what another Python has."""
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

    def _is_stuck(self, now: float) -> bool:
        if self.stuck is not None or self._leaving is None or now - self._leaving[3] < STUCK:
            return False
        left = self._leaving[0]
        try:
            stat = read_stat(left.pid)
        except OSError:
            stat = None
        if stat is None or stat.start != left.start or not stat.is_alive:
            self._leaving = None  # a script of the shell's goes on without it
            return False
        return True

    def _take_stuck(self) -> Json:
        assert self._leaving is not None
        _, code, words, _ = self._leaving
        self.stuck = {"code": code, "said": words, "seconds": STUCK}
        return self.stuck

    def dump(self, id: str) -> None:  # noqa: A002
        """Ask all Pythons of the command where they are; the answer comes by `work`."""
        self._asked.append(id)
        self._ask()

    def _ask(self) -> None:
        """Once at a time: what a process writes is one answer for all who have asked by then."""
        if self._asked and not self._is_asking:
            self._is_asking = True
            ids, self._asked = self._asked, []
            threading.Thread(target=self._look, args=(ids,), daemon=True).start()

    def _look(self, ids: list[str]) -> None:
        rows: list[Json] = []
        try:
            rows = rows_of(in_order(processes.below(os.getpid(), self._guard), self._pid), self._spy)
        finally:
            self._answers.append([{"id": id_, "processes": rows} for id_ in ids])
            os.write(self._writer, b"\n")


def in_order(stats: list[ProcessStat], first: int) -> list[ProcessStat]:
    """The command and what it has started, parents before their children and the older ones first."""
    children: dict[int, list[ProcessStat]] = {}
    for stat in sorted(stats, key=lambda stat: (stat.start, stat.pid)):
        children.setdefault(stat.parent, []).append(stat)
    found = [stat for stat in stats if stat.pid == first]
    for stat in found:
        found += children.get(stat.pid, [])
    return found


def is_python(pid: int) -> bool:
    try:
        name = os.path.basename(os.readlink(f"/proc/{pid}/exe"))
    except OSError:
        return False
    return name.startswith(("python", "pypy"))


def rows_of(stats: list[ProcessStat], spy: str) -> list[Json]:
    """A row a Python, or one for the command where none of its processes is one."""
    pythons = [stat for stat in stats if is_python(stat.pid)]
    rows = [row_of(stat) for stat in pythons[:PROCESSES] or stats[:1]]
    if not pythons:
        for row in rows:
            row["why"] = f"{row['name'] or 'it'} is no Python"
        return rows
    until = time.monotonic() + SPY
    for row in rows if spy else ():
        row["text"], row["why"] = by_spy(spy, row["pid"])
        row["how"] = "py-spy" if row["text"] else ""
        if row["why"] or time.monotonic() > until:
            break
    by_signal([row for row in rows if not row["text"]])
    room = MOST
    for row in rows:
        row["text"] = row["text"][: min(LONGEST, room)]
        room -= len(row["text"])
    return rows


def row_of(stat: ProcessStat) -> Json:
    name, wchan = (read(f"/proc/{stat.pid}/{each}").strip() for each in ("comm", "wchan"))
    wchan = "" if wchan == "0" else wchan
    return {"pid": stat.pid, "name": name, "state": stat.state, "wchan": wchan, "how": "", "text": "", "why": ""}


def read(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def by_spy(spy: str, pid: int) -> tuple[str, str]:
    """What py-spy says, as JSON, or why it says nothing."""
    words = [spy, "dump", "--nonblocking", "--json", "--pid", str(pid)]
    try:
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=SPY, check=False)
    except subprocess.TimeoutExpired:
        return "", f"py-spy took longer than {SPY:g} s"
    except OSError as error:
        return "", f"py-spy: {error.strerror or error}"
    text = done.stdout.decode(errors="replace")
    if text.lstrip().startswith("["):
        return text, ""
    said = [line.strip() for line in done.stderr.decode(errors="replace").splitlines() if line.strip()]
    return "", f"py-spy: {said[0] if said else 'it said nothing'}"


class Asked:
    """A process that was told to write its stacks, and how far it is."""

    def __init__(self, row: Json, path: str) -> None:
        self.row, self.path = row, path
        self.begun = self.size = os.stat(path).st_size
        self.moved_at = time.monotonic()

    def look(self) -> bool:
        """Whether it has written all of it: the main thread comes last, and ends where the script began."""
        try:
            with open(self.path, "rb") as file:
                file.seek(self.begun)
                data = file.read(LONGEST)
        except OSError:
            return True
        now = time.monotonic()
        if len(data) != self.size - self.begun:
            self.size, self.moved_at = self.begun + len(data), now
        is_whole = data.endswith(b" in <module>\n") or (bool(data) and now - self.moved_at > SETTLED)
        if is_whole:
            self.row.update(text=data.decode(errors="replace"), how="faulthandler", why="")
        return is_whole


def by_signal(rows: list[Json]) -> None:
    asked: list[Asked] = []
    seen = set()
    for row in rows:
        why, path = unprepared(row["pid"])
        if not why:
            try:
                inode = os.stat(path).st_ino
                each = Asked(row, path)
                if inode in seen:
                    why = "it shares its parent's file"
                elif is_in_mask(row["pid"], "ShdPnd", SIGNAL):
                    why = "it hasn't answered since it was asked before"
                else:
                    seen.add(inode)
                    os.kill(row["pid"], SIGNAL)
                    asked.append(each)
            except OSError as error:
                why = error.strerror or str(error)
        row["why"] = "; ".join(filter(None, [row["why"], why]))
    until = time.monotonic() + ANSWER
    while asked and time.monotonic() < until:
        time.sleep(0.01)
        asked = [each for each in asked if not each.look()]
    for each in asked:
        each.row["why"] = "; ".join(filter(None, [each.row["why"], f"it didn't answer within {ANSWER:g} s"]))


def unprepared(pid: int) -> tuple[str, str]:
    """Why the signal must not be sent there, or the file the process would write to."""
    if not is_caught(pid, SIGNAL):
        return "its Python is not prepared for being asked (python -I, -E or -S, or on its way out)", ""
    try:
        for number in os.listdir(f"/proc/{pid}/fd"):
            path = f"/proc/{pid}/fd/{number}"
            try:
                if NAME in os.readlink(path):
                    return "", path
            except OSError:
                continue
    except OSError as error:
        return f"its descriptors can't be read: {error.strerror}", ""
    return "it has closed the file its stacks go to", ""
