"""Settings that are refused in a file of hosts that was found (./hostfile) and not named by the user.

Such a file may come with a cloned repository: it must not run a program on the control machine, nor decide which host
keys are trusted.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

_RUNS_PROGRAMS: Final = "can run programs on this machine"
_TRUSTS_KEYS: Final = "decides which host keys are trusted"

KEYS: Final = {"ssh_config": _RUNS_PROGRAMS, "known_hosts": _TRUSTS_KEYS}
"""Keys of a hostfile's line, with the reason for the refusal."""

_FLAGS: Final = {"F": _RUNS_PROGRAMS, "I": _RUNS_PROGRAMS, "J": _RUNS_PROGRAMS}
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
        _RUNS_PROGRAMS,
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
        _TRUSTS_KEYS,
    ),
}
"""Keywords of the ssh config, in lower case."""

# Flags of ssh that take no value may stand before another in one word: -vF FILE.
_FLAG = re.compile(r"-[46AaCfGgKkMNnqsTtVvXxYy]*([FIJ])")
_OPTION = re.compile(r"(?:-[46AaCfGgKkMNnqsTtVvXxYy]*o)?[\s=]*([A-Za-z0-9]+)")


def refused_argument(arguments: Iterable[str]) -> tuple[str, str] | None:
    """The first refused argument of ssh, as named in messages, and the reason."""
    for argument in arguments:
        flag = _FLAG.match(argument)
        if flag is not None:
            return f"-{flag[1]}", _FLAGS[flag[1]]
        option = _OPTION.match(argument)
        if option is not None and option[1].lower() in _OPTIONS:
            return option[1], _OPTIONS[option[1].lower()]
    return None
