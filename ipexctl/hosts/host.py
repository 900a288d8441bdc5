"""Define a host of the hostfile, the names that it may have, and the directory of its ipexctl home: `--home`, else
$IPEXCTL_HOME, else ~/.ipexctl.

A name ends up in commands, ssh configs and paths, so its alphabet is fixed, and it never begins with a dash.
"""

from __future__ import annotations

import ipaddress
import re
import unicodedata
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Final, TypeVar

from ipexctl.errors import Refusal, UserError
from ipexctl.option_declaration import DEFAULT_HOME
from ipexctl.text import printable

Value = TypeVar("Value")
MAX_NAME: Final = 253
MAX_PORT: Final = 65_535
_LONGEST_QUOTE: Final = 60

_OCTET = r"(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
IPV4: Final = rf"{_OCTET}(?:\.{_OCTET}){{3}}"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_IPV4 = re.compile(IPV4)
_ZONE = re.compile(r"[A-Za-z0-9._-]+")
# Directory services have DOMAIN\name or name@realm; ssh accepts both.
_USER = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.@+\\-]*[A-Za-z0-9_.+$-])?")
_DIGITS_AND_DOTS = frozenset("0123456789.")


class WordError(UserError):
    def __init__(self, message: str, *, column: int = 1, fix: str = "") -> None:
        super().__init__(message, fix=fix)
        self.column = column

    def moved(self, by: int) -> WordError:
        """Return the error for a word that begins this many columns further right."""
        return WordError(self.message, column=self.column + by, fix=self.fix)


def read_at(column: int, parse: Callable[[str], Value], text: str) -> Value:
    """Parse `text`, which starts at `column` of a longer text; a WordError points into the longer one."""
    try:
        return parse(text)
    except WordError as error:
        raise error.moved(column - 1) from None


def quote(text: str) -> str:
    """Return a value for a sentence: on one line, and cut if it is long."""
    shown = printable(text)
    return f"'{shown if len(shown) <= _LONGEST_QUOTE else shown[: _LONGEST_QUOTE - 1] + '…'}'"


def did_you_mean(word: str, known: Iterable[str], otherwise: str = "", *, cutoff: float = 0.6, behind: str = "") -> str:
    """Return a question with the known name that is nearest to the word; `otherwise` if none is near."""
    near = get_close_matches(word, list(known), n=1, cutoff=cutoff)
    return f"did you mean {quote(near[0] + behind)}?" if near else otherwise


def describe(character: str) -> str:
    """Return how to call a character in an error, also one that nobody sees."""
    if character == "\t":
        return "a tab"
    if character == " ":
        return "a blank"
    if character.isprintable():
        return f"'{character}'"
    return f"{unicodedata.name(character, 'a control character')} (U+{ord(character):04X})"


def check_host(name: str) -> None:
    """Raise WordError unless ssh and a shell read it as a host name or an address."""
    if ":" in name:
        _check_ipv6(name)
        return
    if _NAME.fullmatch(name) is None:
        raise _bad_name(name)
    if len(name) > MAX_NAME:
        raise WordError(f"a host name has at most {MAX_NAME} characters, this one has {len(name)}")
    if name[0].isdigit() and _DIGITS_AND_DOTS.issuperset(name) and _IPV4.fullmatch(name) is None:
        if "." not in name:
            raise WordError(f"{quote(name)} is a number, not a host")
        raise WordError(
            f"{quote(name)} is not an IPv4 address",
            fix="four numbers from 0 to 255, without leading zeros, such as 10.0.0.12",
        )


def check_user(user: str) -> str:
    """Return the user's name. Raises a WordError for one that ssh or a shell would read as something else."""
    if not user:
        raise WordError("the user's name is missing")
    if _USER.fullmatch(user) is None:
        if user[0] == "-":
            raise WordError("a user's name can't begin with '-': ssh would read it as an option")
        for index, character in enumerate(user):
            if _USER.fullmatch("a" + character + "a") is None:
                raise WordError(f"{describe(character)} is not allowed in a user's name", column=index + 1)
        raise WordError(f"{quote(user)} can't be a user's name")
    return user


def _bad_name(name: str) -> WordError:
    """Return the error for a host name that is no valid name, at its first bad character."""
    if not name:
        return WordError("the host's name is missing")
    if name[0] == "-":
        return WordError("a host name can't begin with '-': ssh would read it as an option")
    for index, character in enumerate(name):
        if _NAME.fullmatch("a" + character) is None:
            fix = ""
            if character.isalpha():
                fix = "write the name as the resolver knows it, in ASCII (xn--…), or an address"
            return WordError(f"{describe(character)} is not allowed in a host name", column=index + 1, fix=fix)
    return WordError(f"a host name can't begin with '{name[0]}'")


def _check_ipv6(name: str) -> None:
    """Raise a WordError unless the text is an IPv6 address, with or without a zone such as `%eth0`."""
    address, percent, zone = name.partition("%")
    if percent and _ZONE.fullmatch(zone) is None:
        raise WordError(f"{quote(zone)} is not a network interface", column=len(address) + 2)
    try:
        ipaddress.IPv6Address(address)
    except ValueError:
        raise WordError(
            f"{quote(name)} is not an IPv6 address", fix="such as fe80::2, or [fe80::2]:4 with slots"
        ) from None


@dataclass(frozen=True, slots=True)
class Host:
    """One machine of the cluster. None means the file sets no value, so the ssh config decides."""

    name: str
    """The name as the user wrote it, which every message and table uses."""
    address: str
    user: str | None = None
    port: int | None = None
    slots: int | None = None
    """Ranks that the file allows, summed over repeated lines."""
    max_slots: int | None = None
    internal: str | None = None
    """The address that other hosts use, if it differs."""
    identity: Path | None = None
    known_hosts: Path | None = None
    ssh_config: Path | None = None
    proxy: str | None = None
    """ssh option `ProxyJump=…` or `ProxyCommand=…` from an inventory."""
    groups: tuple[str, ...] = ()
    vars: Mapping[str, str] = field(default_factory=dict, hash=False)
    shared: frozenset[str] = frozenset()


def private_keys(hosts: Iterable[Host]) -> tuple[Path, ...]:
    """Return the keys that a hostfile, an inventory or the command line names. Keys of the ssh config are not among
    them."""
    return tuple(dict.fromkeys(host.identity for host in hosts if host.identity is not None))


def ssh_options(host: Host) -> list[str]:
    """Return the options with which the ssh program reaches the host, as this call was told."""
    options: list[str] = []
    if host.ssh_config:
        options += ["-F", str(host.ssh_config)]
    if host.user:
        options += ["-l", host.user]
    if host.port:
        options += ["-p", str(host.port)]
    if host.identity:
        options += ["-i", str(host.identity), "-o", "IdentitiesOnly=yes"]
    if host.proxy:
        options += ["-o", host.proxy]
    if host.known_hosts:
        file = str(host.known_hosts)
        options += ["-o", f'UserKnownHostsFile="{file}"' if " " in file else f"UserKnownHostsFile={file}"]
    return options


ENVIRONMENT: Final = "IPEXCTL_HOME"
T = TypeVar("T", bound="Hashable")


def home_on_nodes(given: Path | None, environ: Mapping[str, str]) -> str:
    """Return the path of the ipexctl home: absolute, or `~/…`, relative to the account's home directory on each node.
    Raises a UserError for a path that can be none."""
    text, source = (str(given), "--home") if given is not None else (environ.get(ENVIRONMENT) or "", f"${ENVIRONMENT}")
    if not text:
        return DEFAULT_HOME
    problems = {
        "is not an absolute path": not text.startswith(("/", "~/")),
        "can't be ipexctl's directory": ".." in text.split("/") or not text.strip("/~"),
        "has a colon, which separates the directories of PATH": ":" in text,
        "has characters that can't be shown": not text.isprintable(),
    }
    for problem, is_so in problems.items():
        if is_so:
            fix = "one that is valid on every node, such as /scratch/me/ipexctl"
            raise UserError(f"{source} {quote(text)} {problem}", fix=fix)
    return text.rstrip("/")


def check_same_home(homes: Mapping[str, str], users: Sequence[str | None] = ()) -> Refusal | None:
    """Refuse homes that differ: mpirun starts programs by one path on every host. `users`: the accounts there."""
    if len(set(homes.values())) <= 1:
        return None
    first = next(iter(homes.items()))
    other = next(item for item in homes.items() if item[1] != first[1])
    owner = next((user for user in users if user), "me")
    return Refusal(
        f"the home directory is {first[1]} on {first[0]} and {other[1]} on {other[0]}, but mpirun starts programs by "
        "the same path on every host",
        f"choose one for all hosts: --home /var/tmp/ipexctl-{owner}, or a directory of your scratch space",
        tuple(name for name, path in homes.items() if path != first[1]),
    )


def find_leaders(hosts: Iterable[T], store_of: Callable[[T], Hashable]) -> dict[T, T]:
    """Map each host to the first host with the same store, which does the work for all of them."""
    first: dict[Hashable, T] = {}
    return {host: first.setdefault(store_of(host), host) for host in hosts}


def is_loopback(address: str) -> bool:
    """True for a name or address that means this machine everywhere."""
    if address in ("localhost", "localhost.localdomain", "ip6-localhost"):
        return True
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False
