"""Finds the launchers of a command line and reads their options. Pure.

Words come in, as the user's shell divided them: `mpirun -f hostfile -n 16 accelerate launch x.py`. A `PastedLine` goes
out: the launchers with their options, and what the ranks are to run; None if no launcher is there. A whole line in one
word (quoted, with its backslashes) is divided here, if it has nothing that only a shell understands. The rule: a
launcher never starts in a rank; what can't be taken apart is refused, with a caret under the word.
"""

from __future__ import annotations

import contextlib
import re
import shlex
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final, NamedTuple

from ipexctl.errors import CommandLineError, UserError
from ipexctl.hosts.names import did_you_mean, quoted
from ipexctl.launch.launchers.table import LAUNCHERS, LauncherRow

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ipexctl.launch.request import CommandKind

_PYTHON: Final = re.compile(r"python(\d+(\.\d+)?)?")
_PYTHON_FLAGS: Final = ("-u", "-B")
"""Flags that change nothing for a script in a rank. With others (-I) the rank runs Python as typed."""
_SHELLS: Final = ("sh", "bash", "dash", "ksh", "zsh")
_PREFIXES: Final = frozenset(
    "nohup time exec sudo nice stdbuf timeout numactl taskset setsid command chrt env".split()  # noqa: SIM905
)
_OF_SHELL: Final = re.compile(r"(?!\x7fELF|#!)|#!.*\b(?:sh|bash|dash|ksh|zsh)\b")
"""The beginning of a file that a shell executes: without a first line that names a program, it does, too."""
_HERE_DOCUMENT: Final = re.compile(
    r"(?<!<)<<-?[ \t]*(?P<quote>['\"]?)(?P<end>\w+)(?P=quote)(?=[^\n]*\n)[\s\S]*?^\t*(?P=end)$", re.MULTILINE
)
"""Text for a program, such as the help of a script."""
_QUOTED_OR_COMMENT: Final = re.compile(r"""'[^']*'|"(?:\\.|[^"\\])*"|\\.|(?:(?<=[\s;&|()<>])|\A)#[^\n]*""", re.DOTALL)
_ONLY_FOR_SHELL: Final = re.compile(r"[;&|()<>\n$`~*?{#]")


class GivenOption(NamedTuple):
    """An option of a launcher, as typed."""

    name: str
    """Without dashes, with `_` for `-`."""
    target: str
    value: str
    """`true` for a flag, `NAME=VALUE` for a variable."""
    text: str
    """As typed, behind its launcher: `mpirun -genv OMP_NUM_THREADS=23`."""
    position: int


@dataclass(frozen=True, slots=True)
class PastedLine:
    """A line taken apart."""

    words: tuple[str, ...]
    launchers: tuple[LauncherRow, ...]
    """From the outer launcher to the inner one, as are the options."""
    options: tuple[GivenOption, ...]
    kind: CommandKind
    argv: tuple[str, ...]
    """What each rank runs."""
    python: str | None
    """The path of the interpreter, if the line has one."""

    def wrong(self, option: GivenOption, what: str, fix: str) -> CommandLineError:
        return _refused_word(self.words, option.position, f"{option.text} {what}", fix)


def read_line(words: Sequence[str], *, is_script: bool = False) -> PastedLine | None:
    """None without a launcher. Raises a UserError for a launcher or an option that is not taken over.

    `is_script`: the first word should be a script of Python, so that Python itself is left out like a launcher.
    """
    if (found := _own_line(words)) is not None:
        return _Reader(found).read()
    if not is_script or not words or not _is_python(words[0]):
        return None
    kind, argv, python = _program(tuple(words))
    return None if kind == "command" else PastedLine(tuple(words), (), (), kind, argv, python)


def find_launcher(words: Sequence[str]) -> str:
    """The name of the launcher that the command would start in each rank; empty if it starts none."""
    try:
        found = _own_line(words)
    except UserError:
        return "a launcher"
    start = _launcher_at(found, 0) if found else None
    return (start[0].name or PurePosixPath(found[0]).name) if found and start else ""


def check_file(path: str, text: str) -> None:
    """Refuse a script of a shell that starts a launcher, on a line of its own. Raises a UserError."""
    if _OF_SHELL.match(text):
        _refuse_launcher(path, _launcher_in(_HERE_DOCUMENT.sub("", text)))


def is_shell(word: str) -> bool:
    return PurePosixPath(word).name in _SHELLS


def _is_python(word: str) -> bool:
    return bool(_PYTHON.fullmatch(PurePosixPath(word).name))


def _launcher_at(words: Sequence[str], at: int) -> tuple[LauncherRow, int] | None:
    """The launcher whose name is at this position, and the position of its first option."""
    if at >= len(words):
        return None
    names = (PurePosixPath(words[at]).name, *words[at + 1 :])
    if _is_python(words[at]):
        at += 1
        while at < len(words) and words[at].startswith("-") and words[at] not in ("-m", "-c"):
            at += 2 if words[at] in ("-W", "-X") else 1
        names = tuple(words[at:]) if words[at : at + 1] == ("-m",) else ()
    return next(
        ((row, at + len(command)) for row in LAUNCHERS for command in row.commands if names[: len(command)] == command),
        None,
    )


def _own_line(words: Sequence[str]) -> tuple[str, ...] | None:
    """The words of the launcher's own line; None if the command starts no launcher."""
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
    """The words, if they begin with a launcher. Raises a UserError if one stands behind another program."""
    if not words or _launcher_at(words, 0) is not None:
        return words or None
    if PurePosixPath(words[0]).name in _PREFIXES or re.match(r"[A-Za-z_]\w*=", words[0]):
        for at in range(1, len(words)):
            if _launcher_at(words, at) is not None:
                raise _refused_word(
                    words, 0, f"{words[0]} stands in front of {words[at]}, which would start in each rank",
                    f"leave {words[0]} out: the run belongs to node0, ipexctl binds the ranks, and -x NAME=VALUE sets "
                    "a variable",
                )  # fmt: skip
            if _is_python(words[at]) or words[at].endswith(".py"):
                break  # behind it are arguments of a script
    return None


def _of_script(script: str) -> tuple[str, ...] | None:
    """The launcher's line, if a script of a shell is nothing else. Raises a UserError if it is more."""
    if not (launcher := _launcher_in(script)):
        return None
    joined = _joined(script)
    with contextlib.suppress(ValueError):  # a quotation that has no end
        if not _ONLY_FOR_SHELL.search(joined):
            return _plain(tuple(shlex.split(joined)))
    _refuse_launcher("a script of a shell", launcher)
    return None


def _refuse_launcher(place: str, launcher: str) -> None:
    if launcher:
        raise UserError(
            f"{place} starts {launcher}, which would start in each rank",
            fix="paste the launcher's line itself, without quotes around it: ipexctl run -- mpirun …; --setup FILE "
            "sources a file of the hosts before each rank, -x NAME=VALUE sets a variable",
        )


def _joined(script: str) -> str:
    return script.replace("\\\r\n", " ").replace("\\\n", " ").strip()


def _launcher_in(script: str) -> str:
    """The first word of a command in a script that starts a launcher; empty if none does."""
    for command in re.split(r"[;&|()<>\n]", _QUOTED_OR_COMMENT.sub("_", _joined(script))):
        words = tuple(command.split())
        with_launcher = True
        with contextlib.suppress(UserError):
            with_launcher = _plain(words) is not None
        if with_launcher:
            return PurePosixPath(words[0]).name
    return ""


def _refused_word(words: Sequence[str], at: int, what: str, fix: str) -> CommandLineError:
    return CommandLineError(what, text=shlex.join(words), column=len(shlex.join([*words[:at], ""])) - 1, fix=fix)


def _program(words: tuple[str, ...]) -> tuple[CommandKind, tuple[str, ...], str | None]:
    """What mpirun was to start: a script or module of Python, with the path of that, or another command."""
    if not _is_python(words[0]):
        return "command", words, None
    at = 1
    while words[at : at + 1] and words[at] in _PYTHON_FLAGS:
        at += 1
    python = words[0] if words[0].startswith("/") else None
    if words[at : at + 1] == ("-m",) and at + 1 < len(words):
        return "module", words[at + 1 :], python
    if at < len(words) and not words[at].startswith("-"):
        return "script", words[at:], python
    return "command", words, None


class _Reader:
    """Reads one line from left to right."""

    def __init__(self, words: tuple[str, ...]) -> None:
        self._words = words
        self._launchers: list[LauncherRow] = []
        self._options: list[GivenOption] = []

    def read(self) -> PastedLine:
        at, python = 0, None
        while (start := _launcher_at(self._words, at)) is not None:
            (row, behind), word = start, self._words[at]
            self._check(row, behind, at)
            if word.startswith("/") and not row.runs_commands:
                python = word if _is_python(word) else str(PurePosixPath(word).with_name("python3"))
            self._launchers.append(row)
            at = self._read_options(row, behind)
            if not row.runs_commands:
                break
        rest = self._rest(row, at)
        is_module = any(option.target == "module" for option in self._options)
        kind: CommandKind = "module" if is_module or row.module else "script"
        if row.runs_commands:
            kind, rest, python = _program(rest)
        elif row.module:
            rest = (row.module, *rest)
        return PastedLine(self._words, tuple(self._launchers), tuple(self._options), kind, rest, python)

    def _check(self, row: LauncherRow, behind: int, at: int) -> None:
        name = shlex.join(self._words[at:behind])
        if row.advice:
            raise self._wrong(at, f"{name} would start in each rank, and ipexctl can't take it apart", row.advice)
        if self._launchers and not row.of_accelerate:
            outer = self._launchers[-1].name
            fix = f"leave {outer} out: ipexctl starts the ranks of all hosts"
            raise self._wrong(at, f"{outer} and {row.name} would both start ranks", fix)

    def _read_options(self, row: LauncherRow, at: int) -> int:
        """Reads the options that begin at this position; the position behind them."""
        words = self._words
        while at < len(words) and (words[at].startswith("-") or not words[at].strip()):
            if words[at] == "--":
                return at + 1
            # A word of blanks is a backslash with a space behind it, at the end of a pasted line.
            at = self._read_option(row, at) if words[at].strip() else at + 1
        return at

    def _read_option(self, row: LauncherRow, at: int) -> int:
        dashed, equals, value = self._words[at].partition("=")
        name = dashed.lstrip("-").replace("-", "_")
        if (option := row.options.get(name)) is None:
            known = [f"--{key.replace('_', '-')}" for key in row.options if len(key) > 1]
            own = "leave it out, and type the option of ipexctl in front of the line: ipexctl run --help lists them"
            fix = did_you_mean(f"--{name.replace('_', '-')}", known, own, cutoff=0.8)
            raise self._wrong(at, f"{row.name} {quoted(dashed)} is not taken over", fix)
        target, has_value = option
        end = at + 1
        if has_value and not equals:
            value, end = self._value(at, end), end + 1
        if target == "variable" and name != "x" and "=" not in value:
            value, end = f"{value}={self._value(at, end)}", end + 1
        text = f"{row.name} {shlex.join(self._words[at:end])}"
        value = value if has_value else "true"
        self._options.append(GivenOption(name, target, value, text, at))
        return end

    def _value(self, option: int, at: int) -> str:
        if at >= len(self._words):
            raise self._wrong(option, f"{self._words[option]} has no value", "give it one, or leave it out")
        return self._words[at]

    def _rest(self, row: LauncherRow, at: int) -> tuple[str, ...]:
        if at >= len(self._words) and not row.module:
            raise UserError(
                f"{row.name} what?",
                fix=f"-- {row.name} {'python ' if row.runs_commands else ''}SCRIPT.py [ARGS…], or SCRIPT.py without it",
            )
        if row.runs_commands and ":" in self._words[at:]:
            fix = "one program for all ranks, which looks at its RANK"
            raise self._wrong(self._words.index(":", at), "the line starts several programs (MPMD)", fix)
        return self._words[at:]

    def _wrong(self, at: int, what: str, fix: str) -> CommandLineError:
        return _refused_word(self._words, at, what, fix)
