"""OpenSSH's name patterns, `*` and `?`, as its configuration and known_hosts use them."""

from __future__ import annotations

import re
from functools import lru_cache


@lru_cache(maxsize=4096)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(re.escape(pattern.lower()).replace(r"\*", ".*").replace(r"\?", "."), re.DOTALL)


def matches(pattern: str, name: str) -> bool:
    """Whether one pattern, without its `!`, covers the name."""
    return _compiled(pattern).fullmatch(name.lower()) is not None


def list_matches(patterns: str, name: str) -> bool:
    """Whether a comma-separated list covers the name: one that is negated rules it out."""
    found = False
    for pattern in patterns.split(","):
        if pattern.startswith("!"):
            if matches(pattern[1:], name):
                return False
        elif matches(pattern, name):
            found = True
    return found
