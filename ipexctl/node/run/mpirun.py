"""Starts mpirun, or Slurm's srun, in a process group and an environment of its own, and ends it with all its processes.

In comes the `StartRequest`; mpirun's output goes to RUNDIR/mpirun.log. `machine.py` decides when mpirun has to end.
This is the part of a starter (`ipexctl/starters/`) on node0, so `node_starter` has the words for whichever starts the
ranks, and no other module of the agent asks which it is.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from typing import TYPE_CHECKING, NamedTuple

from ipexctl.node.common.environ import account_variables, set_variables, source_setup
from ipexctl.node.common.processes import all_processes, end_with_parent
from ipexctl.node.common.slurm import environment_of_srun, variables_of_job

if TYPE_CHECKING:
    from ipexctl.node.common.job import StartRequest


class NodeStarter(NamedTuple):
    """The program that starts the ranks on node0, or none for a single rank."""

    name: str
    """For messages; empty if the supervisor starts the single rank itself."""
    program: str
    """Also that rank, as the subject of a sentence."""
    failure: str
    """The kind of failure if it can't be started."""
    fix: str
    in_job: bool
    """Whether it starts other nodes' ranks through a scheduler: it needs the variables of the job, and ends with it."""
    is_hydra: bool = False
    """SIGTERM may be endless before every rank has begun (`machine.py: end_mpirun`)."""


def node_starter(start: StartRequest) -> NodeStarter:
    if not start.by_mpirun:
        fix = "ipexctl envs --verify tests the environment"
        return NodeStarter("", "the rank", "rank-not-started", fix, start.by_slurm)
    program = os.path.basename(start.argv[0])
    name, fix = "srun" if program == "srun" else "mpirun", "ipexctl doctor looks for one"
    return NodeStarter(name, name, "mpirun-not-started", fix, start.by_slurm, program == "mpiexec.hydra")


INHERITED = ("PATH", "LANG", "LANGUAGE", "TZ", "KRB5CCNAME")


MAX_LOG = 1 << 18


class MpirunProcess:
    """A started mpirun. Its stdin stays open while the supervisor lives, and it is ended with the supervisor."""

    def __init__(self, start: StartRequest, rundir: str) -> None:
        """Raises an OSError when it can't be started."""
        environ = _environment(start)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._log_path = os.path.join(rundir, "mpirun.log")
        log = os.open(self._log_path, flags, 0o600)
        self._log_start = os.fstat(log).st_size
        try:
            self._process = subprocess.Popen(
                start.argv,
                cwd=rundir,
                env=environ,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=end_with_parent(signal.SIGTERM),
            )
        finally:
            os.close(log)
        self.pid = self._process.pid

    def read_log(self) -> str:
        """What it has printed; an earlier attempt has printed into the same file."""
        try:
            with open(self._log_path, "rb") as file:
                file.seek(self._log_start)
                return file.read(MAX_LOG).decode(errors="replace")
        except OSError:
            return ""

    def exit_code(self) -> int | None:
        """As `Popen.returncode`; None while it runs."""
        return self._process.poll()

    def signal(self, number: int) -> None:
        """Send a signal to its whole group, never by name."""
        with contextlib.suppress(OSError):
            os.killpg(self.pid, number)

    def kill_leftovers(self) -> None:
        """Kill its remaining children: they have groups of their own, such as an ssh to an unreachable node."""
        self.signal(signal.SIGKILL)
        for stat in all_processes():
            if stat.session == self.pid:
                with contextlib.suppress(OSError):
                    os.kill(stat.pid, signal.SIGKILL)


def _environment(start: StartRequest) -> dict[str, str]:
    """A minimal environment, because hydra passes all of it on to every rank."""
    environ = {name: value for name, value in os.environ.items() if name in INHERITED or name.startswith("LC_")}
    if node_starter(start).in_job:
        environ.update(environment_of_srun(variables_of_job(os.environ)))
    environ.update(account_variables())
    if start.setup:
        environ = source_setup(start.setup, environ).environ
    set_variables(environ, start.variables, ())
    return environ
