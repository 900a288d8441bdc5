"""The steps of a run in their order, for `ipexctl run`, the playbook's `run`, and Python programs.

    install, if asked for ──► plan ──► start ───► follow ──► --notify ──► remove secrets
                               └─ a dry run ends here       └─ a detached run continues without this call

Except for the install, nothing changes before the plan. Slow imports happen while the hosts connect.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from ipexctl.launch.spec import RunSpec
from ipexctl.run.notify_command import notify_of_run
from ipexctl.run.start.start_request import StartFailure
from ipexctl.run.start.watcher import PlannedRun, RunWatcher, StartedRun

if TYPE_CHECKING:
    from ipexctl.run.start.run_start import RunStart
    from ipexctl.stack.install_context import InstallReport


def run(
    spec: RunSpec, watcher: RunWatcher, *, dry_run: bool = False
) -> StartedRun | PlannedRun | InstallReport | StartFailure:
    """Start a run and follow it. Returns what came of it.

    - A `StartedRun`; without an exit code, it goes on without this call.
    - A `PlannedRun` for a dry run.
    - An `InstallReport` of an install that failed.
    - A `StartFailure` if nothing was started, or if that is not known.
    """
    began = time.monotonic()
    with watcher.sessions() as pool:
        from ipexctl.run.start.run_start import RunStart  # 0.25 s, while the hosts connect

        start = RunStart(spec, pool, watcher)
        started = _plan(start, watcher) if dry_run else _start(start, watcher)
        if not isinstance(started, StartedRun):
            return started
        with started.launch.stopped_on_failure(watcher.on_warning):
            watcher.on_started(started)
            if not spec.asked.is_followed and not pool.cancel.thrown:
                return started
            code = watcher.follow(started)
            if not started.launch.is_shown and 0 < code < 128:  # it could not be followed
                started.launch.end_or_tell(watcher.on_warning)
    if spec.notify:
        notify_of_run(spec.notify, started.record, code, time.monotonic() - began, watcher.on_warning)
    if watcher.may_leave_secrets(code):
        from ipexctl.run.start import begin  # loaded by the start

        with watcher.sessions() as pool:
            begin.remove_job_files(spec.hosts, started.record, pool)
    return replace(started, exit_code=code)


def _plan(start: RunStart, watcher: RunWatcher) -> PlannedRun | InstallReport | StartFailure:
    """Return what `run` would do, or why it would start nothing."""
    from ipexctl.run.start import pipeline

    asked, lacking = start.spec.asked, None
    if not asked.install:
        planned = pipeline.plan_run(start, checks_script=True)
        if not (isinstance(planned, StartFailure) and planned.lacks_environment and watcher.offers_install):
            return planned
        start.spec, lacking = replace(start.spec, asked=asked._replace(install=True)), planned
    from ipexctl.run.start import first_install
    from ipexctl.stack.install_context import InstallRequest

    wanted = first_install.install_first(start, watcher, lacking=lacking, dry_run=True)
    if lacking is not None:  # the run would ask; what the install would bring was only checked
        return lacking if isinstance(wanted, InstallRequest) else wanted
    if not isinstance(wanted, InstallRequest):
        return wanted
    # The modules of packages that are still to be installed are not known.
    are_known = not wanted.unread and not (wanted.env.packages and start.packages)
    planned = pipeline.plan_run(start, checks_script=are_known)
    if not isinstance(planned, PlannedRun):
        return planned
    project = first_install.with_left_out(planned.plan.project, asked, wanted)
    return replace(planned, plan=planned.plan._replace(project=project, asked=asked))


def _start(start: RunStart, watcher: RunWatcher) -> StartedRun | InstallReport | StartFailure:
    """Start the run, after an install if one is asked for or the user agrees to it."""
    from ipexctl.run.start import pipeline

    lacking = None
    if not start.spec.asked.install:
        started = pipeline.start_run(start)
        if not (isinstance(started, StartFailure) and started.lacks_environment and watcher.offers_install):
            return started
        start.spec, lacking = replace(start.spec, asked=start.spec.asked._replace(install=True)), started
    from ipexctl.run.start import first_install  # 0.1 s, for an install alone
    from ipexctl.stack.install_context import InstallRequest

    installed = first_install.install_first(start, watcher, lacking=lacking)
    return pipeline.start_run(start) if isinstance(installed, InstallRequest) else installed
