"""What to type next: text whose commands are data. Each command is quoted here, gets the options of the call that it
follows in `option_declaration.py: CallOptions`, and stays on one line in `ui/message_output.py: wrap_fix`.

Backticks enclose a command and vanish; two in a row are a backtick. With fields, the text is a template: `{field}` is
one word of a command whatever its value contains, and `{*field}` any number of words; `{*argv}` are the words of a
script, whose options are not those of ipexctl. A field that is a `Fix` or a `FixCommand` keeps its commands:

    Fix("list them: `ipexctl envs`; add it: `{install} --with {package}`", install=install, package="numpy<2")

An f-string without fields is enough for values that can't be anything, such as the id of a run.
"""

from __future__ import annotations

import shlex
from string import Formatter
from typing import Any, Callable, Iterable, Iterator, Mapping, NamedTuple, Union

PROGRAM = "ipexctl "
_FORMATTER = Formatter()


class FixCommand(NamedTuple):
    start: str
    """`ipexctl `, also after `cd DIR && `; a whole line of sh; or empty, for options to add to the call."""
    options: tuple[str, ...] = ()
    """The verb and its options, and what no script follows."""
    argv: tuple[str, ...] = ()
    """A script or command, with its arguments."""

    @property
    def verb(self) -> str:
        """Empty if it is not a command of ipexctl."""
        return "".join(self.options[:1]) if self.start.endswith(PROGRAM) else ""

    def __str__(self) -> str:
        return self.start + " ".join(map(_quote, (*self.options, *self.argv)))

    def with_words(self, *words: str) -> FixCommand:
        """Return the command with these words at its end."""
        if self.argv:
            return self._replace(argv=(*self.argv, *words))
        return self._replace(options=(*self.options, *words))


Part = Union[str, FixCommand]


class Fix(str):
    parts: tuple[Part, ...]

    def __new__(cls, text: str, /, **fields: Any) -> Fix:
        return cls.filled(text, fields or None)

    @classmethod
    def filled(cls, text: str, fields: Mapping[str, Any] | None) -> Fix:
        """Make a Fix of a text with backticks. `fields` fill its braces; if they are None, braces are text."""
        pieces = enumerate(text.split("`"))
        return cls.of(part for at, piece in pieces for part in (_command if at % 2 else _prose)(piece, fields))

    @classmethod
    def of(cls, parts: Iterable[Part]) -> Fix:
        """Make a Fix of texts and commands. Empty ones are left out, neighbouring texts joined."""
        merged: list[Part] = []
        for part in filter(str, parts):
            if merged and isinstance(part, str) and isinstance(merged[-1], str):
                merged[-1] += part
            else:
                merged.append(part)
        fix = str.__new__(cls, "".join(map(str, merged)))
        fix.parts = tuple(merged)
        return fix

    def __reduce__(self) -> Any:
        return Fix.of, (self.parts,)

    def __add__(self, other: str) -> Fix:
        return Fix.of((*self.parts, *parts_of(other)))

    def __radd__(self, other: str) -> Fix:
        return Fix.of((*parts_of(other), *self.parts))

    @property
    def commands(self) -> tuple[FixCommand, ...]:
        """The commands, in their order."""
        return tuple(part for part in self.parts if isinstance(part, FixCommand))

    def with_commands(self, change: Callable[[FixCommand], FixCommand | Fix]) -> Fix:
        """Return the fix with what `change` returns in place of each command."""
        changed = (change(part) if isinstance(part, FixCommand) else part for part in self.parts)
        return Fix.of(part for replacement in changed for part in parts_of(replacement))


def fix_to_json(fix: str) -> Any:
    """Return a fix as JSON carries it: a list of texts and commands, or plain text as it is."""
    return [part if isinstance(part, str) else list(part) for part in fix.parts] if isinstance(fix, Fix) else fix


def fix_from_json(value: object) -> str:
    """Return what an agent sent as a fix: text, or the parts of a Fix."""
    if not isinstance(value, list):
        return str(value or "")
    return Fix.of(
        FixCommand(str(part[0]), tuple(map(str, part[1])), tuple(map(str, part[2]))) if _is_command(part) else str(part)
        for part in value
    )


def _is_command(part: object) -> bool:
    return isinstance(part, list) and len(part) == 3 and isinstance(part[1], list) and isinstance(part[2], list)


def parts_of(text: str | FixCommand) -> tuple[Part, ...]:
    """Return the texts and commands of a Fix; any other text or command is its own only part."""
    return text.parts if isinstance(text, Fix) else (text,)


def join_fixes(fixes: Iterable[str], separator: str = "; ") -> Fix:
    """Join fixes, whose commands stay commands. Empty ones are left out; without any, the result is empty."""
    parts: list[Part] = []
    for fix in filter(None, fixes):
        parts += [separator, *parts_of(fix)] if parts else parts_of(fix)
    return Fix.of(parts)


def clauses(fix: str) -> tuple[Fix, ...]:
    """Return the parts of a fix between the semicolons of its text. Semicolons in commands do not count."""
    clauses_of_parts: list[list[Part]] = [[]]
    for part in parts_of(fix):
        first, *others = [part] if isinstance(part, FixCommand) else part.split("; ")
        clauses_of_parts[-1].append(first)
        clauses_of_parts += [[other] for other in others]
    return tuple(map(Fix.of, clauses_of_parts))


def ipexctl_command(*options: str, argv: Iterable[str] = ()) -> FixCommand:
    """Return a command of ipexctl. `options`: the verb first; `argv`: a script with its arguments."""
    return FixCommand(PROGRAM, options, tuple(argv))


def read_command(line: str) -> FixCommand:
    """Return the command of a line, as a plan has it: for `run`, options without values before the script. A line that
    sh could not split is one text."""
    try:
        _, verb, *arguments = shlex.split(line)
    except ValueError:  # a host's plan may have anything
        return FixCommand(line)
    is_option = [word.startswith("-") for word in arguments]
    own = is_option.index(False) if verb == "run" and False in is_option else len(arguments)
    return ipexctl_command(verb, *arguments[:own], argv=arguments[own:])


def _prose(text: str, fields: Mapping[str, Any] | None) -> Iterator[Part]:
    if fields is None:
        yield text
        return
    for literal, name, spec, conversion in _FORMATTER.parse(text):
        if literal:
            yield literal
        if name is not None:
            value, _ = _FORMATTER.get_field(name, (), fields)
            if isinstance(value, (Fix, FixCommand)):
                yield from parts_of(value)
            else:
                yield format(_FORMATTER.convert_field(value, conversion), spec or "")


def _command(text: str, fields: Mapping[str, Any] | None) -> Iterator[Part]:
    start, _, others = text.partition(" ")
    command = fields.get(start[1:-1]) if fields is not None and start.startswith("{") else None
    if not isinstance(command, FixCommand):
        start, program, others = text.rpartition(PROGRAM)
        if not program and not text.startswith("-"):
            yield FixCommand(_in_sh(text, fields)) if text else "`"
            return
        command = FixCommand(_in_sh(start, fields) + program)
    options, argv = [*command.options], [*command.argv]
    try:
        words = shlex.split(others)
    except ValueError:  # a value in an f-string has a quote
        words = others.split()
    for word in words:
        if fields is None:
            filled = [word]
        else:
            filled = fields[word[2:-1]] if word.startswith("{*") else [word.format_map(fields)]
        (argv if argv or word in ("--", "{*argv}") else options).extend(filled)
    yield command._replace(options=tuple(options), argv=tuple(argv))


def _in_sh(text: str, fields: Mapping[str, Any] | None) -> str:
    return text if fields is None else text.format_map(_Quoted(fields))


class ShellWords(str):
    """In place of a word: text of a script's own line, which is printed as it is."""


def _quote(word: str) -> str:
    """Return a word as sh reads it; `~` stays that of the account that types it."""
    if isinstance(word, ShellWords):
        return word
    return f"~/{shlex.quote(word[2:])}" if word.startswith("~/") else shlex.quote(word)


class _Quoted:
    def __init__(self, fields: Mapping[str, Any]) -> None:
        self._fields = fields

    def __getitem__(self, name: str) -> object:
        value = self._fields[name]
        return shlex.quote(value) if isinstance(value, str) else value
