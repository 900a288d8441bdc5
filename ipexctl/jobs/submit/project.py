"""The project on this machine: where its root is, and what the ranks execute in it. No host is touched."""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ipexctl.errors import UserError
from ipexctl.hosts.names import quoted
from ipexctl.jobs.submit.preflight.requirements import requirements_of_module, requirements_of_script
from ipexctl.sync.root import path_problem, root_for, root_problem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ipexctl.jobs.registry import RunRecord
    from ipexctl.jobs.submit.preflight.imports import ScriptRequirements
    from ipexctl.jobs.submit.request import RunRequest
    from ipexctl.launch.request import CommandKind

_GENERATION: Final = re.compile(r"(?P<tree>.*?)(?:\.gen(?P<number>\d+))?")


@dataclass(frozen=True, slots=True)
class ProjectLocation:
    """Where the project is here, and what the ranks execute in it."""

    root: Path
    below: str
    """The working directory, from the root on."""
    words: tuple[str, ...]
    """The command, the script from the working directory on."""
    needs: ScriptRequirements | None = None
    """What of it the hosts' Python has to have; None where we don't bring it."""

    def executed(self, kind: CommandKind) -> str:
        """The script, or else the working directory: where it lies here, and on hosts it isn't brought to."""
        at = self.root / self.below
        return os.path.normpath(at / self.words[0] if kind == "script" else at)


def locate_project(wishes: RunRequest, cwd: Path) -> ProjectLocation:
    """Refuses a script that isn't there, or is no Python, before any host is touched."""
    script = Path(wishes.script) if wishes.kind == "script" else None
    if script is not None:
        at = cwd / script
        if problem := path_problem(at, "file"):
            raise UserError(
                f"the script {quoted(str(script))} {problem}",
                fix="its path from here; a module: -m NAME; a command: -- CMD",
            )
    if wishes.cwd is not None and (problem := path_problem(cwd / wishes.cwd, "directory")):
        raise UserError(f"--cwd {quoted(str(wishes.cwd))} {problem}", fix="the project's directory on this machine")
    root = root_for(script, wishes.cwd, cwd)
    if wishes.sync and (problem := root_problem(root)):
        raise UserError(problem, fix=project_fix(script and cwd / script))
    here = Path(os.path.normpath(cwd))
    below = here.relative_to(root).as_posix() if here.is_relative_to(root) else "."
    if script is None:
        needs = requirements_of_module(wishes.script, root / below) if wishes.kind == "module" else None
        return ProjectLocation(root, below, wishes.words, needs)
    at = Path(os.path.normpath(cwd / script))
    if not at.is_relative_to(root):
        raise UserError(
            f"the script {quoted(str(script))} is not below {root}",
            fix="--cwd names the directory that holds all of it",
        )
    needs = requirements_of_script(str(script), at, root / below)
    word = os.path.relpath(at, root / below)
    word = f"./{word}" if word.startswith("-") else word  # Python would take it for an option of its own
    return ProjectLocation(root, below, (word, *wishes.words[1:]), needs)


def project_fix(script: Path | None, option: str = "--cwd ", without: str = "--no-sync") -> str:
    """What to type where a root can't be a project. `option` names a project's directory, `without` copies nothing."""
    if script is None:
        return f"cd to the project's directory, or name it: {option}DIR; to copy nothing: {without}"
    at = Path(os.path.normpath(script))
    if not root_problem(at.parent):
        return f"name the project's directory: {option}{shlex.quote(str(at.parent))}"
    return (
        f"make a project of it: mkdir ~/project && mv {shlex.quote(str(at))} ~/project/ && cd ~/project; "
        f"where the script is on every host: {without}"
    )


def files_in_other_generations(tree: str, below: str, records: Sequence[RunRecord]) -> str:
    """A sentence, where the last run of this project wrote into a later generation of its tree. Pure."""
    first, number = _generation(tree)
    for record in reversed(records):
        end = "" if below == "." else f"/{below}"
        at, then = _generation(record.cwd.removesuffix(end))
        if at != first:
            continue
        if then <= number:
            return ""
        return (
            f"this run begins in {tree}, which is free again; what {record.id} wrote is in {record.cwd}: "
            f"ipexctl fetch {record.id}:PATH . brings it into the project"
        )
    return ""


def _generation(tree: str) -> tuple[str, int]:
    found = _GENERATION.fullmatch(tree)
    return (found["tree"], int(found["number"] or 1)) if found is not None else (tree, 1)
