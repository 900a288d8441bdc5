"""Registers `ipexctl play` with the core."""

from ipexctl.extensions import CommandEntry, Extra

EXTRA = Extra(
    (
        CommandEntry(
            "play",
            "Run a playbook of ipexctl tasks, files and commands on the hosts.",
            "ipexctl.extras.play.play_command",
        ),
    )
)
