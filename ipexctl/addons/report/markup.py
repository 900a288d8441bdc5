"""HTML and SVG elements, axes with their tick marks, and how numbers and times are written. Pure. Texts enter a page
only through `escape`, and only between tags, never in a name, attribute or address.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable
from typing import Final, NewType

from ipexctl.text import printable

Markup = NewType("Markup", str)
"""Only this module turns a text into markup."""


def escape(text: str) -> Markup:
    """Escape a text so that no markup, terminal codes or direction codes remain."""
    return Markup(html.escape(printable(text), quote=True))


def element(name: str, *children: Markup, **attributes: str | float) -> Markup:
    """Attribute values are our own; `_` in an attribute's name becomes `-`, and a trailing `_` is dropped."""
    words = "".join(f' {key.rstrip("_").replace("_", "-")}="{html.escape(_value(v))}"' for key, v in attributes.items())
    return Markup(f"<{name}{words}>{''.join(children)}</{name}>")


def join_markup(*children: Markup) -> Markup:
    return Markup("".join(children))


def _value(value: str | float) -> str:
    return short(value) if isinstance(value, float) else str(value)


def short(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0")


def path_data(words: str) -> str:
    """Check path data: it may have digits, signs and commands, nothing else."""
    if words.strip("0123456789.-MmLlHhVvZz ,"):
        raise ValueError("not path data")
    return words


_TIME_STEPS: Final = (
    *(1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200),
    *(86400, 172800, 432000, 864000, 1728000, 4320000),
)
_MOST_TICKS: Final = 8
_UNITS: Final = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
_PREFIXES: Final = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def time_ticks(span: float) -> list[tuple[float, str]]:
    step = next((step for step in _TIME_STEPS if span / step <= _MOST_TICKS), span / _MOST_TICKS)
    divisor, unit = next(((size, name) for size, name in _UNITS if step >= size), (1, "s"))
    marks = [number * step for number in range(int(span / step + 1e-9) + 1)]
    return [(at, f"{number_text(at / divisor)} {unit}" if at else "0") for at in marks]


def value_ticks(maximum: float, minimum: float = 0.0) -> list[float]:
    """Round tick marks from 0, or from below a negative `minimum`, to at least `maximum`."""
    maximum, minimum = max(maximum, 0.0), min(minimum, 0.0)
    if not math.isfinite(maximum - minimum) or maximum - minimum < 1e-300:
        return [0.0, 1.0]
    raw = (maximum - minimum) / 4
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * size for factor in (1, 2, 2.5, 5, 10, 20) if factor * size >= raw * (1 - 1e-9))
    first, last = math.floor(minimum / step + 1e-9), math.ceil(maximum / step - 1e-9)
    return [number * step for number in range(first, last + 1)]


def number_text(value: float) -> str:
    """Format with three digits: `0.125`, `3.2`, `410`, `12.5k`."""
    digits, prefix = _scaled(value)
    return f"{digits}{prefix}"


def quantity(value: float, unit: str) -> str:
    """Format as `40 cores`, `300 GB` or `1.2 GB/s`."""
    digits, prefix = _scaled(value)
    return f"{digits} {prefix}{unit}"


def _scaled(value: float) -> tuple[str, str]:
    if not math.isfinite(value):
        return "?", ""
    for size, prefix in _PREFIXES:
        if abs(value) >= size * 0.9995:
            return _digits(value / size), prefix
    return _digits(value), ""


def _digits(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 999.5 else f"{value:.0f}"


def clock_text(seconds: float) -> str:
    """Format time since the start: `45 s`, `12:05 min`, `3:05 h`, `2 d 4 h`."""
    total = round(min(max(seconds, 0.0), 1e12))
    if total < 60:
        return f"{total} s"
    if total < 3600:
        return f"{total // 60}:{total % 60:02} min"
    if total < 86400:
        return f"{total // 3600}:{total // 60 % 60:02} h"
    return f"{total // 86400} d {total // 3600 % 24} h"


def duration_text(seconds: float) -> str:
    """Format a duration: `0.4 s`, `45 s`, `12 min`, `12:05 min`."""
    if 0 <= seconds < 9.95:
        return f"{seconds:.1f} s"
    text = clock_text(seconds)
    return text.replace(":00 ", " ") if ":00 " in text else text


def shorten_name(name: str, maximum: int) -> str:
    """Shorten a long name in the middle, so that both ends remain."""
    if len(name) <= maximum:
        return name
    half = (maximum - 1) // 2
    return f"{name[: maximum - 1 - half]}…{name[-half:]}"


def host_labels(hosts: Iterable[str], maximum: int) -> dict[str, str]:
    """Name → label: without the common domain, and shortened; an address stays complete."""
    names = list(dict.fromkeys(hosts))
    domains = {name.partition(".")[2] for name in names}
    is_shared = len(domains) == 1 and not any(name.replace(".", "").isdigit() for name in names)
    return {name: shorten_name(name.partition(".")[0] if is_shared else name, maximum) for name in names}
