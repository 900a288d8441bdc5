"""Choose the ssh algorithms of a connection: those of paramiko that the user's ssh config allows, without weak ones.

Also OpenSSH's patterns for names, in which the config lists algorithms and hosts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from ipexctl.remote.outcome import LoginRefused

if TYPE_CHECKING:
    import paramiko


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> re.Pattern[str]:
    """Return a regular expression for a pattern with `*` and `?`."""
    return re.compile(re.escape(pattern).replace(r"\*", ".*").replace(r"\?", "."), re.DOTALL)


def matches(pattern: str, name: str) -> bool:
    """True if a name matches one pattern. Case counts, because ssh's `Host` distinguishes A1 and a1.

    `pattern`: with `*` and `?`, without a leading `!`.
    """
    if "*" not in pattern and "?" not in pattern:
        return pattern == name
    return _compiled(pattern).fullmatch(name) is not None


def list_matches(patterns: str, name: str) -> bool:
    """True if a name matches a list such as `n*,!n1`, as in known_hosts; a pattern with `!` excludes. Ignores case."""
    is_match, name = False, name.lower()
    for pattern in patterns.lower().split(","):
        if pattern.startswith("!"):
            if matches(pattern[1:], name):
                return False
        elif matches(pattern, name):
            is_match = True
    return is_match


WEAK: Final = re.compile(r"cbc|md5|sha1|^ssh-(rsa|dss)(-cert|$)")
"""Never used, whatever the ssh config says. paramiko offers some of them, OpenSSH only for old servers."""


class Algorithms(NamedTuple):
    """Lists from the ssh config, as `ssh -G` prints them. An empty list allows everything."""

    ciphers: str = ""
    macs: str = ""
    kex: str = ""
    host_keys: str = ""
    login_keys: str = ""


ANY_ALGORITHMS: Final = Algorithms()


def apply_algorithms(transport: paramiko.Transport, configured: Algorithms, known_types: Sequence[str]) -> None:
    """Set the algorithms of a connection: fast ciphers and types of known keys first, else in paramiko's order.

    `known_types`: types of the host's keys in known_hosts. Raises a LoginRefused if no algorithm of some kind is left.
    """
    options = transport.get_security_options()
    ciphers = choose_algorithms("Ciphers", options.ciphers, configured.ciphers)
    options.ciphers = sorted(ciphers, key=lambda name: "gcm" not in name)
    options.digests = choose_algorithms("MACs", options.digests, configured.macs)
    options.kex = choose_algorithms("KexAlgorithms", options.kex, configured.kex)
    key_types = choose_algorithms("HostKeyAlgorithms", options.key_types, configured.host_keys)
    options.key_types = sorted(key_types, key=lambda name: _key_type(name) not in known_types)
    logins = transport.preferred_pubkeys
    usable = choose_algorithms("PubkeyAcceptedAlgorithms", logins, configured.login_keys)
    transport.disabled_algorithms = {"pubkeys": [name for name in logins if name not in usable]}


@lru_cache(maxsize=64)
def choose_algorithms(keyword: str, available: tuple[str, ...], configured: str) -> tuple[str, ...]:
    """Return the available algorithms that are strong and configured. Raises a LoginRefused if none is.

    `keyword`: option of the ssh config, for the error. `configured`: its value; empty for no limit.
    """
    strong = [name for name in available if not WEAK.search(name)]
    if not configured:
        return tuple(strong)
    patterns = ",".join(map(_without_alias, configured.split(",")))
    result = tuple(name for name in strong if list_matches(patterns, _without_alias(name)))
    if not result:
        raise LoginRefused(
            f"ipexctl supports none of the {keyword} that the ssh config allows for this host: {configured}",
            f"allow one of these in the ssh config: {', '.join(strong)}",
        )
    return result


def _without_alias(name: str) -> str:
    """Return the name without its suffix: curve25519-sha256@libssh.org is the older name of curve25519-sha256."""
    return name.removesuffix("@libssh.org")


def _key_type(algorithm: str) -> str:
    """Return the type of key in known_hosts that an algorithm of host keys uses."""
    return "ssh-rsa" if algorithm.startswith("rsa-sha2-") else algorithm
