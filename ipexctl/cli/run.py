"""`ipexctl run`: checks the call, installs if asked to, submits the run, watches it, and ends with its exit code.

In comes the line; `launch_options.py` reads it. `jobs/submit/pipeline.py` starts the run and returns a `StartFailure`
or a run, and `watch.py` follows that. What came of the start goes to stderr with reason and fix, into the file of
--summary, and into the last event of --events; a call that began no run leaves a note, which `why` mentions. stdout has
only the output of the ranks.

The rule for signals: one handler is in force from the first connection to the first follow, so that a Ctrl-C in between
stops the run that was just started. What is imported late is imported while the hosts connect or the ranks start.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
import time
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import typer

from ipexctl.cli.launch_options import LaunchCall, LaunchLine, ScriptCommand, plan_or_exit, read_launch_call
from ipexctl.cli.notify import check_notify, notify_of_run
from ipexctl.cli.options import PACKAGES, REQUIREMENTS, SUMMARY, Output, PlanOutput, ViewOptions, command, flag, option
from ipexctl.cli.summary_file import check_summary, write_summary, write_summary_of_run
from ipexctl.errors import UserError
from ipexctl.extensions import addition
from ipexctl.found_files import check_found
from ipexctl.text import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from concurrent.futures import Future

    from ipexctl.cli.interrupt import Interrupt
    from ipexctl.facts.gather import HostFacts
    from ipexctl.jobs.ranks import RankSet
    from ipexctl.jobs.registry import RunRecord
    from ipexctl.jobs.submit.request import StartFailure
    from ipexctl.launch.other_runs import OtherRun
    from ipexctl.remote.session_pool import SessionPool
    from ipexctl.stack.install_context import InstallRequest
    from ipexctl.stack.resolve.model import StackRequest
    from ipexctl.sync.project import Project
    from ipexctl.ui.run.events import EventsView


NO_CLEANUP: Final = (0, 128 + signal.SIGHUP, 128 + signal.SIGPIPE)
"""Exit codes of a run that succeeded or was detached: its job files are not removed from the nodes."""


@dataclass(frozen=True, slots=True)
class AddedPackages:
    """The packages that an install before a run adds."""

    packages: tuple[str, ...]
    files: tuple[Path, ...]
    takes_project_file: bool

    def is_project_file(self) -> bool:
        """Whether they are those of the project's own file: the call names none."""
        return self.takes_project_file and not (self.packages or self.files)


@dataclass(frozen=True, kw_only=True)
class RunLine(LaunchLine):
    """The options of `run` that `export` has, too."""

    output: PlanOutput


@command(cls=ScriptCommand, no_args_is_help=True, context_settings={"allow_interspersed_args": False})
def run_command(
    *,
    ctx: typer.Context,
    install: bool = flag("--install", "Install the environment on hosts that lack it."),
    packages: list[str] | None = PACKAGES,
    requirements: list[Path] | None = REQUIREMENTS,
    no_requirements: bool = flag("--no-requirements", "Let --install leave out the project's own requirements file."),
    ranks: str = option("--ranks SPEC", "Ranks to show, such as 0 or 0-3,8 (default: {default}).", "all"),
    view: ViewOptions,
    detach: bool = flag("--detach", "Start the run and return immediately."),
    dry_run: bool = flag("--dry-run", "Print ranks, variables with their reasons and the mpirun line; start nothing."),
    summary: Path | None = SUMMARY,
    report: Path | None = option("--report FILE", "Write one HTML page that shows the run to FILE at its end."),
    notify: str = option(
        "--notify CMD", "Line for sh to run once at the end of the run, with the outcome as JSON on stdin.", ""
    ),
    line: RunLine,
) -> None:
    """Run a script on all hosts, one process per rank.

    The project is synced to the nodes, mpirun is started on node0, and the
    output of every rank is shown. Ctrl-C stops the run on every host; a
    closed terminal does not.

    \b
    Example: ipexctl run --hosts 'node[1-4]' --ppn 2 train.py --epochs 3
    """
    from ipexctl.cli.hosts import session_pool
    from ipexctl.jobs.ranks import parse_ranks

    output, targets = line.output, line.targets
    called = ctx.with_resource(_noting_failed_call(line, summary, needs_note=not dry_run))
    install = install or bool(packages or requirements)
    if line.launch.run.python is not None and (packages or requirements):
        raise UserError("--with and -r change an environment, and --python is never changed", fix="remove --python")
    _refuse_ignored_options(line, view, install=install, detach=detach, dry_run=dry_run, summary=summary)
    page = _page_of_run(report, detach=detach, dry_run=dry_run)
    check_notify(notify)
    launch_call = read_launch_call(ctx, line, parse_ranks(ranks))
    if launch_call.packages and launch_call.request.python is None:
        packages, install = [*(packages or ()), *launch_call.packages], True
    called.begin_events(view, launch_call.request.ranks, quiet=output.quiet)
    hosts = launch_call.hosts
    request = replace(launch_call.request, notify=notify, is_followed=not detach)
    notes = StartNotes(output)
    for note in launch_call.notes:
        output.print_note(f"note: {note}")
    # Signals are handled to the end: a Ctrl-C between the start of a run and the first follow stops that run.
    with session_pool(targets, output, hosts=hosts, quiet=output.quiet, node0s=hosts[:1]) as (pool, interrupt):
        pool.warm(hosts)
        from ipexctl.jobs.submit import pipeline  # imported while the hosts are connected
        from ipexctl.jobs.submit.request import StartFailure
        from ipexctl.jobs.submit.upload import start_reading

        reading = None
        probed: Sequence[HostFacts] = ()
        if install and not dry_run:
            reading = start_reading(request, launch_call.project, output.print_note)
            added = AddedPackages(
                tuple(packages or ()), tuple(requirements or ()), takes_project_file=not no_requirements
            )
            outcome, probed = _install_first(launch_call, pool, output, reading, added)
            if isinstance(outcome, StartFailure):
                raise called.not_started(outcome.with_call_options(launch_call.options), interrupt)
            if outcome:
                why, code = ("the install failed", outcome) if interrupt.code is None else ("", interrupt.code)
                raise called.ended(why, code)
        if dry_run:
            from ipexctl.launch.plan import SCHEMA, to_json
            from ipexctl.ui.launch_plan import show_plan

            planned = plan_or_exit(launch_call, output, pool, interrupt, run="RUN", schema=SCHEMA)
            output.print_report(planned.plan, to_json, show_plan)
            raise interrupt.or_exit(0)
        submitted = pipeline.submit_run(
            hosts,
            request,
            pool,
            launch_call.project,
            notify=output.print_note,
            note=notes.add,
            reading=reading,
            call_options=launch_call.options,
            probed=probed,
        )
        if isinstance(submitted, StartFailure):
            raise called.not_started(submitted.with_call_options(launch_call.options), interrupt)
        from ipexctl.cli.watch import watch_run  # imported while the ranks start

        called.needs_note = False
        session = None if detach else pool.detach(submitted.record.node0)
        pool.close()
        for note in (*submitted.notes, *(submitted.plan.choices if output.verbose else ())):
            notes.add(note)
        notes.close()
        run = submitted.record.id
        if detach and interrupt.code is None:
            output.print_note(f"it runs on {submitted.record.node0.name}; ipexctl attach {run}, ipexctl stop {run}")
            sys.stdout.write(f"{run}\n")  # last: if it can't be written, the message above named the run
            raise typer.Exit(0)
        plan = submitted.plan
        size = f"{counted(plan.world_size, 'rank')} on {counted(len(plan.hosts), 'host')}"
        output.print_note(f"{run}: {size}, {plan.connection}")
        started = (session, submitted.launch.follow) if session is not None else None
        code = watch_run(
            submitted.record,
            view,
            request.ranks,
            output,
            started=started,
            plan=submitted.document,
            interrupt=interrupt,
            events=called.events,
        )
    notify_of_run(notify, submitted.record, code, called.seconds)
    if code not in NO_CLEANUP:
        with session_pool(targets, hosts=hosts, quiet=True) as (pool, _):
            pipeline.remove_job_files(hosts, submitted.record, pool)
    written = [
        summary is None
        or write_summary_of_run(summary, submitted.record, code, called.seconds, submitted.plan.other_runs),
        page is None or page.write(submitted.record, output),
    ]
    raise typer.Exit(code or (0 if all(written) else 1))


class RunPage(Protocol):
    """The file of --report: the addition `run-page` of an extra, called with its path."""

    def check(self, *, detach: bool, dry_run: bool) -> None:
        """Raise a UserError, before the run, if it can't be written at its end."""

    def write(self, record: RunRecord, output: Output) -> bool:
        """Whether it was written at the end of the run; if not, why is printed."""


def _page_of_run(path: Path | None, *, detach: bool, dry_run: bool) -> RunPage | None:
    if path is None:
        return None
    page_at = addition("run-page")
    if page_at is None:
        raise UserError("--report: this installation of ipexctl writes no pages", fix="take --report out")
    page: RunPage = page_at(path)
    page.check(detach=detach, dry_run=dry_run)
    return page


class StartNotes:
    """The notes of a start: without -v at most three of them, so that the first lines of the ranks stay in sight."""

    MOST: Final = 3

    def __init__(self, output: Output) -> None:
        self._output = output
        self._count = 0

    def add(self, text: str) -> None:
        """May be called by several threads, as notes of the checks come while files are uploaded."""
        self._count += 1
        if self._output.verbose or self._count <= self.MOST:
            self._output.print_note(f"note: {text}")

    def close(self) -> None:
        if self._count > self.MOST and not self._output.verbose:
            self._output.print_note(f"note: {counted(self._count - self.MOST, 'more note')} with -v")


@dataclass
class RunCall:
    """Whether this call has to be noted as one that began no run, why it began none, and where its outcome goes."""

    needs_note: bool
    summary: Path | None
    reason: str = ""
    fix: str = ""
    events: EventsView | None = None
    """The view of `--events`."""
    _start_time: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._start_time

    def begin_events(self, view: ViewOptions, ranks: RankSet, *, quiet: bool) -> None:
        """With --events, the failure of the start is an event, too."""
        if view.events:
            from ipexctl.remote.cancel import Cancel
            from ipexctl.ui.run.events import EventsView

            self.events = EventsView(Cancel(), ranks=ranks, quiet=quiet)

    def not_started(self, failure: StartFailure, interrupt: Interrupt) -> typer.Exit:
        """Print why the run was not started, unless the user interrupted it."""
        from ipexctl.ui.messages import print_message, print_refusal

        if interrupt.code is None or failure.is_unsure:
            print_refusal(failure.reason, failure.fix)
        else:
            print_message("interrupted before the run was started: nothing runs")
        self.needs_note = not failure.is_unsure
        code = failure.exit_code if interrupt.code is None else interrupt.code
        return self.ended(failure.reason, code, failure.fix, failure.other_runs or None)

    def ended(self, reason: str, code: int, fix: str = "", other_runs: Sequence[OtherRun] | None = None) -> typer.Exit:
        """The end of a call that started no run."""
        self.reason, self.fix = reason, fix
        if self.events is not None:
            self.events.fail("not-started", reason or "interrupted", fix)
            self.events.finish(code, None)
        if self.summary is not None:
            write_summary(self.summary, None, None, code, self.seconds, other_runs)
        return typer.Exit(code)


@contextmanager
def _noting_failed_call(line: LaunchLine, summary: Path | None, *, needs_note: bool) -> Iterator[RunCall]:
    called = RunCall(needs_note, summary)
    try:
        yield called
    except UserError as error:
        called.reason, called.fix = error.message, error.fix
        raise
    finally:
        script = line.module or next(iter(line.words or ()), "")
        if called.needs_note and script:
            from ipexctl.jobs.registry import FailedCall, RunRegistry, save_failed_call

            save_failed_call(RunRegistry().directory, FailedCall(time.time(), script, called.reason, called.fix))


def _refuse_ignored_options(
    line: LaunchLine, view: ViewOptions, *, install: bool, detach: bool, dry_run: bool, summary: Path | None
) -> None:
    if line.output.json and not dry_run:
        raise UserError("run has no --json", fix="--summary FILE gets the outcome; --dry-run --json shows the plan")
    if view.events and (detach or dry_run):
        raise UserError(
            "--events follows the run, so it cannot be used with --detach or --dry-run",
            fix="--dry-run --json shows the plan; ipexctl attach RUN --events follows a detached run",
        )
    if summary is not None and detach:
        raise UserError(
            "--summary is written at the end of the run, so it cannot be used with --detach",
            fix="use ipexctl ps --json",
        )
    check_summary(summary)
    named = {name for name in ("stack", "torch") if getattr(line.launch, name)} - line.targets.defaults.keys()
    if named and not (install or dry_run):
        raise UserError(
            "--stack and --torch are for --install", fix="--install with them, or --env NAME for one that is there"
        )


def _request_of_project(launch_call: LaunchCall, stack: StackRequest, output: Output) -> InstallRequest | None:
    """The request for the packages of the project's own file, which was found and not named; None if it has none.

    A file that cannot be installed as it stands does not end the call: the script may not need what it names.
    """
    from ipexctl.stack.install_context import install_request
    from ipexctl.stack.project_file import find_project_file
    from ipexctl.stack.resolve.model import Sources

    file = find_project_file(launch_call.project.root)
    if file is None or launch_call.request.python is not None:
        return None
    option = f"-r {shlex.quote(os.path.relpath(file.path))}"
    try:
        check_found(file.path, naming=f"ipexctl run {option}")
        request = install_request(stack, (), [file.path], Sources(), launch_call.request.env, os.environ)
    except UserError as error:
        output.print_note(f"note: {file.path.name} is left out: {error}; --no-requirements leaves it out in silence")
        return None
    if request.sources != Sources():
        output.print_note(f"note: {file.path.name} is left out: it names indexes, which count if the call has {option}")
        return None
    output.print_note(f"note: the packages of {file.path.name} are installed, too; without them: --no-requirements")
    return request


def _install_first(
    launch_call: LaunchCall,
    pool: SessionPool,
    output: Output,
    reading: Future[Project] | None,
    added: AddedPackages,
) -> tuple[StartFailure | int, Sequence[HostFacts]]:
    """Install the environment on hosts that lack it, as `ipexctl install` does.

    Returns the exit code, and the facts of the hosts if they still hold, as nothing had to be installed.
    Without --stack and --torch the hosts get the environment that other hosts have.
    """
    from ipexctl.facts.gather import gather_facts
    from ipexctl.jobs.submit.context import is_everywhere
    from ipexctl.jobs.submit.preflight.before_install import check_before_install
    from ipexctl.jobs.submit.request import StartFailure
    from ipexctl.stack.install import install
    from ipexctl.stack.install_context import install_request
    from ipexctl.stack.resolve.model import EnvRequest, Sources, StackRequest
    from ipexctl.ui.install import show
    from ipexctl.ui.progress_view import ProgressView

    hosts, request = launch_call.hosts, launch_call.request
    if reading is not None:
        reading.result()  # a project that cannot be sent is refused first
    stack = StackRequest(request.torch, request.stack)
    wanted = _request_of_project(launch_call, stack, output) if added.is_project_file() else None
    wanted = wanted or install_request(stack, added.packages, added.files, Sources(), request.env, os.environ)
    # All answers are read: an abandoned gather cancels the pool.
    probed = tuple(gather_facts(hosts, pool, home=request.home, timeout=request.timeout))
    is_there = is_everywhere(probed, request.env)
    if is_there and wanted.env == EnvRequest(StackRequest()):
        return 0, probed
    if not is_there:
        adds_packages = bool(wanted.env.extras)
        checked = check_before_install(hosts, request, pool, launch_call.project, probed, adds_packages=adds_packages)
        if isinstance(checked, StartFailure):
            return checked, ()
        if checked:
            output.print_note(f"note: {checked}")
    wanted = replace(wanted, home=request.home, iface=request.iface, timeout=request.timeout)
    with ProgressView(quiet=output.quiet, verbose=output.verbose > 0, no_color=output.no_color) as view:
        report = install(hosts, wanted, pool, view.watch, probed=() if is_there else probed)
    if report.exit_code or not all(host.status == "ok" for host in report.hosts):
        with redirect_stdout(sys.stderr):  # stdout has only the output of the ranks
            show(report, quiet=output.quiet, no_color=output.no_color)
    return report.exit_code, ()
