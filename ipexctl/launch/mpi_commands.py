"""Makes the mpirun line of each MPI, its variables and its files. Pure.

The line starts the rank wrapper, `node/run/rank.py`, which reads all that a rank needs from the plan and the job file.
mpirun gets a clean environment, because old variables of another launcher would mislead it. It binds nothing, unless
the user asks Intel MPI to. Node0 starts every daemon itself, because only node0 can log in to the other hosts.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import Final

from ipexctl.launch.comm_env import common_iface
from ipexctl.launch.context import LaunchContext
from ipexctl.launch.mpi import LauncherProgram
from ipexctl.launch.python_env import for_launcher
from ipexctl.node.common.plan import HostPlan, LaunchFile, Setting, hostfile_text
from ipexctl.transports import launcher_of

STARTUP_TIMEOUT: Final = 120
_SSH: Final = """\
#!/bin/sh
# The ssh of mpirun on node0. Hydra's -q would suppress ssh's error messages.
[ "$1" != -q ] || shift
exec {command} "$@"
"""


def argv(context: LaunchContext, program: LauncherProgram) -> tuple[str, ...]:
    gathered = context.gathered
    rank = (gathered.env.python, "-IS", f"{context.rundir}/agent.zip", "run.rank", f"{context.rundir}/job.json")
    launcher = launcher_of(program.flavor)
    if launcher is not None:
        crowded = any(node.count > node.cores.count for node in context.nodes)
        return (*launcher.words(context.counts, _hostfile(context), is_crowded=crowded), *rank)
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
    """Option that names node0's address for the nodes. By default mpirun takes node0's host name or hostfile entry."""
    if context.alone:
        return ()
    if iface := common_iface(context):
        return ("-iface", iface)
    # Intel's hydra ignores -localhost and takes the address from the hostfile.
    return ("-localhost", context.nodes[0].address) if context.flavor == "mpich" else ()


def _openmpi(context: LaunchContext, program: LauncherProgram) -> tuple[str, ...]:
    line = ["--allow-run-as-root", "--bind-to", "none", "--map-by", "slot", "--hostfile", _hostfile(context)]
    if context.alone:
        return tuple(line)
    is_old = (program.version or "5").startswith(("1.", "2.", "3.", "4."))
    # Without it a scheduler's allocation overrides the hostfile.
    parameters = {"plm": "rsh" if is_old else "ssh", "ras": "^slurm"}
    plm = "plm_rsh" if is_old else "plm_ssh"
    if context.gathered.transport.remote_shell:
        # The batch system's own plm, and hydra's, number the nodes as the batch system does: ranks would start on the
        # wrong nodes if the plan has another order, or only some nodes of the job.
        parameters |= {f"{plm}_agent": _ssh(context)}
    else:
        # Not ssh.sh: Open MPI's daemons look for it on every node.
        ssh, *arguments = _ssh_argv(context)
        parameters |= {f"{plm}_agent": ssh, f"{plm}_args": " ".join(arguments)}
    parameters[f"{plm}_no_tree_spawn"] = "1"  # only node0 can log into the others
    if iface := common_iface(context):
        parameters["oob_tcp_if_include" if is_old else "prte_if_include"] = iface
    for name, value in parameters.items():
        line += ["--mca" if is_old else "--prtemca", name, value]
    return tuple(line)


def launcher_env(context: LaunchContext, program: LauncherProgram) -> Iterator[Setting]:
    """Variables of mpirun itself, whose environment is otherwise empty."""
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
        "I_MPI_HYDRA_BOOTSTRAP", "ssh", "mpirun starts the daemons on other hosts by ssh, also within a scheduler's job"
    )
    yield Setting(
        "I_MPI_HYDRA_BOOTSTRAP_EXEC",
        _ssh(context),
        "ssh with the right key, user and port for each node, and without a prompt",
    )
    yield Setting(
        "I_MPI_HYDRA_BRANCH_COUNT",
        str(len(context.nodes)),
        "node0 starts every daemon itself: beyond 16 hosts other hosts would, and they can't log in anywhere",
    )


def files(context: LaunchContext, hosts: Sequence[HostPlan]) -> tuple[LaunchFile, ...]:
    launcher, shell = launcher_of(context.flavor), context.gathered.transport.remote_shell
    reaches_others = context.gathered.spec.has_pool and not context.alone
    text = hostfile_text(context.flavor, hosts)
    result = [LaunchFile("hostfile", 0o600, text)] if text else []
    if launcher is not None:
        if launcher.has_starters and context.gathered.ssh_config and not context.gathered.node0.no_logins:
            shell, reaches_others = _ssh_script(context), not context.alone
        return (*result, LaunchFile("ssh.sh", 0o700, shell)) if reaches_others and shell else tuple(result)
    if not context.alone and (shell or reaches_others or context.flavor != "openmpi"):
        script = shell or _ssh_script(context)
        # Open MPI's daemons look for it on every node.
        result.append(LaunchFile("ssh.sh", 0o700, script, is_everywhere=context.flavor == "openmpi"))
    return tuple(result)


def _ssh_script(context: LaunchContext) -> str:
    return _SSH.format(command=shlex.join(_ssh_argv(context)))


def _ssh_argv(context: LaunchContext) -> tuple[str, ...]:
    ssh = context.nodes[0].facts.environment.tools.get("ssh", "ssh")
    config = context.gathered.ssh_config
    return (ssh, "-F", config) if config else (ssh, "-o", "BatchMode=yes", "-o", "ConnectTimeout=10")


def _hostfile(context: LaunchContext) -> str:
    return f"{context.rundir}/hostfile"


def _ssh(context: LaunchContext) -> str:
    return f"{context.rundir}/ssh.sh"
