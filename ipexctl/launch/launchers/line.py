"""Find the launcher in the words of a command, also behind another program such as `numactl`. Nothing here reads a file
or contacts a host.

A launcher is recognised by its first words (`accelerate launch`, `-m torch.distributed.run`), with or without a path.
"""

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
"""First word of a command → the commands that begin with it, and their launchers.

A shell script may have 10,000 commands to look up.
"""
for _row in LAUNCHERS:
    for _command in _row.commands:
        _ROWS.setdefault(_command[0], []).append((_command, _row))


def split_variables(words: Sequence[str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Split the words into the `NAME=VALUE` words before a command, also behind `env`, and the command.

    Without variables, `env` stays a part of the command.
    """
    at = 1 if len(words) > 1 and words[0] == "env" and _VARIABLE.fullmatch(words[1]) else 0
    variables = dict[str, str]()
    while at < len(words) and (match := _VARIABLE.fullmatch(words[at])) is not None:
        variables[match["name"]] = match["value"]
        at += 1
    return (variables, tuple(words[at:])) if variables else ({}, tuple(words))


def _name(word: str) -> str:
    """Return the last part of a path."""
    return word.rpartition("/")[2]


def is_shell(word: str) -> bool:
    """True for a shell, with or without a path."""
    return _name(word) in _SHELLS


def is_python(word: str) -> bool:
    """True for `python`, `python3` or `python3.12`, with or without a path."""
    return bool(_PYTHON.fullmatch(_name(word)))


def launcher_at(words: Sequence[str], at: int) -> tuple[LauncherRow, int] | None:
    """Return the launcher at this position, and the position of its first option; None if there is no launcher."""
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
    """Return the words from the launcher on, without `numactl …` and the like in front of it; None without a launcher.

    Raises a UserError if a program in front of it changes more than where it runs, as `sudo` does.
    """
    if not words or launcher_at(words, 0) is not None:
        return words or None
    launcher = prefix_length(words)
    if not launcher or launcher_at(words, launcher) is None:
        return None
    if any(_VARIABLE.fullmatch(word) or _name(word) in _CHANGE_THE_RUN for word in words[:launcher]):
        raise refused_word(
            words, 0, f"{words[0]} before {words[launcher]}: {words[launcher]} would start in each rank",
            f"leave {words[0]} out: -x NAME=VALUE sets a variable, --time-limit S ends the run",
        )  # fmt: skip
    return words[launcher:]


def prefix_length(words: Sequence[str]) -> int:
    """Count the words of another program before a launcher, Python or a script, such as `numactl -C 0-3`; 0 without
    any.
    """
    if words and (_name(words[0]) in _PREFIXES or re.match(r"[A-Za-z_]\w*=", words[0])):
        for at in range(1, len(words)):
            if launcher_at(words, at) is not None or is_python(words[at]) or words[at].endswith(".py"):
                return at
    return 0


def refused_word(words: Sequence[str], at: int, problem: str, fix: str) -> CommandLineError:
    """Return an error that points at the word `words[at]`, for the caller to raise. `problem`: what is wrong."""
    return CommandLineError(problem, text=shlex.join(words), column=len(shlex.join([*words[:at], ""])) - 1, fix=fix)


def launcher_inside(words: Sequence[str]) -> str:
    """Return what among a program's arguments starts ranks; empty if nothing does.

    That is a launcher behind `--`, the two words of a launcher such as `accelerate launch`, or torchrun's number of
    ranks. One word alone, as in `--model flux`, is no launcher.
    """
    for at, word in enumerate(words):
        start = launcher_at(words, at) if at else None
        if start is not None and not start[0].environment and (words[at - 1] == "--" or start[1] > at + 1):
            return start[0].name or shlex.join(words[at : start[1]])
        if _NUMBER_OF_RANKS.fullmatch(word.partition("=")[0]):
            return word
    return ""
