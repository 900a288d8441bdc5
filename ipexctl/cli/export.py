"""`ipexctl export`: prints the plan of a run for another launcher."""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ipexctl.cli.launch_options import LaunchOptionsGroup, Script, ScriptCommand, read_launch_call
from ipexctl.cli.options import Home, Output, Targets, shared
from ipexctl.errors import UserError
from ipexctl.hosts.names import quoted

if TYPE_CHECKING:
    from collections.abc import Callable

    from ipexctl.cli.launch_options import LaunchCall
    from ipexctl.export.common import Exported
    from ipexctl.jobs.submit.pipeline import PlannedRun
    from ipexctl.jobs.submit.request import RunRequest

app = typer.Typer(
    help="Print the plan of a run for another launcher.\n\n\b\n"
    "Example: ipexctl export shell -H hostfile train.py > train.sh",
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
)
SCHEMA = "ipexctl.export/1"
WITHOUT = {
    "--include": (("shell",), "it leaves credentials out"),
    "--setup": (("accelerate", "mpijob"), "source it before"),
    "--max-restarts": (("accelerate", "shell", "slurm"), "nothing begins it again"),
    "--time-limit": (("accelerate", "shell"), "nothing ends it"),
}
"""Option → the exports that cannot express it, and the consequence."""
SETTINGS: dict[str, Any] = {"allow_interspersed_args": False}


class SlurmLauncher(str, Enum):
    auto = "auto"
    srun = "srun"
    mpirun = "mpirun"


@app.command("accelerate", cls=ScriptCommand, context_settings=SETTINGS)
@shared(Script, LaunchOptionsGroup, Targets, Home, Output)
def accelerate(
    ctx: typer.Context,
    script: Script,
    launch: LaunchOptionsGroup,
    targets: Targets,
    home: Home,
    output: Output,
    mpirun_hostfile: Annotated[
        str | None,
        typer.Option(
            "--mpirun-hostfile",
            metavar="PATH",
            help="Hostfile for mpirun (default: the hostfile of -H, else ./hostfile).",
        ),
    ] = None,
) -> None:
    """Print a configuration for the accelerate in the environment.

    \b
    Example: ipexctl export accelerate -H hostfile train.py > config.yaml
    """

    def render(_: LaunchCall, planned: PlannedRun) -> Exported:
        from ipexctl.export.accelerate import to_accelerate

        hostfile = mpirun_hostfile or str(
            targets.hostfile.absolute() if targets.hostfile else Path("hostfile").absolute()
        )
        return to_accelerate(planned.plan, planned.context.env.packages, hostfile)

    _export(ctx, script, launch, targets, home, output, render)


@app.command("slurm", cls=ScriptCommand, context_settings=SETTINGS)
@shared(Script, LaunchOptionsGroup, Targets, Home, Output)
def slurm(
    ctx: typer.Context,
    script: Script,
    launch: LaunchOptionsGroup,
    targets: Targets,
    home: Home,
    output: Output,
    launcher: Annotated[
        SlurmLauncher,
        typer.Option(
            "--launcher",
            show_default=False,
            help="Launcher of the ranks; auto is srun for gloo, else mpirun (default: auto).",
        ),
    ] = SlurmLauncher.auto,
) -> None:
    """Print an sbatch file that starts the same ranks in an allocation.

    \b
    Example: ipexctl export slurm -H hostfile train.py > train.sbatch
    """

    def render(launch_call: LaunchCall, planned: PlannedRun) -> Exported:
        from ipexctl.export.slurm import to_slurm

        cwd, name, iface = (
            str(launch_call.project.root / launch_call.project.subdirectory),
            Path(launch_call.request.script).stem,
            launch_call.request.iface,
        )
        interface = iface if iface and "/" not in iface else None
        return to_slurm(planned.plan, cwd, name, planned.context.setup, launcher=launcher.value, iface=interface)

    _export(ctx, script, launch, targets, home, output, render)


@app.command("mpijob", cls=ScriptCommand, context_settings=SETTINGS)
@shared(Script, LaunchOptionsGroup, Targets, Home, Output)
def mpijob(
    ctx: typer.Context,
    script: Script,
    launch: LaunchOptionsGroup,
    targets: Targets,
    home: Home,
    output: Output,
    image: Annotated[
        str,
        typer.Option(
            "--image",
            metavar="NAME",
            show_default=False,
            help="Image with the environment, project, mpirun and sshd (default: my-training-image).",
        ),
    ] = "my-training-image",
) -> None:
    """Print a Kubeflow MPIJob (v2beta1).

    \b
    Example: ipexctl export mpijob -H hostfile --image me/img train.py > job.yaml
    """

    if not image or any(character.isspace() for character in image):
        raise UserError(f"--image {quoted(image)} is no image's name", fix="such as registry/me/train:1")

    def render(launch_call: LaunchCall, planned: PlannedRun) -> Exported:
        from ipexctl.export.mpijob import to_mpijob

        cpus = [planned.context.facts[host.name].cpu for host in planned.plan.hosts]
        threads = max((cpu.threads // cpu.cores for cpu in cpus if cpu.threads and cpu.cores), default=1)
        name, restarts = Path(launch_call.request.script).stem, launch_call.request.restarts
        return to_mpijob(planned.plan, name, image, threads_per_core=threads, restarts=restarts)

    _export(ctx, script, launch, targets, home, output, render)


@app.command("shell", cls=ScriptCommand, context_settings=SETTINGS)
@shared(Script, LaunchOptionsGroup, Targets, Home, Output)
def shell(
    ctx: typer.Context, script: Script, launch: LaunchOptionsGroup, targets: Targets, home: Home, output: Output
) -> None:
    """Print a readable shell script that does the steps of run.

    \b
    Example: ipexctl export shell -H hostfile train.py > train.sh
    """

    def render(launch_call: LaunchCall, planned: PlannedRun) -> Exported:
        from ipexctl.export.shell import to_shell

        tree = planned.plan.cwd.removesuffix(f"/{launch_call.project.subdirectory}")
        root = str(launch_call.project.root) if launch_call.request.sync else None
        return to_shell(planned.plan, launch_call.hosts, root, tree, planned.context.setup)

    _export(ctx, script, launch, targets, home, output, render)


@app.command("ansible")
@shared(Targets, Home, Output)
def ansible(targets: Targets, home: Home, output: Output) -> None:
    """Print the hosts as an Ansible inventory.

    \b
    Example: ipexctl export ansible -H hostfile > inventory.yaml
    """
    from ipexctl.cli.hosts import check_home, choose_hosts
    from ipexctl.export.ansible import to_ansible

    check_home(home)
    _print(to_ansible(choose_hosts(targets)), output)


def _export(
    ctx: typer.Context,
    script: Script,
    launch: LaunchOptionsGroup,
    targets: Targets,
    home: Home,
    output: Output,
    render: Callable[[LaunchCall, PlannedRun], Exported],
) -> None:
    """Plan as a dry run does, and print the plan for the other launcher."""
    from ipexctl.cli.hosts import session_pool
    from ipexctl.jobs.submit import pipeline
    from ipexctl.jobs.submit.request import StartFailure
    from ipexctl.ui.launch_plan import show_refused_json
    from ipexctl.ui.messages import print_message, print_refusal

    def print_note(text: str) -> None:
        if not output.quiet:
            print_message(text)

    launch_call = read_launch_call(ctx, script, launch, targets, home)
    with session_pool(targets, output) as (pool, interrupt):
        planned = pipeline.plan_run(
            launch_call.hosts, launch_call.request, pool, launch_call.project, run="by-hand", notify=print_note
        )
    if isinstance(planned, StartFailure):
        planned = planned.with_host_options(launch_call.host_options)
        print_refusal(planned.reason, planned.fix)
        if output.json:
            show_refused_json(planned, SCHEMA)
        raise interrupt.or_exit(planned.exit_code)
    exported = render(launch_call, planned)
    _print(replace(exported, notes=(*exported.notes, *_lost_options(str(ctx.info_name), launch_call.request))), output)


def _lost_options(target: str, request: RunRequest) -> list[str]:
    limit = request.options.time_limit
    values = {
        "--include": " ".join(map(shlex.quote, request.includes)) or None,
        "--setup": request.setup,
        "--max-restarts": str(request.restarts) if request.restarts else None,
        "--time-limit": f"{limit:g}" if limit else None,
    }
    return [
        f"{option} {values[option]} is not in it: {consequence}"
        for option, (targets_without, consequence) in WITHOUT.items()
        if target in targets_without and values[option] is not None
    ]


def _print(exported: Exported, output: Output) -> None:
    from ipexctl.ui.messages import print_message

    if output.json:
        document = {"schema": SCHEMA, "text": exported.text, "notes": list(exported.notes)}
        sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
        return
    sys.stdout.write(exported.text)
    for note in exported.notes if not output.quiet else ():
        print_message(f"note: {note}")
