"""Runs the commands of a page one after another in a directory with its files, and compares the output."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from doc_blocks import ROOT, Block, PageCommand
from doc_output import find_difference

REMOVED_VARIABLES = (
    "COLUMNS",
    "IPEXCTL_HOSTFILE",
    "IPEXCTL_HOME",
    "SLURM_JOB_NODELIST",
    "SLURM_NODELIST",
    "PBS_NODEFILE",
    "PYTHONPATH",
)
FILES = ROOT / "tests/stand_ins/pages"
"""Files that pages use and do not show: a script that trains, one that hangs …"""

_ENDINGS = (
    (re.compile(r"^refused: .* not free: "), {3}),
    (re.compile(r"^refused: "), {1}),
    (re.compile(r"^[\w.]+:\d+:\d+: "), {2}),
    (re.compile(r"^run \S+ failed after "), {1}),
    (re.compile(r"^\w+: unreachable: "), {3}),
    (re.compile(r"^the ranks of run \S+ cannot be compared: "), {1}),
)
"""Output of commands that are expected to fail, and their exit codes."""


@dataclass
class Shell:
    """`lab`: the name of the lab that pages call `lab`; `ssh_config`: what this machine's ssh is set to meanwhile;
    `programs`: what else is on PATH."""

    place: Path
    env: Mapping[str, str] = field(default_factory=dict)
    lab: str | None = None
    ssh_config: Path | None = None
    programs: Path | None = None
    ipexctl: tuple[str, ...] = (sys.executable, "-m", "ipexctl")
    timeout: float = 240
    differences: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        program = self.place / "bin/ipexctl"
        program.parent.mkdir(parents=True)
        program.write_text(f'#!/bin/sh\nexec {shlex.join(self.ipexctl)} "$@"\n')
        program.chmod(0o755)
        (self.place / "home").mkdir()
        self.project = self.place / "project"
        self.project.mkdir()
        shutil.copytree(ROOT / "examples", self.project / "examples", ignore=shutil.ignore_patterns("checkpoints"))
        kept = {name: value for name, value in os.environ.items() if name not in REMOVED_VARIABLES}
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
        """Run every command of a block; differences are collected, and the next command runs in any case."""
        for shown in block.commands():
            self._type(block.place, shown)

    def type(self, line: str) -> str:
        """Run a command that prepares a page, or set a variable for all that follow: `export NAME=$(…)`."""
        name, _, value = line.removeprefix("export ").partition("=")
        is_export = line.startswith("export ")
        done = self._run(f"printf %s {value}" if is_export else line)
        if is_export:
            self._env[name] = done.stdout
        assert done.returncode == 0, f"{line}\n{done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def write(self, name: str, text: str) -> None:
        path = self.project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def _type(self, place: str, shown: PageCommand) -> None:
        line = self._adapt_command(shown.line)
        if line.startswith("export "):
            name, _, value = line.removeprefix("export ").partition("=")
            self._env[name] = value
            return
        started = time.monotonic()
        try:
            done = self._run(line)
        finally:  # a timeout may end the test
            print(f"{time.monotonic() - started:6.1f} s  {place}: {shown.line}")
        said = f"{place}: {line}\n{done.returncode}\n{done.stdout}\n{done.stderr}"
        told = list(shown.output)
        if done.returncode not in self._expected_exit_codes(line, told) or "\nTraceback" in f"\n{done.stderr}":
            self.differences.append(f"how it ends: {said}")
            return
        if line.startswith("ipexctl doctor"):
            told = [line for line in told if line.startswith("host ")]  # what it thinks of the machine is its own
            told += ["…"] if told else []
        if lie := find_difference(told, self._adapt_output(line, done.stdout), self._adapt_output(line, done.stderr)):
            self.differences.append(f"{lie}\n{said}")

    def _run(self, line: str) -> subprocess.CompletedProcess[str]:
        argv = self._with_ssh_config(["bash", "-c", line])
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
            try:
                if line.startswith("ipexctl attach"):
                    self._close_terminal(process)
                out, err = process.communicate(timeout=self.timeout)
            except BaseException:
                os.killpg(process.pid, signal.SIGKILL)
                raise
        return subprocess.CompletedProcess(argv, process.returncode, out, err)

    def _with_ssh_config(self, argv: list[str]) -> list[str]:
        if self.ssh_config is None:
            return argv
        mount = f'mount --bind {shlex.quote(str(self.ssh_config))} /etc/ssh/ssh_config && exec "$@"'
        return ["unshare", "--mount", "sh", "-c", mount, "sh", *argv]

    def _close_terminal(self, process: subprocess.Popen[str]) -> None:
        """Close the terminal of a call that has not ended after 4 s."""
        try:
            process.wait(4.0)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGHUP)

    def _expected_exit_codes(self, line: str, told: list[str]) -> set[int]:
        """The allowed exit codes: doctor may have findings about this machine, broken hosts are unreachable."""
        if " lab break" in line or " lab mend" in line:
            self._broken = " lab break" in line
            return {0}
        for pattern, codes in _ENDINGS:
            if any(pattern.search(line) for line in told) and not line.startswith("ipexctl why"):
                return codes
        if line.startswith("ipexctl attach"):
            return {0, 128 + signal.SIGHUP, -signal.SIGHUP}
        if line.startswith("ipexctl why last --profile"):
            return {1}  # the pages' scripts take no optimizer step; tests/stack profiles those that do
        return {0} | ({1} if line.startswith("ipexctl doctor") else set()) | ({3} if self._broken else set())

    def _adapt_command(self, line: str) -> str:
        """Replace the lab name of the page by that of the test, and its date by today."""
        line = line.replace("train-1120", f"train-{time.strftime('%m%d')}")
        if self.lab is None:
            return line
        line = line.replace("/labs/lab/", f"/labs/{self.lab}/")
        line = re.sub(r"\blab (up|down)\b", rf"lab \1 --lab {shlex.quote(self.lab)}", line)
        return re.sub(r"\blab (break|mend|ssh) (?=node)", rf"lab \1 {self.lab}/", line)

    def _adapt_output(self, line: str, text: str) -> list[str]:
        """The output as if the page's lab were the only one."""
        if self.lab is None:
            return text.splitlines()
        lines = text.splitlines()
        if line.startswith("ipexctl lab list"):
            lines = [each for each in lines if each.startswith((self.lab, "─")) or re.match(r"lab +host\b", each)]
        return [each.replace(self.lab, "lab") for each in lines]


@dataclass
class LoginShell(Shell):
    """Types all commands into one shell on another machine. `salloc` opens a shell in it, which reads what follows."""

    login: str = ""

    @cached_property
    def _session(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self._with_ssh_config(["ssh", self.login, "bash"]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=self._env,
            start_new_session=True,
        )

    def close(self) -> None:
        """Close the shell, and with it that of salloc."""
        self._session.communicate(timeout=30)

    def _run(self, line: str) -> subprocess.CompletedProcess[str]:
        opens = line.startswith("salloc")
        typed = f"2>~/err {line}" if opens else f"{{ {line}\n}} >~/out 2>~/err </dev/null"
        stdin, stdout = self._session.stdin, self._session.stdout
        assert stdin is not None and stdout is not None
        stdin.write(f': >~/out\n{typed}\necho "$?:$(base64 -w0 ~/out):$(base64 -w0 ~/err)"\n')
        stdin.flush()
        code, out, err = stdout.readline().strip().split(":")
        return subprocess.CompletedProcess([line], int(code), b64decode(out).decode(), b64decode(err).decode())
