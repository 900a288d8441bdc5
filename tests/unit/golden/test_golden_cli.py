"""The options of every command, and the messages about wrong calls."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import test_cli as calls
from golden_file import Case, golden_diff
from typer.main import get_command

from ipexctl.commands.app import app


def test_cli_options() -> None:
    options = defaultdict(list)
    root: Any = get_command(app)
    for name, command in [("ipexctl", root), *sorted(calls.all_commands(), key=lambda command: command[0])]:
        for param in command.params:
            default = "" if param.default is None else f" = {param.default}"
            words = ["/".join([*param.opts, *param.secondary_opts]), param.metavar or ""]
            options[" ".join(filter(None, words)) + default].append(name)
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
