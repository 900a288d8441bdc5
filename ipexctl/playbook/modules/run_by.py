"""From a module's name to what does its work, imported when it is first needed."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ipexctl.playbook.result import Call, Result
    from ipexctl.playbook.world import World
    from ipexctl.remote.session import Session

_WHERE: Final = {
    "exec": "shell",
    "command": "shell",
    "copy": "files",
    "template": "files",
    "file": "paths",
    "stat": "paths",
    "ping": "paths",
    "fetch": "bring",
    "wait_for": "waiting",
    "assert": "saying",
    "fail": "saying",
    "debug": "saying",
    "set_fact": "saying",
    "pause": "waiting",
    "doctor": "cluster",
    "trust": "cluster",
    "sync": "cluster",
    "install": "stack",
    "env": "stack",
    "run": "job",
    "tune": "tuning",
    "migrate": "migrating",
}


class Runner(Protocol):
    """Each has the one of these that its spec's `where` asks for."""

    def here(self, world: World, call: Call, thats: Sequence[bool]) -> Result: ...

    def on_host(self, world: World, call: Call, session: Session) -> Result: ...

    def together(self, world: World, calls: Sequence[Call]) -> Mapping[str, Result]: ...


def runner(name: str) -> Runner:
    room: Any = import_module(f"ipexctl.playbook.modules.{_WHERE[name]}")
    return cast("Runner", room.RUNNERS[name])
