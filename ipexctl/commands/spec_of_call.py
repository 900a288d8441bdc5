"""Make a `RunSpec` from the call of `run`. No host is contacted.

The words after the options are a script, `-m MODULE`, a command, or the line of another launcher (`launch/launchers/`).
A typed option overrides the pasted line, and the line overrides an accelerate config and files of defaults.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import typer

from ipexctl.commands.option_groups import Output, Targets, is_on_command_line
from ipexctl.commands.run_arguments import RunCall
from ipexctl.commands.target_hosts import check_home, current_directory, host_options, select
from ipexctl.errors import UserError
from ipexctl.file_reader import SCRIPT, read_regular
from ipexctl.homes.local_copy import read_newest_status
from ipexctl.homes.registry import RunRegistry
from ipexctl.hosts.host import private_keys
from ipexctl.launch.accelerate_config import read_accelerate_file, with_config
from ipexctl.launch.launchers.cpu_options import with_cpu_options
from ipexctl.launch.launchers.program import SHELL_FILES
from ipexctl.launch.spec import RunSpec
from ipexctl.node.common.fix import FixCommand, ipexctl_command
from ipexctl.node.common.run_options import CommandKind, RunOptions
from ipexctl.option_declaration import NOT_TYPED, CallOptions, TypedCall, option_text
from ipexctl.projects.root import find_root
from ipexctl.run.ranks import EVERY_RANK, RankSet
from ipexctl.run.start.start_project import locate_project, with_python_path
from ipexctl.run.start.start_request import (
    StartFailure,
    check_request,
    read_exports,
    refuse_bad_rank_counts,
    set_options,
)
from ipexctl.text import expand_tilde
from ipexctl.ui.message_output import print_refusal

_OUR_CALL: Final = re.compile(r"\bipexctl\b")
"""Shows that a line of a script's text is a call of ipexctl."""


def _spec_of_call(ctx: typer.Context, call: RunCall) -> RunSpec:
    """Return the spec with the options and words of the call, before any other file is read."""
    kind: CommandKind = "module" if call.module is not None else "command" if ctx.obj["dashes"] else "script"
    exports, secrets = read_exports(call.export or (), call.env_file or (), os.environ)
    asked = RunOptions(
        kind,
        (*((call.module,) if call.module is not None else ()), *(call.words or ())),
        home=check_home(call.home),
        iface=call.home.iface,
        exports=exports,
        checkpoint_is_found=call.targets.is_found("checkpoint"),
        stack=call.stack,
        torch=call.torch,
        is_behind_dashes=kind == "command",
    )
    return RunSpec(
        set_options(asked, call.asked._asdict()),
        secrets=secrets,
        secret_files=tuple(map(expand_tilde, call.env_file or ())),
        timeout=call.targets.timeout,
    )


def read_launch_call(ctx: typer.Context, call: RunCall, ranks: RankSet = EVERY_RANK) -> RunSpec:
    """Return the spec of the run: its hosts, project, options and command. Prints the notes on them.

    `ranks`: those that the user wants to see. Raises a UserError for contradictions, before any host is contacted.
    """
    targets, home = call.targets, call.home
    if call.module is None and not call.words:
        raise UserError(
            "the script is missing", fix=f"{ctx.command_path} train.py; list the options: {ctx.command_path} --help"
        )
    spec = _spec_of_call(ctx, call)
    kind, argv = spec.asked.kind, spec.asked.argv
    run_text = option_text(options_of_run(call.asked, targets))
    options = CallOptions(
        run=run_text, typed=tuple(sys.argv[1:]), call=_call_to_repeat(ctx), program=spec.asked.program
    )
    accelerate = None
    if call.accelerate_config is not None:
        is_found_file = targets.is_found("accelerate_config")
        is_typed = "accelerate_config" not in targets.defaults
        accelerate = replace(
            read_accelerate_file(call.accelerate_config, is_typed=is_typed), hostfile_found=is_found_file
        )
    pasted = None
    # One word may be longer than a path: Path.is_file would raise.
    is_file = kind == "script" and os.path.isfile(argv[0])  # noqa: PTH113
    if not is_file or argv[0].endswith(SHELL_FILES):
        from ipexctl.launch.launchers.unwrap import unwrap

        given = {name for name in ctx.params if is_on_command_line(ctx, name)}
        given |= {"hosts"} if targets.names_hosts else set()
        with _completing_fixes(replace(options, hosts=host_options(targets, home))):
            pasted = unwrap(spec, given, accelerate, os.environ)
    if pasted is not None:
        spec, accelerate = pasted.spec, pasted.config
        if pasted.hosts:
            targets = targets.without_defaults("hosts", "hostfile")
            targets = replace(targets, **{"hostfile": None, "hosts": None, **pasted.hosts})
        if "limit" in pasted.values:
            targets = replace(targets.without_defaults("limit"), limit=pasted.values["limit"].value)
    resumed = ctx.obj.get("resumed")
    status = read_newest_status(RunRegistry().directory / resumed.id) if resumed is not None else None
    spec, cpu_note = with_cpu_options(spec, status.checkpoint if status is not None else "")
    of_accelerate = Path(accelerate.hostfile) if accelerate and accelerate.hostfile else None
    cwd = current_directory()
    script = Path(spec.asked.script) if spec.asked.kind == "script" and os.path.isfile(spec.asked.script) else None  # noqa: PTH113
    root = find_root(script, spec.asked.cwd, cwd, spec.asked.script if spec.asked.kind == "module" else "")
    limit = pasted.values.get("limit") if pasted is not None else None
    selection = select(targets, root, accelerate, limit.source if limit is not None else "--limit")
    hosts = pasted.used_hosts(selection.hosts) if pasted is not None else selection.hosts
    if accelerate is not None:
        spec = with_config(spec, accelerate, len(hosts))
    of_hosts = host_options(targets, home, of_accelerate or selection.project_hostfile)
    run_text = option_text(options_of_run(spec.asked, targets))
    options = replace(options, hosts=of_hosts, run=run_text, program=spec.asked.program)
    spec = replace(
        spec,
        hosts=hosts,
        hosts_from=selection.source,
        secret_files=(*spec.secret_files, *private_keys(hosts)),
        options=options,
        repeats_notes=call.output.verbose > 0,
    )
    with _completing_fixes(options):
        check_request(spec.asked)
    refuse_bad_rank_counts(spec.asked, hosts, ranks)
    spec = replace(
        spec, project=locate_project(spec, cwd, _call_before(ctx, call.words or (), spec.asked.argv, options))
    )
    if spec.project.is_tool:
        spec = replace(spec, asked=spec.asked._replace(kind="command"))
    spec, path_note = with_python_path(spec, cwd)
    of_line = (*pasted.other_notes, pasted.note_on(len(hosts))) if pasted is not None else ()
    for note in (ctx.obj.get("changes", ""), *of_line, cpu_note, path_note, note_on_arguments(ctx, spec)):
        if note:
            call.output.print_note("note: " + note)
    return spec


def _call_to_repeat(ctx: typer.Context) -> TypedCall:
    """Return the call of `run` for printed commands; none for `run --resume`, whose printed command names the run."""
    typed: TypedCall = ctx.obj.get("typed", NOT_TYPED)
    return NOT_TYPED if "resume_run" in ctx.obj.get("given", ()) else typed


@contextlib.contextmanager
def _completing_fixes(options: CallOptions) -> Iterator[None]:
    """Add the options of this call to the fix of a UserError."""
    try:
        yield
    except UserError as error:
        error.fix = options.apply(error.fix)
        raise


def _call_before(
    ctx: typer.Context, words: Sequence[str], argv: Sequence[str], options: CallOptions
) -> FixCommand | None:
    """Return this call up to the script, for printed commands with another script.

    None for another command, and if what the ranks run is not the end of the typed words.
    """
    before = words[: len(words) - len(argv)]
    if ctx.info_name != "run" or tuple(words[len(before) :]) != tuple(argv):
        return None
    dashes = ("--",) if ctx.obj["dashes"] else ()
    return options.complete(ipexctl_command("run")).with_words(*dashes, *before)


_OF_RUN: Final = (
    ("-n", "n"), ("--ppn", "ppn"), ("--omp", "omp"), ("--master-port", "master_port"),
    ("--env", "env"), ("--python", "python"), ("--setup", "setup"), ("--mpi", "mpi"), ("--cwd", "cwd"),
)  # fmt: skip
"""Options of `run` that a suggested command repeats."""


_OF_OTHERS: Final = ("env", "python", "setup")
"""Options among these that other commands have in a table of their own, so a default of `run` must be repeated."""


def options_of_run(asked: RunOptions, targets: Targets) -> Iterator[tuple[str, object]]:
    """Yield the options of `run`, with their values, that a suggested command must repeat."""
    built_in, values = RunOptions._field_defaults, asked._asdict()
    for option_name, name in _OF_RUN:
        value = values[name]
        is_default_again = targets.is_shared_default(name) or (name in targets.defaults and name not in _OF_OTHERS)
        if value != built_in[name] and not is_default_again:
            yield option_name, value


def note_on_arguments(ctx: typer.Context, spec: RunSpec) -> str:
    """Return a note on arguments of the script that are options of ipexctl and that the script does not mention; or
    empty.
    """
    kind, argv = spec.asked.kind, spec.asked.argv
    if kind != "script" or not Path(argv[0]).is_file():
        return ""
    options = {name for param in ctx.command.params for name in param.opts}
    options -= {"--config", "-v", "-q"}  # many scripts have them
    arguments = [word for word in argv[1:] if word.partition("=")[0] in options]
    text = ""
    with contextlib.suppress(OSError):  # planning the run reports it
        text = read_regular(argv[0], SCRIPT).decode(errors="replace") if arguments else ""
    # A docstring may show a call of ipexctl, with its options.
    own_text = "\n".join(line for line in text.splitlines() if not _OUR_CALL.search(line))
    named = set(re.findall(r"(?<![\w-])--?[A-Za-z][\w-]*", own_text))
    arguments = [word for word in arguments if word.partition("=")[0] not in named]
    if not arguments:
        return ""
    return f"{', '.join(arguments)} goes to {argv[0]}; options of {ctx.command.name} come before the script"


def refuse_plan(failure: StartFailure, output: Output, schema: str) -> int:
    """Print why there is no plan, and return the exit code. `schema`: of the document for --json."""
    from ipexctl.ui.launch_plan import show_refused_json

    print_refusal(failure.reason, failure.fix)
    if output.json:
        show_refused_json(failure, schema)
    return failure.exit_code
