"""What a start returns and tells its caller."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ipexctl.remote.outcome import Watch, ignore_event

if TYPE_CHECKING:
    from ipexctl.homes.registry import RunRecord
    from ipexctl.launch.request import Gathered
    from ipexctl.node.common.plan import Plan
    from ipexctl.remote.connector import SessionPool
    from ipexctl.run.start.begin import Launch
    from ipexctl.stack.install_context import InstallReport


@dataclass(frozen=True, slots=True)
class StartedRun:
    record: RunRecord
    launch: Launch
    exit_code: int | None = None
    """None until it was followed to its end."""


@dataclass(frozen=True, slots=True)
class PlannedRun:
    plan: Plan
    context: Gathered


class StartWatcher:
    def on_step(self, text: str) -> None:
        """Called with each step to show."""

    def on_note(self, text: str) -> None:
        """Called with advice, by several threads."""

    def on_planned(self, plan: Plan) -> None:
        """May raise a UserError: nothing has changed anywhere."""


class RunWatcher(StartWatcher, ABC):
    """What the caller of `api.run` does at each event; most methods do nothing by default."""

    @abstractmethod
    def sessions(self) -> AbstractContextManager[SessionPool]:
        """For the start, and again to remove secrets."""

    def on_warning(self, text: str) -> None:
        """A problem after the run that does not change its exit code."""

    def installing(self) -> AbstractContextManager[Watch]:
        return nullcontext(ignore_event)

    @property
    def offers_install(self) -> bool:
        """True if hosts without the environment are a reason to look up what --install would do."""
        return False

    def agrees_to_install(self, report: InstallReport) -> bool:
        """Ask the user. `report`: of a dry run."""
        del report
        return False

    def on_installed(self, report: InstallReport) -> None:
        """The environment is on the hosts, or the call ends."""

    def on_started(self, run: StartedRun) -> None:
        """The ranks start; from here the run outlives this call."""

    @abstractmethod
    def follow(self, run: StartedRun) -> int:
        """Follow the run to its end, and return its exit code."""

    def may_leave_secrets(self, code: int) -> bool:
        """True if ranks may not have read their job files. `code`: as `follow` returned it."""
        return code != 0
