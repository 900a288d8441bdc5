"""Rules over the variables that a login sets before anything of ours does. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from ipexctl.doctor.finding import Finding
from ipexctl.doctor.host_context import few

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ipexctl.doctor.host_context import Rule
    from ipexctl.facts.facts import Facts

IDS: Final[Mapping[str, str]] = {
    "environment.rank": "RANK or its kin are set at login",
    "environment.master": "MASTER_ADDR or MASTER_PORT is set at login",
    "environment.omp_thread_limit": "OMP_THREAD_LIMIT is below the number of threads",
    "environment.omp_num_threads": "OMP_NUM_THREADS is set at login",
    "environment.affinity": "threads are bound to cores at login",
    "environment.preload": "LD_PRELOAD is set at login",
    "environment.ccl": "oneCCL is steered at login",
    "environment.mpi": "MPI is steered at login",
    "environment.fabric": "libfabric is steered at login",
    "environment.interface": "a variable names an interface that can't serve",
    "environment.isa": "the instruction set is limited at login",
    "environment.python": "PYTHONPATH or PYTHONHOME is set at login",
    "environment.library_path": "LD_LIBRARY_PATH is set at login",
    "environment.conda": "a conda or virtual environment is active at login",
    "openmp.two_runtimes": "two OpenMP libraries would be loaded into one process",
}


def _take_out(names: list[str]) -> str:
    """What /etc sets, other accounts may need."""
    where = f"grep -ns {names[0]} ~/.bashrc ~/.profile /etc/environment /etc/profile.d/*"
    return f"take it out of your own login files, and ask root about those in /etc: {where}"


def _set(facts: Facts, pattern: str) -> list[str]:
    """Which variables of that kind are set, and not to nothing."""
    return sorted(name for name, value in facts.environment.variables.items() if value and re.fullmatch(pattern, name))


def rank(facts: Facts) -> Iterator[Finding]:
    if names := _set(facts, "RANK|WORLD_SIZE|LOCAL_RANK"):
        yield Finding(
            "environment.rank",
            "warn",
            f"{few(names)} set at login: accelerate and Transformers believe it before MPI's own number, so every rank "
            "is the same one and all hang",
            _take_out(names),
        )


def master(facts: Facts) -> Iterator[Finding]:
    if names := _set(facts, "MASTER_ADDR|MASTER_PORT"):
        yield Finding(
            "environment.master",
            "warn",
            f"{few(names)} set at login: ranks started by hand would wait for each other at that old place until they "
            "time out",
            _take_out(names),
        )


def thread_limit(facts: Facts) -> Iterator[Finding]:
    text = facts.environment.variables.get("OMP_THREAD_LIMIT", "")
    cores = facts.cpu.allowed
    if not text.isascii() or not text.isdigit() or cores is None:
        return
    if int(text) < cores:
        yield Finding(
            "environment.omp_thread_limit",
            "warn",
            f"OMP_THREAD_LIMIT={text[:9]} is below the {cores} cores: the backward pass hangs when a rank asks for "
            "more threads",
            _take_out(["OMP_THREAD_LIMIT"]),
        )


def num_threads(facts: Facts) -> Iterator[Finding]:
    if names := _set(facts, "OMP_NUM_THREADS|MKL_NUM_THREADS"):
        said = few([f"{name}={facts.environment.variables[name][:9]}" for name in names])
        yield Finding(
            "environment.omp_num_threads",
            "info",
            f"{said} at login: one number for every rank and host, where the right one depends on both",
            f"nothing to do under ipexctl run, which sets its own; elsewhere {_take_out(names)}",
        )


def affinity(facts: Facts) -> Iterator[Finding]:
    if names := _set(facts, "KMP_AFFINITY|GOMP_CPU_AFFINITY|OMP_PROC_BIND|OMP_PLACES|KMP_HW_SUBSET"):
        yield Finding(
            "environment.affinity",
            "warn",
            f"{few(names)} set at login: it binds threads the same way in every rank, so ranks may share a few cores "
            "and leave the rest idle",
            _take_out(names),
        )


def preload(facts: Facts) -> Iterator[Finding]:
    if not (value := facts.environment.variables.get("LD_PRELOAD")):
        return
    files = [word.rpartition("/")[2] for word in re.split(r"[:\s]+", value) if word]
    if _has_both(files):
        yield Finding(
            "openmp.two_runtimes",
            "warn",
            "LD_PRELOAD names both libgomp and libiomp5: two OpenMP libraries in a process fight for the same cores",
            f"keep libiomp5 alone: {_take_out(['LD_PRELOAD'])}",
        )
    else:
        yield Finding(
            "environment.preload",
            "warn",
            f"LD_PRELOAD at login loads {few([name[:40] for name in files], 2)} into every program, and beside what "
            "ipexctl run preloads",
            _take_out(["LD_PRELOAD"]),
        )


def _has_both(files: list[str]) -> bool:
    return all(any(name.startswith(runtime) for name in files) for runtime in ("libgomp", "libiomp5"))


def two_runtimes(facts: Facts) -> Iterator[Finding]:
    """In the system's directories both may lie: nothing of ours looks there for them."""
    where = {
        name: {path.rpartition("/")[0] for path in facts.software.libraries.get(name, ())}
        for name in ("libgomp", "libiomp5")
    }
    both = sorted(at for at in where["libgomp"] & where["libiomp5"] if not at.startswith(("/usr/lib", "/lib")))
    if both:
        yield Finding(
            "openmp.two_runtimes",
            "info",
            f"{both[0][:60]} has both libgomp and libiomp5: a program that loads both is slow, or bound to one core",
            "use an environment of ipexctl install, or preload libiomp5 alone",
        )


def ccl(facts: Facts) -> Iterator[Finding]:
    if names := [name for name in _set(facts, r"CCL_\w+") if name not in ("CCL_ROOT", "CCL_CONFIGURATION")]:
        yield Finding(
            "environment.ccl",
            "warn",
            f"{few(names)} set at login: oneCCL obeys, and hangs or fails where hosts don't all say the same",
            _take_out(names),
        )


def mpi(facts: Facts) -> Iterator[Finding]:
    """I_MPI_ROOT only says where it lies. Inside a job, the scheduler sets PMI's."""
    names = [name for name in _set(facts, r"(I_MPI|OMPI|PMI|PMIX)_?\w+") if name != "I_MPI_ROOT"]
    if facts.batch.job:
        names = [name for name in names if not name.startswith("PMI")]
    if names:
        yield Finding(
            "environment.mpi",
            "warn",
            f"{few(names)} set at login: MPI obeys on this host alone, and ranks then don't find each other",
            _take_out(names),
        )


def fabric(facts: Facts) -> Iterator[Finding]:
    if names := [name for name in _set(facts, r"FI_\w+") if name != "FI_TCP_IFACE"]:
        yield Finding(
            "environment.fabric",
            "warn",
            f"{few(names)} set at login: a network provider that a host doesn't have ends MPI_Init with 'No data "
            "available'",
            _take_out(names),
        )


def interface(facts: Facts) -> Iterator[Finding]:
    known = {nic.name for nic in facts.network.nics}
    for name in _set(facts, "FI_TCP_IFACE|CCL_KVS_IFACE|GLOO_SOCKET_IFNAME|TP_SOCKET_IFNAME|I_MPI_HYDRA_IFACE"):
        value = facts.environment.variables[name]
        first = re.split(r"[,=^]", value)[0]
        if first == "lo" or (known and first and first not in known):
            what = "is inside this host" if first == "lo" else "doesn't exist here"
            yield Finding(
                "environment.interface",
                "warn",
                f"{name}={value[:20]} at login, an interface that {what}: ranks wait for other hosts for ever",
                _take_out([name]),
            )


def isa(facts: Facts) -> Iterator[Finding]:
    if names := _set(facts, "ATEN_CPU_CAPABILITY|ONEDNN_MAX_CPU_ISA|DNNL_MAX_CPU_ISA"):
        said = few([f"{name}={facts.environment.variables[name][:20]}" for name in names], 2)
        yield Finding(
            "environment.isa",
            "warn",
            f"{said} at login: PyTorch may leave the fastest instructions of this processor unused",
            _take_out(names),
        )


def python(facts: Facts) -> Iterator[Finding]:
    if names := _set(facts, "PYTHONPATH|PYTHONHOME"):
        yield Finding(
            "environment.python",
            "warn",
            f"{few(names)} set at login: modules from there hide those of the environment, such as another torch",
            _take_out(names),
        )


def library_path(facts: Facts) -> Iterator[Finding]:
    if facts.environment.variables.get("LD_LIBRARY_PATH"):
        yield Finding(
            "environment.library_path",
            "info",
            "LD_LIBRARY_PATH is set at login: another libmpi, libccl or libfabric from there may be taken on this host",
            f"if a library is not the one meant, {_take_out(['LD_LIBRARY_PATH'])}",
        )


def conda(facts: Facts) -> Iterator[Finding]:
    variables = facts.environment.variables
    if variables.get("CONDA_PREFIX"):
        yield Finding(
            "environment.conda",
            "info",
            f"conda activates {variables['CONDA_PREFIX'][:50]} at every login: it slows each ssh, and its mpirun and "
            "python come first",
            "conda config --set auto_activate_base false",
        )
    elif variables.get("VIRTUAL_ENV"):
        yield Finding(
            "environment.conda",
            "info",
            f"A login activates {variables['VIRTUAL_ENV'][:50]}: its python comes first for everything started over "
            "ssh",
            _take_out(["activate"]),
        )


RULES: Final[tuple[Rule, ...]] = (
    rank, master, thread_limit, num_threads, affinity, preload, two_runtimes, ccl, mpi, fabric, interface, isa, python,
    library_path, conda,
)  # fmt: skip
