"""Starts the ranks of an attempt from node0 with mpirun, Slurm's srun or rank wrappers, and signals and kills them.

Of the launcher, the rest of the supervisor knows only what `LauncherKind` says and whether there is one
(`Plan.is_direct`). Output goes to RUNDIR/mpirun.log, whatever the launcher.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from typing import TYPE_CHECKING, Mapping, Protocol, Sequence

from ipexctl.node.common.environ import account_variables, set_variables, source_setup
from ipexctl.node.common.fix import Fix
from ipexctl.node.common.processes import ProcessIdentity, descendants, end_with_parent, kill_sessions, read_text
from ipexctl.node.common.slurm import environment_of_srun, variables_of_job
from ipexctl.node.run.decisions.launcher_kind import LauncherKind
from ipexctl.node.run.decisions.supervisor_state import LauncherExited, WrapperExited
from ipexctl.node.run.host_starter.host_shells import end_open_mpi
from ipexctl.node.run.host_starter.rank_wrappers import RankWrappers, minimal_environment

if TYPE_CHECKING:
    from ipexctl.node.common.answer import Json
    from ipexctl.node.common.plan import Plan
    from ipexctl.node.run.decisions.supervisor_state import Event
    from ipexctl.node.run.supervisor.starter_connections import StarterConnections


def launcher_kind_of(plan: Plan) -> LauncherKind:
    """Return what decisions and messages must know of the plan's launcher."""
    if plan.is_direct:
        fix = Fix("`ipexctl envs --verify` tests the environment")
        return LauncherKind("", "the rank", "rank-not-started", fix, bool(plan.job))
    program = os.path.basename(plan.argv[0])
    name, fix = "srun" if program == "srun" else "mpirun", Fix("`ipexctl doctor` looks for one")
    return LauncherKind(name, name, "mpirun-not-started", fix, bool(plan.job), program == "mpiexec.hydra")


MAX_LOG = 1 << 18
_REMOTE_SHELL = "run.host_starter.remote_shell"
_PARTS = ("hydra_", "mpiexec", "orted", "prted", "srun", "ssh")


class AttemptProcesses(Protocol):
    pid: int
    log_begin: int

    def read_log(self) -> str:
        """Return the output of this attempt only."""

    def take_events(self) -> list[Event]:
        """Return exits since the last call. The exit of mpirun or srun is returned by each call after it."""

    def ended_parts(self) -> tuple[str, ...]:
        """Return the launcher's programs that were on this host at the first call, and have ended."""

    def signal(self, number: int) -> None:
        """Send a signal to the launcher's process group, or to all rank wrappers. Processes that are gone are no
        error."""

    def kill_leftovers(self) -> None:
        """Kill the processes that remain after the end of the attempt."""


def start_attempt(
    plan: Plan, argv: Sequence[str], attempt: int, starters: StarterConnections, orders: Mapping[str, Json]
) -> AttemptProcesses:
    """Start the ranks. Raises an OSError if the launcher, or a rank on node0, can't be started.

    `orders`: host → order to end the attempt before and, without mpirun, to start its ranks.
    """
    if not plan.is_direct:
        for host, order in orders.items():
            starters.send(host, order)
        return LauncherProcess(plan, argv)
    return DirectProcesses(plan, argv, attempt, starters, orders)


class LauncherProcess:
    """A started mpirun or srun, which ends with the supervisor. Its stdin stays open until then."""

    def __init__(self, plan: Plan, argv: Sequence[str]) -> None:
        environ = environment_of(plan)
        self._log = LaunchLog(plan.rundir)
        log = self._log.open()
        try:
            self._process = subprocess.Popen(
                argv,
                cwd=plan.rundir,
                env=environ,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=end_with_parent(signal.SIGTERM),
            )
        finally:
            os.close(log)
        self.pid, self.log_begin = self._process.pid, self._log.begin
        self._parts: dict[ProcessIdentity, str] | None = None

    def read_log(self) -> str:
        """Return what mpirun or srun has printed in this attempt."""
        return self._log.read()

    def take_events(self) -> list[Event]:
        """Return the launcher's exit, at each call once it has exited; empty until then."""
        code = self._process.poll()
        return [] if code is None else [LauncherExited(code)]

    def ended_parts(self) -> tuple[str, ...]:
        """Return programs of the launcher that have ended since the first call, as `ssh (pid 4711)`.

        The first call lists the programs that run, so it should come while all is well.
        """
        if self._parts is None:
            named = ((ProcessIdentity(stat.pid, stat.start), name_of_part(stat.pid)) for stat in descendants(self.pid))
            self._parts = {part: name for part, name in named if name}
        return tuple(f"{name} (pid {part.pid})" for part, name in self._parts.items() if not part.is_alive)

    def signal(self, number: int) -> None:
        """Send a signal to the launcher's process group. A launcher that is gone is no error."""
        with contextlib.suppress(OSError):
            os.killpg(self.pid, number)

    def kill_leftovers(self) -> None:
        """Kill children of the launcher with their own process groups, such as an ssh to an unreachable node."""
        kill_sessions({self.pid})
        end_open_mpi(f"prterun-{os.uname().nodename.partition('.')[0]}-{self.pid}@0")


class DirectProcesses:
    """The rank wrappers of an attempt. Wrappers on node0 are children of the supervisor, and end with it."""

    def __init__(
        self, plan: Plan, argv: Sequence[str], attempt: int, starters: StarterConnections, orders: Mapping[str, Json]
    ) -> None:
        """Raises an OSError if a wrapper on node0 can't be started. A starter that connects later is told then."""
        self._attempt, self._starters, self._log = attempt, starters, LaunchLog(plan.rundir)
        own = [rank.rank for rank in plan.ranks if not starters.has(rank.host)]
        self._wrappers = RankWrappers()
        environ, log = environment_of(plan), self._log.open()
        try:
            self._wrappers.start(
                own, argv, environ=environ, log=log, cwd=plan.rundir, prepare=end_with_parent(signal.SIGTERM)
            )
        except OSError:
            self._wrappers.kill()
            raise
        finally:
            os.close(log)
        self.pid, self.log_begin = next(iter(self._wrappers.pids), os.getpid()), self._log.begin
        for host, order in orders.items():
            starters.send(host, order)

    def read_log(self) -> str:
        """Return what the rank wrappers themselves have printed in this attempt, those of other hosts included."""
        return self._log.read()

    def take_events(self) -> list[Event]:
        """Return the exits of node0's wrappers since the last call. Host starters report those of other hosts."""
        return [WrapperExited(rank, code, self._attempt) for rank, code in self._wrappers.take_ended().items()]

    def ended_parts(self) -> tuple[str, ...]:
        """Return nothing: no launcher stands between the supervisor and the wrappers."""
        return ()

    def signal(self, number: int) -> None:
        """Send a signal to node0's wrappers, and have the connected starters send it to theirs."""
        self._wrappers.signal(number)
        self._starters.send_to_all("signal", number=number)

    def kill_leftovers(self) -> None:
        """Kill the wrappers on node0. Starters kill their own before the next attempt and when they exit."""
        self._wrappers.kill()


def name_of_part(pid: int) -> str:
    """Return the name of a program by which a launcher starts ranks; empty for the ranks themselves."""
    arguments = read_text(f"/proc/{pid}/cmdline").split("\0")
    if _REMOTE_SHELL in arguments:
        host = next(
            (word for word in arguments[arguments.index(_REMOTE_SHELL) + 2 :] if not word.startswith("-")), "a host"
        )
        return f"the remote shell to {host}"
    name = os.path.basename(arguments[0])
    return name if name.startswith(_PARTS) else ""


class LaunchLog:
    def __init__(self, rundir: str) -> None:
        self.path = os.path.join(rundir, "mpirun.log")
        self.begin = 0

    def open(self) -> int:
        """Open the log to append to it, and begin a new part of it, which `read` returns. The caller closes the
        descriptor."""
        log = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self.begin = os.fstat(log).st_size
        return log

    def append(self, text: str) -> None:
        """Add a text to the log. Raises an OSError if the disk is full."""
        log = self.open()
        try:
            os.write(log, text.encode())
        finally:
            os.close(log)

    def read(self) -> str:
        """Return the log from where `open` began, at most MAX_LOG bytes of it; empty if it can't be read."""
        try:
            with open(self.path, "rb") as file:
                file.seek(self.begin)
                return file.read(MAX_LOG).decode(errors="replace")
        except OSError:
            return ""


def shell_environment(plan: Plan) -> dict[str, str]:
    """Return the environment of calls to other hosts. In a Slurm job it has the job's variables, but none that act as
    options of srun."""
    environ = minimal_environment()
    if plan.job:
        environ = {**environ, **environment_of_srun(variables_of_job(os.environ)), **account_variables()}
    return environ


def environment_of(plan: Plan) -> dict[str, str]:
    """Return the launcher's environment. It is minimal, because hydra passes all of it to every rank."""
    environ = shell_environment(plan)
    if plan.setup:
        environ = source_setup(plan.setup, environ).environ
    set_variables(environ, {setting.name: setting.value for setting in plan.launcher_env}, ())
    return environ
