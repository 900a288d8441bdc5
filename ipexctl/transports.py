"""Transports: how a call reaches the nodes. Launchers: what starts ranks there without an MPI.

Values and text only; `node/common/mpi.py` has the MPIs. A `Transport` is ssh or Slurm's srun. Only the functions at the
end compare names: other code asks the transport or the launcher what it can do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from shutil import which
from typing import Final, Literal, Protocol

from ipexctl.errors import UserError
from ipexctl.hosts.allocation import job_name, job_number, node_names
from ipexctl.hosts.host import Host, ssh_options
from ipexctl.node.common.mpi import MpiFlavor

TransportOption = Literal["auto", "ssh", "openssh", "srun"]
NoMpiFlavor = Literal["srun", "none"]
LaunchFlavor = Literal[MpiFlavor, NoMpiFlavor]


class Launcher(Protocol):
    """What starts the ranks if no mpirun does."""

    @property
    def flavor(self) -> NoMpiFlavor:
        """Name in plans, where the flavor of an MPI would stand."""

    @property
    def title(self) -> str:
        """Name for people."""

    @property
    def started(self) -> str:
        """As in `started by …`."""

    @property
    def reason(self) -> str:
        """Why a plan chooses this launcher by default."""

    @property
    def is_preferred(self) -> bool:
        """True if it is preferred to an existing mpirun."""

    @property
    def has_starters(self) -> bool:
        """True if the control machine begins a host starter on each host but node0."""

    def can_start(self, ranks_per_host: Mapping[str, int], node0: str, backend: str) -> bool:
        """True if the launcher can start these ranks. `ranks_per_host`: host → number of ranks."""

    def words(self, ranks_per_host: Mapping[str, int], hostfile: str, *, is_crowded: bool) -> tuple[str, ...]:
        """Return the words before those of the rank wrapper; empty if supervisor and host starters start each rank."""


class Transport(Protocol):
    """How a call reaches the nodes."""

    @property
    def name(self) -> str:
        """Name in records and for --transport."""

    @property
    def uses_ssh(self) -> bool:
        """True if the control machine logs in to the nodes; else job steps serve as sessions."""

    @property
    def is_program(self) -> bool:
        """True if the user's ssh program logs in to all hosts, not only where paramiko cannot."""

    @property
    def remote_shell(self) -> str:
        """Script that mpirun on node0 calls instead of ssh; empty if it reaches hosts through their starters."""

    @property
    def launcher(self) -> Launcher:
        """Launcher for plans over several hosts that need no MPI."""

    def job(self, environ: Mapping[str, str]) -> str:
        """Return the ID of the scheduler's job; empty outside a job."""

    def job_title(self, job: str) -> str:
        """Return the job's name for people."""

    def seconds_left(self, job: str) -> int | None:
        """Return the seconds until the job ends, from the scheduler; None without a limit or an answer."""

    def announcement(self, environ: Mapping[str, str]) -> str:
        """Return the line that tells the user how hosts are reached, if ipexctl chose it; or empty."""


class DirectLauncher:
    """Starts ranks without an MPI: the supervisor on node0, a host starter on each other host. No node logs in to
    another.

    Several ranks must be over gloo, or independent copies: oneCCL and the MPI backend get rank numbers from mpirun.
    """

    flavor: Final[NoMpiFlavor] = "none"
    title: Final = "ipexctl itself"
    started: Final = "started directly"
    reason: Final = "a single rank needs no mpirun; --mpi takes one"
    is_preferred: Final = False
    has_starters: Final = True

    def can_start(self, ranks_per_host: Mapping[str, int], node0: str, backend: str) -> bool:
        """True for gloo and independent copies; for a single rank, also for oneCCL."""
        return backend != "mpi" if self.is_single(ranks_per_host, node0) else backend in ("gloo", "none")

    def is_single(self, ranks_per_host: Mapping[str, int], node0: str) -> bool:
        """True if the plan has one rank, on node0."""
        return list(ranks_per_host.items()) == [(node0, 1)]

    def words(self, ranks_per_host: Mapping[str, int], hostfile: str, *, is_crowded: bool) -> tuple[str, ...]:
        """Return no words: supervisor and host starters start each rank."""
        del ranks_per_host, hostfile, is_crowded
        return ()


DIRECT: Final = DirectLauncher()


class SshTransport:
    """The default: the control machine logs in to all nodes, and no node to another."""

    name: str = "ssh"
    uses_ssh: Final = True
    is_program: bool = False
    remote_shell: Final = ""
    launcher: Final[Launcher] = DIRECT

    def job(self, environ: Mapping[str, str]) -> str:
        """Return nothing: ssh needs no job."""
        del environ
        return ""

    def job_title(self, job: str) -> str:
        """Return the job's name for people."""
        return f"job {job}"

    def seconds_left(self, job: str) -> int | None:
        """Return None: no job ends."""
        del job
        return None

    def announcement(self, environ: Mapping[str, str]) -> str:
        """Return nothing: ssh is what users expect."""
        del environ
        return ""


class OpenSshTransport(SshTransport):
    """As `SshTransport`, but the user's ssh program logs in to all hosts."""

    name = "openssh"
    is_program = True


OVER_SSH: Final = SshTransport()
OVER_OPENSSH: Final = OpenSshTransport()


_IN_PLACE_OF_SSH: Final = """\
#!/bin/sh
# In place of the ssh of mpirun on node0: its daemons are started in steps of Slurm's job.
while case $1 in -*) ;; *) false ;; esac; do shift; done
node=$1
shift
exec srun --overlap --nodes=1 --ntasks=1 --nodelist="$node" --mem=0 --cpu-bind=none --mpi=none --export=ALL \\
    --quiet --job-name=ipexctl /bin/sh -c "$*"
"""


@dataclass(frozen=True, slots=True)
class SrunLauncher:
    """Starts all ranks of a plan over several hosts as one step of the job."""

    flavor: NoMpiFlavor = "srun"
    title: str = "Slurm's srun"
    started: str = "started by Slurm's srun"
    reason: str = "ranks over gloo need no MPI, and within Slurm's job it starts them"
    is_preferred: bool = True
    has_starters: bool = False

    def can_start(self, ranks_per_host: Mapping[str, int], node0: str, backend: str) -> bool:
        """True for several hosts, unless the backend needs an mpirun."""
        del node0
        return len(ranks_per_host) > 1 and backend not in ("ccl", "mpi")

    def words(self, ranks_per_host: Mapping[str, int], hostfile: str, *, is_crowded: bool) -> tuple[str, ...]:
        """Return the words of srun.

        There is no --cpus-per-task, which implies --exact: Slurm would choose the CPUs, fewer than the plan's where
        they do not divide evenly.
        """
        options = (
            *("srun", "--overlap", f"--nodes={len(ranks_per_host)}", f"--ntasks={sum(ranks_per_host.values())}"),
            # Rank N is on line N of the file, whatever order Slurm has for the nodes.
            *("--distribution=arbitrary", f"--nodelist={hostfile}", "--mem=0", "--cpu-bind=none", "--mpi=none"),
            # If a rank or node fails, the supervisor ends the others once their last lines have arrived.
            *(
                "--no-kill",
                "--kill-on-bad-exit=0",
                "--wait=0",
                "--input=none",
                "--export=ALL",
                "--quiet",
                "--job-name=ipexctl",
            ),
        )
        return (*options, "--overcommit") if is_crowded else options


STEP: Final = SrunLauncher()


@dataclass(frozen=True, slots=True)
class SrunTransport:
    """Job steps of Slurm in place of logins."""

    name: str = "srun"
    uses_ssh: bool = False
    is_program: bool = False
    remote_shell: str = field(default=_IN_PLACE_OF_SSH, repr=False)
    launcher: Launcher = STEP

    def job(self, environ: Mapping[str, str]) -> str:
        """Return the number of the Slurm job; empty outside a job."""
        return job_number(environ)

    def job_title(self, job: str) -> str:
        """Return the job's name for people."""
        return f"Slurm job {job}"

    def seconds_left(self, job: str) -> int | None:
        """Ask Slurm how long the job may run on; None without a limit or an answer."""
        from ipexctl.node.common.slurm import ask, seconds_left, show_time_left  # few calls are in a job

        return seconds_left(ask(show_time_left(job)))

    def announcement(self, environ: Mapping[str, str]) -> str:
        """Return that hosts are reached over srun, and how to use ssh."""
        return f"over srun, in {self.job_title(job_name(environ))} (--transport ssh logs in instead)"


OVER_SRUN: Final = SrunTransport()


def transport_named(name: str) -> Transport:
    """Return the transport that a record names. An unknown name counts as ssh."""
    known: Mapping[str, Transport] = {one.name: one for one in (OVER_SSH, OVER_OPENSSH, OVER_SRUN)}
    return known.get(name) or OVER_SSH


def launcher_of(flavor: str) -> Launcher | None:
    """Return the launcher of a plan; None if an MPI starts its ranks."""
    if flavor == STEP.flavor:
        return STEP
    return DIRECT if flavor == DIRECT.flavor else None


def choose_transport(
    wanted: TransportOption,
    hosts: Sequence[Host] | None,
    environ: Mapping[str, str],
    *,
    find_program: Callable[[str], str | None] = which,
) -> Transport:
    """Choose srun inside a Slurm allocation, unless there are login options; else ssh.

    `hosts`: None for a command that needs ssh. Raises a UserError if --transport srun is not possible.
    """
    if wanted in ("ssh", "openssh"):
        return OVER_SSH if wanted == "ssh" else OVER_OPENSSH
    if hosts is None:
        if wanted == "srun":
            raise UserError("--transport srun is not for this command, which uses ssh", fix="leave out --transport")
        return OVER_SSH
    job = job_name(environ)
    if wanted == "auto" and not job:
        return OVER_SSH
    names, has_srun = node_names(environ), find_program(OVER_SRUN.name) is not None
    others = [host.name for host in hosts if host.name not in names and host.address != "localhost"]
    if wanted == "auto":
        is_over_srun = names and has_srun and not others and not any(map(ssh_options, hosts))
        return OVER_SRUN if is_over_srun else OVER_SSH
    if not (job and names):
        raise UserError(
            "--transport srun needs a Slurm allocation, and this call is not in one",
            fix="get one with salloc, or leave out --transport",
        )
    if not has_srun:
        raise UserError("--transport srun: there is no srun on PATH", fix="load Slurm's module, or use --transport ssh")
    if others:
        names_of_others = ", ".join(others)
        raise UserError(
            f"--transport srun: not in the allocation of Slurm job {job}: {names_of_others}",
            fix="without --hosts and -H, all nodes of the allocation are taken; or --transport ssh",
        )
    return OVER_SRUN
