"""Declare `ipexctl run`, and repeat a run's call for `--resume RUN`.

The call is repeated as words: they are split, changed by what was typed, and read again as if the user had typed all of
them.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence, Set
from itertools import chain
from pathlib import Path
from typing import Any, Final, TypeAlias

import typer

from ipexctl.commands.app import CLUSTER
from ipexctl.commands.defaults import ALTERNATIVES
from ipexctl.commands.option_groups import command
from ipexctl.commands.resumed_arguments import TypedWords, change_arguments, has_shell_line, split_typed
from ipexctl.commands.run_arguments import RunCall, ScriptCommand, has_module
from ipexctl.errors import UserError
from ipexctl.homes.registry import RunRecord
from ipexctl.node.common.fix import Fix, ipexctl_command
from ipexctl.option_declaration import TypedCall
from ipexctl.run.find_run import OwnRuns

_HOSTS: Final = frozenset(("hosts", "hostfile", CLUSTER))
Words: TypeAlias = "tuple[str, ...]"


class ResumingCommand(ScriptCommand):
    """`run`, which records its words for --resume and can repeat a run's."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the words; with --resume, those of the run's call and the typed ones that replace them.

        `ctx.obj` gets: `typed`, the words for the run's record; `resumed`, the record or None; `given`, the typed
        parameters; `changes`, a note on replaced arguments.
        """
        options, words = self.split(args)
        names = {
            name: param.name for param in self.params for name in (*param.opts, *param.secondary_opts) if param.name
        }
        named = [(_name_of(option, names), option) for option in options]
        given = frozenset(name for name, _ in named)
        record, changes = None, ""
        if "resume_run" in given and not given & {"help", "help_all"} and not ctx.resilient_parsing:
            run = next(option[-1] for name, option in reversed(named) if name == "resume_run").removeprefix("--resume=")
            record = OwnRuns.read().choose(run)  # of others: looked for on the hosts of the call, once these are read
            if record is not None:
                typed = split_typed(args, self.read_own)
                named = [(_name_of(option, names), option) for option in typed.own]
                given = frozenset(name for name, _ in named)
                refuse_typed(record, _directory(), typed, given)
                recorded, words = self.split([*record.typed.options, *record.typed.words])
                words, changes = change_arguments(words, record.plan.asked, typed.options)
                options = merged([(_name_of(option, names), option) for option in recorded], named)
        args = super().parse_args(ctx, [*chain.from_iterable(options), *words])
        own_options = [option for option in options if _name_of(option, names) != "resume_run"]
        call = TypedCall(tuple(chain.from_iterable(own_options)), tuple(words), _directory())
        ctx.obj |= {"typed": call, "resumed": record, "given": given, "changes": changes}
        return args


def _name_of(option: Words, names: Mapping[str, str]) -> str:
    """Return the parameter that an option sets; the option itself if it is unknown."""
    word = option[0].partition("=")[0]
    return names.get(word) or names.get(word[:2], word)


def _directory() -> str:
    """Return the working directory; empty if it no longer exists."""
    try:
        return str(Path.cwd())
    except FileNotFoundError:  # the call is refused later
        return ""


def refuse_typed(record: RunRecord, directory: str, typed: TypedWords, given: Set[str]) -> None:
    """Refuse a run that cannot be resumed, or words that do not fit it. Pure."""
    from ipexctl.run.start.resume import refuse_job  # seldom needed

    run, away = record.id, "" if given & _HOSTS else f" -l '!{record.node0.name}'"
    if "module" in given or typed.positional:
        module = ["-m"] * ("module" in given)
        again = ipexctl_command("run", "--resume", run, argv=tuple(chain.from_iterable(typed.options)))
        raise UserError(
            f"--resume keeps the script of its run and replaces its options alone, and "
            f"{shlex.join([*module, *typed.positional])} was typed",
            fix=Fix("leave that out: {again}", again=again),
        )
    if typed.options and has_shell_line(record.plan.asked):
        raise UserError(
            f"run {run} has its arguments inside the line of {record.plan.asked.script} -c, where none is replaced",
            fix=Fix("with that line as it is: `ipexctl run --resume {run}`", run=run),
        )
    refuse_job(record)
    if not record.typed.directory:
        raise UserError(
            f"the record of run {run} lacks the words of its call: it is of a playbook or of Python",
            fix=f"begin it again as it was begun, on the hosts that are left{away and f':{away}'}",
        )
    if directory != record.typed.directory:
        raise UserError(
            f"run {run} was started in {record.typed.directory}; --resume works only there",
            fix=Fix("`cd {directory} && ipexctl run --resume {run}`", directory=record.typed.directory, run=run),
        )


def merged(recorded: Sequence[tuple[str, Words]], typed: Sequence[tuple[str, Words]]) -> list[Words]:
    """Return the recorded options that no typed option replaces, then the typed options, and a module last. Pure."""
    given = {name for name, _ in typed}
    replaced = set().union(*(group - given for group in ALTERNATIVES if group & given))
    replaced |= {"detach", *((*_HOSTS, "limit") if given & _HOSTS else ())}  # no option follows a detached run again
    options = [*(option for name, option in recorded if name not in replaced), *(option for _, option in typed)]
    return sorted(options, key=lambda option: has_module([option]))


@command(cls=ResumingCommand, context_settings={"allow_interspersed_args": False})
def run_command(*, ctx: typer.Context, call: RunCall) -> None:
    """Run a script on all hosts, one process per rank.

    ipexctl syncs the project to the nodes, starts the ranks with mpirun or
    directly (--launcher), and shows the output of every rank. Ctrl-C stops
    the run on every host; a closed terminal does not.

    \b
    Example: ipexctl run --hosts 'node[1-4]' --ppn 2 train.py --epochs 3
    """
    from ipexctl.commands.run_call import run_of_call  # 0.15 s, which help does not need

    raise run_of_call(ctx, call)
