"""The modules of playbooks: their declarations by name, and their implementations, which are imported on first use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from ipexctl.playbook.modules.specs import SPECS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ipexctl.playbook.play_context import PlayContext
    from ipexctl.playbook.result import Call, Result
    from ipexctl.remote.session import Session

MODULES: Final = {
    **{spec.name: spec for spec in SPECS},
    "shell": next(spec for spec in SPECS if spec.name == "exec"),
}
"""Declarations by every name that a task may use."""

_FILES: Final = {
    "exec": "shell",
    "command": "shell",
    "copy": "copy",
    "template": "copy",
    "file": "file",
    "stat": "file",
    "ping": "file",
    "fetch": "fetch",
    "wait_for": "wait_for",
    "assert": "debug",
    "fail": "debug",
    "debug": "debug",
    "set_fact": "debug",
    "pause": "wait_for",
    "doctor": "doctor_trust_sync",
    "trust": "doctor_trust_sync",
    "sync": "doctor_trust_sync",
    "install": "stack",
    "env": "stack",
    "run": "run",
    "tune": "tune",
    "migrate": "migrate",
}


class Runner(Protocol):
    """The interface of modules; each implements the method that its spec's `where` selects."""

    def run_locally(self, context: PlayContext, call: Call, conditions: Sequence[bool]) -> Result: ...

    def run_on_host(self, context: PlayContext, call: Call, session: Session) -> Result: ...

    def run_on_all(self, context: PlayContext, calls: Sequence[Call]) -> Mapping[str, Result]: ...


def runner(name: str) -> Runner:
    file: Any = import_module(f"ipexctl.playbook.modules.{_FILES[name]}")
    return cast("Runner", file.RUNNERS[name])
