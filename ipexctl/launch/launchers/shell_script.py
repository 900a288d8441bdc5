"""Reads a shell script as text, and finds the launcher's line in it. Pure; nothing of the script is executed.

Variables count if the script sets them to plain text, an array or a default, and arguments if the call has them. An
option of the launcher with any other value is left out, because ipexctl has a default for it. What the printed line
has is quoted, so a shell executes nothing of the script when the line is pasted.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from ipexctl.errors import UserError
from ipexctl.launch.launchers.launcher_options import LauncherRow
from ipexctl.launch.launchers.line import PASTED_LINE, launcher_at, launcher_in, split_variables
from ipexctl.text import join_words, printable

_OF_SHELL: Final = re.compile(r"(?!\x7fELF|#!)|#!.*\b(?:sh|bash|dash|ksh|zsh)\b")
_HERE_DOCUMENT: Final = re.compile(
    r"(?<!<)<<-?[ \t]*(?P<quote>['\"]?)(?P<end>\w+)(?P=quote)(?=[^\n]*\n)[\s\S]*?^\t*(?P=end)$", re.MULTILINE
)
"""A here-document, such as a script's usage text. No launcher is searched in it."""
_STATEMENT: Final = re.compile(r"(?:[^\n\\'\"(]|\\[\s\S]|'[^']*'|\"(?:\\[\s\S]|[^\"\\])*\"|(?<=[\w]=)\([^()]*\)|\()+")
"""A line, with those that a backslash, a quotation or an array joins to it."""
_ASSIGNED: Final = re.compile(
    r"\s*(?:(?:export|readonly|local|declare)\s+)?(?P<name>[A-Za-z_]\w*)="
    r"(?:\((?P<array>[^()]*)\)|'(?P<single>[^']*)'|\"(?P<double>[^\"]*)\"|(?P<word>(?:\$\{[^{}\n]*\}|[^\s;&|()<>'\"])*))\s*(?:;\s*)?(?:#.*)?"
)
_USED: Final = re.compile(
    r"\$(?:\{(?P<braced>\w+|[@*])(?:\[[@*]\])?(?::?-(?P<default>[^${}]*))?\}|(?P<name>[A-Za-z_]\w*|[0-9@*]))"
)
_WORDS_OF: Final = re.compile(r"\"(\$(?:[@*]|\{(?:[@*]|\w+\[[@*]\])\}))\"")
"""Quoted arguments and arrays, which stay several words."""
_KEYWORDS: Final = frozenset(("if", "then", "else", "elif", "do", "exec", "time", "nohup", "!", "{", "env"))
_OPERATOR: Final = re.compile(r"[;&|()<>]+")
_COMPUTED: Final = re.compile(r"\$\(\([^()]*\)\)|\$\([^()]*\)|`[^`]*`")
_COMPUTED_VALUE: Final = "\0"
_SPECIAL: Final = re.compile(r"[\"$`\\!]")
_MOST_STATEMENTS: Final = 2000
_LONGEST: Final = 4000


class LineOfScript(NamedTuple):
    number: int
    launcher: str
    words: tuple[str, ...]

    @property
    def unknown(self) -> tuple[str, ...]:
        """Names of the variables whose value the script does not show."""
        return tuple(dict.fromkeys(_name(found) for word in self.words for found in _USED.finditer(word)))

    @property
    def is_computed(self) -> bool:
        """True if only a shell can compute one of the words."""
        return any(_COMPUTED_VALUE in word for word in self.words)

    def __str__(self) -> str:
        """The line to paste: a shell puts in the unknown variables, and executes nothing else."""
        return " ".join(map(_in_shell, self.words))


def _name(used: re.Match[str]) -> str:
    return used["braced"] or used["name"]


def _in_shell(word: str) -> str:
    shown = printable(_USED.sub(lambda used: f"${{{_name(used)}}}", word))
    return (
        f'"{shown}"'
        if _USED.search(word) and not _SPECIAL.search(_USED.sub("", word))
        else shlex.quote(printable(word))
    )


def check_file(path: str, text: str, arguments: Sequence[str], variables: Mapping[str, str]) -> None:
    """Refuse a shell script that starts a launcher on a line of its own. Raises a UserError."""
    if not _OF_SHELL.match(text):
        return
    text = _HERE_DOCUMENT.sub(lambda found: "\n" * found[0].count("\n"), text)
    found = launcher_line(text, arguments, variables)
    if found is None:
        if launcher := launcher_in(text):
            raise UserError(f"{path} starts {launcher}: {launcher} would start in each rank", fix=PASTED_LINE)
        return
    unknown = f"set {join_words(found.unknown)} in this shell, and " if found.unknown else ""
    fix = f"{unknown}paste its line: ipexctl run {found}"
    if found.is_computed:
        place = f"line {found.number} of {path}"
        fix = f"replace each $(…) and `…` in {place} with its value, and paste the line behind ipexctl run"
    raise UserError(f"{path} starts {found.launcher} (line {found.number}), which would start in each rank", fix=fix)


def launcher_line(text: str, arguments: Sequence[str], variables: Mapping[str, str]) -> LineOfScript | None:
    """The first command of the script that starts ranks, with the values that the script shows."""
    known, left = dict(variables), list(arguments)
    for number, statement in _statements(text):
        if (assigned := _ASSIGNED.fullmatch(statement)) is not None:
            value = next(filter(None, assigned.group("array", "double", "word")), "")
            known[assigned["name"]] = assigned["single"] or _filled(value, known, left)
        elif re.fullmatch(r"\s*shift\s*;?\s*", statement):
            left = left[1:]
        elif len(statement) <= _LONGEST:
            filled = _COMPUTED.sub(_COMPUTED_VALUE, _filled(statement, known, left))
            for words in _commands(filled):
                first, at = _start(words)
                if (start := launcher_at(words, at)) is not None and not start[0].environment:
                    row, behind = start
                    kept = _without_unknown(words, behind, row)
                    return LineOfScript(number, row.name, (*words[first:behind], *kept))
    return None


def _statements(text: str) -> Iterator[tuple[int, str]]:
    number, at = 1, 0
    for found in list(_STATEMENT.finditer(text))[:_MOST_STATEMENTS]:
        number, at = number + text.count("\n", at, found.start()), found.start()
        if not found[0].lstrip().startswith("#"):
            yield number, found[0].replace("\\\n", " ")


def _filled(text: str, known: Mapping[str, str], arguments: Sequence[str]) -> str:
    def value_of(used: re.Match[str]) -> str:
        name, default = used["braced"] or used["name"], used["default"]
        if name in ("@", "*"):
            return shlex.join(arguments)
        if name.isdecimal():
            given = arguments[int(name) - 1] if 0 < int(name) <= len(arguments) else default
        else:
            given = known.get(name, default)
        return used[0] if given is None else given

    return _USED.sub(value_of, _WORDS_OF.sub(r"\1", text))


def _commands(statement: str) -> Iterator[tuple[str, ...]]:
    lexer = shlex.shlex(statement, posix=True, punctuation_chars=";&|()<>")
    lexer.whitespace_split, lexer.commenters = True, ""
    words = list[str]()
    try:
        for word in lexer:
            if word.startswith("#") and not words:
                break
            if not _OPERATOR.fullmatch(word):
                words.append(word)
                continue
            is_redirected = word[0] in "<>" and words[-1:] in (["1"], ["2"])
            yield tuple(words[:-1] if is_redirected else words)
            words = []
    except ValueError:  # an unterminated quotation
        return
    yield tuple(words)


def _start(words: Sequence[str]) -> tuple[int, int]:
    """The positions of the command's variables and of its name."""
    first = next((at for at, word in enumerate(words) if word not in _KEYWORDS), len(words))
    return first, len(words) - len(split_variables(words[first:])[1])


def _without_unknown(words: Sequence[str], at: int, row: LauncherRow) -> tuple[str, ...]:
    """The words from the first option on, without the launcher's options of unknown value."""
    kept = list[str]()
    while at < len(words) and words[at].startswith("-"):
        name, equals, _ = words[at].partition("=")
        has_value = row.options.get(name.lstrip("-").replace("-", "_"), ("", False))[1] and not equals
        option = words[at : at + 1 + has_value]
        if not any("$" in word or _COMPUTED_VALUE in word for word in option):
            kept += option
        at += len(option)
    return (*kept, *words[at:])
