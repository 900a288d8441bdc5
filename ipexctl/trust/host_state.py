"""What one host answered to trust's one question, as a value. Reading only; a hole in the answer is a hole here."""

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
        """Whether sshd would find it too open: writable for group or others."""
        return len(self.mode) > 8 and (self.mode[5] == "w" or self.mode[8] == "w")


@dataclass(frozen=True, slots=True)
class HostState:
    """One host: who we are there, how others may come, and what of ours is there already."""

    user: str
    uid: int
    home: str
    ours: str
    """Our home directory, absolute."""
    identity: tuple[str, ...]
    """What tells this machine and account from any other; a login from node0 must answer the same."""
    store: str
    nics: tuple[Nic, ...]
    reached: str | None
    port: int
    host_keys: tuple[str, ...]
    keys: bytes | None
    """authorized_keys as it is; None where there is none."""
    keys_bad: str
    """Why authorized_keys can't be worked with."""
    has_ssh_dir: bool
    home_mode: Permissions | None = None
    ssh_mode: Permissions | None = None
    keys_mode: Permissions | None = None
    litter: bool = False
    """Something of an earlier call of ours that ended without warning is beside authorized_keys."""
    client: bool = False
    quick: bool = False
    """node0's ssh lets a config prefer algorithms."""
    has_dir: bool = False
    key: str | None = None
    """Our public key on node0, empty if what lies there is no key."""
    config: str = ""
    known_hosts: str = ""

    @property
    def addresses(self) -> HostAddresses:
        return HostAddresses(self.nics, self.reached)


def read_host_state(answer: bytes, *, server_key: str | None, port: int | None) -> HostState:
    """The answer as a value. `port` is where our own connection went, for a host that can't tell."""
    words: dict[str, bytes] = {}
    host_keys = [] if server_key is None else [server_key]
    for line in answer.split(b"\n"):
        word, _, value = line.partition(b" ")
        try:
            content = bytes.fromhex(value.decode("ascii"))
        except ValueError:
            continue
        if word == b"hostkey":
            key = b" ".join(content.split()[:2]).decode(errors="replace")
            host_keys += [key] if is_public_key(key) else []
        else:
            words.setdefault(word.decode(errors="replace"), content)
    if words.get("end") != b"ok" or not words.get("user"):
        raise HostError("its answer was cut off", "run it again; -vv shows the steps")

    def text(word: str) -> str:
        return words.get(word, b"").decode(errors="surrogateescape")

    # It goes into node0's configuration, where a line more could be a command.
    try:
        check_user(text("user"))
    except UserError as error:
        raise HostError(f"it says an account's name that can't be one: {error.message}") from None
    came = text("came").split()
    uid = text("uid")
    return HostState(
        user=text("user"),
        uid=int(uid) if uid.isdigit() else -1,
        home=text("home"),
        ours=text("ours").rstrip("/") or "/",
        identity=tuple(text("is").split()),
        store=text("store"),
        nics=read_nics(text("ip"), text("ifconfig"), text("fib_trie"), text("routes")),
        reached=came[2].partition("%")[0].removeprefix("::ffff:") if len(came) == 4 else None,
        port=int(came[3]) if len(came) == 4 and came[3].isdigit() else port or 22,
        host_keys=tuple(dict.fromkeys(host_keys)),
        keys=words.get("keys"),
        keys_bad=text("keys.bad"),
        has_ssh_dir=bool(words.get("ls.ssh")),
        home_mode=_permissions(text("ls.home")),
        ssh_mode=_permissions(text("ls.ssh")),
        keys_mode=_permissions(text("ls.keys")),
        litter="litter" in words,
        client="client" in words,
        quick="quick" in words,
        has_dir="dir" in words,
        key=" ".join(text("key").split()[:2]) if "key" in words else None,
        config=text("config"),
        known_hosts=text("known_hosts"),
    )


def _permissions(listed: str) -> Permissions | None:
    words = listed.split()
    if len(words) < 3 or not words[2].isdigit():
        return None
    return Permissions(words[0], int(words[2]))
