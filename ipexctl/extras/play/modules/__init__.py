"""The modules of playbooks: declarations by name, and implementations, imported on first use."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

from ipexctl.extras.play.modules.specs import SPECS

_FILES: Final = {spec.name: file for file, specs in SPECS.items() for spec in specs}
_SPECS: Final = {spec.name: spec for specs in SPECS.values() for spec in specs}
MODULES: Final = {**_SPECS, "shell": _SPECS["exec"]}


def runner(name: str) -> Callable[..., Any]:
    """A module's function, called by the `where` of its declaration:

    `control`: (context, call) -> Result; `host`: (context, call, session) -> Result;
    `all`: (context, call, hosts) -> Result for all hosts, or a mapping from the host's name.
    """
    file = import_module(f"ipexctl.extras.play.modules.{_FILES[name]}")
    function: Callable[..., Any] = file.RUNNERS[name]
    return function
