"""A cluster of real SSH hosts on one Linux machine: namespaces, sshd, CPU profiles, faults."""

from __future__ import annotations

from ipexctl.lab.condition import FoundLab
from ipexctl.lab.down import RemovedLabs, down, find_labs, remove_abandoned
from ipexctl.lab.fault_injection import break_host, find_host, mend_host, ssh_argv
from ipexctl.lab.faults import FAULTS
from ipexctl.lab.plan import LabSpec
from ipexctl.lab.state import Lab, LabHost
from ipexctl.lab.state import load_all as list_labs
from ipexctl.lab.up import up

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
