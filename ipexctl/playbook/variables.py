"""What templates are told: the inventory's variables, the play's, those of the call, and what we know ourselves.

Which wins over which is one list here, and is Ansible's.
"""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ipexctl.hosts.source import Source
from ipexctl.playbook.positions import Place, Templated

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ipexctl.playbook.model import Play
    from ipexctl.playbook.play_context import PlayContext
    from ipexctl.playbook.templater import Templater

_FAMILIES: Final = {
    "Debian": ("debian", "ubuntu", "linuxmint", "raspbian"),
    "RedHat": ("rhel", "centos", "rocky", "almalinux", "fedora", "ol", "amzn"),
    "Suse": ("sles", "opensuse-leap", "opensuse-tumbleweed"),
}


def tell_call(context: PlayContext, playbook_dir: str) -> None:
    """What holds for all plays."""
    told, hosts = context.templater, context.known()
    groups: dict[str, list[str]] = {"all": [host.name for host in hosts]}
    for host in hosts:
        for group in host.groups:
            groups.setdefault(group, []).append(host.name)
    for number, extra in enumerate(context.options.extra):
        told.layer(f"extra{number}", extra, templated=True)
    magic = {
        "groups": groups,
        "node0": context.hosts[0].name,
        "playbook_dir": playbook_dir,
        "here": str(context.cwd),
        "ansible_check_mode": context.options.check,
        "ansible_diff_mode": context.options.diff,
    }
    told.layer("magic", magic, templated=False)
    _tell_files(told, "group_vars", context.options.vars_dirs.groups)
    _tell_files(told, "host_vars", context.options.vars_dirs.hosts)
    for host in hosts:
        own = {name: _of_inventory(host.name, name, text) for name, text in host.vars.items()}
        for which, names in (("groups", host.shared), ("inventory", own.keys() - host.shared)):
            told.layer(f"{which}:{host.name}", {name: own[name] for name in names}, templated=True)
        told.layer(
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


def tell_play(context: PlayContext, number: int, play: Play) -> None:
    """Which variables each host has while this play runs: the later of a list win over the earlier."""
    told = context.templater
    told.layer("play", play.vars, templated=True)
    for index, values in enumerate(play.file_vars):
        told.layer(f"file{number}.{index}", values, templated=True)
    files = [f"file{number}.{index}" for index in range(len(play.file_vars))]
    extra = [f"extra{index}" for index in range(len(context.options.extra))]
    dirs = context.options.vars_dirs
    for host in context.known():
        name = host.name
        of_groups = [file for group in ("all", *host.groups) for file in _files("group_vars", group, dirs.groups)]
        own = [f"inventory:{name}", *_files("host_vars", name, dirs.hosts)]
        weak = [f"groups:{name}", *of_groups, *own, f"facts:{name}", "play", *files]
        told.host(name, [*weak, "magic", "hosts", f"magic:{name}", "@weak", f"own:{name}", "@strong", *extra])


def _tell_files(told: Templater, kind: str, said: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    for name, files in said.items():
        for number, values in enumerate(files):
            told.layer(f"{kind}:{name}:{number}", values, templated=True)


def _files(kind: str, name: str, said: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[str]:
    return [f"{kind}:{name}:{number}" for number in range(len(said.get(name, ())))]


def tell_hosts(context: PlayContext, batch: Sequence[str], every: Sequence[str]) -> None:
    names = {
        "ansible_play_hosts": list(every),
        "ansible_play_hosts_all": list(every),
        "ansible_play_batch": list(batch),
    }
    context.templater.layer("hosts", names, templated=False)


def _of_inventory(host: str, name: str, text: str) -> Any:
    """An inventory's value as Ansible would have it: numbers, truths, lists and mappings are no texts."""
    if "{{" in text or "{%" in text:
        return Templated(text, Place(Source(f"inventory, {name} of {host}", Path(), text.splitlines()), 1, 1))
    if re.fullmatch(r"-?(0|[1-9][0-9]{0,17})", text):
        return int(text)
    if re.fullmatch(r"-?[0-9]{1,17}\.[0-9]{1,17}", text):
        return float(text)
    if text[:1] in "[{" and text[:1]:
        return _listed(text)
    return {"true": True, "false": False}.get(text.lower(), text)


def _listed(text: str) -> Any:
    """YAML's lists come as JSON, those of an INI file as Python writes them."""
    for read in (json.loads, ast.literal_eval):
        try:
            value = read(text)
            json.dumps(value)
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            continue
        return value
    return text


def ansible_facts(facts: Mapping[str, Any], host: str) -> dict[str, Any]:
    """The facts that playbooks for Ansible ask for most, under its names."""
    system, memory, account = facts["system"], facts["memory"], facts["account"]
    hostname = str(facts["network"]["hostname"] or host)
    distro = str(system["distro_id"] or "")
    return {
        "hostname": hostname.partition(".")[0],
        "nodename": hostname,
        "fqdn": facts["network"]["canonical"] or hostname,
        "distribution": {"rhel": "RedHat", "centos": "CentOS"}.get(distro, distro.title()),
        "distribution_version": system["distro_version"],
        "os_family": next((name for name, nodes in _FAMILIES.items() if distro in nodes), distro.title()),
        "kernel": system["kernel"],
        "architecture": system["arch"],
        "processor_vcpus": facts["cpu"]["threads"],
        "memtotal_mb": (memory["total"] or 0) >> 20,
        "user_id": account["user"],
        "user_dir": account["home"],
    }
