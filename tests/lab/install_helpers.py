"""Helpers for tests of install: a lab, small wheels, and a home for each test."""

from __future__ import annotations

import json
from dataclasses import dataclass
from subprocess import Popen
from typing import Any

from cli_helpers import CommandResult, begin, ipexctl
from ipexctl.addons.lab.lab_record import Lab, LabHost
from lab_helpers import on_host

PYTHON = "cp311"
"""The lab's hosts have the Python of this machine's distribution."""


@dataclass(frozen=True)
class Target:
    """A lab, and the directory on its hosts that one test has to itself."""

    lab: Lab
    home: str

    @property
    def hosts(self) -> tuple[LabHost, ...]:
        return self.lab.hosts

    def install(self, *args: object, verb: str = "install", timeout: float = 120, **more: Any) -> CommandResult:
        return ipexctl(verb, "-H", self.lab.hostfile, "--home", self.home, *args, timeout=timeout, **more)

    def begin(self, *args: object, **more: Any) -> Popen[str]:
        return begin("install", "-H", self.lab.hostfile, "--home", self.home, *args, **more)

    def report(self, *args: object, rc: int = 0, **more: Any) -> dict[str, Any]:
        """Install, and its JSON; the exit code is what it should be."""
        ran = self.install(*args, "--json", **more)
        assert ran.rc == rc, ran.err + ran.out
        data: dict[str, Any] = json.loads(ran.out)
        return data

    def on(self, index: int, command: str, *, as_root: bool = False) -> str:
        return on_host(self.hosts[index], command.replace("$HOME_OF_OURS", self.home), as_root=as_root)

    def nothing_usable(self, index: int) -> bool:
        """Whether the host has no environment, complete or partial."""
        return self.on(index, "ls -A $HOME_OF_OURS/envs 2>/dev/null | wc -l").strip() == "0"


def statuses(report: dict[str, Any]) -> dict[str, str]:
    return {host["name"]: host["status"] for host in report["hosts"]}
