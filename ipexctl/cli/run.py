"""`ipexctl run`: one script on every rank of every node."""

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
    from ipexctl.jobs.submit.failure import PreflightFailure
    from ipexctl.jobs.submit.pipeline import PlannedRun
    from ipexctl.jobs.submit.request import RunRequest
    from ipexctl.remote.session_pool import SessionPool

app = typer.Typer(rich_markup_mode=None, add_completion=False)


GOES_ON: Final = (0, 128 + signal.SIGHUP, 128 + signal.SIGPIPE)
"""Ended well, or left to itself: there is nothing to clear away on the nodes."""


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
    from ipexctl.cli.hosts import reach_options
    from ipexctl.cli.interrupt import cancelling
    from ipexctl.jobs.ranks import parse_ranks
    from ipexctl.remote.cancel import Cancel
    from ipexctl.remote.connector import Connector
    from ipexctl.remote.session_pool import SessionPool
    from ipexctl.ui.messages import print_message

    _refuse_idle(launch, output, install=install, detach=detach, dry_run=dry_run, summary=summary)
    if live:
        _check_live(plain=plain)
    asked = read_launch_call(ctx, script, launch, targets, home, parse_ranks(ranks))
    hosts, wishes, place, exports = asked.hosts, asked.wishes, asked.place, asked.exports
    cancel = Cancel()

    def tell(text: str) -> None:
        if not output.quiet:
            print_message(text)

    if asked.note:
        tell(f"note: {asked.note}")
    began = time.monotonic()
    reaching = reach_options(targets, output)
    # To the very end: a Ctrl-C between the start of a run and the first look at it stops that run.
    with Connector(reaching) as connector, cancelling(cancel) as interrupt:
        with SessionPool(connector, cancel, forks=targets.forks) as pool:
            pool.warm(hosts)
            from ipexctl.jobs.submit.gather import start_gathering

            if install and not dry_run and (code := _install_first(wishes, hosts, pool, output)):
                raise typer.Exit(interrupt.code if interrupt.code is not None else code)
            gathered = start_gathering(hosts, wishes, pool, place, run="RUN" if dry_run else None, dry_run=dry_run)
            from ipexctl.jobs.registry import RunRegistry
            from ipexctl.jobs.submit import pipeline as verb  # a tenth of a second, while the hosts answer
            from ipexctl.jobs.submit.failure import PreflightFailure
            from ipexctl.jobs.submit.pending import mark_pending

            if dry_run:
                planned = verb.plan_run(
                    hosts, wishes, pool, place, run="RUN", say=tell, dry_run=True, gathered=gathered
                )
                raise typer.Exit(_show_plan(planned, output, asked.again))
            way = verb.ConnectSettings(reaching.host_keys, reaching.connect_timeout, asked.again)
            with mark_pending(RunRegistry().directory, gathered.run):
                begun = verb.submit_run(hosts, wishes, pool, place, exports.secrets, way, say=tell, gathered=gathered)
            if isinstance(begun, PreflightFailure):
                raise typer.Exit(
                    _say_not_begun(begun.on(asked.again), interrupt.code, summary, time.monotonic() - began)
                )
            from ipexctl.cli.watch import View, watch_run  # while the ranks are being started
            from ipexctl.ui.run.summary import counted

            session = None if detach else pool.detach(begun.record.node0)
        for note in begun.notes:
            tell(f"note: {note}")
        run = begun.record.id
        if detach and interrupt.code is None:
            tell(f"it runs on {begun.record.node0.name}; ipexctl attach {run}, ipexctl stop {run}")
            sys.stdout.write(f"{run}\n")  # last: where it can't be written, the run is known all the same
            raise typer.Exit(0)
        plan = begun.plan
        tell(f"{run}: {counted(plan.world_size, 'rank')} on {counted(len(plan.hosts), 'host')}, over {plan.backend}")
        view = View(plain, live, wishes.ranks, output.no_color, output.quiet)
        code = watch_run(begun.record, view, session=session, came=interrupt)
    _clear_away(code, hosts, begun.record, targets)
    if summary is not None and not _write_summary(summary, begun.record, code, time.monotonic() - began):
        code = code or 1
    raise typer.Exit(code)


def _refuse_idle(
    launch: LaunchOptionsGroup, output: Output, *, install: bool, detach: bool, dry_run: bool, summary: Path | None
) -> None:
    """What would be passed over in silence."""
    if output.json and not dry_run:
        raise UserError("run has no --json", fix="--summary FILE gets the outcome; --dry-run --json shows the plan")
    if summary is not None and detach:
        raise UserError("--summary is written at the run's end, and --detach leaves before", fix="ipexctl ps --json")
    if summary is not None and (wrong := _unwritable(summary)):
        raise UserError(f"--summary {summary}: {wrong}", fix="a file that can be written")
    if (launch.stack or launch.torch) and not (install or dry_run):
        raise UserError(
            "--stack and --torch are for --install", fix="--install with them, or --env NAME for one that is there"
        )


def _check_live(*, plain: bool) -> None:
    """Before anything is started."""
    from ipexctl.ui.run.live import check_terminal

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


def _say_not_begun(
    refused: PreflightFailure, interrupted: int | None, summary: Path | None = None, seconds: float = 0.0
) -> int:
    """What the hosts had not come to when it was interrupted is nobody's fault; the exit code."""
    from ipexctl.ui.messages import print_message, print_refusal

    if interrupted is None or refused.unsure:
        print_refusal(refused.reason, refused.fix)
    else:
        print_message("interrupted before it began: nothing was started")
    code = refused.exit_code if interrupted is None else interrupted
    if summary is not None:
        _write_summary(summary, None, code, seconds)
    return code


def _clear_away(code: int, hosts: Sequence[Host], record: RunRecord, targets: Targets) -> None:
    from ipexctl.cli.hosts import reach_options
    from ipexctl.jobs.submit.pipeline import remove_job_files
    from ipexctl.remote.cancel import Cancel
    from ipexctl.remote.connector import Connector
    from ipexctl.remote.session_pool import SessionPool

    if code in GOES_ON:
        return
    with Connector(reach_options(targets)) as connector, SessionPool(connector, Cancel(), forks=targets.forks) as pool:
        remove_job_files(hosts, record, pool)


def _show_plan(planned: PlannedRun | PreflightFailure, output: Output, again: str) -> int:
    from ipexctl.jobs.submit.failure import PreflightFailure
    from ipexctl.ui import launch_plan
    from ipexctl.ui.messages import print_refusal

    if isinstance(planned, PreflightFailure):
        planned = planned.on(again)
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
    """The outcome for a script: which run, and how it ended; without an id none began. Whether it could be written."""
    from ipexctl.ui.messages import print_message

    said = {
        "schema": "ipexctl.run/1",
        "id": record.id if record is not None else None,
        "exit_code": code,
        "world_size": record.world_size if record is not None else 0,
        "hosts": list(record.hosts) if record is not None else [],
        "seconds": round(seconds, 3),
    }
    try:
        path.write_text(json.dumps(said, indent=2) + "\n")
    except OSError as error:
        print_message(f"--summary {path}: {error.strerror or error}; it is not written")
        return False
    return True


def _install_first(
    wishes: RunRequest,
    hosts: Sequence[Host],
    pool: SessionPool,
    output: Output,
) -> int:
    """What `ipexctl install` does where a host lacks the environment, said as it says it; the exit code if it failed.

    Without --stack and --torch it is to be like the one that other hosts have.
    """
    from ipexctl.facts.gather import gather
    from ipexctl.jobs.submit.context import requested_before
    from ipexctl.stack.catalog.user_table import known_rows
    from ipexctl.stack.env.names import check_env_name
    from ipexctl.stack.install import install
    from ipexctl.stack.install_context import InstallRequest
    from ipexctl.stack.lock.request import check_request
    from ipexctl.stack.resolve.request import EnvRequest, Sources, StackRequest
    from ipexctl.ui.install import show
    from ipexctl.ui.install_view import InstallView

    rows = known_rows(os.environ)
    request = EnvRequest(StackRequest(wishes.torch, wishes.stack))
    check_request(request.stack, rows)
    if wishes.torch is None and wishes.stack is None:
        before, everywhere = requested_before(gather(hosts, pool, home=wishes.home, timeout=wishes.timeout), wishes.env)
        if everywhere:
            return 0
        request = before or request
    wanted = InstallRequest(
        env=request,
        sources=Sources(),
        rows=rows,
        name=check_env_name(wishes.env),
        home=wishes.home,
        iface=wishes.iface,
        timeout=wishes.timeout,
    )
    with InstallView(quiet=output.quiet, verbose=output.verbose > 0, no_color=output.no_color) as view:
        report = install(hosts, wanted, pool, view.watch)
    if report.exit_code or not all(host.status == "ok" for host in report.hosts):
        with redirect_stdout(sys.stderr):  # stdout is the ranks'
            show(report, quiet=output.quiet, no_color=output.no_color)
    return report.exit_code
