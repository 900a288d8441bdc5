"""Keywords of plays, blocks and tasks, how tasks inherit them, and names from Ansible that ipexctl does not support.

`when`, `tags`, `vars` and `environment` accumulate; for all other keywords the innermost value counts. Playbooks are
often written for Ansible, so what ipexctl lacks has a row here that says what to write instead.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from ipexctl.addons.play.options import BadOption, Option, convert_value
from ipexctl.addons.play.playbook import InheritedKeywords, Keyed, Node, TemplateText, Value
from ipexctl.hosts.host import did_you_mean, quote
from ipexctl.text import is_variable_name

ANSIBLE_FACTS: Final = (
    *("hostname", "nodename", "fqdn", "distribution", "distribution_version", "os_family", "kernel"),
    *("architecture", "processor_vcpus", "memtotal_mb", "user_id", "user_dir"),
)
"""Ansible's facts that ipexctl has, each with the prefix `ansible_`."""
_NO_FACTS: Final = "this play has gather_facts: false, so it has no facts"
HINTS: Final = {
    **{f"ansible_{name}": _NO_FACTS for name in ANSIBLE_FACTS},
    "ansible_env": "a variable of the host: exec: printenv NAME, with register and changed_when: false",
    "ansible_default_ipv4": "ansible_host, or facts.network.default_route and facts.network.nics",
    "ansible_all_ipv4_addresses": "facts.network.nics",
    "ansible_interfaces": "facts.network.nics | map(attribute='name')",
    "ansible_domain": "ansible_fqdn",
    "ansible_date_time": "exec: date +%F, with register and changed_when: false; or facts.clock",
    "ansible_processor_cores": "facts.cpu.cores, of all sockets",
    "ansible_processor_count": "facts.cpu.sockets",
    "ansible_processor": "facts.cpu.model_name",
    "ansible_memfree_mb": "facts.memory.available / 1048576",
    "ansible_memory_mb": "facts.memory, in bytes",
    "ansible_swaptotal_mb": "facts.memory.swap, in bytes",
    "ansible_mounts": "facts.home, facts.tmp",
    "ansible_machine": "ansible_architecture",
    "ansible_system": "facts.system",
    "ansible_distribution_major_version": "ansible_distribution_version",
    "ansible_distribution_release": "ansible_distribution_version",
    "ansible_pkg_mgr": "facts.system.distro",
    "ansible_service_mgr": "facts.logind",
    "ansible_python_version": "facts.software.pythons",
    "ansible_managed": "write the line yourself",
    "ansible_local": "exec: cat FILE, with register",
    "inventory_dir": "playbook_dir, or here",
    "role_path": "playbook_dir",
}
"""Variable of Ansible → what to write instead, if it is undefined."""

UNSUPPORTED: Final = {
    "roles": "put the role's tasks in a file: include_tasks: FILE",
    "serial": "it belongs to the play",
    "async": "for a run that outlives the play: the module run with detach: true",
    "poll": "for a run that outlives the play: the module run with detach: true",
    "connection": "hosts are reached by ssh; delegate_to: localhost, with --local, is this machine",
    "remote_user": "--user NAME, or user= in the hostfile",
    "become_method": "become always uses sudo",
    "become_flags": "become always uses sudo -n",
    "local_action": "name the module itself and add delegate_to: localhost; --local allows it",
    "gather_subset": "one probe always gathers all facts",
    "max_fail_percentage": "any_errors_fatal: true ends the play at the first failure",
    "throttle": "-f N for the whole call, or serial: N on the play",
    "collections": "remove it: modules have no collections here",
    "module_defaults": "write the options in each task",
    "vars_prompt": "-e NAME=VALUE, or {{ lookup('env', 'NAME') }}",
    "ignore_unreachable": "an unreachable host leaves the play, and the others continue",
    "any_errors_fatal": "it belongs to the play",
    "delegate_facts": "hostvars: {{ hostvars.NAME.VARIABLE }} has the facts of every host",
    "with_subelements": "loop: over things | map(attribute='parts') | flatten",
    "with_indexed_items": "loop, and loop_control: {index_var: n}",
    "with_list": "loop",
    "with_flattened": 'loop: "{{ lists | flatten }}"',
    "with_lines": "a command with register, then loop: over its stdout_lines",
    "with_dict": 'loop: "{{ mapping | dict2items }}"',
    "with_fileglob": "name the files in a loop",
    "with_sequence": 'loop: "{{ range(1, 5) }}"',
    "with_together": 'loop: "{{ one | zip(other) }}"',
    "with_nested": 'loop: "{{ one | product(other) }}"',
    "first_found": "name the file",
    "port": "--port, or port= in the hostfile",
    "force_handlers": "a task under `always:` runs even after a failure",
    "debugger": "--step asks before each task",
    "order": "hosts run in the order of the hostfile",
}
"""Keyword that is not supported, or not where it was found → what to write instead."""


_OWNED: Final = "files belong to the login account; to change that, add a task command: chown {}, with become: true"
NOT_OPTIONS: Final = {
    "owner": _OWNED.format("NAME FILE"),
    "group": _OWNED.format(":NAME FILE"),
    "directory_mode": "file: {path: DIR, state: directory, mode: MODE}, before it",
    "recurse": "command: chmod -R MODE DIR",
    "remote_src": "command: cp FROM TO, with args: {creates: TO}",
    "validate": "a command task after it that checks the file",
    "force": "remove it: a file that differs is always replaced",
    "executable": "a list: [bash, -c, LINE]",
    "warn": "remove it: there are no such warnings",
    "content_encoding": "take it out",
    "resume": "fewer: true, and run the playbook again: the script continues on the hosts that answer",
}
"""Options of Ansible's modules that ours lack, and `resume`, which only the command `ipexctl run` has."""

NOT_MODULES: Final = {
    "pip": "install: {with: [PACKAGE]} puts it into the environment of all hosts",
    **dict.fromkeys(
        ("apt", "yum", "dnf", "package"),
        "exec: 'apt-get install -y NAME', with become: true on the task; for Python packages use install",
    ),
    "synchronize": "sync uploads a project to the hosts",
    "script": "sync uploads the project, exec runs the script",
    "raw": "exec needs only sh on the host",
    **dict.fromkeys(("setup", "gather_facts"), "facts are gathered if something uses them: {{ facts.cpu.tier }}"),
    **dict.fromkeys(("lineinfile", "blockinfile", "replace"), "template, or exec with sed"),
    "user": "exec: 'id NAME || useradd -m NAME', with become: true on the task",
    "group": "exec: 'getent group NAME || groupadd NAME', with become: true on the task",
    **dict.fromkeys(("service", "systemd"), "exec: 'systemctl restart NAME', with become: true on the task"),
    "mount": "exec: 'mountpoint -q DIR || mount DIR', with become: true on the task",
    "sysctl": "tune, with become: true",
    **dict.fromkeys(("include_role", "import_role"), "put the role's tasks in a file: include_tasks: FILE"),
    "include": "include_tasks: FILE",
    "get_url": "exec: curl -fsSLo FILE URL, with args: {creates: FILE}",
    "unarchive": "exec: tar -xf FILE, with args: {creates: DIR}",
    "git": "sync uploads the project from the control machine",
    "wait_for_connection": 'wait_for: {port: 22, host: "{{ ansible_host }}"}, with delegate_to: node0',
    "tempfile": "exec: mktemp, with register",
    "slurp": "fetch downloads the file; or exec: cat FILE, with register and changed_when: false",
    "find": "exec: find DIR -name PATTERN, with register and changed_when: false",
    "cron": "exec: crontab -",
    "uri": "exec: curl -fsS URL, with register and changed_when: false",
    "mpi": "run",
}
"""Module of Ansible that ipexctl lacks → what to write instead."""

RESERVED: Final = frozenset(
    {"facts", "ansible_facts", "hostvars", "groups", "group_names", "inventory_hostname", "node0", "here"}
)
"""Variables that ipexctl sets, which a playbook must not."""

Reader = Callable[[str, Node], Any]
"""Returns the value of the keyword with that name. Raises a FileError at the position of a mistake."""


def known_value(option: Option) -> Reader:
    """Return a reader for a value that must be known before the playbook runs, so it can be no template."""

    def read_known(key: str, node: Node) -> Any:
        value = node.value()
        if isinstance(value, TemplateText):
            raise node.error(f"{quote(key)} can't be a template", fix="write the value itself")
        try:
            return convert_value(option, value)
        except BadOption as bad:
            raise node.error(f"{quote(key)} {bad.message}", fix=bad.fix) from None

    return read_known


boolean: Final = known_value(Option("bool"))


def text(key: str, node: Node) -> str | TemplateText:
    """Return a text as it is written, or a template."""
    if not node.is_a("scalar"):
        raise node.error(f"{quote(key)} must be text, not {node.kind}")
    return node.written() or ""


def name_of(key: str, node: Node) -> str:
    """Return the name of a variable, as for `register`."""
    text(key, node)
    return _checked_variable(node)


def plain_texts(key: str, node: Node) -> tuple[str, ...]:
    """Return a text or a list of texts without the empty ones; templates are refused."""
    for item in node.items():
        if not item.is_a("scalar") or isinstance(item.written(), TemplateText):
            raise item.error(f"{quote(key)} takes plain words, not {item.kind}")
    return tuple(name for item in node.items() if (name := item.text.strip()))


def conditions(_: str, node: Node) -> tuple[TemplateText, ...]:
    """Return Jinja expressions without braces: one, or a list that must all hold."""
    return tuple(condition(item) for item in node.items())


def condition(node: Node) -> TemplateText:
    """Return one expression; `"{{ x }}"` is read as `x`."""
    if not node.is_a("scalar") or not node.text.strip():
        raise node.error(f"a condition is an expression, not {node.kind}")
    template = node.template("expr")
    if bare := re.fullmatch(r"\s*\{\{(((?!\}\}|\{\{).)*)\}\}\s*", template.text, re.DOTALL):
        return replace(template, text=bare[1])
    if brace := re.search(r"\{\{|\{%", template.text):
        fix = f"write it without {brace[0]}, as in: when: facts.cpu.tier == 'amx'"
        raise template.spot(None, brace[0]).error("a condition is already an expression", fix=fix)
    return template


def truth(key: str, node: Node) -> tuple[TemplateText, ...] | bool:
    """Return the value of `changed_when` or `failed_when`: a bool or conditions."""
    value = node.value() if node.is_a("scalar") else None
    return value if isinstance(value, bool) else conditions(key, node)


def variables(node: Node | None, what: str = "'vars'") -> Mapping[str, Value]:
    """Return name → value of a mapping of variables; empty for None. `what`: what errors call the mapping."""
    entries = {} if node is None else node.entries(what)
    return {_checked_variable(entry.key_node): entry.value.value() for entry in entries.values()}


def _checked_variable(node: Node) -> str:
    if not is_variable_name(node.text):
        raise node.error(f"{node.kind} can't be a variable name", fix="letters, digits and _")
    if node.text in RESERVED:
        raise node.error(f"{quote(node.text)} is a variable that ipexctl sets", fix="use another name")
    return node.text


def _ignore_errors(key: str, node: Node) -> bool | TemplateText:
    value = node.value()
    return value if isinstance(value, TemplateText) else bool(boolean(key, node))


def _tags(key: str, node: Node) -> tuple[str, ...]:
    return tuple(tag for text in plain_texts(key, node) for part in text.split(",") if (tag := part.strip()))


def _environment(_: str, node: Node) -> tuple[Value, ...]:
    """Return the mappings of `environment`, which may also be templates."""
    value = node.value()
    values = value if isinstance(value, list) else [value]
    for mapping in values:
        if not isinstance(mapping, dict | TemplateText):
            raise node.error(f"'environment' must be a mapping of variables, not {node.kind}")
        for name in mapping if isinstance(mapping, dict) else ():
            if not is_variable_name(name):
                raise node.error(f"{quote(name)} can't be a variable name")
    return tuple(values)


_ADDED: Final[Mapping[str, Reader]] = {
    "when": conditions,
    "tags": _tags,
    "vars": lambda _, node: (variables(node),),
    "environment": _environment,
}
"""Task keywords that add to the values of the play and its blocks. All other keywords replace them."""
_INHERITED: Final[Mapping[str, Reader]] = {
    **_ADDED,
    **dict.fromkeys(("become", "no_log", "run_once", "check_mode", "diff"), boolean),
    "ignore_errors": _ignore_errors,
    **dict.fromkeys(("become_user", "delegate_to"), text),
    "timeout": known_value(Option("float", minimum=0.1)),
}
OF_TASKS: Final[Mapping[str, Reader]] = {
    "name": text,
    "register": name_of,
    "until": conditions,
    "retries": known_value(Option("int", minimum=0)),
    "delay": known_value(Option("float", minimum=0)),
    **dict.fromkeys(("changed_when", "failed_when"), truth),
    "notify": lambda key, node: tuple((name, node.position) for name in plain_texts(key, node)),
    "listen": plain_texts,
}
TASK: Final = frozenset([*_INHERITED, *OF_TASKS, "loop", "with_items", "loop_control", "args"])
BLOCK: Final = frozenset([*_INHERITED, "name", "block", "rescue", "always", "any_errors_fatal"])
INCLUDES: Final = frozenset({"include_tasks", "import_tasks"})
INCLUDE: Final = frozenset([*_INHERITED, *INCLUDES, "name", "args"])
_OF_PLAYS: Final = "name hosts vars_files tasks pre_tasks post_tasks handlers gather_facts any_errors_fatal serial"
PLAY: Final = frozenset([*_INHERITED, *_OF_PLAYS.split(), "strategy", "import_playbook"]) - {
    "when",
    "delegate_to",
    "run_once",
}


def advice(keyword: str, known: Collection[str]) -> str:
    """Return the fix for a keyword that is unknown there. `known`: the keywords that are allowed."""
    if keyword in UNSUPPORTED:
        return UNSUPPORTED[keyword]
    if keyword.startswith("with_"):
        return "loop replaces with_…"
    return did_you_mean(keyword, sorted(known), f"one of: {', '.join(sorted(known))}" if len(known) < 30 else "")


def report_unknown(
    entries: Iterable[Keyed], known: Collection[str], owner: str, advise: Callable[[str], str] | None = None
) -> None:
    """Report an error for each keyword that is not in `known`. `owner`: what lacks it. `advise`: keyword → fix."""
    for entry in entries:
        if entry.key not in known:
            fix = advise(entry.key) if advise else advice(entry.key, known)
            entry.key_node.report(f"{owner} has no {quote(entry.key)}", fix=fix)


def read_keywords(entries: Mapping[str, Keyed], readers: Mapping[str, Reader]) -> dict[str, Any]:
    """Return keyword → value for the keywords that have a reader. A wrong value is reported, and left out."""
    values = {}
    for key, entry in entries.items():
        if key in readers:
            with entry.value.file.reporting():
                values[key] = readers[key](key, entry.value)
    return values


def read_inherited(entries: Mapping[str, Keyed], above: InheritedKeywords) -> InheritedKeywords:
    """Return the keywords of a play, block or task, with those that it inherits from `above`."""
    values = read_keywords(entries, _INHERITED)
    return replace(
        above, **{key: getattr(above, key) + value if key in _ADDED else value for key, value in values.items()}
    )
