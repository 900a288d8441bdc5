"""Labs for others: made, found, broken, mended and removed."""

from __future__ import annotations

from ipexctl.extras.lab.down import RemovedLabs, down, find_labs, remove_abandoned
from ipexctl.extras.lab.fault_injection import break_host, find_host, mend_host, ssh_argv
from ipexctl.extras.lab.faults import FAULTS
from ipexctl.extras.lab.plan import LabSpec
from ipexctl.extras.lab.state import FoundLab, Lab, LabHost
from ipexctl.extras.lab.state import load_all as list_labs
from ipexctl.extras.lab.up import up

__all__ = [
    "FAULTS",
    "FoundLab",
    "Lab",
    "LabHost",
    "LabSpec",
    "RemovedLabs",
    "break_host",
    "down",
    "find_host",
    "find_labs",
    "list_labs",
    "mend_host",
    "remove_abandoned",
    "ssh_argv",
    "up",
]
