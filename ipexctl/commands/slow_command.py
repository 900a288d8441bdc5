"""`ipexctl slow`: the part of `ipexctl why` about slow ranks, for one more version."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from typing import Any, Final

import typer

from ipexctl.api.explained_runs import why
from ipexctl.commands.run_calls import begun, call_about_runs, find_run
from ipexctl.commands.shared_options import RUN, TIMEOUT, Output, RunHosts, command
from ipexctl.node.common.fix import Fix
from ipexctl.node.common.records import FINAL
from ipexctl.option_declaration import check_seconds
from ipexctl.run.profile import lines_of as profile_lines
from ipexctl.run.why.why import WhyResult
from ipexctl.ui.messages import wants_color
from ipexctl.ui.results import value_json
from ipexctl.ui.run.slow_report import comparison_lines, cost_lines, slow_json, slow_lines
from ipexctl.ui.text_table import print_lines

SCHEMA: Final = "ipexctl.slow/1"


@command()
def slow_command(
    *,
    run: str = RUN,
    timeout: float | None = TIMEOUT,
    where: RunHosts,
    output: Output,
) -> None:
    """Name the slow rank of a run, with the likely cause and what it costs.

    This is part of ipexctl why, and will be gone in the next version.

    \b
    Example: ipexctl why last
    """
    check_seconds("--timeout", timeout)
    record = begun(find_run(run, where, output), output)
    output.print_note(record.call_text(Fix(f"slow is part of why, and will be gone: `ipexctl why {run}`")))
    with call_about_runs(output) as (caller, _):
        answer = why(record, caller, timeout=timeout)
    output.print_report(answer, as_json, show)
    has_answer = not answer.unjudged or answer.findings or answer.links
    raise typer.Exit(answer.exit_code or int(not has_answer))


def as_json(answer: WhyResult) -> dict[str, Any]:
    plan = answer.record.plan
    return {
        "schema": SCHEMA,
        "run": {
            "id": answer.record.id,
            "script": plan.script,
            "state": answer.state,
            "world_size": plan.world_size,
        },
        **slow_json(answer),
        "network": value_json(answer.network),
        "amx_idle": list(answer.slow.amx_idle),
        "profile": answer.profile and answer.profile.document(),
    }


def show(answer: WhyResult, *, quiet: bool = False) -> None:
    del quiet
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
    print_lines(lines_of(answer, columns, colors=wants_color(sys.stdout)))


def lines_of(answer: WhyResult, columns: int = 0, *, colors: bool = False) -> Iterator[str]:
    return slow_lines(answer, columns, colors=colors, closing=_closing(answer))


def _closing(answer: WhyResult) -> Iterator[str]:
    record, error = answer.record, answer.error
    if error is not None:
        copy = "this is from the copy" if answer.from_copy else "there is no complete copy of the run"
        yield f"{record.node0.name}: {error.reason}; {copy} on the control machine"
        if not answer.from_copy:
            yield from filter(None, [error.advice])
            return
    yield from comparison_lines(record, answer.slow, is_over=answer.state in FINAL)
    yield from cost_lines(answer.slow)
    yield from profile_lines(answer.profile)
