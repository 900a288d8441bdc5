"""Make HTML and SVG elements, choose the tick marks of axes, and format numbers and times for a page.

Text from a host enters a page through `escape` if it stands between tags, and through `element` if it is the value of
an attribute, such as the title of a curve that a rank printed. It never becomes a name of an element or an address.
`Markup` lets mypy check this: `element` does not accept a `str` as a child. Everything here is pure.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable
from typing import Final, NewType

from ipexctl.text import printable

Markup = NewType("Markup", str)
"""Text that is safe between tags. Other modules make it only of our own constants, or by joining other Markup."""


def escape(text: str) -> Markup:
    """Return the text so that no markup, terminal codes or direction codes remain in it."""
    return Markup(html.escape(printable(text), quote=True))


def element(name: str, *children: Markup, **attributes: str | float) -> Markup:
    """Return an element. A trailing `_` of an attribute's name is dropped, and another `_` becomes `-`.

    So `class_="note"` gives `class="note"`, and `data_span=3` gives `data-span="3"`.
    """
    pairs = ((key.rstrip("_").replace("_", "-"), html.escape(_value(value))) for key, value in attributes.items())
    text = "".join(f' {key}="{value}"' for key, value in pairs)
    return Markup(f"<{name}{text}>{''.join(children)}</{name}>")


def join_markup(*children: Markup) -> Markup:
    """Return these pieces of markup one after the other."""
    return Markup("".join(children))


def _value(value: str | float) -> str:
    return short(value) if isinstance(value, float) else str(value)


def short(number: float) -> str:
    """Return a coordinate with at most one decimal: `12.3`, `12`."""
    return f"{number:.1f}".removesuffix(".0")


def path_data(commands: str) -> str:
    """Return the commands of an SVG path, such as `M3 0h4`. Raise a ValueError if they contain anything else."""
    if commands.strip("0123456789.-MmLlHhVvZz ,"):
        raise ValueError("not path data")
    return commands


_TIME_STEPS: Final = (
    *(1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200),
    *(86400, 172800, 432000, 864000, 1728000, 4320000),
)
_MOST_TICKS: Final = 8
_UNITS: Final = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
_PREFIXES: Final = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def time_ticks(span: float) -> list[tuple[float, str]]:
    """Return round times from 0 to `span` seconds, at most `_MOST_TICKS` and 0, each with its label such as `5 min`."""
    step = next((step for step in _TIME_STEPS if span / step <= _MOST_TICKS), span / _MOST_TICKS)
    divisor, unit = next(((size, name) for size, name in _UNITS if step >= size), (1, "s"))
    marks = [number * step for number in range(int(span / step + 1e-9) + 1)]
    return [(at, f"{number_text(at / divisor)} {unit}" if at else "0") for at in marks]


def value_ticks(maximum: float, minimum: float = 0.0) -> list[float]:
    """Return round tick marks from 0, or from a negative `minimum` or below, to at least `maximum`.

    For values that are all 0 or not finite, they are 0 and 1.
    """
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
    """Return the digits and the prefix, such as `12.5` and `k`; `?` for a number that is not finite."""
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
    """Return host → its label: shortened to `maximum` characters, and without the domain if all hosts have the same.

    No domain is dropped if a host is an IPv4 address, because the address would lose three of its four numbers.
    """
    names = list(dict.fromkeys(hosts))
    domains = {name.partition(".")[2] for name in names}
    is_shared = len(domains) == 1 and not any(name.replace(".", "").isdigit() for name in names)
    return {name: shorten_name(name.partition(".")[0] if is_shared else name, maximum) for name in names}
