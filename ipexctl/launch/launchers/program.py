"""The program of a line: what each rank runs, the same however it is typed or pasted, and behind `--`. Pure.

Checks, lists and printed lines read this value; the words of the call are only repeated.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from ipexctl.launch.launchers.line import is_python, is_shell, prefix_length
from ipexctl.node.common.asked import Asked, CommandKind

_FLAGS: Final = re.compile(r"-[bBdEiIOPqsSuvx]+|-[WX].+")
_WITH_VALUE: Final = ("-W", "-X", "--check-hash-based-pycs")
_NO_EFFECT: Final = re.compile(r"[uB]")
"""Flags that change nothing in a rank."""
_OF_CALL: Final = frozenset("nohup setsid time exec command sudo env".split())  # noqa: SIM905
"""Programs in front of Python that are for the call itself."""
SHELL_FILES: Final = (".sh", ".bash", ".zsh")
_BINDING: Final = ("numactl", "taskset")


class Program(NamedTuple):
    kind: CommandKind
    argv: tuple[str, ...]
    """From the script, the module or the command on."""
    flags: tuple[str, ...] = ()
    """Flags of Python."""
    python: str | None = None
    """The absolute path of Python, if the line has one."""
    in_front: tuple[str, ...] = ()
    """As in `Asked`."""
    left_out: tuple[str, ...] = ()
    """A program in front that is left out."""

    def put_into(self, asked: Asked) -> Asked:
        return asked._replace(
            kind=self.kind,
            argv=self.argv,
            python_flags=self.flags,
            in_front=self.in_front,
            python=asked.python or self.python,
        )


def read_program(words: Sequence[str], *, binds: bool = True) -> Program:
    """`python -u x.py`, `nice -n 10 python -m pkg`, `x.py` and any other command. If `binds`, ipexctl chooses the cores
    of each rank."""
    at = prefix_length(words)
    in_front, words = tuple(words[:at]), tuple(words[at:])
    is_of_call = bool(in_front) and in_front[0].rpartition("/")[2] in (*_OF_CALL, *(_BINDING if binds else ()))
    found = _python_program(words) if words and is_python(words[0]) else None
    if found is None:
        found = Program("script" if words[0].endswith(".py") else "command", words)
    if found.kind == "command":
        return found._replace(argv=(*in_front, *words))
    return found._replace(left_out=in_front) if is_of_call else found._replace(in_front=in_front)


def _python_program(words: tuple[str, ...]) -> Program | None:
    """None for `python -c CODE`, and for Python without a script."""
    flags, at = list[str](), 1
    while at < len(words) and (words[at] in _WITH_VALUE or _FLAGS.fullmatch(words[at])):
        end = at + 1 + (words[at] in _WITH_VALUE)
        plain = words[at] if words[at][1] in "WX-" else _NO_EFFECT.sub("", words[at])
        flags += [plain, *words[at + 1 : end]] if plain != "-" else []
        at = end
    python = words[0] if words[0].startswith("/") else None
    if words[at : at + 1] == ("-m",) and at + 1 < len(words):
        return Program("module", words[at + 1 :], tuple(flags), python)
    if at < len(words) and not words[at].startswith("-"):
        return Program("script", words[at:], tuple(flags), python)
    return None


def stays_command(argv: Sequence[str]) -> bool:
    """True for the words of a shell, `python -c` and a shell's file: no script of Python, and no command that the
    environment must have."""
    return (len(argv) > 1 and (is_shell(argv[0]) or is_python(argv[0]))) or argv[0].endswith(SHELL_FILES)
