"""A page's reader: types its commands one after another, in a directory with its files, and looks at what comes."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from doc_blocks import ROOT, Block, Shown
from doc_output import lie_in

STRAYS = (
    "COLUMNS",
    "IPEXCTL_HOSTFILE",
    "IPEXCTL_HOME",
    "SLURM_JOB_NODELIST",
    "SLURM_NODELIST",
    "PBS_NODEFILE",
    "PYTHONPATH",
)
FILES = ROOT / "tests/stand_ins/pages"
"""What pages speak of and don't show: a script that trains, one that hangs …"""

_ENDINGS = (
    (re.compile(r"^refused: "), {1}),
    (re.compile(r"^[\w.]+:\d+:\d+: "), {2}),
    (re.compile(r"^run \S+ failed after "), {1}),
    (re.compile(r"^\w+: unreachable: "), {3}),
)
"""What a page shows of a command that is to fail, and the exit code that belongs to it."""


@dataclass
class Shell:
    """`lab`: the name of the lab that pages call `lab`; `ssh_config`: what this machine's ssh is set to meanwhile;
    `programs`: what else is on PATH."""

    place: Path
    env: Mapping[str, str] = field(default_factory=dict)
    lab: str | None = None
    ssh_config: Path | None = None
    programs: Path | None = None
    timeout: float = 240
    lies: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        program = self.place / "bin/ipexctl"
        program.parent.mkdir(parents=True)
        program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m ipexctl "$@"\n')
        program.chmod(0o755)
        (self.place / "home").mkdir()
        self.project = self.place / "project"
        self.project.mkdir()
        shutil.copytree(ROOT / "examples", self.project / "examples", ignore=shutil.ignore_patterns("checkpoints"))
        kept = {name: value for name, value in os.environ.items() if name not in STRAYS}
        path = (program.parent, self.programs, os.path.dirname(sys.executable), os.environ["PATH"])
        own = {
            "PATH": ":".join(map(str, filter(None, path))),
            "PYTHONPATH": str(ROOT),
            "PAGES": str(FILES),
            "HOME": str(self.place / "home"),
            "XDG_STATE_HOME": str(self.place / "state"),
            "XDG_CACHE_HOME": str(self.place / "cache"),
        }
        self._env = {**kept, **own, **self.env}
        self._broken = False

    def follow(self, block: Block) -> None:
        """Every command of it; what isn't as the page says is noted, and the next is typed all the same."""
        for shown in block.commands():
            self._type(block.place, shown)

    def type(self, line: str) -> str:
        """What no page says, and has to be there before it."""
        done = self._run(line)
        assert done.returncode == 0, f"{line}\n{done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def write(self, name: str, text: str) -> None:
        path = self.project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def _type(self, place: str, shown: Shown) -> None:
        line = self._there(shown.line)
        if line.startswith("export "):
            name, _, value = line.removeprefix("export ").partition("=")
            self._env[name] = value
            return
        started = time.monotonic()
        done = self._run(line)
        self.seconds[f"{place}: {shown.line}"] = time.monotonic() - started
        said = f"{place}: {line}\n{done.returncode}\n{done.stdout}\n{done.stderr}"
        told = list(shown.output)
        if done.returncode not in self._may_end_with(line, told) or "\nTraceback" in f"\n{done.stderr}":
            self.lies.append(f"how it ends: {said}")
            return
        if line.startswith("ipexctl doctor"):
            told = [line for line in told if line.startswith("host ")]  # what it thinks of the machine is its own
            told += ["…"] if told else []
        if lie := lie_in(told, self._back(line, done.stdout), self._back(line, done.stderr)):
            self.lies.append(f"{lie}\n{said}")

    def _run(self, line: str) -> subprocess.CompletedProcess[str]:
        argv = ["bash", "-c", line]
        if self.ssh_config:
            mount = f'mount --bind {shlex.quote(str(self.ssh_config))} /etc/ssh/ssh_config && exec "$@"'
            argv = ["unshare", "--mount", "sh", "-c", mount, "sh", *argv]
        with subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.project,
            env=self._env,
            start_new_session=True,
        ) as process:
            if line.startswith("ipexctl attach"):
                time.sleep(LOOKS_ON)
                os.killpg(process.pid, signal.SIGHUP)
            try:
                out, err = process.communicate(timeout=self.timeout)
            except BaseException:
                os.killpg(process.pid, signal.SIGKILL)
                raise
        return subprocess.CompletedProcess(argv, process.returncode, out, err)

    def _may_end_with(self, line: str, told: list[str]) -> set[int]:
        """What doctor thinks of the machine of the tests is not ours to say; a broken host can't be reached."""
        if " lab break" in line or " lab mend" in line:
            self._broken = " lab break" in line
            return {0}
        for pattern, codes in _ENDINGS:
            if any(pattern.search(line) for line in told) and not line.startswith("ipexctl why"):
                return codes
        if line.startswith("ipexctl attach"):
            return {0, 128 + signal.SIGHUP}
        return {0} | ({1} if line.startswith("ipexctl doctor") else set()) | ({3} if self._broken else set())

    def _there(self, line: str) -> str:
        """The page's lab is the test's own, beside all others of this machine; its runs are today's."""
        line = line.replace("train-1120", f"train-{time.strftime('%m%d')}")
        if self.lab is None:
            return line
        line = line.replace("/labs/lab/", f"/labs/{self.lab}/")
        line = re.sub(r"\blab (up|down)\b", rf"lab \1 --lab {shlex.quote(self.lab)}", line)
        return re.sub(r"\blab (break|mend|ssh) (?=node)", rf"lab \1 {self.lab}/", line)

    def _back(self, line: str, text: str) -> list[str]:
        """As it would be with the page's lab alone on this machine."""
        if self.lab is None:
            return text.splitlines()
        others = line.startswith("ipexctl lab list")
        lines = [each.replace(self.lab, "lab") for each in text.splitlines()]
        return [each for each in lines if not others or re.match(r"lab\b|─", each)]


LOOKS_ON = 4.0
"""Seconds for which a run that goes on is watched before the terminal is closed."""
