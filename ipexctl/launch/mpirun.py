"""Choose the launcher and make its command line: an mpirun of the environment, of the hosts or of the user, or none.
Nothing here reads a file or contacts a host.

`node/common/mpi.py` has what differs from MPI to MPI. Where mpirun on node0 would call ssh, it calls a script, and the
host's starter runs the line of that script (`node/run/host_starter/remote_shell.py`). An mpirun must have the same path
on all hosts, because node0 starts its daemons by that path. mpirun gets a clean environment, because old variables of
another launcher would mislead it.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Final

from ipexctl.errors import Refusal
from ipexctl.facts.software import Env, Mpi
from ipexctl.hosts.nodeset import fold
from ipexctl.launch.plan_draft import LauncherProgram, PlanDraft
from ipexctl.launch.python_env import for_launcher
from ipexctl.launch.run_context import RunContext
from ipexctl.node.common.fix import Fix
from ipexctl.node.common.mpi import INTEL, MPIS, mpi_named
from ipexctl.node.common.plan import Backend, LaunchFile, Setting, hostfile_text
from ipexctl.projects.script_file import MpiImport
from ipexctl.transports import DIRECT, Launcher, launcher_of


def title_of(flavor: str) -> str:
    """Return the name of a launcher or MPI for texts; an unknown flavor as it is."""
    launcher = launcher_of(flavor) or mpi_named(flavor)
    return launcher.title if launcher is not None else flavor


def started_by(flavor: str) -> str:
    """Return what starts the ranks, as in `started by Intel MPI`."""
    launcher = launcher_of(flavor)
    return f"started by {title_of(flavor)}" if launcher is None else launcher.started


def find_launcher(
    context: RunContext, ranks_per_host: Mapping[str, int], backend: Backend
) -> LauncherProgram | Refusal:
    """Choose the launcher, or refuse the run. `ranks_per_host`: host → number of ranks.

    If no mpirun can be found, and neither --mpi, the backend nor a module of the script needs one, ipexctl starts the
    ranks.
    """
    choice, node0 = context.asked.launcher, context.hosts[0].name
    is_single = DIRECT.is_single(ranks_per_host, node0)
    needing = None if is_single else context.spec.project.mpi_import
    if choice == "mpirun":
        return _find_mpirun(context, ranks_per_host)
    # On node0 alone, no other host is needed.
    candidate = DIRECT if list(ranks_per_host) == [node0] else context.transport.launcher
    launcher = candidate if candidate.can_start(ranks_per_host, node0, backend) else None
    if choice == "direct":
        return _direct(context, launcher, ranks_per_host, backend, needing)
    if launcher is None or context.asked.mpi != "auto":
        return _find_mpirun(context, ranks_per_host)
    if context.asked.keep_going:
        return _started_by(launcher, context, ranks_per_host, "mpirun ends all copies if one fails")
    if is_single or (launcher.is_preferred and needing is None):
        return _started_by(launcher, context, ranks_per_host, launcher.reason)
    mpirun = _find_mpirun(context, ranks_per_host)
    if not isinstance(mpirun, Refusal):
        return mpirun
    if needing is not None and needing.is_certain:
        return Refusal(f"{_needs_mpirun(needing)}, and {mpirun.reason}", mpirun.fix, mpirun.hosts, 2)
    return _started_by(launcher, context, ranks_per_host, mpirun.reason)


def _needs_mpirun(needing: MpiImport) -> str:
    """Return why a script needs mpirun: a module that it imports."""
    return f"the script imports {needing.module} ({needing.place}): it takes rank numbers from mpirun"


def lone_ranks_note(context: RunContext, launcher: LauncherProgram, world_size: int) -> str:
    """Return a note that each rank may take itself for the only one; empty if that cannot happen."""
    needing = context.spec.project.mpi_import
    if needing is None or launcher.mode == "mpirun" or world_size == 1:
        return ""
    return f"{_needs_mpirun(needing)}; if that line runs, each rank is 0 of 1 here: --launcher mpirun"


def _started_by(
    launcher: Launcher, context: RunContext, ranks_per_host: Mapping[str, int], reason: str
) -> LauncherProgram:
    """Return a launcher that needs no mpirun."""
    program = next(iter(launcher.words(ranks_per_host, "", is_crowded=False)), context.env.python)
    return LauncherProgram(launcher.flavor, program, True, reason)


def _direct(
    context: RunContext,
    launcher: Launcher | None,
    ranks_per_host: Mapping[str, int],
    backend: Backend,
    needing: MpiImport | None,
) -> LauncherProgram | Refusal:
    """Return the launcher for `--launcher direct`, or refuse it. `launcher`: None if none can start these ranks without
    mpirun.

    `needing`: the import of a module that gets its rank from mpirun; None without one.
    """
    if context.asked.mpi != "auto":
        reason = f"--launcher direct starts ranks without an MPI, and --mpi {context.asked.mpi} names one"
        return Refusal(reason, "leave one of them out")
    if launcher is None:
        return Refusal(
            f"--launcher direct: ranks over {backend} get their numbers from an mpirun",
            "--backend gloo; or --launcher mpirun",
        )
    if needing is not None and needing.is_certain:
        return Refusal(f"--launcher direct: {_needs_mpirun(needing)}", "--launcher mpirun", exit_code=2)
    return _started_by(launcher, context, ranks_per_host, "--launcher asks for it")


def _find_mpirun(context: RunContext, ranks_per_host: Mapping[str, int]) -> LauncherProgram | Refusal:
    """Return the first mpirun that --mpi allows: of the environment, else one at the same path on all hosts.

    Refuse if there is none.
    """
    choice, names = context.asked.mpi, list(ranks_per_host)
    if "/" in choice:
        return _named(context, choice)
    for launcher in (*_of_env(context), *_of_hosts(context, names)):
        if choice in ("auto", launcher.flavor):
            return launcher
    if choice in context.env.packages:
        return Refusal(
            f"the environment has {choice} and another MPI, and such wheels overwrite each other's mpirun",
            f"use {choice} from an environment of its own, on every host: --mpi PATH; or --mpi auto",
        )
    wanted = title_of(choice) if choice != "auto" else "mpirun"
    mpis = {name: context.facts[name].software.mpis for name in names}
    present = sorted({title_of(mpi.flavor) for mpi in mpis[names[0]] if mpi_named(mpi.flavor)})
    without = [name for name in names if not any(mpi.flavor == choice for mpi in mpis[name])]
    lacking = tuple(without) if choice != "auto" and 0 < len(without) < len(names) else ()
    others = f"; {names[0]} has {', '.join(present)}" if present and not lacking else ""
    where = f"on {names[0]}" if len(names) == 1 else "at one path on all hosts"
    fix: str = Fix("`ipexctl install` (every stack has Intel MPI); or --mpi PATH, a path that exists on all hosts")
    installed = _of_installed(context, names) if choice in ("auto", INTEL.flavor) else None
    if installed is not None:
        fix = f"use the mpirun of the environment {installed.name}: --mpi {installed.path}/bin/mpirun"
    return Refusal(f"there is no {wanted} {'on ' + fold(lacking) if lacking else where}{others}", fix, lacking)


def _of_installed(context: RunContext, names: Sequence[str]) -> Env | None:
    """Return an environment with Intel MPI that has the same path on all these hosts; None without one."""
    first, *others = ({env.path: env for env in context.facts[name].software.envs if env.mpi} for name in names)
    return next((env for path, env in first.items() if all(path in envs for envs in others)), None)


def _of_env(context: RunContext) -> Iterator[LauncherProgram]:
    """Yield each MPI of the environment.

    An MPI is left out if another wheel may have overwritten its mpirun.
    """
    env = context.env
    reason = f"it came with the environment {env.name}" if env.name else "it is in the environment"
    if not env.is_installed:
        reason = f"the environment {env.name} will have it"
    for mpi in MPIS:
        root, version = env.variables.get(mpi.root_variable), env.packages.get(mpi.package)
        if root is None and version is not None and not set(mpi.hidden_by) & set(env.packages):
            root = env.prefix
        if root:
            known_version = (
                version or None if root == env.prefix else None
            )  # a planned environment's packages have none
            yield LauncherProgram(mpi.flavor, f"{root}/bin/{mpi.program}", True, reason, known_version)


def _of_hosts(context: RunContext, names: Sequence[str]) -> Iterator[LauncherProgram]:
    """Yield each MPI that is installed at the same path on all these hosts."""
    first, *others = names
    installed = {name: {(mpi.flavor, _directory(mpi)) for mpi in context.facts[name].software.mpis} for name in others}
    for row in MPIS:
        for mpi in context.facts[first].software.mpis:
            directory = _directory(mpi)
            is_everywhere = all((row.flavor, directory) in mpis for mpis in installed.values())
            if mpi.flavor == row.flavor and is_everywhere:
                path = f"{directory}/{row.program}"
                yield LauncherProgram(row.flavor, path, False, "it is installed on the hosts", mpi.version)


def _named(context: RunContext, path: str) -> LauncherProgram | Refusal:
    """Return the MPI at the path of --mpi, or refuse a path that is none. The path may be mpirun or its directory."""
    mpis = context.facts[context.hosts[0].name].software.mpis
    known = next((mpi for mpi in mpis if path in (mpi.path, _directory(mpi))), None) or context.mpi
    if known is None:
        known = next((mpi for mpi in mpis if str(PurePosixPath(path).parent) == _directory(mpi)), None)
    row = mpi_named(known.flavor) if known is not None else None
    if known is None or row is None:
        *titles, last = (mpi.title for mpi in MPIS)
        return Refusal(
            f"--mpi {path} is not {', '.join(titles)} or {last}, or does not run on {context.hosts[0].name}",
            f"the path of an mpirun that prints its version: {path} --version",
            (context.hosts[0].name,),
        )
    return LauncherProgram(row.flavor, f"{_directory(known)}/{row.program}", False, "set by --mpi", known.version)


def _directory(mpi: Mpi) -> str:
    """Return the directory of the MPI's programs."""
    return str(PurePosixPath(mpi.path).parent)


_IN_PLACE_OF_SSH: Final = """\
#!/bin/sh
# In place of the ssh of mpirun on node0: the host's starter runs the line.
exec {command} "$@"
"""


def launcher_argv(draft: PlanDraft) -> tuple[str, ...]:
    """Return the command that starts the ranks on node0: the launcher, its options and the rank wrapper."""
    context, program = draft.context, draft.program
    rank = (
        context.env.python,
        "-IS",
        f"{draft.plan.rundir}/agent.zip",
        "run.rank",
        f"{draft.plan.rundir}/job.json",
    )
    launcher = launcher_of(program.flavor)
    if launcher is not None:
        crowded = any(node.count > node.cores.count for node in draft.nodes)
        return (*launcher.words(draft.ranks_per_host, draft.mpirun_line.hostfile, is_crowded=crowded), *rank)
    options = draft.mpi.words(draft.mpirun_line) if draft.mpi is not None else ()
    return (program.path, *options, "-n", str(draft.world_size), *rank)


def launcher_env(draft: PlanDraft) -> Iterator[Setting]:
    """Yield the variables of mpirun itself; none for another launcher.

    Those of the user and the site replace planned ones.
    """
    if draft.mpi is None:
        return
    overrides = tuple(for_launcher(draft))
    overridden = {setting.name for setting in overrides}
    planned = (Setting(*variable) for variable in draft.mpi.variables(draft.mpirun_line))
    yield from (setting for setting in planned if setting.name not in overridden)
    yield from overrides


def launcher_files(draft: PlanDraft) -> tuple[LaunchFile, ...]:
    """Return the files that the launcher needs in the run's directory: a hostfile, and a script in place of ssh."""
    launcher, shell = launcher_of(draft.plan.flavor), draft.context.transport.remote_shell
    reaches_others = draft.context.asked.has_pool and not draft.alone
    text = hostfile_text(draft.plan.flavor, draft.plan.hosts)
    result = [LaunchFile("hostfile", 0o600, text)] if text else []
    if launcher is not None:
        # srun does not say which wrapper is gone, so node0 has to ask the hosts.
        asks_hosts = reaches_others or not (launcher.has_starters or draft.alone)
        return (*result, LaunchFile("ssh.sh", 0o700, shell)) if asks_hosts and shell else tuple(result)
    if not draft.alone:
        command = (
            draft.context.env.python,
            "-IS",
            f"{draft.plan.rundir}/agent.zip",
            "run.host_starter.remote_shell",
            draft.plan.rundir,
        )
        script = shell or _IN_PLACE_OF_SSH.format(command=shlex.join(command))
        is_everywhere = draft.mpi is not None and draft.mpi.script_is_everywhere
        result.append(LaunchFile("ssh.sh", 0o700, script, is_everywhere=is_everywhere))
    return tuple(result)
