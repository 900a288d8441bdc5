"""`ipexctl export`: prints the plan of a run for Slurm or sh. The plan is made as in `run --dry-run`. Options that the
other launcher lacks are reported on stderr, or in the JSON document.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

import typer

from ipexctl.commands.launch_call import PrintedStart, read_launch_call, refuse_plan
from ipexctl.commands.launch_options import LaunchLine, ScriptCommand
from ipexctl.commands.shared_options import Output, option, subcommand
from ipexctl.commands.target_hosts import session_pool
from ipexctl.extras.export.common import ExportResult, at_project
from ipexctl.extras.export.sbatch_file import to_slurm
from ipexctl.extras.export.shell import to_shell
from ipexctl.launch.run_options import changed_options
from ipexctl.launch.spec import RunSpec
from ipexctl.node.common.asked import Asked
from ipexctl.node.common.plan import Plan
from ipexctl.option_declaration import SLURM_LAUNCHER
from ipexctl.projects.root import real_path
from ipexctl.run.start.watcher import PlannedRun
from ipexctl.sync.path_notes import secret_files_below
from ipexctl.ui.messages import print_message
from ipexctl.ui.results import print_json
from ipexctl.ui.safe_output import print_document

export_command = typer.Typer(
    help="Print the plan of a run for another launcher.\n\n\b\n"
    "Example: ipexctl export shell -H hostfile train.py > train.sh",
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
)
SCHEMA = "ipexctl.export/1"
SETTINGS: Final = {"allow_interspersed_args": False}


@subcommand(export_command, "slurm", cls=ScriptCommand, context_settings=SETTINGS)
def slurm(
    *,
    ctx: typer.Context,
    launcher: Literal["auto", "srun", "mpirun"] = option(
        "--launcher", "Launcher of the ranks; auto is srun for gloo, else mpirun (default: {default}).", SLURM_LAUNCHER
    ),
    line: LaunchLine,
) -> None:
    """Print an sbatch file that starts the same ranks.

    \b
    Example: ipexctl export slurm -H hostfile train.py > train.sbatch
    """
    spec, planned = _plan(ctx, line)
    cwd, name, iface = str(spec.project.root / spec.project.subdirectory), _job_name(spec), spec.asked.iface
    interface = iface if iface and "/" not in iface else None
    exported = to_slurm(
        at_project(planned.plan, str(spec.project.root)),
        cwd,
        name,
        planned.context.setup,
        launcher=launcher,
        iface=interface,
        env_name=spec.asked.env,
    )
    _print(exported, line.output, _lost(ctx, spec, planned.plan))


@subcommand(export_command, "shell", cls=ScriptCommand, context_settings=SETTINGS)
def shell(*, ctx: typer.Context, line: LaunchLine) -> None:
    """Print a readable shell script that does the steps of run.

    \b
    Example: ipexctl export shell -H hostfile train.py > train.sh
    """
    spec, planned = _plan(ctx, line)
    tree = planned.plan.cwd.removesuffix(f"/{spec.project.subdirectory}")
    root = str(spec.project.root) if spec.asked.sync else None
    secret_files = secret_files_below(real_path(spec.project.root), spec.secret_files)
    exported = to_shell(at_project(planned.plan, tree), spec.hosts, root, tree, planned.context.setup, secret_files)
    _print(exported, line.output, _lost(ctx, spec, planned.plan))


def _plan(ctx: typer.Context, line: LaunchLine) -> tuple[RunSpec, PlannedRun]:
    """Plan as a dry run does."""
    from ipexctl.run.start.pipeline import RunStart, plan_run  # 0.2 s, which help does not need

    spec = read_launch_call(ctx, line, is_export=True)
    with session_pool(line.targets, line.output) as (pool, interrupt):
        planned = plan_run(RunStart(spec, pool, PrintedStart(line.output)), "by-hand")
        if isinstance(planned, PlannedRun):
            return spec, planned
    raise interrupt.or_exit(refuse_plan(planned.with_call_options(spec.options), line.output, SCHEMA))


def _job_name(spec: RunSpec) -> str:
    return Path(spec.asked.script).stem


def _lost(ctx: typer.Context, spec: RunSpec, plan: Plan) -> list[str]:
    lost = _lost_options(ctx, spec.asked)
    if plan.allreduce.mode == "shared":
        lost.append(
            "ranks of one host add gradients up over gloo, because the files for shared memory exist only in a run"
        )
    return lost


def _lost_options(ctx: typer.Context, asked: Asked) -> list[str]:
    """Notes about options on the command line that the other launcher can't express, from their declarations."""
    notes = []
    for _, declaration, value in changed_options(asked):
        # An option that is 0 or empty asks for nothing.
        if ctx.info_name not in declaration.lost_in or not value:
            continue
        shown = f" {value:g}" if isinstance(value, float) else "" if value is True else f" {value}"
        shown = f" {shlex.join(value)}" if isinstance(value, tuple) else shown
        notes.append(f"{declaration.flag}{shown} is left out: {declaration.consequence}")
    return notes


def _print(exported: ExportResult, output: Output, lost: Sequence[str] = ()) -> None:
    notes = [*exported.notes, *lost]
    if output.json:
        print_json({"schema": SCHEMA, "text": exported.text, "notes": notes})
        return
    print_document(exported.text)
    for note in notes if not output.quiet else ():
        print_message("note: " + note)
