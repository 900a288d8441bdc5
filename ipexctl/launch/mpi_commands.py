"""The mpirun line of each MPI, its own variables, and the files beside it. Pure.

It starts the rank wrapper, `node/run/rank.py`; everything a rank needs to know travels in the job file.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Final

from ipexctl.launch import rank_env as surroundings
from ipexctl.launch.comm_env import common_iface
from ipexctl.launch.plan import LaunchFile, Setting

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ipexctl.launch.context import LaunchContext
    from ipexctl.launch.mpi import Launcher

STARTUP_TIMEOUT: Final = 120
RANK_WORDS: Final = 5
"""Words at the end of the mpirun line that start the rank wrapper."""
_SSH: Final = """\
#!/bin/sh
# How mpirun on node0 reaches the other nodes. Hydra's -q would keep ssh from saying why it can't.
[ "$1" != -q ] || shift
exec {command} "$@"
"""


def argv(context: LaunchContext, launcher: Launcher) -> tuple[str, ...]:
    """The whole line."""
    request = context.request
    count = ("-n", str(context.world_size))
    line = {"intel": _intel, "openmpi": _openmpi, "mpich": _mpich}[launcher.flavor]
    rank = (request.env.python, "-I", f"{request.rundir}/agent.zip", "run.rank", f"{request.rundir}/job.json")
    return (launcher.path, *line(context, launcher), *count, *rank)


def _intel(context: LaunchContext, _: Launcher) -> tuple[str, ...]:
    # Not -f: of its lines Intel's hydra reads the names and passes over the counts.
    # And with -genvnone the other hosts don't learn that they needn't pin.
    unpinned = () if context.alone else ("-genv", "I_MPI_PIN", "0")
    return ("-genvnone", *unpinned, *_own_address(context), "-machinefile", _hostfile(context))


def _mpich(context: LaunchContext, _: Launcher) -> tuple[str, ...]:
    if context.alone:
        how: tuple[str, ...] = ("-launcher", "fork")
    else:
        how = ("-launcher", "ssh", "-launcher-exec", _ssh(context))
    return ("-genvnone", *how, *_own_address(context), "-f", _hostfile(context))


def _own_address(context: LaunchContext) -> tuple[str, ...]:
    """How the nodes come back to node0: without this, by its host name, or the address the hostfile gives it."""
    if context.alone:
        return ()
    if iface := common_iface(context):
        return ("-iface", iface)
    # Intel's passes over -localhost, and takes the address from the hostfile.
    return ("-localhost", context.nodes[0].address) if context.flavor == "mpich" else ()


def _openmpi(context: LaunchContext, launcher: Launcher) -> tuple[str, ...]:
    line = ["--allow-run-as-root", "--bind-to", "none", "--map-by", "slot", "--hostfile", _hostfile(context)]
    if context.alone:
        return tuple(line)
    is_old = (launcher.version or "5").startswith(("1.", "2.", "3.", "4."))
    # A scheduler's allocation would win over the hostfile.
    parameters = {"plm": "rsh" if is_old else "ssh", "ras": "^slurm"}
    # Not our script: Open MPI's daemons look for it on every node. And none but node0 may reach the others.
    ssh, *how = _ssh_words(context)
    way = "plm_rsh" if is_old else "plm_ssh"
    parameters |= {f"{way}_agent": ssh, f"{way}_args": " ".join(how), f"{way}_no_tree_spawn": "1"}
    if iface := common_iface(context):
        parameters["oob_tcp_if_include" if is_old else "prte_if_include"] = iface
    for name, value in parameters.items():
        line += ["--mca" if is_old else "--prtemca", name, value]
    return tuple(line)


def launcher_env(context: LaunchContext, launcher: Launcher) -> Iterator[Setting]:
    """What mpirun gets in its environment, which is a clean one: an old PMI_RANK or SLURM_NODELIST would mislead it."""
    asked = tuple(surroundings.for_launcher(context))
    if launcher.flavor == "intel":
        theirs = {one.name for one in asked}
        yield from (one for one in _intel_env(context, launcher) if one.name not in theirs)
    yield from asked


def _intel_env(context: LaunchContext, launcher: Launcher) -> Iterator[Setting]:
    yield Setting("I_MPI_ROOT", launcher.root, "where this Intel MPI is")
    yield Setting("I_MPI_PIN", "0", "each rank is bound to its cores already")
    yield Setting(
        "I_MPI_JOB_STARTUP_TIMEOUT",
        str(STARTUP_TIMEOUT),
        "seconds for all hosts to answer; by itself it waits for ever",
    )
    if context.alone:
        yield Setting("I_MPI_HYDRA_BOOTSTRAP", "fork", "one host: ranks are started without ssh")
        return
    yield Setting(
        "I_MPI_HYDRA_BOOTSTRAP", "ssh", "how daemons are started on the other hosts, also within a scheduler's job"
    )
    yield Setting(
        "I_MPI_HYDRA_BOOTSTRAP_EXEC",
        _ssh(context),
        "ssh with the right key, user and port for each node, and never a question",
    )
    yield Setting(
        "I_MPI_HYDRA_BRANCH_COUNT",
        str(len(context.nodes)),
        "node0 starts every daemon itself: beyond 16 hosts others would, which can't log in anywhere",
    )


def hostfile(context: LaunchContext) -> str:
    """As many ranks on each host as planned, one after the other."""
    form = "{} slots={}\n" if context.flavor == "openmpi" else "{}:{}\n"
    return "".join(form.format(node.word, node.count) for node in context.nodes)


def files(context: LaunchContext) -> tuple[LaunchFile, ...]:
    made = [LaunchFile("hostfile", 0o600, hostfile(context))]
    if not context.alone and context.flavor != "openmpi":
        made.append(LaunchFile("ssh.sh", 0o700, _SSH.format(command=shlex.join(_ssh_words(context)))))
    return tuple(made)


def _ssh_words(context: LaunchContext) -> tuple[str, ...]:
    ssh = context.nodes[0].facts.environment.tools.get("ssh", "ssh")
    config = context.request.ssh_config
    return (ssh, "-F", config) if config else (ssh, "-o", "BatchMode=yes", "-o", "ConnectTimeout=10")


def _hostfile(context: LaunchContext) -> str:
    return f"{context.request.rundir}/hostfile"


def _ssh(context: LaunchContext) -> str:
    return f"{context.request.rundir}/ssh.sh"
