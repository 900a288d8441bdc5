"""Parse YAML to nodes with positions, without ever making a Python object that the file names.

The file may be hostile: nesting is limited to 100 (deeper, the C parser crashes the process), and so are values,
because ten lines of aliases can stand for a billion values.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, cast

from ipexctl.errors import FileError
from ipexctl.hosts.host import describe, quote
from ipexctl.hosts.source import SourceFile

MAX_DEPTH: Final = 100
# Limit for expanded aliases: a multiple of the file's size, plus a constant for small files. A value counts 1, plus 1
# for each 8 characters of text, because aliases of one long text take as much as a long list.
_SIZE_MULTIPLE: Final = 10
_FREE_NODES: Final = 100_000
_CHARACTERS_A_NODE: Final = 8

# YAML 1.1 line ends, to match its line numbers.
_LINE_END = re.compile("\r\n|[\r\n\x85\u2028\u2029]")
_REFUSED = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_NULL: Final = "tag:yaml.org,2002:null"
_MERGE: Final = "tag:yaml.org,2002:merge"


class YamlNode(Protocol):
    """The parts of a yaml node used here; yaml itself is imported only when a file needs it."""

    id: str
    tag: str
    value: Any
    start_mark: Any


class Entry(NamedTuple):
    key: str
    key_node: YamlNode
    value: YamlNode


class YamlTree:
    def __init__(self, text: str, path: str | Path, base: Path | None = None, found: str = "") -> None:
        text = text.removeprefix("\ufeff")
        self.source = SourceFile(str(path), Path(path).parent if base is None else base, _LINE_END.split(text), found)
        self._visited = 0
        self._max_values = _FREE_NODES
        refused = _REFUSED.search(text)
        if refused is not None:
            before = _LINE_END.split(text[: refused.start()])
            raise self.error_at(len(before), len(before[-1]) + 1, f"{describe(refused[0])} is not allowed in YAML")
        self.root = self._compose(text)

    def error(self, node: YamlNode, problem: str, *, fix: str = "") -> FileError:
        """Return an error at this node."""
        mark = node.start_mark
        return self.error_at(mark.line + 1, mark.column + 1, problem, fix=fix)

    def error_at(self, line: int, column: int, problem: str, *, fix: str = "") -> FileError:
        """Return an error at this line and column, both counted from 1."""
        return self.source.error(line, column, problem, fix=fix)

    def entries(self, node: YamlNode, mapping: str, depth: int = 0) -> list[Entry]:
        """Return the entries of a mapping in order, with `<<` merged; none for null. Raises a FileError for another
        node. `mapping`: what it is, for messages."""
        if is_null(node):
            return []
        if node.id != "mapping":
            raise self.error(node, f"{mapping} must be a mapping of `key: value` lines, not {kind(node)}")
        own_entries: dict[str, Entry] = {}
        merged: dict[str, Entry] = {}
        for key_node, value in self._step(node, depth):
            if key_node.tag == _MERGE:
                for entry in self._merged(value, mapping, depth + 1):
                    merged.setdefault(entry.key, entry)
                continue
            if key_node.id != "scalar":
                raise self.error(key_node, f"a key must be one plain word, not {kind(key_node)}")
            if key_node.value in own_entries:
                raise self.error(key_node, f"{quote(key_node.value)} appears twice", fix="put both together under one")
            own_entries[key_node.value] = Entry(key_node.value, key_node, value)
        return list({**merged, **own_entries}.values())

    def items(self, node: YamlNode, depth: int = 0) -> list[YamlNode]:
        """Return the nodes of a list."""
        return list(self._step(node, depth))

    def text(self, node: YamlNode) -> str:
        """Return the value as text: JSON for lists and mappings; empty for null."""
        if is_null(node):
            return ""
        if node.id == "scalar":
            return str(node.value)
        return json.dumps(self._plain(node, 0), ensure_ascii=False)

    def _merged(self, node: YamlNode, mapping: str, depth: int) -> Iterator[Entry]:
        """Yield the entries of a mapping, or of each mapping in a list, that `<<` merges."""
        if node.id == "sequence":
            for item in self._step(node, depth):
                yield from self.entries(item, mapping, depth)
        else:
            yield from self.entries(node, mapping, depth)

    def _plain(self, node: YamlNode, depth: int) -> Any:
        """Return the value as dictionaries, lists and texts."""
        if node.id == "mapping":
            return {entry.key: self._plain(entry.value, depth + 1) for entry in self.entries(node, "this", depth)}
        if node.id == "sequence":
            return [self._plain(item, depth + 1) for item in self._step(node, depth)]
        return None if is_null(node) else str(node.value)

    def _step(self, node: YamlNode, depth: int) -> Any:
        """Return the children of a node. Raises a FileError if the node is nested too deep, or if the file's values,
        with aliases expanded, are too many."""
        if depth > MAX_DEPTH:
            raise self.error(node, f"nested more than {MAX_DEPTH} deep, or inside itself by an alias")
        children = itertools.chain.from_iterable(node.value) if node.id == "mapping" else node.value
        characters = sum(len(child.value) for child in children if child.id == "scalar")
        self._visited += 1 + len(node.value) + characters // _CHARACTERS_A_NODE
        if self._visited > self._max_values:
            raise self.error(node, f"the aliases of this file come to more than {self._max_values:,} values")
        return node.value

    def _compose(self, text: str) -> YamlNode | None:
        """Return the root of the parsed text; None if the text is empty. Raises a FileError."""
        import yaml

        loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        try:
            self._check_depth(yaml, text, loader)
            root: Any = yaml.compose(text, Loader=loader)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            line, column = (mark.line + 1, mark.column + 1) if mark is not None else (1, 1)
            problem = error.problem or error.context or "can't be read"
            at_tab = "\t" in self.source.lines[min(line, len(self.source.lines)) - 1][: column + 1]
            raise self.error_at(line, column, f"YAML: {problem}", fix=_yaml_fix(problem, at_tab)) from None
        except yaml.YAMLError as error:
            raise self.error_at(1, 1, f"YAML: {error}") from None
        return cast("YamlNode | None", root)

    def _check_depth(self, yaml: Any, text: str, loader: Any) -> None:
        """Raise a MarkedYAMLError if the text is nested too deep."""
        # Count depth from parse events: composing recurses, and the C version would crash the process.
        depth = 0
        self._max_values += _SIZE_MULTIPLE * len(text) // _CHARACTERS_A_NODE
        for event in yaml.parse(text, Loader=loader):
            if isinstance(event, yaml.CollectionStartEvent):
                depth += 1
                if depth > MAX_DEPTH:
                    # In the words of PyYAML 6.0.4, which itself refuses a deeper file.
                    raise yaml.MarkedYAMLError(None, None, "exceeded maximum nesting depth", event.start_mark)
            elif isinstance(event, yaml.CollectionEndEvent):
                depth -= 1


def is_null(node: YamlNode) -> bool:
    """True for `null`, `~` and no value."""
    return bool(node.tag == _NULL)


def kind(node: YamlNode) -> str:
    """Return how to call the node in an error."""
    if node.id == "scalar":
        return quote(str(node.value)) if node.value else "an empty text"
    return "a list" if node.id == "sequence" else "a mapping"


def _yaml_fix(problem: str, at_tab: bool) -> str:
    """Return the fix for an error of the YAML parser; empty if none is known."""
    if at_tab:
        return "YAML is indented with blanks only"
    if "mapping values" in problem:
        return "put the value in quotes if a ': ' belongs to it"
    if "another document" in problem:
        return "a file is one document here: take out the second ---"
    return ""
