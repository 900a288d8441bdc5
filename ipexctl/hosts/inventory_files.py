"""Parse Ansible inventories, INI and YAML, into an `Inventory`, with a line and column for each entry.

Nothing is run or evaluated: output of an inventory script is refused, and so is a value with a tag such as `!vault`
where it would be used.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from ipexctl.errors import FileError
from ipexctl.hosts.host import Host, WordError, did_you_mean, quote
from ipexctl.hosts.inventory import ALL, UNGROUPED, HostSetting, Inventory
from ipexctl.hosts.source import SourceFile
from ipexctl.hosts.words import Word, refuse_invisible, split_pairs, split_words
from ipexctl.hosts.yaml_tree import Entry, YamlNode, YamlTree, is_null, kind

_SECTION: Final = re.compile(r"\[([^:\[\]\s#]+)(?::(\w+))?\]\s*(?:[#;].*)?", re.DOTALL)
_SECTIONS: Final = ("hosts", "vars", "children")
_COMMENT = re.compile(r"\s[#;].*", re.DOTALL)
_QUOTED_VALUE = re.compile(r"""(?:"([^"]*)"|'([^']*)')\s*(?:[#;].*)?""", re.DOTALL)
_PARTS: Final = ("hosts", "children", "vars")


def read_inventory_ini(text: str, path: str | Path, *, base: Path | None = None, found: str = "") -> tuple[Host, ...]:
    """Return the hosts of an Ansible inventory in INI. Raises a FileError. `found`: as of `read_hostfile`."""
    lines = text.removeprefix("\ufeff").split("\n")
    source = SourceFile(str(path), Path(path).parent if base is None else base, lines, found)
    reader = _IniReader(Inventory(source))
    for number, line in enumerate(source.lines, 1):
        bare = line.strip(" \t\r")
        if bare and bare[0] not in "#;":
            try:
                reader.parse_line(number, line.rstrip(" \t\r"))
            except WordError as error:
                raise source.word_error(number, error) from None
    reader.check_sections()
    return reader.inventory.hosts()


class _IniReader:
    def __init__(self, inventory: Inventory) -> None:
        self.inventory = inventory
        self._group = UNGROUPED
        self._kind = "hosts"
        self._declared: set[str] = {ALL, UNGROUPED}
        self._used_groups: dict[str, tuple[int, int]] = {}

    def parse_line(self, number: int, line: str) -> None:
        """Read a line: the begin of a section, or an entry of the present one. Raises a WordError or a FileError."""
        start = len(line) - len(line.lstrip()) + 1
        section = _SECTION.fullmatch(line.strip())
        if section is not None:
            self._begin(number, start, section[1], section[2] or "hosts")
        elif line.lstrip().startswith("[") and line.count(":") < 2:
            raise _bad_section(line, start)
        elif self._kind == "vars":
            self._variable(number, line, start)
        elif self._kind == "children":
            self._child(number, line)
        else:
            self._host(number, line)

    def check_sections(self) -> None:
        """Check that every group is declared. Runs last because declarations may follow uses."""
        for name, (line, column) in self._used_groups.items():
            if name not in self._declared:
                fix = did_you_mean(name, self._declared, f"declare it with a [{name}] section")
                raise self.inventory.source.error(line, column, f"no group {quote(name)} is declared", fix=fix)

    def _begin(self, number: int, start: int, group: str, kind: str) -> None:
        """Begin a section. A group that only has variables must be declared elsewhere."""
        if kind not in _SECTIONS:
            raise WordError(
                f"a section is [group], [group:vars] or [group:children], not ':{kind}'",
                column=start + len(group) + 2,
            )
        if kind == "vars":
            self._used_groups.setdefault(group, (number, start + 1))
        else:
            self._declared.add(group)
        self.inventory.group(group)
        self._group, self._kind = group, kind

    def _variable(self, number: int, line: str, start: int) -> None:
        """Read a line `key=value` of `[group:vars]`."""
        key, equals, rest = line.partition("=")
        if not equals or not key.strip():
            raise WordError(f"a line of [{self._group}:vars] is key=value", column=start)
        column = len(key) + 2 + len(rest) - len(rest.lstrip())
        value = rest.strip()
        quoted_value = _QUOTED_VALUE.fullmatch(value)
        if quoted_value is not None:
            value = quoted_value[1] or quoted_value[2] or ""
            column += 1
        else:
            value = _COMMENT.sub("", value)
        refuse_invisible(line, column - 1 + len(value))
        self.inventory.group(self._group).vars[key.strip()] = HostSetting(value, number, column)

    def _child(self, number: int, line: str) -> None:
        """Read a line of `[group:children]`, which names one group."""
        line_words = split_words(line)
        if len(line_words) > 1:
            raise line_words[1].error("a line under :children names one group")
        for name, column in line_words:
            self._used_groups.setdefault(name, (number, column))
            self.inventory.add_child(self._group, name, number, column)

    def _host(self, number: int, line: str) -> None:
        """Read a line with a host or a pattern of hosts, and its variables."""
        line_words = split_words(line, escapes=True)
        if not line_words:
            return
        bare, pairs = split_pairs(line_words[1:])
        if bare:
            raise _bare_word(line_words[0], bare[0])
        if line_words[0].text.endswith(":"):
            raise line_words[0].error(
                f"{quote(line_words[0].text)} looks like YAML, and this file is read as INI",
                "a YAML inventory's name ends in .yml or .yaml",
            )
        settings: dict[str, HostSetting] = {}
        for pair in pairs:
            if not pair.key.text:
                raise pair.key.error("there is no name before this '='")
            settings[pair.key.text] = HostSetting(pair.value.text, number, pair.value.column)
        self.inventory.add_hosts(self._group, line_words[0].text, settings, number, line_words[0].column)


def _bad_section(line: str, start: int) -> WordError:
    """Return the error for a line that begins with `[` but is no section."""
    if "]" not in line:
        return WordError("this '[' is never closed", column=start, fix="such as [group]")
    return WordError(
        f"{quote(line.strip())} is not a section",
        column=start,
        fix="such as [group], [group:vars] or [group:children]",
    )


def _bare_word(first: Word, word: Word) -> WordError:
    """Return the error for a word behind a host that is no `key=value`."""
    fix = "put each host on its own line; a value with blanks needs quotes"
    if first.text.startswith("["):
        fix = "put the section on its own line"
    elif word.text.isdecimal():
        fix = f"for slots: slots={word.text}"
    return word.error(f"{quote(word.text)} is not a key=value", fix)


def read_inventory_yaml(text: str, path: str | Path, *, base: Path | None = None, found: str = "") -> tuple[Host, ...]:
    """Return the hosts of an Ansible inventory in YAML. Raises a FileError. `found`: as of `read_hostfile`."""
    tree = YamlTree(text, path, base, found)
    if tree.root is None or is_null(tree.root):
        return ()
    if tree.root.id != "mapping":
        raise tree.error(
            tree.root,
            f"a YAML inventory is a mapping of groups, not {kind(tree.root)}",
            fix="a plain hostfile's name doesn't end in .yml or .yaml",
        )
    reader = _YamlReader(tree)
    for entry in tree.entries(tree.root, "an inventory"):
        reader.read_group(entry, 0)
    return reader.inventory.hosts()


class _YamlReader:
    def __init__(self, tree: YamlTree) -> None:
        self.tree = tree
        self.inventory = Inventory(tree.source)

    def read_group(self, group: Entry, depth: int) -> None:
        """Read a group with its hosts, variables and child groups. Raises a FileError."""
        self._check_group_name(group)
        self.inventory.group(group.key)
        for part in self.tree.entries(group.value, f"group {quote(group.key)}", depth):
            if part.key not in _PARTS:
                raise self._unknown_part(group, part)
            for entry in self._part(part, depth + 1):
                if part.key == "hosts":
                    self._host(group.key, entry, depth + 2)
                elif part.key == "children":
                    line, column = _position(entry.key_node)
                    self.inventory.add_child(group.key, entry.key, line, column)
                    self.read_group(entry, depth + 2)
                else:
                    self.inventory.group(group.key).vars[entry.key] = self._setting(entry)

    def _part(self, part: Entry, depth: int) -> list[Entry]:
        """Return the entries of a group's `hosts`, `children` or `vars`. Raises a FileError for a list, which Ansible
        does not accept there."""
        node = part.value
        if part.key != "vars" and node.id == "sequence":
            example = "node1" if part.key == "hosts" else "gpu"
            raise self.tree.error(
                node, f"{part.key} must be a mapping, not a list", fix=f"`{example}:` instead of `- {example}`"
            )
        return self.tree.entries(node, part.key, depth)

    def _host(self, group: str, host: Entry, depth: int) -> None:
        variables = self.tree.entries(host.value, f"host {quote(host.key)}", depth)
        settings = {entry.key: self._setting(entry) for entry in variables}
        line, column = _position(host.key_node)
        self.inventory.add_hosts(group, host.key, settings, line, column)

    def _setting(self, entry: Entry) -> HostSetting:
        """Return the value of a variable. A value that can't be used gets a `problem`, which is an error only where it
        would be used."""
        node = entry.value
        problem = ""
        if node.id != "scalar":
            problem = f"{quote(entry.key)} must be one value, not {kind(node)}"
        elif not node.tag.startswith("tag:yaml.org"):
            problem = f"{quote(entry.key)} is {quote(node.tag)}, which isn't evaluated here"
        line, column = _position(node)
        return HostSetting(self.tree.text(node), line, column, problem)

    def _check_group_name(self, group: Entry) -> None:
        if not group.key or not group.key.isprintable() or any(c in group.key for c in " ,!:[]{}*?"):
            raise self.tree.error(group.key_node, f"{quote(group.key)} can't be a group's name")

    def _unknown_part(self, group: Entry, part: Entry) -> FileError:
        """Return the error for a key that no group has."""
        if group.key == "_meta":
            return self.tree.error(
                group.key_node,
                "this is the answer of an inventory script, not an inventory",
                fix="let ansible-inventory --list --yaml --output write one to a new file; it runs the script",
            )
        fix = did_you_mean(part.key.lower(), _PARTS, "a group has hosts, children and vars; put hosts under hosts:")
        return self.tree.error(part.key_node, f"unknown key {quote(part.key)} in group {quote(group.key)}", fix=fix)


def _position(node: YamlNode) -> tuple[int, int]:
    mark = node.start_mark
    return mark.line + 1, mark.column + 1
