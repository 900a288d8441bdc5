"""What comes before the plan of a run: the hosts that are left for a restart, the environment if it was asked for."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path

from ipexctl.errors import CallError, IndexNotNamed, Refusal, UserError
from ipexctl.facts.gather import HostFacts, gather_facts
from ipexctl.found_files import check_found
from ipexctl.hosts.nodeset import fold
from ipexctl.node.common.asked import Asked
from ipexctl.node.common.fix import Fix
from ipexctl.node.common.plan import PlannedProject
from ipexctl.projects.layout import ProjectLayout
from ipexctl.projects.requirement_files import RequirementFiles, with_optional
from ipexctl.remote.connector import SessionPool
from ipexctl.remote.fanout import run_in_background
from ipexctl.remote.outcome import HostError
from ipexctl.run.registry import RunRecord
from ipexctl.run.start.before_install import check_before_install
from ipexctl.run.start.context import is_everywhere
from ipexctl.run.start.exclusive import inspect_hosts
from ipexctl.run.start.request import StartFailure
from ipexctl.run.start.resume import hosts_to_inspect, resumed_spec
from ipexctl.run.start.script_imports import takes_own_requirements
from ipexctl.run.start.watcher import RunWatcher
from ipexctl.spec import RunSpec
from ipexctl.stack.install_context import InstallReport, InstallRequest, install_request
from ipexctl.stack.install_stack import find_unchanged, install
from ipexctl.stack.resolve.model import EnvRequest, Sources, StackRequest
from ipexctl.sync.project import Project
from ipexctl.text import join_words


def on_hosts_left(
    spec: RunSpec, record: RunRecord, pool: SessionPool, on_note: Callable[[str], None], *, typed: Collection[str] = ()
) -> RunSpec:
    """`typed`: options of this call, not of the run. Raises a CallError if no host answers, or the run is alive."""
    outcomes = inspect_hosts(hosts_to_inspect(spec, record), pool)
    snapshots = {outcome.host.name: outcome.error or outcome.result for outcome in outcomes}
    found = resumed_spec(spec, record, snapshots, typed)
    if isinstance(found, Refusal):
        raise CallError(found.reason, fix=spec.options.apply(found.fix), exit_code=found.exit_code)
    for host in spec.hosts:
        if isinstance(error := snapshots[host.name], HostError) and host not in found.hosts:
            on_note(f"{host.name} is left out: {error.reason}")
    on_note(f"run {record.id} starts over on {fold(host.name for host in found.hosts)}")
    return found


def request_of_run(spec: RunSpec, on_step: Callable[[str], None]) -> InstallRequest:
    asked = spec.asked
    stack = StackRequest(asked.torch, asked.stack)
    project = spec.project
    needed = frozenset(entry.module for entry in project.script.imports) if project.script is not None else frozenset()
    request = partial(
        install_request,
        stack,
        env=asked.env,
        environ=os.environ,
        layout=project.layout,
        needed=needed,
        ipex_use=spec.ipex_use,
    )
    wanted = _request_of_project(spec, request, on_step)
    if wanted is None:
        wanted = request(packages=asked.packages, files=tuple(map(Path, asked.requirements)), sources=Sources())
    return replace(wanted, home=asked.home, iface=asked.iface, timeout=spec.timeout)


def _request_of_project(
    spec: RunSpec, request: Callable[..., InstallRequest], on_step: Callable[[str], None]
) -> InstallRequest | None:
    """Request for the packages of the project's own files; None without usable ones. A file that can't be installed
    does not end the call, unless the call names an extra or a group: the script may not need what it names.
    """
    asked = spec.asked
    if not takes_own_requirements(asked):
        return None
    layout = spec.project.layout
    files = spec.project.requirements
    taken = with_optional(files.files, layout, asked.extra, asked.group)
    for note in files.notes:
        on_step(f"note: {note}")
    if not taken:
        if note := _note_on_none(layout, files):
            on_step(f"note: {note}")
        return None

    def read(chosen: Sequence[str]) -> InstallRequest:
        made = request(packages=(), files=_paths(layout, chosen), sources=Sources(), are_found=True)
        for path in made.files:  # included files too
            check_found(path, naming=Fix("`ipexctl run {*files}`", files=shlex.split(_options_for(layout, chosen))))
        return made

    is_strict = bool(asked.extra or asked.group)
    try:
        usable = _find_usable(read, taken, on_step, is_strict=is_strict)
        made = read(usable) if usable else None
    except IndexNotNamed as error:
        option = _options_for(layout, taken)
        if is_strict:
            error.fix = f"if you trust it, name the file in place of the extra or group: {option}"
            raise
        named = f"it names the index {error.index}; if you trust the file: {option}"
        on_step(f"note: {_named(taken)} is left out: {named}")
        return None
    if made is None:
        return None
    on_step(f"note: packages of {_named(usable)} are installed, too; {_beside(layout, files, usable)}")
    for note in made.notes:
        on_step(f"note: {note}")
    left_out = tuple(file for file in taken if file not in usable)
    return replace(made, notes=(), left_out=(*left_out, *made.left_out))  # the notes are shown by now


def _find_usable(
    read: Callable[[Sequence[str]], InstallRequest],
    files: Sequence[str],
    on_step: Callable[[str], None],
    *,
    is_strict: bool,
) -> list[str]:
    """Each file is read by itself, so that a bad one leaves the others."""
    usable: list[str] = []
    for file in files:
        try:
            read([file])
            usable.append(file)
        except UserError as error:
            if is_strict or isinstance(error, IndexNotNamed):
                raise
            on_step(f"note: {file} is left out: {error}; --no-requirements leaves it out in silence")
    return usable


def _named(files: Iterable[str]) -> str:
    return join_words([file.partition("[")[0] for file in files])


def _paths(layout: ProjectLayout, files: Iterable[str]) -> list[Path]:
    return [Path(os.path.relpath(layout.root / file)) for file in files]


def _options_for(layout: ProjectLayout, files: Iterable[str]) -> str:
    return " ".join(f"-r {shlex.quote(str(path))}" for path in _paths(layout, files))


def with_left_out(project: PlannedProject, asked: Asked, wanted: InstallRequest) -> PlannedProject:
    """The project with what `run --install` takes of its requirements, and what not. Pure."""
    if not takes_own_requirements(asked):
        return project._replace(requirements=())
    if not wanted.files:
        return project._replace(requirements=(), left_out=project.requirements)
    taken = tuple(file for file in project.requirements if file not in wanted.left_out)
    return project._replace(requirements=taken, left_out=wanted.left_out)


def _beside(layout: ProjectLayout, files: RequirementFiles, usable: Sequence[str]) -> str:
    if files.unread:
        alone = f"for it alone: {_options_for(layout, [files.unread])}"
        return f"{files.unread} is not read beside {_named(usable)}; {alone}"
    return "without them: --no-requirements"


def _note_on_none(layout: ProjectLayout, files: RequirementFiles) -> str:
    """Why no requirements were taken although there are some; or empty."""
    if files.is_computed:
        return (
            "no requirements were taken: setup.py computes them; write them into requirements.txt, or name packages: "
            "--with NAME"
        )
    if files.others:
        where = files.others[0].rpartition("/")[0]
        one = f"one of {where}/" if where else "one of these files"
        return f"no requirements were taken; to take {one}: --install {_options_for(layout, files.others[:1])}"
    return ""


def install_first(
    spec: RunSpec,
    pool: SessionPool,
    watcher: RunWatcher,
    reading: Future[Project] | None,
    *,
    lacking: StartFailure | None = None,
) -> tuple[HostFacts, ...] | InstallReport | StartFailure:
    """Install the environment on hosts that lack it. Return the hosts' facts if nothing had to be installed. Without
    --stack and --torch the hosts get the environment of the others. `lacking`: why the user is asked first.
    """
    hosts = spec.hosts
    if reading is not None:
        reading.result()  # refuse a project that can't be sent first
    wanted = request_of_run(spec, watcher.on_step)
    is_any = wanted.env == EnvRequest(StackRequest())
    unchanged = run_in_background(lambda: None if is_any else find_unchanged(hosts, wanted, pool), "environment")
    # Read all answers: an abandoned gather cancels the pool.
    probed = tuple(gather_facts(hosts, pool, home=spec.asked.home, timeout=spec.timeout))
    is_there = is_everywhere(probed, spec.asked.env)
    if (is_there and is_any) or unchanged.result() is not None:
        return probed
    if not is_there:
        checked = check_before_install(spec, pool, probed, wanted)
        if isinstance(checked, StartFailure):
            return checked
        if checked:
            watcher.on_step(f"note: {checked}")
    if lacking is not None and (failure := _ask_first(spec, pool, watcher, wanted, probed, lacking)) is not None:
        return failure
    with watcher.installing() as watch:
        report = install(hosts, wanted, pool, watch, probed=probed)
    watcher.on_installed(report)
    return report if report.exit_code else ()


def _ask_first(
    spec: RunSpec,
    pool: SessionPool,
    watcher: RunWatcher,
    wanted: InstallRequest,
    probed: Sequence[HostFacts],
    lacking: StartFailure,
) -> StartFailure | None:
    """Show what an install would do, and ask. None if the user agrees; else nothing was changed anywhere."""
    watcher.on_step(
        f"{fold(lacking.hosts)}: no environment {spec.asked.env!r} yet; looking up what --install would bring"
    )
    with watcher.installing() as watch:
        report = install(spec.hosts, replace(wanted, dry_run=True), pool, watch, probed=probed)
    if report.exit_code:
        failed = next((host for host in report.hosts if host.status not in ("ok", "changed")), None)
        reason, fix = (f"{failed.host.name}: {failed.reason}", failed.fix) if failed is not None else ("", "")
        if report.refusal is not None:
            reason, fix = report.refusal.reason, report.refusal.fix
        code = 3 if report.exit_code == 3 else 2
        return replace(
            lacking, reason=f"{lacking.reason}, and it cannot be installed: {reason}", fix=fix, exit_code=code
        )
    if watcher.agrees_to_install(report):
        return None
    call = shlex.join(["ipexctl", "run", "--install", *spec.typed.options, *spec.typed.words])
    return replace(lacking, fix=f"install it, and start the run: {call}", exit_code=2)
