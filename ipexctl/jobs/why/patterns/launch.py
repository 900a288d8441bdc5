"""Known error texts of a failed start: mpirun and its daemons, ssh, oneCCL and its libraries.

Special patterns come before common ones; docs/troubleshooting.md has the ids.
"""

from __future__ import annotations

from typing import Final

from ipexctl.hosts.nodeset import fold
from ipexctl.jobs.why.patterns.match import KnownError, PatternMatch

_TRUST: Final = "ipexctl trust lets node0 log in to every node; ipexctl doctor shows the reason"
_INSTALL: Final = "ipexctl install installs the environment on every node where it is missing"
_DOCTOR_WAYS: Final = (
    "ipexctl doctor shows which connections between the nodes fail; another network: --iface NAME|CIDR"
)
_NODE: Final = r"Unable to run bstrap_proxy on (?P<node>\S+) \(pid \d+, exit code "


def _proxy_ended(found: PatternMatch) -> tuple[str, str]:
    status = int(found.groups["status"])
    how = f"exit code {status >> 8}" if status >> 8 else f"signal {status & 127}"
    return (
        f"mpirun's daemon on {found.groups['node']} ended at start ({how})",
        "ipexctl doctor checks that node, and its network to node0",
    )


def _rank_killed(found: PatternMatch) -> tuple[str, str]:
    by, place, rank = (found.groups[name] for name in ("number", "place", "number_of_rank"))
    return (
        (
            f"mpirun reports that rank {rank} on {place} was killed by signal {by}: the rank's wrapper process was "
            "killed, by a user or by the kernel because memory was short"
        ),
        (
            "on that node, as root: dmesg -T | tail shows what the kernel killed; ipexctl logs "
            f"{found.context.run} -r {rank}"
        ),
    )


def _mpirun_ended(found: PatternMatch) -> tuple[str, str]:
    return (
        f"MPI failed in {found.groups['call']} before the ranks were connected",
        (
            f"its messages: ipexctl logs {found.context.run} --stderr; ipexctl doctor checks the network between the "
            "nodes"
        ),
    )


def _no_library(found: PatternMatch) -> tuple[str, str]:
    return (
        f"the library {found.groups['library']} is not found on {fold(found.hosts)}",
        (
            "ipexctl envs shows whether the environment is complete there, ipexctl install "
            "repairs it; for a library of "
            "your own: --setup FILE, or -x LD_LIBRARY_PATH=DIR"
        ),
    )


LAUNCH: Final = (
    KnownError(
        "mpi.ssh_failed",
        (_NODE + r"65280\)",),
        "node0 can't log in to {node} by ssh, as mpirun must to start ranks there",
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
        "a node can't resolve node0's name, to which mpirun's daemons connect",
        "use addresses in place of names: --iface NAME|CIDR; or add node0 to /etc/hosts on that node",
        "anywhere",
    ),
    KnownError(
        "mpi.firewall",
        (r"unable to connect to server (?P<server>\S+) at port (?P<port>\d+) \(check for firewalls!\)",),
        "a node can't connect to {server} at port {port}, where mpirun listens: a firewall "
        "blocks it, or it is the wrong network",
        _DOCTOR_WAYS,
        "anywhere",
    ),
    KnownError("mpi.proxy_ended", (_NODE + r"(?P<status>\d+)\)",), weight="anywhere", tell=_proxy_ended),
    KnownError(
        "mpi.no_interface",
        (r"unable to find interface (?P<iface>\S+)",),
        "a node has no network interface {iface}",
        "leave --iface out, or name the network by its addresses, which are the same on every "
        "node: --iface 10.0.0.0/24",
        "anywhere",
    ),
    KnownError(
        "mpi.no_hydra",
        (r"mpiexec\.hydra: (?:command )?not found",),
        "mpirun can't find mpiexec.hydra: the bin directory of its environment is not on PATH",
        "leave --mpi out to use the environment's own mpirun, or name a complete one: --mpi PATH",
        "anywhere",
    ),
    KnownError(
        "mpi.no_python",
        (r"HYD_spawn .*execvp error on file (?P<file>\S+) \(No such file or directory\)",),
        "{file} does not exist on one of the nodes",
        _INSTALL + "; with --python, the path must exist on every node",
        "anywhere",
    ),
    KnownError(
        "mpi.no_daemon",
        (r"(?:prted|orted): (?:command )?not found", r"(?:prted|orted): No such file or directory"),
        "a node has no Open MPI daemon",
        _INSTALL,
        "anywhere",
    ),
    KnownError(
        "mpi.no_slots",
        (r"There are not enough slots available in the system",),
        "Open MPI has fewer slots than ranks",
        "set slots=N in the hostfile, start fewer ranks with -n or --ppn, or use --mpi intel",
        "anywhere",
    ),
    KnownError(
        "ssh.host_key",
        (r"Host key verification failed",),
        "node0 doesn't know the host key of a node, or the key has changed",
        "ipexctl trust gives node0 the keys that the control machine has verified",
        "anywhere",
    ),
    KnownError(
        "ssh.denied",
        (r"Permission denied \(publickey",),
        "a node refuses node0's key (mpirun does not say which; ipexctl doctor finds it)",
        _TRUST,
        "anywhere",
    ),
    KnownError(
        "ssh.no_name",
        (r"Could not resolve hostname (?P<name>[^\s:]+)",),
        "node0 can't resolve the name {name}",
        "use an address: internal=ADDRESS behind the host in the hostfile; ipexctl doctor shows "
        "which names resolve where",
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
        "this mpirun does not match the plan: its ranks got no rank number, or another number of ranks",
        "use the MPI of the environment: --mpi intel, openmpi or mpich; ipexctl run --dry-run shows the mpirun line",
        "anywhere",
    ),
    KnownError(
        "run.no_directory",
        (r"^ipexctl: (?P<place>[^:]+): (?P<what>.*); is the project synced to this path\?",),
        "the project's directory can't be used on {place}: {what}",
        "ipexctl sync uploads it to every node; with --no-sync it must exist there already",
    ),
    KnownError(
        "run.no_command",
        (r"^ipexctl: (?P<place>[^:]+): (?P<what>(?P<file>.+): (?:No such file|Permission denied|Exec format)[\w ]*)$",),
        "the command can't be started on {place}: {what}",
        "ipexctl exec -- ls -l {file} shows which hosts have it; name a program of the environment without a path",
    ),
    KnownError(
        "run.setup_failed",
        (r"^ipexctl: (?P<place>[^:]+): (?P<what>(?P<file>.+) could not be sourced: .*)$",),
        "the --setup file failed on {place}: {what}",
        "it must work on every node, in bash, without a terminal; test it: ipexctl exec -- bash -c '. \"$0\"' {file}",
    ),
    KnownError(
        "ccl.setvars_in_dash",
        (r"prepend_path: not found",),
        "setvars.sh was sourced by a shell other than bash and set only some of its variables",
        "--setup FILE sources it in bash on every node",
        "anywhere",
    ),
    KnownError(
        "ccl.vars_not_setvars",
        (r"could not open the library: libfabric\.so",),
        "oneCCL can't find libfabric: vars.sh was sourced in place of setvars.sh",
        "source setvars.sh in bash: --setup FILE; or use ipexctl install, whose environment needs neither",
        "anywhere",
    ),
    KnownError(
        "ccl.no_mpi_root",
        (r"neither I_MPI_ROOT nor ONEAPI_ROOT is set",),
        "oneCCL found Intel MPI's libraries, but I_MPI_ROOT is not set",
        "use --setup with Intel MPI's setvars.sh, or -x I_MPI_ROOT=DIR; an environment of "
        "ipexctl install needs neither",
        "anywhere",
    ),
    KnownError(
        "ccl.no_transport",
        (r"could not initialize any transport library", r"could not open the library: libmpi\.so"),
        "oneCCL can't find an MPI library: its setvars.sh was not sourced",
        "ipexctl install installs an environment that needs no setvars.sh; in your own, source it: --setup FILE",
    ),
    KnownError(
        "ccl.no_provider",
        (
            r"atl_ofi_get_prov_list: fi_getinfo error",
            r"can't create providers for name",
            r"OFI fi_getinfo\(\) failed",
        ),
        "libfabric has no provider that works: FI_PROVIDER or FI_PROVIDER_PATH names one that does not exist",
        "leave both unset, or use -x FI_PROVIDER=tcp; ipexctl run --dry-run shows the variables and their reasons",
        "anywhere",
    ),
    KnownError(
        "ccl.no_libccl",
        (r"libccl\.so\.\d+: cannot open shared object file",),
        "the oneCCL library is not found on {host}",
        _INSTALL,
    ),
    KnownError(
        "ccl.not_imported",
        (r"Unknown backend type ccl", r"Invalid backend: 'ccl'", r"Unknown c10d backend type CCL"),
        "the script uses the ccl backend without importing the oneCCL bindings, or the environment has none",
        "import oneccl_bindings_for_pytorch before init_process_group, or use --backend gloo",
    ),
    KnownError(
        "ccl.other_torch",
        (r"liboneccl_bindings_for_pytorch\.so: undefined symbol: (?P<symbol>\S+)",),
        "the oneCCL bindings were built for another torch than the installed one",
        "ipexctl install installs a matching pair on every node; ipexctl versions shows the pairs",
    ),
    KnownError(
        "ccl.newer_oneccl",
        (r"undefined symbol: _ZNK4sycl", r"libsycl\.so\.\d+: cannot open"),
        "oneCCL is newer than the version the bindings were built with",
        "ipexctl install installs the matching version; ipexctl versions shows it",
    ),
    KnownError(
        "ccl.workers_unplaced",
        (r"unexpected number of values.*CCL_WORKER_AFFINITY", r"CCL_WORKER_AFFINITY.*unexpected number of values"),
        "CCL_WORKER_AFFINITY must name one core for each worker of each rank on the node, and does not",
        "leave it unset: ipexctl sets it for each host; ipexctl run --dry-run shows it",
    ),
    KnownError(
        "mpi.gave_up",
        (r"Fatal error in (?:internal_|P)?(?P<call>MPI_\w+)",),
        weight="vague",
        tell=_mpirun_ended,
    ),
    KnownError(
        "ccl.no_start",
        (r"failed to initialize ATL", r"oneCCL: \S+ \S+: EXCEPTION: (?P<what>.*)"),
        "oneCCL failed to start on {host}",
        "ipexctl doctor checks the network; a backend without oneCCL: --backend gloo",
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
        weight="vague",
        tell=_rank_killed,
    ),
    KnownError(
        "mpi.cant_start",
        (r"mpirun can't be started(?: again)?: (?P<why>.*)",),
        "mpirun can't be started on {host}: {why}",
        "ipexctl install installs one; ipexctl doctor shows the installed ones; use another: --mpi PATH",
        "vague",
    ),
    KnownError(
        "mpi.ended",
        (r"mpirun was (?:ended by SIG\w+|told to end)",),
        "mpirun was ended on {host}, and not by ipexctl: by a user, or by the kernel because memory was short",
        "on {host}, as root: dmesg -T | grep -i kill; then run it again",
        "vague",
        "possible",
    ),
    KnownError(
        "run.not_begun",
        (r"did not begin within (?P<seconds>[\d.]+) s",),
        "ranks did not start within {seconds} s after mpirun: a login or a home directory hangs, or a machine is "
        "overloaded",
        "ipexctl doctor tests the logins from node0 and the home directories",
        "vague",
        "possible",
    ),
    KnownError(
        "mpi.downstream",
        (r"Downstream from host (?P<node>\S+) exited abnormally",),
        "mpirun lost its daemon on {node}: it was killed there, or its ssh connection broke",
        "check whether the machine is up: ipexctl doctor --limit {node}",
        "vague",
        "possible",
    ),
    KnownError(
        "ccl.shm_only",
        (r"libfabric provider: shm",),
        "libfabric uses the provider shm, which works inside one machine only: ranks on several hosts hang",
        "-x FI_PROVIDER=tcp",
        "aside",
        "possible",
    ),
    KnownError(
        "ccl.not_under_mpirun",
        (r"did not find MPI-launcher specific variables, switch to ATL/OFI",),
        "oneCCL found no variables of mpirun and switched to another transport, on which ranks may hang",
        "run the script directly, without torchrun: ipexctl run SCRIPT.py",
        "aside",
        "possible",
    ),
    KnownError(
        "library.missing",
        (r"(?P<library>lib[\w.+-]+\.so[\w.]*): cannot open shared object file",),
        tell=_no_library,
    ),
)
