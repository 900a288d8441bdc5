"""Read a shell script as text, and find the line in it that starts ranks. Nothing of the script is executed, and no
file is read here.

The text is a file, or the words behind `sh -c`. A launcher must never start inside a rank, so a script that starts a
launcher and more is refused, with the line to paste in place of the script.

Variables count if the script sets them to plain text, an array or a default, and arguments if the command has them. An
option of the launcher whose value is not known is left out, because ipexctl has a default for it. The words of the
printed line are quoted, so a shell executes nothing of the script when the line is pasted.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from ipexctl.errors import UserError
from ipexctl.launch.launchers.launcher_options import LauncherRow
from ipexctl.launch.launchers.line import (
    is_python,
    is_shell,
    launcher_at,
    prefix_length,
    split_variables,
    strip_prefix,
)
from ipexctl.node.common.fix import Fix, ShellWords, ipexctl_command
from ipexctl.text import join_words

PASTED_LINE: Final = Fix(
    "paste the launcher's line itself after `ipexctl run --`, without quotes around it; --setup FILE sources a "
    "file of the hosts before each rank, -x NAME=VALUE sets a variable"
)
_QUOTED_OR_COMMENT: Final = re.compile(r"""'[^']*'|"(?:\\.|[^"\\])*"|\\.|(?:(?<=[\s;&|()<>])|\A)#[^\n]*""", re.DOTALL)
_OF_SHELL: Final = re.compile(r"(?!\x7fELF|#!)|#!.*\b(?:sh|bash|dash|ksh|zsh)\b")
_HERE_DOCUMENT: Final = re.compile(r"(?<!<)<<-?[ \t]*(?P<quote>['\"]?)(?P<end>\w+)(?P=quote)")
"""The start of a here-document, such as a script's usage text. Here-documents are not searched for launchers."""
_STATEMENT: Final = re.compile(r"(?:[^\n\\'\"(]|\\[\s\S]|'[^']*'|\"(?:\\[\s\S]|[^\"\\])*\"|(?<=[\w]=)\([^()]*\)|\()+")
"""One line, together with the lines that a backslash, a quotation or an array joins to it."""
_ASSIGNED: Final = re.compile(
    r"\s*(?:(?P<export>export|readonly|local|declare)\s+)?(?P<name>[A-Za-z_]\w*)="
    r"(?:\((?P<array>[^()]*)\)|'(?P<single>[^']*)'|\"(?P<double>[^\"]*)\"|(?P<word>(?:\$\{[^{}\n]*\}|[^\s;&|()<>'\"])*))\s*(?:;\s*)?(?:#.*)?"
)
_USED: Final = re.compile(
    r"\$(?:\{(?P<braced>\w+|[@*])(?:\[[@*]\])?(?::?-(?P<default>[^${}]*)|:(?P<from>[1-9]))?\}|(?P<name>[A-Za-z_]\w*|[0-9@*]))"
)
_WORDS_OF: Final = re.compile(r"\"(\$(?:[@*]|\{(?:[@*](?::[1-9])?|\w+\[[@*]\])\}))\"")
"""Quoted arguments and arrays (`"$@"`, `"${args[@]}"`), which stay several words."""
_CONTROL: Final = frozenset(("if", "then", "else", "elif", "do", "!", "{"))
"""Words after which a command may not run, or may run in a loop."""
_KEYWORDS: Final = _CONTROL | {"exec", "time", "nohup", "env"}
_BACKGROUND: Final = re.compile(r"(?<![&<>])&(?![&>])")
OWN_BACKGROUND: Final = "its &, because the run waits for the ranks"
_OPERATOR: Final = re.compile(r"[;&|()<>]+")
_OWN_PATH: Final = r"(?:\$\{?(?:0|BASH_SOURCE(?:\[0\])?)\}?)"
"""The path of the script itself, as scripts write it."""
_OWN_DIRECTORY: Final = re.compile(
    rf"""\$\(\s*dirname\s+(?:--\s+)?"?(?:\$\((?:realpath|readlink\s+-f)\s+"?{_OWN_PATH}"?\)|{_OWN_PATH})"?\s*\)"""
    rf"""|`\s*dirname\s+"?{_OWN_PATH}"?\s*`|\$\{{(?:0|BASH_SOURCE(?:\[0\])?)%/\*\}}"""
)
"""`$(dirname "$0")` and other ways to write the directory of the script."""
_DIRECTORY_OF: Final = re.compile(
    r"""\$\(\s*(?:cd(?:\s+-P)?|realpath|readlink\s+-f)\s+(?:--\s+)?"?(?P<path>[\w./+-]+)"?\s*"""
    r"""(?:(?:>\s*/dev/null\s*(?:2>&1\s*)?)?(?:&&|;)\s*pwd(?:\s+-P)?\s*)?\)"""
)
"""`$(cd DIR && pwd)` and other ways to make a path absolute."""
_HERE: Final = re.compile(r"\$\(\s*pwd\s*\)|`\s*pwd\s*`|\$(?:\{PWD\}|PWD\b)")
"""`$(pwd)` and other ways to write the working directory."""
_BLOCK_OPENS: Final = re.compile(
    r"(?:^|[;&|]|\b(?:do|then|else)\b)\s*(?:if\b|while\b|until\b|for\b|case\b|function\b|\w+\s*\(\s*\))"
)
_BLOCK_ENDS: Final = re.compile(r"(?:^|[;&|\s])(?:fi|done|esac|\})(?=[;&|)\s]|$)")
_PREPARES: Final = frozenset(("source", ".", "conda", "mamba", "module", "ml", "mkdir", "pip", "pip3", "uv"))
"""Commands of which a note says that they are left out with the script."""
_SAYS: Final = frozenset(
    "echo printf set export ulimit sleep wait exit date trap true : hostname pwd which nvidia-smi tee shopt unset "  # noqa: SIM905
    "clear lscpu".split()
)
"""Commands without which a launcher starts the same."""
_COMPUTED: Final = re.compile(r"\$\(\([^()]*\)\)|\$\([^()]*\)|`[^`]*`")
"""Text that only a shell can compute: `$((1 + 1))`, `$(command)` or a command in backquotes."""
_COMPUTED_VALUE: Final = "\0"
"""Stands in the words for text that only a shell can compute."""
_UNCLEAR: Final = re.compile(r"[$`\0]")
"""Characters that show that a value is not plain text."""
_OF_HOME: Final = re.compile(r"~(?:/[\w./+-]*)?")
"""A path that the shell of the printed line expands."""
_SPECIAL: Final = re.compile(r"[\"$`\\!]")
_MOST_STATEMENTS: Final = 10_000
"""Statements that are read of one script. The rest is ignored."""
_LONGEST_STATEMENT: Final = 4000
"""Characters of a statement that are read."""


@dataclass(frozen=True, slots=True)
class LineOfScript:
    """A line of a shell script that starts ranks or Python."""

    number: int
    launcher: str
    """Name of the launcher; empty for a line of Python or `uv run`, which each rank may run."""
    words: tuple[str, ...]
    exports: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Variables that the script exports before the line, with values that it shows."""
    directory: str = "."
    """The working directory of the line, relative to the one where the script starts."""
    left_out: tuple[str, ...] = ()
    """Statements that prepare the line, such as `source env.sh`, and that ranks do not run."""
    other: int = 0
    """Number of the line with another command; 0 if the script starts nothing else."""

    @property
    def unknown(self) -> tuple[str, ...]:
        """Names of the variables whose value the script does not show."""
        return tuple(dict.fromkeys(_name(used) for word in self.words for used in _USED.finditer(word)))

    @property
    def is_computed(self) -> bool:
        """True if only a shell can compute one of the words."""
        return any(
            _UNCLEAR.search(_USED.sub("", word)) or "*" in word or (word[:1] == "~" and not _OF_HOME.fullmatch(word))
            for word in self.words
        )

    @property
    def stands_for_script(self) -> bool:
        """True if the script starts this line and nothing else, with values that the script shows."""
        has_home = any(map(_OF_HOME.fullmatch, self.words))
        return not (self.unknown or self.is_computed or self.other or has_home) and self.directory == "."

    def __str__(self) -> str:
        """Format the line for a user to paste: a shell puts in the unknown variables, and executes nothing else."""
        return " ".join(map(_in_shell, self.words))


def _name(used: re.Match[str]) -> str:
    """Return the variable's name."""
    return used["braced"] or used["name"]


def _in_shell(word: str) -> str:
    """Quote a word so that a shell expands the variables whose value is not known, and nothing else."""
    if _OF_HOME.fullmatch(word):
        return word
    shown = _USED.sub(lambda used: f"${{{_name(used)}}}", word)
    return f'"{shown}"' if _USED.search(word) and not _SPECIAL.search(_USED.sub("", word)) else shlex.quote(word)


def read_file(
    path: str, text: str, arguments: Sequence[str], variables: Mapping[str, str], read: Callable[[str], str]
) -> LineOfScript | None:
    """Return the line that stands for a shell script; None if each rank can run the script itself.

    Raises a UserError, whose fix is the line to paste, if the script starts a launcher and more. `read` returns the
    text of a script that this one runs, or an empty text.
    """
    if not _OF_SHELL.match(text):
        return None
    line = launcher_line(text, arguments, variables, path, read)
    if line is None or not line.launcher:
        return line if line is not None and line.stands_for_script else None
    if line.stands_for_script:
        return line
    start = launcher_at(split_variables(line.words)[1], 0)
    if start is not None and start[0].advice:
        raise UserError(f"{path} starts {line.launcher} (line {line.number})", fix=start[0].advice)
    unknown = f"set {join_words(line.unknown)} in this shell, and " if line.unknown else ""
    run = ipexctl_command("run")
    if line.directory != ".":
        run = run._replace(start=f"cd {shlex.quote(line.directory)} && {run.start}")
    fix = Fix("{unknown}paste its line: `{run} {*argv}`", unknown=unknown, run=run, argv=[ShellWords(line)])
    if line.is_computed:
        where = f"line {line.number} of {path}"
        fix = Fix("replace what a shell computes in {place}, and paste the line behind {run}", place=where, run=run)
    raise UserError(f"{path} starts {line.launcher} (line {line.number}), which would start in each rank", fix=fix)


def own_line(words: Sequence[str]) -> tuple[str, ...] | None:
    """Return the words from the launcher on, also of `sh -c 'mpirun …'`; None if the command starts no launcher.

    Raises a UserError if a launcher's line does not stand for the whole command.
    """
    words = tuple(words)
    while words and not words[0].strip():
        words = words[1:]
    if not words:
        return None
    words = (words[0].strip(), *words[1:])
    if is_shell(words[0]):
        option = next((at for at, word in enumerate(words) if at and re.fullmatch(r"-[a-z]*c", word)), len(words))
        return _of_script(words[option + 1]) if option + 1 < len(words) else None
    return _of_script(words[0]) if len(words) == 1 and len(words[0].split()) > 1 else strip_prefix(words)


def _of_script(script: str) -> tuple[str, ...] | None:
    """Return the words of the launcher's line that stands for a shell script; None if the script starts no launcher.

    Raises a UserError if it starts more than the launcher.
    """
    line = launcher_line(script, (), {})
    if line is None or not line.launcher:
        return None
    if line.stands_for_script and not (line.exports or {*line.left_out} - {OWN_BACKGROUND}):
        return strip_prefix(line.words)
    raise UserError(f"a shell script starts {line.launcher}: {line.launcher} would start in each rank", fix=PASTED_LINE)


def starts_in_background(text: str) -> bool:
    """True if a shell would run a command of the text in the background, by `&`."""
    return _BACKGROUND.search(_QUOTED_OR_COMMENT.sub("", text)) is not None


def find_launcher(words: Sequence[str]) -> str:
    """Return the name of the launcher that a command would start in each rank; empty if it would start none.

    It is `a launcher` if the command starts one and more. `uv run` and the like, which start no ranks, do not count,
    nor does a program that each rank may run itself, as `tune run` without options.
    """
    try:
        line = own_line(words)
    except UserError:
        return "a launcher"
    start = launcher_at(line, 0) if line else None
    if not line or start is None:
        return ""
    row, behind = start
    has_option = not row.is_tool and "".join(line[behind : behind + 1]).startswith("-")
    if row.environment or (row.runs_itself and not has_option):
        return ""
    return row.name or " ".join(line[:behind]).rpartition("/")[2]


def launcher_line(
    text: str,
    arguments: Sequence[str],
    variables: Mapping[str, str],
    path: str = "",
    read: Callable[[str], str] = lambda _: "",
) -> LineOfScript | None:
    """Return the first command of the script that starts ranks, else the first that starts Python; None without either.

    The words have the values that the script shows.
    """
    script = _read_script(text, arguments, variables, path, read)
    return script.found and replace(script.found, left_out=tuple(dict.fromkeys(script.left_out)), other=script.other)


def python_lines(text: str, arguments: Sequence[str], path: str) -> tuple[LineOfScript, ...]:
    """Return each command of the script that starts Python, with the values that the script shows."""
    return tuple(_read_script(text, arguments, {}, path, lambda _: "").python) if _OF_SHELL.match(text) else ()


def _read_script(
    text: str, arguments: Sequence[str], variables: Mapping[str, str], path: str, read: Callable[[str], str]
) -> _Script:
    """Read the statements of a script. `path`: of the script, so that `$(dirname "$0")` is known; empty for `sh -c`."""
    text = _QUOTED_OR_COMMENT.sub(
        lambda quoted: "" if quoted[0].startswith("#") else quoted[0], _without_here_documents(text)
    )
    own_directory = posixpath.dirname(path) or "."
    if re.fullmatch(r"[\w./+-]+", own_directory):
        text = _DIRECTORY_OF.sub(lambda used: used["path"], _OWN_DIRECTORY.sub(own_directory, text))
    script = _Script({"PYTHONPATH": "", **variables}, list(arguments), read)
    for number, statement in _statements(_HERE.sub(".", text)):
        script.read_statement(number, statement)
    return script


class _Script:
    """What the statements read so far have set, and the line that they start."""

    def __init__(self, known: dict[str, str], arguments: list[str], read: Callable[[str], str]) -> None:
        self._known, self._arguments, self._read = known, arguments, read
        """Variable → its value, for variables whose value the script shows."""
        self._exported = set[str]()
        self._directory = "."
        self._depth = 0
        """Number of `if`, loop and function blocks around the current statement."""
        self.found: LineOfScript | None = None
        """The line that starts ranks, else the first that starts Python."""
        self.python: list[LineOfScript] = []
        """Each line that starts Python."""
        self.left_out: list[str] = []
        self.other = 0
        """As `LineOfScript.other`, for the line in `found`."""

    def read_statement(self, number: int, statement: str) -> None:
        """Take over an assignment, or look for a launcher in the commands of the statement."""
        self._depth += len(_BLOCK_OPENS.findall(statement)) - len(_BLOCK_ENDS.findall(statement))
        if (assigned := _ASSIGNED.fullmatch(statement)) is not None:
            if self._depth > 0 and self._known.get(assigned["name"]):  # the block may not run
                if self._arguments:  # the block may read the arguments, so neither value is certain
                    del self._known[assigned["name"]]
                return
            value = next(filter(None, assigned.group("array", "double", "word")), "")
            self._known[assigned["name"]] = assigned["single"] or _filled(value, self._known, self._arguments)
            self._exported |= {assigned["name"]} if assigned["export"] == "export" else set()
        elif re.fullmatch(r"\s*shift\s*;?\s*", statement):
            self._arguments = self._arguments[1:]
        else:
            cut = (
                statement if len(statement) <= _LONGEST_STATEMENT else statement[:_LONGEST_STATEMENT] + _COMPUTED_VALUE
            )
            filled, before = _filled(cut, self._known, self._arguments), self.found
            for words in _commands(_COMPUTED.sub(_COMPUTED_VALUE, filled)):
                self._read_command(number, words)
            for computed in _COMPUTED.finditer(filled):
                for words in _commands(computed[0].strip("$()`")):
                    line = _line_at(words, *_start(words), number)
                    if line is not None and line.launcher:
                        self._read_command(number, words)
                        self.other = self.other or number
            if self.found is not before and starts_in_background(statement):
                self.left_out.append(OWN_BACKGROUND)

    def _read_command(self, number: int, words: tuple[str, ...]) -> None:
        """Keep the command if it starts ranks or Python; else note what it means for the line that does."""
        first, at = _start(words)
        name = "".join(words[at : at + 1])
        if name == "eval" or (is_shell(name) and words[at + 1 : at + 2] == ("-c",)):
            while words[at : at + 1] == ("eval",):
                at += 1
            inner = words[at + 2 : at + 3] if words[at + 1 : at + 2] == ("-c",) else words[at:]
            for command in _commands(" ".join(inner)):
                self._read_command(number, command)
            return
        line = _line_at(words, first, at, number) or self._line_of_script(words, at, number)
        if line is not None and not line.launcher:
            self.python.append(replace(line, directory=self._directory))
        if line is not None and (self.found is None or (line.launcher and not self.found.launcher)):
            self.other = self.other or (self.found.number if self.found is not None else line.other)
            values = {name: self._known[name] for name in self._exported if name in self._known}
            unclear = [name for name, value in values.items() if _UNCLEAR.search(value)]
            self.left_out += [*(f"export {name}" for name in unclear), *line.left_out]
            if unclear and not line.launcher:
                self.other = self.other or number  # the script itself can run in the ranks
            exports = {name: value for name, value in values.items() if name not in unclear}
            directory = posixpath.normpath(posixpath.join(self._directory, line.directory))
            self.found = replace(line, exports={**exports, **line.exports}, directory=directory)
        elif name == "cd" and len(words) == at + 2 and self.found is None:
            self._directory = posixpath.join(self._directory, words[at + 1])
        elif name == "export":
            self._known |= split_variables(words[at + 1 :])[0]
            self._exported |= {word.partition("=")[0] for word in words[at + 1 :]}
        elif line is None and name in _PREPARES:
            self.left_out.append(" ".join(words[at:]))
        elif line is not None or (name and name not in _SAYS):
            self.other = self.other or number
        if any(word in _CONTROL for word in words[:first]):
            self.other = self.other or number

    def _line_of_script(self, words: Sequence[str], at: int, number: int) -> LineOfScript | None:
        """Return the launcher's line of a script that the command runs, `sh x.sh` or `./x.sh`; None if it runs no
        script.
        """
        at += at < len(words) and is_shell(words[at])
        if not "".join(words[at : at + 1]).endswith((".sh", ".bash")):
            return None
        path = posixpath.normpath(posixpath.join(self._directory, words[at]))
        line = launcher_line(self._read(path), words[at + 1 :], self._known, path)
        return line and replace(line, number=number)


def _line_at(words: Sequence[str], first: int, at: int, number: int) -> LineOfScript | None:
    """Return the line of a command that starts ranks or Python; None for any other command.

    `first`: position of the command's first variable; `at`: position of its name.
    """
    start = launcher_at(words, at)
    if start is not None and not start[0].environment:
        row, behind = start
        name = row.name or " ".join(words[at:behind])
        return LineOfScript(number, name, (*words[first:behind], *_without_unknown(words, behind, row)))
    if start is None and not (at < len(words) and is_python(words[at])):
        return None
    behind = at if start is None else start[1]
    if start is not None and words[behind : behind + 1] in (("sync",), ("pip",)):
        return None
    launcher = ""
    if start is not None:  # behind `uv run` and the like
        inner = (launcher_at(words, position) for position in range(behind, len(words)))
        launcher = next((start_inside[0].name for start_inside in inner if start_inside is not None), "")
    return LineOfScript(number, launcher, tuple(words[first:]))


def _without_here_documents(text: str) -> str:
    """Empty the lines of here-documents, so that line numbers stay right. A document without an end is left alone."""
    lines = text.split("\n")
    numbers_of: dict[str, list[int]] = {}
    for number, line in enumerate(lines):
        numbers_of.setdefault(line.lstrip("\t"), []).append(number)
    number = 0
    while number < len(lines):
        for start in _HERE_DOCUMENT.finditer(lines[number]):
            ends = numbers_of.get(start["end"], [])
            if (at := bisect_right(ends, number)) < len(ends):
                lines[number] = lines[number][: start.start()]
                lines[number + 1 : ends[at] + 1] = [""] * (ends[at] - number)
                number = ends[at]
                break
        number += 1
    return "\n".join(lines)


def _statements(text: str) -> Iterator[tuple[int, str]]:
    """Yield the number of the first line of each statement, and its text with joined lines."""
    number, at = 1, 0
    for match in list(_STATEMENT.finditer(text))[:_MOST_STATEMENTS]:
        number, at = number + text.count("\n", at, match.start()), match.start()
        yield number, match[0].replace("\\\n", " ")


def _filled(text: str, known: Mapping[str, str], arguments: Sequence[str]) -> str:
    """Put in the values of variables and arguments that are known. Unchanged if the result would be too long."""

    def value_of(used: re.Match[str]) -> str:
        """Return the value of a variable or argument; the text as it is if the value is not known."""
        name, default = used["braced"] or used["name"], used["default"]
        if name in ("@", "*"):
            return shlex.join(arguments[int(used["from"] or 1) - 1 :])
        if name.isdecimal():
            given = arguments[int(name) - 1] if 0 < int(name) <= len(arguments) else default or ""
        else:
            given = known.get(name, default)
        return used[0] if given is None else given

    filled = _USED.sub(value_of, _WORDS_OF.sub(r"\1", text))
    return filled if len(filled) <= _LONGEST_STATEMENT else text  # values in values grow without bounds


def _commands(statement: str) -> Iterator[tuple[str, ...]]:
    """Yield the words of each command in a statement, without redirections."""
    lexer = shlex.shlex(statement, posix=True, punctuation_chars=";&|()<>")
    lexer.whitespace_split, lexer.commenters = True, ""
    words, operator = list[str](), ""
    try:
        for word in lexer:
            if word.startswith("#") and not words:
                break
            if not _OPERATOR.fullmatch(word):
                words += [] if operator[:1] in ("<", ">") else [word]
                operator = ""
                continue
            operator = word[1:] if word.startswith("&>") else word
            if operator[0] in "<>":
                words = words[:-1] if words[-1:] in (["1"], ["2"]) else words
                continue
            yield tuple(words)
            words = []
    except ValueError:  # an unterminated quotation
        words.append(_COMPUTED_VALUE)
    yield tuple(words)


def _start(words: Sequence[str]) -> tuple[int, int]:
    """Return the positions of the command's variables and of its name, which may stand behind `numactl -C 0-3`."""
    first = next((at for at, word in enumerate(words) if word not in _KEYWORDS), len(words))
    at = len(words) - len(split_variables(words[first:])[1])
    behind = at + prefix_length(words[at:])
    return first, behind if launcher_at(words, behind) is not None else at


def _without_unknown(words: Sequence[str], at: int, row: LauncherRow) -> tuple[str, ...]:
    """Return the words from the first option on, without those options of the launcher whose value is not known."""
    kept = list[str]()
    while at < len(words) and words[at].startswith("-"):
        name, equals, _ = words[at].partition("=")
        has_value = row.options.get(name.lstrip("-").replace("-", "_"), ("", False))[1] and not equals
        option = words[at : at + 1 + has_value]
        if not any("$" in word or _COMPUTED_VALUE in word for word in option):
            kept += option
        at += len(option)
    return (*kept, *words[at:])
