"""Commands and options that are gone, each with what to type instead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ipexctl.errors import UserError
from ipexctl.node.common.fix import Fix

_JSON_PLAN: Final = Fix("`ipexctl run --dry-run --json train.py` > plan.json")
COMMANDS: Final = {
    "hub": (
        "models and datasets are directories of HOME/hub/hub",
        Fix("`ipexctl exec --shell 'du -sh ~/.ipexctl/hub/hub/*--*'`"),
    ),
    "export accelerate": ("accelerate config writes its files; the plan has what it lacks", _JSON_PLAN),
    "export mpijob": ("Kubeflow documents its TrainJob and MPIJob; the plan has ranks and variables", _JSON_PLAN),
}
"""Words of a call → what does it now, and the line to type."""
OPTIONS: Final = {
    ("run", "--metric"): ("the meter counts steps and samples by itself", "leave it out"),
    ("run", "--nice"): ("nice is a command", Fix("`ipexctl run -- nice -n 10 python train.py`")),
    ("run", "--spares"): (
        "name a host more, and allow the run to go on with fewer",
        Fix("`ipexctl run --min-hosts 2 --max-restarts 3 train.py`"),
    ),
    ("fetch", "--follow"): ("fetch again: it skips equal files", Fix("`ipexctl fetch last ./out --results`")),
}
"""Command and option → the same."""


def refuse_removed_command(words: Sequence[str]) -> None:
    """Raise a UserError if a call begins with a command that is gone."""
    for length in (1, 2):
        name = " ".join(words[:length])
        if name in COMMANDS:
            instead, fix = COMMANDS[name]
            raise UserError(f"ipexctl {name} is gone: {instead}", fix=fix)


def removed_option(command: str, option: str) -> UserError | None:
    if command == "submit" or command.startswith("export "):
        command = "run"
    if (command, option) not in OPTIONS:
        return None
    instead, fix = OPTIONS[command, option]
    return UserError(f"{command} {option} is gone: {instead}", fix=fix)
