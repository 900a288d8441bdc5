"""Choose the types of host key to request, check the key that a host presents, and explain a rejected key.

Only `off` accepts a changed key, and no fix contains a command that adds one, because the host may be another machine.
Keys are compared by fingerprint, because `ssh -v` shows no more. The ssh program adds new keys (`accept-new`).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, NamedTuple

from ipexctl.file_reader import KNOWN_HOSTS, NotRegularError, decode_text, read_regular
from ipexctl.node.common.fix import Fix
from ipexctl.remote.algorithms import list_matches
from ipexctl.remote.outcome import ChangedKey, SharedReason, UnknownKey, Unreachable
from ipexctl.remote.ssh_config import Endpoint

KeyVerdict = Literal["known", "unknown", "changed", "revoked"]


class HashedName(NamedTuple):
    """A hashed name in known_hosts, `|1|salt|digest`: it can be compared with a name but not read."""

    salted: hmac.HMAC
    digest: bytes

    def matches(self, name: bytes) -> bool:
        """True if this is the hash of the name."""
        salted = self.salted.copy()
        salted.update(name)
        return salted.digest() == self.digest


_NOT_PLAIN = re.compile(r"[*?!|]")


class KnownHostsEntry(NamedTuple):
    file: str
    line: int
    names: str
    key_type: str
    key: bytes
    marker: str = ""
    hashed: HashedName | None = None
    plain: tuple[str, ...] = ()
    """Names in lower case, if none of them is a pattern or hashed."""

    @property
    def is_pattern(self) -> bool:
        """True if the line also applies to other hosts."""
        return any(character in self.names for character in "*?!")


class KeyCheck(NamedTuple):
    verdict: KeyVerdict
    entry: KnownHostsEntry | None = None


def fingerprint_of(key: bytes) -> str:
    """Return the fingerprint of a key as ssh prints it."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(key).digest()).decode().rstrip("=")


def parse(text: str, file: str) -> tuple[KnownHostsEntry, ...]:
    """Return the entries of a known_hosts file. Comments and lines that are damaged are left out."""
    entries = []
    for number, line in enumerate(text.split("\n"), 1):
        fields = line.split()
        marker = fields.pop(0) if fields and fields[0].startswith("@") else ""
        if len(fields) < 3 or fields[0].startswith("#"):
            continue
        try:
            key = base64.b64decode(fields[2], validate=True)
            hashed = _hashed(fields[0]) if fields[0].startswith("|1|") else None
        except ValueError:
            continue
        plain = () if _NOT_PLAIN.search(fields[0]) else tuple(fields[0].lower().split(","))
        entries.append(KnownHostsEntry(file, number, fields[0], fields[1], key, marker, hashed, plain))
    return tuple(entries)


def entries_for(entries: Iterable[KnownHostsEntry], name: str) -> tuple[KnownHostsEntry, ...]:
    """Return the entries of this host. Call this once per host, because comparing a hashed name costs an HMAC."""
    encoded, lower = name.encode(errors="surrogatepass"), name.lower()
    # Most lines have plain names, and every host is compared with every line.
    return tuple(
        entry for entry in entries if (lower in entry.plain if entry.plain else _matches(entry, name, encoded))
    )


def _matches(entry: KnownHostsEntry, name: str, encoded: bytes) -> bool:
    return entry.hashed.matches(encoded) if entry.hashed else list_matches(entry.names, name)


def check_key(entries: Iterable[KnownHostsEntry], key_type: str, fingerprint: str) -> KeyCheck:
    """Compare a host's key with its entries in known_hosts. Any other known key means a change, even one of another
    type, because known types are requested first."""
    known: KnownHostsEntry | None = None
    other: KnownHostsEntry | None = None
    for entry in entries:
        is_same = fingerprint_of(entry.key) == fingerprint
        if entry.marker == "@revoked" and is_same:
            return KeyCheck("revoked", entry)
        if entry.marker:
            continue
        if is_same:
            known = known or entry
        elif other is None or entry.key_type == key_type != other.key_type:
            other = entry
    if known:
        return KeyCheck("known", known)
    return KeyCheck("changed", other) if other else KeyCheck("unknown")


def known_types(entries: Iterable[KnownHostsEntry]) -> tuple[str, ...]:
    """Return the types of key to request first, because a host presents only one of its keys."""
    return tuple(dict.fromkeys(entry.key_type for entry in entries if not entry.marker))


def _hashed(names: str) -> HashedName:
    _, _, salt, digest = names.split("|")
    return HashedName(hmac.new(base64.b64decode(salt), digestmod="sha1"), base64.b64decode(digest))


Policy = Literal["strict", "accept-new", "off"]


class HostKeys:
    def __init__(self, policy: Policy | None = None) -> None:
        self._policy = policy
        self._lock = threading.RLock()
        self._files: dict[Path, tuple[KnownHostsEntry, ...]] = {}
        self._matching: dict[tuple[tuple[Path, ...], str], tuple[KnownHostsEntry, ...]] = {}

    def entries(self, endpoint: Endpoint) -> tuple[KnownHostsEntry, ...]:
        """Return the entries of known_hosts for this host."""
        return self._entries(endpoint, endpoint.key_name)

    def preferred_types(self, endpoint: Endpoint) -> tuple[str, ...]:
        """Return the types of the host's known keys, which the handshake asks for first."""
        return known_types(self.entries(endpoint)) or known_types(self._without_port(endpoint))

    def check(self, endpoint: Endpoint, key_type: str, fingerprint: str) -> None:
        """Raise Unreachable unless the key is known: an UnknownKey if the ssh program may accept it."""
        policy = self._policy or endpoint.strict
        if policy == "off":
            return
        result = self._compare(endpoint, key_type, fingerprint)
        if result.verdict == "known":
            return
        entries = (*self.entries(endpoint), *self._without_port(endpoint))
        has_authority = any(entry.marker == "@cert-authority" for entry in entries)
        is_new = policy == "accept-new" and endpoint.can_add_keys
        kind = UnknownKey if result.verdict == "unknown" and (has_authority or is_new) else Unreachable
        raise _rejected_key(kind, result, endpoint, key_type, fingerprint)

    def read_again(self) -> None:
        """Forget the entries that were read, because ssh may have added a key to the files."""
        with self._lock:
            self._files.clear()
            self._matching.clear()

    def _compare(self, endpoint: Endpoint, key_type: str, fingerprint: str) -> KeyCheck:
        """Compare the key with the entries for the host's name and port, and with those for the bare name if the first
        have none. Another key for the bare name means nothing: it may belong to the sshd on port 22."""
        result = check_key(self.entries(endpoint), key_type, fingerprint)
        if result.verdict == "unknown":
            bare_result = check_key(self._without_port(endpoint), key_type, fingerprint)
            if bare_result.verdict in ("known", "revoked"):  # another key may be the key of the sshd on port 22
                return bare_result
        return result

    def _without_port(self, endpoint: Endpoint) -> tuple[KnownHostsEntry, ...]:
        """Return the entries for the bare name: as in ssh, a host on another port may also be known by it."""
        name = endpoint.bare_name
        return () if name == endpoint.key_name else self._entries(endpoint, name)

    def _entries(self, endpoint: Endpoint, name: str) -> tuple[KnownHostsEntry, ...]:
        """Return the entries of known_hosts for a name. Names are compared once, and again after `read_again`."""
        key = (endpoint.known_hosts, name)
        with self._lock:
            if key not in self._matching:
                lines = [entry for path in endpoint.known_hosts for entry in self._file(path)]
                self._matching[key] = entries_for(lines, name)
            return self._matching[key]

    def _file(self, path: Path) -> tuple[KnownHostsEntry, ...]:
        if path not in self._files:
            self._files[path] = _read_known_hosts(path)
        return self._files[path]


_HOST_KEY = {
    "ssh-ed25519": "/etc/ssh/ssh_host_ed25519_key.pub",
    "ssh-rsa": "/etc/ssh/ssh_host_rsa_key.pub",
    **dict.fromkeys((f"ecdsa-sha2-nistp{bits}" for bits in (256, 384, 521)), "/etc/ssh/ssh_host_ecdsa_key.pub"),
}


def _rejected_key(
    kind: type[Unreachable], check: KeyCheck, endpoint: Endpoint, key_type: str, fingerprint: str
) -> Unreachable:
    """Return the error for a key that was not accepted, with the fix for its verdict: revoked, changed or unknown."""
    name, entry = endpoint.key_name, check.entry
    shows = f"`ssh-keygen -lf {_HOST_KEY.get(key_type, _HOST_KEY['ssh-ed25519'])}`"
    if entry and check.verdict == "revoked":
        return ChangedKey(
            f"its host key {fingerprint} is marked @revoked in {entry.file}:{entry.line}",
            "do not connect; ask the administrator of that machine",
        )
    if entry and check.verdict == "changed":
        # ssh-keygen -R deletes the complete line; with a pattern in it, other hosts' keys would be lost, too.
        correct = (
            f"correct line {entry.line} of {entry.file}"
            if entry.is_pattern
            else Fix("`ssh-keygen -R {name} -f {file}`", name=name, file=entry.file)
        )
        change = (
            f"it is {key_type} {fingerprint}, but {entry.file}:{entry.line} has"
            f" {entry.key_type} {fingerprint_of(entry.key)}"
        )
        return ChangedKey(
            SharedReason.of(f"its host key CHANGED: {change}", "their host keys CHANGED", f"({change})"),
            "another machine may be answering instead: verify the new key with the machine's administrator"
            f" ({shows} there shows it); if the machine was reinstalled: "
            + correct
            + "; the next call shows how to add it",
        )
    store = endpoint.known_hosts[0] if endpoint.known_hosts else Path("~/.ssh/known_hosts")
    if endpoint.known_hosts and store.parent.name != ".ssh" and not store.parent.is_dir():
        return kind(
            f"its host key {fingerprint} is unknown: the directory of {store} does not exist any more",
            Fix(
                "if the host was in a lab, that lab and its runs were removed; to see the existing labs: `ipexctl "
                "lab list`"
            ),
            option="otherwise choose the file that has its key: --known-hosts FILE",
        )
    expected = f"what {shows} shows there"
    # Stores one host's key; `accept-new` for all hosts would store the others' unseen.
    accept = Fix("`ipexctl exec -l {endpoint} --host-keys accept-new -- true`", endpoint=endpoint.name)
    if not endpoint.can_add_keys:
        advice = f"compare it with {expected}"
        option = "then choose a file for it: --known-hosts FILE --host-keys accept-new"
    elif endpoint.jump or endpoint.proxy or endpoint.key_alias:
        advice = f"compare it with {expected}"
        option = "if it is the same: " + accept
    else:
        options = ("-H " if endpoint.hash_names else "") + (f"-p {endpoint.port} " if endpoint.port != 22 else "")
        scan = Fix(f"`ssh-keyscan {options}{{name}} >> {{store}}`", name=endpoint.hostname, store=str(store))
        advice, option = f"if it is {expected}, then: " + scan, "or: " + accept
    reason = SharedReason.of(f"its host key {fingerprint} is unknown", "their host keys are unknown", fingerprint)
    return kind(reason, advice, option=option)


def _read_known_hosts(path: Path) -> tuple[KnownHostsEntry, ...]:
    """Return the entries of a known_hosts file; () if it is missing or no regular file. Raises an Unreachable if it
    can't be read."""
    try:
        return parse(decode_text(read_regular(path, KNOWN_HOSTS), errors="replace"), str(path))
    except (FileNotFoundError, NotRegularError, IsADirectoryError):
        return ()  # no entries
    except OSError as error:
        raise Unreachable(
            f"{path} can't be read: {error.strerror}",
            "fix its permissions",
            option="or use another one: --known-hosts FILE",
        ) from None
