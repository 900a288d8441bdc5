"""Registers `ipexctl submit`, and the queue as the transport of its runs, with the core."""

from ipexctl.extensions import CommandEntry, Extra

EXTRA = Extra(
    (
        CommandEntry(
            "submit",
            "Put a run into the queue of Slurm, through a login node.",
            "ipexctl.extras.slurm.submit_command",
        ),
    ),
    adds={"transport:slurm": "ipexctl.extras.slurm.queued:QUEUE"},
)
