"""What a start returns to its caller, and the methods that it calls while it is under way."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ipexctl.remote.outcome import Watch, ignore_event

if TYPE_CHECKING:
    from ipexctl.homes.registry import RunRecord
    from ipexctl.launch.run_context import RunContext
    from ipexctl.node.common.plan import Plan
    from ipexctl.remote.connector import SessionPool
    from ipexctl.run.start.begin import Launch
    from ipexctl.stack.install_context import InstallReport


@dataclass(frozen=True, slots=True)
class StartedRun:
    """A run whose ranks were started, and the connection to follow it."""

    record: RunRecord
    launch: Launch
    exit_code: int | None = None
    """Exit code of `ipexctl run`; None until the run was followed to its end."""


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """The result of a dry run."""

    plan: Plan
    context: RunContext


class StartWatcher:
    """Methods that a start calls. They do nothing here; a caller overrides those that it needs."""

    def on_step(self, text: str) -> None:
        """Show a step that has begun or ended."""

    def on_note(self, text: str) -> None:
        """Show advice. Several threads call this."""

    def on_planned(self, plan: Plan) -> None:
        """Look at the plan before anything is changed anywhere. A UserError raised here ends the start."""


class RunWatcher(StartWatcher, ABC):
    """Methods that `api.run` calls, from an install to the end of the run."""

    @abstractmethod
    def sessions(self) -> AbstractContextManager[SessionPool]:
        """Open connections to the hosts. Called for the start, and again at the end if secrets must be removed."""

    def on_warning(self, text: str) -> None:
        """Show a problem after the run that does not change its exit code."""

    def installing(self) -> AbstractContextManager[Watch]:
        """Show the progress of an install. Returns the function that gets its events."""
        return nullcontext(ignore_event)

    @property
    def offers_install(self) -> bool:
        """True if this call may ask the user whether to install a missing environment."""
        return False

    def agrees_to_install(self, report: InstallReport) -> bool:
        """Ask the user whether to install. `report`: what the install would bring."""
        del report
        return False

    def on_installed(self, report: InstallReport) -> None:
        """Show the report of an install. If it failed, no run is started."""

    def on_started(self, run: StartedRun) -> None:
        """Called once the ranks start. From now on the run continues even if this call ends."""

    @abstractmethod
    def follow(self, run: StartedRun) -> int:
        """Follow the run to its end, and return its exit code."""

    def may_leave_secrets(self, code: int) -> bool:
        """True if job files with secrets may still be on the hosts, because not all ranks have read theirs.

        `code`: what `follow` returned.
        """
        return code != 0
