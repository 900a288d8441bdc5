"""Why there is no lock, in words a newcomer acts on: uv's complaint, read. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ipexctl.remote.outcome import HostError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ipexctl.stack.indexes import Asked
    from ipexctl.stack.plan import StackPlan


def explain(said: str, plan: StackPlan, extras: tuple[str, ...], origins: Mapping[str, str], asked: Asked) -> HostError:
    return HostError(said)
