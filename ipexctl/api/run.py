"""The steps of a run in their order, for `ipexctl run`, the playbook's `run`, and Python programs:

    install, if asked for ──► plan ──► submit ──► follow ──► --notify ──► remove secrets
                               └─ a dry run ends here       └─ a detached run continues without this call

Except for the install, nothing changes before the plan. Slow imports happen while the hosts connect.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

from ipexctl.remote.outcome import Watch, ignore_event
from ipexctl.run.start.call import RunCall

if TYPE_CHECKING:
    from ipexctl.facts.gather import HostFacts
    from ipexctl.remote.session_pool import SessionPool
    from ipexctl.run.start.pipeline import PlannedRun, StartedRun
    from ipexctl.run.start.request import StartFailure
    from ipexctl.stack.install_context import InstallReport
    from ipexctl.sync.project import Project


class RunWatcher(ABC):
    """What the caller of `run` does at each event; most methods do nothing by default."""

    @abstractmethod
    def sessions(self) -> AbstractContextManager[SessionPool]:
        """For the start, and again to remove secrets."""

    def on_step(self, text: str) -> None:
        """Called with each step to show."""
        del text

    def on_note(self, text: str) -> None:
        del text

    def on_warning(self, text: str) -> None:
        """A problem after the run that does not change its exit code."""
        del text

    def installing(self) -> AbstractContextManager[Watch]:
        return nullcontext(ignore_event)

    def on_installed(self, report: InstallReport) -> None:
        """The environment is on the hosts, or the call ends."""
        del report

    def on_started(self, run: StartedRun) -> None:
        """The ranks start; from here the run outlives this call."""
        del run

    @abstractmethod
    def follow(self, run: StartedRun) -> int:
        """Follow the run to its end, and return its exit code."""

    def may_leave_secrets(self, code: int) -> bool:
        """True if ranks may not have read their job files. `code`: as `follow` returned it."""
        return code != 0


def run(
    call: RunCall, watcher: RunWatcher, *, dry_run: bool = False
) -> StartedRun | PlannedRun | InstallReport | StartFailure:
    """Start a run and follow it.

    A `StartedRun` without exit code continues by itself; an `InstallReport` is a failed install, a `StartFailure` says
    why nothing was started.
    """
    began, spec = time.monotonic(), call.spec
    with watcher.sessions() as pool:
        from ipexctl.run.start import pipeline  # while the hosts connect
        from ipexctl.run.start.request import StartFailure

        if dry_run:
            notes: list[str] = []
            if spec.install:
                from ipexctl.api.before_run import request_of_run

                stack = request_of_run(call, notes.append).with_torch().env.stack
                call = replace(call, spec=replace(spec, torch=stack.torch))
            planned = pipeline.plan_run(call, pool, run="RUN", on_step=watcher.on_step, on_note=watcher.on_note)
            for note in notes:  # name the project before any note
                watcher.on_step(note)
            return planned
        reading: Future[Project] | None = None
        probed: Sequence[HostFacts] = ()
        if spec.install:
            from ipexctl.api.before_run import install_first
            from ipexctl.run.start.upload import start_reading

            reading = start_reading(spec, call.project, watcher.on_step)
            installed = install_first(call, pool, watcher, reading)
            if not isinstance(installed, tuple):
                return installed
            probed = installed
        started = pipeline.start_run(
            call, pool, on_step=watcher.on_step, on_note=watcher.on_note, reading=reading, probed=probed
        )
        if isinstance(started, StartFailure):
            return started
        for note in started.notes:
            watcher.on_note(note)
        watcher.on_started(started)
        if not spec.is_followed and not pool.cancel.thrown:
            return started
        code = watcher.follow(started)
    if spec.notify:
        from ipexctl.run.notify import notify_of_run

        notify_of_run(spec.notify, started.record, code, time.monotonic() - began, watcher.on_warning)
    if watcher.may_leave_secrets(code):
        with watcher.sessions() as pool:
            pipeline.remove_job_files(call.hosts, started.record, pool)
    return replace(started, exit_code=code)
