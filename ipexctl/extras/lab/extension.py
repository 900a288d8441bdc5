"""Registers `ipexctl lab`, and the labs that `uninstall` lists, with the core."""

from ipexctl.extensions import CommandEntry, Extra

EXTRA = Extra(
    (
        CommandEntry(
            "lab",
            "Create and break a cluster of real SSH hosts on one machine.",
            "ipexctl.extras.lab.lab_command",
        ),
    ),
    adds={"left-on-control-machine": "ipexctl.extras.lab.down:labs_left"},
)
