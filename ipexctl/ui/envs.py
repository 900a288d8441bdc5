"""Output of `ipexctl envs`: a line per environment with its hosts, or JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ipexctl.hosts.nodeset import fold
from ipexctl.text import counted, printable, readable
from ipexctl.ui.install import verified_text
from ipexctl.ui.messages import print_message
from ipexctl.ui.results import host_json, report_json, show_results, value_json
from ipexctl.ui.table import show_table

if TYPE_CHECKING:
    from ipexctl.node.env.replies import EnvEntry, EnvListing
    from ipexctl.stack.env.envs import EnvsReport, EnvsResult


def as_json(report: EnvsReport) -> dict[str, Any]:
    hosts = [host_json(result, without=("listing",), **_listing_json(result.listing)) for result in report.hosts]
    return report_json("envs", report, without=("verb",), hosts=hosts)


def _listing_json(listing: EnvListing | None) -> dict[str, Any]:
    if listing is None:
        return {"envs": [], "wheels": None, "leftovers": None, "prunable_bytes": None}
    return {
        "envs": value_json(listing.envs),
        "wheels": {"count": listing.wheels, "bytes": listing.wheel_bytes},
        "leftovers": {"count": listing.leftovers, "bytes": listing.leftover_bytes},
        "prunable_bytes": listing.prunable_bytes,
    }


def show(report: EnvsReport, *, quiet: bool = False, no_color: bool = False, options: str = "") -> None:
    """Print the report; `options` are the command line options that select the same hosts."""
    is_list = report.verb == "list"
    if is_list:
        _show_list(report, quiet=quiet, no_color=no_color, options=options)
    show_results(report.hosts, _describe, quiet=quiet or is_list, no_color=no_color)


def _describe(result: EnvsResult) -> str:
    removed = f"removed {', '.join(result.removed)}" if result.removed else ""
    changes = verified_text(result.verify) or removed
    return "; ".join(filter(None, (changes, result.reason))) or "nothing to remove"


def _show_list(report: EnvsReport, *, quiet: bool, no_color: bool, options: str) -> None:
    rows: dict[tuple[str, ...], list[str]] = {}
    for done in report.hosts:
        for env in done.listing.envs if done.listing else ():
            rows.setdefault(_row(env), []).append(done.host.name)
    if rows:
        headings = ("name", "environment", "python", "torch", "ranks over", "size", "hosts")
        show_table(headings, [(*row, fold(names)) for row, names in rows.items()], no_color=no_color)
    elif not quiet and any(done.listing for done in report.hosts):
        print_message(f"no environments; create one: ipexctl install{options}")
    for done in report.hosts:
        listing = done.listing
        if listing is not None and not quiet and (listing.wheels or listing.leftovers or listing.unnamed):
            parts = [f"{listing.wheels} cached wheels ({readable(listing.wheel_bytes)})"] if listing.wheels else []
            parts += [f"leftovers ({readable(listing.leftover_bytes)})"] if listing.leftovers else []
            if listing.unnamed:
                sizes = [env.bytes for env in listing.unnamed if env.bytes is not None]
                is_known = len(sizes) == len(listing.unnamed)
                size = readable(sum(sizes)) if is_known else "not all measured"
                parts.append(f"{counted(len(listing.unnamed), 'environment')} without a name ({size})")
            print_message(
                f"{printable(done.host.name)}: {', '.join(parts)}; while no run or install is alive (ipexctl ps), "
                f"ipexctl envs --prune{options} removes them"
                + (f" and frees up to {readable(freed)}" if (freed := listing.prunable_bytes) is not None else "")
            )


def _row(env: EnvEntry) -> tuple[str, ...]:
    torch = env.packages.get("torch", "?") if env.complete else "incomplete"
    return (
        ", ".join(env.names) or "-",
        env.name,
        env.python or "?",
        torch,
        env.backend or "?",
        "?" if env.bytes is None else readable(env.bytes),
    )
