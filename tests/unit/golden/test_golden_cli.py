"""The help of every command and option, and what a wrong call is told."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import test_cli as calls
import typer
from golden_file import Case, check, rows_of
from typer.main import get_command

from ipexctl.cli.app import app

if TYPE_CHECKING:
    from collections.abc import Iterator


def commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    yield name, command
    if hasattr(command, "list_commands"):
        context = typer.Context(command)
        for below in sorted(command.list_commands(context)):
            yield from commands(command.get_command(context, below), f"{name} {below}")


def test_cli_help() -> None:
    cases, options = [], defaultdict(list)
    for name, command in commands(get_command(app), "ipexctl"):
        parts = (command.help, command.epilog)
        cases.append(Case(name, "\n".join(part.replace("\b\n", "") for part in parts if part)))
        for param in command.params:
            options["/".join(param.opts), getattr(param, "help", None) or ""].append(name.removeprefix("ipexctl "))
    cases += [Case(f"{option} of {', '.join(names)}", text) for (option, text), names in sorted(options.items())]
    check("cli-help", cases)


def test_cli() -> None:
    rows = rows_of(calls.test_a_wrong_call_is_2_and_says_what_is_wrong)
    # exec alone shows its help, and the labs are those of this machine
    done = [(args, calls.call(*args)) for args, _ in rows if args != ["exec"] and args[0] != "lab"]
    check("cli", [Case(" ".join(args), each.stderr) for args, each in done])
