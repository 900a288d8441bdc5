"""The places of rounds: this machine with a Python that has torch, or two hosts of a lab with one environment.

This machine sees the processes of both, those of a lab under other numbers than their hosts do. So ranks are found by
the id of their run, and whatever a run leaves is found in one place.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cli_helpers import CommandResult, begin, ipexctl
from ipexctl.lab import Lab, LabHost, LabSpec, down, up
from ipexctl.lab.system import init_of
from ipexctl.node.common.processes import is_running
from lab_run_helpers import Running

SCRIPT: Final = Path(__file__).with_name("exchange.py")
MEMORY: Final = "memfd:ipexctl-allreduce"


@dataclass
class Place:
    """`root` is node0's file system, seen from this machine."""

    base: Path
    where: tuple[object, ...]
    """Options of run: which hosts, which environment."""
    home: str
    shared: str
    """A directory that all ranks see, as they see it."""
    hosts: tuple[LabHost, ...] = ()
    calls: int = 0

    @property
    def root(self) -> Path:
        return Path(f"/proc/{init_of(self.hosts[0].netns)}/root") if self.hosts else Path("/")

    def rundir(self, run: str) -> Path:
        return self.root / self.home.lstrip("/") / "runs" / run

    def begin(self, *words: object) -> Running:
        self.calls += 1
        out, err = (self.base / f"{self.calls}.{stream}" for stream in ("out", "err"))
        with out.open("wb") as stdout, err.open("wb") as stderr:
            argv = ("run", *self.where, "--plain", "--allreduce", "shared", *words)
            process = begin(*argv, cwd=self.project, env=self.env, stdout=stdout, stderr=stderr)
        return Running(process, out, err)

    def call(self, *words: object) -> CommandResult:
        return ipexctl(*words, cwd=self.project, env=self.env, timeout=60)

    @property
    def env(self) -> dict[str, str]:
        return {"XDG_STATE_HOME": str(self.base / "state")}

    @property
    def project(self) -> Path:
        return self.base / "project"

    def new_directory(self) -> Path:
        """One that all ranks see."""
        path = Path(self.shared) / f"reduce-{os.getpid()}-{self.calls}"
        (self.root / str(path).lstrip("/")).mkdir(mode=0o755)
        return path

    def end_training(self, directory: Path) -> None:
        """Let the script of a run that was started with this directory end."""
        (self.root / str(directory).lstrip("/") / "enough").touch()


def processes_of(run: str) -> dict[int, tuple[str, dict[str, str]]]:
    """The processes of that run on this machine and in its labs: pid → command line and environment."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            with contextlib.suppress(OSError):
                words, environ = (Path(f"/proc/{name}/{kind}").read_bytes() for kind in ("cmdline", "environ"))
                if (run.encode() in words or run.encode() in environ) and is_running(int(name)):
                    pairs = (pair.partition("=") for pair in environ.decode(errors="replace").split("\0"))
                    variables = {key: value for key, _, value in pairs}
                    found[int(name)] = words.replace(b"\0", b" ").decode(errors="replace"), variables
    return found


def ranks_of(run: str) -> dict[int, int]:
    """The processes of the script: rank → pid on this machine."""
    found = processes_of(run).items()
    return {int(env["RANK"]): pid for pid, (words, env) in found if SCRIPT.name in words and _is_script(words, env)}


def _is_script(words: str, variables: dict[str, str]) -> bool:
    return "RANK" in variables and " run.rank " not in words


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


def users_of(memories: set[int]) -> list[int]:
    """The processes that still have any of that memory."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and memories_of(int(name)) & memories]


def shared_files(place: Place) -> set[str]:
    """The files in /dev/shm of this machine and of the hosts."""
    roots = [Path("/"), *(Path(f"/proc/{init_of(host.netns)}/root") for host in place.hosts)]
    return {f"{root}:{name}" for root in roots for name in os.listdir(root / "dev/shm")}


@contextmanager
def on_this_machine(base: Path, python: Path) -> Iterator[Place]:
    home = base / "home"
    where = ("--hosts", "localhost", "--python", python, "--home", home)
    place = Place(base, where, str(home), str(base))
    _fill(place)
    yield place


@contextmanager
def on_lab(base: Path, torch: str) -> Iterator[Place]:
    """Two hosts with a home in common, which are removed at the end."""
    lab: Lab = up(LabSpec(hosts=2, name=f"reduce-{os.getpid()}", shared_home=True))
    try:
        place = Place(base, ("-H", lab.hostfile), f"{lab.hosts[0].home}/.ipexctl", str(lab.hosts[0].home), lab.hosts)
        _fill(place)
        for words in (("trust",), ("install", "--stack", "torch", "--torch", torch)):
            argv = (words[0], *place.where, *words[1:])
            done: Any = ipexctl(*argv, cwd=place.project, env=place.env, timeout=600)
            if done.rc:
                raise SystemExit(f"{words[0]} ended with {done.rc}: {done.err}")
        yield place
    finally:
        down(lab.name)


def _fill(place: Place) -> None:
    place.project.mkdir()
    shutil.copy(SCRIPT, place.project)
    (place.project / "ipexctl.toml").touch()
