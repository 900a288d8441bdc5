"""Print results of commands that report one per host: a line for hosts with the same result, or JSON."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ipexctl.hosts.nodeset import fold
from ipexctl.node.common.json_records import encode
from ipexctl.remote.outcome import HostResult, HostStatus, Report
from ipexctl.ui.merged_failures import merge_failures
from ipexctl.ui.message_output import paint, print_with_fix, wants_color
from ipexctl.ui.safe_output import print_document
from ipexctl.ui.text_table import print_sentence

if TYPE_CHECKING:
    from ipexctl.doctor.finding import HostReport

Result = TypeVar("Result", bound="HostResult")
Item = TypeVar("Item")
Value = TypeVar("Value")
_COLORS: Final = {"changed": "33", "ok": "32"}
_UNPRINTABLE: Final = re.compile(r"[^\n -~]")
"""Characters that are not plain ASCII; those that cannot be printed are escaped."""
_FAILED: Final = ("failed", "unreachable")
_STATUSES: Final[tuple[HostStatus, ...]] = ("changed", "ok", *_FAILED)


def host_json(result: HostResult | HostReport, *, without: Collection[str] = (), **others: Any) -> dict[str, Any]:
    """Return the document of a host's result. `without`: fields to leave out; `others`: fields to add."""
    fields = encode(result, without=("host", *without))
    fields["seconds"] = round(result.seconds, 3)
    return {"name": result.host.name, "address": result.host.address, **fields, **others}


def report_json(command: str, report: Report[Any], *, without: Collection[str] = (), **others: Any) -> dict[str, Any]:
    """Return the document of a report. `without`: fields to leave out; `others`: fields to add or to replace."""
    fields = encode(report, without=("hosts", "seconds", *without))
    hosts = [host_json(result) for result in report.hosts]
    document = {"schema": f"ipexctl.{command}/1", "hosts": hosts, "summary": summary_json(report.hosts)}
    return {**document, **fields, **others, "seconds": round(report.seconds, 3)}


def summary_json(results: Sequence[HostResult | HostReport], statuses: Sequence[str] = _STATUSES) -> dict[str, int]:
    """Return how many hosts have each status."""
    return {status: sum(result.status == status for result in results) for status in statuses}


def print_json(document: Mapping[str, Any]) -> None:
    """Print a document. Characters that the locale's encoding lacks are escaped."""
    is_unicode = (sys.stdout.encoding or "").lower() in ("utf-8", "utf8")
    print_document(json_text(document, indent=2, ensure_ascii=not is_unicode) + "\n")


def json_text(document: Mapping[str, Any], *, indent: int | None = None, ensure_ascii: bool = False) -> str:
    """Return JSON in which everything that a terminal would obey is escaped."""
    return _UNPRINTABLE.sub(_escaped, json.dumps(document, indent=indent, ensure_ascii=ensure_ascii))


def _escaped(match: re.Match[str]) -> str:
    """Return a character, escaped if it cannot be printed."""
    return match[0] if match[0].isprintable() else json.dumps(match[0])[1:-1]


def group_by(items: Iterable[Item], key: Callable[[Item], Value]) -> dict[Value, list[Item]]:
    """Group items by a key, in the order in which the keys come first: key → its items."""
    groups: dict[Value, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def fold_equal(results: Iterable[Result], value_of: Callable[[Result], Value]) -> dict[Value, str]:
    """Group results by a value: value → the names of its hosts, folded as `node[1-4]`."""
    groups = group_by(results, value_of)
    return {value: fold(result.host.name for result in group) for value, group in groups.items()}


def show_results(
    results: Iterable[Result],
    describe: Callable[[Result], str] = lambda result: result.reason,
    *,
    quiet: bool = False,
    dry_run: bool = False,
) -> None:
    """Print the results, one line for hosts with the same. `describe`: text of a result that did not fail."""
    has_color = wants_color(sys.stdout)

    results = [*results]
    merged = merge_failures(results)

    def line_of(result: Result) -> tuple[HostStatus, str, str]:
        """Return what hosts must have in common to share a line."""
        reason, fix = merged.get(result.host.name, (result.reason, result.fix))
        return result.status, reason if result.status in _FAILED else describe(result), fix

    for (status, text, fix), names in fold_equal(results, line_of).items():
        if status in _FAILED:
            _print_failure(names, status, text, fix)
        elif not quiet:
            word = "would change" if dry_run and status == "changed" else status
            painted = paint(word, _COLORS[status], on=has_color)
            print_sentence(f"{names}: {painted}" + (f": {text}" if text else ""))


def how_to_continue(results: Iterable[HostResult], command: str) -> str:
    """Return what to type if hosts failed before the command was done.

    If every failure has a fix, the call may be wrong.
    """
    if all(result.fix for result in results if result.status in _FAILED):
        return f"once this is fixed, {command} continues from there: finished work is kept"
    return "to continue, run the same command again: finished work is kept"


def show_failures(results: Iterable[HostResult]) -> None:
    """Print the failures, one line for hosts with the same."""
    failures = [result for result in results if result.status in _FAILED]
    merged = merge_failures(failures)
    groups = fold_equal(failures, lambda r: (r.status, *merged.get(r.host.name, (r.reason, r.fix))))
    for (status, reason, fix), names in groups.items():
        _print_failure(names, status, reason, fix)


def _print_failure(names: str, status: HostStatus, reason: str, fix: str) -> None:
    """Print a failure and its fix."""
    line = f"{names}: {status}" + (f": {reason}" if reason else "")
    print_with_fix(line, fix)
