"""`ipexctl run`: one script on every rank of every node."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperCommand

from ipexctl.cli.options import Home, Output, Targets, shared
from ipexctl.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ipexctl.hosts.host import Host
    from ipexctl.jobs.record import RunRecord
    from ipexctl.jobs.refused import Refused
    from ipexctl.jobs.run import Planned
    from ipexctl.jobs.wishes import RunWishes
    from ipexctl.launch.request import CommandKind
    from ipexctl.remote.crew import Crew

app = typer.Typer(rich_markup_mode=None, add_completion=False)


GOES_ON: Final = (0, 128 + signal.SIGHUP, 128 + signal.SIGPIPE)
"""Ended well, or left to itself: there is nothing to clear away on the nodes."""


class Backend(str, Enum):
    auto = "auto"
    ccl = "ccl"
    gloo = "gloo"
    mpi = "mpi"


class Bind(str, Enum):
    auto = "auto"
    socket = "socket"
    numa = "numa"
    cores = "cores"
    none = "none"


class _Words(TyperCommand):
    """Everything behind the script is the script's; behind `-m NAME` the same."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        with_value = {
            word
            for param in self.params
            if not getattr(param, "is_flag", True) and not getattr(param, "count", False)
            for word in param.opts
        }
        at = 0
        while at < len(args) and args[at] != "--" and args[at].startswith("-") and args[at] != "-":
            takes = args[at] in with_value
            at += 2 if takes else 1
            if takes and args[at - 2] in ("-m", "--module"):
                args = [*args[:at], "--", *args[at:]]
                break
        ctx.obj = {"dashes": at < len(args) and args[at] == "--"}
        return super().parse_args(ctx, args)


@app.command(cls=_Words, no_args_is_help=True, context_settings={"allow_interspersed_args": False})
@shared(Targets, Home, Output)
def run_command(
    ctx: typer.Context,
    targets: Targets,
    home: Home,
    output: Output,
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="SCRIPT.py [ARGS…]", show_default=False, help="Or: -m MODULE [ARGS…]; or: -- COMMAND…"),
    ] = None,
    module: Annotated[str | None, typer.Option("--module", "-m", metavar="NAME", help="A module.")] = None,
    n: Annotated[int | None, typer.Option("-n", metavar="N", help="How many ranks in all.")] = None,
    ppn: Annotated[
        int | None, typer.Option("--ppn", metavar="N", help="How many a node; else one a NUMA node, or the slots.")
    ] = None,
    env: Annotated[str, typer.Option("--env", metavar="NAME", help="The environment.")] = "default",
    python: Annotated[
        str | None, typer.Option("--python", metavar="PATH", help="A Python of yours on every host instead.")
    ] = None,
    setup: Annotated[
        str | None, typer.Option("--setup", metavar="FILE", help="A file on every host, sourced in bash first.")
    ] = None,
    install: Annotated[bool, typer.Option("--install", help="Make the environment where it is missing.")] = False,
    stack: Annotated[str | None, typer.Option("--stack", metavar="NAME", help="With --install: which row.")] = None,
    torch: Annotated[str | None, typer.Option("--torch", metavar="V", help="With --install: which torch.")] = None,
    export: Annotated[
        list[str] | None,
        typer.Option("--export", "-x", metavar="KEY[=VALUE]", help="A variable for the ranks; without a value, ours."),
    ] = None,
    env_file: Annotated[
        list[Path] | None,
        typer.Option("--env-file", readable=False, metavar="FILE", help="Variables from a file, never shown."),
    ] = None,
    backend: Annotated[Backend, typer.Option("--backend", help="What ranks talk over.")] = Backend.auto,
    mpi: Annotated[
        str, typer.Option("--mpi", metavar="NAME|PATH", help="auto, intel, openmpi, mpich, or an mpirun's path.")
    ] = "auto",
    bind: Annotated[Bind, typer.Option("--bind", help="What a rank is bound to.")] = Bind.auto,
    omp: Annotated[int | None, typer.Option("--omp", metavar="N", help="Threads a rank.")] = None,
    ccl_workers: Annotated[
        int | None, typer.Option("--ccl-workers", metavar="N", help="oneCCL's own threads a rank.")
    ] = None,
    master_port: Annotated[
        int | None, typer.Option("--master-port", metavar="P", help="MASTER_PORT; else a free one.")
    ] = None,
    cwd: Annotated[
        Path | None, typer.Option("--cwd", readable=False, metavar="DIR", help="The project's directory here.")
    ] = None,
    sync: Annotated[bool, typer.Option("--sync/--no-sync", help="Bring the project to the hosts first.")] = True,
    exclude: Annotated[
        list[str] | None, typer.Option("--exclude", metavar="PAT", help="Leave this out of the sync.")
    ] = None,
    data: Annotated[
        list[str] | None, typer.Option("--data", metavar="DIR", help="Not synced; must be on every host.")
    ] = None,
    allow_big: Annotated[bool, typer.Option("--allow-big", help="Sync more than 1 GB or 20,000 files.")] = False,
    ranks: Annotated[str, typer.Option("--ranks", metavar="SPEC", help="Which ranks to show: 0, 0-3,8.")] = "all",
    plain: Annotated[bool, typer.Option("--plain", help="Lines behind their rank, also on a terminal.")] = False,
    live: Annotated[bool, typer.Option("--live", help="The live view.")] = False,
    detach: Annotated[bool, typer.Option("--detach", help="Start it, and leave it to itself.")] = False,
    time_limit: Annotated[
        float | None, typer.Option("--time-limit", min=1, metavar="S", help="End it after so many seconds.")
    ] = None,
    max_restarts: Annotated[
        int, typer.Option("--max-restarts", min=0, metavar="N", help="Begin it again where a rank fails, so often.")
    ] = 0,
    hang_after: Annotated[
        float, typer.Option("--hang-after", min=0, metavar="S", help="Report when all ranks are silent; 0: never.")
    ] = 600.0,
    accelerate_config: Annotated[
        Path | None,
        typer.Option("--accelerate-config", readable=False, metavar="FILE", help="What `accelerate config` wrote."),
    ] = None,
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
    from ipexctl.cli.hosts import choose_hosts, reach_options
    from ipexctl.cli.interrupt import cancelling
    from ipexctl.hosts.home import home_on_nodes
    from ipexctl.hosts.internal import InterfaceChoice
    from ipexctl.jobs.project import find_place
    from ipexctl.jobs.ranks import parse_ranks
    from ipexctl.jobs.wishes import RunWishes, check_wishes, read_exports
    from ipexctl.launch.accelerate import options_of, read_accelerate_file
    from ipexctl.launch.launchers import without_launcher
    from ipexctl.launch.request import LaunchOptions
    from ipexctl.remote.cancel import Cancel
    from ipexctl.remote.crew import Crew
    from ipexctl.remote.reach import Reach
    from ipexctl.ui.say import say, say_refused

    if module is None and not words:
        raise UserError("run what?", fix="ipexctl run SCRIPT.py, -m MODULE, or -- COMMAND")
    exports = read_exports(export or (), env_file or (), os.environ)
    config = read_accelerate_file(accelerate_config) if accelerate_config is not None else None
    options = LaunchOptions(
        n=n,
        ppn=ppn,
        backend=backend.value,
        mpi=mpi,
        bind=bind.value,
        omp=omp,
        ccl_workers=ccl_workers,
        master_port=master_port,
        time_limit=time_limit,
        exports=exports.exports,
    )
    kind: CommandKind = "module" if module is not None else "command" if ctx.obj["dashes"] else "script"
    asked = without_launcher(kind, (*((module,) if module is not None else ()), *(words or ())), options, config)
    hosts = choose_hosts(targets, asked.config.hostfile if asked.config else None)
    wishes = RunWishes(
        kind=asked.kind,
        words=asked.words,
        options=options_of(asked.config, asked.options, len(hosts)),
        accelerate=asked.config,
        stack=stack,
        torch=torch,
        env=env,
        python=python,
        setup=setup,
        home=home_on_nodes(home.home, os.environ),
        iface=home.iface,
        cwd=cwd,
        sync=sync,
        excludes=tuple(exclude or ()),
        data=tuple(data or ()),
        allow_big=allow_big,
        timeout=targets.timeout,
        restarts=max_restarts,
        hang_after=hang_after,
        ranks=parse_ranks(ranks),
    )
    if home.iface is not None:
        InterfaceChoice(home.iface)
    check_wishes(wishes)
    place = find_place(wishes, Path.cwd())
    cancel = Cancel()

    def tell(text: str) -> None:
        if not output.quiet:
            say(text)

    if asked.note:
        tell(f"note: {asked.note}")
    began = time.monotonic()
    reaching = reach_options(targets)
    with Reach(reaching) as reach:
        with cancelling(cancel) as interrupt, Crew(reach, cancel, forks=targets.forks) as crew:
            crew.warm(hosts)
            from ipexctl.jobs import run as verb  # a tenth of a second, while the hosts answer
            from ipexctl.jobs.refused import Refused

            if dry_run:
                planned = verb.plan_run(hosts, wishes, crew, place, run="RUN", say=tell, dry_run=True)
                raise typer.Exit(_show_plan(planned, output))
            if install and (code := _install_first(wishes, hosts, crew, output)):
                raise typer.Exit(interrupt.code if interrupt.code is not None else code)
            way = verb.Way(reaching.host_keys, reaching.connect_timeout)
            begun = verb.begin(hosts, wishes, crew, place, exports.secrets, way, say=tell)
            if isinstance(begun, Refused):
                say_refused(begun.reason, begun.fix)
                raise typer.Exit(interrupt.code if interrupt.code is not None else begun.exit_code)
            from ipexctl.cli.watch import View, watch_run  # while the ranks are being started
            from ipexctl.ui.run_summary import counted

            session = None if detach else crew.hand_over(begun.record.node0)
        for note in begun.notes:
            tell(f"note: {note}")
        run = begun.record.id
        if detach:
            sys.stdout.write(f"{run}\n")
            tell(f"it runs on {begun.record.node0.name}; ipexctl attach {run}, ipexctl stop {run}")
            raise typer.Exit(0)
        plan = begun.plan
        tell(f"{run}: {counted(plan.world_size, 'rank')} on {counted(len(plan.hosts), 'host')}, over {plan.backend}")
        view = View(plain, live, wishes.ranks, output.no_color, output.quiet)
        code = watch_run(begun.record, view, session=session)
    _clear_away(code, hosts, begun.record, targets)
    if summary is not None:
        _write_summary(summary, begun.record, code, time.monotonic() - began)
    raise typer.Exit(code)


def _clear_away(code: int, hosts: Sequence[Host], record: RunRecord, targets: Targets) -> None:
    from ipexctl.cli.hosts import reach_options
    from ipexctl.jobs.run import clear_away
    from ipexctl.remote.cancel import Cancel
    from ipexctl.remote.crew import Crew
    from ipexctl.remote.reach import Reach

    if code in GOES_ON:
        return
    with Reach(reach_options(targets)) as reach, Crew(reach, Cancel(), forks=targets.forks) as crew:
        clear_away(hosts, record, crew)


def _show_plan(planned: Planned | Refused, output: Output) -> int:
    from ipexctl.jobs.refused import Refused
    from ipexctl.ui import launch_plan
    from ipexctl.ui.say import say_refused

    if isinstance(planned, Refused):
        say_refused(planned.reason, planned.fix)
        return planned.exit_code
    if output.json:
        launch_plan.show_json(planned.plan)
    else:
        launch_plan.show_plan(planned.plan, no_color=output.no_color)
    return 0


def _write_summary(path: Path, record: RunRecord, code: int, seconds: float) -> None:
    """The outcome for a script: which run, and how it ended."""
    said = {
        "schema": "ipexctl.run/1",
        "id": record.id,
        "exit_code": code,
        "world_size": record.world_size,
        "hosts": list(record.hosts),
        "seconds": round(seconds, 3),
    }
    try:
        path.write_text(json.dumps(said, indent=2) + "\n")
    except OSError as error:
        raise UserError(f"--summary {path}: {error.strerror or error}", fix="a file that can be written") from None


def _install_first(
    wishes: RunWishes,
    hosts: Sequence[Host],
    crew: Crew,
    output: Output,
) -> int:
    """What `ipexctl install` does, said as it says it; the exit code where it failed."""
    from ipexctl.stack.course import Wishes
    from ipexctl.stack.install import install
    from ipexctl.stack.names import check_env_name
    from ipexctl.stack.request import EnvRequest, Sources, StackRequest
    from ipexctl.stack.user_rows import known_rows
    from ipexctl.stack.wanted import check_request
    from ipexctl.ui.install import show
    from ipexctl.ui.install_view import InstallView

    rows = known_rows(os.environ)
    request = StackRequest(wishes.torch, wishes.stack)
    check_request(request, rows)
    wanted = Wishes(
        env=EnvRequest(request),
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
        show(report, quiet=output.quiet, no_color=output.no_color)
    return report.exit_code
