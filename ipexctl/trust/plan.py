"""What trust would change, from what the hosts answered. Pure: a plan is a value, and printing it is free."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ipexctl.trust.authorized_keys import put_in, take_out
from ipexctl.trust.config import Files, Node, render

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ipexctl.hosts.host import Host
    from ipexctl.trust.authorized_keys import Owner, TrustLine
    from ipexctl.trust.host_state import HostState

_SELF: Final = ("localhost", "localhost.localdomain", "ip6-localhost")


@dataclass(frozen=True, slots=True)
class KeysEdit:
    """One authorized_keys: what it must still be, and what it becomes. None: no file."""

    old: bytes | None
    new: bytes | None
    remove_directory: bool = False
    tidy: bool = False
    """Nothing is to be changed but what an earlier call left behind."""

    @property
    def summary(self) -> str:
        if self.tidy:
            return "leftovers of a call that was cut short taken away"
        if self.new is None:
            return "our line taken out of ~/.ssh/authorized_keys, which was made for it"
        lines = [(text or b"").count(b"\n") for text in (self.old, self.new)]
        if lines[1] > lines[0]:
            return "a line added to ~/.ssh/authorized_keys"
        if lines[1] < lines[0]:
            return "our line taken out of ~/.ssh/authorized_keys"
        return "our line in ~/.ssh/authorized_keys brought up to date"


def keys_to_add(seen: HostState, line: TrustLine, owner: Owner) -> KeysEdit | None:
    new = put_in(seen.keys, line, owner=owner, has_directory=seen.has_ssh_dir)
    if new != seen.keys:
        return KeysEdit(seen.keys, new)
    return KeysEdit(seen.keys, seen.keys, tidy=True) if seen.litter else None


def keys_to_remove(seen: HostState, owner: Owner) -> KeysEdit | None:
    removal = take_out(seen.keys, owner)
    if removal.removed:
        return KeysEdit(seen.keys, removal.content, removal.directory_too)
    return KeysEdit(seen.keys, seen.keys, tidy=True) if seen.litter else None


def stores(seen: Mapping[str, HostState]) -> dict[str, str]:
    """For each host the first one with the same home, which is itself where nobody shares it."""
    firsts: dict[tuple[str, str], str] = {}
    return {name: firsts.setdefault((host.store, host.home), name) for name, host in seen.items()}


def sources_of(node0: HostState, internal: str) -> tuple[str, ...]:
    """The addresses node0 may be seen to come from: the internal one first, then every other it has."""
    found = [nic.address for nic in node0.nics if nic.joins_hosts]
    if any(nic.address == internal for nic in node0.nics):
        found.insert(0, internal)
    return tuple(dict.fromkeys(found))


def words_for(hosts: Sequence[Host], internal: Mapping[str, str]) -> dict[str, str]:
    """What node0 calls each node when it hands it to ssh. `localhost` would be node0 itself."""
    return {
        host.name: internal[host.name] if host.name.lower() in _SELF or host.name.startswith("127.") else host.name
        for host in hosts
        if host.name in internal
    }


def nodes_for(hosts: Iterable[Host], seen: Mapping[str, HostState], internal: Mapping[str, str]) -> tuple[Node, ...]:
    """The nodes of node0's config, each under its name and, where nobody else has it, its internal address."""
    addresses = list(internal.values())
    nodes = []
    for host in hosts:
        if host.name not in seen or host.name not in internal:
            continue
        address, there = internal[host.name], seen[host.name]
        names = [host.name]
        if address != host.name and addresses.count(address) == 1:
            names.append(address)
        nodes.append(Node(tuple(names), address, there.port, there.user, there.host_keys))
    return tuple(nodes)


def files_to_write(nodes: Sequence[Node], node0: HostState) -> Files | None:
    """node0's config and known_hosts as they should be; None if they are."""
    before = Files(node0.config, node0.known_hosts)
    files = render(nodes, f"{node0.ours}/ssh", before=before if node0.config else None, quick=node0.quick)
    return None if files == before else files
