"""`ipexctl versions`: show the table of stacks, and the one that install would choose, with the reason."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from typing import Any

import typer

from ipexctl.commands.option_groups import Home, Output, StackOptions, Targets, command
from ipexctl.errors import Refusal
from ipexctl.node.common.fix import Fix
from ipexctl.node.common.json_records import encode
from ipexctl.option_declaration import option_text
from ipexctl.stack.catalog import StackSpec
from ipexctl.stack.expected_stack import VersionsReport
from ipexctl.stack.resolve.model import StackPlan, StackRequest, Undecided
from ipexctl.stack.resolve.reasons import span
from ipexctl.ui.message_output import paint, print_with_fix, wants_color, wrap_text
from ipexctl.ui.results import show_failures
from ipexctl.ui.text_table import output_width, print_lines, show_table


@command()
def versions_command(
    *,
    stack: StackOptions,
    targets: Targets,
    home: Home,
    output: Output,
) -> None:
    """Show the table of stacks, the one that install would choose, and why.

    If you name hosts (--hosts, -H, -c), the choice fits all of them; otherwise
    no host is queried.

    \b
    Example: ipexctl versions --torch 2.7
    """
    from ipexctl.api.host_stacks import versions
    from ipexctl.commands.target_hosts import host_options, open_hosts

    request = StackRequest(**vars(stack))
    if not targets.names_hosts:
        report = versions(request)
    else:
        with open_hosts(targets, home, output) as (opened, interrupt):
            report = versions(request, opened)
        interrupt.check()
    output.print_report(report, as_json, show_versions, options=_same_call(request) + host_options(targets, home))
    raise typer.Exit(report.exit_code)


def _same_call(request: StackRequest) -> str:
    """Return the options of the request, for suggested commands."""
    pairs = [(f"--{name}", getattr(request, name)) for name in ("torch", "stack", "ipex", "oneccl", "python")]
    require = " --require-oneccl" if request.require_oneccl else ""
    return option_text(pairs) + require


_HEADINGS = ("stack", "torch", "ipex", "bindings", "mpi", "python", "glibc", "cpu")
_DERIVED = ("ipex", "oneccl", "pythons", "glibc", "isa", "backend", "bundled_mpi", "gloo_overflow")


def show_versions(report: VersionsReport, *, quiet: bool, options: str = "") -> None:
    """Print the table of stacks, the choice, and hosts that did not answer."""
    outcome = report.outcome
    chosen = outcome.row if isinstance(outcome, StackPlan) else None
    if not quiet:
        rows = [_cells(row, chosen) for row in _with_twin(report.rows, chosen)]
        show_table(_HEADINGS, rows)
        print_lines(_last_with_ipex(report.rows))
        print_lines(_with_gloo_overflow(report.rows))
        print_lines([""])
    if isinstance(outcome, StackPlan):
        print_lines(_choice_lines(outcome, None if quiet else options))
    elif not isinstance(outcome, Refusal):
        print_lines(_wrapped(f"which one: {outcome.reason.text}"))
    show_failures(host for host in report.hosts if host.facts is None)
    if isinstance(outcome, Refusal):
        label = paint("error:", "31", on=wants_color(sys.stderr))
        print_with_fix(f"{label} {outcome.reason}", outcome.fix)


def as_json(report: VersionsReport) -> dict[str, Any]:
    """Return the document."""
    outcome = report.outcome
    refused = isinstance(outcome, Refusal)
    return {
        "schema": "ipexctl.versions/1",
        "rows": [
            {
                **encode(row),
                **encode({name: getattr(row, name) for name in _DERIVED}),
                "mpi": dict(row.mpi),
                "hugging_face": dict(row.hugging_face),
            }
            for row in report.rows
        ],
        "choice": _choice_json(outcome) if isinstance(outcome, StackPlan) else None,
        "candidates": [_choice_json(plan) for plan in _candidates(outcome)],
        "why": outcome.reason if isinstance(outcome, Refusal) else outcome.reason.text,
        "fix": outcome.fix if isinstance(outcome, Refusal) else "",
        "notes": [note.text for note in outcome.notes] if isinstance(outcome, StackPlan) else [],
        "at_fault": list(outcome.hosts) if isinstance(outcome, Refusal) else [],
        "refused": refused,
        "hosts": [
            {"name": host.host.name, "status": host.status, "reason": host.reason, "fix": host.fix}
            for host in report.hosts
        ],
        "seconds": round(report.seconds, 3),
    }


def _candidates(outcome: StackPlan | Undecided | Refusal) -> tuple[StackPlan, ...]:
    """Return the stacks that are still possible; empty if the request is refused."""
    if isinstance(outcome, Refusal):
        return ()
    return (outcome,) if isinstance(outcome, StackPlan) else outcome.candidates


def _with_twin(rows: Sequence[StackSpec], chosen: StackSpec | None) -> list[StackSpec]:
    """Return the rows of the table. If the torch-only variant of an IPEX stack is the choice, it follows that stack."""
    shown = list(rows)
    if chosen is not None and all(row.name != chosen.name for row in rows):
        index = next((index for index, row in enumerate(rows) if row.stock().name == chosen.name), -1)
        shown.insert(index + 1, chosen)
    return shown


def _cells(row: StackSpec, chosen: StackSpec | None) -> tuple[str, ...]:
    """Return the cells of a stack; the choice is marked by a star."""
    return (
        ("* " if chosen is not None and row.name == chosen.name else "  ") + row.name,
        row.torch,
        row.ipex or "-",
        row.oneccl or "-",
        row.bundled_mpi or "pip's",
        span(row.pythons).replace(" to ", "-"),
        row.glibc,
        row.isa or "any",
    )


def _last_with_ipex(rows: Sequence[StackSpec]) -> list[str]:
    """Return for each stack the last transformers and accelerate with IPEX and oneCCL; stacks that agree share a
    line.
    """
    stacks: dict[str, list[str]] = {}
    for row in rows:
        if row.hugging_face:
            stacks.setdefault(" / ".join(version for _, version in row.hugging_face), []).append(row.name)
    parts = [f"{versions} ({' to '.join(dict.fromkeys((names[-1], names[0])))})" for versions, names in stacks.items()]
    if not parts:
        return []
    return _wrapped(f"last transformers / accelerate with IPEX and oneCCL: {', '.join(parts)}; later stacks: any")


def _with_gloo_overflow(rows: Sequence[StackSpec]) -> list[str]:
    """Warn of stacks in which ports of ranks can be attacked; empty if the table has none."""
    names = [row.name for row in rows if row.gloo_overflow]
    if not names:
        return []
    return _wrapped(f"{names[0]} and older: anyone who reaches a rank's port can write into it, through gloo")


def _choice_lines(plan: StackPlan, options: str | None) -> list[str]:
    """Return the lines of the choice. `options`: of the call, for the next command; None to leave it out."""
    parts = [
        f"torch {plan.torch}",
        f"IPEX {plan.ipex}" if plan.ipex else "",
        f"oneccl_bind_pt {plan.oneccl}" if plan.oneccl else "",
        f"Intel MPI {plan.mpi} (inside the bindings)" if plan.bundled_mpi else plan.mpi or "",
        f"Python {plan.python}",
        f"backend {plan.backend}",
    ]
    lines = _wrapped(f"* {plan.row.name}: {', '.join(part for part in parts if part)}")
    lines += _wrapped(f"  why: {plan.reason.text}")
    for note in plan.notes:
        lines += _wrapped(f"  note: {note.text}")
    if options is not None:
        lines.append(Fix("  next: `ipexctl install {*options}`", options=shlex.split(options)))
    return lines


def _wrapped(text: str) -> list[str]:
    """Return the text as lines, the second and later ones indented."""
    return wrap_text(text, min(100, output_width(80)), hanging="    ")


def _choice_json(plan: StackPlan) -> dict[str, Any]:
    """Return the choice."""
    fields = encode(plan, without=("row", "reason", "bundled_mpi", "torch_wheel", "notes"))
    return {"name": plan.row.name, **fields, "mpi": plan.mpi, "retired": plan.row.retired}
