"""Parses a host's reply to trust's probe (`trust/scripts/probe.sh`). Missing values stay missing. Pure.

The reply is untrusted. The account's name goes into node0's ssh config, where an extra line could be a command, so it
is checked. Over ssh the verified host key counts, not the keys that the host lists: it could list another host's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from ipexctl.errors import UserError
from ipexctl.facts.network import parse_ip_addr, parse_kernel_tables
from ipexctl.hosts.internal import HostAddresses, InterfaceAddress
from ipexctl.hosts.names import check_user
from ipexctl.node.common.home import REFUSALS
from ipexctl.remote.reply import MalformedReply
from ipexctl.trust.authorized_keys import is_public_key

_FILES: Final = frozenset({b"keys", b"config", b"known_hosts", b"hostkey", b"fib_trie", b"routes"})
"""Values in hex because a file may have NUL bytes."""


@dataclass(frozen=True, slots=True)
class Permissions:
    mode: str
    uid: int

    @property
    def open_to_others(self) -> bool:
        """True if group or others can write to it; sshd rejects that."""
        return len(self.mode) > 8 and (self.mode[5] == "w" or self.mode[8] == "w")


@dataclass(frozen=True, slots=True)
class HostState:
    user: str
    uid: int
    home: str
    ipexctl_home: str
    identity: tuple[str, ...]
    """Identifies machine and account; a login from node0 must report the same."""
    store: str
    nics: tuple[InterfaceAddress, ...]
    reached: str | None
    port: int
    host_keys: tuple[str, ...]
    keys: bytes | None
    """Content of authorized_keys; None without the file."""
    keys_problem: str
    has_ssh_dir: bool
    home_mode: Permissions | None = None
    ssh_mode: Permissions | None = None
    keys_mode: Permissions | None = None
    has_leftovers: bool = False
    has_ssh_client: bool = False
    supports_preferred: bool = False
    """True if node0's ssh supports `^` for preferred algorithms."""
    home_problem: str = ""
    """Key of `node/common/home.py: REFUSALS` if the `--home` directory can't be a home."""
    home_detail: str = ""
    """The directory above it that causes the refusal."""
    has_trust_dir: bool = False
    key: str | None = None
    """ipexctl's public key on node0; empty if the file has no valid key."""
    config: str = ""
    known_hosts: str = ""

    @property
    def addresses(self) -> HostAddresses:
        return HostAddresses(self.nics, self.reached)


def read_host_state(reply: bytes, *, server_key: str | None, port: int | None) -> HostState:
    """`port` is the control machine's, for a host that doesn't know its own.

    The keys that the host lists count only without ssh (`server_key` is None): it could list another host's key.
    """
    values: dict[str, bytes] = {}
    host_keys = [] if server_key is None else [server_key]
    for record in reply.split(b"\0")[:-1]:
        name, _, content = record.partition(b" ")
        if name in _FILES:
            try:
                content = bytes.fromhex(content.decode("ascii"))
            except ValueError:
                continue
        if name == b"hostkey":
            key = b" ".join(content.split()[:2]).decode(errors="replace")
            host_keys += [key] if server_key is None and is_public_key(key) else []
        else:
            values.setdefault(name.decode(errors="replace"), content)
    if values.get("end") != b"ok" or not values.get("user"):
        raise MalformedReply("cut off", reply.decode(errors="replace"))

    def text(name: str) -> str:
        return values.get(name, b"").decode(errors="surrogateescape")

    # A newline in it could become a command in node0's ssh config.
    try:
        check_user(text("user"))
    except UserError as error:
        raise MalformedReply(f"invalid account name: {error.message}", text("user")) from None
    connection = text("came").split()
    # Without ssh, this is the caller's own login to the control machine.
    is_ssh = server_key is not None and len(connection) == 4
    return HostState(
        user=text("user"),
        uid=_number(text("uid"), -1),
        home=text("home"),
        ipexctl_home=text("ipexctl_home").rstrip("/") or "/",
        identity=tuple(text("is").split()),
        store=text("store"),
        nics=read_nics(text("ip"), text("fib_trie"), text("routes")),
        reached=connection[2].partition("%")[0].removeprefix("::ffff:") if is_ssh else None,
        port=_number(connection[3], port or 22) if len(connection) == 4 else port or 22,
        host_keys=tuple(dict.fromkeys(host_keys)),
        keys=values.get("keys"),
        keys_problem=text("keys.bad"),
        has_ssh_dir=bool(values.get("ls.ssh")),
        home_mode=_permissions(text("ls.home")),
        ssh_mode=_permissions(text("ls.ssh")),
        keys_mode=_permissions(text("ls.keys")),
        has_leftovers="litter" in values,
        has_ssh_client="client" in values,
        supports_preferred="quick" in values,
        home_problem=problem if (problem := text("home.problem")) in REFUSALS else "",
        home_detail=text("home.detail"),
        has_trust_dir="dir" in values,
        key=" ".join(text("key").split()[:2]) if "key" in values else None,
        config=text("config"),
        known_hosts=text("known_hosts"),
    )


def _permissions(listing: str) -> Permissions | None:
    values = listing.split()
    uid = _number(values[2], -1) if len(values) > 2 else -1
    return None if uid < 0 else Permissions(values[0], uid)


def _number(text: str, default: int) -> int:
    return int(text) if re.fullmatch("[0-9]{1,10}", text) else default


def read_nics(ip: str = "", fib_trie: str = "", routes: str = "") -> tuple[InterfaceAddress, ...]:
    """Addresses from the first source that has any; unreadable lines are skipped."""
    addresses = parse_ip_addr(ip.splitlines()) or parse_kernel_tables(fib_trie.splitlines(), routes.splitlines())
    return tuple(
        InterfaceAddress(name, item.address, item.prefix) for name, items in addresses.items() for item in items
    )
