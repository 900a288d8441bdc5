"""Tells the core of `ipexctl slow`, and of the verdict that `why` shows."""

from ipexctl.extensions import CommandEntry, Extra

EXTRA = Extra(
    (
        CommandEntry(
            "slow",
            "Look back",
            "Name the slow rank of a run, with the cause and the cost.",
            "ipexctl.extras.slow.command",
            before="dump",
        ),
    ),
    adds={"verdict-of-windows": "ipexctl.extras.slow.view:of_windows"},
)
