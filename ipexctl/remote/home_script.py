"""Write the rules for homes as sh functions, made from the tables of `node/common/home.py`, for steps that need no
Python.
"""

from __future__ import annotations

import json
import re
import shlex
from functools import cache
from pathlib import Path
from typing import Final

from ipexctl.errors import UserError
from ipexctl.node.common.home import (
    HOME_ENTRIES,
    IGNORED,
    MARK,
    MARK_TEXT,
    REFUSALS,
    HomeRefused,
)
from ipexctl.remote.command import shell_text
from ipexctl.remote.node_call import WALK
from ipexctl.remote.outcome import HostError

_SCRIPT: Final = Path(__file__).with_name("home.sh")
_PREFIX: Final = "ipexctl-home "


@cache
def home_functions() -> str:
    """Return the functions of sh that check and prepare a home, with the names that a home may have."""
    values = {
        "home_mark": MARK,
        "home_mark_text": MARK_TEXT,
        "home_entries": "|".join(re.escape(name) for name in sorted(HOME_ENTRIES)),
        "home_ignored": IGNORED,
    }
    lines = [f"{name}={shlex.quote(value)}" for name, value in values.items()]
    return "\n".join([*lines, shell_text(WALK) + shell_text(_SCRIPT)])


def home_refusal(line: str, home: str) -> HostError | None:
    """Return the error that the last line of a script's stderr tells; None if that is no refusal. Raises a UserError
    for a home that no host may use."""
    if not line.startswith(_PREFIX):
        return None
    kind, _, detail = line.removeprefix(_PREFIX).partition(" ")
    if kind not in REFUSALS:
        return None
    refused = HomeRefused(kind, home, f": {detail}" if detail else "")
    if refused.is_wrong_call:
        raise UserError(refused.reason, fix=refused.fix)
    return HostError(refused.reason, refused.fix)


def walk_to(path: str) -> str:
    """Return shell lines that exit if somebody else can change what the path leads to. `~/` is allowed."""
    return f"{shell_text(WALK)}walk {shlex.quote(path.removeprefix('~/'))} end || exit 0\n"


def use_home_or_fail(home: str, below: str) -> str:
    """Return shell lines that prepare a home. A refusal goes to stderr for `home_refusal`, and to stdout as event
    `failed`."""
    events = []
    for kind in REFUSALS:
        refused = HomeRefused(kind, home)
        event = json.dumps(
            {
                "event": "failed",
                "reason": refused.reason,
                "fix": refused.fix,
                "wrong_call": refused.is_wrong_call,
            }
        )
        events.append(f"{kind}) printf '%s\\n' {shlex.quote(event)} ;;")
    cases = "\n".join(events)
    use_home = f"{home_functions()}use_home {shlex.quote(home)} {below}"
    return f"{use_home} || {{\ncase $home_problem in\n{cases}\nesac\nrefuse_home\n}}\n"
