"""Renders and parses node0's ssh config and known_hosts for runs. Pure. node0's ssh gets these files with -F, so the
account's own config is neither read nor changed. Nodes of earlier calls are kept, because other runs may use them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ipexctl.hosts.host import Host
from ipexctl.remote.local import is_loopback

_HEAD: Final = "# Made by `ipexctl trust`, which writes it anew. `ipexctl trust --revoke` takes it away.\n"
# Older ssh clients stop at an unknown keyword.
_TAIL: Final = """\
Host *
  IgnoreUnknown IdentityAgent,UpdateHostKeys,CanonicalizeHostname,EnableEscapeCommandline
  IdentityFile "{key}"
  IdentitiesOnly yes
  IdentityAgent none
  UserKnownHostsFile "{known_hosts}"
  GlobalKnownHostsFile /dev/null
  StrictHostKeyChecking yes
  CheckHostIP no
  UpdateHostKeys no
  HashKnownHosts no
  PreferredAuthentications publickey
  BatchMode yes
  ConnectTimeout 10
  ServerAliveInterval 15
  ServerAliveCountMax 8
  ForwardAgent no
  ForwardX11 no
  ControlMaster no
  ControlPath none
  CanonicalizeHostname no
"""
# OpenSSH's default algorithms cost the client 0.1 s of CPU time per login.
_QUICK: Final = """\
  KexAlgorithms ^curve25519-sha256,curve25519-sha256@libssh.org
  Ciphers ^aes128-gcm@openssh.com
"""
_UNSAFE = re.compile(r"[\x00-\x1f\x7f\"\\]|\$\{")


@dataclass(frozen=True, slots=True)
class SshConfigNode:
    names: tuple[str, ...]
    hostname: str
    port: int
    user: str
    keys: tuple[str, ...]
    """Host keys such as `ssh-ed25519 AAAA…`, without names and comment."""

    @property
    def alias(self) -> str:
        return self.names[0]


@dataclass(frozen=True, slots=True)
class Files:
    config: str
    known_hosts: str


def path_problem(directory: str) -> str:
    return "it contains characters that an ssh config can't hold" if _UNSAFE.search(directory) else ""


def render(
    nodes: Sequence[SshConfigNode], directory: str, *, before: Files | None = None, quick: bool = False
) -> Files:
    """Nodes of earlier calls come last. `quick` prefers a cheap key exchange and cipher, if node0's ssh supports it."""
    blocks = {node.alias: _block(node) for node in nodes}
    lines = {node.alias: _known_hosts_lines(node) for node in nodes}
    if before is not None:
        previous = _parse_known_hosts(before.known_hosts)
        for alias, block in _parse_blocks(before.config).items():
            if alias not in blocks and alias in previous:
                blocks[alias], lines[alias] = block, previous[alias]
    safe = directory.replace("%", "%%")
    tail = _TAIL.format(key=f"{safe}/id_ed25519", known_hosts=f"{safe}/known_hosts") + (_QUICK if quick else "")
    return Files("\n".join([_HEAD, *blocks.values(), tail]), "".join(lines.values()))


def names_in(config: str) -> tuple[str, ...]:
    return tuple(_parse_blocks(config))


def ssh_names_for(hosts: Sequence[Host], internal: Mapping[str, str]) -> dict[str, str]:
    """The name that node0 passes to ssh for each node. `localhost` would be node0 itself."""
    return {
        host.name: internal[host.name] if is_loopback(host.name.lower()) else host.name
        for host in hosts
        if host.name in internal
    }


def _block(node: SshConfigNode) -> str:
    lines = [
        f"Host {' '.join(node.names)}",
        f"  HostName {node.hostname.replace('%', '%%')}",
        f"  User {node.user}",
        f"  Port {node.port}",
        f"  HostKeyAlias {node.alias}",
    ]
    return "\n".join(lines) + "\n"


def _known_hosts_lines(node: SshConfigNode) -> str:
    names = list(node.names)
    if node.hostname not in names:
        names.append(node.hostname)
    return "".join(f"{','.join(names)} {key}\n" for key in node.keys)


def _parse_blocks(config: str) -> dict[str, str]:
    blocks: dict[str, str] = {}
    for text in re.split(r"(?m)^(?=Host )", config)[1:]:
        names = text.splitlines()[0].split()[1:]
        if names and names[0] != "*":
            blocks[names[0]] = text.rstrip("\n") + "\n"
    return blocks


def _parse_known_hosts(known_hosts: str) -> dict[str, str]:
    lines: dict[str, str] = {}
    for line in known_hosts.splitlines():
        alias = line.split(" ")[0].split(",")[0]
        if alias:
            lines[alias] = lines.get(alias, "") + line + "\n"
    return lines


def config_in(home: str, text: str, names: Iterable[str]) -> str | None:
    """Path of node0's config if `text` has all of these hosts, else None."""
    return f"{home}/ssh/config" if set(names) <= set(names_in(text)) else None
