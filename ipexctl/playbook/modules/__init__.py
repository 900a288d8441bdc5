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

_FILES: Final = {spec.name: file for file, specs in SPECS.items() for spec in specs}
_SPECS: Final = {spec.name: spec for specs in SPECS.values() for spec in specs}
MODULES: Final = {**_SPECS, "shell": _SPECS["exec"]}
"""Declarations by every name that a task may use."""


class Runner(Protocol):
    """The interface of modules; each implements the method that its spec's `where` selects."""

    def run_locally(self, context: PlayContext, call: Call, conditions: Sequence[bool]) -> Result: ...

    def run_on_host(self, context: PlayContext, call: Call, session: Session) -> Result: ...

    def run_on_all(self, context: PlayContext, calls: Sequence[Call]) -> Mapping[str, Result]: ...


def runner(name: str) -> Runner:
    file: Any = import_module(f"ipexctl.playbook.modules.{_FILES[name]}")
    return cast("Runner", file.RUNNERS[name])
