"""A cluster of real SSH hosts on this machine: namespaces, sshd, CPU costumes, faults."""

from __future__ import annotations

from ipexctl.lab.down import Removed, down
from ipexctl.lab.spec import LabSpec
from ipexctl.lab.state import Lab, LabHost
from ipexctl.lab.state import load_all as list_labs
from ipexctl.lab.up import LabEvent, up

__all__ = ["Lab", "LabEvent", "LabHost", "LabSpec", "Removed", "down", "list_labs", "up"]
