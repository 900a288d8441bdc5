"""Known texts of a start that didn't come about: mpirun and its daemons, ssh, oneCCL and its libraries.

Rows go from special to common; a row's id is what docs/troubleshooting.md calls it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ipexctl.hosts.nodeset import fold
from ipexctl.jobs.why.patterns.match import KnownError

if TYPE_CHECKING:
    from ipexctl.jobs.why.patterns.match import PatternMatch

_TRUST: Final = "ipexctl trust lets node0 in everywhere; ipexctl doctor tells what is wrong"
_INSTALL: Final = "ipexctl install puts the environment on every node; a second call only where it is missing"
_DOCTOR_WAYS: Final = "ipexctl doctor shows which ways between the nodes are closed; another network: --iface NAME|CIDR"
_NODE: Final = r"Unable to run bstrap_proxy on (?P<node>\S+) \(pid \d+, exit code "


def _proxy_ended(found: PatternMatch) -> tuple[str, str]:
    status = int(found.groups["status"])
    how = f"exit code {status >> 8}" if status >> 8 else f"signal {status & 127}"
    return (
        f"mpirun's daemon on {found.groups['node']} ended at its start ({how})",
        "ipexctl doctor tells what is wrong on that node, and between it and node0",
    )


def _rank_killed(found: PatternMatch) -> tuple[str, str]:
    by, place, rank = (found.groups[name] for name in ("number", "place", "number_of_rank"))
    return (
        (
            f"mpirun says that what it had started as rank {rank} on {place} was killed by signal {by}: the wrapper "
            "of the rank itself was ended, by somebody or by the kernel for want of memory"
        ),
        f"on that node: dmesg -T | tail shows what the kernel did; ipexctl logs {found.context.run} -r {rank}",
    )


def _mpirun_ended(found: PatternMatch) -> tuple[str, str]:
    return (
        f"MPI gave up in {found.groups['call']} before the ranks could talk",
        (
            f"its own words: ipexctl logs {found.context.run} --stderr; ipexctl doctor looks at the network among the "
            "nodes"
        ),
    )


def _no_library(found: PatternMatch) -> tuple[str, str]:
    return (
        f"the library {found.groups['library']} is not found on {fold(found.hosts)}",
        (
            "ipexctl envs shows whether the environment is whole there, ipexctl install mends it; one of your own: "
            "--setup FILE, or -x LD_LIBRARY_PATH=DIR"
        ),
    )


LAUNCH: Final = (
    KnownError(
        "mpi.ssh_failed",
        (_NODE + r"65280\)",),
        "node0 can't log into {node} by ssh, and mpirun starts its ranks there that way",
        _TRUST,
        "anywhere",
    ),
    KnownError(
        "mpi.not_there",
        (_NODE + r"32512\)", r"hydra_bstrap_proxy: (?:No such file|not found)", r"hydra_pmi_proxy: No such file"),
        "MPI isn't at its path on {node}: the environment is missing or broken there",
        _INSTALL,
        "anywhere",
    ),
    KnownError(
        "mpi.node0_name",
        (_NODE + r"768\)", r"getaddrinfo returned error -3"),
        "a node can't resolve node0's name, which mpirun's daemons were told to connect to",
        "name the network, and names are no longer needed: --iface NAME|CIDR; or put node0 into /etc/hosts there",
        "anywhere",
    ),
    KnownError(
        "mpi.firewall",
        (r"unable to connect to server (?P<server>\S+) at port (?P<port>\d+) \(check for firewalls!\)",),
        "a node can't connect to {server} at port {port}, where mpirun listens: a firewall, or the wrong network",
        _DOCTOR_WAYS,
        "anywhere",
    ),
    KnownError("mpi.proxy_ended", (_NODE + r"(?P<status>\d+)\)",), "", "", "anywhere", tell=_proxy_ended),
    KnownError(
        "mpi.no_interface",
        (r"unable to find interface (?P<iface>\S+)",),
        "there is no network interface {iface} on one of the nodes",
        "leave --iface out, or name the network by its addresses, which holds on every node: --iface 10.0.0.0/24",
        "anywhere",
    ),
    KnownError(
        "mpi.no_hydra",
        (r"mpiexec\.hydra: (?:command )?not found",),
        "mpirun doesn't find mpiexec.hydra: the bin directory of its environment isn't on PATH",
        "without --mpi the environment's own is taken; else --mpi PATH of an mpirun that is whole",
        "anywhere",
    ),
    KnownError(
        "mpi.no_python",
        (r"HYD_spawn .*execvp error on file (?P<file>\S+) \(No such file or directory\)",),
        "{file} is not there on one of the nodes",
        _INSTALL + "; with --python it must lie at one path on all",
        "anywhere",
    ),
    KnownError(
        "mpi.no_daemon",
        (r"(?:prted|orted): (?:command )?not found", r"(?:prted|orted): No such file or directory"),
        "Open MPI's daemon is not found on one of the nodes",
        _INSTALL,
        "anywhere",
    ),
    KnownError(
        "mpi.no_slots",
        (r"There are not enough slots available in the system",),
        "Open MPI was told of fewer slots than ranks",
        "slots=N in the hostfile, fewer ranks: -n, --ppn; or --mpi intel",
        "anywhere",
    ),
    KnownError(
        "ssh.host_key",
        (r"Host key verification failed",),
        "node0 doesn't know the host key of a node, or the key has changed",
        "ipexctl trust pins the keys that this machine has verified",
        "anywhere",
    ),
    KnownError("ssh.denied", (r"Permission denied \(publickey",), "a node refuses node0's key", _TRUST, "anywhere"),
    KnownError(
        "ssh.no_name",
        (r"Could not resolve hostname (?P<name>[^\s:]+)",),
        "node0 can't resolve the name {name}",
        "an address instead: internal=ADDRESS behind the host in the hostfile; ipexctl doctor shows who knows whom",
        "anywhere",
    ),
    KnownError(
        "run.no_way_back",
        (r"the supervisor at (?P<place>\S+) can't be reached from here: (?P<why>[^;]+)",),
        "a rank couldn't connect back to node0 at {place}: {why}",
        _DOCTOR_WAYS,
        "anywhere",
    ),
    KnownError(
        "run.wrong_mpi",
        (r"mpirun told this rank its number in none of", r"mpirun says there are \d+ ranks, and the plan \d+"),
        "the mpirun that was started doesn't fit the ranks: each has to be told its number and how many there are",
        "--mpi intel, openmpi or mpich as the environment has it; ipexctl run --dry-run shows the line",
        "anywhere",
    ),
    KnownError(
        "run.no_directory",
        (r"^ipexctl: (?P<place>[^:]+): (?P<what>.*); is the project synced to this path\?",),
        "the project's directory is not there on {place}: {what}",
        "ipexctl sync brings it to every node; with --no-sync it has to lie there already",
    ),
    KnownError(
        "run.no_command",
        (r"^ipexctl: (?P<place>[^:]+): (?P<what>.+: (?:No such file|Permission denied|Exec format)[\w ]*)$",),
        "the command can't be started on {place}: {what}",
        "ipexctl exec -- ls -l FILE shows who has it; a program of the environment: its name alone",
    ),
    KnownError(
        "run.setup_failed",
        (r"^ipexctl: (?P<place>[^:]+): (?P<what>.+ could not be sourced: .*)$",),
        "the --setup file failed on {place}: {what}",
        "it has to work for every node, in bash, without a terminal: ipexctl exec --shell 'bash -c \". FILE\"'",
    ),
    KnownError(
        "ccl.setvars_in_dash",
        (r"prepend_path: not found",),
        "setvars.sh was sourced by a shell that isn't bash, and set only half of what is needed",
        "--setup FILE sources it in bash on every node",
        "anywhere",
    ),
    KnownError(
        "ccl.vars_not_setvars",
        (r"could not open the library: libfabric\.so",),
        "oneCCL finds no libfabric: vars.sh was sourced where setvars.sh was needed",
        "source setvars.sh, in bash: --setup FILE; or ipexctl install, whose environment needs neither",
        "anywhere",
    ),
    KnownError(
        "ccl.no_mpi_root",
        (r"neither I_MPI_ROOT nor ONEAPI_ROOT is set",),
        "oneCCL was given Intel MPI's libraries and not its root",
        "--setup with Intel MPI's setvars.sh, or -x I_MPI_ROOT=DIR; ipexctl install sets up one that needs neither",
        "anywhere",
    ),
    KnownError(
        "ccl.no_transport",
        (r"could not initialize any transport library", r"could not open the library: libmpi\.so"),
        "oneCCL finds no MPI library: its setvars.sh has not been sourced",
        "ipexctl install sets up an environment that needs no setvars.sh; else --setup FILE that sources it",
    ),
    KnownError(
        "ccl.no_provider",
        (
            r"atl_ofi_get_prov_list: fi_getinfo error",
            r"can't create providers for name",
            r"OFI fi_getinfo\(\) failed",
        ),
        "libfabric has no provider that works: FI_PROVIDER or FI_PROVIDER_PATH names one that isn't there",
        "leave both unset, or -x FI_PROVIDER=tcp; ipexctl run --dry-run shows what is set, and why",
        "anywhere",
    ),
    KnownError(
        "ccl.no_libccl",
        (r"libccl\.so\.\d+: cannot open shared object file",),
        "the oneCCL library isn't found on {host}",
        _INSTALL,
    ),
    KnownError(
        "ccl.not_imported",
        (r"Unknown backend type ccl", r"Invalid backend: 'ccl'", r"Unknown c10d backend type CCL"),
        "the script asks for the ccl backend and never imports the oneCCL bindings, or the environment has none",
        "import oneccl_bindings_for_pytorch before init_process_group; without it: --backend gloo",
    ),
    KnownError(
        "ccl.other_torch",
        (r"liboneccl_bindings_for_pytorch\.so: undefined symbol: (?P<symbol>\S+)",),
        "the oneCCL bindings were built for another torch than the one that is installed",
        "ipexctl install puts a pair on every node that belongs together; ipexctl versions shows the pairs",
    ),
    KnownError(
        "ccl.newer_oneccl",
        (r"undefined symbol: _ZNK4sycl", r"libsycl\.so\.\d+: cannot open"),
        "oneCCL is newer than the one the bindings were built with",
        "ipexctl install takes the one that fits; ipexctl versions shows which that is",
    ),
    KnownError(
        "ccl.workers_unplaced",
        (r"unexpected number of values.*CCL_WORKER_AFFINITY", r"CCL_WORKER_AFFINITY.*unexpected number of values"),
        "CCL_WORKER_AFFINITY doesn't have one core for each worker of each rank on the node",
        "leave it unset: it is planned for each host; ipexctl run --dry-run shows it",
    ),
    KnownError(
        "mpi.gave_up",
        (r"Fatal error in (?:internal_|P)?(?P<call>MPI_\w+)",),
        "",
        "",
        "vague",
        tell=_mpirun_ended,
    ),
    KnownError(
        "ccl.no_start",
        (r"failed to initialize ATL", r"oneCCL: \S+ \S+: EXCEPTION: (?P<what>.*)"),
        "oneCCL couldn't be started on {host}",
        "ipexctl doctor looks at the network; one that always works: --backend gloo",
        "vague",
        "possible",
    ),
    KnownError(
        "mpi.rank_killed",
        (
            (
                r"RANK (?P<number_of_rank>\d+) PID \d+ RUNNING AT (?P<place>\S+)\n"
                r"(?:.*\n){0,2}?.*KILLED BY SIGNAL: (?P<number>\d+)"
            ),
        ),
        "",
        "",
        "vague",
        tell=_rank_killed,
    ),
    KnownError(
        "mpi.cant_start",
        (r"mpirun can't be started(?: again)?: (?P<why>.*)",),
        "mpirun can't be started on {host}: {why}",
        "ipexctl install brings one; ipexctl doctor shows which there are; another: --mpi PATH",
        "vague",
    ),
    KnownError(
        "mpi.ended",
        (r"mpirun was (?:ended by SIG\w+|told to end)",),
        "mpirun itself was ended on {host}, and not by ipexctl: by another session of yours, or by the kernel for want "
        "of memory",
        "on {host}, as root: dmesg -T | grep -i kill; then run it again",
        "vague",
        "possible",
    ),
    KnownError(
        "run.not_begun",
        (r"did not begin within (?P<seconds>[\d.]+) s",),
        "ranks were not there {seconds} s after mpirun's start: a login that hangs, a home that does, or a machine "
        "with too much to do",
        "ipexctl doctor tries the logins from node0, and the homes",
        "vague",
        "possible",
    ),
    KnownError(
        "mpi.downstream",
        (r"Downstream from host (?P<node>\S+) exited abnormally",),
        "mpirun lost its daemon on {node}: it was killed there, or the ssh that held it broke",
        "is the machine up? ipexctl doctor --limit {node}",
        "vague",
        "possible",
    ),
    KnownError(
        "ccl.shm_only",
        (r"libfabric provider: shm",),
        "libfabric has picked the provider shm, which doesn't leave the machine: ranks on several hosts wait for ever",
        "-x FI_PROVIDER=tcp",
        "aside",
        "possible",
    ),
    KnownError(
        "ccl.not_under_mpirun",
        (r"did not find MPI-launcher specific variables, switch to ATL/OFI",),
        "oneCCL wasn't started by mpirun's own variables and switched to another transport, on which ranks may wait "
        "for ever",
        "start the script itself, not torchrun inside of it: ipexctl run SCRIPT.py",
        "aside",
        "possible",
    ),
    KnownError(
        "library.missing",
        (r"(?P<library>lib[\w.+-]+\.so[\w.]*): cannot open shared object file",),
        "",
        "",
        tell=_no_library,
    ),
)
