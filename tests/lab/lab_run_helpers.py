"""Helpers for tests of run: hosts with Intel MPI and a small torch, a project, calls to follow."""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agent_helpers import wait_until
from clean_environment import package_environ
from cli_helpers import CommandResult, begin, ipexctl, processes_with
from ipexctl.addons.lab.faults import ssh_argv
from ipexctl.addons.lab.lab_record import Lab, LabHost
from lab_helpers import ask, on_host, refuse_logins
from tiny_wheels import write_stack

PYTHON = "cp311"
IMPI = "impi-rt==2021.18.0"

REPORT_SCRIPT = """\
import json, os, socket, sys
print(json.dumps({"host": socket.gethostname(), "cwd": os.getcwd(), "user": os.environ["USER"],
                  "cores": sorted(os.sched_getaffinity(0)), "argv": sys.argv[1:], "env": dict(os.environ)}))
"""
"""Each rank prints its host, directory, cores, arguments and environment as JSON."""

WAIT_SCRIPT = """\
import os, sys, time
print("here", os.environ["RANK"])
time.sleep(600)
"""


def wheels_from_pypi(base: Path, *requirements: str) -> Path:
    """Download wheels from PyPI once per session; the test is skipped if PyPI cannot be reached."""
    wheels = base / "from-pypi"
    for requirement in requirements:
        done = wheels / f"{requirement}.done"
        with _locked(done):
            if done.exists():
                continue
            said = subprocess.run(
                [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", wheels, requirement],
                capture_output=True,
                text=True,
                timeout=170,
                check=False,
                env=package_environ(),
            )
            if said.returncode:
                pytest.skip(f"{requirement} can't be had from PyPI: {said.stderr.strip().splitlines()[-1:]}")
            done.touch()
    return wheels


def stack_with(wheels: Path, directory: Path) -> Path:
    """A wheelhouse with these wheels and a stand-in for torch."""
    write_stack(directory, torch="2.13.0", ipex=None, impi=None, python=PYTHON)
    for wheel in wheels.glob("impi_rt-*.whl"):
        with contextlib.suppress(FileExistsError):
            (directory / wheel.name).hardlink_to(_small_mpi(wheel))
    return directory


_FOR_A_REAL_TORCH = re.compile(
    r"lib/(libmpcp|libmpifort|libmpi_abi)|lib/libmpi\.so(\.12\..*)?$|opt/mpi/(tune_fast/|etc/(tuning_|coll))|bin/IMB-"
)
"""Most of Intel MPI: what its library reads when a torch calls it, which the small one does not, and copies of it."""


def _small_mpi(wheel: Path) -> Path:
    """The same wheel without that: 46 MB that start ranks. Each lab has it on each host, where the whole is 308 MB."""
    small = wheel.parent.with_name("small-mpi") / wheel.name
    with _locked(small):
        if not small.exists():
            part = small.with_suffix(".part")
            with (
                zipfile.ZipFile(wheel) as real,
                zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as target,
            ):
                for entry in real.infolist():
                    if _FOR_A_REAL_TORCH.search(entry.filename):
                        continue
                    content = real.read(entry)
                    if entry.filename.endswith(".dist-info/RECORD"):
                        lines = content.decode().splitlines(keepends=True)
                        kept = (line for line in lines if not _FOR_A_REAL_TORCH.search(line.partition(",")[0]))
                        content = "".join(kept).encode()
                    target.writestr(entry, content)
            part.rename(small)
    return small


@dataclass(frozen=True)
class Running:
    """A call that is still under way; its streams go to files."""

    process: subprocess.Popen[str]
    out: Path
    err: Path

    def wait_for(self, text: str, *, times: int = 1, timeout: float = 60) -> None:
        """Wait until stdout and stderr contain `text` that many times."""

        def is_said() -> bool:
            is_over = self.process.poll() is not None
            is_enough = self.said().count(text) >= times
            assert is_enough or not is_over, self.said()
            return is_enough

        wait_until(is_said, timeout, lambda: f"not said: {text}\n{self.said()}")

    def said(self) -> str:
        return self.out.read_text(errors="replace") + self.err.read_text(errors="replace")

    def end(self, timeout: float = 60) -> int:
        return self.process.wait(timeout)

    @property
    def id(self) -> str:
        self.wait_for(" over ")
        found = re.search(r"^(\S+-\d{4}-\d{6}-[0-9a-f]{4}): ", self.err.read_text(), re.MULTILINE)
        assert found, self.said()
        return found[1]


@dataclass(frozen=True)
class Cluster:
    """A lab with an environment on every host, and a project of this machine to run there."""

    lab: Lab
    project: Path
    state: Path
    options: tuple[str, ...] = ()
    hostfile: Path | None = None

    @property
    def env(self) -> dict[str, str]:
        return {"XDG_STATE_HOME": str(self.state)}

    @property
    def marker(self) -> str:
        """An argument for scripts of this test alone: their processes are known by it."""
        return f"mark-{self.project.parent.name}"

    def write(self, name: str, text: str | bytes) -> Path:
        path = self.project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    def call(self, *args: object, env: dict[str, str] | None = None, timeout: float = 100) -> CommandResult:
        return ipexctl(*args, cwd=self.project, env={**self.env, **(env or {})}, timeout=timeout)

    def good(self, *args: object, **more: Any) -> str:
        """The output of a call that goes well."""
        ran = self.call(*args, **more)
        assert ran.rc == 0, ran.err + ran.out
        return ran.out

    def run(self, *args: object, rc: int | None = 0, **more: Any) -> CommandResult:
        ran = self.call("run", "-H", self.hostfile or self.lab.hostfile, *self.options, *args, **more)
        assert rc is None or ran.rc == rc, f"{ran.rc}\n{ran.err}\n{ran.out}"
        return ran

    def refused(self, *args: object, rc: int = 1, **more: Any) -> str:
        """The messages of a run that is refused: nothing was started, no run was recorded."""
        ran = self.run(*args, rc=rc, **more)
        assert ran.out == ""
        assert "ended" not in ran.err
        assert not list(self.state.glob("ipexctl/runs/*.json")), ran.err
        return ran.err

    def begin(self, *args: object) -> Running:
        """Start a run and return immediately."""
        return self.begin_call("run", "-H", self.hostfile or self.lab.hostfile, *self.options, *args)

    def begin_call(self, *args: object) -> Running:
        number = len(list(self.state.glob("*.out")))
        self.state.mkdir(exist_ok=True)
        out, err = self.state / f"{number}.out", self.state / f"{number}.err"
        with out.open("wb") as stdout, err.open("wb") as stderr:
            process = begin(*args, cwd=self.project, env=self.env, stdout=stdout, stderr=stderr)
        return Running(process, out, err)

    def status(self, run: str) -> dict[str, Any]:
        return next(row for row in self.runs() if row["id"] == run)

    def wait_until(self, run: str, state: str, seconds: float = 40) -> None:
        wait_until(lambda: self.status(run)["state"] == state, seconds, lambda: self.status(run))

    def runs(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = json.loads(self.good("ps", "--json"))["runs"]
        return rows

    def on(self, index: int, command: str) -> str:
        return on_host(self.lab.hosts[index], command)

    def kill_rank(self, run: str, rank: int) -> None:
        status = json.loads(self.on(0, f"cat .ipexctl/runs/{run}/status.json"))
        row = next(row for row in status["ranks"] if row["rank"] == rank)
        self.on([host.name for host in self.lab.hosts].index(row["host"]), f"kill -9 {row['pid']}")

    def as_root(self, index: int, command: str) -> str:
        said = ask(self.lab.hosts[index], command, as_root=True)
        return said.out + said.err

    def wait_until_gone(self, seconds: float, marker: str) -> bool:
        """Wait until no process on any host has `marker` on its command line."""
        wait_until(lambda: not processes_with(self.lab, marker), seconds, lambda: processes_with(self.lab, marker))
        return True


def by_rank(text: str) -> dict[int, list[str]]:
    """The lines of each rank, in order."""
    found: dict[int, list[str]] = {}
    for line in text.splitlines():
        match = re.fullmatch(r"\[(\d+)\] (.*)", line, re.DOTALL)
        if match:
            found.setdefault(int(match[1]), []).append(match[2])
    return found


def rank_reports(ran: CommandResult) -> dict[int, dict[str, Any]]:
    """The reports that the ranks of REPORT_SCRIPT printed."""
    return {rank: json.loads(lines[0]) for rank, lines in by_rank(ran.out).items()}


def small_stack(base: Path) -> tuple[object, ...]:
    """The options that install a small torch and a real MPI from a wheelhouse in that directory."""
    house = base / "house"
    with _locked(house):
        if not house.exists():
            stack_with(wheels_from_pypi(base, IMPI), base / "house.part").rename(house)
    return ("--wheelhouse", house, "--offline", "--stack", "torch")


def lab_with_mpi(lab: Lab, base: Path, *options: object) -> Lab:
    """Install on a lab: the first of the session, later ones get what it has in its home. Its hosts refuse each other's
    logins.

    A lab with other homes, accounts or options is installed as a user would.
    """
    if not (lab.bastion or lab.slurm):
        refuse_logins(lab)
    if options or lab.shared_home or {host.home for host in lab.hosts} != {_PLAIN_HOME}:
        _install(lab, base, *options)
        return lab
    packed = base / "environment.tar"
    with _locked(packed):
        if not packed.exists():
            _install(lab, base)
            # The first host keeps wheels; in a Slurm it may be a login node without an environment.
            _pack(lab.hosts[-1 if lab.slurm else 0], packed)
            return lab
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda host: _unpack(host, packed), lab.hosts))
    return lab


_PLAIN_HOME = "/home/ipex"


def _install(lab: Lab, base: Path, *options: object) -> None:
    said = ipexctl("install", "-H", lab.hostfile, *options, *small_stack(base), timeout=240)
    assert said.rc == 0, said.err + said.out


def _pack(host: LabHost, packed: Path) -> None:
    """Write what `install` has made into a tar: all of the home but large wheels."""
    large = "-path '.ipexctl/wheels/*' -type f -size +1024k"
    found = f"find .ipexctl {large} -o -print"
    command = f"cd {_PLAIN_HOME} && {found} | tar --no-recursion -cf - -T -"
    beside = packed.with_suffix(".part")
    with beside.open("wb") as file:
        subprocess.run([*ssh_argv(host), command], stdout=file, stdin=subprocess.DEVNULL, check=True, timeout=120)
    beside.rename(packed)


def _unpack(host: LabHost, packed: Path) -> None:
    with packed.open("rb") as file:
        subprocess.run([*ssh_argv(host), f"tar -C {_PLAIN_HOME} -xpf -"], stdin=file, check=True, timeout=120)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One process of the session after the other: the first makes the path, which all use."""
    path.parent.mkdir(exist_ok=True)
    with path.with_name(f"{path.name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def upload_mpi(lab: Lab, wheel: Path, name: str) -> str:
    """Unpack the wheel of an MPI into a directory in every home; returns its path."""
    packed = io.BytesIO()
    with zipfile.ZipFile(wheel) as archive, tarfile.open(fileobj=packed, mode="w") as tree:
        for entry in archive.infolist():
            _, data, path = entry.filename.partition(".data/data/")
            if data and not entry.is_dir():
                node = tarfile.TarInfo(path)
                node.size, node.mode = entry.file_size, 0o755
                tree.addfile(node, archive.open(entry))
    for host in lab.hosts[:1] if lab.shared_home else lab.hosts:
        command = f"mkdir -p {name} && tar -xf - -C {name}"
        subprocess.run([*ssh_argv(host), command], input=packed.getvalue(), check=True, timeout=60)
    return f"/home/{lab.hosts[0].user}/{name}"


def new_cluster(lab: Lab, directory: Path) -> Cluster:
    """The lab for one test: an empty project and no runs."""
    project = directory / "project"
    project.mkdir()
    return Cluster(lab, project, directory / "state")


def session_dir(factory: pytest.TempPathFactory) -> Path:
    """One directory for all modules of a session, also if several processes run its tests."""
    base = factory.getbasetemp()
    directory = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "run"
    directory.mkdir(exist_ok=True)
    return directory
