"""A YAML file as nodes that know their place, read without building any object it asks for.

What the keys mean lives in `inventory_yaml`.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, cast

from ipexctl.hosts.names import describe, quoted
from ipexctl.hosts.source import Source
from ipexctl.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ipexctl.errors import FileError

MAX_DEPTH: Final = 100
# What aliases may make of a file: so many times its own size, and some for a small one.
_GROWTH: Final = 10
_FREE_NODES: Final = 100_000
_CHARACTERS_A_NODE: Final = 8

# What YAML 1.1 itself takes for the end of a line, so that its line numbers are ours.
_LINE_END = re.compile("\r\n|[\r\n\x85\u2028\u2029]")
_REFUSED = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_NULL: Final = "tag:yaml.org,2002:null"
_MERGE: Final = "tag:yaml.org,2002:merge"


class Node(Protocol):
    """What is used of a yaml node, so that yaml itself is imported only when a file needs it."""

    id: str
    tag: str
    value: Any
    start_mark: Any


class Entry(NamedTuple):
    key: str
    key_node: Node
    value: Node


class YamlTree:
    """One YAML document. Aliases are followed, but only so far: a file can't make us walk forever."""

    def __init__(self, text: str, path: str | Path, base: Path | None = None, found: str = "") -> None:
        text = text.removeprefix("\ufeff")
        self.source = Source(str(path), Path(path).parent if base is None else base, _LINE_END.split(text), found)
        self._walked = 0
        self._most = _FREE_NODES
        refused = _REFUSED.search(text)
        if refused is not None:
            before = _LINE_END.split(text[: refused.start()])
            raise self.source.error(len(before), len(before[-1]) + 1, f"{describe(refused[0])} can't stand in YAML")
        self.root = self._compose(text)

    def error(self, node: Node, what: str, *, fix: str = "") -> FileError:
        mark = node.start_mark
        return self.source.error(mark.line + 1, mark.column + 1, what, fix=fix)

    def entries(self, node: Node, what: str, depth: int = 0) -> list[Entry]:
        """A mapping's entries in their order, `<<` merged in; empty for nothing at all."""
        if is_null(node):
            return []
        if node.id != "mapping":
            raise self.error(node, f"{what} must be a mapping of `key: value` lines, not {kind(node)}")
        own: dict[str, Entry] = {}
        merged: dict[str, Entry] = {}
        for key_node, value in self._step(node, depth):
            if key_node.tag == _MERGE:
                for entry in self._merged(value, what, depth + 1):
                    merged.setdefault(entry.key, entry)
                continue
            if key_node.id != "scalar":
                raise self.error(key_node, f"a key must be one plain word, not {kind(key_node)}")
            if key_node.value in own:
                raise self.error(
                    key_node, f"{quoted(key_node.value)} is there twice", fix="put both together under one"
                )
            own[key_node.value] = Entry(key_node.value, key_node, value)
        return list({**merged, **own}.values())

    def items(self, node: Node, depth: int = 0) -> list[Node]:
        """A list's own nodes."""
        return list(self._step(node, depth))

    def text(self, node: Node) -> str:
        """A value as text: a scalar as it is written, anything larger as JSON."""
        if is_null(node):
            return ""
        if node.id == "scalar":
            return str(node.value)
        return json.dumps(self._plain(node, 0), ensure_ascii=False)

    def _merged(self, node: Node, what: str, depth: int) -> Iterator[Entry]:
        if node.id == "sequence":
            for item in self._step(node, depth):
                yield from self.entries(item, what, depth)
        else:
            yield from self.entries(node, what, depth)

    def _plain(self, node: Node, depth: int) -> Any:
        if node.id == "mapping":
            return {entry.key: self._plain(entry.value, depth + 1) for entry in self.entries(node, "this", depth)}
        if node.id == "sequence":
            return [self._plain(item, depth + 1) for item in self._step(node, depth)]
        self._walked += len(node.value) // _CHARACTERS_A_NODE
        self._refuse_endless(node)
        return None if is_null(node) else str(node.value)

    def _step(self, node: Node, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise self.error(node, f"nested more than {MAX_DEPTH} deep, or inside itself by an alias")
        self._walked += 1 + len(node.value)
        self._refuse_endless(node)
        return node.value

    def _refuse_endless(self, node: Node) -> None:
        if self._walked > self._most:
            raise self.error(node, f"the aliases of this file come to more than {self._most:,} values")

    def _compose(self, text: str) -> Node | None:
        import yaml

        loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        try:
            self._check_depth(yaml, text, loader)
            root: Any = yaml.compose(text, Loader=loader)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            line, column = (mark.line + 1, mark.column + 1) if mark is not None else (1, 1)
            what = printable(error.problem or error.context or "can't be read")
            at_tab = "\t" in self.source.lines[min(line, len(self.source.lines)) - 1][: column + 1]
            raise self.source.error(line, column, f"YAML: {what}", fix=_yaml_fix(what, at_tab)) from None
        except yaml.YAMLError as error:
            raise self.source.error(1, 1, f"YAML: {printable(str(error))}") from None
        return cast("Node | None", root)

    def _check_depth(self, yaml: Any, text: str, loader: Any) -> None:
        # Events come without recursion; composing recurses, and in C so deep that the process would die.
        depth = 0
        self._most += _GROWTH * len(text) // _CHARACTERS_A_NODE
        for event in yaml.parse(text, Loader=loader):
            if isinstance(event, yaml.CollectionStartEvent):
                depth += 1
                if depth > MAX_DEPTH:
                    mark = event.start_mark
                    raise self.source.error(mark.line + 1, mark.column + 1, f"nested more than {MAX_DEPTH} deep")
            elif isinstance(event, yaml.CollectionEndEvent):
                depth -= 1


def is_null(node: Node) -> bool:
    return bool(node.tag == _NULL)


def kind(node: Node) -> str:
    """What a message calls a node."""
    if node.id == "scalar":
        return quoted(str(node.value)) if node.value else "an empty text"
    return "a list" if node.id == "sequence" else "a mapping"


def _yaml_fix(what: str, at_tab: bool) -> str:
    if at_tab:
        return "YAML is indented with blanks only"
    if "mapping values" in what:
        return "put the value in quotes if a ': ' belongs to it"
    if "another document" in what:
        return "a file is one document here: take out the second ---"
    return ""
