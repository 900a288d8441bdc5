"""`ipexctl run`: runs a script on every rank of every node."""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
import time
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from ipexctl.cli.launch_options import LaunchOptionsGroup, Script, ScriptCommand, read_launch_call
from ipexctl.cli.options import Home, Output, Targets, shared
from ipexctl.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ipexctl.hosts.host import Host
    from ipexctl.jobs.registry import RunRecord
    from ipexctl.jobs.submit.pipeline import PlannedRun
    from ipexctl.jobs.submit.request import RunRequest, StartFailure
    from ipexctl.remote.session_pool import SessionPool

app = typer.Typer(rich_markup_mode=None, add_completion=False)


NO_CLEANUP: Final = (0, 128 + signal.SIGHUP, 128 + signal.SIGPIPE)
"""Exit codes of a run that succeeded or was detached: its job files are not removed from the nodes."""


@app.command(cls=ScriptCommand, no_args_is_help=True, context_settings={"allow_interspersed_args": False})
@shared(Script, LaunchOptionsGroup, Targets, Home, Output)
def run_command(
    ctx: typer.Context,
    script: Script,
    launch: LaunchOptionsGroup,
    targets: Targets,
    home: Home,
    output: Output,
    install: Annotated[bool, typer.Option("--install", help="Install the environment on hosts that lack it.")] = False,
    ranks: Annotated[
        str,
        typer.Option(
            "--ranks", metavar="SPEC", show_default=False, help="Ranks to show, such as 0 or 0-3,8 (default: all)."
        ),
    ] = "all",
    plain: Annotated[
        bool, typer.Option("--plain", help="Print lines prefixed with their rank, also on a terminal.")
    ] = False,
    live: Annotated[bool, typer.Option("--live", help="Show the live view; an error without a terminal.")] = False,
    detach: Annotated[bool, typer.Option("--detach", help="Start the run and return immediately.")] = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Print ranks, variables with their reasons and the mpirun line; start nothing."),
    ] = False,
    summary: Annotated[
        Path | None,
        typer.Option("--summary", readable=False, metavar="FILE", help="Write the outcome to this file as JSON."),
    ] = None,
) -> None:
    """Run a script on every rank of every node.

    The project is synced to the nodes, mpirun is started on node0, and the
    output of every rank is shown. Ctrl-C stops the run on every host; a
    closed terminal does not.

    \b
    Example: ipexctl run --hosts 'node[1-4]' --ppn 2 train.py --epochs 3
    """
    from ipexctl.cli.hosts import connect_options
    from ipexctl.cli.interrupt import cancelling
    from ipexctl.jobs.ranks import parse_ranks
    from ipexctl.remote.cancel import Cancel
    from ipexctl.remote.connector import Connector
    from ipexctl.remote.session_pool import SessionPool
    from ipexctl.ui.messages import print_message

    _refuse_ignored_options(launch, output, install=install, detach=detach, dry_run=dry_run, summary=summary)
    if live:
        _check_live(plain=plain)
    launch_call = read_launch_call(ctx, script, launch, targets, home, parse_ranks(ranks))
    hosts, request, project, exports = launch_call.hosts, launch_call.request, launch_call.project, launch_call.exports
    cancel = Cancel()

    def print_note(text: str) -> None:
        if not output.quiet:
            print_message(text)

    if launch_call.note:
        print_note(f"note: {launch_call.note}")
    start_time = time.monotonic()
    options = connect_options(targets, output)
    # Signals are handled to the end: a Ctrl-C between the start of a run and the first follow stops that run.
    with Connector(options) as connector, cancelling(cancel) as interrupt:
        with SessionPool(connector, cancel, forks=targets.forks) as pool:
            pool.warm(hosts)
            from ipexctl.jobs.submit import pipeline  # imported while the hosts are connected
            from ipexctl.jobs.submit.request import StartFailure

            if install and not dry_run and (code := _install_first(request, hosts, pool, output)):
                raise interrupt.or_exit(code)
            if dry_run:
                planned = pipeline.plan_run(hosts, request, pool, project, run="RUN", notify=print_note)
                raise typer.Exit(_show_plan(planned, output, launch_call.host_options))
            settings = pipeline.ConnectSettings(options.host_keys, options.connect_timeout, launch_call.host_options)
            submitted = pipeline.submit_run(hosts, request, pool, project, exports.secrets, settings, notify=print_note)
            if isinstance(submitted, StartFailure):
                failure, seconds = submitted.with_host_options(launch_call.host_options), time.monotonic() - start_time
                raise typer.Exit(_print_not_started(failure, interrupt.code, summary, seconds))
            from ipexctl.cli.watch import View, watch_run  # imported while the ranks start
            from ipexctl.ui.run.summary import counted

            session = None if detach else pool.detach(submitted.record.node0)
        for note in submitted.notes:
            print_note(f"note: {note}")
        run = submitted.record.id
        if detach and interrupt.code is None:
            print_note(f"it runs on {submitted.record.node0.name}; ipexctl attach {run}, ipexctl stop {run}")
            sys.stdout.write(f"{run}\n")  # last: if it can't be written, the message above named the run
            raise typer.Exit(0)
        plan = submitted.plan
        print_note(
            f"{run}: {counted(plan.world_size, 'rank')} on {counted(len(plan.hosts), 'host')}, over {plan.backend}"
        )
        view = View(plain, live, request.ranks, output.no_color, output.quiet)
        code = watch_run(submitted.record, view, session=session, interrupt=interrupt)
    _remove_job_files(code, hosts, submitted.record, targets)
    if summary is not None and not _write_summary(summary, submitted.record, code, time.monotonic() - start_time):
        code = code or 1
    raise typer.Exit(code)


def _refuse_ignored_options(
    launch: LaunchOptionsGroup, output: Output, *, install: bool, detach: bool, dry_run: bool, summary: Path | None
) -> None:
    """Refuse options that would be ignored."""
    if output.json and not dry_run:
        raise UserError("run has no --json", fix="--summary FILE gets the outcome; --dry-run --json shows the plan")
    if summary is not None and detach:
        raise UserError("--summary is written at the run's end, and --detach leaves before", fix="ipexctl ps --json")
    if summary is not None and (problem := _unwritable(summary)):
        raise UserError(f"--summary {summary}: {problem}", fix="a file that can be written")
    if (launch.stack or launch.torch) and not (install or dry_run):
        raise UserError(
            "--stack and --torch are for --install", fix="--install with them, or --env NAME for one that is there"
        )


def _check_live(*, plain: bool) -> None:
    """Refuse --live before the run starts if it is impossible."""
    from ipexctl.ui.run.plain import check_terminal

    if plain:
        raise UserError("--plain and --live are two views", fix="one of them")
    check_terminal()


def _unwritable(path: Path) -> str:
    if path.is_dir():
        return "it is a directory"
    if not path.parent.is_dir():
        return f"there is no directory {path.parent}"
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        return os.strerror(errno.EACCES)
    return ""


def _print_not_started(
    failure: StartFailure, interrupted: int | None, summary: Path | None = None, seconds: float = 0.0
) -> int:
    """Print why the run was not started, and return the exit code. An interruption is not reported as a failure."""
    from ipexctl.ui.messages import print_message, print_refusal

    if interrupted is None or failure.is_unsure:
        print_refusal(failure.reason, failure.fix)
    else:
        print_message("interrupted before the run was started: nothing runs")
    code = failure.exit_code if interrupted is None else interrupted
    if summary is not None:
        _write_summary(summary, None, code, seconds)
    return code


def _remove_job_files(code: int, hosts: Sequence[Host], record: RunRecord, targets: Targets) -> None:
    from ipexctl.cli.hosts import connect_options
    from ipexctl.jobs.submit.pipeline import remove_job_files
    from ipexctl.remote.cancel import Cancel
    from ipexctl.remote.connector import Connector
    from ipexctl.remote.session_pool import SessionPool

    if code in NO_CLEANUP:
        return
    with (
        Connector(connect_options(targets)) as connector,
        SessionPool(connector, Cancel(), forks=targets.forks) as pool,
    ):
        remove_job_files(hosts, record, pool)


def _show_plan(planned: PlannedRun | StartFailure, output: Output, host_options: str) -> int:
    from ipexctl.jobs.submit.request import StartFailure
    from ipexctl.ui import launch_plan
    from ipexctl.ui.messages import print_refusal

    if isinstance(planned, StartFailure):
        planned = planned.with_host_options(host_options)
        print_refusal(planned.reason, planned.fix)
        if output.json:
            launch_plan.show_refused_json(planned)
        return planned.exit_code
    if output.json:
        launch_plan.show_json(planned.plan)
    else:
        launch_plan.show_plan(planned.plan, no_color=output.no_color)
    return 0


def _write_summary(path: Path, record: RunRecord | None, code: int, seconds: float) -> bool:
    """Write the outcome for a script; the id is null if no run started. Returns whether the file was written."""
    from ipexctl.ui.messages import print_message

    document = {
        "schema": "ipexctl.run/1",
        "id": record.id if record is not None else None,
        "exit_code": code,
        "world_size": record.world_size if record is not None else 0,
        "hosts": list(record.hosts) if record is not None else [],
        "seconds": round(seconds, 3),
    }
    try:
        path.write_text(json.dumps(document, indent=2) + "\n")
    except OSError as error:
        print_message(f"--summary {path}: {error.strerror or error}; it is not written")
        return False
    return True


def _install_first(
    request: RunRequest,
    hosts: Sequence[Host],
    pool: SessionPool,
    output: Output,
) -> int:
    """Install the environment on hosts that lack it, as `ipexctl install` does; returns the exit code.

    Without --stack and --torch the hosts get the environment that other hosts have.
    """
    from ipexctl.facts.gather import gather
    from ipexctl.jobs.submit.context import is_everywhere
    from ipexctl.stack.catalog.user_table import known_rows
    from ipexctl.stack.env.record import check_env_name
    from ipexctl.stack.install import install
    from ipexctl.stack.install_context import InstallRequest
    from ipexctl.stack.lock.requirements import check_request
    from ipexctl.stack.resolve.model import EnvRequest, Sources, StackRequest
    from ipexctl.ui.install import show
    from ipexctl.ui.progress_view import ProgressView

    rows = known_rows(os.environ)
    env_request = EnvRequest(StackRequest(request.torch, request.stack))
    check_request(env_request.stack, rows)
    if request.torch is None and request.stack is None:
        answers = gather(hosts, pool, home=request.home, timeout=request.timeout)
        if is_everywhere(answers, request.env):
            return 0
    install_request = InstallRequest(
        env=env_request,
        sources=Sources(),
        rows=rows,
        name=check_env_name(request.env),
        home=request.home,
        iface=request.iface,
        timeout=request.timeout,
    )
    with ProgressView(quiet=output.quiet, verbose=output.verbose > 0, no_color=output.no_color) as view:
        report = install(hosts, install_request, pool, view.watch)
    if report.exit_code or not all(host.status == "ok" for host in report.hosts):
        with redirect_stdout(sys.stderr):  # stdout has only the output of the ranks
            show(report, quiet=output.quiet, no_color=output.no_color)
    return report.exit_code
