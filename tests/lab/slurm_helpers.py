"""A real Slurm on a lab's hosts, and ipexctl itself on one of them, as in a job."""

from __future__ import annotations

import io
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from agent_helpers import wait_until
from ipexctl.lab import Lab, LabHost, break_host, mend_host, ssh_argv
from ipexctl.lab.system import in_host
from lab_helpers import ask

PLACE = "/var/tmp/slurm"
DAEMONS = ("slurmctld", "slurmd")
CONF = f"""\
ClusterName=lab
SlurmctldHost=node1
SlurmUser=root
AuthType=auth/none
CredType=cred/none
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
StateSaveLocation={PLACE}/state
SlurmdSpoolDir={PLACE}/spool
SlurmctldPidFile={PLACE}/slurmctld.pid
SlurmdPidFile={PLACE}/slurmd.pid
SlurmctldLogFile={PLACE}/slurmctld.log
SlurmdLogFile={PLACE}/slurmd.log
JobAcctGatherType=jobacct_gather/none
NodeName=node[1-{{hosts}}] CPUs={{cores}} SocketsPerBoard=1 CoresPerSocket={{cores}} State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP
"""
"""Only for the lab's hosts: no authentication and no cgroups."""
BIG_PACKAGES = ("pip", "setuptools", "pkg_resources", "mypy", "mypyc", "ruff", "uv", "pytest", "hypothesis", "pydantic")
"""Large packages that a run does not need."""


HAS_SLURM = all(shutil.which(name, path="/usr/sbin:/usr/bin") for name in ("slurmctld", "slurmd", "sbatch"))
NEEDS_SLURM = pytest.mark.skipif(
    not HAS_SLURM,
    reason="Slurm isn't installed (on Debian: apt-get install --no-install-recommends slurm-wlm)",
)


@dataclass(frozen=True)
class Slurm:
    """A Slurm on a lab's hosts, its controller on node1: that of `slurm_on`, or of a lab that was made with one."""

    lab: Lab

    def say(self, command: str, *, rc: int | None = 0, timeout: float = 60) -> str:
        """The output of a command on node1, both streams."""
        settings = "" if self.lab.slurm else f"export SLURM_CONF={PLACE}/slurm.conf; "
        said = ask(self.lab.hosts[0], settings + command, timeout=timeout)
        assert rc is None or said.rc == rc, f"{command}: {said.rc}\n{said.out}{said.err}{self.logs()}"
        return said.out + said.err

    def logs(self) -> str:
        files = "/var/log/slurm*.log" if self.lab.slurm else f"{PLACE}/*.log"
        return "".join(in_host(host, f"tail -n 20 {files} || :") for host in self.lab.hosts)

    def submit(self, text: str, *options: str, environment: dict[str, str] | None = None) -> str:
        """Submit a job; returns its number. The variables are those of the sbatch call."""
        put(self.lab.hosts[0], "/home/ipex/job.sbatch", text)
        variables = shlex.join(["env", *(f"{name}={value}" for name, value in (environment or {}).items())])
        job = self.say(f"{variables} sbatch --parsable {' '.join(options)} job.sbatch").strip()
        assert job.isdigit(), job
        return job

    def ended(self, job: str, *, rc: int | None = 0, timeout: int = 90) -> str:
        """Wait for the end of the job; returns its output. `rc` None: any code except 0."""
        self.say(
            f"timeout {timeout} sh -c 'while squeue -h -j {job} | grep -q .; do sleep 0.2; done'", timeout=timeout + 5
        )
        said, how = self.said(job), self.say(f"scontrol show job {job}")
        found = re.search(r"ExitCode=(\d+):(\d+)", how)
        assert found and (found[0] == f"ExitCode={rc}:0" if rc is not None else found[0] != "ExitCode=0:0"), how + said
        return said

    def said(self, job: str) -> str:
        return self.say(f"cat $(scontrol show job {job} | sed -n 's/ *StdOut=//p') 2>/dev/null || :")

    def wait_for(self, job: str, text: str, times: int) -> None:
        wait_until(lambda: self.said(job).count(text) >= times, 60, lambda: self.said(job) + self.logs())


def put(host: LabHost, path: str, text: str) -> None:
    command = f"mkdir -p {path.rpartition('/')[0]} && cat > {path} && chmod a+r {path}"
    _as_root(host, command, text.encode())


def _as_root(host: LabHost, command: str, given: bytes) -> None:
    argv = [*ssh_argv(host)[:1], "-l", "root", *ssh_argv(host)[1:]]
    subprocess.run([*argv, command], input=given, check=True, timeout=40)


def copy_to_hosts(lab: Lab, project: Path) -> None:
    """Copy the project to the same path on all hosts, as on a shared disk."""
    for host in lab.hosts:
        for file in project.iterdir():
            put(host, str(file), file.read_text())
        ask(host, f"p={project}; while [ $p != / ]; do chmod a+rx $p; p=$(dirname $p); done", as_root=True)


@contextmanager
def slurm_on(lab: Lab) -> Iterator[Slurm]:
    cores = ask(lab.hosts[0], "nproc").out.strip()
    try:
        for at, host in enumerate(lab.hosts):
            put(host, f"{PLACE}/slurm.conf", CONF.format(cores=cores, hosts=len(lab.hosts)))
            put(host, f"{PLACE}/cgroup.conf", "CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n")
            lines = "".join(f"{name} -f {PLACE}/slurm.conf; " for name in DAEMONS[0 if at == 0 else 1 :])
            ask(host, f"export PATH=$PATH:/usr/sbin; cd {PLACE}; mkdir -p state spool; {lines}", as_root=True)
        slurm = Slurm(lab)
        ready = f"sinfo -h -o %D.%T | grep -qx {len(lab.hosts)}.idle"
        slurm.say(f"for try in $(seq 100); do {ready} && exit; sleep 0.2; done; exit 1")
        yield slurm
    finally:
        for host in lab.hosts:
            ended = "kill $(cat $pid); for try in $(seq 50); do [ -e $pid ] || break; sleep 0.1; done"
            ask(host, f"for pid in {PLACE}/*.pid; do {ended}; done; rm -rf {PLACE}", as_root=True)


def start_sshd(lab: Lab) -> None:
    """On the compute nodes of a lab that was made with a Slurm, for tests over ssh."""
    for host in lab.hosts[1:]:
        mend_host(host)


@contextmanager
def without_sshd(lab: Lab) -> Iterator[None]:
    """Such a lab as it was made: only srun reaches its compute nodes."""
    try:
        for host in lab.hosts[1:]:
            break_host(host, "sshd-dead")
        yield
    finally:
        start_sshd(lab)


def upload_ipexctl(host: LabHost) -> str:
    """Upload ipexctl and its dependencies to a host; returns the command that calls it."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    if ask(host, f"python3 -c 'import sys; sys.exit(sys.version_info[:2] != {sys.version_info[:2]})'").rc:
        pytest.skip(f"the lab's hosts have another Python than {version}")
    site, own = Path(sysconfig.get_path("purelib")), Path(__file__).parents[2] / "ipexctl"

    def wanted(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        return None if entry.name.endswith("__pycache__") else entry

    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=1) as tree:
        tree.add(own, "ipexctl", filter=wanted)
        for path in site.iterdir():
            if not path.name.startswith((*BIG_PACKAGES, "_editable", "_pytest")):
                tree.add(path, path.name, filter=wanted)
    _as_root(host, "mkdir -p /opt/ipexctl && tar -xzf - -C /opt/ipexctl", packed.getvalue())
    return "env PYTHONPATH=/opt/ipexctl python3 -m ipexctl"
