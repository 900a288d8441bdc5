"""What the modules of one call share (sessions, options, results for later tasks), and the variables of a playbook, in
Ansible's precedence. Vaults are refused: secrets come from the environment of the call.
"""

from __future__ import annotations

import ast
import json
import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ipexctl.api.open_hosts import OpenHosts
from ipexctl.errors import UserError
from ipexctl.extras.play.playbook_file import Position, TemplateText, Value
from ipexctl.extras.play.playbook_model import Play
from ipexctl.extras.play.read import read_variables
from ipexctl.extras.play.result import Call, PlayWatch
from ipexctl.extras.play.templater import Templater
from ipexctl.facts.facts import Facts
from ipexctl.file_reader import PLAYBOOK, NotRegularError, read_regular
from ipexctl.found_files import check_found
from ipexctl.hosts.host import Host, did_you_mean, quote
from ipexctl.hosts.source import SourceFile
from ipexctl.node.common.json_records import parse_json
from ipexctl.option_declaration import DEFAULT_HOME
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.connector import SessionPool
from ipexctl.remote.outcome import Cancelled
from ipexctl.remote.session import Session

VarsDirs = Mapping[str, Sequence[Mapping[str, Value]]]
"""`group_vars/GROUP` or `host_vars/HOST` → variables of its files, stronger files last."""

_SUFFIXES: Final = (".yml", ".yaml", ".json", "")
_VAULT: Final = b"$ANSIBLE_VAULT"


def read_vars_dirs(directories: Sequence[Path], hosts: Sequence[Host]) -> VarsDirs:
    parents = list(dict.fromkeys(directory.resolve() for directory in directories))
    groups = dict.fromkeys(["all", *(group for host in hosts for group in host.groups)])
    dirs = {}
    for name in [*(f"group_vars/{group}" for group in groups), *(f"host_vars/{host.name}" for host in hosts)]:
        paths = [parent / f"{name}{suffix}" for parent in parents for suffix in _SUFFIXES]
        dirs[name] = [_variables(path) for path in paths if path.exists()]
    return dirs


def _variables(path: Path) -> Mapping[str, Value]:
    if path.is_dir():
        raise UserError(
            f"{path} is a directory: its files aren't read", fix=f"use one file: {path.with_suffix('.yml')}"
        )
    check_found(path)
    try:
        vault = read_regular(path, PLAYBOOK).startswith(_VAULT)
    except NotRegularError:
        raise UserError(f"{path}: this is not a regular file", fix="remove it") from None
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from None
    if vault:
        raise UserError(
            f"{path} is an Ansible vault, which ipexctl can't read",
            fix="take secrets from the environment: {{ lookup('env', 'NAME') }}",
        )
    return read_variables(path)


_FAMILIES: Final = {
    "Debian": ("debian", "ubuntu", "linuxmint", "raspbian"),
    "RedHat": ("rhel", "centos", "rocky", "almalinux", "fedora", "ol", "amzn"),
    "Suse": ("sles", "opensuse-leap", "opensuse-tumbleweed"),
}


def send_call_variables(context: PlayContext, playbook_dir: str) -> None:
    templater, hosts = context.templater, context.all_hosts
    groups: dict[str, list[str]] = {"all": [host.name for host in hosts]}
    for host in hosts:
        for group in host.groups:
            groups.setdefault(group, []).append(host.name)
    for number, extra in enumerate(context.options.extra):
        templater.layer(f"extra{number}", extra, templated=True)
    magic = {
        "groups": groups,
        "node0": context.hosts[0].name,
        "playbook_dir": playbook_dir,
        "here": str(context.cwd),
        "ansible_check_mode": context.options.check,
        "ansible_diff_mode": context.options.diff,
    }
    templater.layer("magic", magic, templated=False)
    for name, files in context.options.vars_dirs.items():
        for number, values in enumerate(files):
            templater.layer(f"{name}:{number}", values, templated=True)
    for host in hosts:
        values = {name: _of_inventory(host.name, name, text) for name, text in host.vars.items()}
        for layer, names in (("groups", host.shared), ("inventory", values.keys() - host.shared)):
            templater.layer(f"{layer}:{host.name}", {name: values[name] for name in names}, templated=True)
        templater.layer(
            f"magic:{host.name}",
            {
                "inventory_hostname": host.name,
                "inventory_hostname_short": host.name.partition(".")[0],
                "ansible_host": host.address,
                "group_names": list(host.groups),
                **({"ansible_user": host.user} if host.user is not None else {}),
            },
            templated=False,
        )


def send_play_variables(context: PlayContext, number: int, play: Play) -> None:
    templater = context.templater
    templater.layer("play", play.vars, templated=True)
    for index, values in enumerate(play.file_vars):
        templater.layer(f"file{number}.{index}", values, templated=True)
    files = [f"file{number}.{index}" for index in range(len(play.file_vars))]
    extra = [f"extra{index}" for index in range(len(context.options.extra))]
    dirs = context.options.vars_dirs
    for host in context.all_hosts:
        name = host.name
        group_files = [layer for group in ("all", *host.groups) for layer in _layers(f"group_vars/{group}", dirs)]
        host_layers = [f"inventory:{name}", *_layers(f"host_vars/{name}", dirs)]
        weak = [f"groups:{name}", *group_files, *host_layers, f"facts:{name}", "play", *files]
        templater.host(name, [*weak, "magic", "hosts", f"magic:{name}", "@weak", f"own:{name}", "@strong", *extra])


def _layers(name: str, dirs: VarsDirs) -> list[str]:
    return [f"{name}:{number}" for number in range(len(dirs.get(name, ())))]


def _of_inventory(host: str, name: str, text: str) -> Any:
    """Convert like Ansible, which does not read numbers, booleans, lists and mappings as text."""
    if "{{" in text or "{%" in text:
        return TemplateText(text, Position(SourceFile(f"inventory, {name} of {host}", Path(), text.splitlines()), 1, 1))
    if re.fullmatch(r"-?(0|[1-9][0-9]{0,17})", text):
        return int(text)
    if re.fullmatch(r"-?[0-9]{1,17}\.[0-9]{1,17}", text):
        return float(text)
    if text[:1] in "[{" and text[:1]:
        return _listed(text)
    return {"true": True, "false": False}.get(text.lower(), text)


def _listed(text: str) -> Any:
    """Parse a list or mapping: JSON if from a YAML inventory, a Python literal if from an INI file."""
    for parse in (parse_json, ast.literal_eval):
        try:
            value = parse(text)
            json.dumps(value)
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            continue
        return value
    return text


def ansible_facts(facts: Facts, host: str) -> dict[str, Any]:
    system = facts.system
    hostname, distro = facts.network.hostname or host, system.distro_id or ""
    return {
        "hostname": hostname.partition(".")[0],
        "nodename": hostname,
        "fqdn": facts.network.canonical or hostname,
        "distribution": {"rhel": "RedHat", "centos": "CentOS"}.get(distro, distro.title()),
        "distribution_version": system.distro_version,
        "os_family": next((name for name, nodes in _FAMILIES.items() if distro in nodes), distro.title()),
        "kernel": system.kernel,
        "architecture": system.arch,
        "processor_vcpus": facts.cpu.threads,
        "memtotal_mb": (facts.memory.total or 0) >> 20,
        "user_id": facts.account.user,
        "user_dir": facts.account.home,
    }


LOCALHOST: Final = ("localhost", "127.0.0.1")


def unknown_delegate(name: str, known: Iterable[str]) -> tuple[str, str]:
    fix = "--local allows this playbook to run tasks on this machine"
    if name not in LOCALHOST:
        fix = did_you_mean(name, known, "node0 is the first host")
    return f"delegate_to: {quote(name)} is not one of the hosts", fix


@dataclass(frozen=True, slots=True)
class Options:
    home: str = DEFAULT_HOME
    iface: str | None = None
    timeout: float | None = None
    check: bool = False
    diff: bool = False
    verbose: int = 0
    local: bool = False
    vars_dirs: VarsDirs = field(default_factory=dict)
    extra: Sequence[Mapping[str, Any]] = ()


@dataclass
class PlayContext:
    """What the modules of one call share. Each host has one connection, with one task at a time on it, because several
    tasks may be delegated to one host. Modules that open and close sessions themselves, such as run, borrow one
    (`SessionPool.borrow`)."""

    pool: SessionPool
    templater: Templater
    options: Options
    watch: PlayWatch
    hosts: Sequence[Host]
    all_hosts: Sequence[Host]
    cwd: Path
    not_run: set[tuple[str, str]] = field(default_factory=set)
    """(host, variable) pairs registered by a task that --check did not run, so their values are unknown."""
    _locks: dict[str, threading.Lock] = field(default_factory=dict)

    @property
    def cancel(self) -> Cancel:
        return self.pool.cancel

    @contextmanager
    def session(self, host: Host) -> Iterator[Session]:
        """The host's session, locked against other tasks delegated to it."""
        with self._locks.setdefault(host.name, threading.Lock()):  # setdefault is atomic
            yield self.pool.session(host)

    def opened(self, call: Call, hosts: Sequence[Host]) -> OpenHosts:
        return OpenHosts(tuple(hosts), self.pool, self.options.home, self.options.iface, call.timeout)

    def sleep(self, seconds: float) -> None:
        """Return early on cancellation."""
        with suppress(Cancelled):
            self.cancel.sleep(seconds)
