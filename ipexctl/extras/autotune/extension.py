"""Tells the core of `ipexctl autotune`."""

from ipexctl.extensions import CommandEntry, Extra

EXTRA = Extra(
    (
        CommandEntry(
            "autotune",
            "Advanced",
            "Find the fastest settings of a run by short trials on its hosts.",
            "ipexctl.extras.autotune.command",
            before="config",
        ),
    )
)
