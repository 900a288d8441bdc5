"""Registers `ipexctl submit`, and the queue as the transport of its runs, with the core."""

from ipexctl.extensions import CommandEntry, Extra

EXTRA = Extra(
    (
        CommandEntry(
            "submit",
            "Advanced",
            "Put a run into the queue of a Slurm cluster, through its login node.",
            "ipexctl.extras.slurm.submit_command",
            before="config",
        ),
    ),
    adds={"transport:slurm": "ipexctl.extras.slurm.queued:QUEUE"},
)
