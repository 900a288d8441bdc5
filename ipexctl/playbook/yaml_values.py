"""YAML nodes as Python's own values: numbers and truths by YAML's rules, texts with Jinja in them as templates."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from ipexctl.hosts.names import quoted
from ipexctl.hosts.yaml_tree import YamlTree, is_null, kind
from ipexctl.playbook.positions import Place, Templated

if TYPE_CHECKING:
    from pathlib import Path

    from ipexctl.hosts.yaml_tree import Node
    from ipexctl.playbook.positions import PlaybookError, Value

_TAG: Final = "tag:yaml.org,2002:"
JINJA: Final = re.compile(r"\{\{|\{%|\{#")
_TRUE: Final = ("yes", "true", "on")
_LONGEST_NUMBER: Final = 300


class PlaybookFile:
    """One file: its tree, and its nodes as values. Errors know the column, too."""

    def __init__(self, text: str, path: str, base: Path) -> None:
        self.path = path
        self.base = base
        self.tree = YamlTree(text, path, base)

    def place(self, node: Node) -> Place:
        mark = node.start_mark
        return Place(self.tree.source, mark.line + 1, mark.column + 1)

    def error(self, node: Node, what: str, *, fix: str = "") -> PlaybookError:
        return self.place(node).error(what, fix=fix)

    def value(self, node: Node, depth: int = 0) -> Value:
        if node.tag.startswith("!"):
            return self._tagged(node)
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
        if name in ("int", "float") and ":" not in text:  # 22:22 is a number in base 60 to YAML 1.1, and to nobody else
            return self._number(node, name, text.replace("_", ""))
        return self.text_value(node)

    def text_value(self, node: Node) -> str | Templated:
        """A scalar as it is written, whatever YAML would take it for."""
        text = str(node.value)
        return self.template(node) if JINJA.search(text) else text

    def template(self, node: Node) -> Templated:
        return Templated(str(node.value), self.place(node), int(getattr(node, "style", None) in ("|", ">")))

    def _number(self, node: Node, name: str, text: str) -> int | float | str:
        if len(text) > _LONGEST_NUMBER:
            raise self.error(node, f"a number of {len(text)} digits", fix="in quotes it is a text")
        try:
            if name == "float":
                return float(re.sub(r"(?i)^([-+]?)\.(inf|nan)$", r"\1\2", text))
            return _whole(text)
        except ValueError:
            return str(node.value)

    def _tagged(self, node: Node) -> Value:
        if node.tag == "!unsafe" and node.id == "scalar":
            return str(node.value)
        fix = "a value from the environment: \"{{ lookup('env', 'NAME') }}\"" if node.tag == "!vault" else ""
        raise self.error(node, f"{quoted(node.tag)} isn't understood here, at {kind(node)[:60]}", fix=fix)


def _whole(text: str) -> int:
    sign, digits = (-1, text[1:]) if text.startswith("-") else (1, text.lstrip("+"))
    for prefix, base in (("0x", 16), ("0b", 2), ("0o", 8)):
        if digits.startswith(prefix):
            return sign * int(digits[2:], base)
    return sign * int(digits, 8 if len(digits) > 1 and digits.startswith("0") else 10)
