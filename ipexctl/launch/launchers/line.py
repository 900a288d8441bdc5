"""Finds the launcher in the words of a command, also behind another program. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Final

from ipexctl.errors import CommandLineError
from ipexctl.launch.launchers.launcher_options import LAUNCHERS, LauncherRow

_PYTHON: Final = re.compile(r"python(\d+(\.\d+)?)?")
_SHELLS: Final = ("sh", "bash", "dash", "ksh", "zsh")
_VARIABLE: Final = re.compile(r"(?P<name>[A-Za-z_]\w*)=(?P<value>.*)", re.DOTALL | re.ASCII)
_PREFIXES: Final = frozenset(
    "nohup time exec sudo nice stdbuf timeout numactl taskset setsid command chrt env".split()  # noqa: SIM905
)
_NUMBER_OF_RANKS: Final = re.compile(r"--(nproc[-_]per[-_]node|nnodes)")
_CHANGE_THE_RUN: Final = ("sudo", "timeout")
_ROWS: Final[dict[str, list[tuple[tuple[str, ...], LauncherRow]]]] = {}
"""By the first word of the command. A shell script may have 10,000 commands to look up."""
for _row in LAUNCHERS:
    for _command in _row.commands:
        _ROWS.setdefault(_command[0], []).append((_command, _row))


def split_variables(words: Sequence[str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """`NAME=VALUE` words before a command, also behind `env`, and the command's words."""
    at = 1 if len(words) > 1 and words[0] == "env" and _VARIABLE.fullmatch(words[1]) else 0
    found = dict[str, str]()
    while at < len(words) and (variable := _VARIABLE.fullmatch(words[at])) is not None:
        found[variable["name"]] = variable["value"]
        at += 1
    return (found, tuple(words[at:])) if found else ({}, tuple(words))


def _name(word: str) -> str:
    return word.rpartition("/")[2]


def is_shell(word: str) -> bool:
    return _name(word) in _SHELLS


def is_python(word: str) -> bool:
    return bool(_PYTHON.fullmatch(_name(word)))


def launcher_at(words: Sequence[str], at: int) -> tuple[LauncherRow, int] | None:
    """The launcher at this position, and the position of its first option."""
    if at >= len(words):
        return None
    names = (_name(words[at]), *words[at + 1 :])
    if is_python(words[at]):
        at += 1
        while at < len(words) and words[at].startswith("-") and words[at] not in ("-m", "-c"):
            at += 2 if words[at] in ("-W", "-X") else 1
        names = tuple(words[at:]) if words[at : at + 1] == ("-m",) else ()
    rows = _ROWS.get("".join(names[:1]), ())
    return next(((row, at + len(command)) for command, row in rows if names[: len(command)] == command), None)


def strip_prefix(words: tuple[str, ...]) -> tuple[str, ...] | None:
    """The words from the launcher on, without `numactl …` and the like in front of it; None without a launcher.
    Raises a UserError if a program in front of it changes more than where it runs."""
    if not words or launcher_at(words, 0) is not None:
        return words or None
    at = prefix_length(words)
    if not at or launcher_at(words, at) is None:
        return None
    if any(_VARIABLE.fullmatch(word) or _name(word) in _CHANGE_THE_RUN for word in words[:at]):
        raise refused_word(
            words, 0, f"{words[0]} before {words[at]}: {words[at]} would start in each rank",
            f"leave {words[0]} out: -x NAME=VALUE sets a variable, --time-limit S ends the run",
        )  # fmt: skip
    return words[at:]


def prefix_length(words: Sequence[str]) -> int:
    """The number of words before a launcher, Python or a script behind another program, such as `numactl -C 0-3`."""
    if words and (_name(words[0]) in _PREFIXES or re.match(r"[A-Za-z_]\w*=", words[0])):
        for at in range(1, len(words)):
            if launcher_at(words, at) is not None or is_python(words[at]) or words[at].endswith(".py"):
                return at
    return 0


def refused_word(words: Sequence[str], at: int, what: str, fix: str) -> CommandLineError:
    return CommandLineError(what, text=shlex.join(words), column=len(shlex.join([*words[:at], ""])) - 1, fix=fix)


def launcher_inside(words: Sequence[str]) -> str:
    """What of a program's arguments starts ranks: a launcher's line behind `--`, the two words of a launcher, or
    torchrun's number of ranks; or empty. One word alone, as in `--model flux`, is no launcher."""
    for at, word in enumerate(words):
        start = launcher_at(words, at) if at else None
        if start is not None and not start[0].environment and (words[at - 1] == "--" or start[1] > at + 1):
            return start[0].name or shlex.join(words[at : start[1]])
        if _NUMBER_OF_RANKS.fullmatch(word.partition("=")[0]):
            return word
    return ""
