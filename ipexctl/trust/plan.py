"""Plans trust's changes from the hosts' state. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ipexctl.trust.authorized_keys import KeysEdit, add_line, remove_lines
from ipexctl.trust.config import Files, SshConfigNode, render

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ipexctl.hosts.host import Host
    from ipexctl.trust.authorized_keys import Owner, TrustLine
    from ipexctl.trust.host_state import HostState


def keys_to_add(state: HostState, line: TrustLine) -> KeysEdit | None:
    new = add_line(state.keys, line, has_directory=state.has_ssh_dir)
    return KeysEdit(state.keys, new) if new != state.keys else _tidy(state)


def keys_to_remove(state: HostState, owner: Owner) -> KeysEdit | None:
    return remove_lines(state.keys, owner) or _tidy(state)


def _tidy(state: HostState) -> KeysEdit | None:
    return KeysEdit(state.keys, state.keys, tidy=True) if state.has_leftovers else None


def sources_of(node0: HostState, internal: str) -> tuple[str, ...]:
    """Addresses that node0 may connect from, the internal one first."""
    addresses = [nic.address for nic in node0.nics if nic.joins_hosts]
    if any(nic.address == internal for nic in node0.nics):
        addresses.insert(0, internal)
    return tuple(dict.fromkeys(addresses))


def nodes_for(
    hosts: Iterable[Host], states: Mapping[str, HostState], internal: Mapping[str, str]
) -> tuple[SshConfigNode, ...]:
    """Each node with its name and, if it is unique, its internal address."""
    addresses = list(internal.values())
    nodes = []
    for host in hosts:
        if host.name not in states or host.name not in internal:
            continue
        address, state = internal[host.name], states[host.name]
        names = [host.name]
        if address != host.name and addresses.count(address) == 1:
            names.append(address)
        nodes.append(SshConfigNode(tuple(names), address, state.port, state.user, state.host_keys))
    return tuple(nodes)


def files_to_write(nodes: Sequence[SshConfigNode], node0: HostState) -> Files | None:
    before = Files(node0.config, node0.known_hosts)
    files = render(
        nodes, f"{node0.ipexctl_home}/ssh", before=before if node0.config else None, quick=node0.supports_preferred
    )
    return None if files == before else files
