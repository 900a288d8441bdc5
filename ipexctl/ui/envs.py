"""Output of `ipexctl envs`: a line per environment with its hosts, or JSON."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ipexctl.hosts.nodeset import fold
from ipexctl.stack.env.preflight import gigabytes
from ipexctl.text import printable
from ipexctl.ui.install import verified_text
from ipexctl.ui.messages import print_message
from ipexctl.ui.table import show_table

if TYPE_CHECKING:
    from ipexctl.stack.env.environment import EnvEntry
    from ipexctl.stack.env.envs import EnvsReport, HostEnvs

_STATUSES = ("ok", "changed", "failed", "unreachable")


def as_json(report: EnvsReport) -> dict[str, Any]:
    return {
        "schema": "ipexctl.envs/1",
        "hosts": [_host(done) for done in report.hosts],
        "summary": {status: sum(done.status == status for done in report.hosts) for status in _STATUSES},
        "seconds": round(report.seconds, 3),
    }


def _host(done: HostEnvs) -> dict[str, Any]:
    listing = done.listing
    return {
        "name": done.host.name,
        "address": done.host.address,
        "status": done.status,
        "reason": printable(done.reason),
        "fix": printable(done.fix),
        "home": done.home,
        "envs": [] if listing is None else [asdict(env) for env in listing.envs],
        "wheels": None if listing is None else {"count": listing.wheels, "bytes": listing.wheel_bytes},
        "leftovers": None if listing is None else {"count": listing.leftovers, "bytes": listing.leftover_bytes},
        "removed": list(done.removed),
        "verify": dict(done.verify),
    }


def show_json(report: EnvsReport) -> None:
    sys.stdout.write(json.dumps(as_json(report), indent=2, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def show(report: EnvsReport, *, quiet: bool = False, no_color: bool = False, options: str = "") -> None:
    """Print the report; `options` are the command line options that select the same hosts."""
    if report.verb == "list":
        _show_list(report, quiet=quiet, no_color=no_color, options=options)
    groups: dict[tuple[str, ...], list[str]] = {}
    for done in report.hosts:
        changes = verified_text(done.verify) or (f"removed {', '.join(done.removed)}" if done.removed else "")
        groups.setdefault((done.status, done.reason, done.fix, changes), []).append(done.host.name)
    for (status, reason, fix, changes), names in groups.items():
        if status in ("failed", "unreachable"):
            print_message(
                f"{printable(fold(names))}: {status}: {printable(reason)}" + (f"\n  {printable(fix)}" if fix else "")
            )
        elif report.verb != "list" and not quiet:
            parts = "; ".join(part for part in (changes, reason) if part) or "nothing to take away"
            sys.stdout.write(f"{printable(fold(names))}: {status}: {printable(parts)}\n")
    sys.stdout.flush()


def _show_list(report: EnvsReport, *, quiet: bool, no_color: bool, options: str) -> None:
    rows: dict[tuple[str, ...], list[str]] = {}
    for done in report.hosts:
        for env in done.listing.envs if done.listing else ():
            rows.setdefault(_row(env), []).append(done.host.name)
    if rows:
        headings = ("name", "environment", "python", "torch", "ranks over", "size", "hosts")
        show_table(headings, [(*row, fold(names)) for row, names in rows.items()], no_color=no_color)
    elif not quiet and any(done.listing for done in report.hosts):
        print_message(f"there are no environments of ours; ipexctl install{options} makes one")
    for done in report.hosts:
        listing = done.listing
        if listing is not None and not quiet and (listing.wheels or listing.leftovers):
            parts = [f"{listing.wheels} wheels kept ({gigabytes(listing.wheel_bytes)})"] if listing.wheels else []
            parts += [f"leftovers ({gigabytes(listing.leftover_bytes)})"] if listing.leftovers else []
            print_message(
                f"{printable(done.host.name)}: {', '.join(parts)}; ipexctl envs --prune{options} takes them away"
            )


def _row(env: EnvEntry) -> tuple[str, ...]:
    torch = env.packages.get("torch", "?") if env.complete else "not whole"
    return (
        ", ".join(env.names) or "-",
        env.name,
        env.python or "?",
        torch,
        env.backend or "?",
        gigabytes(env.bytes),
    )
