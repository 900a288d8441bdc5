"""Parses the reply of a host to the probe of trust. Values missing in the reply are missing here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ipexctl.errors import UserError
from ipexctl.hosts.internal import HostAddresses
from ipexctl.hosts.names import check_user
from ipexctl.remote.outcome import HostError
from ipexctl.trust.addresses import read_nics
from ipexctl.trust.authorized_keys import is_public_key

if TYPE_CHECKING:
    from ipexctl.hosts.internal import Nic


@dataclass(frozen=True, slots=True)
class Permissions:
    """The mode and owner of a file, as `ls -ldn` shows them."""

    mode: str
    uid: int

    @property
    def open_to_others(self) -> bool:
        """Whether group or others can write to it, which sshd rejects."""
        return len(self.mode) > 8 and (self.mode[5] == "w" or self.mode[8] == "w")


@dataclass(frozen=True, slots=True)
class HostState:
    """One host: the account, its addresses and host keys, and the files of an earlier `ipexctl trust`."""

    user: str
    uid: int
    home: str
    ipexctl_home: str
    """The directory of `--home`, absolute."""
    identity: tuple[str, ...]
    """Identifies machine and account; a login from node0 must report the same."""
    store: str
    nics: tuple[Nic, ...]
    reached: str | None
    port: int
    host_keys: tuple[str, ...]
    keys: bytes | None
    """The content of authorized_keys; None if there is no file."""
    keys_problem: str
    """The reason why authorized_keys can't be edited, or empty."""
    has_ssh_dir: bool
    home_mode: Permissions | None = None
    ssh_mode: Permissions | None = None
    keys_mode: Permissions | None = None
    has_leftovers: bool = False
    """Whether an interrupted call left files beside authorized_keys."""
    has_ssh_client: bool = False
    supports_preferred: bool = False
    """Whether node0's ssh supports `^` for preferred algorithms."""
    has_trust_dir: bool = False
    key: str | None = None
    """The public key of ipexctl on node0; empty if the file has no valid key."""
    config: str = ""
    known_hosts: str = ""

    @property
    def addresses(self) -> HostAddresses:
        return HostAddresses(self.nics, self.reached)


def read_host_state(reply: bytes, *, server_key: str | None, port: int | None) -> HostState:
    """Parse the reply. `port` is that of the control machine's connection, for a host that doesn't know its own."""
    values: dict[str, bytes] = {}
    host_keys = [] if server_key is None else [server_key]
    for line in reply.split(b"\n"):
        name, _, value = line.partition(b" ")
        try:
            content = bytes.fromhex(value.decode("ascii"))
        except ValueError:
            continue
        if name == b"hostkey":
            key = b" ".join(content.split()[:2]).decode(errors="replace")
            host_keys += [key] if is_public_key(key) else []
        else:
            values.setdefault(name.decode(errors="replace"), content)
    if values.get("end") != b"ok" or not values.get("user"):
        raise HostError("its answer was cut off", "run it again; -vv shows the steps")

    def text(name: str) -> str:
        return values.get(name, b"").decode(errors="surrogateescape")

    # It is written into node0's ssh config, where an extra line could be a command.
    try:
        check_user(text("user"))
    except UserError as error:
        raise HostError(f"it says an account's name that can't be one: {error.message}") from None
    connection = text("came").split()
    uid = text("uid")
    return HostState(
        user=text("user"),
        uid=int(uid) if uid.isdigit() else -1,
        home=text("home"),
        ipexctl_home=text("ours").rstrip("/") or "/",
        identity=tuple(text("is").split()),
        store=text("store"),
        nics=read_nics(text("ip"), text("ifconfig"), text("fib_trie"), text("routes")),
        reached=connection[2].partition("%")[0].removeprefix("::ffff:") if len(connection) == 4 else None,
        port=int(connection[3]) if len(connection) == 4 and connection[3].isdigit() else port or 22,
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
        has_trust_dir="dir" in values,
        key=" ".join(text("key").split()[:2]) if "key" in values else None,
        config=text("config"),
        known_hosts=text("known_hosts"),
    )


def _permissions(listing: str) -> Permissions | None:
    values = listing.split()
    if len(values) < 3 or not values[2].isdigit():
        return None
    return Permissions(values[0], int(values[2]))
