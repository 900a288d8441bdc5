"""Registers `ipexctl export` with the core."""

from ipexctl.extensions import CommandEntry, Extra

EXTRA = Extra(
    (
        CommandEntry(
            "export",
            "Print the plan of a run for another launcher.",
            "ipexctl.extras.export.export_command",
        ),
    )
)
