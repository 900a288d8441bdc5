"""Keep the variables of a playbook, in Ansible's precedence, and what the modules of one call share (`PlayContext`).

From the weakest to the strongest: inventory of groups, group_vars, inventory of the host, host_vars, facts, the play's
`vars` and `vars_files`, variables that ipexctl sets, `vars` of tasks, what tasks set, the loop, `-e`. Vaults are
refused: secrets come from the environment of the call.
"""

from __future__ import annotations

import ast
import json
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Final

from ipexctl.addons.play.playbook import Play, Position, TemplateText, Value
from ipexctl.addons.play.read import read_variables
from ipexctl.addons.play.result import PlayWatcher
from ipexctl.addons.play.templates import LazyMapping, Scope, Templates
from ipexctl.errors import UserError
from ipexctl.facts.facts import Facts
from ipexctl.file_reader import PLAYBOOK, NotRegularError, read_regular
from ipexctl.found_files import check_found
from ipexctl.hosts.host import Host
from ipexctl.hosts.source import SourceFile
from ipexctl.node.common.json_records import parse_json
from ipexctl.option_declaration import DEFAULT_HOME
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.connector import OpenHosts, SessionPool
from ipexctl.remote.outcome import Cancelled
from ipexctl.remote.session import Session

VarsDirs = Mapping[str, Sequence[Mapping[str, Value]]]
"""`group_vars/GROUP` or `host_vars/HOST` → variables of its files, stronger files last."""


def read_vars_dirs(directories: Sequence[Path], hosts: Sequence[Host]) -> VarsDirs:
    """Return the variables of all groups and hosts, from group_vars and host_vars of these directories.

    `directories`: the strongest last. Raises a UserError for a file that can't be read.
    """
    parents = list(dict.fromkeys(directory.resolve() for directory in directories))
    groups = dict.fromkeys(["all", *chain.from_iterable(host.groups for host in hosts)])
    dirs = {}
    for name in [*(f"group_vars/{group}" for group in groups), *(f"host_vars/{host.name}" for host in hosts)]:
        paths = [parent / f"{name}{suffix}" for parent in parents for suffix in (".yml", ".yaml", ".json", "")]
        dirs[name] = [_variables_in(path) for path in paths if path.exists()]
    return dirs


def _variables_in(path: Path) -> Mapping[str, Value]:
    """Return the variables of a file that was found, not named. Raises a UserError for a directory or a vault, too."""
    if path.is_dir():
        fix = f"use one file: {path.with_suffix('.yml')}"
        raise UserError(f"{path} is a directory: its files aren't read", fix=fix)
    check_found(path)
    try:
        is_vault = read_regular(path, PLAYBOOK).startswith(b"$ANSIBLE_VAULT")
    except NotRegularError:
        raise UserError(f"{path}: this is not a regular file", fix="remove it") from None
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from None
    if is_vault:
        fix = "take secrets from the environment: {{ lookup('env', 'NAME') }}"
        raise UserError(f"{path} is an Ansible vault, which ipexctl can't read", fix=fix)
    return read_variables(path)


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the call of `ipexctl play`."""

    home: str = DEFAULT_HOME
    iface: str | None = None
    timeout: float | None = None
    """Seconds for a task on a host; None for no limit."""
    check: bool = False
    diff: bool = False
    verbose: int = 0
    local: bool = False
    """True if tasks may be delegated to this machine."""
    vars_dirs: VarsDirs = field(default_factory=dict)
    extra: Sequence[Mapping[str, Any]] = ()
    """Variables of each `-e`, later ones stronger."""


class Variables:
    """What each host knows: of its inventory, files and facts, of the play, and what its tasks have set."""

    def __init__(self, templates: Templates, hosts: Sequence[Host], options: Options, magic: Mapping[str, Any]) -> None:
        self.facts: dict[str, Mapping[str, Any]] = {}
        """Host → `facts`, `ansible_facts` and `ansible_…`; a host is missing until its facts are gathered."""
        self.own: dict[str, dict[str, Any]] = {host.name: {} for host in hosts}
        """Host → variables that tasks have set: set_fact and register."""
        self._templates = templates
        self._extra = options.extra
        self._dirs = options.vars_dirs
        self._hosts = {host.name: host for host in hosts}
        groups: dict[str, list[str]] = {"all": [*self._hosts]}
        for host in hosts:
            for group in host.groups:
                groups.setdefault(group, []).append(host.name)
        self._magic = {"groups": groups, **magic}
        self._play: list[Mapping[str, Value]] = []

    def begin_play(self, play: Play) -> None:
        """Replace the variables of the previous play by those of this one. What tasks have set stays."""
        self._play = [play.vars, *play.file_vars]

    def begin_batch(self, hosts: Sequence[str], batch: Sequence[str]) -> None:
        """Set the variables that name the hosts of the play and of its present batch."""
        self._magic |= {"ansible_play_hosts": hosts, "ansible_play_hosts_all": hosts, "ansible_play_batch": batch}

    def scope(
        self, name: str, weak: Sequence[Mapping[str, Value]] = (), strong: Sequence[Mapping[str, Value]] = ()
    ) -> Scope:
        """Return the variables of a host for one task.

        `weak`: variables of the task and its blocks, which variables that tasks have set override. `strong`: those of
        a loop, which override them.
        """
        host, dirs = self._hosts[name], self._dirs
        inventory = {key: _of_inventory(name, key, text) for key, text in host.vars.items()}
        shared = {key: value for key, value in inventory.items() if key in host.shared}
        own = {key: value for key, value in inventory.items() if key not in host.shared}
        groups = ("all", *host.groups)
        group_files = list(chain.from_iterable(dirs.get(f"group_vars/{group}", ()) for group in groups))
        weakest = [shared, *group_files, own, *dirs.get(f"host_vars/{name}", ()), self.facts.get(name, {}), *self._play]
        magic = {
            **self._magic,
            "inventory_hostname": name,
            "inventory_hostname_short": name.partition(".")[0],
            "ansible_host": host.address,
            "group_names": list(host.groups),
            **({"ansible_user": host.user} if host.user is not None else {}),
        }
        hostvars = LazyMapping(self._hosts, lambda other: self.scope(other).as_mapping())
        return Scope(self._templates, [*weakest, magic, *weak, self.own[name], *strong, *self._extra], hostvars)


def _of_inventory(host: str, name: str, text: str) -> Any:
    """Return a variable of the inventory as Ansible does: numbers, booleans, lists and mappings are no texts."""
    if "{{" in text or "{%" in text:
        return TemplateText(text, Position(SourceFile(f"inventory, {name} of {host}", Path(), text.splitlines()), 1, 1))
    if re.fullmatch(r"-?(0|[1-9][0-9]{0,17})", text):
        return int(text)
    if re.fullmatch(r"-?[0-9]{1,17}\.[0-9]{1,17}", text):
        return float(text)
    for parse in (parse_json, ast.literal_eval) if text.startswith(("[", "{")) else ():
        # A list or mapping is JSON if from a YAML inventory, a Python literal if from an INI file.
        with suppress(ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            value = parse(text)
            json.dumps(value)
            return value
    return {"true": True, "false": False}.get(text.lower(), text)


_FAMILIES: Final = {
    **dict.fromkeys(("debian", "ubuntu", "linuxmint", "raspbian"), "Debian"),
    **dict.fromkeys(("rhel", "centos", "rocky", "almalinux", "fedora", "ol", "amzn"), "RedHat"),
    **dict.fromkeys(("sles", "opensuse-leap", "opensuse-tumbleweed"), "Suse"),
}


def ansible_facts(facts: Facts, host: str) -> dict[str, Any]:
    """Return the facts that playbooks for Ansible use most, by Ansible's names without `ansible_`."""
    system = facts.system
    hostname, distro = facts.network.hostname or host, system.distro_id or ""
    return {
        "hostname": hostname.partition(".")[0],
        "nodename": hostname,
        "fqdn": facts.network.canonical or hostname,
        "distribution": {"rhel": "RedHat", "centos": "CentOS"}.get(distro, distro.title()),
        "distribution_version": system.distro_version,
        "os_family": _FAMILIES.get(distro, distro.title()),
        "kernel": system.kernel,
        "architecture": system.arch,
        "processor_vcpus": facts.cpu.threads,
        "memtotal_mb": (facts.memory.total or 0) >> 20,
        "user_id": facts.account.user,
        "user_dir": facts.account.home,
    }


@dataclass
class PlayContext:
    """What the modules of one call share.

    Each host has one connection with one task at a time on it, because several tasks may be delegated to one host.
    Modules that open and close sessions themselves, such as run, borrow one (`SessionPool.borrow`).
    """

    pool: SessionPool
    templates: Templates
    options: Options
    watcher: PlayWatcher
    hosts: Sequence[Host]
    """Hosts after --limit; the first is node0."""
    all_hosts: Sequence[Host]
    """Includes hosts that --limit leaves out, whose variables templates may use."""
    cwd: Path
    not_run: set[tuple[str, str]] = field(default_factory=set)
    """(host, variable) pairs registered by a task that --check did not run, so their values are unknown."""
    _locks: dict[str, threading.Lock] = field(default_factory=dict)

    @property
    def secrets(self) -> set[str]:
        """Return the values that are masked in all output. Callers add to this set."""
        return self.templates.secrets

    @property
    def cancel(self) -> Cancel:
        """Return what ends waiting calls and running commands if the playbook is interrupted."""
        return self.pool.cancel

    def variables(self, playbook_dir: Path) -> Variables:
        """Return the variables before the first task."""
        magic = {
            "node0": self.hosts[0].name,
            "playbook_dir": str(playbook_dir),
            "here": str(self.cwd),
            "ansible_check_mode": self.options.check,
            "ansible_diff_mode": self.options.diff,
        }
        return Variables(self.templates, self.all_hosts, self.options, magic)

    @contextmanager
    def session(self, host: Host) -> Iterator[Session]:
        """Yield the host's session, locked against other tasks that are delegated to the host."""
        with self._locks.setdefault(host.name, threading.Lock()):  # setdefault is atomic
            yield self.pool.session(host)

    def opened(self, hosts: Sequence[Host], timeout: float | None) -> OpenHosts:
        """Return these hosts for a step of `api`, with the sessions of the play."""
        return OpenHosts(tuple(hosts), self.pool, self.options.home, self.options.iface, timeout)

    def sleep(self, seconds: float) -> None:
        """Wait, or until the call is cancelled."""
        with suppress(Cancelled):
            self.cancel.sleep(seconds)
