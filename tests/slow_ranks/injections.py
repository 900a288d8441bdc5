"""Ways to slow a rank or a link on purpose, and the verdicts that are right then."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ipexctl.lab import Lab, break_host, mend_host, ssh_argv
from ipexctl.lab.system import in_host, in_namespaces, init_of

CPU_GROUPS: Final = Path("/sys/fs/cgroup/cpu")
PERIOD: Final = 100_000
HOG: Final = "exec timeout 120 taskset -c {core} sh -c 'while :; do :; done'"


@dataclass
class Stage:
    """A lab on which a training runs, with a cgroup of each host for its processor time where this machine has v1."""

    lab: Lab
    ranks: int
    cores: tuple[int, ...]
    """Of this machine: rank R has core R of them, in turn."""
    hosts: tuple[str, ...]
    """That take part."""
    groups: dict[str, Path] = field(default_factory=dict)

    @classmethod
    def of(cls, lab: Lab, ranks: int, cores: tuple[int, ...], hosts: tuple[str, ...] = ()) -> Stage:
        """With the cgroups that an earlier stage made."""
        there = tuple(host.name for host in lab.hosts)
        groups = {host.name: CPU_GROUPS / f"ipexctl-{host.netns}" for host in lab.hosts}
        made = {name: group for name, group in groups.items() if group.is_dir()}
        return cls(lab, ranks, cores, hosts or there, made)

    def host_of(self, rank: int) -> str:
        return self.hosts[rank * len(self.hosts) // self.ranks]

    def prepare(self) -> None:
        """All processes of a host get a cgroup before the training: the meter looks for it at the start of a rank."""
        if not (CPU_GROUPS / "cpu.cfs_quota_us").exists() and not CPU_GROUPS.is_dir():
            return
        for host in self.lab.hosts:
            group = CPU_GROUPS / f"ipexctl-{host.netns}"
            if host.name in self.groups:
                continue
            group.mkdir(exist_ok=True)
            in_host(
                host,
                "mkdir -p /sys/fs/cgroup && mount -t tmpfs groups /sys/fs/cgroup && mkdir /sys/fs/cgroup/cpu &&"
                " mount -t cgroup -o cpu cgroup /sys/fs/cgroup/cpu",
            )
            for pid in in_namespaces([host.netns])[host.netns]:
                (group / "cgroup.procs").write_text(str(pid))
            self.groups[host.name] = group

    def release(self) -> None:
        """After the end of the lab."""
        for group in self.groups.values():
            if group.is_dir():
                group.rmdir()

    def order(self, rank: int, **seconds: float) -> None:
        host = self.lab.host(self.host_of(rank))
        assert host is not None
        path = Path(f"/proc/{init_of(host.netns)}/root/tmp/slow-{rank}")
        if seconds:
            path.write_text(json.dumps(seconds))
            path.chmod(0o644)
        else:
            path.unlink(missing_ok=True)


@dataclass(frozen=True)
class Injection:
    name: str
    inject: Callable[[Stage, int], object]
    """A context manager that slows that rank, or the link of its host."""
    causes: tuple[str, ...]
    """Those that are right."""
    is_link: bool = False
    is_for_one_host: bool = False


@contextmanager
def _hog(stage: Stage, rank: int) -> Iterator[None]:
    """A program of the same account, on the core of the rank."""
    host = stage.lab.host(stage.host_of(rank))
    assert host is not None
    core = stage.cores[rank % len(stage.cores)]
    # With a terminal, sshd ends the program when the connection does.
    process = subprocess.Popen(
        [*ssh_argv(host)[:1], "-tt", *ssh_argv(host)[1:], HOG.format(core=core)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        process.terminate()
        process.wait(10)


@contextmanager
def _limit(stage: Stage, rank: int) -> Iterator[None]:
    """80 % of a processor, as `cpu.max` has it: the quota of the host's cgroup."""
    quota = stage.groups[stage.host_of(rank)] / "cpu.cfs_quota_us"
    quota.write_text(str(PERIOD * 8 // 10))
    try:
        yield
    finally:
        quota.write_text("-1")


def _ordered(**seconds: float) -> Callable[[Stage, int], object]:
    @contextmanager
    def order(stage: Stage, rank: int) -> Iterator[None]:
        stage.order(rank, **seconds)
        try:
            yield
        finally:
            stage.order(rank)

    return order


def _fault(name: str, *arguments: str) -> Callable[[Stage, int], object]:
    @contextmanager
    def broken(stage: Stage, rank: int) -> Iterator[None]:
        host = stage.lab.host(stage.host_of(rank))
        assert host is not None
        broken_host = break_host(host, name, arguments)
        try:
            yield
        finally:
            mend_host(broken_host)

    return broken


INJECTIONS: Final = (
    Injection("a CPU hog on its core", _hog, ("other-process",), is_for_one_host=True),
    Injection("80 % of a processor", _limit, ("cgroup-limit",)),
    Injection("extra work in one rank", _ordered(work=0.012), ("work-or-bandwidth",), is_for_one_host=True),
    Injection("late data of one rank", _ordered(read=0.02), ("data", "storage"), is_for_one_host=True),
    Injection("a slow link", _fault("slow-link", "400mbit"), ("slow-transfer", "lost-segments"), is_link=True),
    Injection("a lossy link", _fault("packet-loss", "2"), ("lost-segments",), is_link=True),
)
