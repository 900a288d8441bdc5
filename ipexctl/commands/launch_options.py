"""Makes a `RunCall` from the line of a command that plans a launch (`run`, `export`). Contacts no host.

The words after the options are a script, `-m MODULE`, a command, or another launcher's line (`launch/launchers/`). A
typed option wins over the pasted line, the line over an accelerate config and files of defaults. Words after the script
belong to it; a note follows if one looks like an option of ipexctl.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer

from ipexctl.commands.defaults import ConfiguredCommand
from ipexctl.commands.shared_options import Home, Output, Targets, argument, flag, is_on_command_line, option
from ipexctl.errors import UserError
from ipexctl.file_reader import SCRIPT, read_regular
from ipexctl.option_declaration import declared, values_of
from ipexctl.run.ranks import EVERY_RANK, RankSet
from ipexctl.spec import CommandKind, RankOptions, RunOptions, RunSpec, StartOptions
from ipexctl.text import expanded

if TYPE_CHECKING:
    from ipexctl.call_options import CallOptions
    from ipexctl.commands.interrupt import Interrupt
    from ipexctl.remote.session_pool import SessionPool
    from ipexctl.run.start.call import RunCall
    from ipexctl.run.start.pipeline import PlannedRun
    from ipexctl.run.start.request import StartFailure


_OTHER_OPTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "What to run": ("words", "module", "resume_run", "dry_run"),
    "Where": ("hostfile", "hosts", "cluster", "config", "limit", "home", "accelerate_config"),
    "Slurm": ("slurm", "partition", "nodes", "time", "account", "qos", "requeue", "sbatch"),
    "Environment": ("install", "stack", "torch", "packages", "requirements", "no_requirements", "export", "env_file"),
    "Ranks and cores": (),
    "Communication": ("iface",),
    "Project files": (),
    "Watching": (
        *("ranks", "plain", "live", "events", "reconnect", "detach", "summary", "report"),
        *("json", "quiet", "verbose", "no_color"),
    ),
    "Ending": ("notify",),
    "Connection": (
        "forks", "user", "port", "identity", "ssh_config", "known_hosts", "host_keys", "connect_timeout", "timeout",
        "transport",
    ),
    "Other": ("help_all",),
}  # fmt: skip
_DECLARED: Final = declared(RankOptions) | declared(StartOptions) | declared(RunOptions)
PANELS: Final[Mapping[str, tuple[str, ...]]] = {
    panel: (*(name for name, declaration in _DECLARED.items() if declaration.panel == panel), *others)
    for panel, others in _OTHER_OPTIONS.items()
}
"""Groups of options in the help; declared options name their group."""
_SHORT: Final = "ipexctl.short_help"

_SAME_MEANING: Final = {
    "--nproc-per-node": "--ppn",
    "--nproc_per_node": "--ppn",
    "--num-processes": "-n",
    "--num_processes": "-n",
    "--master_port": "--master-port",
}
"""torchrun's or accelerate's option → ipexctl's."""
_OUR_CALL: Final = re.compile(r"\bipexctl\b")
_NODE_COUNTS: Final = ("--nnodes", "--num-machines", "--num_machines")


class ScriptCommand(ConfiguredCommand):
    """Arguments after SCRIPT or `-m NAME` belong to the script."""

    most_used: Collection[str] = ()
    """Options of --help; empty for all."""

    def get_help(self, ctx: Any) -> str:
        ctx.meta[_SHORT] = self.most_used
        return super().get_help(ctx)

    def get_full_help(self, ctx: Any) -> str:
        ctx.meta[_SHORT] = ()
        return super().get_help(ctx)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write options by group, as plain text: rich would take most of the start-up time."""
        records = {param.name: record for param in self.get_params(ctx) if (record := param.get_help_record(ctx))}
        grouped = {name for names in PANELS.values() for name in names}
        panels = {**PANELS, "Other": (*PANELS["Other"], *(name for name in records if name not in grouped))}
        shown = ctx.meta.get(_SHORT)
        for panel, names in panels.items():
            rows = [records[name] for name in names if name in records and (not shown or name in shown)]
            if rows:
                with formatter.section(panel):
                    formatter.write_dl(rows)
        if shown:
            formatter.write_paragraph()
            formatter.write_text(f"Every option: {ctx.command_path} --help-all")

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        options, words = self.split(args)
        if has_module(options):  # the rest belongs to the module, options too
            words = ["--", *words]
        ctx.obj = {"dashes": words[:1] == ["--"]}
        return super().parse_args(ctx, [*chain.from_iterable(options), *words])

    def split(self, args: list[str]) -> tuple[list[tuple[str, ...]], list[str]]:
        with_value = {
            option
            for param in self.params
            if not getattr(param, "is_flag", True) and not getattr(param, "count", False)
            for option in param.opts
        }
        options, index = list[tuple[str, ...]](), 0
        while index < len(args) and args[index] != "--" and args[index].startswith("-") and args[index] != "-":
            args = [*args[:index], *_own_option(args[index]), *args[index + 1 :]]
            has_value = args[index] in with_value
            options.append(tuple(args[index : index + 1 + has_value]))
            index += 1 + has_value
            if has_module(options):
                break
        return options, args[index:]


def _show_all(ctx: typer.Context, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        assert isinstance(ctx.command, ScriptCommand)
        typer.echo(ctx.command.get_full_help(ctx))
        raise typer.Exit


HELP_ALL: Final = flag("--help-all", "Show every option and exit.", is_eager=True, callback=_show_all)


def has_module(options: Sequence[tuple[str, ...]]) -> bool:
    """True if the last option names a module; no option of ipexctl follows."""
    return bool(options) and len(options[-1]) > 1 and options[-1][0] in ("-m", "--module")


def _own_option(argument: str) -> list[str]:
    """Replace an option of torchrun or accelerate by ipexctl's; keep other arguments. Raises a UserError."""
    name, equals, value = argument.partition("=")
    if name in _NODE_COUNTS:
        raise UserError(
            f"{name}: ipexctl uses one node per host",
            fix="-H HOSTFILE or --hosts 'node[1-2]'; -l LIMIT leaves some out",
        )
    if name not in _SAME_MEANING:
        return [argument]
    return [_SAME_MEANING[name], *([value] if equals else [])]


@dataclass(frozen=True, kw_only=True)
class ScriptLine:
    words: list[str] | None = argument("SCRIPT.py [ARGS…]", "Script to run; or -m MODULE [ARGS…]; or -- COMMAND…", None)
    module: str | None = option("--module -m NAME", "Python module to run instead of a script.")
    ranks: RankOptions
    run: RunOptions
    export: list[str] | None = option(
        "--export -x KEY[=VALUE]", "Variable for the ranks; without VALUE, the value on the control machine."
    )
    env_file: list[Path] | None = option(
        "--env-file FILE", "File of variables for the ranks; their values are never shown."
    )


@dataclass(frozen=True, kw_only=True)
class LaunchLine(ScriptLine):
    stack: str | None = option("--stack NAME", "Stack to install with --install, such as ipex or torch-2.13.")
    torch: str | None = option("--torch V", "torch version to install with --install.")
    accelerate_config: Path | None = option("--accelerate-config FILE", "File written by `accelerate config`.")
    targets: Targets
    home: Home
    output: Output


def spec_of_line(ctx: typer.Context, line: ScriptLine, targets: Targets, home: Home, **others: Any) -> RunSpec:
    """The spec for a script, a module or a command; `others` are fields without an option."""
    from ipexctl.commands.target_hosts import check_home
    from ipexctl.run.start.request import read_exports, run_spec

    kind: CommandKind = "module" if line.module is not None else "command" if ctx.obj["dashes"] else "script"
    return run_spec(
        kind,
        (*((line.module,) if line.module is not None else ()), *(line.words or ())),
        values_of(line.ranks) | values_of(line.run),
        read_exports(line.export or (), line.env_file or (), os.environ),
        home=check_home(home),
        iface=home.iface,
        checkpoint_is_found=targets.is_found("checkpoint"),
        secret_files=tuple(map(expanded, line.env_file or ())),
        timeout=targets.timeout,
        **others,
    )


def read_launch_call(ctx: typer.Context, line: LaunchLine, ranks: RankSet = EVERY_RANK) -> RunCall:
    """Raises a UserError for contradictions, before any host is contacted."""
    from ipexctl.call_options import CallOptions, option_text
    from ipexctl.commands.target_hosts import current_directory, host_options, select
    from ipexctl.hosts.host import private_keys
    from ipexctl.run.start.call import RunCall
    from ipexctl.run.start.project import locate_project
    from ipexctl.run.start.request import check_ranks, check_request
    from ipexctl.sync.root import find_root

    targets, home = line.targets, line.home
    if line.module is None and not line.words:
        raise UserError("run what?", fix=f"{ctx.command_path} SCRIPT.py, -m MODULE, or -- COMMAND")
    repeats_notes = line.output.verbose > 0
    spec = spec_of_line(ctx, line, targets, home, stack=line.stack, torch=line.torch, repeats_notes=repeats_notes)
    kind, argv = spec.kind, spec.argv
    of_ranks = option_text(options_of_run(line.ranks, line.run, targets))
    found = None
    if line.accelerate_config is not None:
        from ipexctl.launch.accelerate_config import read_accelerate_file  # slow to import, and seldom needed

        is_found = targets.is_found("accelerate_config")
        is_typed = "accelerate_config" not in targets.defaults
        found = replace(read_accelerate_file(line.accelerate_config, is_typed=is_typed), hostfile_found=is_found)
    pasted = None
    # One word may be longer than a path: Path.is_file would raise.
    if kind == "command" or (kind == "script" and not os.path.isfile(argv[0])):  # noqa: PTH113
        from ipexctl.launch.launchers.unwrap import unwrap

        given = {name for name in ctx.params if is_on_command_line(ctx, name)}
        given |= {"hosts"} if targets.names_hosts else set()
        try:
            pasted = unwrap(spec, given, found, os.environ)
        except UserError as error:
            error.fix = CallOptions(host_options(targets, home), of_ranks).apply(error.fix)
            raise
    if pasted is not None:
        spec, found = pasted.spec, pasted.config
        if pasted.hosts:
            targets = targets.without_defaults("hosts", "hostfile")
            targets = replace(targets, **{"hostfile": None, "hosts": None, **pasted.hosts})
        if "limit" in pasted.values:
            targets = replace(targets.without_defaults("limit"), limit=pasted.values["limit"].value)
    of_accelerate = Path(found.hostfile) if found and found.hostfile else None
    cwd = current_directory()
    root = find_root(Path(spec.script) if spec.kind == "script" else None, line.run.cwd, cwd)
    selection = select(targets, root, found)
    hosts = pasted.used_hosts(selection.hosts) if pasted is not None else selection.hosts
    if found is not None:
        from ipexctl.launch.accelerate_config import with_config

        spec = with_config(spec, found, len(hosts))
    spec = replace(spec, hosts_from=selection.source, secret_files=(*spec.secret_files, *private_keys(hosts)))
    check_request(spec)
    check_ranks(spec, hosts, ranks)
    options = CallOptions(host_options(targets, home, of_accelerate or selection.project_hostfile), of_ranks)
    return RunCall(
        hosts,
        spec,
        locate_project(spec, cwd, _call_before(ctx, line.words or (), spec.argv, options)),
        ranks,
        options,
        tuple(note for note in (pasted.note_on(len(hosts)) if pasted else "", note_on_arguments(ctx, spec)) if note),
    )


def _call_before(ctx: typer.Context, words: Sequence[str], argv: Sequence[str], options: CallOptions) -> str:
    before = words[: len(words) - len(argv)]
    if ctx.info_name != "run" or tuple(words[len(before) :]) != tuple(argv):
        return ""
    dashes = ("--",) if ctx.obj["dashes"] else ()
    return " ".join(filter(None, (options.apply(ctx.command_path), shlex.join((*dashes, *before)))))


_OF_RUN: Final = (
    ("-n", "n"), ("--ppn", "ppn"), ("--omp", "omp"),
    ("--env", "env"), ("--python", "python"), ("--setup", "setup"), ("--mpi", "mpi"),
)  # fmt: skip
"""Options of `run` that a suggested command needs too."""
_OF_OTHERS: Final = ("env", "python", "setup")


def options_of_run(ranks: RankOptions, run: RunOptions, targets: Targets) -> Iterator[tuple[str, object]]:
    built_in = {field.name: field.default for field in (*fields(ranks), *fields(run))}
    values = values_of(ranks) | values_of(run)
    for option_name, name in _OF_RUN:
        value = values[name]
        is_default_again = targets.is_shared_default(name) or (name in targets.defaults and name not in _OF_OTHERS)
        if value != built_in[name] and not is_default_again:
            yield option_name, value


def note_on_arguments(ctx: typer.Context, spec: RunSpec) -> str:
    """Note if arguments of the script are options of the command that the script does not name; else empty."""
    kind, argv = spec.kind, spec.argv
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
    return f"{', '.join(arguments)} goes to {argv[0]}; options of {ctx.command.name} stand before the script"


def plan_or_exit(
    call: RunCall,
    output: Output,
    pool: SessionPool,
    interrupt: Interrupt,
    *,
    run: str,
    schema: str,
    checks_logins: bool = True,
) -> PlannedRun:
    """Plan the run without starting it; if it cannot start, print why and exit."""
    from ipexctl.run.start import pipeline
    from ipexctl.run.start.request import StartFailure

    planned = pipeline.plan_run(
        call,
        pool,
        run=run,
        on_step=output.print_note,
        on_note=lambda text: output.print_note(f"note: {text}"),
        checks_logins=checks_logins,
    )
    if not isinstance(planned, StartFailure):
        return planned
    raise interrupt.or_exit(refuse_plan(planned.with_call_options(call.options), output, schema))


def refuse_plan(failure: StartFailure, output: Output, schema: str) -> int:
    from ipexctl.ui.launch_plan import show_refused_json
    from ipexctl.ui.messages import print_refusal

    print_refusal(failure.reason, failure.fix)
    if output.json:
        show_refused_json(failure, schema)
    return failure.exit_code
