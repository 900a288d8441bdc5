"""What a failed verification means: what is wrong, in a sentence, and what to type next. Pure.

The texts are those real stacks print when they break. The first rule that knows a text speaks, so the telling ones
come before the consequences they have on other ranks.
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ipexctl.stack.env.environment import Phase, VerifyResult

    _Rule = tuple[str, Callable[["_Seen", re.Match[str]], tuple[str, str]]]

_OURS: Final = "make it anew: ipexctl envs --remove {env}, then ipexctl install"
_THEIRS: Final = "mend that environment, or let ipexctl make one: ipexctl install"


@dataclass(frozen=True, slots=True)
class _Seen:
    """What a rule sees: the phase, and the words its sentences may use."""

    phase: Phase
    env: str
    ours: bool
    verify: VerifyResult

    @property
    def anew(self) -> str:
        return _OURS.format(env=self.env) if self.ours else _THEIRS


def explain(verify: VerifyResult, *, env: str, ours: bool = True) -> tuple[str, str] | None:
    """Why the environment isn't good on this host, and what to do; None where it is.

    `env` is its name, or the path of a Python that isn't ours (`ours` is False then).
    """
    phase = verify.failed
    if phase is None:
        return None
    seen = _Seen(phase, env, ours, verify)
    return _by_text(seen, _CAUSES) or _by_signal(seen) or _by_text(seen, _CONSEQUENCES) or _otherwise(seen)


def _by_text(seen: _Seen, rules: Sequence[_Rule]) -> tuple[str, str] | None:
    for pattern, say in rules:
        found = re.search(pattern, seen.phase.text, re.MULTILINE)
        if found:
            return say(seen, found)
    return None


def _by_signal(seen: _Seen) -> tuple[str, str] | None:
    phase, what = seen.phase, _DOING[seen.phase.name]
    if phase.timed_out:
        if phase.name == "allreduce":
            return (
                f"{what} in {seen.env} did not end in {phase.seconds:.0f} s: the two ranks don't hear one another",
                "look for a firewall on lo and for FI_* or CCL_* variables in the file of --setup; then ipexctl doctor",
            )
        return (
            f"{what} in {seen.env} did not end in {phase.seconds:.0f} s",
            "the disk its home is on may be very slow: ipexctl doctor --smoke measures it; then ipexctl install again",
        )
    number = phase.signal or (phase.rc - 128 if phase.rc is not None and 128 < phase.rc < 160 else None)
    if number == signal.SIGILL:
        return (
            f"{what} in {seen.env} needs instructions this CPU lacks (Illegal instruction)",
            "ipexctl versions shows what each stack needs; choose one that fits with --stack",
        )
    if number == signal.SIGBUS:
        return _shm(seen)
    if number == signal.SIGKILL:
        return (
            f"{what} in {seen.env} was killed, as the kernel does where memory runs out",
            "ipexctl doctor shows memory and limits; free some and run ipexctl install again",
        )
    if number == signal.SIGSEGV and phase.name == "allreduce" and seen.verify.backend == "ccl":
        return (
            f"{seen.env} imports and crashes at the first collective (signal 11): oneCCL older than its bindings need",
            seen.anew + "; where packages were added to it, leave oneccl and impi-rt as they were",
        )
    if number:
        return f"{what} in {seen.env} crashed ({_signal_name(number)})", seen.anew
    return None


def _otherwise(seen: _Seen) -> tuple[str, str]:
    lines = [line.strip() for line in seen.phase.text.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"[\w.]+(Error|Exception|Exit|Interrupt)\b", line)]
    last = (errors or lines or [f"exit code {seen.phase.rc}"])[-1]
    return f"{_DOING[seen.phase.name]} in {seen.env} failed: {last[:300]}", seen.anew


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


_DOING: Final = {
    "torch": "torch",
    "ipex": "IPEX",
    "bindings": "importing the oneCCL bindings",
    "allreduce": "an all-reduce of two ranks",
}


def _shm(seen: _Seen, _: re.Match[str] | None = None) -> tuple[str, str]:
    return (
        f"{_DOING[seen.phase.name]} in {seen.env} ended by a bus error: /dev/shm is too small or full",
        "ipexctl doctor shows its size; make room there, in a container start it with a larger --shm-size",
    )


def _versions(seen: _Seen, found: re.Match[str]) -> tuple[str, str]:
    return f"IPEX in {seen.env} is built for torch {found[1]}, and torch {found[2]} is there", seen.anew


def _symbol(seen: _Seen, found: re.Match[str]) -> tuple[str, str]:
    if "sycl" in found[1]:
        return f"oneCCL in {seen.env} is newer than the one the bindings were built with ({found[1][:60]})", seen.anew
    part = {"ipex": "IPEX", "bindings": "the oneCCL bindings"}.get(seen.phase.name, "a library")
    built = f"{part} in {seen.env} was built for another torch"
    if seen.phase.name in ("torch", "allreduce"):
        built = f"libraries in {seen.env} don't belong together"
    return f"{built} (undefined symbol {found[1][:60]})", seen.anew


def _library(seen: _Seen, found: re.Match[str]) -> tuple[str, str]:
    name = found[1]
    for start, (what, fix) in _LIBRARIES.items():
        if name.startswith(start):
            return f"{name} is not found in {seen.env}: {what}", (fix or seen.anew)
    return f"{name} is not found for {seen.env}", f"install the package that has {name}; or {seen.anew}"


_SETVARS: Final = "source the setvars.sh of the bindings in the file given with --setup, in bash; or ipexctl install"
_LIBRARIES: Final[dict[str, tuple[str, str]]] = {
    "libiomp5": (
        "Intel's OpenMP is missing",
        "ipexctl install --with intel-openmp, or for an own environment: pip install intel-openmp",
    ),
    "libccl": ("oneCCL is missing, or its setvars.sh was not sourced", _SETVARS),
    "libmpi": ("Intel MPI is missing, or its variables are not set", _SETVARS),
    "libfabric": ("vars.sh was sourced where setvars.sh was needed", _SETVARS),
    "libsycl": ("its oneCCL is newer than the one the bindings were built with", ""),
    "libcu": ("torch's CUDA build has lost a part of itself", ""),
    "libtorch": ("torch is broken, or another one than the package was built for", ""),
}


def _plain(reason: str, fix: str = "") -> Callable[[_Seen, re.Match[str]], tuple[str, str]]:
    """A sentence with the environment's name, and the groups of the pattern, in it."""

    def say(seen: _Seen, found: re.Match[str]) -> tuple[str, str]:
        words = {"env": seen.env, "what": _DOING[seen.phase.name], "anew": seen.anew}
        groups = [group or "" for group in found.groups()]
        return reason.format(*groups, **words), (fix or "{anew}").format(*groups, **words)

    return say


def _missing_module(seen: _Seen, found: re.Match[str]) -> tuple[str, str]:
    module = found[1].split(".")[0]
    name = _PACKAGES.get(module, module)
    return f"{name} is not installed in {seen.env}", seen.anew


_PACKAGES: Final = {
    "intel_extension_for_pytorch": "IPEX (intel-extension-for-pytorch)",
    "oneccl_bindings_for_pytorch": "oneccl_bind_pt (the oneCCL bindings)",
    "torch_ccl": "oneccl_bind_pt (the oneCCL bindings)",
}

_CAUSES: Final[Sequence[_Rule]] = (
    (r"needs to work with PyTorch ([\d.]+)\.\*,? but PyTorch (\S+) is found", _versions),
    (
        r"module 'os' has no attribute 'exit'|name 'exit' is not defined",
        _plain("IPEX in {env} is built for another torch than the one there"),
    ),
    (
        r"(?:No space left on device|os error 28|Errno 28)",
        _plain(
            "{what} in {env} failed because a disk is full (its home, /tmp or /dev/shm)",
            "make room: ipexctl doctor shows which; then ipexctl install again",
        ),
    ),
    (
        r"Disk quota exceeded|Errno 122",
        _plain(
            "{what} in {env} failed because the quota of this account is used up",
            "make room: ipexctl envs shows what is ours; then ipexctl install again",
        ),
    ),
    (
        r"version `(GLIBC_[\d.]+)' not found",
        _plain(
            "{env} needs {0}, and the C library of this host is older",
            "ipexctl versions shows the newest stack for it; choose it with --stack",
        ),
    ),
    (
        r"version `((?:GLIBCXX|CXXABI)_[\d.]+)' not found",
        _plain(
            "{env} needs {0}, and the libstdc++ found on this host is older",
            "take what has an old libstdc++ out of LD_LIBRARY_PATH (a module, a conda), or see ipexctl versions",
        ),
    ),
    (
        r"failed to map segment from shared object",
        _plain(
            "a library of {env} can't be loaded: its filesystem is mounted noexec",
            "give --home a directory on a filesystem that lets programs run",
        ),
    ),
    (
        r"cannot allocate memory in static TLS block",
        _plain(
            "a library of {env} was loaded too late (static TLS)",
            "import torch before other libraries, or take LD_PRELOAD out of the file of --setup",
        ),
    ),
    (r"undefined symbol: (\S+)", _symbol),
    (
        r"could not open the library: libfabric\S*",
        _plain("vars.sh was sourced for {env} where setvars.sh was needed: libfabric is not found", _SETVARS),
    ),
    (
        r"check_impi_env: .* neither I_MPI_ROOT nor ONEAPI_ROOT is set",
        _plain("I_MPI_ROOT is not set for {env}: only half of setvars.sh had effect", _SETVARS),
    ),
    (
        r"could not initialize any transport library|could not open the library: libmpi",
        _plain("oneCCL in {env} finds no MPI: its setvars.sh was not sourced", _SETVARS),
    ),
    (
        r"prepend_path: not found",
        _plain("setvars.sh of {env} was sourced by a shell that isn't bash, and set half of its variables", _SETVARS),
    ),
    (r"(?:ImportError|OSError): (?:.*/)?(lib[\w+.-]+\.so[\w.]*): cannot open shared object file", _library),
    (r"error while loading shared libraries: (lib[\w+.-]+\.so[\w.]*)", _library),
    (r"(lib[\w+.-]+\.so[\w.]*): cannot open shared object file", _library),
    (
        r"fi_getinfo\(\) failed|fi_getinfo error|can't create providers for name (\S+)",
        _plain(
            "libfabric in {env} finds no way to send: FI_PROVIDER or FI_PROVIDER_PATH is wrong",
            "unset FI_PROVIDER and FI_PROVIDER_PATH, in the file of --setup too; or ipexctl install",
        ),
    ),
    (
        r"mpiexec\.hydra: not found|hydra_bstrap_proxy: No such file",
        _plain(
            "mpirun of {env} doesn't find its own parts: PATH lacks their directory",
            "put the bin directory of that MPI on PATH in the file of --setup, or ipexctl install",
        ),
    ),
    (
        r"Unable to run bstrap_proxy on (\S+)",
        _plain(
            "mpirun of {env} could not start a process on {0}, this host itself",
            "ipexctl doctor looks at this host's name and address; then ipexctl install again",
        ),
    ),
    (
        r"getaddrinfo returned error|unable to connect to server (\S+)|gai error",
        _plain(
            "this host's own name does not resolve, and {what} in {env} needs it",
            "put the name into /etc/hosts; ipexctl doctor shows it",
        ),
    ),
    (
        r"EADDRINUSE|[Aa]ddress already in use",
        _plain(
            "a port that was free a moment ago was taken by somebody else: {what} in {env} could not start",
            "run ipexctl install again",
        ),
    ),
    (
        r"Unknown backend type ccl|Invalid backend: .?ccl",
        _plain("the bindings in {env} did not register the backend ccl with this torch"),
    ),
    (
        r"compiled using NumPy 1\.x|_ARRAY_API not found|numpy\.core\.multiarray failed",
        _plain(
            "numpy in {env} is 2.x, and a package there was built for 1.x",
            "ipexctl install --with 'numpy<2', or for an own environment: pip install 'numpy<2'",
        ),
    ),
    (r"numpy\.dtype size changed", _plain("a package in {env} was built for another numpy than the one there")),
    (r"(?:ModuleNotFoundError|ImportError): No module named '([\w.]+)'", _missing_module),
    (
        r"ArithmeticError: (.+)",
        _plain("{what} in {env} computes wrongly: {0}", "this may be the machine: ipexctl doctor --smoke; then {anew}"),
    ),
    (
        r"Illegal instruction",
        _plain(
            "{what} in {env} needs instructions this CPU lacks (Illegal instruction)",
            "ipexctl versions shows what each stack needs; choose one that fits with --stack",
        ),
    ),
    (r"KILLED BY SIGNAL: 7\b|Bus error", _shm),
    (
        r"MemoryError|[Cc]annot allocate memory|can't allocate memory|bad_alloc",
        _plain(
            "{what} in {env} got no memory",
            "ipexctl doctor shows memory and limits; free some and run ipexctl install again",
        ),
    ),
    (
        r"can't start new thread|Resource temporarily unavailable",
        _plain(
            "{what} in {env} may not start more threads: the limit of processes of this account is met",
            "raise ulimit -u, or end what else runs; then ipexctl install again",
        ),
    ),
    (
        r"Too many open files",
        _plain("{what} in {env} may not open more files", "raise ulimit -n; then ipexctl install again"),
    ),
    (
        r"failed to initialize ATL|PMPI_Init_thread",
        _plain(
            "MPI under oneCCL in {env} does not start",
            "unset FI_* and I_MPI_* variables, in the file of --setup too; or ipexctl install",
        ),
    ),
    (
        r"mpirun told this rank its number in none of",
        _plain(
            "the mpirun used with {env} does not tell ranks their numbers",
            "name another one with --mpi intel, openmpi, mpich or its path",
        ),
    ),
    (
        r"Permission denied: '([^']+)'|Read-only file system: '([^']+)'",
        _plain("{what} in {env} may not write {0}{1}", "give --home a directory of yours that can be written to"),
    ),
)

_CONSEQUENCES: Final[Sequence[_Rule]] = (
    (r"KILLED BY SIGNAL: 15", _plain("{what} in {env} was ended from outside", "run ipexctl install again")),
    (
        r"[Tt]imed out|client socket has timed out|Connection was likely closed|Connection closed by peer",
        _plain(
            "the two ranks of {env} lost one another on this host",
            "look for a firewall on lo; then ipexctl install again",
        ),
    ),
)
"""What a rank says when the other one is gone: a signal that ended that one tells more."""
