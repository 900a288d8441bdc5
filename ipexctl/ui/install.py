"""Result of `ipexctl install`: hosts with equal results on one line and the next command, or JSON."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING, Any, Final

from ipexctl.text import printable, readable
from ipexctl.ui.messages import print_message, print_paragraph, print_refusal
from ipexctl.ui.results import how_to_continue, report_json, show_results, value_json
from ipexctl.ui.table import print_sentence

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ipexctl.stack.install_context import InstallReport, InstallResult


_SHOWN_CHANGES: Final = 8


def as_json(report: InstallReport) -> dict[str, Any]:
    lock = report.lock
    bytes_moved = {"wheels": lock.size if lock else 0, "downloaded": report.downloaded, "uplink": report.uplink}
    return report_json(
        "install",
        report,
        without=("refusal", "lock", "uplink", "downloaded", "changes", "next_step"),
        changes=[{"name": change.name, "from": change.before, "to": change.after} for change in report.changes],
        refused=report.refusal and value_json(report.refusal, without=("exit_code",)),
        wheels=[wheel.to_json() for wheel in lock.wheels] if lock else [],
        bytes=bytes_moved,
    )


def show(report: InstallReport, *, quiet: bool = False, no_color: bool = False) -> None:
    results = report.hosts
    if report.refusal is not None:
        print_refusal(report.refusal.reason, report.refusal.fix, no_color=no_color)
        results = [result for result in results if result.status != "failed"]
    if not quiet:
        _show_stack(report)
        _show_changes(report)
    show_results(results, _describe, quiet=quiet, no_color=no_color, dry_run=report.dry_run)
    for note in report.notes:
        print_paragraph(f"note: {printable(note)}")
    if not quiet:
        _print_next_step(report)


def _show_changes(report: InstallReport) -> None:
    if report.changes and report.refusal is None:
        shown = ", ".join(map(str, report.changes[:_SHOWN_CHANGES]))
        more = len(report.changes) - _SHOWN_CHANGES
        verb = "would change" if report.dry_run else "changed"
        print_sentence(f"{verb}: {printable(shown)}" + (f" and {more} more" if more > 0 else ""))


def _describe(result: InstallResult) -> str:
    return "; ".join(filter(None, (result.reason, verified_text(result.verify))))


def _show_stack(report: InstallReport) -> None:
    stack = report.stack
    if stack is None:
        return
    parts = [f"torch {stack.torch}"]
    parts += [f"IPEX {stack.ipex}"] if stack.ipex else []
    parts += [f"oneCCL bindings {stack.oneccl}"] if stack.oneccl else []
    parts += [f"Intel MPI {stack.mpi}"] if stack.mpi else []
    print_sentence(f"{stack.name}: {', '.join(parts)} for Python {stack.python}; ranks talk over {stack.backend}")
    print_sentence(f"  {printable(stack.why)}")
    if report.dry_run and report.lock is not None:
        for wheel in sorted(report.lock.wheels, key=lambda wheel: -(wheel.size or 0)):
            size = readable(wheel.size) if wheel.size else "?"
            sys.stdout.write(f"  {size:>8}  {printable(wheel.filename)}\n")


def verified_text(verify: Mapping[str, Any]) -> str:
    if not verify.get("ok"):
        return ""
    features = [f"verified: torch's own kernels use {verify['capability']}" if verify.get("capability") else "verified"]
    if verify.get("amx"):
        features.append("oneDNN can use AMX")
    if verify.get("bf16") in ("training", "inference"):
        features.append(f"bf16 {verify['bf16']}")
    if verify.get("allreduce_ms"):
        features.append(f"all-reduce over {verify.get('backend')}")
    return ", ".join(features)


def _print_next_step(report: InstallReport) -> None:
    statuses = {result.status for result in report.hosts}
    if report.dry_run:
        print_message("nothing was installed (--dry-run)")
    elif not report.hosts and report.path is not None and report.lock is not None:
        count = len(report.lock.wheels)
        print_message(f"{count} wheels and their installer are in {printable(report.path)}")
        print_message(
            f"next, where the hosts are reachable: ipexctl install --wheelhouse {shlex.quote(report.path)} --offline"
        )
    elif report.hosts and statuses == {"ok"}:
        print_message("nothing to do: every host has it")
    elif statuses & {"failed", "unreachable"} and report.refusal is None:
        print_message(how_to_continue(report.hosts, "install"))
    elif report.path is not None and report.hosts and report.refusal is None:
        print_message(f"on each host: {printable(report.path)}/bin/python")
        if report.next_step:
            print_message(f"next: {printable(report.next_step)}")
