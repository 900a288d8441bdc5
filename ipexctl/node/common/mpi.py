"""The MPIs whose mpirun can start ranks, one row each: how it is recognised, its line, and the variables that it reads
and gives. Pure. A part that a new row lacks is an error of mypy; `transports.py` has the launchers without an MPI.

Where mpirun on node0 would call ssh, it calls the script of `MpirunLine.ssh`.
"""

from __future__ import annotations

import re
from typing import Callable, Iterator, Literal, Mapping, NamedTuple, Tuple

MpiFlavor = Literal["intel", "openmpi", "mpich"]
STARTUP_TIMEOUT = 120
"""Seconds."""
Variable = Tuple[str, str, str]
"""Name, value and reason."""


class MpirunLine(NamedTuple):
    """What a line of mpirun and its variables depend on."""

    hosts: int
    hostfile: str
    ssh: str
    """Script that mpirun calls in place of ssh."""
    iface: str | None
    """Interface of all hosts; None if they differ."""
    address: str
    """Node0's, on the network of the hosts."""
    root: str
    """Directory of this MPI."""
    version: str
    by_starters: bool
    """True if the hosts' starters run what the script is called with."""
    is_binding: bool
    """True if the user has the MPI bind ranks to cores."""
    wanted: Mapping[str, str]
    """Variables that the user sets."""

    @property
    def is_alone(self) -> bool:
        """True if the run has one host, so that mpirun calls no ssh."""
        return self.hosts == 1


class MpiRow(NamedTuple):
    flavor: MpiFlavor
    """Name in plans, and for --mpi."""
    title: str
    package: str
    """Its wheel."""
    places: str
    """Directories beside those of PATH where its mpirun may be, as words of sh: the probe looks there."""
    hidden_by: tuple[str, ...]
    """Wheels that, in the same environment, overwrite its programs, or may."""
    root_variable: str
    """Variable of an environment that names the directory of this MPI; or empty."""
    banner: str
    """Pattern in the output of `mpirun --version`."""
    program: str
    """What is started of `bin/`. Intel's mpirun is a shell script, and signals to it reach no rank."""
    words: Callable[[MpirunLine], tuple[str, ...]]
    """The words between the program and `-n`."""
    variables: Callable[[MpirunLine], Iterator[Variable]]
    """Variables of mpirun itself."""
    rank_variables: Callable[[MpirunLine], Iterator[Variable]]
    """Variables of ranks, for every backend but `none`."""
    hostfile: str
    """A host's line, with `{word}` and `{count}`."""
    number: tuple[str, ...]
    """Variables that tell a rank its number."""
    local_number: tuple[str, ...]
    size: tuple[str, ...]
    """Variables that tell a rank how many there are."""
    prefixes: tuple[str, ...]
    """Beginnings of the variables that its ranks get."""
    own_prefixes: tuple[str, ...]
    """Beginnings of the variables that its mpirun reads. The user's go to mpirun, too."""
    site_variables: tuple[str, ...]
    """Variables that mpirun gets from the login on node0."""
    placements: tuple[str, ...]
    """Variables by which a user has it bind ranks; empty if it then binds against the plan."""
    yielding: str
    """Variable that makes waiting ranks yield their core, with `2`; or empty."""
    is_of_oneccl: bool
    """True if oneCCL can send over it."""
    sends_by_libfabric: bool
    script_is_everywhere: bool
    """True if its daemons look for the script on every host."""
    splits_at_spaces: bool
    """True if it splits paths at spaces."""
    takes_ipv6: bool
    """False if it reads a count after the first colon of a host."""


def _nothing(_: MpirunLine) -> Iterator[Variable]:
    return iter(())


def _words_of_intel(line: MpirunLine) -> tuple[str, ...]:
    # Not -f: Intel's hydra ignores the counts in its lines. It also ignores -localhost, and takes the address from the
    # hostfile. With -genvnone, variables about binding do not reach the other hosts.
    binding = {"I_MPI_PIN": "1" if line.is_binding else "0"}
    if line.is_binding:
        binding.update({name: value for name, value in line.wanted.items() if name.startswith("I_MPI_PIN")})
    options = () if line.is_alone else tuple(word for pair in binding.items() for word in ("-genv", *pair))
    iface = ("-iface", line.iface) if line.iface and not line.is_alone else ()
    return ("-genvnone", *options, *iface, "-machinefile", line.hostfile)


def _variables_of_intel(line: MpirunLine) -> Iterator[Variable]:
    yield "I_MPI_ROOT", line.root, "the directory of this Intel MPI"
    if not line.is_binding:
        yield "I_MPI_PIN", "0", "each rank is bound to its cores already"
    reason = "seconds for all hosts to answer; by default it waits forever"
    yield "I_MPI_JOB_STARTUP_TIMEOUT", str(STARTUP_TIMEOUT), reason
    if line.is_alone:
        yield "I_MPI_HYDRA_BOOTSTRAP", "fork", "one host: ranks are started without ssh"
        return
    reason = "mpirun starts its daemons on other hosts by ssh.sh, also in a scheduler's job"
    yield "I_MPI_HYDRA_BOOTSTRAP", "ssh", reason
    reason = "in place of ssh: ipexctl starts the daemons, so that no node logs in to another"
    yield "I_MPI_HYDRA_BOOTSTRAP_EXEC", line.ssh, reason
    reason = "node0 starts every daemon itself: beyond 16 hosts other hosts would, and they can't"
    yield "I_MPI_HYDRA_BRANCH_COUNT", str(line.hosts), reason


def _rank_variables_of_intel(line: MpirunLine) -> Iterator[Variable]:
    if not line.is_binding:
        yield "I_MPI_PIN", "0", "each rank is bound to its cores already, and must not be bound twice"
    if line.is_alone:
        yield "I_MPI_FABRICS", "shm", "all ranks are on this one host: shared memory, and no network at all"
    else:
        yield "I_MPI_FABRICS", "shm:ofi", "shared memory within a host, libfabric between hosts"


def _words_of_open_mpi(line: MpirunLine) -> tuple[str, ...]:
    words = ["--allow-run-as-root", "--bind-to", "none", "--map-by", "slot", "--hostfile", line.hostfile]
    if line.is_alone:
        return tuple(words)
    is_old = line.version.startswith(("1.", "2.", "3.", "4."))
    # Without it a scheduler's allocation overrides the hostfile.
    parameters = {"plm": "rsh" if is_old else "ssh", "ras": "^slurm"}
    plm = "plm_rsh" if is_old else "plm_ssh"
    # The batch system's own plm, and hydra's, number the nodes as the batch system does: ranks would start on the
    # wrong nodes if the plan has another order, or only some nodes of the job.
    parameters[f"{plm}_agent"] = line.ssh
    if line.by_starters:
        parameters[f"{plm}_assume_same_shell"] = "1"  # starters run each line with sh, whatever the login shell
    parameters[f"{plm}_no_tree_spawn"] = "1"  # only node0 can start daemons on the others
    if line.iface:
        parameters["oob_tcp_if_include" if is_old else "prte_if_include"] = line.iface
    for name, value in parameters.items():
        words += ["--mca" if is_old else "--prtemca", name, value]
    return tuple(words)


def _words_of_mpich(line: MpirunLine) -> tuple[str, ...]:
    if line.is_alone:
        return ("-genvnone", "-launcher", "fork", "-f", line.hostfile)
    # By default it takes node0's host name or hostfile entry.
    own_address = ("-iface", line.iface) if line.iface else ("-localhost", line.address)
    return ("-genvnone", "-launcher", "ssh", "-launcher-exec", line.ssh, *own_address, "-f", line.hostfile)


INTEL = MpiRow(
    flavor="intel",
    title="Intel MPI",
    package="impi-rt",
    places=(
        '"$I_MPI_ROOT"/bin /opt/intel/oneapi/mpi/*/bin "$HOME"/intel/oneapi/mpi/*/bin '
        "/opt/intel/compilers_and_libraries*/linux/mpi/intel64/bin"
    ),
    hidden_by=(),
    root_variable="I_MPI_ROOT",
    banner=r"Intel\(R\) MPI Library",
    program="mpiexec.hydra",
    words=_words_of_intel,
    variables=_variables_of_intel,
    rank_variables=_rank_variables_of_intel,
    hostfile="{word}:{count}\n",
    number=("PMI_RANK",),
    local_number=("MPI_LOCALRANKID",),
    size=("PMI_SIZE",),
    prefixes=("PMI_", "MPI_LOCAL", "HYDI_"),
    own_prefixes=("I_MPI_", "HYDRA_"),
    site_variables=("I_MPI_PORT_RANGE",),
    placements=("I_MPI_PIN", "I_MPI_PIN_DOMAIN", "I_MPI_PIN_PROCESSOR_LIST", "I_MPI_PIN_CELL"),
    yielding="I_MPI_THREAD_YIELD",
    is_of_oneccl=True,
    sends_by_libfabric=True,
    script_is_everywhere=False,
    splits_at_spaces=False,
    takes_ipv6=False,
)
OPEN_MPI = MpiRow(
    flavor="openmpi",
    title="Open MPI",
    package="openmpi",
    places="/usr/lib64/openmpi/bin /opt/openmpi*/bin /opt/ompi*/bin /usr/local/openmpi*/bin",
    hidden_by=("impi-rt", "mpich"),
    root_variable="",
    banner=r"\((Open MPI|OpenRTE|PRRTE|Open ?PMIx?)\)",
    program="mpirun",
    words=_words_of_open_mpi,
    variables=_nothing,
    rank_variables=_nothing,
    hostfile="{word} slots={count}\n",
    number=("OMPI_COMM_WORLD_RANK", "PMIX_RANK"),
    local_number=("OMPI_COMM_WORLD_LOCAL_RANK",),
    size=("OMPI_COMM_WORLD_SIZE",),
    prefixes=("PMIX_", "OMPI_COMM_WORLD_", "OMPI_UNIVERSE_", "PRTE_"),
    own_prefixes=("PRTE_MCA_", "OMPI_MCA_"),
    site_variables=(),
    placements=(),
    yielding="",
    is_of_oneccl=False,
    sends_by_libfabric=False,
    script_is_everywhere=True,
    splits_at_spaces=True,
    takes_ipv6=True,
)
MPICH = MpiRow(
    flavor="mpich",
    title="MPICH",
    package="mpich",
    places="/usr/lib64/mpich/bin /usr/lib64/mvapich2*/bin /opt/mpich*/bin",
    hidden_by=("impi-rt",),
    root_variable="",
    banner=r"HYDRA build details",
    program="mpiexec.hydra",
    words=_words_of_mpich,
    variables=_nothing,
    rank_variables=_nothing,
    hostfile="{word}:{count}\n",
    number=("PMI_RANK",),
    local_number=("MPI_LOCALRANKID",),
    size=("PMI_SIZE",),
    prefixes=("PMI_", "MPI_LOCAL", "HYDI_"),
    own_prefixes=("HYDRA_", "MPIEXEC_"),
    site_variables=(),
    placements=(),
    yielding="",
    is_of_oneccl=False,
    sends_by_libfabric=False,
    script_is_everywhere=False,
    splits_at_spaces=False,
    takes_ipv6=False,
)
MPIS = (INTEL, OPEN_MPI, MPICH)
"""The first that the environment or the hosts have is taken."""


MPI_NAMES = "{} or {}".format(", ".join(mpi.flavor for mpi in MPIS[:-1]), MPIS[-1].flavor)


def mpi_named(flavor: str) -> MpiRow | None:
    """Return the row of a flavor; None for another launcher."""
    return next((mpi for mpi in MPIS if mpi.flavor == flavor), None)


def recognised(banner: str) -> MpiRow | None:
    """Return the MPI whose `mpirun --version` prints this; None if no row knows it."""
    return next((mpi for mpi in MPIS if re.search(mpi.banner, banner)), None)


def each_of(values: Callable[[MpiRow], tuple[str, ...]]) -> tuple[str, ...]:
    """Return these names of all MPIs, each once."""
    return tuple(dict.fromkeys(name for mpi in MPIS for name in values(mpi)))
