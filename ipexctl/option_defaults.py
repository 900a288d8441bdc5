"""The defaults of options that several rooms need, each written here alone.

It imports nothing, so that the options of every command can be declared without their rooms. A default that one place
needs is written in the declaration of its option (`option_declaration.py`, `cli/options.py`).
"""

from __future__ import annotations

from typing import Final

FORKS: Final = 32
"""Hosts to work on at the same time."""
CONNECT_SECONDS: Final = 10.0
"""To connect and log in to a host."""
RECONNECT_SECONDS: Final = 300.0
"""Without a word from node0, until a call that follows a run gives up. The run itself does not depend on the call."""
TRANSPORT: Final = "auto"
"""The way to hosts: steps of the job within an allocation that has them, else ssh."""
DEFAULT_ENV: Final = "default"
DEFAULT_HOME: Final = "~/.ipexctl"
HUB_MACHINE: Final = "auto"
"""What downloads from a hub: the first host that reaches it, else the control machine."""
SLURM_LAUNCHER: Final = "auto"
"""Of `export slurm`: srun for gloo, else mpirun."""
LAB_HOSTS: Final = 3
LAB_USER: Final = "ipex"
LAB_HOMES: Final = "/home"
