"""Judge variables set at login, which every rank would inherit. Pure. In a batch job some are the scheduler's."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from ipexctl.doctor.finding import Finding, HostContext, HostRule, Level, few
from ipexctl.node.common.fix import Fix


class VariableRule(NamedTuple):
    """Variables that disturb training, and what to say about them."""

    id: str
    level: Level
    pattern: str
    """Regular expression of their names."""
    message: str
    """Where `{}` is, the names stand."""
    with_values: bool = False
    """True to show the values, too."""
    fix: str = "{}"
    """Where `{}` is, the text stands that removes the variables."""
    harmless: tuple[str, ...] = ()
    """Names that match and do not count."""


_RULES: Final = (
    VariableRule(
        "environment.rank",
        "warn",
        "RANK|WORLD_SIZE|LOCAL_RANK",
        "{} set at login: accelerate and Transformers use it instead of MPI's number, so every rank has the same "
        "number and all hang",
    ),
    VariableRule(
        "environment.master",
        "warn",
        "MASTER_ADDR|MASTER_PORT",
        "{} set at login: ranks started by hand would wait for each other at that address until they time out",
    ),
    VariableRule(
        "environment.omp_num_threads",
        "info",
        "OMP_NUM_THREADS|MKL_NUM_THREADS",
        "{} set at login: every rank and host has the same value, but needs its own",
        with_values=True,
        fix="nothing to do under ipexctl run, which sets its own; elsewhere: {}",
    ),
    VariableRule(
        "environment.affinity",
        "warn",
        "KMP_AFFINITY|GOMP_CPU_AFFINITY|OMP_PROC_BIND|OMP_PLACES|KMP_HW_SUBSET",
        "{} set at login: it binds threads in the same way in every rank, so ranks may share a few cores and leave "
        "the others idle",
    ),
    VariableRule(
        "environment.ccl",
        "warn",
        r"CCL_\w+",
        "{} set at login: oneCCL uses it and hangs or fails if hosts have different values",
        harmless=("CCL_ROOT", "CCL_CONFIGURATION"),
    ),
    VariableRule(
        "environment.mpi",
        "warn",
        r"(I_MPI|OMPI|PMI|PMIX)_?\w+",
        "{} set at login: MPI uses it only on this host, so ranks don't find each other",
        harmless=("I_MPI_ROOT",),
    ),
    VariableRule(
        "environment.fabric",
        "warn",
        r"FI_\w+",
        "{} set at login: if a host doesn't have this network provider, MPI_Init fails with 'No data available'",
        harmless=("FI_TCP_IFACE",),
    ),
    VariableRule(
        "environment.isa",
        "warn",
        "ATEN_CPU_CAPABILITY|ONEDNN_MAX_CPU_ISA|DNNL_MAX_CPU_ISA",
        "{} set at login: PyTorch may not use the fastest instructions of this processor",
        with_values=True,
    ),
    VariableRule(
        "environment.python",
        "warn",
        "PYTHONPATH|PYTHONHOME",
        "{} set at login: its modules hide the environment's own, such as torch",
    ),
    VariableRule(
        "environment.library_path",
        "info",
        "LD_LIBRARY_PATH",
        "{} set at login: another libmpi, libccl or libfabric may be loaded from there on this host",
        fix="if the wrong library is loaded: {}",
    ),
    VariableRule(
        "environment.proxy",
        "info",
        "(?i)(https?|all)_proxy",
        "{} set at login: downloads of every rank go through this proxy, and fail if it does not answer",
        fix="if it does not: {}",
    ),
)


def _unset(names: list[str]) -> Fix:
    """Return how to find and remove these variables. Only those in the user's own files are to be removed, because
    other accounts may need those in /etc."""
    search = f"`grep -ns {names[0]} ~/.bashrc ~/.profile /etc/environment /etc/profile.d/*`"
    return Fix(f"{search} shows where: comment it out in your own login files, and ask root about those in /etc")


def _names(host: HostContext, pattern: str) -> list[str]:
    variables = host.facts.environment.variables
    return sorted(name for name, value in variables.items() if value and re.fullmatch(pattern, name))


def variables(host: HostContext) -> Iterator[Finding]:
    """Warn of variables that disturb training, with one finding per kind. In a batch job, PMI variables are the
    scheduler's and do not count."""
    for rule in _RULES:
        names = [name for name in _names(host, rule.pattern) if name not in rule.harmless]
        if host.facts.batch.job:  # set by the scheduler
            names = [name for name in names if not name.startswith("PMI")]
        if names:
            values = host.facts.environment.variables
            before, slot, after = rule.fix.partition("{}")
            shown = few([f"{name}={values[name][:20]}" for name in names], 2) if rule.with_values else few(names)
            yield Finding(
                rule.id, rule.level, rule.message.format(shown), before + _unset(names) + after if slot else before
            )


def thread_limit(host: HostContext) -> Iterator[Finding]:
    """Warn if OMP_THREAD_LIMIT is below the cores of the host."""
    text = host.facts.environment.variables.get("OMP_THREAD_LIMIT", "")
    cores = host.facts.cpu.allowed
    if not text.isascii() or not text.isdigit() or cores is None:
        return
    if int(text) < cores:
        yield Finding(
            "environment.omp_thread_limit",
            "warn",
            f"OMP_THREAD_LIMIT={text[:9]} is below the {cores} cores: the backward pass hangs when a rank uses more "
            "threads",
            _unset(["OMP_THREAD_LIMIT"]),
        )


def preload(host: HostContext) -> Iterator[Finding]:
    """Warn of LD_PRELOAD at login, above all if it names two OpenMP libraries."""
    if not (value := host.facts.environment.variables.get("LD_PRELOAD")):
        return
    files = [word.rpartition("/")[2] for word in re.split(r"[:\s]+", value) if word]
    if all(any(name.startswith(runtime) for name in files) for runtime in ("libgomp", "libiomp5")):
        yield Finding(
            "openmp.two_runtimes",
            "warn",
            "LD_PRELOAD names both libgomp and libiomp5: two OpenMP libraries in a process compete for the same cores",
            "keep only libiomp5: " + _unset(["LD_PRELOAD"]),
        )
    else:
        yield Finding(
            "environment.preload",
            "warn",
            f"LD_PRELOAD at login loads {few([name[:40] for name in files], 2)} into every program, in addition to "
            "what ipexctl run preloads",
            _unset(["LD_PRELOAD"]),
        )


def two_runtimes(host: HostContext) -> Iterator[Finding]:
    """Say that one directory has both OpenMP libraries. System directories may have both, because ipexctl does not
    search there."""
    libraries = host.facts.software.libraries
    gomp, iomp = ({path.rpartition("/")[0] for path in libraries.get(name, ())} for name in ("libgomp", "libiomp5"))
    both = sorted(directory for directory in gomp & iomp if not directory.startswith(("/usr/lib", "/lib")))
    if both:
        yield Finding(
            "openmp.two_runtimes",
            "info",
            f"{both[0][:60]} has both libgomp and libiomp5: a program that loads both is slow, or bound to one core",
            "use an environment that ipexctl installed, or preload only libiomp5",
        )


def interface(host: HostContext) -> Iterator[Finding]:
    """Warn if a variable names the loopback interface, or one that the host does not have."""
    known = {nic.name for nic in host.facts.network.nics}
    for name in _names(host, "FI_TCP_IFACE|CCL_KVS_IFACE|GLOO_SOCKET_IFNAME|TP_SOCKET_IFNAME|I_MPI_HYDRA_IFACE"):
        value = host.facts.environment.variables[name]
        first = re.split(r"[,=^]", value)[0]
        if first == "lo" or (known and first and first not in known):
            problem = "is inside this host" if first == "lo" else "doesn't exist on this host"
            yield Finding(
                "environment.interface",
                "warn",
                f"{name}={value[:20]} at login, an interface that {problem}: ranks hang waiting for other hosts",
                _unset([name]),
            )


def conda(host: HostContext) -> Iterator[Finding]:
    """Say that each login activates a conda environment or a venv. It is not said of the control machine, whose
    variables come from the caller's shell."""
    variables = {} if host.is_control else host.facts.environment.variables
    if variables.get("CONDA_PREFIX"):
        yield Finding(
            "environment.conda",
            "info",
            f"conda activates {variables['CONDA_PREFIX'][:50]} at every login: it slows down each ssh login, and its "
            "mpirun and python come first on PATH",
            Fix("`conda config --set auto_activate_base false`"),
        )
    elif variables.get("VIRTUAL_ENV"):
        yield Finding(
            "environment.conda",
            "info",
            f"A login activates {variables['VIRTUAL_ENV'][:50]}: its python comes first on PATH for every program "
            "started over ssh",
            _unset(["activate"]),
        )


RULES: Final[tuple[HostRule, ...]] = (
    variables, thread_limit, preload, two_runtimes, interface, conda,
)  # fmt: skip
