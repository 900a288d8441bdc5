"""Output of `ipexctl sync`: hosts with equal results on one line, files that were kept, or JSON."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from ipexctl.hosts.nodeset import fold
from ipexctl.sync.report import Notice, Stepped
from ipexctl.text import printable, readable
from ipexctl.ui.messages import print_message, wants_color

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ipexctl.sync.report import BytesMoved, Event, Synced, SyncReport

_STATUSES: Final = ("changed", "ok", "failed", "unreachable")
_COLORS: Final = {"changed": "33", "ok": "32"}
_PROGRESS_SECONDS: Final = 2.0
_LISTED: Final = 5


class SyncView:
    """Prints progress lines: bytes every two seconds, and with -v every round trip."""

    def __init__(self, *, quiet: bool = False, verbose: bool = False) -> None:
        self._quiet, self._verbose = quiet, verbose
        self._lock = threading.Lock()
        self._last: dict[str, float] = {}

    def watch(self, event: Event) -> None:
        if isinstance(event, Notice):
            if event.warning or not self._quiet:
                print_message(f"{'warning: ' if event.warning else ''}{printable(event.text)}")
        elif isinstance(event, Stepped):
            if self._verbose:
                print_message(f"{printable(event.host)}: {event.what} ({event.seconds:.2f} s)")
        elif not self._quiet:
            self._moved(event)

    def _moved(self, event: BytesMoved) -> None:
        now = time.monotonic()
        with self._lock:
            if now - self._last.setdefault(event.host, now) < _PROGRESS_SECONDS:
                return
            self._last[event.host] = now
        total_text = f" of {readable(event.total)}" if event.total else ""
        print_message(f"{printable(event.host)}: received {readable(event.done)}{total_text}")


def as_json(report: SyncReport) -> dict[str, Any]:
    return {
        "schema": "ipexctl.sync/1",
        "root": printable(os.fspath(report.root)),
        "project": report.project,
        "path": report.path,
        "generation": report.generation,
        "digest": report.digest,
        "files": report.files,
        "bytes": report.size,
        "hosts": [_host(done) for done in report.hosts],
        "summary": {status: sum(done.status == status for done in report.hosts) for status in _STATUSES},
        "notes": [printable(note) for note in report.notes],
        "left_out": [printable(path) for path in report.left_out],
        "dry_run": report.dry_run,
        "seconds": round(report.seconds, 3),
    }


def _host(done: Synced) -> dict[str, Any]:
    document: dict[str, Any] = {
        "name": done.host.name,
        "address": done.host.address,
        "status": done.status,
        "reason": printable(done.reason),
        "fix": printable(done.fix),
        "path": done.path,
        "generation": done.generation,
        "sent_bytes": done.sent_bytes,
        "files_sent": done.files_sent,
        "files_deleted": done.files_deleted,
        "seconds": round(done.seconds, 3),
    }
    for name in ("kept", "blocked", "aside", "would_send", "would_delete"):
        document[name] = [printable(path) for path in getattr(done, name)]
    return document


def show_json(report: SyncReport) -> None:
    sys.stdout.write(json.dumps(as_json(report), indent=2, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def show(report: SyncReport, *, quiet: bool = False, no_color: bool = False) -> None:
    """Print results to stdout; failures, warnings and notes to stderr."""
    groups: dict[tuple[str, ...], list[Synced]] = {}
    for done in report.hosts:
        groups.setdefault((done.status, done.reason, done.fix, _changes(done)), []).append(done)
    colors = wants_color(sys.stdout, os.environ, no_color=no_color)
    for (status, reason, fix, changes), nodes in groups.items():
        names = printable(fold([done.host.name for done in nodes]))
        if status in ("failed", "unreachable"):
            print_message(f"{names}: {status}: {printable(reason)}" + (f"\n  {printable(fix)}" if fix else ""))
        elif not quiet:
            color, reset = (f"\x1b[{_COLORS[status]}m", "\x1b[0m") if colors else ("", "")
            shown = "would change" if report.dry_run and status == "changed" else status
            parts = "; ".join(part for part in (changes, reason) if part)
            sys.stdout.write(f"{names}: {color}{shown}{reset}" + printable(f": {parts}" if parts else "") + "\n")
    if report.dry_run and not quiet:
        _show_paths(report)
    sys.stdout.flush()
    _print_kept(report)
    for note in report.notes:
        print_message(f"note: {printable(note)}")
    if not quiet:
        _print_next_step(report)


def _changes(done: Synced) -> str:
    if done.status != "changed":
        return ""
    parts = [f"{done.files_sent} {'file' if done.files_sent == 1 else 'files'} put there"] if done.files_sent else []
    parts += [f"{done.files_deleted} deleted"] if done.files_deleted else []
    return ", ".join(parts) or ("" if done.reason else "directories and modes")


def _show_paths(report: SyncReport) -> None:
    """Print files to send and delete, once for hosts with equal lists."""
    groups: dict[tuple[tuple[str, ...], tuple[str, ...]], list[str]] = {}
    for done in report.hosts:
        if done.would_send or done.would_delete:
            groups.setdefault((done.would_send, done.would_delete), []).append(done.host.name)
    for (send, delete), names in groups.items():
        if len(groups) > 1:
            sys.stdout.write(f"{printable(fold(names))}:\n")
        sys.stdout.write("".join(f"  send    {printable(path)}\n" for path in send))
        sys.stdout.write("".join(f"  delete  {printable(path)}\n" for path in delete))


def _print_kept(report: SyncReport) -> None:
    """Print files that differ from the project and are kept: runs wrote them on the hosts."""
    explanations = {
        "kept": "was written to there since it was sent, and stays so",
        "blocked": "is the host's own, written by a run, and stays; the project's is not there",
        "aside": "was written to there and has changed here: the project's is in its place, that one beside it as "
        "NAME.node-1",
    }
    for name, explanation in explanations.items():
        groups: dict[tuple[str, ...], list[str]] = {}
        for done in report.hosts:
            if paths := getattr(done, name):
                groups.setdefault(paths, []).append(done.host.name)
        for paths, names in groups.items():
            level = "warning" if name != "kept" else "note"
            print_message(f"{level}: {printable(fold(names))}: {_shortened(paths)} {explanation}")


def _shortened(paths: Sequence[str]) -> str:
    more = f" and {len(paths) - _LISTED} more" if len(paths) > _LISTED else ""
    return ", ".join(map(printable, paths[:_LISTED])) + more


def _print_next_step(report: SyncReport) -> None:
    statuses = {done.status for done in report.hosts}
    if report.dry_run:
        print_message("nothing was sent (--dry-run)")
    elif report.hosts and statuses == {"ok"}:
        files = "1 file is" if report.files == 1 else f"{report.files:,} files are"
        print_message(f"nothing to do: {files} as here")
    elif statuses & {"failed", "unreachable"}:
        print_message("when that is mended, the same command goes on from here")
    if report.path is not None and not report.dry_run:
        print_message(f"on each host: {printable(report.path)}")
