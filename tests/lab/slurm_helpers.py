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
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from ipexctl.lab import Lab, LabHost, ssh_argv
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
"""Of the lab's hosts alone: nobody is to be told apart, and no cgroup is to be had."""
NOT_TO_RUN = ("pip", "setuptools", "pkg_resources", "mypy", "mypyc", "ruff", "uv", "pytest", "hypothesis", "pydantic")
"""Packages that are large, and that a run does without."""


def need_slurm() -> None:
    if not all(shutil.which(name, path="/usr/sbin:/usr/bin") for name in ("slurmctld", "slurmd", "sbatch")):
        pytest.skip("Slurm isn't installed (on Debian: apt-get install --no-install-recommends slurm-wlm)")


@dataclass(frozen=True)
class Slurm:
    """A Slurm of the lab's own: its controller on node1."""

    lab: Lab

    def say(self, command: str, *, rc: int | None = 0, timeout: float = 60) -> str:
        """What that says on node1, both streams."""
        said = ask(self.lab.hosts[0], f"export SLURM_CONF={PLACE}/slurm.conf; {command}", timeout=timeout)
        assert rc is None or said.rc == rc, f"{command}: {said.rc}\n{said.out}{said.err}{self.logs()}"
        return said.out + said.err

    def logs(self) -> str:
        return "".join(ask(host, f"tail -n 20 {PLACE}/*.log", as_root=True).out for host in self.lab.hosts)

    def begun(self, text: str, *options: str, handing: dict[str, str] | None = None) -> str:
        """The job's number; `handing` are variables of whoever submits it."""
        put(self.lab.hosts[0], "/home/ipex/job.sbatch", text)
        variables = shlex.join(["env", *(f"{name}={value}" for name, value in (handing or {}).items())])
        job = self.say(f"{variables} sbatch --parsable {' '.join(options)} job.sbatch").strip()
        assert job.isdigit(), job
        return job

    def ended(self, job: str, *, rc: int | None = 0, timeout: int = 90) -> str:
        """All that the job said, when it has ended with that code; None: whichever but 0."""
        self.say(
            f"timeout {timeout} sh -c 'while squeue -h -j {job} | grep -q .; do sleep 0.2; done'", timeout=timeout + 5
        )
        said, how = self.said(job), self.say(f"scontrol show job {job}")
        found = re.search(r"ExitCode=(\d+):(\d+)", how)
        assert found and (found[0] == f"ExitCode={rc}:0" if rc is not None else found[0] != "ExitCode=0:0"), how + said
        return said

    def said(self, job: str) -> str:
        return self.say(f"cat $(scontrol show job {job} | sed -n 's/ *StdOut=//p') 2>/dev/null || :")

    def has_said(self, job: str, text: str, times: int) -> bool:
        until = time.monotonic() + 60
        while (said := self.said(job)).count(text) < times:
            assert time.monotonic() < until, said + self.logs()
            time.sleep(0.2)
        return True


def put(host: LabHost, path: str, text: str) -> None:
    command = f"mkdir -p {path.rpartition('/')[0]} && cat > {path} && chmod a+r {path}"
    _as_root(host, command, text.encode())


def _as_root(host: LabHost, command: str, given: bytes) -> None:
    argv = [*ssh_argv(host)[:1], "-l", "root", *ssh_argv(host)[1:]]
    subprocess.run([*argv, command], input=given, check=True, timeout=40)


def spread(lab: Lab, project: Path) -> None:
    """The project to the same path on all hosts, as on a cluster's shared disk."""
    for host in lab.hosts:
        for file in project.iterdir():
            put(host, str(file), file.read_text())
        ask(host, f"p={project}; while [ $p != / ]; do chmod a+rx $p; p=$(dirname $p); done", as_root=True)


@contextmanager
def slurm_on(lab: Lab) -> Iterator[Slurm]:
    need_slurm()
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


def bring_ipexctl(host: LabHost) -> str:
    """ipexctl with what it needs, in a directory of its own there; how it is called."""
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
            if not path.name.startswith((*NOT_TO_RUN, "_editable", "_pytest")):
                tree.add(path, path.name, filter=wanted)
    _as_root(host, "mkdir -p /opt/ipexctl && tar -xzf - -C /opt/ipexctl", packed.getvalue())
    return "env PYTHONPATH=/opt/ipexctl python3 -m ipexctl"
