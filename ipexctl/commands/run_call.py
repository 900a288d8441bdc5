"""The call of `ipexctl run`: read it, let `api.run` start and follow the run, and exit with the run's code.

stdout has only the output of the ranks; steps and notes go to stderr. One signal handler is active from the first
connection until the run is followed, so a Ctrl-C in between stops the run that was just started.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Protocol

import typer

from ipexctl.addons_list import addition
from ipexctl.api.run import run
from ipexctl.commands.install_command import show
from ipexctl.commands.interrupt import Interrupt
from ipexctl.commands.option_groups import Output, RunHosts
from ipexctl.commands.run_arguments import RunCall
from ipexctl.commands.spec_of_call import read_launch_call, refuse_plan
from ipexctl.commands.summary_file import check_summary, write_summary, write_summary_of_run
from ipexctl.commands.target_hosts import session_pool
from ipexctl.errors import IpexctlError, UserError
from ipexctl.homes.registry import FailedCall, RunRecord, RunRegistry, explain_foreign_run, save_failed_call
from ipexctl.hosts.nodeset import fold
from ipexctl.launch.run_declarations import call_of
from ipexctl.launch.spec import RunSpec
from ipexctl.node.common.fix import Fix, FixCommand, ipexctl_command, parts_of
from ipexctl.node.common.plan import SCHEMA, OtherRun, Plan, to_json
from ipexctl.option_declaration import TypedCall
from ipexctl.projects.root import ProjectHere
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.connector import SessionPool
from ipexctl.remote.outcome import Cancelled, Notice, ProgressEvent, Watch
from ipexctl.remote.session import Session
from ipexctl.run.notify_command import check_notify
from ipexctl.run.ranks import RankSet, parse_ranks
from ipexctl.run.start.start_request import StartFailure, check_packages
from ipexctl.run.start.watcher import PlannedRun, RunWatcher, StartedRun
from ipexctl.text import format_count
from ipexctl.ui.message_output import print_message, print_refusal
from ipexctl.ui.progress_view import ProgressView
from ipexctl.ui.text_table import print_lines

if TYPE_CHECKING:
    from ipexctl.stack.install_context import InstallReport
    from ipexctl.ui.run.events import EventsView


NO_CLEANUP: Final = (0, 128 + signal.SIGHUP, 128 + signal.SIGPIPE)
"""Exit codes of a run that succeeded or was detached: its job files stay on the nodes."""


def run_of_call(ctx: typer.Context, call: RunCall) -> typer.Exit:
    """Start the run and follow it, unless the call only plans or starts it.

    Returns the exit, for the caller to raise.
    """
    outcome = ctx.with_resource(_noting_failed_call(call, ctx.obj["typed"]))
    _refuse_ignored_options(call)
    page = _page_of_run(call)
    check_notify(call.notify)
    shown_ranks = parse_ranks(call.ranks)
    outcome.begin_events(shown_ranks)
    record = None
    has_checkpoint = True
    if call.resume_run is not None:
        record = ctx.obj["resumed"] or _find_resumed(call.resume_run, call)
        from ipexctl.api.known_runs import note_end  # for --resume alone
        from ipexctl.commands.named_runs import call_about_runs

        with call_about_runs(call.output) as (caller, _):
            status = note_end(record, caller)
            has_checkpoint = status is None or status.has_checkpoint or bool(status.checkpoint)
    spec = read_launch_call(ctx, call, shown_ranks)
    spec = replace(
        spec,
        asked=spec.asked._replace(
            is_followed=not call.detach,
            is_attended=not call.detach and sys.stdin.isatty(),
            install=call.installs or spec.asked.install,
            packages=(*(call.packages or ()), *spec.asked.packages),
            requirements=tuple(map(str, call.requirements or ())),
            takes_own_requirements=not call.no_requirements,
            extra=tuple(call.extra or ()),
            group=tuple(call.group or ()),
            builds=tuple(call.build or ()),
        ),
        notify=call.notify,
        typed=ctx.obj["typed"],
    )
    check_packages(spec.asked)
    if record is not None:
        _refuse_absent_checkpoint(spec, record, may_be_there=has_checkpoint)
        spec = _on_hosts_left(spec, record, call, ctx.obj["given"])
    shown = RunOfCall(spec, shown_ranks, call, outcome)
    result = run(spec, shown, dry_run=call.dry_run)
    if not isinstance(result, StartedRun) or result.exit_code is None:
        return shown.without_follow(result)
    record, code = result.record, result.exit_code
    written = [
        call.summary is None
        or write_summary_of_run(call.summary, record, code, outcome.seconds, record.plan.other_runs),
        page is None or page.write(record, call.output),
    ]
    return typer.Exit(code or (0 if all(written) else 1))


def _find_resumed(run: str, call: RunCall) -> RunRecord:
    """Return the run of someone else that --resume means. The words of its call are only in their records.

    Raises a UserError, with the command to type, if this call does not name what to run.
    """
    from ipexctl.commands.named_runs import find_run  # for --resume alone

    record = find_run(run, RunHosts.of(call.targets, call.home), call.output, reads=False)
    if call.module is None and not call.words:
        typed = call_of(record.plan.asked)
        words = (*record.options.about_runs, *typed.options)
        line = ipexctl_command("run", "--resume", record.id, *words, argv=typed.words)
        raise UserError(
            f"{explain_foreign_run(record)}, and only their records have the words of its call",
            fix=Fix("in a copy of its project: `{line}`", line=line),
        )
    call.output.print_note(explain_foreign_run(record))
    return record


def _refuse_absent_checkpoint(spec: RunSpec, record: RunRecord, *, may_be_there: bool) -> None:
    """Refuse a relative checkpoint of someone else's run: it is in their copy of the project, where these ranks do not
    look.

    `may_be_there`: False if the run wrote no checkpoint.
    """
    path = spec.asked.checkpoint
    if not record.is_kept and path and not path.startswith("/"):
        bring = Fix("`ipexctl fetch {id}:{path} {path}`; then ", id=record.id, path=path) if may_be_there else ""
        reason = f"{explain_foreign_run(record)}, with {path} in another copy of the project"
        raise UserError(reason, fix=bring + "the same call without --resume")


def _on_hosts_left(spec: RunSpec, record: RunRecord, call: RunCall, typed: Collection[str]) -> RunSpec:
    """Return the spec with the run's hosts that answer. Raises a CallError if none does, or the run is alive."""
    from ipexctl.run.start.resume import hosts_to_inspect, on_hosts_left  # for --resume alone

    with session_pool(call.targets, hosts=hosts_to_inspect(spec, record), quiet=True) as (pool, interrupt):
        spec_on_hosts = on_hosts_left(spec, record, pool, call.output.print_note, typed=typed)
    interrupt.check()
    return spec_on_hosts


class RunPage(Protocol):
    """The page of `run --report`. The addon's `run-page` makes it from a path."""

    def check(self, *, has_end: bool) -> None:
        """Raise a UserError if the file cannot be written at the end of the run."""

    def write(self, record: RunRecord, output: Output) -> bool:
        """Write the page and return True; print the reason and return False if that fails."""


def _page_of_run(call: RunCall) -> RunPage | None:
    """Return the page of --report; None without it."""
    if call.report is None:
        return None
    page: RunPage = addition("run-page")(call.report)
    page.check(has_end=not (call.detach or call.dry_run))
    return page


class RunOfCall(RunWatcher):
    """Connects the start of a run to this call: sessions, notes, the question about an install, and following."""

    MOST_NOTES: Final = 3
    """Notes shown without -v. With more, the first lines of the ranks would scroll out of sight."""

    def __init__(self, spec: RunSpec, ranks: RankSet, call: RunCall, outcome: CallOutcome) -> None:
        self._spec, self._ranks, self._call, self._output = spec, ranks, call, call.output
        self._outcome = outcome
        self._interrupt: Interrupt | None = None
        self._pool: SessionPool | None = None
        self._session: Session | None = None
        self._notes = 0
        self._announced = set[str]()
        """Texts shown while the stack was looked up for the question about an install.

        The install would repeat them.
        """

    @contextmanager
    def sessions(self) -> Iterator[SessionPool]:
        """Open a session pool. The first one also handles the signals of the call; one after the run is quiet."""
        hosts, targets = self._spec.hosts, self._call.targets
        if self._interrupt is not None:  # again, after the run
            with session_pool(targets, hosts=hosts, quiet=True) as (pool, _):
                yield pool
            return
        quiet = self._output.quiet
        with session_pool(targets, self._output, hosts=hosts, quiet=quiet, node0s=hosts[:1]) as opened:
            self._pool, self._interrupt = opened
            self._pool.warm(hosts)
            yield self._pool

    def on_step(self, text: str) -> None:
        """Print what is being done."""
        self._output.print_note(text)

    def on_note(self, text: str) -> None:
        """Print a note, unless too many were printed.

        Called from several threads, because checks report while files are uploaded.
        """
        self._notes += 1
        if self._call.dry_run or self._output.verbose or self._notes <= self.MOST_NOTES:
            self._output.print_note("note: " + text)

    def on_warning(self, text: str) -> None:
        """Print a warning, also with --quiet."""
        print_message(text)

    @contextmanager
    def installing(self) -> Iterator[Watch]:
        """Show the progress of an install; yields the function that takes its events."""
        output = self._output
        with ProgressView(quiet=output.quiet, verbose=output.verbose > 0) as view:

            def watch(event: ProgressEvent) -> None:
                """Show an event, unless it repeats a text."""
                if not isinstance(event, Notice) or event.text not in self._announced:
                    self._announced.update([event.text] if isinstance(event, Notice) else ())
                    view.watch(event)

            yield watch

    @property
    def offers_install(self) -> bool:
        """True: this call can ask the user about an install."""
        return True

    def agrees_to_install(self, report: InstallReport) -> bool:
        """Ask the user whether to install.

        False without a terminal, with --events, or if the question is interrupted.
        """
        from ipexctl.remote.auth import has_terminal, prompt_on_terminal  # paramiko, which is loaded by now

        hosts = fold(host.host.name for host in report.hosts if host.status == "changed")
        stack = report.stack.name if report.stack is not None else "it"
        question = f"install {stack} on {hosts}, and start {self._spec.asked.script}? [Y/n] "
        if self._call.view.events or not has_terminal():
            return False
        assert self._pool is not None
        try:
            return prompt_on_terminal(question, self._pool.cancel, shows_input=True).strip().lower() in ("", "y", "yes")
        except (Cancelled, EOFError):
            return False

    def on_installed(self, report: InstallReport) -> None:
        """Print the report of an install, if it failed or changed a host."""
        if report.exit_code or not all(host.status == "ok" for host in report.hosts):
            report = self._spec.options.in_report(report)
            with redirect_stdout(sys.stderr):  # stdout has only the ranks' output
                show(report, quiet=self._output.quiet, ends_call=False)

    def on_planned(self, plan: Plan) -> None:
        """Check the ranks that the user wants to see, now that their number is known."""
        self._ranks.within(plan.world_size)

    def on_started(self, run: StartedRun) -> None:
        """Keep the session to node0 if the run is followed, close all others, and print the choices of the plan with
        -v.
        """
        self._outcome.needs_note = False
        is_followed = self._spec.asked.is_followed
        assert self._pool is not None
        self._session = self._pool.detach(run.record.node0) if is_followed else None
        self._pool.close()
        for note in run.record.plan.choices if self._output.verbose else ():
            self.on_note(note)
        if self._notes > self.MOST_NOTES and not self._output.verbose:
            self._output.print_note(f"note: {format_count(self._notes - self.MOST_NOTES, 'more note')} with -v")

    def follow(self, run: StartedRun) -> int:
        """Show the run until its end; return the exit code."""
        from ipexctl.commands.watch import watch_run  # while the ranks start

        self._output.print_note(f"{run.record.id}: {run.record.plan.size}, {run.record.plan.connection}")
        return watch_run(
            run.record,
            self._call.view,
            self._ranks,
            self._output,
            started=(self._session, run.launch.follow) if self._session is not None else None,
            interrupt=self._interrupt,
            events=self._outcome.events,
        )

    def may_leave_secrets(self, code: int) -> bool:
        """True if a run with this exit code may have left job files on the hosts."""
        return code not in NO_CLEANUP

    def without_follow(self, result: StartedRun | PlannedRun | InstallReport | StartFailure) -> typer.Exit:
        """Print the result of a call that followed no run, and return its exit."""
        interrupt = self._interrupt
        assert interrupt is not None
        if isinstance(result, StartedRun):
            run, node0 = result.record.id, result.record.node0.name
            self._output.print_note(Fix(f"it runs on {node0}; `ipexctl attach {run}`, `ipexctl stop {run}`"))
            print_lines([run])  # last: if it can't be written, the message above named the run
            return typer.Exit(0)
        if isinstance(result, PlannedRun):
            from ipexctl.ui.launch_plan import show_plan

            is_short = not self._output.verbose
            machines = None if is_short else {name: facts.cpu for name, facts in result.context.facts.items()}
            self._output.print_report(result.plan, to_json, show_plan, machines=machines)
            return interrupt.or_exit(0)
        if not isinstance(result, StartFailure):
            code = result.exit_code if interrupt.code is None else interrupt.code
            return self._outcome.ended("the install failed" if interrupt.code is None else "", code)
        failure = result.with_call_options(self._spec.options)
        if self._call.dry_run:
            return interrupt.or_exit(refuse_plan(failure, self._output, SCHEMA))
        return self._outcome.not_started(failure, interrupt)


@dataclass
class CallOutcome:
    """What a call has come to: whether `ipexctl why` may show it as a call that started no run, and why."""

    call: RunCall
    needs_note: bool
    """True if the call is noted as one that started no run."""
    reason: str = ""
    """Why no run was started."""
    fix: str = ""
    leads_to_install: bool = False
    """True if only an install was missing, so that the call may be typed again after it."""
    events: EventsView | None = None
    """The view of --events; None without it."""
    _start_time: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        """Seconds since the call began."""
        return time.monotonic() - self._start_time

    def begin_events(self, ranks: RankSet) -> None:
        """Begin the events, if the call asks for them."""
        if self.call.view.events:
            from ipexctl.ui.run.events import EventsView

            self.events = EventsView(Cancel(), ranks=ranks, quiet=self.call.output.quiet)

    def not_started(self, failure: StartFailure, interrupt: Interrupt) -> typer.Exit:
        """Print why no run was started, and return the exit. A start that is unsure may have started one."""
        if interrupt.code is None or failure.is_unsure:
            print_refusal(failure.reason, failure.fix)
        else:
            print_message("interrupted before the run was started: nothing runs")
        self.needs_note = not failure.is_unsure
        installs = (part.verb == "install" for part in parts_of(failure.fix) if isinstance(part, FixCommand))
        self.leads_to_install = failure.lacks_environment or any(installs)
        code = failure.exit_code if interrupt.code is None else interrupt.code
        if interrupt.code is not None and not failure.is_unsure:
            return self.ended("", code)  # the failure only comes from the work that the signal cut off
        return self.ended(failure.reason, code, failure.fix, failure.other_runs or None)

    def ended(self, reason: str, code: int, fix: str = "", other_runs: Sequence[OtherRun] | None = None) -> typer.Exit:
        """Keep the reason, write the events and the summary, and return the exit. `reason`: empty after a signal."""
        reason = reason or "interrupted"
        self.reason, self.fix = reason, fix
        if self.events is not None:
            self.events.fail("not-started", reason, fix)
            self.events.finish(code, None)
        if self.call.summary is not None:
            write_summary(self.call.summary, None, None, code, self.seconds, other_runs)
        return typer.Exit(code)


@contextmanager
def _noting_failed_call(call: RunCall, typed: TypedCall) -> Iterator[CallOutcome]:
    """Keep a note of a call that starts no run, for `ipexctl why` and `ipexctl install`."""
    outcome = CallOutcome(call, needs_note=not call.dry_run)
    try:
        yield outcome
    except IpexctlError as error:
        outcome.reason, outcome.fix = error.message, error.fix
        raise
    finally:
        script = call.module or next(iter(call.words or ()), "")
        if outcome.needs_note and script:
            registry, directory = RunRegistry(), str(ProjectHere.find().directory or "")
            failed = FailedCall(time.time(), script, outcome.reason, outcome.fix, directory, registry.last_sequence())
            if outcome.leads_to_install:
                failed = replace(failed, line=str(ipexctl_command("run", *typed.options, argv=typed.words)))
            save_failed_call(registry.directory, failed)


def _refuse_ignored_options(call: RunCall) -> None:
    """Refuse options that would have no effect with the others."""
    if call.output.json and not call.dry_run:
        raise UserError(
            "run prints JSON only with --dry-run",
            fix="--dry-run --json prints the plan, --events each event of the run, --summary FILE its outcome",
        )
    if call.view.events and (call.detach or call.dry_run):
        raise UserError(
            "--events follows the run, so it cannot be used with --detach or --dry-run",
            fix="--dry-run --json shows the plan; attach --events follows a detached run",
        )
    if call.summary is not None and call.detach:
        raise UserError(
            "--summary is written at the end of the run, so it cannot be used with --detach",
            fix=Fix("use `ipexctl ps --json`"),
        )
    check_summary(call.summary)
    stack_options = {name for name in ("stack", "torch") if getattr(call, name)} - call.targets.defaults.keys()
    if stack_options and not (call.installs or call.dry_run):
        raise UserError(
            "--stack and --torch are for --install", fix="--install with them, or --env NAME for one that is there"
        )
