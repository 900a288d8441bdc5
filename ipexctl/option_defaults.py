"""Defaults of options that several rooms need.

Imports nothing, so that the options of every command can be declared without those rooms. A default that only one place
needs is written in its option's declaration (`option_declaration.py`, `commands/shared_options.py`).
"""

from __future__ import annotations

from typing import Final

FORKS: Final = 32
CONNECT_SECONDS: Final = 10.0
RECONNECT_SECONDS: Final = 300.0
"""Without a word from node0 until a call stops following a run. The run itself does not depend on the call."""
TRANSPORT: Final = "auto"
"""The way to hosts: job steps within an allocation that has them, else ssh."""
DEFAULT_ENV: Final = "default"
DEFAULT_HOME: Final = "~/.ipexctl"
HUB_MACHINE: Final = "auto"
"""Where downloads from a hub run: on the first host that reaches it, else on the control machine."""
SLURM_LAUNCHER: Final = "auto"
"""For `export slurm`: srun for gloo, else mpirun."""
LAB_HOSTS: Final = 3
LAB_USER: Final = "ipex"
LAB_HOMES: Final = "/home"
