"""Finds the launcher in a command. Pure.

A line that comes as one quoted word is split here, unless only a shell can read it. A launcher must never start inside
a rank, so a launcher after another program or in a shell script is refused.
"""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Final

from ipexctl.errors import CommandLineError, UserError
from ipexctl.launch.launchers.launcher_options import LAUNCHERS, LauncherRow
from ipexctl.node.common.fix import Fix

_PYTHON: Final = re.compile(r"python(\d+(\.\d+)?)?")
_SHELLS: Final = ("sh", "bash", "dash", "ksh", "zsh")
_VARIABLE: Final = re.compile(r"(?P<name>[A-Za-z_]\w*)=(?P<value>.*)", re.DOTALL | re.ASCII)
_PREFIXES: Final = frozenset(
    "nohup time exec sudo nice stdbuf timeout numactl taskset setsid command chrt env".split()  # noqa: SIM905
)
_CHANGE_THE_RUN: Final = ("sudo", "timeout")
_QUOTED_OR_COMMENT: Final = re.compile(r"""'[^']*'|"(?:\\.|[^"\\])*"|\\.|(?:(?<=[\s;&|()<>])|\A)#[^\n]*""", re.DOTALL)
PASTED_LINE: Final = Fix(
    "paste the launcher's line itself after `ipexctl run --`, without quotes around it; --setup FILE sources a "
    "file of the hosts before each rank, -x NAME=VALUE sets a variable"
)
_ONLY_FOR_SHELL: Final = re.compile(r"[;&|()<>\n$`~*?{#]")


def split_variables(words: Sequence[str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """`NAME=VALUE` words before a command, also behind `env`, and the command's words."""
    at = 1 if len(words) > 1 and words[0] == "env" and _VARIABLE.fullmatch(words[1]) else 0
    found = dict[str, str]()
    while at < len(words) and (variable := _VARIABLE.fullmatch(words[at])) is not None:
        found[variable["name"]] = variable["value"]
        at += 1
    return (found, tuple(words[at:])) if found else ({}, tuple(words))


def find_launcher(words: Sequence[str]) -> str:
    try:
        found = own_line(words)
    except UserError:
        return "a launcher"
    start = launcher_at(found, 0) if found else None
    if found and start is not None:
        row, behind = start
        has_option = not row.is_tool and "".join(found[behind : behind + 1]).startswith("-")
        if row.environment or (row.runs_itself and not has_option):
            return ""
    return (start[0].name or " ".join(found[: start[1]]).rpartition("/")[2]) if found and start else ""


def is_shell(word: str) -> bool:
    return PurePosixPath(word).name in _SHELLS


def is_python(word: str) -> bool:
    return bool(_PYTHON.fullmatch(PurePosixPath(word).name))


def launcher_at(words: Sequence[str], at: int) -> tuple[LauncherRow, int] | None:
    """The launcher at this position, and the position of its first option."""
    if at >= len(words):
        return None
    names = (PurePosixPath(words[at]).name, *words[at + 1 :])
    if is_python(words[at]):
        at += 1
        while at < len(words) and words[at].startswith("-") and words[at] not in ("-m", "-c"):
            at += 2 if words[at] in ("-W", "-X") else 1
        names = tuple(words[at:]) if words[at : at + 1] == ("-m",) else ()
    return next(
        ((row, at + len(command)) for row in LAUNCHERS for command in row.commands if names[: len(command)] == command),
        None,
    )


def own_line(words: Sequence[str]) -> tuple[str, ...] | None:
    """The words from the launcher on; None if the command starts no launcher."""
    words = tuple(words)
    while words and not words[0].strip():
        words = words[1:]
    if not words:
        return None
    words = (words[0].strip(), *words[1:])
    if is_shell(words[0]):
        option = next((at for at, word in enumerate(words) if at and re.fullmatch(r"-[a-z]*c", word)), len(words))
        return _of_script(words[option + 1]) if option + 1 < len(words) else None
    return _of_script(words[0]) if len(words) == 1 and len(words[0].split()) > 1 else _plain(words)


def _plain(words: tuple[str, ...]) -> tuple[str, ...] | None:
    """The words from the launcher on, without `numactl …` and the like in front of it; None without a launcher.
    Raises a UserError if a program in front of it changes more than where it runs."""
    if not words or launcher_at(words, 0) is not None:
        return words or None
    at = prefix_length(words)
    if not at or launcher_at(words, at) is None:
        return None
    if any(_VARIABLE.fullmatch(word) or PurePosixPath(word).name in _CHANGE_THE_RUN for word in words[:at]):
        raise refused_word(
            words, 0, f"{words[0]} before {words[at]}: {words[at]} would start in each rank",
            f"leave {words[0]} out: -x NAME=VALUE sets a variable, --time-limit S ends the run",
        )  # fmt: skip
    return words[at:]


def prefix_length(words: Sequence[str]) -> int:
    """The number of words before a launcher, Python or a script behind another program, such as `numactl -C 0-3`."""
    if words and (PurePosixPath(words[0]).name in _PREFIXES or re.match(r"[A-Za-z_]\w*=", words[0])):
        for at in range(1, len(words)):
            if launcher_at(words, at) is not None or is_python(words[at]) or words[at].endswith(".py"):
                return at
    return 0


def _of_script(script: str) -> tuple[str, ...] | None:
    """The launcher's line of a shell script that has no other. Raises a UserError if it has more."""
    if not (launcher := launcher_in(script)):
        return None
    joined = _joined(script)
    with contextlib.suppress(ValueError):  # an unterminated quotation
        if not _ONLY_FOR_SHELL.search(joined):
            return _plain(tuple(shlex.split(joined)))
    raise UserError(f"a shell script starts {launcher}: {launcher} would start in each rank", fix=PASTED_LINE)


def _joined(script: str) -> str:
    return script.replace("\\\r\n", " ").replace("\\\n", " ").strip()


def without_comments(script: str) -> str:
    return _QUOTED_OR_COMMENT.sub(lambda found: "" if found[0].startswith("#") else found[0], script)


def launcher_in(script: str) -> str:
    """The name of the first launcher that the text of a shell script starts; or empty."""
    for command in re.split(r"[;&|()<>\n]", _QUOTED_OR_COMMENT.sub("_", _joined(without_comments(script)))):
        words = tuple(command.split())
        with_launcher = True
        with contextlib.suppress(UserError):
            words = _plain(words) or ()
            found = launcher_at(words, 0)
            with_launcher = found is not None and not found[0].environment
        if with_launcher:
            return PurePosixPath(words[0]).name
    return ""


def refused_word(words: Sequence[str], at: int, what: str, fix: str) -> CommandLineError:
    return CommandLineError(what, text=shlex.join(words), column=len(shlex.join([*words[:at], ""])) - 1, fix=fix)
