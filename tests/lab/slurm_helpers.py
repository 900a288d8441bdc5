"""The real Slurm of a lab that was made with one: its jobs, and compute nodes with sshd, too."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import pytest

from agent_helpers import wait_until
from ipexctl.addons.lab.faults import break_host, mend_host
from ipexctl.addons.lab.lab_files import hostfile
from ipexctl.addons.lab.lab_record import Lab, LabHost
from ipexctl.addons.lab.lab_system import in_host
from lab_helpers import ask

NEEDS_SLURM = pytest.mark.needs("slurmctld", "slurmd", "sbatch")


@dataclass(frozen=True)
class Slurm:
    """That of a lab: node1 is its login node, and has the controller."""

    lab: Lab

    def say(self, command: str, *, rc: int | None = 0, timeout: float = 60) -> str:
        """The output of a command on node1, both streams."""
        said = ask(self.lab.hosts[0], command, timeout=timeout)
        assert rc is None or said.rc == rc, f"{command}: {said.rc}\n{said.out}{said.err}{self.logs()}"
        return said.out + said.err

    def logs(self) -> str:
        return "".join(in_host(host, "tail -n 20 /var/log/slurm*.log || :") for host in self.lab.hosts)

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
        """The output of the job so far, which is on its first node."""
        shown = dict(word.partition("=")[::2] for word in self.say(f"scontrol show job -o {job}").split())
        first = [host for host in self.lab.hosts if host.name == shown.get("BatchHost")]
        return in_host(first[0], f"cat {shown['StdOut']} 2>/dev/null || :") if first else ""

    def wait_for(self, job: str, text: str, times: int) -> None:
        wait_until(lambda: self.said(job).count(text) >= times, 60, lambda: self.said(job) + self.logs())


def put(host: LabHost, path: str, text: str) -> None:
    in_host(host, 'mkdir -p "${1%/*}" && printf %s "$2" >"$1" && chmod a+r "$1"', (path, text))


def start_sshd(lab: Lab) -> None:
    """On the compute nodes of a lab that was made with a Slurm, for tests over ssh."""
    for host in lab.hosts[1:]:
        mend_host(host)


def use_ssh(lab: Lab) -> Lab:
    """Such a lab with sshd on its compute nodes, which are the hosts of its hostfile then."""
    start_sshd(lab)
    lab.hostfile.write_text(hostfile(replace(lab, hosts=lab.hosts[1:], slurm=False)))
    return lab


@contextmanager
def without_sshd(lab: Lab) -> Iterator[None]:
    """Such a lab as it was made: only srun reaches its compute nodes."""
    try:
        for host in lab.hosts[1:]:
            break_host(host, "sshd-dead")
        yield
    finally:
        start_sshd(lab)
