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
    return config_in(home, read_config(session, home, cancel=cancel), names)


def read_config(session: Session, home: str, *, cancel: Cancel | None = None) -> str:
    """Its text, empty where there is none; `home` may be below the account's: `~/…`."""
    place = home[2:] if home.startswith("~/") else home
    said = capture(session, Command.argv("cat", "--", f"{place}/ssh/config"), timeout=30, cancel=cancel)
    return said.stdout.decode(errors="replace") if said.ended.ok else ""


def config_in(home: str, text: str, names: Iterable[str]) -> str | None:
    """Its path, where that text has all of these hosts."""
    return f"{home}/ssh/config" if set(names) <= set(names_in(text)) else None
