"""Hold an Ansible inventory: groups, variables and the hosts they describe. `inventory_files.py` fills it.

A connection variable (`ansible_host`, ssh arguments …) that can't be honoured is an error, because the login would go
elsewhere. `node1:8` is refused, because Ansible reads 8 as a port and a hostfile as slots.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path
from typing import Final, TypeVar

from ipexctl.errors import FileError
from ipexctl.hosts.host import Host, WordError, check_user, quote
from ipexctl.hosts.hostfile import read_count, read_path, read_port, read_ssh_config
from ipexctl.hosts.nodeset import expand_ranges
from ipexctl.hosts.source import SourceFile, proxy_argument, refused_argument
from ipexctl.hosts.words import read_address, read_host_word

Value = TypeVar("Value")
# The newest name comes first, and counts if a host has both.
_ADDRESS: Final = ("ansible_host", "ansible_ssh_host")
_USER: Final = ("ansible_user", "ansible_ssh_user")
_PORT: Final = ("ansible_port", "ansible_ssh_port")
_IDENTITY: Final = ("ansible_ssh_private_key_file", "ansible_private_key_file")
# In the order of ssh's command line, where the first value counts.
_SSH_ARGS: Final = ("ansible_ssh_args", "ansible_ssh_common_args", "ansible_ssh_extra_args")
_KNOWN_HOSTS: Final = "userknownhostsfile"


@dataclass(frozen=True, slots=True)
class HostSetting:
    text: str
    line: int
    column: int
    problem: str = ""


def host_from(
    source: SourceFile, name: str, position: tuple[int, int], groups: tuple[str, ...], settings: dict[str, HostSetting]
) -> Host:
    """Build the host and remove the variables that it uses from `settings`."""
    reader = _SettingReader(source, settings)
    slots = settings.get("slots")
    local = settings.get("ansible_connection")
    is_local = local is not None and local.text == "local"
    address = reader.value(_ADDRESS, str if is_local else read_address)
    if is_local:
        del settings["ansible_connection"]
        address = "localhost"
    ssh_config, known_hosts, proxy = reader.ssh_arguments()
    host = Host(
        name=name,
        address=address or name,
        user=reader.value(_USER, check_user),
        port=reader.value(_PORT, read_port),
        slots=reader.value(("slots",), lambda text: read_count(text, "slots")),
        max_slots=reader.value(("max_slots", "max-slots"), lambda text: read_count(text, "max_slots")),
        internal=reader.value(("internal",), read_address),
        identity=reader.value(_IDENTITY, reader.path),
        known_hosts=known_hosts,
        ssh_config=ssh_config,
        proxy=proxy,
        groups=groups,
        vars={key: setting.text for key, setting in settings.items()},
    )
    if host.slots and host.max_slots and host.slots > host.max_slots:
        line, column = position if slots is None else (slots.line, slots.column)
        raise source.error(line, column, f"slots={host.slots} is more than max_slots={host.max_slots}")
    return host


@dataclass(frozen=True, slots=True)
class _SettingReader:
    source: SourceFile
    settings: dict[str, HostSetting]

    def value(self, keys: tuple[str, ...], parse_text: Callable[[str], Value]) -> Value | None:
        """Return the value of the first of these variables that has one, and remove all of them from the settings; None
        if none has. Raises a FileError for a value that can't be used."""
        present = [self.settings.pop(key) for key in keys if key in self.settings]
        for setting in present:
            if setting.problem or setting.text:
                self._check_usable(setting)
                return self.parse(setting, parse_text)
        return None

    def parse(self, setting: HostSetting, parse_text: Callable[[str], Value], text: str | None = None) -> Value:
        try:
            return parse_text(setting.text if text is None else text)
        except WordError as error:
            raise self.source.word_error(setting.line, error.moved(setting.column - 1)) from None

    def path(self, text: str) -> Path:
        return read_path(text, self.source.base)

    def ssh_arguments(self) -> tuple[Path | None, Path | None, str | None]:
        """Return `-F`, UserKnownHostsFile and proxy of ssh's arguments; other arguments stay in the settings. Raises a
        FileError for arguments that can't be read, or that a file that the user did not name must not have."""
        config = known_hosts = proxy = None
        for key in _SSH_ARGS:
            setting = self.settings.get(key)
            if setting is not None and self.source.found:
                self._refuse_found(setting)
            if setting is None or not re.search(
                rf"-F|-\w*J|{_KNOWN_HOSTS}|proxy(jump|command)", setting.text, re.IGNORECASE
            ):
                continue
            self._check_usable(setting)
            try:
                arguments = shlex.split(setting.text)
            except ValueError:
                raise self._error(setting, f"the quotes in {key} don't match") from None
            options, rest = _split_ssh_arguments(arguments)
            if "config" in options and config is None:
                config = self.parse(setting, lambda text: read_ssh_config(text, self.source.base), options["config"])
            if "known_hosts" in options and known_hosts is None:
                known_hosts = self.parse(setting, self.path, options["known_hosts"])
            proxy = proxy or options.get("proxy")
            if name := proxy_argument(rest):
                fix = "-o ProxyJump=NAME, with -o as a word of its own"
                raise self.source.error(setting.line, setting.column, f"{name} can't be read in {key}", fix=fix)
            del self.settings[key]
            if rest:
                self.settings[key] = HostSetting(shlex.join(rest), setting.line, setting.column)
        return config, known_hosts, proxy

    def _refuse_found(self, setting: HostSetting) -> None:
        refused = refused_argument(_split_words(setting.text))
        if refused is not None:
            raise self.source.found_error(setting.line, setting.column, *refused)

    def _check_usable(self, setting: HostSetting) -> None:
        """Refuse a value that Ansible would compute."""
        if setting.problem:
            raise self._error(setting, setting.problem)
        if "{{" in setting.text or "{%" in setting.text:
            raise self.source.error(
                setting.line,
                setting.column,
                f"{quote(setting.text)} is a Jinja expression, which isn't evaluated here",
                fix="write the value itself, or let `ansible-inventory --list --yaml` write the file",
            )

    def _error(self, setting: HostSetting, problem: str) -> FileError:
        return self.source.error(setting.line, setting.column, problem)


@lru_cache(maxsize=64)
def _split_words(text: str) -> tuple[str, ...]:
    """Split ssh's arguments as a shell does. Cached, because usually all hosts have the same arguments."""
    try:
        return tuple(shlex.split(text))
    except ValueError:
        return tuple(text.split())


def _split_ssh_arguments(arguments: list[str]) -> tuple[dict[str, str], list[str]]:
    """Return the arguments that ipexctl honours, as config, proxy and known_hosts, and the rest. The first of several
    counts, as in ssh."""
    options: dict[str, str] = {}
    rest: list[str] = []
    index = 0
    while index < len(arguments):
        flag, value, count = arguments[index][:2], arguments[index][2:], 1
        if flag in ("-F", "-J", "-o") and not value and index + 1 < len(arguments):
            value, count = arguments[index + 1], 2
        kind, text = _ssh_option(flag, value)
        if kind and text:
            options.setdefault(kind, text)
        else:
            rest.extend(arguments[index : index + count])
        index += count
    return options, rest


def _ssh_option(flag: str, value: str) -> tuple[str, str]:
    """Return the kind of an ssh argument and its value; two empty texts for one that ipexctl does not honour."""
    if flag == "-F":
        return "config", value
    if flag == "-J":
        return "proxy", f"ProxyJump={value}"
    key, _, file = value.replace("=", " ", 1).strip().partition(" ")
    file = file.strip().strip('"')
    # /dev/null and none mean "keep no keys", a choice left to --host-keys; several files don't fit in one path.
    if flag == "-o" and key.lower() == _KNOWN_HOSTS and file not in ("/dev/null", "none") and " " not in file:
        return "known_hosts", file
    if flag == "-o" and key.lower() in ("proxyjump", "proxycommand"):
        return "proxy", value
    return "", ""


ALL: Final = "all"
UNGROUPED: Final = "ungrouped"
MAX_DEPTH: Final = 100
MAX_ENTRIES: Final = 200_000
_LOWEST_SSH_PORT: Final = 22


@dataclass(slots=True)
class Group:
    children: dict[str, tuple[int, int]] = field(default_factory=dict)
    vars: dict[str, HostSetting] = field(default_factory=dict)


class Inventory:
    def __init__(self, source: SourceFile) -> None:
        self.source = source
        self.groups: dict[str, Group] = {ALL: Group(), UNGROUPED: Group()}
        self._host_vars: dict[str, dict[str, HostSetting]] = {}
        self._host_groups: dict[str, dict[str, None]] = {}
        self._positions: dict[str, tuple[int, int]] = {}
        self._entries = 0

    def group(self, name: str) -> Group:
        """Return the group of this name, made empty if it is new."""
        return self.groups.setdefault(name, Group())

    def add_child(self, parent: str, child: str, line: int, column: int) -> None:
        """Put a group into another. Raises a FileError for `all`, which holds every group."""
        if child == ALL:
            raise self.source.error(line, column, "'all' holds every group and can't be a child of one")
        self.group(child)
        self.group(parent).children.setdefault(child, (line, column))

    def add_hosts(self, group: str, pattern: str, settings: Mapping[str, HostSetting], line: int, column: int) -> None:
        """Put the hosts of a pattern such as `node[1:4]` into a group. Raises a FileError."""
        try:
            word = read_host_word(pattern, column=column, names_of=expand_ranges)
            own = dict(settings)
            if word.number:
                _refuse_slots(word.number, word.number_column)
                own.setdefault("ansible_port", HostSetting(word.number, line, word.number_column))
        except WordError as error:
            raise self.source.word_error(line, error) from None
        if word.user is not None:
            own.setdefault("ansible_user", HostSetting(word.user, line, column))
        self._entries += len(word.names)
        if self._entries > MAX_ENTRIES:
            raise self.source.error(line, column, f"more than {MAX_ENTRIES:,} hosts in one inventory")
        self.group(group)
        for name in word.names:
            self._host_vars.setdefault(name, {}).update(own)
            self._host_groups.setdefault(name, {})[group] = None
            self._positions.setdefault(name, (line, column))

    def hosts(self) -> tuple[Host, ...]:
        """Return all hosts in the order of the file, with the variables of their groups; a host's own count more."""
        parents: dict[str, list[str]] = {name: [] for name in self.groups}
        for name, group in self.groups.items():
            for child in group.children:
                parents[child].append(name)
        order = self._depths(parents)
        shared: dict[tuple[str, ...], tuple[tuple[str, ...], dict[str, HostSetting]]] = {}
        hosts: list[Host] = []
        for name, own in self._host_vars.items():
            direct = tuple(self._host_groups[name])
            if direct not in shared:
                shared[direct] = self._inherited(direct, order, parents)
            groups, settings = shared[direct]
            host = host_from(self.source, name, self._positions[name], groups, {**settings, **own})
            hosts.append(replace(host, shared=frozenset(host.vars.keys() - own.keys())))
        return tuple(hosts)

    def _inherited(
        self, direct: Iterable[str], order: Mapping[str, int], parents: Mapping[str, list[str]]
    ) -> tuple[tuple[str, ...], dict[str, HostSetting]]:
        """Return the groups of a host in the order in which their variables apply, and the variables that they give it.
        Deeper groups count more than the groups that hold them; `ansible_group_priority` decides between equals."""
        ancestors: set[str] = set()
        pending = list(direct)
        while pending:
            group = pending.pop()
            if group not in ancestors:
                ancestors.add(group)
                pending.extend(parents[group])
        ancestors.discard(ALL)
        ancestors.discard(UNGROUPED)
        ancestors = ancestors or {UNGROUPED}

        def priority(group: str) -> int:
            setting = self.groups[group].vars.get("ansible_group_priority")
            return int(setting.text) if setting and setting.text.isdecimal() and len(setting.text) < 10 else 1

        groups = tuple(sorted(ancestors, key=lambda group: (order[group], priority(group), group)))
        settings = dict(self.groups[ALL].vars)
        for group in groups:
            settings.update(self.groups[group].vars)
        settings.pop("ansible_group_priority", None)
        return groups, settings

    def _depths(self, parents: Mapping[str, list[str]]) -> dict[str, int]:
        """Return group → the length of the longest path to it from `all`. Raises a FileError for groups that hold each
        other, or that are nested too deep."""
        try:
            order = list(TopologicalSorter(parents).static_order())
        except CycleError as error:
            ring: list[str] = error.args[1]
            position = max(self.groups[parent].children[child] for parent, child in pairwise(ring))
            shown = " > ".join(ring[:8]) + (" > …" if len(ring) > 8 else "")
            problem = f"these groups hold each other: {shown}"
            raise self.source.error(*position, problem, fix="take one of them out") from None
        depths = dict.fromkeys(self.groups, 1)
        for name in order:
            for child, position in self.groups[name].children.items():
                depths[child] = max(depths[child], depths[name] + 1)
                if depths[child] > MAX_DEPTH:
                    raise self.source.error(*position, f"groups are nested more than {MAX_DEPTH} deep")
        return depths


def _refuse_slots(number: str, column: int) -> None:
    """Refuse a port number below 22, which is most likely meant as slots."""
    if number.isdecimal() and len(number) < 3 and int(number) < _LOWEST_SSH_PORT:
        raise WordError(
            f"in an Ansible inventory {quote(':' + number)} is the ssh port, not slots",
            column=column,
            fix=f"slots={number} says the slots, ansible_port={number} the port",
        )
