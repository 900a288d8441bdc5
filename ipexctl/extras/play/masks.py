"""Masks secrets in everything shown or written: values of the environment, and outputs of tasks with no_log."""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final
from urllib.parse import quote, quote_plus

from ipexctl.extras.play.result import Result

HIDDEN: Final = "********"
SHORTEST: Final = 4
"""Shorter texts are not masked: they are part of many words."""
SHORTEST_LINE: Final = 8
"""Shortest line masked of a multi-line secret, such as a key: `}` or `-----` is in many other texts."""


def masked(text: str, secrets: Iterable[str]) -> str:
    for form in _forms(frozenset(secrets)):
        text = text.replace(form, HIDDEN)
    return text


@lru_cache(maxsize=16)
def _forms(secrets: frozenset[str]) -> Sequence[str]:
    return sorted({form for secret in secrets for form in _forms_of(secret)}, key=len, reverse=True)


@lru_cache(maxsize=4096)
def _forms_of(secret: str) -> frozenset[str]:
    """Forms in which a secret or its lines may be printed: plain, quoted, encoded, upper or lower case."""
    lines = [line.strip() for line in secret.splitlines() if len(line.strip()) >= SHORTEST_LINE]
    cases = (str, str.upper, str.lower, str.capitalize, str.title)
    texts = {case(text) for text in (secret, secret.strip(), *lines) for case in cases}
    forms = {form for text in texts for form in (text, *_quoted(text), *_url_quoted(text), *_base64(text))}
    return frozenset(form for form in forms if len(form) >= SHORTEST)


def _quoted(text: str) -> Iterator[str]:
    """As in sh, JSON, regular expressions, Python and HTML; without surrounding quotes."""
    yield from (text.replace("'", "'\"'\"'"), text.replace("'", "'\\''"))
    yield from (json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1])
    yield from (re.escape(text), repr(text)[1:-1])
    yield from (escaped := html.escape(text), escaped.replace("&quot;", "&#34;").replace("&#x27;", "&#39;"))


def _url_quoted(text: str) -> Iterator[str]:
    data = text.encode("utf-8", "surrogateescape")
    for quoted in (quote(data), quote(data, safe=""), quote_plus(data)):
        yield from (quoted, re.sub("%..", lambda match: match[0].lower(), quoted))


def _base64(text: str) -> Iterator[str]:
    """Also inside a longer text, such as USER:SECRET, where it begins at any of three positions."""
    data = text.encode("utf-8", "surrogateescape")
    for before in range(3):
        encoded = base64.b64encode(bytes(before) + data).decode()
        inside = encoded[(before * 8 + 5) // 6 : (before + len(data)) * 8 // 6]
        for form in (encoded, inside) if before == 0 else (inside,):
            if len(form) >= SHORTEST_LINE:
                yield from (form, form.replace("+", "-").replace("/", "_"))


def masked_value(value: Any, secrets: set[str]) -> Any:
    if isinstance(value, str):
        return masked(value, secrets)
    if isinstance(value, dict):
        return {masked(str(key), secrets): masked_value(item, secrets) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [masked_value(item, secrets) for item in value]
    if isinstance(value, int | float) and not isinstance(value, bool) and (text := str(value)) in secrets:
        return masked(text, secrets)
    return value


def shown(result: Result, secrets: set[str], *, no_log: bool) -> Result:
    if no_log:
        kept = {key: result.data[key] for key in ("rc", "attempts") if key in result.data}
        reason = "no_log: its output is not shown" if result.reason or result.is_failure else ""
        return replace(result, reason=reason, fix="", data=kept, diff="", message="", line="")
    if not secrets:
        return result
    texts: dict[str, Any] = {
        name: masked(getattr(result, name), secrets) for name in ("reason", "fix", "diff", "message", "line")
    }
    return replace(result, data=masked_value(dict(result.data), secrets), **texts)


def secrets_in(result: Result, loop_var: str = "item") -> set[str]:
    """Secrets of a task with no_log: output and its lines, variables it set, loop items."""
    values: list[object] = []
    items = result.data.get("results")
    for data in (result.data, *(items if isinstance(items, list) else ())):
        values += [data.get(name) for name in ("stdout", "stderr", "msg", "cmd", "ansible_facts", loop_var)]
    texts = {part.strip() for text in _texts(values) for part in (text, *text.splitlines())}
    return {text for text in texts if len(text) >= SHORTEST}


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        yield str(value)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)
