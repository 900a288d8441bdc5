"""OpenSSH's name patterns, `*` and `?`, as in its configuration and known_hosts."""

from __future__ import annotations

import re
from functools import lru_cache


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(re.escape(pattern).replace(r"\*", ".*").replace(r"\?", "."), re.DOTALL)


def matches(pattern: str, name: str) -> bool:
    """Match one pattern, without its `!`. Case-sensitive: ssh's `Host` distinguishes A1 and a1."""
    if "*" not in pattern and "?" not in pattern:
        return pattern == name
    return _compiled(pattern).fullmatch(name) is not None


def list_matches(patterns: str, name: str) -> bool:
    """Match a comma-separated list of known_hosts, ignoring case; a pattern with `!` excludes."""
    is_match, name = False, name.lower()
    for pattern in patterns.lower().split(","):
        if pattern.startswith("!"):
            if matches(pattern[1:], name):
                return False
        elif matches(pattern, name):
            is_match = True
    return is_match
