"""Set up Slurm on a lab's hosts: the first is controller and login host, the others are compute nodes without sshd.

Missing Debian packages are unpacked only inside the hosts: if this machine had them, `doctor` would report other
things. Without systemd and cgroups (/sys is read-only), a daemon that leaves its parents outlives its job step here.
"""

from __future__ import annotations

import os
import secrets
import sys
import sysconfig
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ipexctl.addons.lab import lab_system
from ipexctl.addons.lab.lab_record import Lab, LabHost
from ipexctl.errors import UserError
from ipexctl.limits import LAB_DOWNLOAD, LAB_NODES_START

PROGRAMS: Final = {
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "srun": "slurm-client",
    "munged": "munge",
}
SCRIPT: Final = Path(__file__).with_name("slurm.sh")
_SHARED_TREES: Final = ("/usr/", "/opt/")


def configuration(lab: Lab, cores: int) -> str:
    """Return slurm.conf, the same on all hosts. The nodes share the machine's cores, so each node offers all of
    them."""
    first, *others = (host.name for host in lab.hosts)
    lines = (
        "ClusterName=lab",
        f"SlurmctldHost={first}",
        "SlurmUser=root",
        "AuthType=auth/munge",
        "CredType=cred/munge",
        "MpiDefault=none",
        "ProctrackType=proctrack/linuxproc",
        "TaskPlugin=task/affinity",
        "JobAcctGatherType=jobacct_gather/none",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_Core",
        # A CPU profile shows other cores than the machine has.
        "SlurmdParameters=config_overrides",
        # As on clusters with a firewall, where nodes may only connect to these ports.
        "SrunPortRange=61000-61999",
        "StateSaveLocation=/var/spool/slurmctld",
        "SlurmdSpoolDir=/var/spool/slurmd",
        "SlurmctldPidFile=/run/slurmctld.pid",
        "SlurmdPidFile=/run/slurmd.pid",
        "SlurmctldLogFile=/var/log/slurmctld.log",
        "SlurmdLogFile=/var/log/slurmd.log",
        # Slurm's defaults are 30 and 300 seconds, too long for a waiting user.
        "KillWait=5",
        "SlurmdTimeout=30",
        "ReturnToService=2",
        f"NodeName={','.join(others)} CPUs={cores} SocketsPerBoard=1 CoresPerSocket={cores} State=UNKNOWN",
        "PartitionName=all Nodes=ALL Default=YES State=UP MaxTime=INFINITE",
    )
    return "".join(f"{line}\n" for line in lines)


CGROUP_CONF: Final = "CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n"
"""slurmd reads this file although nothing uses cgroups; without it, slurmd 22.05 looks for systemd."""


@dataclass(frozen=True, slots=True)
class HostParts:
    """What each host needs for Slurm."""

    files: Mapping[str, str]
    """Path below /etc → text."""
    environment: Mapping[str, str]
    """Variables for `node.sh`."""


def prepare(lab: Lab) -> HostParts:
    """Return what each host needs for Slurm: files in its /etc, and variables for `node.sh`. Packages that this machine
    lacks are downloaded."""
    packages = lab.dir / "packages"
    texts = {
        "slurm/slurm.conf": configuration(lab, len(os.sched_getaffinity(0))),
        "slurm/cgroup.conf": CGROUP_CONF,
        "munge/munge.key": secrets.token_hex(64),
    }
    has_packages = download_packages(packages)
    return HostParts(texts, {"PACKAGES": str(packages) if has_packages else "", **_own_python()})


def download_packages(directory: Path) -> bool:
    """Download Slurm's programs for the hosts; False if the machine already has all of them."""
    absent = [name for name in PROGRAMS if lab_system.find(name) is None]
    if not absent:
        return False
    (directory / "partial").mkdir(parents=True)
    packages = list(dict.fromkeys(PROGRAMS.values()))
    argv = ["apt-get", "install", "--download-only", "--yes", "--no-install-recommends", "-o", "Debug::NoLocking=1"]
    try:
        lab_system.run([*argv, "-o", f"Dir::Cache::archives={directory}", *packages], timeout=LAB_DOWNLOAD)
    except lab_system.CommandError as error:
        raise UserError(
            f"a lab with Slurm needs {', '.join(absent)}, which this machine lacks and apt-get can't download: {error}",
            fix="apt-get update, then try again",
        ) from error
    return True


def _own_python() -> dict[str, str]:
    """Return variables for `node.sh` with ipexctl's interpreter and packages; empty if the hosts can't see these
    files."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    candidates = (Path(sys.executable).resolve(), Path("/usr/bin", version))
    python = next((path for path in candidates if str(path).startswith(_SHARED_TREES) and path.exists()), None)
    package, packages = Path(__file__).resolve().parents[2], Path(sysconfig.get_path("purelib")).resolve()
    if python is None or package.is_relative_to("/root"):
        return {}
    uv = Path(sysconfig.get_path("scripts"), "uv")
    return {
        "PYTHON": str(python),
        "UV": str(uv) if uv.is_file() else "",
        "SITE": str(packages),
        "SITE_PARENT": version,
        # An editable installation is found at its own path.
        "PACKAGE": "" if package.is_relative_to(packages) else str(package),
    }


def start(lab: Lab) -> None:
    """Start the daemons and wait until all nodes are idle; raises CommandError with the end of their logs."""
    first, *others = lab.hosts
    with ThreadPoolExecutor(max_workers=16) as pool:
        for _ in pool.map(lambda host: _call(host, "controller" if host is first else "node"), lab.hosts):
            pass
    _call(first, "wait", str(len(others)), str(LAB_NODES_START * 10))


def _call(host: LabHost, *arguments: str) -> None:
    try:
        lab_system.in_host(host, SCRIPT.read_text(encoding="utf-8"), arguments, timeout=2 * LAB_NODES_START)
    except lab_system.CommandError as error:
        raise lab_system.CommandError(f"Slurm does not start on {host.name}: {error}") from error
