"""A machine that submits runs to the Slurm of a lab, and reaches only its login node."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_helpers import wait_until
from cli_helpers import CommandResult, ipexctl
from ipexctl.extras.lab.lab_record import Lab
from lab_helpers import ask


@dataclass(frozen=True)
class Laptop:
    """A project on this machine, from which runs are submitted."""

    lab: Lab
    project: Path
    environ: dict[str, str]

    def call(self, *words: object, **more: Any) -> CommandResult:
        return ipexctl(*words, cwd=self.project, env=self.environ, **more)

    def submit(self, *words: object) -> str:
        """The id of the run."""
        hosts = ("-H", self.lab.hostfile, "--slurm", "node1", "--python", "/usr/bin/python3")
        done = self.call("submit", *hosts, *words)
        assert done.rc == 0, done.err
        return done.out.strip()

    def state(self, run: str) -> dict[str, Any]:
        runs = json.loads(self.call("ps", "--json").out)["runs"]
        return next(entry for entry in runs if entry["id"] == run)

    def wait_for(self, run: str, state: str) -> None:
        wait_until(lambda: self.state(run)["state"] == state, 30, lambda: str(self.state(run)))


def new_laptop(lab: Lab, directory: Path, files: Mapping[str, str]) -> Iterator[Laptop]:
    """One with a project; no job stays behind it."""
    project = directory / "project"
    project.mkdir()
    (project / "pyproject.toml").touch()
    for name, text in files.items():
        (project / name).write_text(text)
    environ = {"XDG_STATE_HOME": str(directory / "state"), "XDG_CACHE_HOME": str(directory / "cache")}
    yield Laptop(lab, project, {**environ, "TOKEN": "s3cret"})
    ask(lab.hosts[0], "scancel -u ipex")
