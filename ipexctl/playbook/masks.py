"""Secrets taken out of everything that is shown, written or kept: values of the environment, and what no_log hid."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ipexctl.playbook.result import Result

HIDDEN: Final = "********"
SHORTEST: Final = 4
"""A shorter text is part of every other word."""


def masked(text: str, secrets: Iterable[str]) -> str:
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return text


def masked_value(value: Any, secrets: set[str]) -> Any:
    if isinstance(value, str):
        return masked(value, secrets)
    if isinstance(value, dict):
        return {masked(str(key), secrets): masked_value(item, secrets) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [masked_value(item, secrets) for item in value]
    return value


def shown(result: Result, secrets: set[str], *, no_log: bool) -> Result:
    """The result as anybody may see it."""
    if no_log:
        kept = {key: result.data[key] for key in ("rc", "attempts") if key in result.data}
        reason = "no_log: what it said is not shown" if result.reason or result.bad else ""
        return replace(result, reason=reason, fix="", data=kept, diff="", said="", line="")
    if not secrets:
        return result
    return replace(
        result,
        reason=masked(result.reason, secrets),
        fix=masked(result.fix, secrets),
        data=masked_value(dict(result.data), secrets),
        diff=masked(result.diff, secrets),
        said=masked(result.said, secrets),
        line=masked(result.line, secrets),
    )


def secrets_in(result: Result) -> set[str]:
    """What a task with no_log has learnt: its output as a whole, and each line of it."""
    found: set[str] = set()
    for name in ("stdout", "stderr", "msg"):
        text = result.data.get(name)
        if isinstance(text, str):
            found |= {text.strip(), *(line.strip() for line in text.splitlines())}
    return {text for text in found if len(text) >= SHORTEST}
