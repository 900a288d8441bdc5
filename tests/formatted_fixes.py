"""A `Fix` or a command in an f-string becomes text, which gets no options of the call: in tests that is an error. `+`,
`join_fixes` and a field of another `Fix` keep the commands; `str()` says that text is meant.
"""

from __future__ import annotations

import sys
from typing import Any

from ipexctl.node.common.fix import Fix, FixCommand


def _format(fix: Fix | FixCommand, spec: str) -> str:
    is_ours = sys._getframe(1).f_globals["__name__"].startswith("ipexctl.")
    has_commands = not isinstance(fix, Fix) or bool(fix.commands)
    assert not (is_ours and has_commands), f"its commands are lost in an f-string: {str(fix)!r}"
    return format(str(fix), spec)


def pytest_configure() -> None:
    classes: tuple[Any, ...] = (Fix, FixCommand)
    for each in classes:
        each.__format__ = _format
