"""The steps of trust on one host (probe, edit authorized_keys, write files, log in), and its answer to the probe. Each
step is a script in `trust/scripts/` and one round trip; the scripts are for sh, so trust needs no Python. The private
key is made on node0 and never leaves it. The answer is untrusted: over ssh only the verified host key counts.
"""

from __future__ import annotations

import base64
import hashlib
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ipexctl.errors import UserError
from ipexctl.facts.network_facts import parse_ip_addr, parse_kernel_tables
from ipexctl.hosts.host import Host, check_user
from ipexctl.hosts.internal_addresses import HostAddresses, InterfaceAddress
from ipexctl.limits import TRUST_LOGIN
from ipexctl.node.common.home import REFUSALS
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.command import Command, ScriptError, script_error
from ipexctl.remote.home_script import home_functions, home_refusal
from ipexctl.remote.outcome import HostError
from ipexctl.remote.reply import MalformedReply
from ipexctl.remote.session import Session, capture
from ipexctl.trust.authorized_keys import KeysEdit, is_public_key
from ipexctl.trust.trust_ssh_config import Files

_FILES: Final = frozenset({b"keys", b"config", b"known_hosts", b"hostkey", b"fib_trie", b"routes"})
"""Records whose values are in hex, because a file may have NUL bytes."""


@dataclass(frozen=True, slots=True)
class Permissions:
    mode: str
    uid: int

    @property
    def open_to_others(self) -> bool:
        """True if group or others can write to it; sshd then rejects it."""
        return len(self.mode) > 8 and (self.mode[5] == "w" or self.mode[8] == "w")


@dataclass(frozen=True, slots=True)
class HostState:
    user: str
    uid: int
    home: str
    ipexctl_home: str
    identity: tuple[str, ...]
    """Machine and account; a login from node0 must report the same."""
    store: str
    nics: tuple[InterfaceAddress, ...]
    reached: str | None
    port: int
    host_keys: tuple[str, ...]
    keys: bytes | None
    """Content of authorized_keys; None if there is no file."""
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
    """The directory above `--home` that causes the refusal."""
    has_trust_dir: bool = False
    key: str | None = None
    """ipexctl's public key on node0; empty if the file has no valid key, None if there is no file."""
    config: str = ""
    known_hosts: str = ""

    @property
    def addresses(self) -> HostAddresses:
        return HostAddresses(self.nics, self.reached)


def read_host_state(reply: bytes, *, server_key: str | None, port: int | None) -> HostState:
    """`port` is the port that the control machine used, for a host that doesn't know its own. The keys that the host
    lists count only without ssh (no `server_key`), because it could list another host's key.
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

    # A newline in the name could become a command in node0's ssh config.
    try:
        check_user(text("user"))
    except UserError as error:
        raise MalformedReply(f"invalid account name: {error.message}", text("user")) from None
    connection = text("came").split()
    # Without ssh, the connection is the caller's own login to the control machine.
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


_IDENTITY: Final = re.compile(r"ipexctl-is (.*)")
IDENTITY_COMMAND: Final = (
    "exec /bin/sh -c 'exec 2>/dev/null; echo; read -r name </proc/sys/kernel/hostname || name=$(uname -n);"
    " read -r boot </proc/sys/kernel/random/boot_id;"
    " echo ipexctl-is ${LOGNAME:-$(id -un)} $name $boot $(readlink /proc/self/ns/net)'"
)
"""Prints the machine and account that node0's ssh reached. Works in every login shell."""


@dataclass(frozen=True, slots=True)
class LoginAttempt:
    code: int
    output: str

    @property
    def identity(self) -> tuple[str, ...]:
        match = _IDENTITY.search(self.output)
        return tuple(match[1].split()) if match else ()

    def is_from(self, identity: str) -> bool:
        """True if the login reached that machine and account; False also if unknown."""
        return self.code == 0 and bool(identity) and self.identity == tuple(identity.split())

    def reached(self, node: HostState) -> bool:
        return self.code == 0 and self.identity == node.identity


_SCRIPTS: Final = Path(__file__).with_name("scripts")
_WRITE_IN_HOME: Final = frozenset({"key", "files", "remove"})
_LOGIN: Final = re.compile(r"([0-9]{1,6}) ([0-9]{1,3}) (?:=([ -~]*)|((?:[0-9a-f]{2})*))")


def login_command(
    ssh_names: Mapping[str, str],
    config: str | None,
    *,
    connect: int,
    seconds: int,
    at_once: int,
    last_decides: bool = False,
) -> Command:
    """Log in from node0 to every node, with that config or the account's own ssh. A login ends with code 124 after
    `seconds`, of which `connect` are for its connection. With `last_decides`, the other nodes are tried only if the
    last one's login succeeds.
    """
    limits = [str(connect), str(seconds), str(at_once), "last" if last_decides else ""]
    arguments = [config or "", IDENTITY_COMMAND, *limits, *ssh_names.values()]
    return trust_script(("logins",), arguments, f"log in to {len(ssh_names)} nodes")


@dataclass(frozen=True, slots=True)
class HostSteps:
    host: Host
    session: Session
    timeout: float | None
    cancel: Cancel

    def probe(self, home: str, *, is_node0: bool) -> HostState:
        key = self.session.server_key
        args = [home, "node0" if is_node0 else "", "local" if key is None else ""]
        reply = self._run(("directory", "probe") if is_node0 else ("probe",), args, "probe keys and addresses")
        server_key = None if key is None else f"{key[0]} {base64.b64encode(key[1]).decode()}"
        return read_host_state(reply, server_key=server_key, port=self.host.port)

    def edit_keys(self, home: str, edit: KeysEdit) -> str:
        """Returns "done", "same", or "moved" if the file no longer has the old text."""
        digests = ["none" if text is None else hashlib.sha256(text).hexdigest() for text in (edit.old, edit.new)]
        args = [home, *digests, "rmdir" if edit.remove_directory else ""]
        reply = self._run(("lock", "replace_keys"), args, "edit authorized_keys", edit.new or b"")
        return reply.decode(errors="replace").strip()

    def make_key(self, ipexctl_home: str) -> str:
        reply = self._run(("lock", "key"), [ipexctl_home], "create a key")
        return " ".join(reply.decode(errors="replace").split()[:2])

    def write_files(self, ipexctl_home: str, contents: Files) -> None:
        known_hosts, config = (
            text.encode(errors="surrogateescape") for text in (contents.known_hosts, contents.config)
        )
        args = [ipexctl_home, str(len(known_hosts)), str(len(config))]
        self._run(("lock", "files"), args, "write config and known_hosts", known_hosts + config)

    def remove_files(self, ipexctl_home: str, *, is_default_home: bool) -> bool:
        args = [ipexctl_home, "default" if is_default_home else ""]
        return self._run(("lock", "remove"), args, "remove key and config").strip() == b"done"

    def log_in(self, ssh_names: Mapping[str, str], config: str | None) -> dict[str, LoginAttempt]:
        """Without a config, the question is whether all nodes can be reached already, so the first failure decides."""
        connect = 10 if config else 5
        command = login_command(
            ssh_names, config, connect=connect, seconds=TRUST_LOGIN, at_once=64, last_decides=not config
        )
        return read_logins(self._output(command), list(ssh_names), LoginAttempt(255, "no answer"))

    def _run(self, names: Sequence[str], args: Sequence[str], label: str, stdin: bytes | None = None) -> bytes:
        return self._output(trust_script(names, args, label), stdin, ipexctl_home=args[0])

    def _output(self, command: Command, stdin: bytes | None = None, *, ipexctl_home: str = "") -> bytes:
        content = None if stdin is None else io.BytesIO(stdin)
        result = capture(self.session, command, stdin=content, timeout=self.timeout, cancel=self.cancel)
        if not result.ended.ok:
            error = script_error(result.stderr)
            if (refused := home_refusal(error.text, ipexctl_home)) is not None:
                raise refused
            raise HostError(error.text or f"could not {command.label}: {result.ended}", _fix_for(error))
        return result.stdout


def trust_script(names: Sequence[str], arguments: Sequence[str], label: str) -> Command:
    if not _WRITE_IN_HOME.isdisjoint(names):
        names = ("directory", *names)
    files = [_SCRIPTS / f"{name}.sh" for name in names]
    functions = home_functions() if "directory" in names else ""
    return Command.scripts(*files, arguments=arguments, label=label, functions=functions)


def read_logins(output: bytes, names: Sequence[str], unanswered: LoginAttempt) -> dict[str, LoginAttempt]:
    """Parse lines `NUMBER CODE HEX` or `NUMBER CODE =TEXT`; other lines are skipped."""
    logins = dict.fromkeys(names, unanswered)
    for line in output.decode("ascii", "replace").splitlines():
        match = _LOGIN.fullmatch(line)
        if match is not None and int(match[1]) < len(names):
            text = match[3] or bytes.fromhex(match[4] or "").decode(errors="replace")
            logins[names[int(match[1])]] = LoginAttempt(int(match[2]), text)
    return logins


_FIXES: Final = {
    "bad-key": "while ipexctl doctor shows no live run: ipexctl trust --revoke; then: ipexctl trust",
    "no-sha256sum": "install coreutils there, then run it again",
    "owner": "to see its owner: ls -l there; if the owner is wrong, root can chown it",
    "read-only": "if it is not read-only on purpose, chmod u+w it there, then run it again",
}
"""Code of a script's error → fix."""


def _fix_for(error: ScriptError) -> str:
    if error.code is not None:
        return _FIXES.get(error.code, "")
    text = error.text.lower()
    for pattern, fix in (
        ("no space left", "free some space there, then run it again"),
        ("quota", "free some space there, then run it again"),
        (
            "read-only file system",
            "if dmesg there shows no errors of the disk, remount it for writing",
        ),
        ("permission denied", "ask the owner of that directory for write permission"),
        ("operation not permitted", "to see whether it is immutable: lsattr there"),
        ("ssh-keygen", "install openssh-client (openssh-clients) on node0"),
    ):
        if pattern in text:
            return fix
    return ""
