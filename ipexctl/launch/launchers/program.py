"""Find the program of a command: what each rank runs, whether the user types it, pastes it, or puts it behind `--`.
Nothing here reads a file or contacts a host.

`python -u train.py`, `numactl -C 0-3 train.py` and `train.py` are one program here, so checks and printed commands need
not know how it was typed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from ipexctl.launch.launchers.line import is_python, is_shell, prefix_length
from ipexctl.node.common.run_options import CommandKind, RunOptions

_FLAGS: Final = re.compile(r"-[bBdEiIOPqsSuvx]+|-[WX].+")
_WITH_VALUE: Final = ("-W", "-X", "--check-hash-based-pycs")
_NO_EFFECT: Final = re.compile(r"[uB]")
"""Flags that change nothing in a rank: `-u`, because ranks are unbuffered anyway, and `-B`, which only keeps Python
from writing bytecode files.
"""
_OF_CALL: Final = frozenset("nohup setsid time exec command sudo env".split())  # noqa: SIM905
"""Programs in front of Python that are for the command itself, not for the ranks."""
SHELL_FILES: Final = (".sh", ".bash", ".zsh")
_BINDING: Final = ("numactl", "taskset")


class Program(NamedTuple):
    """What each rank runs."""

    kind: CommandKind
    argv: tuple[str, ...]
    """The script, module or command, with its arguments."""
    flags: tuple[str, ...] = ()
    """Flags of Python, such as `-O`. Flags that change nothing in a rank are left out."""
    python: str | None = None
    """Absolute path of Python if the command line has one; else None."""
    in_front: tuple[str, ...] = ()
    """Words before Python, such as `nice -n 10`, which each rank keeps; as in `RunOptions`."""
    left_out: tuple[str, ...] = ()
    """Words before Python that ranks do not get, such as `nohup`."""

    def put_into(self, asked: RunOptions) -> RunOptions:
        """Return the options with this program. `--python` overrides the Python of the program."""
        return asked._replace(
            kind=self.kind,
            argv=self.argv,
            python_flags=self.flags,
            in_front=self.in_front,
            python=asked.python or self.python,
        )


def read_program(words: Sequence[str], *, binds: bool = True) -> Program:
    """Read `python -u x.py`, `nice -n 10 python -m pkg`, `x.py` or any other command as a program.

    `binds`: True if ipexctl chooses the cores of each rank; `numactl` and `taskset` in front of Python are then left
    out.
    """
    count = prefix_length(words)
    in_front, words = tuple(words[:count]), tuple(words[count:])
    is_for_call_only = bool(in_front) and in_front[0].rpartition("/")[2] in (*_OF_CALL, *(_BINDING if binds else ()))
    program = _python_program(words) if words and is_python(words[0]) else None
    if program is None:
        program = Program("script" if words[0].endswith(".py") else "command", words)
    if program.kind == "command":
        return program._replace(argv=(*in_front, *words))
    return program._replace(left_out=in_front) if is_for_call_only else program._replace(in_front=in_front)


def _python_program(words: tuple[str, ...]) -> Program | None:
    """Return the script or module that Python runs; None for `python -c CODE`, and for Python without a script."""
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
    """True if the words are a shell's or Python's command line, or a shell script: not a Python script, and no program
    that must be in the environment.
    """
    return (len(argv) > 1 and (is_shell(argv[0]) or is_python(argv[0]))) or argv[0].endswith(SHELL_FILES)
