"""Settings that a file of hosts may not make where it was found (./hostfile) and not named by the user.

Such a file may come with a cloned repository: it must not run a program on the control machine, nor decide which host
keys are trusted.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

_RUNS: Final = "can run programs on this machine"
_TRUSTS: Final = "decides which host keys are trusted"

KEYS: Final = {"ssh_config": _RUNS, "known_hosts": _TRUSTS}
"""Keys of a hostfile's line, and why they are refused."""

_FLAGS: Final = {"F": _RUNS, "I": _RUNS, "J": _RUNS}
"""ssh's -F CONFIG, -I PKCS11_LIBRARY and -J JUMP, which starts a second ssh."""
_OPTIONS: Final = {
    **dict.fromkeys(
        (
            "include",
            "knownhostscommand",
            "localcommand",
            "match",
            "permitlocalcommand",
            "pkcs11provider",
            "proxycommand",
            "proxyjump",
            "securitykeyprovider",
            "xauthlocation",
        ),
        _RUNS,
    ),
    **dict.fromkeys(
        (
            "checkhostip",
            "globalknownhostsfile",
            "hostkeyalias",
            "nohostauthenticationforlocalhost",
            "revokedhostkeys",
            "stricthostkeychecking",
            "updatehostkeys",
            "userknownhostsfile",
            "verifyhostkeydns",
        ),
        _TRUSTS,
    ),
}
"""Keywords of ssh's configuration, in small letters."""

# Flags of ssh that take no value may stand before another in one word: -vF FILE.
_FLAG = re.compile(r"-[46AaCfGgKkMNnqsTtVvXxYy]*([FIJ])")
_OPTION = re.compile(r"(?:-[46AaCfGgKkMNnqsTtVvXxYy]*o)?[\s=]*([A-Za-z0-9]+)")


def refused_argument(words: Iterable[str]) -> tuple[str, str] | None:
    """The first of ssh's arguments that such a file may not give, as a message calls it, and why."""
    for word in words:
        flag = _FLAG.match(word)
        if flag is not None:
            return f"-{flag[1]}", _FLAGS[flag[1]]
        option = _OPTION.match(word)
        if option is not None and option[1].lower() in _OPTIONS:
            return option[1], _OPTIONS[option[1].lower()]
    return None
