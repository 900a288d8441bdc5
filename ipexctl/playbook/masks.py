"""Masks secrets in everything shown or written: values of the environment, and outputs of tasks with no_log."""

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
"""Shorter texts are not masked: they are part of many words."""
SHORTEST_LINE: Final = 8
"""Shortest line masked of a multi-line secret, such as a key: `}` or `-----` is in many other texts."""


def masked(text: str, secrets: Iterable[str]) -> str:
    forms = {form for secret in secrets for form in _forms(secret)}
    for form in sorted(forms, key=len, reverse=True):
        text = text.replace(form, HIDDEN)
    return text


@lru_cache(maxsize=4096)
def _forms(secret: str) -> frozenset[str]:
    """The forms in which a secret may be printed: the text, each line of it, JSON-escaped, base64."""
    lines = [line.strip() for line in secret.splitlines() if len(line.strip()) >= SHORTEST_LINE]
    base64_text = base64.b64encode(secret.encode("utf-8", "surrogateescape")).decode()
    return frozenset({base64_text}) | frozenset(
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
    """The result without secrets."""
    if no_log:
        kept = {key: result.data[key] for key in ("rc", "attempts") if key in result.data}
        reason = "no_log: what it said is not shown" if result.reason or result.is_failure else ""
        return replace(result, reason=reason, fix="", data=kept, diff="", message="", line="")
    if not secrets:
        return result
    return replace(
        result,
        reason=masked(result.reason, secrets),
        fix=masked(result.fix, secrets),
        data=masked_value(dict(result.data), secrets),
        diff=masked(result.diff, secrets),
        message=masked(result.message, secrets),
        line=masked(result.line, secrets),
    )


def secrets_in(result: Result) -> set[str]:
    """The texts that a task with no_log printed or set: its output, and each line of it."""
    texts: set[str] = set()
    items = result.data.get("results")
    for data in (result.data, *(items if isinstance(items, list) else ())):
        for name in ("stdout", "stderr", "msg", "cmd", "ansible_facts"):
            for text in _texts(data.get(name)):
                texts |= {text.strip(), *(line.strip() for line in text.splitlines())}
    return {text for text in texts if len(text) >= SHORTEST}


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)
