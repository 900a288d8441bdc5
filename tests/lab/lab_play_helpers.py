"""Helpers for tests of playbooks on lab hosts: a directory of playbooks, calls and their reports."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen
from typing import Any

from cli_helpers import CommandResult, begin, ipexctl
from ipexctl.addons.lab.lab_record import Lab
from lab_helpers import on_host


@dataclass(frozen=True)
class Site:
    """A directory of playbooks, and hosts to play them on."""

    lab: Lab
    directory: Path
    place: str
    """A directory of this test's own on every host."""

    def play(self, tasks: str, *args: object, head: str = "", rc: int | None = 0, **more: Any) -> CommandResult:
        lines = "".join(f"    {line}\n" for line in tasks.replace("PLACE", self.place).splitlines())
        (self.directory / "site.yml").write_text(f"- hosts: all\n{head}  tasks:\n{lines}")
        return self.call("site.yml", *args, rc=rc, **more)

    def call(
        self, *args: object, rc: int | None = 0, env: dict[str, str] | None = None, timeout: float = 90
    ) -> CommandResult:
        where = ("-H", self.lab.hostfile)
        ran = ipexctl("play", *args, *where, cwd=self.directory, env={**self.env, **(env or {})}, timeout=timeout)
        assert rc is None or ran.rc == rc, f"{ran.rc}\n{ran.out}\n{ran.err}"
        return ran

    def begin(self, *, env: dict[str, str] | None = None) -> Popen[str]:
        """The playbook site.yml, which is still being played."""
        where = ("-H", self.lab.hostfile)
        return begin("play", "site.yml", *where, cwd=self.directory, env={**self.env, **(env or {})})

    def report(self, tasks: str, *args: object, **more: Any) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.play(tasks, "--json", *args, **more).out)
        assert found["schema"] == "ipexctl.play/1"
        return found

    @property
    def env(self) -> dict[str, str]:
        return {"XDG_STATE_HOME": str(self.directory / "state")}

    def on(self, index: int, command: str) -> str:
        return on_host(self.lab.hosts[index], command.replace("PLACE", self.place))


def counts(report: dict[str, Any], host: str = "node1") -> tuple[int, int, int, int, int]:
    row = report["recap"][host]
    return row["ok"], row["changed"], row["failed"], row["unreachable"], row["skipped"]


def statuses(report: dict[str, Any], task: str) -> dict[str, str]:
    (found,) = [each for each in report["tasks"] if each["name"] == task]
    return {name: host["status"] for name, host in found["hosts"].items()}
