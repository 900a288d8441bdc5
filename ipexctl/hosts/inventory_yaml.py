"""Parses Ansible's YAML inventory: nested groups of `hosts`, `children` and `vars`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ipexctl.hosts.inventory import HostSetting, Inventory
from ipexctl.hosts.names import did_you_mean, quoted
from ipexctl.hosts.yaml_tree import Entry, Node, YamlTree, is_null, kind

if TYPE_CHECKING:
    from pathlib import Path

    from ipexctl.errors import FileError
    from ipexctl.hosts.host import Host

_PARTS: Final = ("hosts", "children", "vars")


def read_inventory_yaml(text: str, path: str | Path, *, base: Path | None = None, found: str = "") -> tuple[Host, ...]:
    """The hosts of a YAML inventory in the file's order."""
    tree = YamlTree(text, path, base, found)
    if tree.root is None or is_null(tree.root):
        return ()
    if tree.root.id != "mapping":
        raise tree.error(
            tree.root,
            f"a YAML inventory is a mapping of groups, not {kind(tree.root)}",
            fix="a plain hostfile's name doesn't end in .yml or .yaml",
        )
    reader = _Reader(tree)
    for entry in tree.entries(tree.root, "an inventory"):
        reader.read_group(entry, 0)
    return reader.inventory.hosts()


class _Reader:
    def __init__(self, tree: YamlTree) -> None:
        self.tree = tree
        self.inventory = Inventory(tree.source)

    def read_group(self, group: Entry, depth: int) -> None:
        """Read a group and all groups nested in it."""
        self._check_group_name(group)
        self.inventory.group(group.key)
        for part in self.tree.entries(group.value, f"group {quoted(group.key)}", depth):
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
        node = part.value
        if part.key != "vars" and node.id == "sequence":
            example = "node1" if part.key == "hosts" else "gpu"
            raise self.tree.error(
                node, f"{part.key} must be a mapping, not a list", fix=f"`{example}:` in place of `- {example}`"
            )
        return self.tree.entries(node, part.key, depth)

    def _host(self, group: str, host: Entry, depth: int) -> None:
        variables = self.tree.entries(host.value, f"host {quoted(host.key)}", depth)
        settings = {entry.key: self._setting(entry) for entry in variables}
        line, column = _position(host.key_node)
        self.inventory.add_hosts(group, host.key, settings, line, column)

    def _setting(self, entry: Entry) -> HostSetting:
        node = entry.value
        problem = ""
        if node.id != "scalar":
            problem = f"{quoted(entry.key)} must be one value, not {kind(node)}"
        elif not node.tag.startswith("tag:yaml.org"):
            problem = f"{quoted(entry.key)} is {quoted(node.tag)}, which isn't evaluated here"
        line, column = _position(node)
        return HostSetting(self.tree.text(node), line, column, problem)

    def _check_group_name(self, group: Entry) -> None:
        if not group.key or not group.key.isprintable() or any(c in group.key for c in " ,!:[]{}*?"):
            raise self.tree.error(group.key_node, f"{quoted(group.key)} can't be a group's name")

    def _unknown_part(self, group: Entry, part: Entry) -> FileError:
        if group.key == "_meta":
            return self.tree.error(
                group.key_node,
                "this is the answer of an inventory script, not an inventory",
                fix="let Ansible write one to a new file (this runs SCRIPT): "
                "ansible-inventory -i SCRIPT --list --yaml --output NEW.yml",
            )
        fix = did_you_mean(part.key.lower(), _PARTS, "a group has hosts, children and vars; put hosts under hosts:")
        return self.tree.error(part.key_node, f"unknown key {quoted(part.key)} in group {quoted(group.key)}", fix=fix)


def _position(node: Node) -> tuple[int, int]:
    mark = node.start_mark
    return mark.line + 1, mark.column + 1
