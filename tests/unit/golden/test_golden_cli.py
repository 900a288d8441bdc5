"""The options of every command, and the messages about wrong calls."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import test_cli as calls
import typer
from golden_file import Case, golden_diff
from typer.main import get_command

from ipexctl.cli.app import app


def commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    yield name, command
    if hasattr(command, "list_commands"):
        context = typer.Context(command)
        for below in sorted(command.list_commands(context)):
            yield from commands(command.get_command(context, below), f"{name} {below}".strip())


def test_cli_options() -> None:
    options = defaultdict(list)
    for name, command in commands(get_command(app), ""):
        for param in command.params:
            default = "" if param.default is None else f" = {param.default}"
            words = ["/".join([*param.opts, *param.secondary_opts]), param.metavar or ""]
            options[" ".join(filter(None, words)) + default].append(name or "ipexctl")
    assert not (
        diff := golden_diff(
            "cli-options",
            [Case("options", "\n".join(f"{key}: {', '.join(of)}" for key, of in sorted(options.items())))],
        )
    ), diff


def test_cli() -> None:
    cases = []
    for call in calls.WRONG_CALLS:
        done = calls.call(*call.split())
        assert done.returncode == 2, call
        cases.append(Case(call, done.stderr))
    assert not (diff := golden_diff("cli", cases)), diff
