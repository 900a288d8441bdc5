"""Reading what a play, a block or a task says about how tasks run, and handing it down to what is inside."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from ipexctl.hosts.names import quoted
from ipexctl.hosts.yaml_tree import is_null, kind
from ipexctl.playbook.options import BadOption, Option, converted
from ipexctl.playbook.positions import Templated
from ipexctl.text import is_variable_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ipexctl.hosts.yaml_tree import Entry, Node
    from ipexctl.playbook.model import InheritedKeywords
    from ipexctl.playbook.positions import Value
    from ipexctl.playbook.yaml_values import PlaybookFile

OURS: Final = frozenset(
    {"facts", "ansible_facts", "hostvars", "groups", "group_names", "inventory_hostname", "node0", "here"}
)


def read_inherited(file: PlaybookFile, entries: Mapping[str, Entry], above: InheritedKeywords) -> InheritedKeywords:
    """What these keywords say, on top of what was said above."""
    found: dict[str, Any] = {}
    for key in ("become", "no_log", "run_once", "check_mode", "diff"):
        if key in entries:
            found[key] = boolean(file, entries[key])
    if "ignore_errors" in entries:
        value = file.value(entries["ignore_errors"].value)
        found["ignore_errors"] = value if isinstance(value, Templated) else boolean(file, entries["ignore_errors"])
    for key in ("become_user", "delegate_to"):
        if key in entries:
            found[key] = text(file, entries[key])
    if "timeout" in entries:
        found["timeout"] = number(file, entries["timeout"], least=0.1)
    if "when" in entries:
        found["when"] = (*above.when, *conditions(file, entries["when"].value))
    if "tags" in entries:
        found["tags"] = above.tags | frozenset(words(file, entries["tags"], split=True))
    if "vars" in entries:
        found["vars"] = (*above.vars, variables(file, entries["vars"]))
    if "environment" in entries:
        found["environment"] = (*above.environment, *_environment(file, entries["environment"]))
    return replace(above, **found)


def boolean(file: PlaybookFile, entry: Entry) -> bool:
    return bool(_simple(file, entry, Option("bool")))


def number(file: PlaybookFile, entry: Entry, *, least: float) -> float:
    return float(_simple(file, entry, Option("float", least=least)))


def whole(file: PlaybookFile, entry: Entry, *, least: float) -> int:
    return int(_simple(file, entry, Option("int", least=least)))


def _simple(file: PlaybookFile, entry: Entry, option: Option) -> Any:
    """A keyword whose value has to be known before anything runs."""
    value = file.value(entry.value)
    if isinstance(value, Templated):
        raise file.error(entry.value, f"{quoted(entry.key)} can't be a template", fix="write the value itself")
    try:
        return converted(option, value)
    except BadOption as bad:
        raise file.error(entry.value, f"{quoted(entry.key)} {bad.what}", fix=bad.fix) from None


def text(file: PlaybookFile, entry: Entry) -> str | Templated:
    if entry.value.id != "scalar" or is_null(entry.value):
        raise file.error(entry.value, f"{quoted(entry.key)} must be a text, not {kind(entry.value)}")
    return file.text_value(entry.value)


def name_of(file: PlaybookFile, entry: Entry) -> str:
    """A name for a variable: of `register`, `loop_var`."""
    value = text(file, entry)
    if isinstance(value, Templated) or not is_variable_name(value):
        raise file.error(entry.value, f"{kind(entry.value)} can't be the name of a variable", fix="letters, digits, _")
    if value in OURS:
        raise file.error(entry.value, f"{quoted(value)} is a variable of ours", fix="another name")
    return value


def words(file: PlaybookFile, entry: Entry, *, split: bool = False) -> tuple[str, ...]:
    """A text, or a list of texts, none of them a template; a text may have several, with commas."""
    nodes = file.tree.items(entry.value) if entry.value.id == "sequence" else [entry.value]
    found: list[str] = []
    for node in nodes:
        if node.id != "scalar" or is_null(node) or isinstance(file.text_value(node), Templated):
            raise file.error(node, f"{quoted(entry.key)} takes plain words, not {kind(node)}")
        parts = str(node.value).split(",") if split else [str(node.value)]
        found += [part.strip() for part in parts if part.strip()]
    return tuple(found)


def conditions(file: PlaybookFile, node: Node) -> tuple[Templated, ...]:
    """Expressions of Jinja, without braces: one, or a list of which all must hold."""
    nodes = file.tree.items(node) if node.id == "sequence" else [node]
    found = []
    for item in nodes:
        if item.id != "scalar" or is_null(item) or not str(item.value).strip():
            raise file.error(item, f"a condition is an expression, not {kind(item)}")
        found.append(condition(file, item))
    return tuple(found)


def condition(file: PlaybookFile, node: Node) -> Templated:
    """One expression. In braces it means the same: `"{{ x }}"` is `x`."""
    template = replace(file.template(node), kind="expr")
    bare = re.fullmatch(r"\s*\{\{(((?!\}\}|\{\{).)*)\}\}\s*", template.text, re.DOTALL)
    if bare:
        return replace(template, text=bare[1])
    if "{{" in template.text or "{%" in template.text:
        word = "{{" if "{{" in template.text else "{%"
        raise template.spot(None, word).error(
            "a condition is an expression already", fix=f"without {word} … : when: facts.cpu.tier == 'amx'"
        )
    return template


def truth(file: PlaybookFile, entry: Entry) -> tuple[Templated, ...] | bool:
    """`changed_when`, `failed_when`: yes or no outright, or conditions."""
    if entry.value.id == "scalar" and isinstance(value := file.value(entry.value), bool):
        return value
    return conditions(file, entry.value)


def variables(file: PlaybookFile, entry: Entry) -> Mapping[str, Value]:
    found = {}
    for each in file.tree.entries(entry.value, quoted(entry.key)):
        check_variable(file, each)
        found[each.key] = file.value(each.value)
    return found


def variables_of_file(file: PlaybookFile) -> Mapping[str, Value]:
    root = file.tree.root
    if root is None or is_null(root):
        return {}
    found: dict[str, Any] = {}
    for entry in file.tree.entries(root, "a file of variables"):
        check_variable(file, entry)
        found[entry.key] = file.value(entry.value)
    return found


def check_variable(file: PlaybookFile, entry: Entry) -> None:
    if not is_variable_name(entry.key):
        raise file.error(
            entry.key_node, f"{quoted(entry.key)} can't be the name of a variable", fix="letters, digits and _"
        )
    if entry.key in OURS:
        raise file.error(entry.key_node, f"{quoted(entry.key)} is a variable of ours", fix="another name")


def _environment(file: PlaybookFile, entry: Entry) -> tuple[Value, ...]:
    value = file.value(entry.value)
    values = value if isinstance(value, list) else [value]
    for each in values:
        if not isinstance(each, dict | Templated):
            raise file.error(entry.value, f"'environment' must be a mapping of variables, not {kind(entry.value)}")
        for name in each if isinstance(each, dict) else ():
            if not is_variable_name(name):
                raise file.error(entry.value, f"{quoted(name)} can't be the name of a variable")
    return tuple(values)
