"""Explains why uv made no lock: the few causes that users meet, then uv's own words, indented. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from ipexctl.errors import UserError
from ipexctl.remote.outcome import HostError
from ipexctl.stack.lock.indexes import IndexAnswer, without_credentials

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ipexctl.stack.resolve.model import StackPlan

_FULL: Final = re.compile(r"No space left on device|os error (?:28|122)\b|[Qq]uota exceeded")
_FETCH: Final = re.compile(r"(?:Failed to fetch|Failed to download|for url)[:\s`(]+(https?://[^\s`)]+)")
# A match begins where a word begins: without that a long word takes time by the square of its length.
_NO_WHEEL: Final = re.compile(r"(?<![\w.-])([\w.-]+[=<>!~]=?[\w.+]+) has no (?:wheels with a matching|usable wheels)")
_OTHER_PYTHON: Final = re.compile(r"does not satisfy Python\S* and (\S+) depends on Python")
_ABSENT: Final = re.compile(
    r"(?:Because|and) (\S+) was not found in the|there (?:is no version|are no versions) of (\S+?)(?=[,.]? )"
    r"|only \S+ is available and you require (\S+?)(?=[,.]? )"
)
_MAX_LINES: Final = 15
_MAX_WIDTH: Final = 200


def explain(
    messages: str,
    plan: StackPlan,
    extras: Iterable[str],
    origins: Mapping[str, str],
    index_answer: IndexAnswer,
    machine: str,
) -> HostError | UserError:
    """The error for what uv printed on that machine; `origins` says where the user wrote each of `extras`."""
    messages = re.sub(r"://[^/@\s]+@", "://", messages)
    text = " ".join(re.sub(r"(?m)^\s*(error|cause):", "", messages).split())
    quote = _quote(messages)
    user_lines = [f"{line} (from {origins.get(line, '--with')})" for line in extras if _mentions(text, line)]
    needed_by = f", needed for {', '.join(user_lines)}" if user_lines else f", needed for {plan.row.name}"
    if _FULL.search(text):
        return HostError(
            f"uv on {machine} has no disk space to make the lock{quote}", "make room there, or use --home DIR"
        )
    if found := _FETCH.search(text):
        url = without_credentials(found[1])
        source = next(
            (s.label for s in index_answer.sources if url.startswith(without_credentials(s.url).rstrip("/") + "/")), url
        )
        if "certificate" in text:
            fix = (
                "if your site has its own certificate authority, get its file from your administrator; then on "
                f"{machine}: pip config set global.cert FILE"
            )
        elif re.search(r"\b40[13] (?:Unauthorized|Forbidden)", text):
            fix = (
                f"put the name and password of that index into ~/.netrc on {machine} (mode 0600), or use another "
                "index: --index-url URL"
            )
        else:
            fix = "run the same command again, or use another index: --index-url URL"
        return HostError(f"fetching from {source} on {machine} failed{quote}", fix)
    if found := _NO_WHEEL.search(text) or _OTHER_PYTHON.search(text):
        package = found[1]
        return HostError(
            f"{package} has no wheel for Python {plan.python} and glibc {plan.glibc} on x86_64{needed_by}{quote}",
            f"use another version; if it has only a source, build a wheel (`pip wheel {package}`) and add "
            "--find-links DIR",
        )
    if found := _ABSENT.search(text):
        failures = index_answer.availability.failures
        no_answer = f" (no answer from {', '.join(f'{s.source}: {s.reason}' for s in failures)})" if failures else ""
        name = next(group for group in found.groups() if group)
        return HostError(
            f"no index has {name}{needed_by}{no_answer}{quote}",
            "name an index or a directory that has it: --extra-index-url URL, --wheelhouse DIR",
        )
    if "requirements are unsatisfiable" not in text:
        return HostError(f"uv failed to make the lock{quote}", "run the same command again, or use another index")
    fix = "use another version, or another stack: ipexctl versions"
    if user_lines:
        return UserError(f"{', '.join(user_lines)} cannot be installed with {plan.row.name}{quote}", fix=fix)
    return HostError(f"the packages of {plan.row.name} exclude one another in these indexes{quote}", fix)


def no_index_error(index_answer: IndexAnswer) -> HostError:
    """The error where no source answered."""
    failures = "; ".join(f"{failures.source}: {failures.reason}" for failures in index_answer.availability.failures)
    return HostError(
        f"no package index can be reached ({failures})" if failures else "no index and no directory of wheels is named",
        "install from a directory: --wheelhouse DIR, made elsewhere by `ipexctl install --download-only DIR`",
    )


def _mentions(text: str, requirement: str) -> bool:
    name = canonicalize_name(Requirement(requirement).name)
    return any(canonicalize_name(word.rstrip(".")) == name for word in re.findall(r"[A-Za-z0-9][\w.-]*", text))


def _quote(messages: str) -> str:
    """uv's own lines, indented below a sentence; without headlines, and without hints on options of uv."""
    lines = [re.sub(r"^\s*(error|cause): ", "", line).strip() for line in messages.splitlines()]
    kept = [
        line[:_MAX_WIDTH]
        for line in lines
        if line and not line.startswith(("No solution found", "warning:")) and not re.match(r"hint:.*--", line)
    ]
    return ":" + "".join(f"\n  {line}" for line in kept[:_MAX_LINES]) if kept else ""
