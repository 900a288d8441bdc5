"""The keywords of plays, blocks and tasks, and the reading of those that tasks inherit: when, tags, vars, become …"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from ipexctl.hosts.names import quoted
from ipexctl.hosts.yaml_tree import Entry, Node, is_null, kind
from ipexctl.playbook.ansible_names import UNSUPPORTED
from ipexctl.playbook.options import BadOption, Option, converted
from ipexctl.playbook.positions import Templated, Value, did_you_mean
from ipexctl.text import is_variable_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ipexctl.playbook.model import InheritedKeywords
    from ipexctl.playbook.playbook_file import PlaybookFile

_TASKS_INHERIT: Final = "when tags vars environment become become_user no_log ignore_errors delegate_to run_once"
INHERITED: Final = frozenset([*_TASKS_INHERIT.split(), "check_mode", "diff", "timeout"])
_OF_PLAYS: Final = "name hosts vars vars_files tasks pre_tasks post_tasks handlers gather_facts any_errors_fatal serial"
PLAY: Final = frozenset([*_OF_PLAYS.split(), "strategy", "import_playbook"]) | (
    INHERITED - {"when", "delegate_to", "run_once"}
)
BLOCK: Final = frozenset(["name", "block", "rescue", "always", "any_errors_fatal"]) | INHERITED
_OF_TASKS: Final = (
    "name loop with_items loop_control register until retries delay changed_when failed_when notify listen"
)
TASK: Final = frozenset([*_OF_TASKS.split(), "args"]) | INHERITED
INCLUDES: Final = frozenset({"include_tasks", "import_tasks"})
INCLUDE: Final = frozenset({"name", "args"}) | INHERITED | INCLUDES


def advice(keyword: str, known: frozenset[str] | set[str]) -> str:
    """Advice for an unknown keyword."""
    if keyword in UNSUPPORTED:
        return UNSUPPORTED[keyword]
    if keyword.startswith("with_"):
        return "loop: does what with_… did"
    return did_you_mean(keyword, sorted(known), f"there are: {', '.join(sorted(known))}" if len(known) < 30 else "")


RESERVED: Final = frozenset(
    {"facts", "ansible_facts", "hostvars", "groups", "group_names", "inventory_hostname", "node0", "here"}
)


def read_inherited(file: PlaybookFile, entries: Mapping[str, Entry], above: InheritedKeywords) -> InheritedKeywords:
    """The keywords of these entries, combined with those inherited from `above`."""
    keywords: dict[str, Any] = {}
    for key in ("become", "no_log", "run_once", "check_mode", "diff"):
        if key in entries:
            keywords[key] = boolean(file, entries[key])
    if "ignore_errors" in entries:
        value = file.value(entries["ignore_errors"].value)
        keywords["ignore_errors"] = value if isinstance(value, Templated) else boolean(file, entries["ignore_errors"])
    for key in ("become_user", "delegate_to"):
        if key in entries:
            keywords[key] = text(file, entries[key])
    if "timeout" in entries:
        keywords["timeout"] = number(file, entries["timeout"], least=0.1)
    if "when" in entries:
        keywords["when"] = (*above.when, *conditions(file, entries["when"].value))
    if "tags" in entries:
        keywords["tags"] = above.tags | frozenset(plain_texts(file, entries["tags"], split=True))
    if "vars" in entries:
        keywords["vars"] = (*above.vars, variables(file, entries["vars"]))
    if "environment" in entries:
        keywords["environment"] = (*above.environment, *_environment(file, entries["environment"]))
    return replace(above, **keywords)


def boolean(file: PlaybookFile, entry: Entry) -> bool:
    return bool(_simple(file, entry, Option("bool")))


def number(file: PlaybookFile, entry: Entry, *, least: float) -> float:
    return float(_simple(file, entry, Option("float", least=least)))


def integer(file: PlaybookFile, entry: Entry, *, least: float) -> int:
    return int(_simple(file, entry, Option("int", least=least)))


def _simple(file: PlaybookFile, entry: Entry, option: Option) -> Any:
    """The value of a keyword that must be known before anything runs, so it can't be a template."""
    value = file.value(entry.value)
    if isinstance(value, Templated):
        raise file.error(entry.value, f"{quoted(entry.key)} can't be a template", fix="write the value itself")
    try:
        return converted(option, value)
    except BadOption as bad:
        raise file.error(entry.value, f"{quoted(entry.key)} {bad.message}", fix=bad.fix) from None


def text(file: PlaybookFile, entry: Entry) -> str | Templated:
    if entry.value.id != "scalar" or is_null(entry.value):
        raise file.error(entry.value, f"{quoted(entry.key)} must be a text, not {kind(entry.value)}")
    return file.text_value(entry.value)


def name_of(file: PlaybookFile, entry: Entry) -> str:
    """The name of a variable, as in `register` and `loop_var`."""
    value = text(file, entry)
    if isinstance(value, Templated) or not is_variable_name(value):
        raise file.error(entry.value, f"{kind(entry.value)} can't be the name of a variable", fix="letters, digits, _")
    if value in RESERVED:
        raise file.error(entry.value, f"{quoted(value)} is a variable that ipexctl sets", fix="another name")
    return value


def plain_texts(file: PlaybookFile, entry: Entry, *, split: bool = False) -> tuple[str, ...]:
    """A text or a list of texts, none of them a template; with `split`, each is divided at commas."""
    nodes = file.tree.items(entry.value) if entry.value.id == "sequence" else [entry.value]
    texts: list[str] = []
    for node in nodes:
        if node.id != "scalar" or is_null(node) or isinstance(file.text_value(node), Templated):
            raise file.error(node, f"{quoted(entry.key)} takes plain words, not {kind(node)}")
        parts = str(node.value).split(",") if split else [str(node.value)]
        texts += [part.strip() for part in parts if part.strip()]
    return tuple(texts)


def conditions(file: PlaybookFile, node: Node) -> tuple[Templated, ...]:
    """Jinja expressions without braces: one, or a list that must all hold."""
    nodes = file.tree.items(node) if node.id == "sequence" else [node]
    templates = []
    for item in nodes:
        if item.id != "scalar" or is_null(item) or not str(item.value).strip():
            raise file.error(item, f"a condition is an expression, not {kind(item)}")
        templates.append(condition(file, item))
    return tuple(templates)


def condition(file: PlaybookFile, node: Node) -> Templated:
    """One expression; `"{{ x }}"` is read as `x`."""
    template = replace(file.template(node), kind="expr")
    bare = re.fullmatch(r"\s*\{\{(((?!\}\}|\{\{).)*)\}\}\s*", template.text, re.DOTALL)
    if bare:
        return replace(template, text=bare[1])
    if "{{" in template.text or "{%" in template.text:
        brace = "{{" if "{{" in template.text else "{%"
        raise template.spot(None, brace).error(
            "a condition is an expression already", fix=f"without {brace} … : when: facts.cpu.tier == 'amx'"
        )
    return template


def truth(file: PlaybookFile, entry: Entry) -> tuple[Templated, ...] | bool:
    """The value of `changed_when` or `failed_when`: a bool or conditions."""
    if entry.value.id == "scalar" and isinstance(value := file.value(entry.value), bool):
        return value
    return conditions(file, entry.value)


def variables(file: PlaybookFile, entry: Entry) -> Mapping[str, Value]:
    values = {}
    for variable in file.tree.entries(entry.value, quoted(entry.key)):
        check_variable(file, variable)
        values[variable.key] = file.value(variable.value)
    return values


def variables_of_file(file: PlaybookFile) -> Mapping[str, Value]:
    root = file.tree.root
    if root is None or is_null(root):
        return {}
    values: dict[str, Any] = {}
    for entry in file.tree.entries(root, "a file of variables"):
        check_variable(file, entry)
        values[entry.key] = file.value(entry.value)
    return values


def check_variable(file: PlaybookFile, entry: Entry) -> None:
    if not is_variable_name(entry.key):
        raise file.error(
            entry.key_node, f"{quoted(entry.key)} can't be the name of a variable", fix="letters, digits and _"
        )
    if entry.key in RESERVED:
        raise file.error(entry.key_node, f"{quoted(entry.key)} is a variable that ipexctl sets", fix="another name")


def _environment(file: PlaybookFile, entry: Entry) -> tuple[Value, ...]:
    value = file.value(entry.value)
    values = value if isinstance(value, list) else [value]
    for mapping in values:
        if not isinstance(mapping, dict | Templated):
            raise file.error(entry.value, f"'environment' must be a mapping of variables, not {kind(entry.value)}")
        for name in mapping if isinstance(mapping, dict) else ():
            if not is_variable_name(name):
                raise file.error(entry.value, f"{quoted(name)} can't be the name of a variable")
    return tuple(values)
