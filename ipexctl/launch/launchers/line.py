"""Finds the launchers of a command line and reads their options. Pure.

Words come in, as the user's shell divided them: `mpirun -f hostfile -n 16 accelerate launch x.py`. A `PastedLine` goes
out: each launcher with its options, one after the other, and what the ranks are to run; None if no launcher is there.
A whole line in one word (quoted, with its backslashes) and the script of `bash -c` are divided here, if they only
source a file, export variables and start the launcher. The rule: a launcher never starts in a rank; what can't be taken
apart is refused, with a caret under the word.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final, NamedTuple

from ipexctl.errors import CommandLineError, UserError
from ipexctl.hosts.names import did_you_mean, quoted
from ipexctl.launch.launchers.table import (
    INTERACTIVE,
    LAUNCHERS,
    OPTIONS_OF_RANKS,
    REFUSED,
    LauncherRow,
    OptionRow,
)
from ipexctl.text import is_variable_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ipexctl.launch.request import CommandKind

_PYTHON: Final = re.compile(r"python(\d+(\.\d+)?)?")
_PYTHON_FLAGS: Final = ("-u", "-B")
"""Flags that change nothing for a script in a rank. With others (-I) the rank runs Python as typed."""
_PYTHON_OPTION: Final = re.compile(r"-[bBdEIOPqsSuvx]+|-[bBdEIOPqsSuvx]*[WX](?P<value>.*)", re.DOTALL)
_RANKS: Final = re.compile(r"(?:--?np?|--ntasks)(?:=?(?P<count>[1-9]\d{0,6}))?")
"""The number of ranks, as most launchers have it; without a count, that is the next word."""
_SHELLS: Final = ("sh", "bash", "dash", "ksh", "zsh")
_PREFIXES: Final = (
    "nohup", "time", "exec", "sudo", "nice", "stdbuf", "timeout", "numactl", "taskset", "setsid", "command", "chrt",
    "env",
)  # fmt: skip
_SEPARATORS: Final = frozenset({";", "&&"})
_OF_SHELL: Final = re.compile(r"(?!\x7fELF|#!)|#!.*\b(?:sh|bash|dash|ksh|zsh)\b")
"""The beginning of a file that a shell executes: without a first line that names a program, it does, too."""
_HERE_DOCUMENT: Final = re.compile(
    r"(?<!<)<<-?[ \t]*(?P<quote>['\"]?)(?P<end>\w+)(?P=quote)(?=[^\n]*\n)[\s\S]*?^\t*(?P=end)$", re.MULTILINE
)
"""Text for a program, such as the help of a script."""
_PUNCTUATION: Final = ";&|()<>\n"
_PARTS: Final = re.compile(
    r"""'[^']*'|(?P<double>"(?:\\.|[^"\\])*")|\\.|(?P<comment>(?:(?<=[\s;&|()<>])|\A)#[^\n]*)""", re.DOTALL
)
"""Parts of a script of a shell in which characters do not have their usual meaning."""
_EXPANDED: Final = (
    (r"[$`]", "$ or `", lambda part: part["double"] or "_"),
    (r"(?<![^\s=:])~", "~", lambda _: "_"),
    (r"[*?]", "* or ?", lambda _: "_"),
    (r"\{[^\s{}]*(?:,|\.\.)[^\s{}]*\}", "{…}", lambda _: "_"),
)
"""What a shell puts other words for: its pattern, its name in a message, and what stands for a quoted part."""


class GivenOption(NamedTuple):
    """An option of a launcher, as typed."""

    name: str
    """Without dashes, with `_` for `-`."""
    row: OptionRow
    values: tuple[str, ...]
    text: str
    """As typed, with its values: `-genv OMP_NUM_THREADS=23`."""
    column: int


@dataclass(frozen=True, slots=True)
class LauncherCall:
    """One launcher of a line with its options."""

    row: LauncherRow
    options: tuple[GivenOption, ...]

    def wrong(self, option: GivenOption, text: str, what: str, fix: str) -> CommandLineError:
        return CommandLineError(f"{self.row.name} {option.text} {what}", text=text, column=option.column, fix=fix)


@dataclass(frozen=True, slots=True)
class PastedLine:
    """A line taken apart."""

    text: str
    """The line, for messages."""
    calls: tuple[LauncherCall, ...]
    """From the outer launcher to the inner one."""
    kind: CommandKind
    argv: tuple[str, ...]
    """What each rank runs."""
    python: str | None = None
    """The path of the interpreter, if the line has one."""
    setup: str | None = None
    """A file that the line sources."""
    setup_arguments: tuple[str, ...] = ()
    """The words behind that file, which `--setup` does not pass on."""
    assignments: tuple[tuple[str, str], ...] = ()
    """Variables that the line sets before the launcher."""
    own_python: str = ""
    """Python as typed, if it is in place of a launcher: `python3 train.py`."""


class _ShellLine(NamedTuple):
    """The words of a launcher's line, and what stands before them."""

    words: tuple[str, ...]
    setup: str | None = None
    setup_arguments: tuple[str, ...] = ()
    assignments: tuple[tuple[str, str], ...] = ()


def read_line(words: Sequence[str], *, is_script: bool = False) -> PastedLine | None:
    """None without a launcher. Raises a UserError for a launcher or an option that can't be translated.

    `is_script`: the first word should be a script of Python, so that Python itself is left out like a launcher.
    """
    shell_line = _of_shell(words)
    if shell_line is None:
        if not is_script or not words or not _PYTHON.fullmatch(PurePosixPath(words[0]).name):
            return None
        found = _Reader(_ShellLine(tuple(words))).read_python()
        return None if found.kind == "command" else found
    return _Reader(shell_line).read()


def find_launcher(words: Sequence[str]) -> str:
    """The name of the launcher that the command would start in each rank; empty if it starts none."""
    try:
        shell_line = _of_shell(words)
    except UserError:
        return "a launcher"
    if shell_line is None:
        return ""
    row, start = _launcher_at(shell_line.words, 0)
    return row.name if row is not None else PurePosixPath(shell_line.words[start]).name


def script_of_shell(words: Sequence[str]) -> str | None:
    """The path of the script that the command runs with a shell, or by its first line: `./run.sh`, `bash run.sh`."""
    if not words:
        return None
    if PurePosixPath(words[0]).name not in _SHELLS:
        return words[0]
    return words[1] if len(words) > 1 and not words[1].startswith("-") else None


def check_script_of_shell(path: str, text: str) -> None:
    """Refuse a script of a shell that starts a launcher, on a line of its own. Raises a UserError."""
    if _OF_SHELL.match(text):
        for command in _commands(_HERE_DOCUMENT.sub("", text))[0]:
            if _has_launcher(command):
                raise UserError(
                    f"{path} starts {PurePosixPath(command[0]).name}, which would start in each rank",
                    fix="paste the launcher's line itself: ipexctl run -- mpirun …",
                )


def _launcher_at(words: Sequence[str], start: int) -> tuple[LauncherRow | None, int]:
    """The launcher whose name is at this position, and the position of its first option.

    Without one in the table: the position of the name of another launcher, -1 if there is none.
    """
    if start >= len(words):
        return None, -1
    name = PurePosixPath(words[start]).name
    if _PYTHON.fullmatch(name):
        at = _after_python_options(words, start + 1)
        if at + 1 >= len(words) or words[at] != "-m":
            return None, -1
        module = words[at + 1]
        if module == "accelerate.commands.accelerate_cli":
            row, end = _launcher_at(("accelerate", *words[at + 2 :]), 0)
            return row, end + at + 1 if end >= 0 else -1
        row = next((row for row in LAUNCHERS if module in row.modules), None)
        if row is not None:
            takes_cpu = row.starts_copies and words[at + 2 : at + 3] == ("cpu",)
            return row, at + (3 if takes_cpu else 2)
        return None, at + 1 if module in REFUSED else -1
    for row in LAUNCHERS:
        for command in row.commands:
            if (name, *words[start + 1 : start + len(command)]) == command:
                return row, start + len(command)
    is_interactive = (name, *words[start + 1 : start + 2]) == INTERACTIVE
    return None, start if name in REFUSED or is_interactive else -1


def _after_python_options(words: Sequence[str], at: int) -> int:
    """Behind options of Python in front of its script or module: `-u -W ignore`."""
    while at < len(words) and (match := _PYTHON_OPTION.fullmatch(words[at])):
        at += 2 if match["value"] == "" else 1
    return at


def _of_shell(words: Sequence[str]) -> _ShellLine | None:
    """The words of the launcher's own line; None if the command starts no launcher."""
    words = tuple(words)
    while words and not words[0].strip():
        words = words[1:]
    if not words:
        return None
    name = PurePosixPath(words[0].strip()).name
    if name in _SHELLS:
        script = next((at + 1 for at, word in enumerate(words) if at and re.fullmatch(r"-[a-z]*c", word)), None)
        return _of_script(words[script]) if script is not None and script < len(words) else None
    if len(words) == 1 and len(words[0].split()) > 1:
        return _of_script(words[0])
    return _plain((words[0].strip(), *words[1:]))


def _plain(words: Sequence[str]) -> _ShellLine | None:
    """Words with variables in front of them: `env CCL_WORKER_COUNT=1 mpirun …`."""
    at = 1 if words and words[0] == "env" else 0
    assignments = []
    while at < len(words) and (pair := _assignment(words[at])) is not None:
        assignments.append(pair)
        at += 1
    if _starts(words, at):
        return _ShellLine(tuple(words[at:]), assignments=tuple(assignments))
    if at < len(words) and words[0] == "env" and words[at].startswith("-"):
        at = 0  # with options, env is a program like others
    if at < len(words) and PurePosixPath(words[at]).name in _PREFIXES:
        prefix = words[at]
        for other in range(at + 1, len(words)):
            if _starts(words, other):
                raise _refused_word(
                    words, at, f"{prefix} stands in front of {words[other]}, which would start in each rank",
                    f"leave {prefix} out: the run belongs to node0, and ipexctl binds the ranks",
                )  # fmt: skip
            if _runs_python(words[other]):
                break  # behind it are arguments of a script
    return None


def _runs_python(word: str) -> bool:
    return bool(_PYTHON.fullmatch(PurePosixPath(word).name)) or word.endswith(".py")


def _starts(words: Sequence[str], at: int) -> bool:
    return _launcher_at(words, at)[1] >= 0


def _assignment(word: str) -> tuple[str, str] | None:
    name, equals, value = word.partition("=")
    return (name, value) if equals and is_variable_name(name) else None


def _of_script(script: str) -> _ShellLine | None:
    """The launcher's line in a script of a shell, and what the script does before it."""
    commands, is_list = _commands(script)
    with_launcher = [at for at, command in enumerate(commands) if _has_launcher(command)]
    if not with_launcher:
        return None
    launcher = commands[with_launcher[0]][0]
    if not is_list or with_launcher != [len(commands) - 1]:
        raise UserError(
            f"a script of a shell starts {launcher}, which would start in each rank",
            fix="paste the launcher's line itself: ipexctl run -- mpirun …; --setup FILE sources a file of the hosts "
            "before each rank, -x NAME=VALUE sets a variable",
        )
    if expanded := _expanded(script):
        raise UserError(
            f"the line of {launcher} has {expanded} in it, which only a shell replaces by other words",
            fix="paste the line without quotes around it, so that your shell replaces it; or quote that word inside",
        )
    setup, setup_arguments, assignments = None, list[str](), list[tuple[str, str]]()
    for command in commands[:-1]:
        if command[0] in ("source", ".") and len(command) > 1 and setup is None:
            setup, setup_arguments = _sourced(command[1]), command[2:]
            continue
        pairs = [_assignment(word) for word in (command[1:] if command[0] == "export" else command)]
        if command[0] != "set" and None in pairs:
            raise UserError(
                f"a script of a shell does {quoted(shlex.join(command))} before the launcher",
                fix="do that once on the hosts (ipexctl exec), or put it into a file of the hosts: --setup FILE",
            )
        assignments += [pair for pair in pairs if pair is not None and command[0] != "set"]
    line = _plain(commands[-1])
    assert line is not None
    return line._replace(
        setup=setup, setup_arguments=tuple(setup_arguments), assignments=(*assignments, *line.assignments)
    )


def _has_launcher(command: Sequence[str]) -> bool:
    try:
        return _plain(command) is not None
    except UserError:
        return True


def _sourced(path: str) -> str:
    if path.startswith("/"):
        return path
    raise UserError(
        f"a script of a shell sources {quoted(path)}, and hosts may have another directory",
        fix="--setup /PATH/ON/EVERY/HOST, and the launcher's line without the shell; an environment that ipexctl has "
        "installed needs no setvars.sh",
    )


def _without_comments(script: str) -> str:
    """The script with its lines joined. shlex takes a # inside a word for a comment, and drops the line with it."""
    script = script.replace("\\\r\n", " ").replace("\\\n", " ")
    return _PARTS.sub(lambda part: "" if part["comment"] else part[0], script)


def _expanded(script: str) -> str:
    """What stands in the script for other words, for a message; empty if it means what it says."""
    script = _without_comments(script)
    return next((name for pattern, name, quotes in _EXPANDED if re.search(pattern, _PARTS.sub(quotes, script))), "")


def _commands(script: str) -> tuple[list[list[str]], bool]:
    """The simple commands of a script, and whether it is nothing but a list of them."""
    script = _without_comments(script)
    lexer = shlex.shlex(script, posix=True, punctuation_chars=_PUNCTUATION)
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
    is_list = True
    commands: list[list[str]] = [[]]
    try:
        for token in lexer:
            if token and all(character in _PUNCTUATION for character in token):
                is_list &= token.replace("\n", "") in (*_SEPARATORS, "")
                commands.append([])
            else:
                commands[-1].append(token)
    except ValueError:  # a quotation that has no end
        is_list = False
    return [command for command in commands if command], is_list


def _text_and_columns(words: Sequence[str]) -> tuple[str, list[int]]:
    """The line, and the column of each word and of its end."""
    columns, at = [], 1
    for word in words:
        columns.append(at)
        at += len(shlex.quote(word)) + 1
    return shlex.join(words), [*columns, max(1, at - 1)]


def _refused_word(words: Sequence[str], at: int, what: str, fix: str) -> CommandLineError:
    text, columns = _text_and_columns(words)
    return CommandLineError(what, text=text, column=columns[at], fix=fix)


class _Reader:
    """Reads one line from left to right."""

    def __init__(self, line: _ShellLine) -> None:
        self._line, self._words = line, line.words
        self._text, self._columns = _text_and_columns(line.words)
        self._calls: list[LauncherCall] = []
        self._python: str | None = None
        """The Python of a launcher that the line names by its path."""

    def read(self) -> PastedLine:
        at = 0
        while self._starts_launcher(at):
            word = self._words[at]
            row, at = self._launcher(at)
            if word.startswith("/") and not row.runs_commands:
                self._python = word if _runs_python(word) else str(PurePosixPath(word).with_name("python3"))
            options, at = self._options(row, at)
            call = LauncherCall(row, tuple(options))
            self._calls.append(call)
            effects = {option.row.effect for option in options}
            if row.module:
                return self._result("module", (row.module, *self._rest(row, at, may_be_empty=True)))
            rest = self._rest(row, at)
            if "module" in effects:
                return self._result("module", rest)
            if not row.runs_commands and "command" not in effects:
                return self._result("script", rest)
        return self._command(self._rest(row, at))

    def read_python(self) -> PastedLine:
        """A line without a launcher that begins with Python."""
        return replace(self._command(self._words), own_python=self._words[0])

    def _starts_launcher(self, at: int) -> bool:
        return _launcher_at(self._words, at)[1] >= 0

    def _launcher(self, at: int) -> tuple[LauncherRow, int]:
        row, start = _launcher_at(self._words, at)
        if row is None:
            name = PurePosixPath(self._words[start]).name
            if name not in REFUSED:
                fix = f"{' '.join(INTERACTIVE)} on the control machine; ipexctl export accelerate writes a file, too"
                raise self._wrong(start, f"{' '.join(INTERACTIVE)} asks questions, and ranks have no stdin", fix)
            raise self._wrong(
                start, f"{name} would start in each rank, and ipexctl can't take it apart", self._other(start, name)
            )
        outer = self._calls[-1].row if self._calls else None
        if outer is not None and not row.of_accelerate:
            fix = f"leave {outer.name} out: ipexctl starts the ranks of all hosts"
            raise self._wrong(at, f"{outer.name} and {row.name} would both start ranks", fix)
        return row, start

    def _other(self, start: int, name: str) -> str:
        """The fix for another launcher: the call of ipexctl, as far as the line can be read, and advice."""
        if start or self._calls or self._line.setup or self._line.assignments:
            return REFUSED[name]
        ranks: tuple[str, ...] = ()
        left_out = ""
        for at, word in enumerate(self._words[1:], 1):
            if self._starts_launcher(at):
                break
            if _runs_python(word):
                program = self._command(self._words[at:])
                module = ("-m",) if program.kind == "module" else ()
                python = ("--python", program.python) if program.python is not None else ()
                if program.kind == "command" and not word.endswith(".py"):
                    break
                line = shlex.join(("ipexctl", "run", *ranks, *python, *module, *program.argv))
                more = "the hosts: -H HOSTFILE" if REFUSED[name] == OPTIONS_OF_RANKS else REFUSED[name]
                return f"{line}; {more}{left_out}"
            if option := _RANKS.fullmatch(word):
                count = option["count"] or "".join(self._words[at + 1 : at + 2])
                ranks = ("-n", count) if re.fullmatch(r"[1-9]\d{0,6}", count) else ()
            elif word.startswith("-"):
                left_out = f"; {name}'s other options are left out here"
        return REFUSED[name]

    def _options(self, row: LauncherRow, at: int) -> tuple[list[GivenOption], int]:
        found = []
        words = self._words
        while at < len(words) and words[at] != "--" and (words[at].startswith("-") or not words[at].strip()):
            if words[at].strip():
                option, at = self._option(row, at)
                found.append(option)
            else:
                at += 1  # a backslash with a space behind it, at the end of a pasted line
        return found, at + 1 if at < len(words) and words[at] == "--" else at

    def _option(self, row: LauncherRow, at: int) -> tuple[GivenOption, int]:
        typed = self._words[at]
        dashed, equals, attached = typed.partition("=")
        name = dashed.lstrip("-").replace("-", "_")
        option = row.option(name)
        if option is None:
            known = [f"{'--' if len(key) > 1 else '-'}{key.replace('_', '-')}" for key in row.options]
            otherwise = "leave it out; options of ipexctl stand in front of the line"
            fix = did_you_mean(f"--{name.replace('_', '-')}", known, otherwise, cutoff=0.8)
            raise self._wrong(at, f"{row.name} has no option {quoted(dashed)} that ipexctl knows", fix)
        if option.effect == "refused":
            raise self._wrong(at, f"{row.name} {dashed} {option.reason}", option.fix)
        values, end = self._values(option, at, attached if equals else None)
        text = shlex.join(self._words[at:end])
        return GivenOption(name, option, values, text, self._columns[at]), end

    def _values(self, option: OptionRow, at: int, attached: str | None) -> tuple[tuple[str, ...], int]:
        end = at + 1
        if option.takes == "nothing":
            return (), end
        if attached is not None and option.takes == "value":
            return (attached,), end
        words = [] if attached is None else [attached]
        wanted = 2 if option.takes in ("two", "pair") else 1
        while len(words) < wanted and end < len(self._words):
            words.append(self._words[end])
            end += 1
            if option.takes == "pair" and "=" in words[0]:
                name, _, value = words[0].partition("=")
                return (name, value), end
        if len(words) < wanted:
            raise self._wrong(at, f"{self._words[at]} has no value", "give it one, or leave it out")
        return tuple(words), end

    def _rest(self, row: LauncherRow, at: int, *, may_be_empty: bool = False) -> tuple[str, ...]:
        rest = self._words[at:]
        while rest and not rest[0].strip():
            rest = rest[1:]
        if not rest and not may_be_empty:
            raise UserError(
                f"{row.name} what?",
                fix=f"-- {row.name} {'python ' if row.runs_commands else ''}SCRIPT.py [ARGS…], or SCRIPT.py without it",
            )
        if row.separates and ":" in rest:
            colon = len(self._words) - len(rest) + rest.index(":")
            raise self._wrong(
                colon, "the line starts several programs (MPMD)", "one program for all ranks, which looks at its RANK"
            )
        return rest

    def _command(self, words: tuple[str, ...]) -> PastedLine:
        """What mpirun was to start: a script or module of Python, or another command."""
        if not _PYTHON.fullmatch(PurePosixPath(words[0]).name):
            return self._result("command", words)
        at = 1
        while at < len(words) and words[at] in _PYTHON_FLAGS:
            at += 1
        path = words[0] if words[0].startswith("/") else None
        if words[at : at + 1] == ("-m",) and at + 1 < len(words):
            return self._result("module", words[at + 1 :], path)
        if at < len(words) and not words[at].startswith("-"):
            return self._result("script", words[at:], path)
        return self._result("command", words)

    def _result(self, kind: CommandKind, argv: tuple[str, ...], python: str | None = None) -> PastedLine:
        line = self._line
        python = python or (self._python if kind != "command" else None)
        return PastedLine(
            self._text, tuple(self._calls), kind, argv, python, line.setup, line.setup_arguments, line.assignments
        )

    def _wrong(self, at: int, what: str, fix: str) -> CommandLineError:
        return CommandLineError(what, text=self._text, column=self._columns[min(at, len(self._words))], fix=fix)


def read_mpi_options(text: str, wrong: CommandLineError) -> Iterator[GivenOption]:
    """The options that `ipexrun --extra-mpi-params` passes to mpirun."""
    try:
        words = ("mpirun", *shlex.split(text), "true")
    except ValueError:
        raise wrong from None
    line = read_line(words)
    if line is not None:
        yield from line.calls[0].options
