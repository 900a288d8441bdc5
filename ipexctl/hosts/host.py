"""A host as the user's file names it. What the machine really is lives in `facts`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Host:
    """One machine of the cluster. `None` means the file doesn't say, so ssh's own configuration decides."""

    name: str
    """As the user wrote it, and how every message and table calls it."""
    address: str
    """What is handed to ssh: the name itself, or what the file gives beside it."""
    user: str | None = None
    port: int | None = None
    slots: int | None = None
    """How many ranks the file grants it; a host that is repeated has the sum."""
    max_slots: int | None = None
    internal: str | None = None
    """The address the other hosts reach it by, where that differs."""
    identity: Path | None = None
    known_hosts: Path | None = None
    ssh_config: Path | None = None
    groups: tuple[str, ...] = ()
    vars: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Whatever else an inventory says of it, as text, for playbooks."""
    shared: frozenset[str] = frozenset()
    """Which of these its groups say, and not it itself."""
