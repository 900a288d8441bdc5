"""Secrets taken out of everything that is shown, written or kept: values of the environment, and what no_log hid."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ipexctl.playbook.result import Result

HIDDEN: Final = "********"
SHORTEST: Final = 4
"""A shorter text is part of every other word."""
SHORTEST_LINE: Final = 8
"""Of a secret of several lines, a key perhaps: `}` or `-----` is in many other texts."""


def masked(text: str, secrets: Iterable[str]) -> str:
    forms = {form for secret in secrets for form in _forms(secret)}
    for form in sorted(forms, key=len, reverse=True):
        text = text.replace(form, HIDDEN)
    return text


@lru_cache(maxsize=4096)
def _forms(secret: str) -> frozenset[str]:
    """As it may be printed: whole, a line of it, as JSON writes it, in base64."""
    lines = [line.strip() for line in secret.splitlines() if len(line.strip()) >= SHORTEST_LINE]
    coded = base64.b64encode(secret.encode("utf-8", "surrogateescape")).decode()
    return frozenset({coded}) | frozenset(
        form
        for text in (secret, secret.strip(), *lines)
        for form in (text, json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1])
        if len(form) >= SHORTEST
    )


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
    """What a task with no_log has learnt or set: its output as a whole, and each line of it."""
    found: set[str] = set()
    turns = result.data.get("results")
    for data in (result.data, *(turns if isinstance(turns, list) else ())):
        for name in ("stdout", "stderr", "msg", "cmd", "ansible_facts"):
            for text in _texts(data.get(name)):
                found |= {text.strip(), *(line.strip() for line in text.splitlines())}
    return {text for text in found if len(text) >= SHORTEST}


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)
