"""The steps of a run in their order, for `ipexctl run`, the playbook's `run`, and Python programs:

    install, if asked for ──► plan ──► submit ──► follow ──► --notify ──► remove secrets
                               └─ a dry run ends here       └─ a detached run continues without this call

Except for the install, nothing changes before the plan. Slow imports happen while the hosts connect.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from ipexctl.run.notify import notify_of_run
from ipexctl.run.start.request import StartFailure
from ipexctl.run.start.watcher import PlannedRun, RunWatcher, StartedRun
from ipexctl.spec import RunSpec

if TYPE_CHECKING:
    from ipexctl.remote.connector import SessionPool
    from ipexctl.stack.install_context import InstallReport


def run(
    spec: RunSpec, watcher: RunWatcher, *, dry_run: bool = False
) -> StartedRun | PlannedRun | InstallReport | StartFailure:
    """Start a run and follow it. A `StartedRun` without exit code continues; an `InstallReport` failed."""
    began = time.monotonic()
    with watcher.sessions() as pool:
        from ipexctl.run.start import pipeline  # 0.25 s, while the hosts connect

        if dry_run:
            return _plan(spec, pool, watcher)
        start = _install_and_start if spec.asked.install else pipeline.start_run
        started = start(spec, pool, watcher)
        if isinstance(started, StartFailure) and started.lacks_environment and watcher.offers_install:
            spec = replace(spec, asked=spec.asked._replace(install=True))
            started = _install_and_start(spec, pool, watcher, lacking=started)
        if not isinstance(started, StartedRun):
            return started
        watcher.on_started(started)
        if not spec.asked.is_followed and not pool.cancel.thrown:
            return started
        code = watcher.follow(started)
    if spec.notify:
        notify_of_run(spec.notify, started.record, code, time.monotonic() - began, watcher.on_warning)
    if watcher.may_leave_secrets(code):
        with watcher.sessions() as pool:
            pipeline.remove_job_files(spec.hosts, started.record, pool)
    return replace(started, exit_code=code)


def _plan(spec: RunSpec, pool: SessionPool, watcher: RunWatcher) -> PlannedRun | StartFailure:
    """What `run` would do, or why it would start nothing."""
    from ipexctl.run.start import pipeline

    if not spec.asked.install:
        return pipeline.plan_run(spec, pool, watcher, checks_script=True)
    from ipexctl.api.before_run import request_of_run, with_left_out
    from ipexctl.run.start.before_install import check_new_environment

    notes: list[str] = []
    wanted = request_of_run(spec, notes.append)
    stack = wanted.for_project().env.stack
    spec = replace(spec, asked=spec.asked._replace(torch=stack.torch, stack=stack.stack))
    # The modules of packages that are still to be installed are not known.
    planned = pipeline.plan_run(spec, pool, watcher, checks_script=not wanted.env.extras)
    for note in notes:  # name the project before any note
        watcher.on_step(note)
    if not isinstance(planned, PlannedRun):
        return planned
    checked = check_new_environment(planned.context, wanted)
    if not isinstance(checked, str):
        return checked
    if checked:
        watcher.on_step(f"note: {checked}")
    project = with_left_out(planned.plan.project, spec.asked, wanted)
    return replace(planned, plan=planned.plan._replace(project=project))


def _install_and_start(
    spec: RunSpec, pool: SessionPool, watcher: RunWatcher, *, lacking: StartFailure | None = None
) -> StartedRun | InstallReport | StartFailure:
    """`lacking`: the failure of a start without --install; the user is asked first."""
    from ipexctl.api.before_run import install_first  # 0.1 s, for an install alone
    from ipexctl.run.start import pipeline
    from ipexctl.run.start.upload import start_reading

    reading = start_reading(spec, watcher.on_step)
    installed = install_first(spec, pool, watcher, reading, lacking=lacking)
    if not isinstance(installed, tuple):
        return installed
    return pipeline.start_run(spec, pool, watcher, reading=reading, probed=installed)
