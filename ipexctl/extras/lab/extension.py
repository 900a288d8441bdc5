"""Tells the core of `ipexctl lab`, and of the labs that `uninstall` names."""

from ipexctl.extensions import CommandEntry, Extra

EXTRA = Extra(
    (
        CommandEntry(
            "lab",
            "Advanced",
            "Create and break a cluster of real SSH hosts on one machine.",
            "ipexctl.extras.lab.command",
            before="config",
        ),
    ),
    adds={"left-on-control-machine": "ipexctl.extras.lab.down:labs_left"},
)
