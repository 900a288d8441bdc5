"""Finds and reads the YAML files of a playbook, and converts their nodes to Python values and templates."""

from __future__ import annotations

import errno
import re
import stat
from importlib import resources
from pathlib import Path
from typing import Final

from ipexctl.errors import UserError
from ipexctl.hosts.names import quoted
from ipexctl.hosts.yaml_tree import Node, YamlTree, is_null, kind
from ipexctl.playbook.positions import PlaybookError, Position, Templated, Value, did_you_mean

MAX_BYTES: Final = 8_000_000
_CHECKOUT: Final = Path(__file__).parents[2] / "playbooks"
"""The playbooks of a source checkout; an installed package has them inside."""


def shipped() -> dict[str, Path]:
    """The playbooks that come with ipexctl, by name."""
    packaged = Path(str(resources.files("ipexctl"))) / "playbooks"
    directory = packaged if packaged.is_dir() else _CHECKOUT
    return {path.stem: path for path in sorted(directory.glob("*.yml"))}


def find_playbook(name: str, cwd: Path) -> tuple[Path, str]:
    """The path of a file or of a shipped playbook, and its name in messages."""
    path = cwd / Path(name).expanduser()
    if path.is_file():
        return path, name
    known = shipped()
    if name in known:
        return known[name], f"{name}.yml"
    if path.is_dir():
        raise UserError(f"{quoted(name)} is a directory", fix="name the playbook in it")
    files = [str(Path(name).with_name(file.name)) for file in sorted(path.parent.glob("*.y*ml"))]
    fix = did_you_mean(name, [*files, *known], f"a file, or one that comes with ipexctl: {', '.join(known)}")
    raise UserError(f"there is no playbook {quoted(name)}", fix=fix)


def read_file(path: Path, shown: str | None = None, *, at: Position | None = None) -> PlaybookFile:
    """Read a YAML file; `at` is the position in another file that names it."""
    shown = shown or (str(path) if at is None else _beside(path, at))
    try:
        if (path.stat().st_size if at is None else size_of(path)) > MAX_BYTES:
            raise UserError(f"{shown} has more than {MAX_BYTES:,} bytes: that is no playbook")
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = (error.strerror or str(error)) if isinstance(error, OSError) else "it is no text"
        if at is None:
            raise UserError(f"{shown}: {reason}") from None
        raise at.error(
            f"{quoted(shown)} can't be read: {reason}", fix="its path is from the directory of this file"
        ) from None
    return PlaybookFile(text, shown, path.parent)


def size_of(path: Path) -> int:
    """Size of a file that a playbook names. Raises OSError for a device or a pipe: reading one may never end."""
    info = path.stat()
    if not (stat.S_ISREG(info.st_mode) or stat.S_ISDIR(info.st_mode)):
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    return info.st_size


def _beside(path: Path, at: Position) -> str:
    """The path as written relative to the file that names it."""
    parent = Path(at.source.path).parent
    try:
        return str(parent / path.relative_to(at.source.base))
    except ValueError:
        return str(path)


_TAG: Final = "tag:yaml.org,2002:"
JINJA: Final = re.compile(r"\{\{|\{%|\{#")
_TRUE: Final = ("yes", "true", "on")
_MAX_DIGITS: Final = 300


class PlaybookFile:
    """One YAML file: its tree, its nodes as values, and errors with line and column."""

    def __init__(self, text: str, path: str, base: Path) -> None:
        self.path = path
        self.base = base
        self.tree = YamlTree(text, path, base)

    def position(self, node: Node) -> Position:
        mark = node.start_mark
        return Position(self.tree.source, mark.line + 1, mark.column + 1)

    def error(self, node: Node, what: str, *, fix: str = "") -> PlaybookError:
        return self.position(node).error(what, fix=fix)

    def value(self, node: Node, depth: int = 0) -> Value:
        if node.tag.startswith("!"):
            return self._tagged_value(node)
        if node.id == "mapping":
            return {entry.key: self.value(entry.value, depth + 1) for entry in self.tree.entries(node, "this", depth)}
        if node.id == "sequence":
            return [self.value(item, depth + 1) for item in self.tree.items(node, depth)]
        return self.scalar(node)

    def scalar(self, node: Node) -> Value:
        text = str(node.value)
        if is_null(node):
            return None
        name = node.tag.removeprefix(_TAG)
        if name == "bool":
            return text.lower() in _TRUE
        if name in ("int", "float") and ":" not in text:  # YAML 1.1 reads 22:22 as a base-60 number
            return self._number(node, name, text.replace("_", ""))
        return self.text_value(node)

    def text_value(self, node: Node) -> str | Templated:
        """A scalar as written, without YAML's conversions."""
        text = str(node.value)
        return self.template(node) if JINJA.search(text) else text

    def template(self, node: Node) -> Templated:
        return Templated(str(node.value), self.position(node), int(getattr(node, "style", None) in ("|", ">")))

    def _number(self, node: Node, name: str, text: str) -> int | float | str:
        if len(text) > _MAX_DIGITS:
            raise self.error(node, f"a number of {len(text)} digits", fix="in quotes it is a text")
        try:
            if name == "float":
                return float(re.sub(r"(?i)^([-+]?)\.(inf|nan)$", r"\1\2", text))
            return _parse_integer(text)
        except ValueError:
            return str(node.value)

    def _tagged_value(self, node: Node) -> Value:
        if node.tag == "!unsafe" and node.id == "scalar":
            return str(node.value)
        fix = "a value from the environment: \"{{ lookup('env', 'NAME') }}\"" if node.tag == "!vault" else ""
        raise self.error(node, f"{quoted(node.tag)} isn't understood here, at {kind(node)[:60]}", fix=fix)


def _parse_integer(text: str) -> int:
    sign, digits = (-1, text[1:]) if text.startswith("-") else (1, text.lstrip("+"))
    for prefix, base in (("0x", 16), ("0b", 2), ("0o", 8)):
        if digits.startswith(prefix):
            return sign * int(digits[2:], base)
    return sign * int(digits, 8 if len(digits) > 1 and digits.startswith("0") else 10)
