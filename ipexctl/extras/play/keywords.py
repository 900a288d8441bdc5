"""Keywords of plays, blocks and tasks, how tasks inherit them, and names from Ansible that ipexctl does not support.
`when`, `tags`, `vars` and `environment` accumulate; for all other keywords the innermost value counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, Final

from ipexctl.extras.play.playbook_file import PlaybookFile, TemplateText, Value
from ipexctl.extras.play.playbook_model import BadOption, InheritedKeywords, Option, convert_value
from ipexctl.hosts.host import did_you_mean, quote
from ipexctl.hosts.yaml_tree import Entry, YamlNode, is_null, kind
from ipexctl.text import is_variable_name

ANSIBLE_FACTS: Final = (
    *("hostname", "nodename", "fqdn", "distribution", "distribution_version", "os_family", "kernel"),
    *("architecture", "processor_vcpus", "memtotal_mb", "user_id", "user_dir"),
)
_LEFT_OUT: Final = "this play has gather_facts: false, so it has no facts"
HINTS: Final = {
    **{f"ansible_{name}": _LEFT_OUT for name in ANSIBLE_FACTS},
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


KeywordReader = Callable[[PlaybookFile, Entry], Any]


RESERVED: Final = frozenset(
    {"facts", "ansible_facts", "hostvars", "groups", "group_names", "inventory_hostname", "node0", "here"}
)


def known_value(option: Option) -> KeywordReader:
    def read_known(file: PlaybookFile, entry: Entry) -> Any:
        value = file.value(entry.value)
        if isinstance(value, TemplateText):
            raise file.error(entry.value, f"{quote(entry.key)} can't be a template", fix="write the value itself")
        try:
            return convert_value(option, value)
        except BadOption as bad:
            raise file.error(entry.value, f"{quote(entry.key)} {bad.message}", fix=bad.fix) from None

    return read_known


boolean: Final = known_value(Option("bool"))


def text(file: PlaybookFile, entry: Entry) -> str | TemplateText:
    if entry.value.id != "scalar" or is_null(entry.value):
        raise file.error(entry.value, f"{quote(entry.key)} must be text, not {kind(entry.value)}")
    return file.text_value(entry.value)


def name_of(file: PlaybookFile, entry: Entry) -> str:
    text(file, entry)
    check_variable(file, entry.value)
    return str(entry.value.value)


def plain_texts(file: PlaybookFile, entry: Entry) -> tuple[str, ...]:
    nodes = file.listed(entry.value)
    for node in nodes:
        if node.id != "scalar" or is_null(node) or isinstance(file.text_value(node), TemplateText):
            raise file.error(node, f"{quote(entry.key)} takes plain words, not {kind(node)}")
    return tuple(name for node in nodes if (name := str(node.value).strip()))


def conditions(file: PlaybookFile, entry: Entry) -> tuple[TemplateText, ...]:
    """Jinja expressions without braces: one, or a list that must all hold."""
    templates = []
    for item in file.listed(entry.value):
        if item.id != "scalar" or is_null(item) or not str(item.value).strip():
            raise file.error(item, f"a condition is an expression, not {kind(item)}")
        templates.append(condition(file, item))
    return tuple(templates)


def condition(file: PlaybookFile, node: YamlNode) -> TemplateText:
    """Read `"{{ x }}"` as `x`."""
    template = replace(file.template(node), kind="expr")
    bare = re.fullmatch(r"\s*\{\{(((?!\}\}|\{\{).)*)\}\}\s*", template.text, re.DOTALL)
    if bare:
        return replace(template, text=bare[1])
    if "{{" in template.text or "{%" in template.text:
        brace = "{{" if "{{" in template.text else "{%"
        raise template.spot(None, brace).error(
            "a condition is already an expression",
            fix=f"write it without {brace}, as in: when: facts.cpu.tier == 'amx'",
        )
    return template


def truth(file: PlaybookFile, entry: Entry) -> tuple[TemplateText, ...] | bool:
    """Value of `changed_when` or `failed_when`: a bool or conditions."""
    if entry.value.id == "scalar" and isinstance(value := file.value(entry.value), bool):
        return value
    return conditions(file, entry)


def variables(file: PlaybookFile, node: YamlNode | None, what: str) -> Mapping[str, Value]:
    values = {}
    for entry in file.entries(node, what) if node is not None else ():
        check_variable(file, entry.key_node)
        values[entry.key] = file.value(entry.value)
    return values


def check_variable(file: PlaybookFile, node: YamlNode) -> None:
    name = str(node.value)
    if not is_variable_name(name):
        raise file.error(node, f"{kind(node)} can't be a variable name", fix="letters, digits and _")
    if name in RESERVED:
        raise file.error(node, f"{quote(name)} is a variable that ipexctl sets", fix="use another name")


def _ignore_errors(file: PlaybookFile, entry: Entry) -> bool | TemplateText:
    value = file.value(entry.value)
    return value if isinstance(value, TemplateText) else bool(boolean(file, entry))


def _tags(file: PlaybookFile, entry: Entry) -> tuple[str, ...]:
    parts = [part.strip() for text in plain_texts(file, entry) for part in text.split(",")]
    return tuple(filter(None, parts))


def _environment(file: PlaybookFile, entry: Entry) -> tuple[Value, ...]:
    value = file.value(entry.value)
    values = value if isinstance(value, list) else [value]
    for mapping in values:
        if not isinstance(mapping, dict | TemplateText):
            raise file.error(entry.value, f"'environment' must be a mapping of variables, not {kind(entry.value)}")
        for name in mapping if isinstance(mapping, dict) else ():
            if not is_variable_name(name):
                raise file.error(entry.value, f"{quote(name)} can't be a variable name")
    return tuple(values)


_ADDED: Final[Mapping[str, KeywordReader]] = {
    "when": conditions,
    "tags": _tags,
    "vars": lambda file, entry: (variables(file, entry.value, "'vars'"),),
    "environment": _environment,
}
"""Task keywords that add to the values of the play and its blocks. All other keywords replace them."""
_INHERITED: Final[Mapping[str, KeywordReader]] = {
    **_ADDED,
    **dict.fromkeys(("become", "no_log", "run_once", "check_mode", "diff"), boolean),
    "ignore_errors": _ignore_errors,
    "become_user": text,
    "delegate_to": text,
    "timeout": known_value(Option("float", minimum=0.1)),
}
OF_TASKS: Final[Mapping[str, KeywordReader]] = {
    "name": text,
    "register": name_of,
    "until": conditions,
    "retries": known_value(Option("int", minimum=0)),
    "delay": known_value(Option("float", minimum=0)),
    "changed_when": truth,
    "failed_when": truth,
    "notify": lambda file, entry: tuple((name, file.position(entry.value)) for name in plain_texts(file, entry)),
    "listen": plain_texts,
}
TASK: Final = frozenset([*_INHERITED, *OF_TASKS, "loop", "with_items", "loop_control", "args"])
BLOCK: Final = frozenset([*_INHERITED, "name", "block", "rescue", "always", "any_errors_fatal"])
INCLUDES: Final = frozenset({"include_tasks", "import_tasks"})
INCLUDE: Final = frozenset([*_INHERITED, *INCLUDES, "name", "args"])
_OF_PLAYS: Final = "name hosts vars_files tasks pre_tasks post_tasks handlers gather_facts any_errors_fatal serial"
PLAY: Final = frozenset([*_INHERITED, *_OF_PLAYS.split(), "strategy", "import_playbook"]) - {
    *("when", "delegate_to", "run_once")
}


def advice(keyword: str, known: Collection[str]) -> str:
    if keyword in UNSUPPORTED:
        return UNSUPPORTED[keyword]
    if keyword.startswith("with_"):
        return "loop replaces with_…"
    return did_you_mean(keyword, sorted(known), f"one of: {', '.join(sorted(known))}" if len(known) < 30 else "")


def report_unknown(
    file: PlaybookFile,
    entries: Mapping[str, Entry],
    known: Collection[str],
    owner: str,
    advise: Callable[[str], str] | None = None,
) -> None:
    for key, entry in entries.items():
        if key not in known:
            fix = advise(key) if advise else advice(key, known)
            file.report(entry.key_node, f"{owner} has no {quote(key)}", fix=fix)


def read_keywords(
    file: PlaybookFile, entries: Mapping[str, Entry], readers: Mapping[str, KeywordReader]
) -> dict[str, Any]:
    values = {}
    for key, entry in entries.items():
        if key in readers:
            with file.reporting():
                values[key] = readers[key](file, entry)
    return values


def read_inherited(file: PlaybookFile, entries: Mapping[str, Entry], above: InheritedKeywords) -> InheritedKeywords:
    values = read_keywords(file, entries, _INHERITED)
    return replace(above, **{key: getattr(above, key) + v if key in _ADDED else v for key, v in values.items()})
