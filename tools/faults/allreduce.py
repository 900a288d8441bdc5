"""Rounds of ranks that add gradients up in shared memory, one of which is met by a fault.

Two hosts with a home in common and the real torch. In come a case and a seed's choices: two ranks on each host, or
two to four on one; with `--wire` one or two on each host; the victim; the moment. The rules, besides those of every
run: nobody has the run's memory any more, nothing is left in /dev/shm, and ranks that wait for one that stands still
take no processor time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from agent_helpers import wait_until
from ipexctl.addons.lab.faults import break_host
from ipexctl.node.common.processes import read_stat

from .judge import ExpectedResult
from .play import RunRound
from .rounds import Case, Kind
from .stage import FaultLab, install_torch, new_stage

SCRIPT: Final = Path(__file__).with_name("scripts") / "exchange.py"
MEMORY: Final = "memfd:ipexctl-allreduce"
WITHIN: Final = 15.0
"""Seconds from a fault until no process of the run is left, on a machine that does other work, too."""
STEPS: Final = (6, 400)
"""Where a rank fails by itself; before the first, DDP's ranks agree on its buckets over gloo."""
HANG_AFTER: Final = 8
BURNED: Final = 0.15
"""Seconds of processor time that a rank may take in each second in which it waits."""


@dataclass(frozen=True)
class AllreduceCase(Case):
    fault: str = "none"
    """The FAULT argument of the script."""
    options: tuple[object, ...] = ()
    needs_two_hosts: bool = False
    wire: str = "fp32"


@dataclass
class AllreduceRound(RunRound):
    case: AllreduceCase
    host_count: int = 2
    pids: dict[int, int] = field(default_factory=dict)
    """Rank → the process of its script, as this machine counts."""
    memories: set[int] = field(default_factory=set)

    @property
    def world_size(self) -> int:
        return self.host_count * self.ppn

    @property
    def directory(self) -> str:
        """One that all ranks see."""
        return f"/home/ipex/reduce-{os.getpid()}-{self.number}"

    def play(self) -> None:
        self.host_count = 2 if self.case.needs_two_hosts else self.chance.choice([1, 2])
        self.ppn = 2 if self.host_count == 2 else self.chance.choice([2, 3, 4])
        if self.case.wire != "fp32":
            self.host_count, self.ppn = 2, self.chance.choice([1, 2])
        self.victim = self.chance.randrange(self.world_size)
        self.notes.append(f"rank {self.victim} of {self.world_size} on {self.host_count} hosts")
        self._files_before = shared_files(self.stage)
        self.stage.file("node1", self.directory).mkdir(mode=0o755)
        self.stage.cluster.write("exchange.py", SCRIPT.read_bytes())
        hosts = ("--limit", "node1") if self.host_count == 1 else ()
        options = (*hosts, "--ppn", self.ppn, "--plain", "--wire", self.case.wire, *self.case.options)
        options = (*options, "--oversubscribe")
        if self.ppn > 1:
            options = (*options, "--allreduce", "shared")
        words = (self.directory, self.case.fault, self.victim, self.chance.randrange(*STEPS))
        self.client = self.stage.cluster.begin(*options, "exchange.py", *words)
        self.run = self.client.id
        self._wait_for_steps()
        self.judge_run(self.case.play(self))

    def _wait_for_steps(self) -> None:
        def are_ready() -> bool:
            assert self.client.process.poll() is None, self.client.said()
            return all(b"step" in self.kept(rank, "out") for rank in range(self.world_size))

        wait_until(are_ready, 90, self.client.said)
        found = self.stage.all_processes().items()
        there = {(host, process.inner): process.pid for host, processes in found for process in processes}
        keys = [(self.host_of(rank), row["pid"]) for rank, row in enumerate(self.status["ranks"])]
        self.pids = {rank: there[key] for rank, key in enumerate(keys) if key in there}
        assert self.case.fault != "none" or len(self.pids) == self.world_size, f"{self.pids}: {there}"
        self.memories = {memory for pid in self.pids.values() for memory in memories_of(pid)}
        is_shared = len(self.memories) == self.world_size or len(self.pids) < self.world_size
        assert is_shared, f"not shared: {self.client.said()}"

    def end_training(self) -> None:
        """Let the script end."""
        self.stage.file("node1", f"{self.directory}/enough").touch()

    def send(self, number: signal.Signals, rank: int | None = None) -> None:
        """Send the victim a signal, or another rank."""
        self.died = time.time()
        os.kill(self.pids[self.victim if rank is None else rank], number)

    def signalled(self, number: signal.Signals, rank: int | None = None) -> ExpectedResult:
        rank = self.victim if rank is None else rank
        more = (("signal", int(number)),)
        return ExpectedResult("failed", 128 + number, "signal", rank, self.host_of(rank), more=more, within=WITHIN)

    def check_idle(self) -> None:
        """The others wait for the victim without taking processor time."""
        others = {rank: pid for rank, pid in self.pids.items() if rank != self.victim}
        time.sleep(0.3)
        before = {rank: read_stat(pid).seconds for rank, pid in others.items()}
        time.sleep(1.0)
        burned = {rank: read_stat(pid).seconds - before[rank] for rank, pid in others.items()}
        assert max(burned.values()) <= BURNED, f"ranks that wait took processor time: {burned}"

    def check_dump(self) -> None:
        """A dump says for whom the others on the victim's host wait."""
        found = json.loads(self.call("why", self.run, "--stacks", "--json"))
        waits = {row["rank"]: row["processes"][0]["waits_for"] for row in found["ranks"] if row["processes"]}
        near = [rank for rank in self.pids if rank != self.victim and self.host_of(rank) == self.host]
        assert [waits.get(rank) for rank in near] == [self.victim] * len(near), f"{waits}, not {self.victim}"
        if not near:
            return
        text = self.call("why", self.run, "--stacks")
        # Ranks at the same place share one line: on another host, they may wait for one that waits over gloo.
        assert re.search(rf"waits for ranks? [0-9,-]*\b{self.victim}\b[0-9,-]* in all-reduce", text), text

    def compare_run(self, truth: ExpectedResult) -> None:
        why = self.why()
        assert truth.words in json.dumps(why["lines"]), f"why does not show {truth.words!r}: {why['lines']}"
        if truth.kind == "hang":
            ranks = [rank for place in why["hang"]["causes"] for rank in place["ranks"]] if why["hang"] else None
            assert ranks == [self.victim], f"the hang is {why['hang']}"
        users = [int(name) for name in os.listdir("/proc") if name.isdigit() and memories_of(int(name)) & self.memories]
        assert not users, f"processes {users} still have the memory of the run"
        signs = ("ipexctl", *map(str, self.pids.values()))
        new = shared_files(self.stage) - self._files_before
        assert not [name for name in new if any(sign in name for sign in signs)], f"left in /dev/shm: {new}"


def memories_of(pid: int) -> set[int]:
    """The inodes of the shared memory that a process has open or mapped."""
    found = set()
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines():
            if MEMORY in line:
                found.add(int(line.split()[4]))
    with contextlib.suppress(OSError):
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                if MEMORY in os.readlink(entry.path):
                    found.add(os.stat(entry.path).st_ino)
    return found


def shared_files(stage: FaultLab) -> set[str]:
    """The files in /dev/shm of the hosts."""
    return {f"{root}:{name}" for root in stage.roots.values() for name in os.listdir(root / "dev/shm")}


def _sent(number: signal.Signals) -> Callable[[AllreduceRound], ExpectedResult]:
    def play(context: AllreduceRound) -> ExpectedResult:
        context.pause(0.6)
        context.send(number)
        return context.signalled(number)

    return play


def _two_killed(context: AllreduceRound) -> ExpectedResult:
    """At the same time: one of the two is the first."""
    context.pause(0.6)
    second = (context.victim + 1) % context.world_size
    context.send(signal.SIGKILL)
    context.send(signal.SIGKILL, second)
    first = context.signalled(signal.SIGKILL)
    return dataclasses.replace(first, or_else=(context.signalled(signal.SIGKILL, second),))


def _killed_and_told_late(context: AllreduceRound) -> ExpectedResult:
    """The wrapper of the victim stands still: the others find its end, and raise an error, before it is reported."""
    wrapper = read_stat(context.pids[context.victim]).parent
    context.pause(0.6)
    os.kill(wrapper, signal.SIGSTOP)
    try:
        context.send(signal.SIGKILL)
        context.pause(2.5)
    finally:
        os.kill(wrapper, signal.SIGCONT)
    return context.signalled(signal.SIGKILL)


def _stopped_and_continued(context: AllreduceRound) -> ExpectedResult:
    context.pause(0.6)
    context.send(signal.SIGSTOP)
    context.check_idle()
    context.check_dump()
    context.send(signal.SIGCONT)
    time.sleep(0.3)
    context.end_training()
    return ExpectedResult("ok", 0, within=WITHIN)


def _stopped_and_hung(context: AllreduceRound) -> ExpectedResult:
    """The supervisor sees that no rank prints anything, and ends the run."""
    context.pause(0.6)
    context.send(signal.SIGSTOP)
    return ExpectedResult("failed", 1, "hang", within=WITHIN + HANG_AFTER + 10.0)


def _stopped_and_killed(context: AllreduceRound) -> ExpectedResult:
    context.pause(0.6)
    context.send(signal.SIGSTOP)
    context.pause(2.0)
    context.send(signal.SIGKILL)
    return context.signalled(signal.SIGKILL)


def _of_itself(code: int, words: str) -> Callable[[AllreduceRound], ExpectedResult]:
    def play(context: AllreduceRound) -> ExpectedResult:
        pid = context.pids.get(context.victim)
        wait_until(lambda: pid is None or not _is_alive(pid), 60)
        more = (("exit_code", code),)
        return ExpectedResult("failed", code, "exit", context.victim, context.host, words, more=more, within=WITHIN)

    return play


def _is_alive(pid: int) -> bool:
    try:
        return read_stat(pid).is_alive
    except OSError:
        return False


def _cable_pulled(context: AllreduceRound) -> ExpectedResult:
    """Of the second host; its ranks are lost, and end there by themselves."""
    context.pause(0.6)
    context.died = time.time()
    break_host(context.stage.hosts[1], "link-down")
    context.cut.add("node2")
    ranks = range(context.ppn, context.world_size)
    first, *others = (ExpectedResult("failed", 1, "lost", rank, "node2", within=75.0) for rank in ranks)
    return dataclasses.replace(first, or_else=tuple(others))


def _sshd_killed(context: AllreduceRound) -> ExpectedResult:
    """Of the second host, but for the sessions that exist: the run needs no new one."""
    context.pause(0.6)
    break_host(context.stage.hosts[1], "sshd-dead")
    time.sleep(2.0)
    context.end_training()
    return ExpectedResult("ok", 0, within=WITHIN)


_CASES: Final = (
    AllreduceCase("SIGKILL", _sent(signal.SIGKILL)),
    AllreduceCase("SIGTERM", _sent(signal.SIGTERM)),
    AllreduceCase("SIGSEGV", _sent(signal.SIGSEGV)),
    AllreduceCase("two killed", _two_killed),
    AllreduceCase("killed, told late", _killed_and_told_late),
    AllreduceCase("stop, continue", _stopped_and_continued),
    AllreduceCase("stop, hang", _stopped_and_hung, options=("--hang-after", HANG_AFTER, "--on-hang", "stop")),
    AllreduceCase("stop, kill", _stopped_and_killed),
    AllreduceCase("raises in the forward pass", _of_itself(1, "raised in the forward pass"), "raise-forward"),
    AllreduceCase("raises in the backward pass", _of_itself(1, "raised in the backward pass"), "raise-backward"),
    AllreduceCase("exits 3", _of_itself(3, ""), "exit"),
    AllreduceCase("cable pulled", _cable_pulled, needs_two_hosts=True),
    AllreduceCase("sshd killed", _sshd_killed, needs_two_hosts=True),
)
CASES: Final = (
    *_CASES,
    *(
        dataclasses.replace(case, name=f"{case.name}, {wire}", wire=wire)
        for wire in ("bf16", "int8")
        for case in _CASES
    ),
)
"""`--wire` is always played on two hosts."""


KIND = Kind(
    "ranks that add gradients up in shared memory, on one or two hosts; installs torch",
    CASES,
    lambda base: new_stage(base, install_torch, hosts=2, shared_home=True),
    AllreduceRound,
)
