"""Registers `ipexctl slow`, and the verdict that `why` and Python programs show."""

from ipexctl.extensions import CommandEntry, Extra

EXTRA = Extra(
    (
        CommandEntry(
            "slow",
            "Name the slow rank of a run, with the cause and the cost.",
            "ipexctl.extras.slow.slow_command",
        ),
    ),
    adds={
        "verdict-of-windows": "ipexctl.extras.slow.slow_report:of_windows",
        "slow-of-run": "ipexctl.extras.slow.slow:slow_of_run",
    },
)
