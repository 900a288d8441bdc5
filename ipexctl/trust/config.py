"""The ssh config and known_hosts that node0 gets: text from values, and values back from the text we wrote.

Nothing of the user's own configuration is in it, and `ssh -F` reads no other.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

_HEAD: Final = "# Made by `ipexctl trust`, which writes it anew. `ipexctl trust --revoke` takes it away.\n"
# Older clients stop at a word they don't know.
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
# What OpenSSH takes by itself costs the client a tenth of a second of processor, at every login of every run.
_QUICK: Final = """\
  KexAlgorithms ^curve25519-sha256,curve25519-sha256@libssh.org
  Ciphers ^aes128-gcm@openssh.com
"""
_UNSAFE = re.compile(r"[\x00-\x1f\x7f\"\\]|\$\{")


@dataclass(frozen=True, slots=True)
class Node:
    """One node as node0's ssh is told of it: under which words, where, and by which host keys it is known."""

    names: tuple[str, ...]
    hostname: str
    port: int
    user: str
    keys: tuple[str, ...]
    """`ssh-ed25519 AAAA…`, without names and comment."""

    @property
    def alias(self) -> str:
        return self.names[0]


@dataclass(frozen=True, slots=True)
class Files:
    """What lies in HOME/ssh on node0 beside the key."""

    config: str
    known_hosts: str


def unusable(directory: str) -> str:
    """Why an ssh config can't hold that path; nothing where it can."""
    return "it has characters that an ssh config can't hold" if _UNSAFE.search(directory) else ""


def render(nodes: Sequence[Node], directory: str, *, before: Files | None = None, quick: bool = False) -> Files:
    """Both files. A node of an earlier call that this one isn't about keeps its place, behind the others.

    `quick`, where node0's ssh understands it: the cheap key exchange and cipher first, the others behind them.
    """
    blocks = {node.alias: _block(node) for node in nodes}
    lines = {node.alias: _known(node) for node in nodes}
    if before is not None:
        former = _known_of(before.known_hosts)
        for alias, block in _blocks_of(before.config).items():
            if alias not in blocks and alias in former:
                blocks[alias], lines[alias] = block, former[alias]
    safe = directory.replace("%", "%%")
    tail = _TAIL.format(key=f"{safe}/id_ed25519", known_hosts=f"{safe}/known_hosts") + (_QUICK if quick else "")
    return Files("\n".join([_HEAD, *blocks.values(), tail]), "".join(lines.values()))


def names_in(config: str) -> tuple[str, ...]:
    """The nodes of a config that we wrote."""
    return tuple(_blocks_of(config))


def _block(node: Node) -> str:
    lines = [
        f"Host {' '.join(node.names)}",
        f"  HostName {node.hostname.replace('%', '%%')}",
        f"  User {node.user}",
        f"  Port {node.port}",
        f"  HostKeyAlias {node.alias}",
    ]
    return "\n".join(lines) + "\n"


def _known(node: Node) -> str:
    names = list(node.names)
    if node.hostname not in names:
        names.append(node.hostname)
    return "".join(f"{','.join(names)} {key}\n" for key in node.keys)


def _blocks_of(config: str) -> dict[str, str]:
    blocks: dict[str, str] = {}
    for text in re.split(r"(?m)^(?=Host )", config)[1:]:
        names = text.splitlines()[0].split()[1:]
        if names and names[0] != "*":
            blocks[names[0]] = text.rstrip("\n") + "\n"
    return blocks


def _known_of(known_hosts: str) -> dict[str, str]:
    lines: dict[str, str] = {}
    for line in known_hosts.splitlines():
        alias = line.split(" ")[0].split(",")[0]
        if alias:
            lines[alias] = lines.get(alias, "") + line + "\n"
    return lines
