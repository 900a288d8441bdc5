"""Helpers for tests of run: hosts with Intel MPI and a small torch, a project, calls to follow."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cli_helpers import IPEXCTL, Ran, ipexctl, processes_with
from ipexctl.lab import Lab, ssh_argv
from lab_helpers import ask
from tiny_wheels import write_stack

PYTHON = "cp311"
IMPI = "impi-rt==2021.18.0"

WHO = """\
import json, os, socket, sys
print(json.dumps({"host": socket.gethostname(), "cwd": os.getcwd(), "user": os.environ["USER"],
                  "cores": sorted(os.sched_getaffinity(0)), "argv": sys.argv[1:], "env": dict(os.environ)}))
"""
"""A rank that says all it knows of itself."""

WAITS = """\
import os, sys, time
print("here", os.environ["RANK"])
time.sleep(600)
"""


def wheels_from_pypi(base: Path, *requirements: str) -> Path:
    """Those wheels of PyPI, brought once a session; the test is skipped where it can't be reached."""
    wheels = base / "from-pypi"
    for requirement in requirements:
        done = wheels / f"{requirement}.done"
        if done.exists():
            continue
        said = subprocess.run(
            [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", wheels, requirement],
            capture_output=True,
            text=True,
            timeout=170,
            check=False,
        )
        if said.returncode:
            pytest.skip(f"{requirement} can't be had from PyPI: {said.stderr.strip().splitlines()[-1:]}")
        done.touch()
    return wheels


def stack_with(wheels: Path, directory: Path) -> Path:
    """A wheelhouse: those wheels, and a torch that stands in for the real one."""
    write_stack(directory, torch="2.13.0", ipex=None, impi=None, python=PYTHON)
    for wheel in wheels.glob("impi_rt-*.whl"):
        with contextlib.suppress(FileExistsError):
            (directory / wheel.name).hardlink_to(wheel)
    return directory


@dataclass(frozen=True)
class Running:
    """A call that is still under way; its streams go to files."""

    process: subprocess.Popen[bytes]
    out: Path
    err: Path

    def wait_for(self, text: str, *, times: int = 1, timeout: float = 60) -> None:
        """Until that was said so often, on either stream."""
        until = time.monotonic() + timeout
        while self.said().count(text) < times:
            assert time.monotonic() < until, f"not said: {text}\n{self.said()}"
            assert self.process.poll() is None or self.said().count(text) >= times, self.said()
            time.sleep(0.05)

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

    def write(self, name: str, text: str | bytes) -> Path:
        path = self.project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    def call(self, *args: object, env: dict[str, str] | None = None, timeout: float = 100) -> Ran:
        return ipexctl(*args, cwd=self.project, env={**self.env, **(env or {})}, timeout=timeout)

    def run(self, *args: object, rc: int | None = 0, **more: Any) -> Ran:
        ran = self.call("run", "-H", self.hostfile or self.lab.hostfile, *self.options, *args, **more)
        assert rc is None or ran.rc == rc, f"{ran.rc}\n{ran.err}\n{ran.out}"
        return ran

    def refused(self, *args: object, rc: int = 1, **more: Any) -> str:
        """What is said of a run that doesn't begin: nothing was started, no run is in the register."""
        ran = self.run(*args, rc=rc, **more)
        assert ran.out == ""
        assert "ended" not in ran.err
        assert not list(self.state.glob("ipexctl/runs/*.json")), ran.err
        return ran.err

    def begin(self, *args: object) -> Running:
        """A run nobody waits for."""
        return self.begin_call("run", "-H", self.hostfile or self.lab.hostfile, *self.options, *args)

    def begin_call(self, *args: object) -> Running:
        number = len(list(self.state.glob("*.out")))
        self.state.mkdir(exist_ok=True)
        out, err = self.state / f"{number}.out", self.state / f"{number}.err"
        with out.open("wb") as stdout, err.open("wb") as stderr:
            process = subprocess.Popen(
                [*IPEXCTL, *map(str, args)],
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                cwd=self.project,
                env={**os.environ, **self.env},
                start_new_session=True,
            )
        return Running(process, out, err)

    def status(self, run: str) -> dict[str, Any]:
        return next(row for row in self.runs() if row["id"] == run)

    def wait_until(self, run: str, state: str, seconds: float = 40) -> None:
        until = time.monotonic() + seconds
        while self.status(run)["state"] != state:
            assert time.monotonic() < until, self.status(run)
            time.sleep(0.1)

    def runs(self) -> list[dict[str, Any]]:
        ran = self.call("ps", "--json")
        assert ran.rc == 0, ran.err
        rows: list[dict[str, Any]] = json.loads(ran.out)["runs"]
        return rows

    def on(self, index: int, command: str) -> str:
        said = ask(self.lab.hosts[index], command)
        assert said.rc == 0, said.err
        return said.out

    def as_root(self, index: int, command: str) -> str:
        said = ask(self.lab.hosts[index], command, as_root=True)
        return said.out + said.err

    def gone_within(self, seconds: float, marker: str) -> bool:
        """No process of any host has that on its command line any more."""
        until = time.monotonic() + seconds
        while left := processes_with(self.lab, marker):
            if time.monotonic() > until:
                raise AssertionError(f"after {seconds} s: {left}")
            time.sleep(0.1)
        return True


def by_rank(text: str) -> dict[int, list[str]]:
    """The lines behind each rank, in order."""
    found: dict[int, list[str]] = {}
    for line in text.splitlines():
        match = re.fullmatch(r"\[(\d+)\] (.*)", line, re.DOTALL)
        if match:
            found.setdefault(int(match[1]), []).append(match[2])
    return found


def said_by(ran: Ran) -> dict[int, dict[str, Any]]:
    """What each rank of `WHO` said."""
    return {rank: json.loads(lines[0]) for rank, lines in by_rank(ran.out).items()}


_installed: dict[str, Lab] = {}


def lab_with_mpi(lab: Lab, base: Path, *options: object) -> Lab:
    """That lab, with node0 let in everywhere and one environment on all; done once for each."""
    if lab.name in _installed:
        return lab
    house = stack_with(wheels_from_pypi(base, IMPI), base / "house")
    where = ("-H", lab.hostfile, *options)
    said = ipexctl("trust", *where)
    assert said.rc == 0, said.err
    wheels = ("--wheelhouse", house, "--offline", "--stack", "torch")
    # Another torch may lie where this machine's own pip looks.
    no_others = {"PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": ""}
    said = ipexctl("install", *where, *wheels, env=no_others, timeout=240)
    assert said.rc == 0, said.err + said.out
    _installed[lab.name] = lab
    return lab


def bring_mpi(lab: Lab, wheel: Path, name: str) -> str:
    """An MPI out of its wheel, in a directory of its own on every host."""
    packed = io.BytesIO()
    with zipfile.ZipFile(wheel) as archive, tarfile.open(fileobj=packed, mode="w") as tree:
        for entry in archive.infolist():
            _, data, path = entry.filename.partition(".data/data/")
            if data and not entry.is_dir():
                node = tarfile.TarInfo(path)
                node.size, node.mode = entry.file_size, 0o755
                tree.addfile(node, archive.open(entry))
    for host in lab.hosts:
        command = f"mkdir -p {name} && tar -xf - -C {name}"
        subprocess.run([*ssh_argv(host), command], input=packed.getvalue(), check=True, timeout=60)
    return f"/home/{lab.hosts[0].user}/{name}"


def new_cluster(lab: Lab, directory: Path) -> Cluster:
    """That lab for one test: an empty project, and a register without runs."""
    project = directory / "project"
    project.mkdir()
    return Cluster(lab, project, directory / "state")


def session_dir(factory: pytest.TempPathFactory) -> Path:
    """One directory for all modules of a session."""
    directory = factory.getbasetemp() / "run"
    directory.mkdir(exist_ok=True)
    return directory
