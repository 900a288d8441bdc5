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

from ipexctl.cli.launch_options import Launch, Script, ScriptCommand, understand
from ipexctl.cli.options import Home, Output, Targets, shared
from ipexctl.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ipexctl.hosts.host import Host
    from ipexctl.jobs.begin.refused import Refused
    from ipexctl.jobs.begin.run import Planned
    from ipexctl.jobs.begin.wishes import RunWishes
    from ipexctl.jobs.record import RunRecord
    from ipexctl.remote.crew import Crew

app = typer.Typer(rich_markup_mode=None, add_completion=False)


GOES_ON: Final = (0, 128 + signal.SIGHUP, 128 + signal.SIGPIPE)
"""Ended well, or left to itself: there is nothing to clear away on the nodes."""


@app.command(cls=ScriptCommand, no_args_is_help=True, context_settings={"allow_interspersed_args": False})
@shared(Script, Launch, Targets, Home, Output)
def run_command(
    ctx: typer.Context,
    script: Script,
    launch: Launch,
    targets: Targets,
    home: Home,
    output: Output,
    install: Annotated[bool, typer.Option("--install", help="Make the environment where it is missing.")] = False,
    ranks: Annotated[str, typer.Option("--ranks", metavar="SPEC", help="Which ranks to show: 0, 0-3,8.")] = "all",
    plain: Annotated[bool, typer.Option("--plain", help="Lines behind their rank, also on a terminal.")] = False,
    live: Annotated[bool, typer.Option("--live", help="The live view.")] = False,
    detach: Annotated[bool, typer.Option("--detach", help="Start it, and leave it to itself.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show ranks, variables with their reasons, the mpirun line; do nothing.")
    ] = False,
    summary: Annotated[
        Path | None, typer.Option("--summary", readable=False, metavar="FILE", help="Write the outcome as JSON.")
    ] = None,
) -> None:
    """Run a script on every rank of every node, launched as an expert would.

    The project is brought to the nodes, mpirun is started on the first, and
    every rank's output comes back. Ctrl-C stops it everywhere; a closed
    terminal doesn't.

    \b
    Example: ipexctl run --hosts 'node[1-4]' --ppn 2 train.py --epochs 3
    """
    from ipexctl.cli.hosts import reach_options
    from ipexctl.cli.interrupt import cancelling
    from ipexctl.jobs.ranks import parse_ranks
    from ipexctl.remote.cancel import Cancel
    from ipexctl.remote.crew import Crew
    from ipexctl.remote.reach import Reach
    from ipexctl.ui.say import say

    _refuse_idle(launch, output, install=install, detach=detach, dry_run=dry_run, summary=summary)
    if live:
        _check_live(plain=plain)
    asked = understand(ctx, script, launch, targets, home, parse_ranks(ranks))
    hosts, wishes, place, exports = asked.hosts, asked.wishes, asked.place, asked.exports
    cancel = Cancel()

    def tell(text: str) -> None:
        if not output.quiet:
            say(text)

    if asked.note:
        tell(f"note: {asked.note}")
    began = time.monotonic()
    reaching = reach_options(targets, output)
    # To the very end: a Ctrl-C between the start of a run and the first look at it stops that run.
    with Reach(reaching) as reach, cancelling(cancel) as interrupt:
        with Crew(reach, cancel, forks=targets.forks) as crew:
            crew.warm(hosts)
            from ipexctl.jobs.begin.ahead import ask_ahead

            if install and not dry_run and (code := _install_first(wishes, hosts, crew, output)):
                raise typer.Exit(interrupt.code if interrupt.code is not None else code)
            ahead = ask_ahead(hosts, wishes, crew, place, run="RUN" if dry_run else None, dry_run=dry_run)
            from ipexctl.jobs.begin import run as verb  # a tenth of a second, while the hosts answer
            from ipexctl.jobs.begin.refused import Refused
            from ipexctl.jobs.begin.under_way import noted
            from ipexctl.jobs.record import Register

            if dry_run:
                planned = verb.plan_run(hosts, wishes, crew, place, run="RUN", say=tell, dry_run=True, ahead=ahead)
                raise typer.Exit(_show_plan(planned, output, asked.again))
            way = verb.Way(reaching.host_keys, reaching.connect_timeout, asked.again)
            with noted(Register().directory, ahead.run):
                begun = verb.begin(hosts, wishes, crew, place, exports.secrets, way, say=tell, ahead=ahead)
            if isinstance(begun, Refused):
                raise typer.Exit(
                    _say_not_begun(begun.on(asked.again), interrupt.code, summary, time.monotonic() - began)
                )
            from ipexctl.cli.watch import View, watch_run  # while the ranks are being started
            from ipexctl.ui.run_summary import counted

            session = None if detach else crew.hand_over(begun.record.node0)
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
    launch: Launch, output: Output, *, install: bool, detach: bool, dry_run: bool, summary: Path | None
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
    from ipexctl.ui.run_live import check_terminal

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


def _say_not_begun(refused: Refused, interrupted: int | None, summary: Path | None = None, seconds: float = 0.0) -> int:
    """What the hosts had not come to when it was interrupted is nobody's fault; the exit code."""
    from ipexctl.ui.say import say, say_refused

    if interrupted is None or refused.unsure:
        say_refused(refused.reason, refused.fix)
    else:
        say("interrupted before it began: nothing was started")
    code = refused.exit_code if interrupted is None else interrupted
    if summary is not None:
        _write_summary(summary, None, code, seconds)
    return code


def _clear_away(code: int, hosts: Sequence[Host], record: RunRecord, targets: Targets) -> None:
    from ipexctl.cli.hosts import reach_options
    from ipexctl.jobs.begin.run import clear_away
    from ipexctl.remote.cancel import Cancel
    from ipexctl.remote.crew import Crew
    from ipexctl.remote.reach import Reach

    if code in GOES_ON:
        return
    with Reach(reach_options(targets)) as reach, Crew(reach, Cancel(), forks=targets.forks) as crew:
        clear_away(hosts, record, crew)


def _show_plan(planned: Planned | Refused, output: Output, again: str) -> int:
    from ipexctl.jobs.begin.refused import Refused
    from ipexctl.ui import launch_plan
    from ipexctl.ui.say import say_refused

    if isinstance(planned, Refused):
        planned = planned.on(again)
        say_refused(planned.reason, planned.fix)
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
    from ipexctl.ui.say import say

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
        say(f"--summary {path}: {error.strerror or error}; it is not written")
        return False
    return True


def _install_first(
    wishes: RunWishes,
    hosts: Sequence[Host],
    crew: Crew,
    output: Output,
) -> int:
    """What `ipexctl install` does where a host lacks the environment, said as it says it; the exit code if it failed.

    Without --stack and --torch it is to be like the one that other hosts have.
    """
    from ipexctl.facts.gather import gather
    from ipexctl.jobs.begin.prepare import asked_before
    from ipexctl.stack.choice.request import EnvRequest, Sources, StackRequest
    from ipexctl.stack.course import Wishes
    from ipexctl.stack.env.names import check_env_name
    from ipexctl.stack.install import install
    from ipexctl.stack.lock.wanted import check_request
    from ipexctl.stack.rows.user_rows import known_rows
    from ipexctl.ui.install import show
    from ipexctl.ui.install_view import InstallView

    rows = known_rows(os.environ)
    request = EnvRequest(StackRequest(wishes.torch, wishes.stack))
    check_request(request.stack, rows)
    if wishes.torch is None and wishes.stack is None:
        before, everywhere = asked_before(gather(hosts, crew, home=wishes.home, timeout=wishes.timeout), wishes.env)
        if everywhere:
            return 0
        request = before or request
    wanted = Wishes(
        env=request,
        sources=Sources(),
        rows=rows,
        name=check_env_name(wishes.env),
        home=wishes.home,
        iface=wishes.iface,
        timeout=wishes.timeout,
    )
    with InstallView(quiet=output.quiet, verbose=output.verbose > 0, no_color=output.no_color) as view:
        report = install(hosts, wanted, crew, view.watch)
    if report.exit_code or not all(host.status == "ok" for host in report.hosts):
        with redirect_stdout(sys.stderr):  # stdout is the ranks'
            show(report, quiet=output.quiet, no_color=output.no_color)
    return report.exit_code
