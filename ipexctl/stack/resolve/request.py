"""What a call of install, or versions, asks for. Values only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class StackRequest:
    """Which stack; nothing given asks for the newest that fits."""

    torch: str | None = None
    """`2.8` or `2.8.0`."""
    stack: str | None = None
    """A row's name (`ipex-2.7`, `torch-2.13`), or a kind: `ipex`, `torch`."""
    ipex: str | None = None
    oneccl: str | None = None
    python: str | None = None
    """`3.11`."""
    require_oneccl: bool = False


@dataclass(frozen=True, slots=True)
class Sources:
    """Where wheels may come from, as the call says; pip's own settings are read on the machine that downloads."""

    index_url: str | None = None
    extra_index_urls: tuple[str, ...] = ()
    find_links: tuple[str, ...] = ()
    wheelhouse: str | None = None
    """A directory here, absolute, or a URL."""
    offline: bool = False


@dataclass(frozen=True, slots=True)
class EnvRequest:
    """An environment as asked for: what tells whether one that is there already will do."""

    stack: StackRequest
    extras: tuple[str, ...] = ()
    """Requirement lines: from --with, then from requirements files, includes resolved."""
    constraints: tuple[str, ...] = ()
    """Of requirements files."""

    def to_json(self) -> dict[str, Any]:
        asked = self.stack
        return {
            "torch": asked.torch,
            "stack": asked.stack,
            "ipex": asked.ipex,
            "oneccl": asked.oneccl,
            "python": asked.python,
            "require_oneccl": asked.require_oneccl,
            "extras": list(self.extras),
            "constraints": list(self.constraints),
        }

    @classmethod
    def from_json(cls, asked: dict[str, Any]) -> EnvRequest:
        """What an environment's record holds; one of an older version may lack some of it."""
        words = {name: asked.get(name) for name in ("torch", "stack", "ipex", "oneccl", "python")}
        stack = StackRequest(**words, require_oneccl=bool(asked.get("require_oneccl")))
        return cls(stack, tuple(asked.get("extras") or ()), tuple(asked.get("constraints") or ()))
