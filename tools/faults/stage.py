"""The lab of a round: its hosts, seen from outside by their namespaces, and their cgroups.

In come the hosts of a lab and the name of a controller; out go the processes and files of each host, as this machine
sees them, and a cgroup of version 1 for each host, where this machine has them. The rule: a stage removes the lab that
it made; of one that stays, it takes only its cgroups.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from cli_helpers import ipexctl
from ipexctl.addons.lab.down import down
from ipexctl.addons.lab.faults import break_host, mend_host
from ipexctl.addons.lab.lab_plan import LabSpec
from ipexctl.addons.lab.lab_record import Lab, LabHost
from ipexctl.addons.lab.lab_system import in_host, in_namespaces, init_of, innermost_pid
from ipexctl.addons.lab.up import up
from ipexctl.node.common.processes import read_stat
from lab_run_helpers import Cluster

from .rounds import CONTROLLERS

SCARCE: Final = 256 << 20
_NO_LIMIT: Final = "-1"
TORCH: Final = "2.13"


def has_traceback(messages: str) -> bool:
    """Whether a call shows a traceback; one of the interpreter itself, before it has found ipexctl, does not count."""
    return "Traceback" in messages and "/ipexctl/" in messages.partition("Traceback")[2]


def is_before_start(code: int, number: signal.Signals, said: str) -> bool:
    """Whether a signal has ended a call before its first line of ipexctl."""
    return code == -number or (code == 1 and "KeyboardInterrupt" in said and not has_traceback(said))


def hash_of(path: Path) -> str:
    """The hash of a file, or of the target of a link."""
    content = os.fsencode(path.readlink()) if path.is_symlink() else path.read_bytes()
    return hashlib.sha256(content).hexdigest()


def left_in_tree(tree: Path) -> list[str]:
    """What a sync or the lease of a run has left in the state of a project's tree."""
    state = tree / ".ipexctl"
    left = [path.name for path in state.iterdir() if path.name not in ("state.json", "leases")]
    return left + [path.name for path in (state / "leases").iterdir()]


@dataclass(frozen=True)
class Process:
    pid: int
    """As this machine counts."""
    inner: int
    """As its host does."""
    words: str


@dataclass
class FaultLab:
    """`groups` holds a cgroup for each host, all of whose processes are in it, where this machine has them."""

    cluster: Cluster
    controller: str = "memory"
    groups: dict[str, Path] = field(default_factory=dict)
    roots: dict[str, Path] = field(default_factory=dict)
    quiet: dict[str, frozenset[int]] = field(default_factory=dict)
    known_job_files: set[Path] = field(default_factory=set)
    """Job files of earlier rounds: reported then, or of a host where all processes were killed."""

    @property
    def hosts(self) -> tuple[LabHost, ...]:
        return self.cluster.lab.hosts

    def prepare(self) -> None:
        for host in self.hosts:
            self.roots[host.name] = Path(f"/proc/{init_of(host.netns)}/root")
        if self.controller and os.access(CONTROLLERS / self.controller / "cgroup.procs", os.W_OK):
            self._group()
        self.quiet = {name: frozenset(found) for name, found in self._pids().items()}

    def _group(self) -> None:
        """Version 1: on a machine with version 2 alone, hosts would have to be let into a subtree of it first."""
        there = CONTROLLERS / self.controller
        for host in self.hosts:
            group = there / f"ipexctl-{host.netns}"
            group.mkdir(exist_ok=True)
            mount = f"mkdir {there} && mount -t cgroup -o {self.controller} cgroup {there}"
            in_host(host, f"[ -d {there} ] || {{ mount -t tmpfs groups {CONTROLLERS} && {mount}; }}")
            for pid in in_namespaces([host.netns])[host.netns]:
                (group / "cgroup.procs").write_text(str(pid))
            self.groups[host.name] = group

    def limit(self, host: str, size: int | None) -> None:
        (self.groups[host] / "memory.limit_in_bytes").write_text(_NO_LIMIT if size is None else str(size))

    def release(self) -> None:
        """Remove the cgroups. Hosts that stay are where they were."""
        for host in self.hosts:
            for pid in in_namespaces([host.netns])[host.netns] if self.groups else ():
                with contextlib.suppress(OSError):
                    (CONTROLLERS / self.controller / "cgroup.procs").write_text(str(pid))
        for group in self.groups.values():
            with contextlib.suppress(OSError):
                group.rmdir()

    def mend(self) -> None:
        for host in self.hosts:
            mend_host(host)
            if host.name in self.groups and self.controller == "memory":
                self.limit(host.name, None)

    def _pids(self) -> dict[str, tuple[int, ...]]:
        names = {host.netns: host.name for host in self.hosts}
        return {names[netns]: pids for netns, pids in in_namespaces(list(names)).items()}

    def processes(self, host: str, *, with_sshd: bool = False) -> list[Process]:
        """All that live there and did not when the hosts were new, but for sshd's."""
        return self._processes(host, self._pids()[host], with_sshd=with_sshd)

    def _processes(self, host: str, pids: Iterable[int], *, with_sshd: bool = False) -> list[Process]:
        found = []
        for pid in pids:
            if pid in self.quiet.get(host, ()):
                continue
            try:
                words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                is_alive = read_stat(pid).is_alive
                inner = innermost_pid(Path(f"/proc/{pid}/status").read_text()) or pid
            except OSError:
                continue
            # One without words is on its way out: its memory is gone already.
            if words and is_alive and (with_sshd or not words.startswith("sshd")):
                found.append(Process(pid, inner, words))
        return found

    def all_processes(self) -> dict[str, list[Process]]:
        """The processes of each host that has any, in one pass over /proc."""
        found = {name: self._processes(name, pids) for name, pids in self._pids().items()}
        return {name: processes for name, processes in found.items() if processes}

    def left(self) -> dict[str, list[str]]:
        return {name: [each.words for each in processes] for name, processes in self.all_processes().items()}

    def kill_host(self, host: str) -> None:
        """Kill all processes there, as a reboot does; its sshd stays."""
        for _ in range(3):  # one may start another meanwhile
            for process in self.processes(host, with_sshd=True):
                send_signal(process, signal.SIGKILL)

    def new_job_files(self) -> dict[str, list[Path]]:
        """Host → the job files of runs there that no earlier round has left."""
        found = {host: [*self.file(host, "/home/ipex/.ipexctl/runs").glob("*/job*.json")] for host in self.roots}
        found = {host: [path for path in paths if path not in self.known_job_files] for host, paths in found.items()}
        return {host: paths for host, paths in found.items() if paths}

    def file(self, host: str, path: str) -> Path:
        return self.roots[host] / path.lstrip("/")

    def outer(self, host: str, inner: int) -> int:
        return next(each.pid for each in self.processes(host) if each.inner == inner)


@contextmanager
def broken(host: LabHost, fault: str, *arguments: str) -> Iterator[None]:
    break_host(host, fault, arguments)
    try:
        yield
    finally:
        mend_host(host, fault)


def send_signal(process: Process, number: signal.Signals) -> None:
    """To one that may have ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.pid, number)


@contextmanager
def standing_still(processes: Iterable[Process]) -> Iterator[None]:
    """As on a machine that swaps."""
    for process in processes:
        send_signal(process, signal.SIGSTOP)
    try:
        yield
    finally:
        for process in processes:
            send_signal(process, signal.SIGCONT)


@contextmanager
def new_stage(
    base: Path, prepare: Callable[[Lab], object], *, controller: str = "memory", **spec: Any
) -> Iterator[FaultLab]:
    """A lab of its own, which is removed at the end, with what `prepare` gives it, and an empty project."""
    lab = up(LabSpec(name=f"faults-{os.getpid()}", temporary=True, **spec))
    stage = FaultLab(Cluster(lab, base / "project", base / "state"), controller)
    try:
        prepare(lab)
        stage.cluster.project.mkdir()
        stage.prepare()
        yield stage
    finally:
        down(lab.name)
        stage.release()


def install_torch(lab: Lab) -> None:
    """The real one, from an index."""
    done = ipexctl("install", "--stack", "torch", "--torch", TORCH, "-H", lab.hostfile, timeout=900)
    assert done.rc == 0, f"install ended with {done.rc}: {done.err}"
