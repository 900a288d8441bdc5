"""Reads the ssh config that trust wrote on node0, and the hosts in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ipexctl.remote.command import Command
from ipexctl.remote.session import capture
from ipexctl.trust.config import names_in

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ipexctl.remote.cancel import Cancel
    from ipexctl.remote.session import Session


def read_config(session: Session, home: str, *, cancel: Cancel | None = None) -> str:
    """Its text, or empty if there is no file; `home` may begin with `~/`."""
    directory = home[2:] if home.startswith("~/") else home
    result = capture(session, Command.argv("cat", "--", f"{directory}/ssh/config"), timeout=30, cancel=cancel)
    return result.stdout.decode(errors="replace") if result.ended.ok else ""


def config_in(home: str, text: str, names: Iterable[str]) -> str | None:
    """Its path if that text has all of these hosts."""
    return f"{home}/ssh/config" if set(names) <= set(names_in(text)) else None
