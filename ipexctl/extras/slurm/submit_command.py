"""`ipexctl submit`: puts a run into a Slurm cluster's queue through its login node. Every option is decided here, from
this machine's defaults files; the job reads none. The run's id is the only line on stdout.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

import typer

from ipexctl.commands.launch_call import PrintedStart, note_on_arguments, spec_of_line
from ipexctl.commands.launch_options import ScriptCommand, ScriptLine
from ipexctl.commands.shared_options import Home, Output, Targets, command, flag, option
from ipexctl.commands.target_hosts import (
    choose_hosts,
    connect_options,
    current_directory,
    host_options,
    open_pool,
    select,
)
from ipexctl.errors import UserError
from ipexctl.extras.slurm.queued import explain
from ipexctl.extras.slurm.submit_script import QueueOptions, check_queue_options
from ipexctl.homes.registry import RunRecord
from ipexctl.hosts.host import Host, private_keys, quote
from ipexctl.hosts.select import ENVIRONMENT
from ipexctl.launch.spec import RunSpec
from ipexctl.node.common.fix import Fix
from ipexctl.option_declaration import CallOptions
from ipexctl.remote.connector import SessionPool
from ipexctl.remote.outcome import HostError
from ipexctl.run.queue_wait import poll_status
from ipexctl.run.start.project import locate_project
from ipexctl.run.start.request import StartFailure, check_pool, check_request, refuse_bad_rank_counts
from ipexctl.ui.messages import print_message, print_refusal
from ipexctl.ui.results import print_json
from ipexctl.ui.safe_output import print_document
from ipexctl.ui.text_table import print_lines

SCHEMA = "ipexctl.submit/1"


@dataclass(frozen=True, kw_only=True)
class SlurmOptions:
    slurm: str | None = option("--slurm LOGIN", "Login node of the cluster: a name for ssh, or a host of the hostfile.")
    partition: str | None = option("--partition -p NAME", "Partition (default: the cluster's).")
    nodes: int = option("--nodes -N N", "Number of nodes (default: {default}).", 1, min=1)
    time: str | None = option("--time -t T", "Time limit: minutes, HH:MM:SS or D-HH:MM:SS (default: the partition's).")
    account: str | None = option("--account NAME", "Account to charge.")
    qos: str | None = option("--qos NAME", "Quality of service.")
    requeue: bool = flag(
        "--requeue", "Let Slurm restart the job, also at its time limit; it continues from --checkpoint PATH."
    )
    sbatch: list[str] | None = option(
        "--sbatch OPTION", "Further option of sbatch, such as --sbatch=--constraint=amx; repeatable."
    )


@command(cls=ScriptCommand, no_args_is_help=True, context_settings={"allow_interspersed_args": False})
def submit_command(
    *,
    ctx: typer.Context,
    queue: SlurmOptions,
    dry_run: bool = flag("--dry-run", "Print the script of the job; submit nothing."),
    line: ScriptLine,
    targets: Targets,
    home: Home,
    output: Output,
) -> None:
    """Put a run into the queue of a Slurm cluster, through its login node.

    ipexctl syncs the project to the login node, and gives sbatch a script that
    starts the run when the job begins. The nodes must share the login node's
    home. ps, attach, logs, why, stop, fetch, report and wait take the printed
    id, also while the run is queued. The job gets whole nodes, unless --sbatch
    asks for less.

    \b
    Example: ipexctl submit --slurm login.example.org -N 2 -t 2:00:00 train.py
    """
    targets = targets_of_login(queue.slurm, targets)
    spec, options = _read_call(ctx, queue, line, targets, home)
    if note := note_on_arguments(ctx, spec):
        output.print_note("note: " + note)
    with open_pool(connect_options(targets, output)) as (pool, interrupt):
        pool.warm(spec.hosts)
        from ipexctl.extras.slurm.submission import Submission  # 0.1 s, while the node is connected

        submission = Submission(spec, options, pool, PrintedStart(output))
        result = submission.plan() if dry_run else submission.submit()
        if isinstance(result, StartFailure):
            raise typer.Exit(_refused(result, output, interrupt.code))
        if isinstance(result, RunRecord):
            _report(result, pool, output)
        elif output.json:
            login, path = spec.hosts[0].name, f"{result.rundir}/slurm/job.sh"
            print_json({"schema": SCHEMA, "script": result.text(), "login": login, "path": path})
        else:
            print_document(result.text())
    raise interrupt.or_exit(0)


def _report(record: RunRecord, pool: SessionPool, output: Output) -> None:
    state, reason, fix, job = "unknown", "", "", ""
    try:
        known = poll_status(pool.session(record.node0), record)
        record, state, job = known.record, known.state, known.record.plan.job
        if known.status is not None and not known.has_begun:
            explained = explain(record, known.status)
            reason, fix = explained.reason, explained.fix
    except HostError as error:
        reason, fix = (
            error.reason,
            Fix(f"to see it: `ipexctl ps`; to take it out of the queue: `ipexctl stop {record.id}`"),
        )
    if output.json:
        fields = {"id": record.id, "state": state, "job": job, "login": record.node0.name, "reason": reason, "fix": fix}
        print_json({"schema": SCHEMA, **fields})
        return
    output.print_note(f"run {record.id}: {reason or f'{state} in Slurm job {job}'}")
    output.print_note(Fix(f"  watch it: `ipexctl attach {record.id}`; stop it: `ipexctl stop {record.id}`"))
    print_lines([record.id])


def _refused(failure: StartFailure, output: Output, interrupted: int | None) -> int:
    if interrupted is not None and not failure.is_unsure:
        print_message("interrupted before the job was submitted: nothing is in the queue")
    else:
        print_refusal(failure.reason, failure.fix)
    if output.json:
        print_json({"schema": SCHEMA, "id": None, "status": "failed", "reason": failure.reason, "fix": failure.fix})
    return failure.exit_code if interrupted is None else interrupted


def targets_of_login(name: str | None, targets: Targets) -> Targets:
    """The host of that name, if the call, a cluster or $IPEXCTL_HOSTFILE names hosts; else a host that ssh knows."""
    if name is None:
        raise UserError("submit needs the login node of a cluster", fix="--slurm LOGIN, a name or user@name for ssh")
    if targets.limit is not None and "limit" not in targets.defaults:
        raise UserError(
            "--limit is for hosts of a hostfile, and Slurm chooses the nodes of a job",
            fix="--sbatch=--exclude=NODE leaves a node out, --sbatch=--nodelist=NODE asks for it",
        )
    if targets.names_hosts or os.environ.get(ENVIRONMENT):
        found = select(replace(targets.without_defaults("limit"), limit=None))
        user, _, bare = name.rpartition("@")
        if any(host.name == bare for host in found.hosts):
            return replace(targets.without_defaults("limit"), limit=bare, user=user or targets.user)
        if targets.names_hosts:
            names = ", ".join(host.name for host in found.hosts[:3]) + (", …" if len(found.hosts) > 3 else "")
            raise UserError(
                f"--slurm {quote(name)}: no host of {found.source} has this name",
                fix=f"use one of its hosts ({names}), or leave these hosts out for a name that ssh knows",
            )
    return replace(targets.without_defaults("hosts", "hostfile", "limit", "cluster"), hosts=name)


def _login(name: str | None, targets: Targets) -> Host:
    hosts = choose_hosts(targets)
    if len(hosts) != 1:
        raise UserError(f"--slurm {name} names {len(hosts)} hosts", fix="name one login node")
    return hosts[0]


def _read_call(
    ctx: typer.Context, queue: SlurmOptions, line: ScriptLine, targets: Targets, home: Home
) -> tuple[RunSpec, QueueOptions]:
    login = _login(queue.slurm, targets)
    if line.module is None and not line.words:
        raise UserError(
            "submit needs a script, a module or a command",
            fix=f"{ctx.command_path} --slurm LOGIN SCRIPT.py, -m MODULE, or -- COMMAND",
        )
    options = QueueOptions(
        queue.partition,
        queue.nodes,
        queue.time,
        queue.account,
        queue.qos,
        queue.requeue,
        others=tuple(queue.sbatch or ()),
    )
    check_queue_options(options)
    spec = spec_of_line(ctx, line, targets, home)
    spec = replace(
        spec,
        hosts=(login,),
        hosts_from=f"Slurm of {login.name}",
        secret_files=(*spec.secret_files, *private_keys((login,))),
        options=CallOptions(host_options(targets, home)),
    )
    check_request(spec.asked)
    nodes = [Host(f"node{number}", "") for number in range(1, options.nodes + 1)]
    refuse_bad_rank_counts(spec.asked, nodes)
    if (refusal := check_pool(spec.asked, nodes)) is not None:
        raise UserError(refusal.reason, fix=refusal.fix)
    if options.requeue and not spec.asked.checkpoint:
        raise UserError(
            "--requeue without --checkpoint: the script would start over each time",
            fix="--checkpoint PATH, a file or directory that the script writes and reads at its start",
        )
    spec = replace(spec, project=locate_project(spec, current_directory()))
    return spec, replace(options, no_kill=spec.asked.has_pool)
