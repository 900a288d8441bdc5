"""Tells the core of `ipexctl submit`, and of the queue as the starter of its runs."""

from ipexctl.extensions import CommandEntry, Extra

EXTRA = Extra(
    (
        CommandEntry(
            "submit",
            "Advanced",
            "Put a run into the queue of a Slurm cluster, through its login node.",
            "ipexctl.extras.slurm.command",
            before="config",
        ),
    ),
    adds={"starter:slurm": "ipexctl.extras.slurm.queued:QUEUE"},
)
