"""The surroundings of every part: a lab, the way to log in, an empty home, the other tools."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from ipexctl.addons.lab.down import down
from ipexctl.addons.lab.lab_plan import LabSpec
from ipexctl.addons.lab.lab_record import Lab
from ipexctl.addons.lab.up import up

from .contenders import bare_pool
from .harness import Contender, Failed, say, spend
from .peers import Peers

HERE = Path(__file__).parent
CONTENDERS = HERE / "contenders"
FEW_HOSTS = 64
"""They fit into the kernel's table of neighbours: 1,024 by default."""
NEIGHBOURS = 1 << 16


@dataclass(frozen=True, slots=True)
class Rig:
    """Where and how often to measure."""

    runs: int
    counts: tuple[int, ...]
    """Numbers of hosts to run a command on."""
    peers: Peers
    lab: Lab
    scratch: Path
    env: dict[str, str]
    steady: float | None
    """Seconds of training in a steady state, unless the workload has its own."""

    @property
    def user(self) -> str:
        return self.lab.hosts[0].user

    @property
    def login(self) -> tuple[str, str, str]:
        """What the small programs want first: key, known_hosts, user."""
        return str(self.lab.key), str(self.lab.known_hosts), self.user

    def addresses(self, count: int) -> list[str]:
        return [host.address for host in self.lab.hosts[:count]]

    def names(self, count: int) -> list[str]:
        return [host.name for host in self.lab.hosts[:count]]

    def hostfile(self, count: int) -> Path:
        """The lab's own one, cut to its first lines."""
        path = self.scratch / f"hostfile-{count}"
        login = f"user={self.user} identity={self.lab.key} known_hosts={self.lab.known_hosts}"
        path.write_text("".join(f"{host.name} address={host.address} {login}\n" for host in self.lab.hosts[:count]))
        return path

    def where(self, count: int) -> tuple[str, str]:
        """The options of ipexctl for the first hosts."""
        return "-H", str(self.hostfile(count))

    def on_hosts(self, command: str, count: int) -> list[tuple[int, str]]:
        """Unmeasured: a command on the first hosts, each one's exit code and output."""
        way = bare_pool.Way.read(*self.login)

        def on_one(address: str) -> tuple[int, str]:
            transport = bare_pool.connect(way, address)
            try:
                code, output = bare_pool.run(transport, command)
            finally:
                transport.close()
            return code, output.decode(errors="replace").strip()

        with ThreadPoolExecutor(bare_pool.THREADS) as pool:
            return list(pool.map(on_one, self.addresses(count)))


def ipexctl(name: str, *words: object) -> Contender:
    """The command as this interpreter's environment has it."""
    script = Path(sys.executable).with_name("ipexctl")
    argv = (str(script),) if script.exists() else (sys.executable, "-m", "ipexctl")
    return Contender(name, (*argv, *map(str, words)))


def write_project(path: Path) -> Path:
    """A new project of twenty small modules."""
    path.mkdir()
    for number in range(20):
        (path / f"module_{number}.py").write_text(f"NUMBER = {number}\n")
    return path


def prepare(rig: Rig, *words: object) -> None:
    """Unmeasured: one call of ipexctl, which is to go well. Its pip looks nowhere but where it is told to."""
    spend(replace(ipexctl("preparation", *words), env={"PIP_FIND_LINKS": ""}), rig.env)


def let_node0_in(rig: Rig, count: int) -> None:
    """Give the first host a key of its own that opens the first `count`, for tools that log in from node to node."""
    ((_, key),) = rig.on_hosts("ssh-keygen -q -t ed25519 -N '' -f ~/.ssh/id_ed25519; cat ~/.ssh/id_ed25519.pub", 1)
    all_well(rig.on_hosts(f"echo '{key}' >>~/.ssh/authorized_keys", count), "adding a key")
    rig.on_hosts(f"ssh-keyscan -t ed25519 {' '.join(rig.addresses(count))} >~/.ssh/known_hosts 2>/dev/null", 1)


@contextmanager
def laboratory(hosts: int, *, shared_home: bool = False) -> Iterator[Lab]:
    """A lab that is gone afterwards, also on an error or a signal."""
    name = f"bench-{os.getpid()}{'-shared' * shared_home}"
    with _room_for_neighbours() if hosts > FEW_HOSTS else nullcontext():
        say(f"making the lab {name} with {hosts} hosts")
        lab = up(LabSpec(hosts=hosts, name=name, shared_home=shared_home))
        try:
            yield lab
        finally:
            say(f"removing the lab {name}")
            with _undisturbed():
                down(name)


@contextmanager
def _room_for_neighbours() -> Iterator[None]:
    """All hosts of a lab share the kernel's tables of neighbours, where each host of a cluster has its own.

    A full table drops packets, which are sent again after a second.
    """
    families = ("ipv4", "ipv6")
    files = [
        Path(f"/proc/sys/net/{family}/neigh/default/gc_thresh{level}") for family in families for level in (3, 2, 1)
    ]
    before = {file: file.read_text() for file in files}
    try:
        for file in files:
            file.write_text(str(max(NEIGHBOURS, int(before[file]))))
        yield
    finally:
        for file, limit in before.items():
            file.write_text(limit)


@contextmanager
def scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ipexctl-bench-") as directory:
        yield Path(directory)


def leave_on_signals() -> None:
    """SIGTERM and SIGHUP as Ctrl-C does it: through every `finally`."""

    def leave(number: int, _frame: object) -> None:
        sys.exit(128 + number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, leave)


@contextmanager
def _undisturbed() -> Iterator[None]:
    before = {n: signal.signal(n, signal.SIG_IGN) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def all_well(answers: Sequence[tuple[int, str]], what: str) -> None:
    """Raise Failed unless the command went well on every host."""
    bad = [answer for answer in answers if answer[0] != 0]
    if bad:
        raise Failed(f"{what}: {len(bad)} of {len(answers)} hosts say no: {bad[0]}")
