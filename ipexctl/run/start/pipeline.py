"""Starts a run: gather, plan, preflight, upload, start. Or only plans it, for a dry run.
Slow steps begin early in the background, and the step that needs them waits:
project is read ──► hosts are asked for their copies of it ───────────┐
facts, homes, environment ──► plan ──► preflight, supervisor starts ──┴──► upload ──► job files ──► mpirun
Each step that leaves something behind adds its removal to `_Undo`, so a run that does not start leaves nothing.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import PurePosixPath
from typing import Final

from ipexctl.errors import Refusal
from ipexctl.facts.gather import HostFacts, gather_facts
from ipexctl.facts.live_runs import CallDetails
from ipexctl.homes.local_copy import read_final_status
from ipexctl.homes.pending import clear_pending, mark_pending
from ipexctl.homes.prune_runs import prune_local, read_limits
from ipexctl.homes.registry import RunRecord, RunRegistry, new_id, new_record
from ipexctl.hosts.host import Host
from ipexctl.hosts.nodeset import fold
from ipexctl.launch.accelerate_config import remarks
from ipexctl.launch.accelerate_env import unsupported_settings
from ipexctl.launch.launchers.line import is_shell, launcher_inside
from ipexctl.launch.other_runs import notes_on
from ipexctl.launch.planner import plan_launch
from ipexctl.launch.python_env import own_paths
from ipexctl.launch.request import Gathered
from ipexctl.launch.spec import RunSpec
from ipexctl.node.common.fix import Fix, ipexctl_command
from ipexctl.node.common.job import ConnectivityRecord
from ipexctl.node.common.placeholders import used_names
from ipexctl.node.common.plan import Plan
from ipexctl.node.common.records import RunStatus
from ipexctl.node.env.check import normalize
from ipexctl.option_declaration import install_command
from ipexctl.remote.caller import identify_caller
from ipexctl.remote.connector import OpenHosts, SessionPool
from ipexctl.remote.fanout import run_in_background
from ipexctl.run.start.begin import Launch, clean_up
from ipexctl.run.start.connection_checks import check_connectivity
from ipexctl.run.start.context import gather, likely_nodes
from ipexctl.run.start.exclusive import HostLocks, Obstacles, lock_hosts, refusal
from ipexctl.run.start.path_checks import check_data, unsynced_arguments
from ipexctl.run.start.script_imports import (
    check_own_modules,
    check_script,
    check_tool,
    install_by_run,
    note_on_lacking,
    with_environment,
    with_sent_files,
)
from ipexctl.run.start.start_notes import (
    check_gpu_code,
    check_resumed,
    check_resumed_trl,
    job_notes,
    logind_notes,
    restart_note,
    resume_note,
    script_notes,
    shell_note,
)
from ipexctl.run.start.start_project import files_in_other_generations, find_commit
from ipexctl.run.start.start_request import StartError, StartFailure, check_pool_plan
from ipexctl.run.start.upload import ProjectUpload
from ipexctl.run.start.watcher import PlannedRun, StartedRun, StartWatcher
from ipexctl.run.unsent import unsent_note
from ipexctl.run.windows import earlier_memory
from ipexctl.sync.path_notes import PathNotes, note_secret_files


class RunStart:
    """One call that starts or plans a run, and what it knows of the project and the hosts, each read once."""

    def __init__(self, spec: RunSpec, pool: SessionPool, watcher: StartWatcher) -> None:
        self.spec, self.pool, self.watcher = spec, pool, watcher
        self.opened = OpenHosts(spec.hosts, pool, spec.asked.home, spec.asked.iface, spec.timeout)
        self._noted = set[str]()
        self._shown_before = frozenset[str]()
        self._project: ProjectUpload | None = None
        self._probed: tuple[HostFacts, ...] = ()
        self.packages: Mapping[str, str] = {}
        """What the environment has once the install that a dry run looked up is done."""

    @property
    def project(self) -> ProjectUpload:
        if self._project is None:
            self._project = ProjectUpload(self.spec, self.opened, self.watcher.on_step)
        return self._project

    def probe(self) -> tuple[HostFacts, ...]:
        """All answers: an abandoned gather cancels the pool, and so a whole playbook."""
        self._probed = self._probed or tuple(gather_facts(self.opened))
        return self._probed

    def forget_hosts(self) -> None:
        self._probed = ()

    def forget(self) -> None:
        """The project and the hosts may have changed."""
        self._project, self._probed = None, ()

    def gather(self, *, dry_run: bool = False, before_install: bool = False) -> Gathered:
        found = gather(self.spec, self.pool, self.probe, dry_run=dry_run, before_install=before_install)
        return replace(found, env=replace(found.env, packages={**found.env.packages, **self.packages}))

    def check_script(self, context: Gathered, hosts: Sequence[Host]) -> None:
        """Note why the script may fail on these hosts. Raises a StartError if it would."""
        script, text = self.spec.project.script, ""
        if self.spec.project.is_tool:
            check_tool(hosts, context.env.python, self.spec.asked, self.pool)
        if script is not None and self.spec.asked.sync:
            script = with_environment(script, context)
            if (content := self.project.content()) is not None:
                script = with_sent_files(script, [entry.path for entry in content.manifest.entries])
            text = check_script(hosts, context.env.python, script, self.pool)
        for note in filter(None, (text, note_on_lacking(context))):
            self.note(note)

    def note(self, text: str) -> None:
        """Once, and not at the next start of this call, too. Commands in it get the options of the call."""
        text = self.spec.options.apply(text)
        if text not in self._noted:
            self._noted.add(text)
            if _digest(text) not in self._shown_before:
                self.watcher.on_note(text)

    def remember_notes(self) -> Callable[[], None]:
        """Show no note that the last start of this script, with these arguments, has shown. Returns what keeps this
        call's notes: one that is gone and comes back is new."""
        place, call = str(self.spec.project.root), _digest(repr((self.spec.asked.argv, self.spec.asked.exports)))
        known = {name: frozenset(words) for name, *words in map(str.split, _SHOWN.text_of(place).splitlines())}
        self._shown_before = known.pop(call, frozenset())

        def keep() -> None:
            kept = {**dict(list(known.items())[-_CALLS_KEPT:]), call: frozenset(map(_digest, self._noted))}
            if kept[call] != self._shown_before:
                _SHOWN.add([place], "\n".join(" ".join((name, *sorted(words))) for name, words in kept.items()))

        return keep


_SHOWN: Final = PathNotes("start-notes")
_CALLS_KEPT: Final = 30


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:12]


class _Undo(ExitStack):
    """How to remove what the steps leave behind, in reverse order; used unless the run starts."""

    def __init__(self) -> None:
        super().__init__()
        self.unreached = set[str]()

    def on_hosts(self, clean: Callable[[], frozenset[str]]) -> None:
        """`clean` returns the hosts that it could not reach."""
        self.callback(lambda: self.unreached.update(clean()))


def plan_run(start: RunStart, run: str = "RUN", *, checks_script: bool = False) -> PlannedRun | StartFailure:
    """The steps of `start_run` up to the first that changes something, for --dry-run and export. `checks_script`: look
    for the script's modules in an environment that exists."""
    spec, project = start.spec, start.project
    try:
        with ExitStack() as at_end:
            project.compare(lease=None)
            at_end.callback(project.release)
            context, plan = _plan(start, run, dry_run=True)
            tree, _ = project.upload(context)
            if checks_script and context.env.is_installed:
                start.check_script(context, context.nodes_of(plan))
            notes = (*notes_on(plan.other_runs, time.time()), *plan.notes)
            plan = _in_tree(plan._replace(notes=tuple(map(spec.options.apply, notes))), tree, spec)
            return PlannedRun(plan, context)
    except StartError as error:
        return error.failure


class _OtherRunBegan(StartError):
    """A run without --exclusive began on the hosts although this call holds their locks."""


def start_run(start: RunStart) -> StartedRun | StartFailure:
    """Start a run. It is in the registry before its first rank lives; of one that does not start, nothing is left."""
    spec, run = start.spec, new_id(start.spec.asked.script, time.time())
    note_secret_files(spec.secret_files)
    with ExitStack() as at_end:
        at_end.callback(start.remember_notes())
        try:
            locks = _lock_hosts(start, run, at_end)
            while True:
                try:
                    return _start_locked(start, run, locks)
                except _OtherRunBegan:
                    assert locks is not None
                    locks.wait_until_free()
                    start.forget()
        except StartError as error:
            return error.failure


def _start_locked(start: RunStart, run: str, locks: HostLocks | None) -> StartedRun:
    """Raises a StartError; then nothing of the run is left."""
    spec, pool, project = start.spec, start.pool, start.project
    registry, undo, retention = RunRegistry(), _Undo(), read_limits(os.environ)
    with mark_pending(registry.directory, run, undo.unreached), undo:
        began = time.monotonic()
        project.compare(lease=run)
        undo.on_hosts(project.release)
        context, plan = _plan(start, run, locks=locks)

        project.content(waits=False)  # refused by now: the hosts need no check
        preflight = _begin_preflight(start, context, plan, undo)
        content = project.content()  # while no host has a file of the run
        record = new_record(context, plan, pool.connector.options)
        undo.callback(registry.remove, run)
        launch = Launch(record, pool, retention)
        launch.start_supervisor()
        undo.on_hosts(launch.abandon)

        tree, upload_seconds = project.upload(context, preflight)
        arguments = {} if content is None else unsynced_arguments(spec, content.manifest, tree)
        notes = check_data(spec, tree, pool, arguments)
        if content is not None:
            notes += unsent_note(spec, content)
        for text in notes:
            start.note(text)
        records = registry.all()
        if spec.asked.sync and (text := files_in_other_generations(tree, spec.project, records)):
            start.note(text)
        plan = _in_tree(plan, tree, spec)
        if spec.asked.resumed:
            from ipexctl.run.start.resume import keep_checkpoint  # most runs begin anew

            text, source = keep_checkpoint(spec, record.nodes, plan, pool, registry)
            plan = plan._replace(resumes_from=source)
            if text:
                start.note(text)
        if apart := check_resumed(record.nodes, spec, plan, pool, records):
            start.note(resume_note(apart))
            plan = plan._replace(apart=apart)
        before = {"checks": time.monotonic() - began - upload_seconds, "sync": upload_seconds}
        commit = find_commit(spec.project.root)
        plan = plan._replace(commit=commit, before_start=before, by=identify_caller(os.environ))
        record = replace(record, source=plan)
        registry.save(record)
        launch.upload_jobs(plan, spec.secrets)

        connectivity = preflight.result()
        clear_pending(registry.directory, run)  # from here on, node0 knows whether the run lives
        try:
            launch.start_launcher(connectivity, spec.notify)
        except StartError as error:
            if error.failure.is_unsure:
                undo.pop_all()  # it may run
            raise
        undo.pop_all()
        if locks is not None:
            locks.leave(record.rundir)
    run_in_background(lambda: prune_local(registry, retention), "prune")
    for text in (*plan.notes, *logind_notes(context)):
        start.note(text)
    return StartedRun(record, launch)


def _plan(start: RunStart, run: str, *, locks: HostLocks | None = None, dry_run: bool = False) -> tuple[Gathered, Plan]:
    """Raises a StartError, and a UserError for ranks to show that do not exist."""
    spec = start.spec
    context = start.gather(dry_run=dry_run)
    notes = list(context.notes)
    if dry_run:
        start.project.content()  # named before any note
        while notes:  # also for a run that is refused
            start.note(notes.pop(0))
    context = replace(context, earlier_memory=earlier_memory(spec.project.root, spec.asked.script))
    plan = make_plan(context, run)
    if locks is not None:
        _check_alone(plan, locks)
    start.watcher.on_planned(plan)
    if not dry_run:
        if locks is None:
            notes = [*notes_on(plan.other_runs, time.time()), *notes]
        notes += job_notes(context, is_followed=spec.asked.is_followed)
        is_of_all = spec.asked.max_restarts and not spec.asked.keep_going  # copies are started again where they were
        if is_of_all and not spec.asked.checkpoint and (text := restart_note(plan)):
            notes.append(text)
    for text in filter(None, (*notes, *script_notes(context, plan), shell_note(plan, os.environ))):
        start.note(text)
    return context, plan


# Other runs


def _lock_hosts(start: RunStart, run: str, at_end: ExitStack) -> HostLocks | None:
    spec = start.spec
    if not spec.asked.is_exclusive:
        return None
    call = CallDetails(identify_caller(os.environ), spec.asked.script, spec.asked.tag or "")
    locks = lock_hosts(likely_nodes(spec), run, spec.asked.wait, start.pool, start.watcher.on_step, call)
    at_end.callback(locks.release)
    if locks.has_waited:
        start.forget()
    if locks.hiding:
        start.note(
            f"{fold(locks.hiding)}: /proc hides the processes of other accounts (hidepid), so that their runs are not "
            "seen there"
        )
    return locks


def _check_alone(plan: Plan, locks: HostLocks) -> None:
    """Raise an `_OtherRunBegan` if a run without --exclusive has begun since the hosts were locked; a StartError if it
    is on a host that this call has not locked."""
    running = tuple(other for other in plan.other_runs if other.state == "running")
    if running:
        locked = {host.name for host in locks.hosts}
        error = _OtherRunBegan if any(locked.intersection(other.hosts) for other in running) else StartError
        raise error(refusal(Obstacles(running), now=time.time()))


# Plan: pure


def make_plan(context: Gathered, run: str) -> Plan:
    """The plan of a run; its working directory follows when the hosts' tree is known. Pure. Raises a StartError."""
    plan = _plan_hosts(context, run)
    if context.spec.asked.has_pool and (refusal := check_pool_plan(context.spec.asked, plan)) is not None:
        raise StartError(refusal)
    return plan


def _plan_hosts(context: Gathered, run: str) -> Plan:
    spec = context.spec
    check_gpu_code(spec, context.env.packages)
    check_resumed_trl(spec.asked, context.env.packages)
    packages = tuple(sorted(map(normalize, context.env.packages)))
    if spec.project.script is not None:
        check_own_modules(spec.project.script, packages)
    plan = plan_launch(context, run)
    if isinstance(plan, Refusal):
        raise StartError(plan)
    notes = (*_check_copies(spec, plan), *plan.notes, *_accelerate_notes(context))
    plan = plan._replace(notes=notes)
    if not plan.env:
        return plan
    plan = plan._replace(install=str(install_command(spec.asked.env)), packages=packages)
    requirements = spec.project.requirements
    return plan._replace(
        install_by_run=str(install_by_run(spec) or ""),
        project_packages=tuple(sorted({*requirements.names} - {pin.partition("==")[0] for pin in requirements.pins}))
        + requirements.pins,
    )


def _check_copies(spec: RunSpec, plan: Plan) -> tuple[str, ...]:
    """Raise a StartError if several ranks would run what is not known to be one rank's program, unless the call says
    how many run it: by -n or --ppn; a shell's commands also by --. Returns a note, or nothing."""
    asked = spec.asked
    is_counted = asked.n is not None or asked.ppn is not None
    if is_counted or plan.world_size < 2 or (asked.is_behind_dashes and used_names(asked.argv)):
        return ()
    is_of_shell = asked.kind == "command" and is_shell(asked.script)
    shell = spec.project.shell_script or ("the shell's line" if is_of_shell else "")
    launcher = "" if shell else launcher_inside(asked.argv)
    if not (shell or launcher):
        return ()
    reason = f"each of {plan.world_size} ranks would run all of {shell}, in which no launcher is seen"
    if launcher:
        reason = f"{asked.script} may start ranks itself ({launcher}): each of {plan.world_size} ranks would do so"
    one = ipexctl_command("run", "-n", "1", argv=asked.program)
    if shell and asked.is_behind_dashes:
        return (Fix("{reason}; if one is to run it: {one}", reason=reason.replace("would run", "runs"), one=one),)
    each = ipexctl_command("run", "--ppn", str(plan.world_size // len(plan.hosts)), argv=asked.program)
    other = "paste its line of Python" if shell else "paste the line of the training"
    fix = Fix("if one is to run it: {one}; if each is: {each}; or {other}", one=one, each=each, other=other)
    raise StartError(StartFailure(reason, fix, exit_code=2))


def _accelerate_notes(context: Gathered) -> tuple[str, ...]:
    """On fields of an accelerate config that set no variable."""
    config = context.spec.accelerate
    if config is None:
        return ()
    node0 = context.hosts[0]
    own = {node0.name, node0.address, *context.facts[node0.name].network.addresses}
    notes = remarks(config, len(context.hosts), own)
    return (*notes, *unsupported_settings(config, context.env.packages))


def _in_tree(plan: Plan, tree: str, spec: RunSpec) -> Plan:
    """The plan with the ranks' working directory and the modules' directories in the tree that the hosts have."""
    settings = (*plan.settings, *own_paths(plan.project, tree, plan.rundir))
    return plan._replace(cwd=str(PurePosixPath(tree) / spec.project.subdirectory), settings=settings)


# Preflight


def _begin_preflight(start: RunStart, context: Gathered, plan: Plan, undo: _Undo) -> Future[ConnectivityRecord | None]:
    preflight = run_in_background(partial(_preflight, start, context, plan), "preflight")
    undo.callback(wait, (preflight,))  # its notes come before the answer of the call
    return preflight


def _preflight(start: RunStart, context: Gathered, plan: Plan) -> ConnectivityRecord | None:
    nodes = context.nodes_of(plan)
    connectivity = run_in_background(lambda: check_connectivity(nodes, context, start.pool), "connectivity")
    try:
        start.check_script(context, nodes)
    except StartError:
        connectivity.result()  # raises the failure of a connection, which comes first
        raise
    return connectivity.result()


# Afterwards


def remove_job_files(hosts: Sequence[Host], record: RunRecord, pool: SessionPool) -> None:
    """For a run that failed or was stopped before all ranks had read their token and secrets."""
    names = hosts_with_job_files(record, read_final_status(RunRegistry().directory / record.id))
    rundir = shlex.quote(record.rundir)
    clean_up([host for host in hosts if host.name in names], f"rm -f {rundir}/job.json {rundir}/job.*.json", pool)


def hosts_with_job_files(record: RunRecord, ended: RunStatus | None) -> frozenset[str]:
    """The hosts that may still have the job file. Pure. A rank wrapper that has reached the supervisor removes it, so
    such a host is not contacted again: connecting to one that was cut off takes the whole timeout. A killed wrapper
    leaves the file for a restart, as do all of a stopped attempt.
    """
    if ended is None:
        return frozenset(record.hosts)
    for_restart = ended.attempt < ended.restarts
    is_left = for_restart and ended.state == "stopped"
    left = {
        rank.host for rank in ended.ranks if is_left or rank.wrapper is None or (for_restart and rank.state == "lost")
    }
    return frozenset(record.hosts) & left
