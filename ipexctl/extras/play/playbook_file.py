"""Finds and reads a playbook's YAML files; values, templates and errors keep their position. A name without a path
means a file in the current directory or, if there is none, a playbook that ships with ipexctl.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from ipexctl.errors import FileError, UserError
from ipexctl.file_reader import PLAYBOOK, decode_text, read_regular, read_typed
from ipexctl.hosts.host import did_you_mean, quote
from ipexctl.hosts.source import SourceFile
from ipexctl.hosts.yaml_tree import YamlNode, YamlTree, is_null, kind
from ipexctl.text import expand_tilde

_CHECKOUT: Final = Path(__file__).parents[3] / "playbooks"
"""Playbooks in a source checkout; an installed package contains them."""


@dataclass(frozen=True, slots=True)
class Position:
    """Line and column, counted from 1."""

    source: SourceFile
    line: int
    column: int

    def error(self, what: str, *, fix: str = "") -> FileError:
        """`FILE:LINE:COLUMN: what`, the line, and a caret under the column."""
        error = self.source.error(self.line, self.column, what, fix=fix)
        error.message = f"{self}: {what}"
        return error

    def __str__(self) -> str:
        return f"{self.source.path}:{self.line}:{self.column}"


@dataclass(frozen=True, slots=True)
class TemplateText:
    text: str
    position: Position
    body: int = 0
    """Lines from `position` to the first line of the text: 1 for `|` and `>`."""
    kind: Literal["text", "expr", "file"] = "text"
    """A text that is a single `{{ … }}` yields that value; an expression always yields a value, a file always text."""

    def spot(self, line: int | None, word: str | None) -> Position:
        source, first = self.position.source, self.position.line
        number = min(first + self.body + max((line or 1) - 1, 0), max(len(source.lines), 1))
        column = self.position.column if number == first else 1
        if word and source.lines:
            for candidate in range(number, min(number + self.text.count("\n") + 1, len(source.lines)) + 1):
                start = column - 1 if candidate == first else 0
                index = source.lines[candidate - 1].find(word, start)
                if index >= 0:
                    return Position(source, candidate, index + 1)
        if number != first:
            text = source.lines[number - 1]
            column = len(text) - len(text.lstrip()) + 1
        return Position(source, number, column)


Value = Any


def templates_in(value: Value) -> list[TemplateText]:
    if isinstance(value, TemplateText):
        return [value]
    if isinstance(value, dict):
        return [template for item in value.values() for template in templates_in(item)]
    if isinstance(value, list | tuple):
        return [template for item in value for template in templates_in(item)]
    return []


def find_shipped_playbooks() -> dict[str, Path]:
    packaged = Path(__file__).parents[2] / "playbooks"
    directory = packaged if packaged.is_dir() else _CHECKOUT
    return {path.stem: path for path in sorted(directory.glob("*.yml"))}


def find_playbook(name: str, cwd: Path) -> tuple[Path, str]:
    path = cwd / expand_tilde(name)
    try:
        is_file = path.is_file()
    except PermissionError as error:
        raise UserError(f"{quote(name)}: {error.strerror}", fix="name a playbook that you can read") from None
    if is_file:
        return path, name
    known = find_shipped_playbooks()
    if name in known:
        return known[name], f"{name}.yml"
    if path.is_dir():
        raise UserError(f"{quote(name)} is a directory", fix="name the playbook in it")
    files = [str(Path(name).with_name(file.name)) for file in sorted(path.parent.glob("*.y*ml"))]
    fix = did_you_mean(name, [*files, *known], f"name a file, or one that comes with ipexctl: {', '.join(known)}")
    raise UserError(f"there is no playbook {quote(name)}", fix=fix)


def read_file(
    path: Path, shown: str | None = None, *, at: Position | None = None, errors: list[FileError] | None = None
) -> PlaybookFile:
    if shown is None:
        is_beside = at is not None and path.is_relative_to(at.source.base)
        shown = str(Path(at.source.path).parent / path.relative_to(at.source.base)) if at and is_beside else str(path)
    try:
        text = decode_text((read_typed if at is None else read_regular)(path, PLAYBOOK))
    except (OSError, UnicodeDecodeError) as error:
        reason = (error.strerror or str(error)) if isinstance(error, OSError) else "it is not a text file"
        if at is None:
            raise UserError(f"{shown}: {reason}") from None
        raise at.error(
            f"{quote(shown)} can't be read: {reason}", fix="paths are relative to the directory of this file"
        ) from None
    return PlaybookFile(text, shown, path.parent, errors)


_TAG: Final = "tag:yaml.org,2002:"
JINJA: Final = re.compile(r"\{\{|\{%|\{#")
_MAX_DIGITS: Final = 300


class PlaybookFile(YamlTree):
    def __init__(self, text: str, path: str, base: Path, errors: list[FileError] | None = None) -> None:
        self.errors = [] if errors is None else errors
        """Shared by all files of one playbook."""
        self.size = len(text)
        super().__init__(text, path, base)

    def position(self, node: YamlNode) -> Position:
        mark = node.start_mark
        return Position(self.source, mark.line + 1, mark.column + 1)

    def error_at(self, line: int, column: int, what: str, *, fix: str = "") -> FileError:
        return Position(self.source, line, column).error(what, fix=fix)

    def report(self, node: YamlNode, what: str, *, fix: str = "") -> None:
        self.errors.append(self.error(node, what, fix=fix))

    @contextmanager
    def reporting(self) -> Iterator[None]:
        try:
            yield
        except FileError as error:
            self.errors.append(error)

    def listed(self, node: YamlNode) -> list[YamlNode]:
        return self.items(node) if node.id == "sequence" else [node]

    def value(self, node: YamlNode, depth: int = 0) -> Value:
        if node.tag == "!unsafe" and node.id == "scalar":
            return str(node.value)
        if node.tag.startswith("!"):
            fix = "use a value from the environment: \"{{ lookup('env', 'NAME') }}\"" if node.tag == "!vault" else ""
            raise self.error(node, f"{quote(node.tag)} isn't understood here, at {kind(node)[:60]}", fix=fix)
        if node.id == "mapping":
            return {entry.key: self.value(entry.value, depth + 1) for entry in self.entries(node, "this", depth)}
        if node.id == "sequence":
            return [self.value(item, depth + 1) for item in self.items(node, depth)]
        return self.scalar(node)

    def scalar(self, node: YamlNode) -> Value:
        text = str(node.value)
        if is_null(node):
            return None
        name = node.tag.removeprefix(_TAG)
        if name not in ("bool", "int", "float") or ":" in text:  # YAML 1.1 reads 22:22 as a base-60 number
            return self.text_value(node)
        if len(text) > _MAX_DIGITS:
            raise self.error(node, f"a number of {len(text)} digits is too long", fix="write it in quotes")
        from yaml.constructor import SafeConstructor

        try:
            value: bool | int | float = getattr(SafeConstructor(), f"construct_yaml_{name}")(node)
        except (ValueError, KeyError, IndexError):  # `!!int ""`: PyYAML looks up words and first characters
            return text
        return value

    def text_value(self, node: YamlNode) -> str | TemplateText:
        """A scalar as written, without YAML's conversions."""
        text = str(node.value)
        return self.template(node) if JINJA.search(text) else text

    def template(self, node: YamlNode) -> TemplateText:
        return TemplateText(str(node.value), self.position(node), int(getattr(node, "style", None) in ("|", ">")))
