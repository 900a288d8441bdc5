"""Compares messages with a golden file of their area, and rewrites it where IPEXCTL_GOLDEN=write.

Every other test asserts ids, names, numbers and commands, so that a rewritten sentence changes a golden file only.
"""

from __future__ import annotations

import difflib
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ipexctl.doctor.finding import Finding
from ipexctl.errors import Refusal, UserError
from ipexctl.remote.outcome import HostError
from ipexctl.text import printable

_DATA = re.compile(r"""(?<!\w)'[^'\n]*'|"[^"\n]*"|`[^`\n]*`|\d[\d.,]*""")


class Case(NamedTuple):
    """One message of the program; `name` is an id, or the name of a test case."""

    name: str
    message: str
    fix: str = ""

    @property
    def pattern(self) -> str:
        """Name, message and fix without quoted names and numbers, to find messages that differ only in data."""
        return _DATA.sub("'", "\n".join(self))

    @property
    def data(self) -> str:
        """The quoted names and numbers that `pattern` leaves out."""
        return " ".join(_DATA.findall("\n".join(self)))


def refusal(name: str, call: Callable[..., object], *arguments: Any, at: object = None) -> Case:
    """The case of a call that raises an error, with the place it points at.

    `at` is a directory of this test run: left out of the text.
    """
    with pytest.raises((UserError, HostError)) as caught:
        call(*arguments)
    assert isinstance(caught.value, UserError | HostError)
    return refused(name, caught.value, at)


def refused(name: str, why: UserError | HostError | Refusal, at: object = None) -> Case:
    """The case of a refusal: its message with the place it points at, or its reason with hosts and exit code."""
    if isinstance(why, UserError):
        column = getattr(why, "column", 0)
        more = f" (column {column})" if column else ""
        return Case(name, without(why.message, at) + more, without(why.fix, at))
    code = f" (exit code {', '.join((str(why.exit_code), *why.hosts))})" if isinstance(why, Refusal) else ""
    return Case(name, without(why.reason, at) + code, without(why.fix, at))


def finding_cases(findings: Iterable[Finding], prefix: str = "") -> list[Case]:
    return [
        Case(f"{prefix}{finding.id} ({finding.level}, {','.join(finding.hosts)})", finding.message, finding.fix)
        for finding in findings
    ]


def without(text: str, *paths: object) -> str:
    """The text with each of these directories written as DIR."""
    for path in paths:
        text = text.replace(str(path or "\0"), "DIR")
    return text


def render(cases: Iterable[Case]) -> str:
    """Each message once, in the given order, with name and fix; of messages that differ only in data, the first.

    The names and numbers of the others follow, so that a change of any of them is a difference.
    """
    first: dict[str, Case] = {}
    others: dict[str, list[str]] = {}
    for case in cases:
        if first.setdefault(case.pattern, case) != case:
            others.setdefault(case.pattern, []).append(case.data)
    repeated = {name for name, count in Counter(case.name for case in first.values()).items() if count > 1}
    seen: Counter[str] = Counter()
    entries = []
    for pattern, (name, message, fix) in first.items():
        seen[name] += 1
        lines = [f"{name} #{seen[name]}" if name in repeated else name, *_indented("", message)]
        if fix:
            lines += _indented("fix: ", fix)
        lines += _indented("also: ", "\nalso: ".join(dict.fromkeys(others[pattern]))) if pattern in others else []
        entries.append("\n".join(lines) + "\n")
    return "\n".join(entries)


def _indented(prefix: str, text: str) -> list[str]:
    return [f"  {printable(line)}" if line else "" for line in f"{prefix}{text}".split("\n")]


def golden_diff(area: str, cases: Iterable[Case], directory: Path = Path(__file__).parent) -> str:
    """The diff to the golden file of the area; empty if they are equal."""
    file = directory / f"{area}.txt"
    rendered = render(cases)
    if os.environ.get("IPEXCTL_GOLDEN") == "write":
        file.write_text(rendered, encoding="utf-8")
        return ""
    kept = file.read_text(encoding="utf-8") if file.exists() else ""
    if rendered == kept:
        return ""
    diff = difflib.unified_diff(
        kept.splitlines(), rendered.splitlines(), f"golden/{area}.txt", "as rendered now", lineterm=""
    )
    return "\n".join([*diff, "", "if this is meant: IPEXCTL_GOLDEN=write pytest tests/unit/golden"])


def rows_of(test: Callable[..., object]) -> list[Any]:
    """The table a test is parametrized with."""
    (mark,) = (mark for mark in vars(test)["pytestmark"] if mark.name == "parametrize")
    return list(mark.args[1])
