"""Whether node0 has the ssh config that trust makes, and whom it knows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ipexctl.remote.command import Command
from ipexctl.remote.session import capture
from ipexctl.trust.config import names_in

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ipexctl.remote.cancel import Cancel
    from ipexctl.remote.session import Session


def config_for(session: Session, home: str, names: Iterable[str], *, cancel: Cancel | None = None) -> str | None:
    """The config's path on node0, where it has all of these hosts; raises a HostError where node0 is lost."""
    path = f"{home}/ssh/config"
    said = capture(session, Command.argv("cat", path), timeout=30, cancel=cancel)
    known = names_in(said.stdout.decode(errors="replace")) if said.ended.ok else ()
    return path if set(names) <= set(known) else None
