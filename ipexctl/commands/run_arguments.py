"""The options and words of a command that plans a launch: `run`.

Options of ipexctl stand before the script; everything after it belongs to the script. So the words are split here,
before click reads the options.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Final, get_type_hints

from ipexctl.commands.option_groups import (
    EXTRA,
    GROUP,
    PACKAGES,
    REQUIREMENTS,
    SUMMARY,
    ConfiguredCommand,
    DeclaredOption,
    Home,
    PlanOutput,
    Targets,
    ViewOptions,
    argument,
    completion,
    flag,
    option,
    option_group,
)
from ipexctl.errors import UserError
from ipexctl.launch.run_declarations import DECLARED
from ipexctl.node.common.run_options import RunOptions

_OTHER_OPTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "What to run": ("words", "module", "resume_run", "dry_run"),
    "Where": ("hostfile", "hosts", "cluster", "config", "limit", "home", "accelerate_config"),
    "Environment": (
        *("install", "stack", "torch", "packages", "requirements", "extra", "group", "build", "no_requirements"),
        *("export", "env_file"),
    ),
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
PANELS: Final[Mapping[str, tuple[str, ...]]] = {
    panel: (*(name for name, declaration in DECLARED.items() if declaration.panel == panel), *others)
    for panel, others in _OTHER_OPTIONS.items()
}
"""Panel of the help → its parameters, in order."""

_SAME_MEANING: Final = {
    "--nproc-per-node": "--ppn",
    "--nproc_per_node": "--ppn",
    "--num-processes": "-n",
    "--num_processes": "-n",
    "--master_port": "--master-port",
}
"""Option of torchrun or accelerate → ipexctl's option."""
_NODE_COUNTS: Final = ("--nnodes", "--num-machines", "--num_machines")
"""Options of other launchers that have no meaning here."""


class ScriptCommand(ConfiguredCommand):
    """A command whose arguments after SCRIPT or `-m NAME` belong to the script."""

    most_used = frozenset(
        (
            *("words", "resume_run", "dry_run", "hostfile", "hosts", "limit"),
            *("env", "python", "install", "packages", "requirements", "export", "n", "ppn", "fast", "detach"),
            *("time_limit", "max_restarts", "checkpoint"),
        )
    )

    def format_panels(self, ctx: Any, formatter: Any) -> None:
        """Write options by group, as plain text: rich would take most of the start-up time."""
        records = {param.name: record for param in self.get_params(ctx) if (record := param.get_help_record(ctx))}
        grouped = {name for names in PANELS.values() for name in names}
        panels = {**PANELS, "Other": (*PANELS["Other"], *(name for name in records if name not in grouped))}
        for panel, names in panels.items():
            rows = [records[name] for name in names if name in records]
            if rows:
                with formatter.section(panel):
                    formatter.write_dl(rows)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the options before the script.

        `ctx.obj["dashes"]` is True if the words are behind `--`, or a module's.
        """
        options, words = self.split(args)
        if has_module(options):  # the rest belongs to the module, options too
            words = ["--", *words]
        ctx.obj = {"dashes": words[:1] == ["--"]}
        return super().parse_args(ctx, [*chain.from_iterable(options), *words])

    def split(self, args: list[str]) -> tuple[list[tuple[str, ...]], list[str]]:
        """Split the arguments into ipexctl's options, each with its value, and the words from the script on."""
        options, index = list[tuple[str, ...]](), 0
        while index < len(args) and args[index] != "--" and args[index].startswith("-") and args[index] != "-":
            option, length = self.read_own(args[index:])
            options.append(option or (args[index],))
            index += length or 1
            if has_module(options):
                break
        return options, args[index:]

    def read_own(self, args: Sequence[str]) -> tuple[tuple[str, ...], int]:
        """Return the option that the arguments begin with, and how many of them it is; 0 if it is none of ipexctl's."""
        words = _own_option(args[0])
        params = {name: param for param in self.params for name in (*param.opts, *param.secondary_opts)}
        param = params.get(words[0].partition("=")[0])
        if param is None and not words[0].startswith("--"):
            param = params.get(words[0][:2])
        if param is None:
            return (), 0
        is_flag = getattr(param, "is_flag", True) or getattr(param, "count", False)
        if len(words) > 1 or is_flag or words[0] not in param.opts:
            return tuple(words), 1
        return (*words, *args[1:2]), len(args[:2])


def has_module(options: Sequence[tuple[str, ...]]) -> bool:
    """True if the last option names a module; no option of ipexctl follows."""
    return bool(options) and len(options[-1]) > 1 and options[-1][0] in ("-m", "--module")


def _own_option(argument: str) -> list[str]:
    """Replace an option of torchrun or accelerate by ipexctl's; keep other arguments.

    Raises a UserError for a number of nodes.
    """
    name, equals, value = argument.partition("=")
    if name in _NODE_COUNTS:
        raise UserError(
            f"{name}: ipexctl uses one node per host",
            fix="-H HOSTFILE or --hosts 'node[1-2]'; -l LIMIT leaves some out",
        )
    if name not in _SAME_MEANING:
        return [argument]
    return [_SAME_MEANING[name], *([value] if equals else [])]


def _asked_options() -> Any:
    """All options of a run, as one parameter of type `RunOptions`."""
    types = get_type_hints(RunOptions)
    return option_group(
        {
            name: DeclaredOption(types[name], RunOptions._field_defaults[name], declaration)
            for name, declaration in DECLARED.items()
        }
    )


@dataclass(frozen=True, kw_only=True)
class RunCall:
    """The words and all options of `run`."""

    words: list[str] | None = argument("SCRIPT.py [ARGS…]", "Script to run; or -m MODULE [ARGS…]; or -- COMMAND…", None)
    module: str | None = option("--module -m NAME", "Python module to run instead of a script.")
    asked: RunOptions = _asked_options()
    export: list[str] | None = option(
        "--export -x KEY[=VALUE]", "Variable for the ranks; without VALUE, the value on the control machine."
    )
    env_file: list[Path] | None = option(
        "--env-file FILE", "File of variables for the ranks; their values are never shown."
    )
    stack: str | None = option("--stack NAME", "Stack to install with --install, such as ipex or torch-2.13.")
    torch: str | None = option("--torch V", "torch version to install with --install.")
    accelerate_config: Path | None = option("--accelerate-config FILE", "File written by `accelerate config`.")
    targets: Targets
    home: Home
    output: PlanOutput
    resume_run: str | None = option(
        "--resume RUN",
        "Resume a run on its hosts that answer; what follows replaces its options and the script's.",
        autocompletion=completion("runs"),
    )
    install: bool = flag("--install", "Install the environment on hosts that lack it.")
    packages: list[str] | None = PACKAGES
    requirements: list[Path] | None = REQUIREMENTS
    extra: list[str] | None = EXTRA
    group: list[str] | None = GROUP
    build: list[str] | None = option(
        "--build NAME", "Package without a wheel: --install builds it on one machine, running its code; repeatable."
    )
    no_requirements: bool = flag("--no-requirements", "Let --install leave out the project's own requirements.")
    ranks: str = option("--ranks SPEC", "Ranks to show, such as 0 or 0-3,8 (default: {default}).", "all")
    view: ViewOptions
    detach: bool = flag("--detach", "Start the run and return immediately.")
    dry_run: bool = flag("--dry-run", "Print what would start, with -v each variable and its reason; start nothing.")
    summary: Path | None = SUMMARY
    report: Path | None = option("--report FILE", "Write one HTML page that shows the run to FILE at its end.")
    notify: str = option(
        "--notify CMD", "Line for sh to run once at the end of the run, with the outcome as JSON on stdin.", ""
    )

    @property
    def installs(self) -> bool:
        """True if the call asks for an install: --install, or options that only an install needs."""
        return self.install or bool(self.packages or self.requirements or self.extra or self.group or self.build)
