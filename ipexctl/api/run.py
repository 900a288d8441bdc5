"""The steps of a run in their order, for `ipexctl run`, the playbook's `run`, and Python programs:

    install, if asked for ──► plan ──► submit ──► follow ──► --notify ──► remove secrets
                               └─ a dry run ends here       └─ a detached run continues without this call

Except for the install, nothing changes before the plan. Slow imports happen while the hosts connect.
"""

from __future__ import annotations

import os
import shlex
import time
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from ipexctl.errors import CallError, UserError
from ipexctl.hosts.nodeset import fold
from ipexctl.refusal import Refusal
from ipexctl.remote.outcome import HostError
from ipexctl.remote.progress import Watch, ignore_event

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from concurrent.futures import Future

    from ipexctl.facts.gather import HostFacts
    from ipexctl.remote.session_pool import SessionPool
    from ipexctl.run.registry import RunRecord
    from ipexctl.run.start.call import RunCall
    from ipexctl.run.start.pipeline import PlannedRun, StartedRun
    from ipexctl.run.start.request import StartFailure
    from ipexctl.stack.install_context import InstallReport, InstallRequest
    from ipexctl.stack.resolve.model import StackRequest
    from ipexctl.sync.project import Project


class Followed(NamedTuple):
    exit_code: int
    may_leave_secrets: bool
    """True if ranks may not have read their job files."""


@dataclass(frozen=True, slots=True)
class FollowedRun:
    run: StartedRun
    exit_code: int


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
    def follow(self, run: StartedRun) -> Followed:
        """Follow the run to its end."""


def run(
    call: RunCall, watcher: RunWatcher, *, dry_run: bool = False
) -> FollowedRun | StartedRun | PlannedRun | InstallReport | StartFailure:
    """Start a run and follow it. A `StartedRun` continues by itself; an `InstallReport` is a failed install, a
    `StartFailure` says why nothing was started."""
    began, spec = time.monotonic(), call.spec
    with watcher.sessions() as pool:
        from ipexctl.run.start import pipeline  # while the hosts connect
        from ipexctl.run.start.request import StartFailure

        if dry_run:
            notes: list[str] = []
            if spec.install:
                stack = _request_of(call, notes.append).with_torch().env.stack
                call = replace(call, spec=replace(spec, torch=stack.torch))
            planned = pipeline.plan_run(call, pool, run="RUN", on_step=watcher.on_step, on_note=watcher.on_note)
            for note in notes:  # name the project before any note
                watcher.on_step(note)
            return planned
        reading: Future[Project] | None = None
        probed: Sequence[HostFacts] = ()
        if spec.install:
            from ipexctl.run.start.upload import start_reading

            reading = start_reading(spec, call.project, watcher.on_step)
            installed = _install_first(call, pool, watcher, reading)
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
        followed = watcher.follow(started)
    if spec.notify:
        from ipexctl.run.notify import notify_of_run

        notify_of_run(spec.notify, started.record, followed.exit_code, time.monotonic() - began, watcher.on_warning)
    if followed.may_leave_secrets:
        with watcher.sessions() as pool:
            pipeline.remove_job_files(call.hosts, started.record, pool)
    return FollowedRun(started, followed.exit_code)


def on_hosts_left(
    call: RunCall, record: RunRecord, pool: SessionPool, on_note: Callable[[str], None], *, typed: Collection[str] = ()
) -> RunCall:
    """The call that restarts the record's run on its hosts that answer.

    `typed`: options of this call, not of the run. Raises a CallError if no host answers, or the run is alive.
    """
    from ipexctl.run.start.exclusive import look_at_runs
    from ipexctl.run.start.resume import hosts_to_look_at, resumed_call

    outcomes = look_at_runs(hosts_to_look_at(call, record), pool)
    looks = {outcome.host.name: outcome.error or outcome.result for outcome in outcomes}
    found = resumed_call(call, record, looks, typed)
    if isinstance(found, Refusal):
        raise CallError(found.reason, fix=call.options.apply(found.fix), exit_code=found.exit_code)
    for host in call.hosts:
        if isinstance(error := looks[host.name], HostError) and host not in found.hosts:
            on_note(f"{host.name} is left out: {error.reason}")
    on_note(f"run {record.id} starts over on {fold(host.name for host in found.hosts)}")
    return found


def _request_of(call: RunCall, on_step: Callable[[str], None]) -> InstallRequest:
    from ipexctl.stack.install_context import install_request
    from ipexctl.stack.resolve.model import Sources, StackRequest

    spec = call.spec
    stack = StackRequest(spec.torch, spec.stack)
    wanted = _request_of_project(call, stack, on_step) or install_request(
        stack, spec.packages, spec.requirements, Sources(), spec.env, os.environ
    )
    return replace(wanted, home=spec.home, iface=spec.iface, timeout=spec.timeout)


def _request_of_project(call: RunCall, stack: StackRequest, on_step: Callable[[str], None]) -> InstallRequest | None:
    """Request for the packages of the project's own file, which was found, not named; None without a usable one.

    A file that can't be installed does not end the call: the script may not need what it names.
    """
    from ipexctl.found_files import check_found
    from ipexctl.stack.install_context import install_request
    from ipexctl.stack.own_requirements import find_own_requirements
    from ipexctl.stack.resolve.model import Sources

    spec = call.spec
    if not spec.takes_own_requirements or spec.packages or spec.requirements or spec.python is not None:
        return None
    file = find_own_requirements(call.project.root)
    if file is None:
        return None
    option = f"-r {shlex.quote(os.path.relpath(file.path))}"
    try:
        for read in file.read_files:
            check_found(read, naming=f"ipexctl run {option}")
        request = install_request(stack, (), [file.path], Sources(), spec.env, os.environ)
        for read in request.files:  # included files too
            check_found(read, naming=f"ipexctl run {option}")
    except UserError as error:
        on_step(f"note: {file.path.name} is left out: {error}; --no-requirements leaves it out in silence")
        return None
    if request.sources != Sources():
        on_step(f"note: {file.path.name} is left out: it names indexes, which count if the call has {option}")
        return None
    on_step(f"note: the packages of {file.path.name} are installed, too; without them: --no-requirements")
    return request


def _install_first(
    call: RunCall, pool: SessionPool, watcher: RunWatcher, reading: Future[Project] | None
) -> tuple[HostFacts, ...] | InstallReport | StartFailure:
    """Install the environment on hosts that lack it, as `ipexctl install` does.

    Return the hosts' facts if nothing had to be installed, so they still hold. Without --stack and --torch the hosts
    get the environment of the others.
    """
    from ipexctl.facts.gather import gather_facts
    from ipexctl.remote.fanout import run_in_background
    from ipexctl.run.start.context import is_everywhere
    from ipexctl.run.start.preflight.before_install import check_before_install
    from ipexctl.run.start.request import StartFailure
    from ipexctl.stack.install import find_unchanged, install
    from ipexctl.stack.resolve.model import EnvRequest, StackRequest

    hosts, spec = call.hosts, call.spec
    if reading is not None:
        reading.result()  # refuse a project that can't be sent first
    wanted = _request_of(call, watcher.on_step)
    is_any = wanted.env == EnvRequest(StackRequest())
    unchanged = run_in_background(lambda: None if is_any else find_unchanged(hosts, wanted, pool), "environment")
    # Read all answers: an abandoned gather cancels the pool.
    probed = tuple(gather_facts(hosts, pool, home=spec.home, timeout=spec.timeout))
    is_there = is_everywhere(probed, spec.env)
    if (is_there and is_any) or unchanged.result() is not None:
        return probed
    if not is_there:
        checked = check_before_install(hosts, spec, pool, call.project, probed, wanted)
        if isinstance(checked, StartFailure):
            return checked
        if checked:
            watcher.on_step(f"note: {checked}")
    with watcher.installing() as watch:
        report = install(hosts, wanted, pool, watch, probed=probed)
    watcher.on_installed(report)
    return report if report.exit_code else ()
