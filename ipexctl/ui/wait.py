"""Output of `ipexctl wait`: how each run ended, or why that is not known; as lines or JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ipexctl.text import printable
from ipexctl.ui.messages import fitted, print_message, print_with_fix
from ipexctl.ui.run.summary import end_lines

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ipexctl.run.wait import WaitResult


def show_waited(result: WaitResult, *, quiet: bool) -> None:
    run = result.record.id
    if result.status is not None and result.is_over:
        if not (quiet and result.exit_code == 0):
            print_message(fitted(end_lines(result.status, result.exit_code)))
    elif result.reason:
        print_with_fix(printable(f"run {run}: its end was not seen: {result.reason}"), result.fix)
    else:
        print_with_fix(
            f"run {run} goes on, and the time to wait is over", f"ipexctl wait {run}, or ipexctl attach {run}"
        )


def as_json(results: Sequence[WaitResult], exit_code: int) -> dict[str, Any]:
    return {
        "schema": "ipexctl.wait/1",
        "runs": [
            {
                "id": result.record.id,
                "state": "unknown" if result.status is None else result.status.state,
                "exit_code": result.exit_code,
                "reason": printable(result.status.reason if result.status and result.is_over else result.reason),
                "fix": printable(result.fix),
            }
            for result in results
        ],
        "exit_code": exit_code,
    }
