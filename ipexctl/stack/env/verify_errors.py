"""Explains a failed verification: what is wrong, and what to type next. Pure.

The patterns are texts that real stacks print. The first rule that matches is used: causes come before their
consequences on other ranks.
"""

from __future__ import annotations

import json
import re
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ipexctl.node.run.verdict import signal_name
from ipexctl.stack.catalog.table import minor, rows, version_key

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ipexctl.stack.env.environment import Phase, VerifyResult

    _Explanation = tuple[str, str]

_INSTALL_AGAIN: Final = (
    "run the same ipexctl install again, which builds the environment anew; if that fails too, choose another stack: "
    "ipexctl versions"
)
_OWN_PYTHON: Final = "repair that environment, or let ipexctl make one: ipexctl install"
_ONECCL_ON_PYPI: Final = "2021.14"
"""The oldest version of the packages oneccl and impi-rt that belong together on PyPI (November 2026)."""
_NEWEST_ONECCL: Final = "2021.15"
"""The oneCCL of bindings that the version table does not know: torch-ccl 2.8 is built with 2021.15.2."""


@dataclass(frozen=True, slots=True)
class _Failure:
    """The failed phase, and the words that sentences need."""

    phase: Phase
    env: str
    backend: str | None
    record: Mapping[str, Any] | None

    @property
    def action(self) -> str:
        return _ACTIONS[self.phase.name]

    @property
    def fix(self) -> str:
        return _OWN_PYTHON if self.record is None else _INSTALL_AGAIN

    def sentences(self, reason: str, fix: str, groups: Sequence[str | None] = ()) -> _Explanation:
        values = {"env": self.env, "action": self.action, "fix": self.fix}
        texts = [group or "" for group in groups]
        return reason.format(*texts, **values), fix.format(*texts, **values)


@dataclass(frozen=True, slots=True)
class _Rule:
    """A text and its sentences, which have the words of the failure and the groups of the pattern in them."""

    pattern: str
    reason: str = ""
    fix: str = "{fix}"
    explain: Callable[[_Failure, re.Match[str]], _Explanation] | None = None
    """Returns the sentences if they depend on more."""


def explain(verify: VerifyResult, *, env: str, record: Mapping[str, Any] | None = None) -> tuple[str, str] | None:
    """The reason and the fix; None where the environment works.

    `env` is its name and `record` its env.json; for a Python of the user `env` is the path, and there is no record.
    """
    phase = verify.failed
    if phase is None:
        return None
    failure = _Failure(phase, env, verify.backend, record)
    return (
        _by_text(failure, _CAUSES) or _by_signal(failure) or _by_text(failure, _CONSEQUENCES) or _by_last_line(failure)
    )


def _by_text(failure: _Failure, rules: Sequence[_Rule]) -> _Explanation | None:
    for rule in rules:
        if found := re.search(rule.pattern, failure.phase.text, re.MULTILINE):
            if rule.explain is not None:
                return rule.explain(failure, found)
            return failure.sentences(rule.reason, rule.fix, found.groups())
    return None


def _by_signal(failure: _Failure) -> _Explanation | None:
    phase, subject = failure.phase, f"{failure.action} in {failure.env}"
    if phase.timed_out:
        if phase.name == "allreduce":
            return (
                f"{subject} did not end in {phase.seconds:.0f} s: the two ranks do not reach each other",
                "look for a firewall on lo and for FI_* or CCL_* variables in the file of --setup; then ipexctl doctor",
            )
        return (
            f"{subject} did not end in {phase.seconds:.0f} s",
            "measure the disk of its home, which may be slow: ipexctl doctor --smoke; then run ipexctl install again",
        )
    number = phase.signal or (phase.rc - 128 if phase.rc is not None and 128 < phase.rc < 160 else None)
    if number is not None and number in _SIGNALS:
        return failure.sentences(*_SIGNALS[number])
    if number == signal.SIGSEGV and phase.name == "allreduce" and failure.backend == "ccl":
        return (
            f"{failure.env} crashes at the first collective (SIGSEGV): its oneCCL is older than its bindings need",
            "keep the versions of oneccl and impi-rt where you add packages; " + failure.fix,
        )
    if number:
        return f"{subject} crashed ({signal_name(number)})", failure.fix
    return None


def _by_last_line(failure: _Failure) -> _Explanation:
    lines = [line.strip() for line in failure.phase.text.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"[\w.]+(Error|Exception|Exit|Interrupt)\b", line)]
    last = (errors or lines or [f"exit code {failure.phase.rc}"])[-1]
    return f"{failure.action} in {failure.env} failed: {last[:300]}", failure.fix


_ACTIONS: Final = {
    "torch": "torch",
    "ipex": "IPEX",
    "bindings": "the import of the oneCCL bindings",
    "allreduce": "an all-reduce of two ranks",
}


_SIGNALS: Final[Mapping[int, tuple[str, str]]] = {
    signal.SIGILL: (
        "{action} in {env} uses instructions that this CPU lacks (Illegal instruction)",
        "choose a stack for this CPU with --stack: ipexctl versions shows what each stack needs",
    ),
    signal.SIGBUS: (
        "{action} in {env} ended with a bus error: /dev/shm is too small or full",
        "make room in /dev/shm (ipexctl doctor shows its size); start a container with a larger --shm-size",
    ),
    signal.SIGKILL: (
        "{action} in {env} was killed (SIGKILL); the kernel does this when memory runs out",
        "free memory (ipexctl doctor shows memory and limits), then run ipexctl install again",
    ),
}


def _undefined_symbol(failure: _Failure, found: re.Match[str]) -> _Explanation:
    symbol = found[1][:60]
    if "sycl" in symbol:
        return f"oneCCL in {failure.env} is newer than the oneCCL its bindings were built with ({symbol})", failure.fix
    parts = {"ipex": "IPEX in {} was", "bindings": "the oneCCL bindings in {} were"}
    part = parts.get(failure.phase.name)
    reason = f"{part} built for another torch" if part else "libraries in {} do not belong together"
    return f"{reason.format(failure.env)} (undefined symbol {symbol})", failure.fix


def _missing_library(failure: _Failure, found: re.Match[str]) -> _Explanation:
    name = found[1]
    for start, (cause, fix) in _LIBRARIES.items():
        if name.startswith(start):
            if fix == _SETVARS and failure.record is not None:
                return _no_oneccl_inside(failure, name, failure.record)
            return f"{name} is not found in {failure.env}: {cause}", fix or failure.fix
    return f"{name} is not found in {failure.env}", f"install the package that has {name}; or {failure.fix}"


def _no_oneccl_inside(failure: _Failure, library: str, record: Mapping[str, Any]) -> _Explanation:
    """The bindings' wheel has neither oneCCL nor Intel MPI inside: a row of the version table adds both packages."""
    packages: Mapping[str, str] = record["packages"]
    bindings, row_name = str(packages.get("oneccl-bind-pt", "")), str(record.get("row"))
    if not bindings or {"oneccl", "impi-rt"} <= set(packages):
        return f"{library} is not found in {failure.env}", failure.fix
    row = next((row for row in rows() if row.name == row_name), None)
    built_with = [build.oneccl for build in row.oneccl_builds if bindings.startswith(build.version)] if row else []
    version = minor(next(filter(None, built_with), _NEWEST_ONECCL))
    reason = f"{library} is not found in {failure.env}: the wheel of oneccl_bind_pt {bindings} has no oneCCL inside"
    if version_key(version) < version_key(_ONECCL_ON_PYPI):
        return reason, "use a wheel of oneccl_bind_pt with oneCCL inside, such as Intel's: --wheelhouse DIR"
    entry = json.dumps({"name": row_name, "requires": [f"oneccl=={version}.*", f"impi-rt=={version}.*"]})
    return reason, (
        f"add the packages oneccl and impi-rt to the stack: add {entry} to the list in $IPEXCTL_ROWS or "
        f"~/.config/ipexctl/rows.json (if there is no such file, create it with [{entry}]), then run "
        "ipexctl install again"
    )


_SETVARS: Final = "source the setvars.sh of the bindings in the file given with --setup, in bash; or ipexctl install"
_LIBRARIES: Final[dict[str, tuple[str, str]]] = {
    "libiomp5": (
        "Intel's OpenMP library is missing",
        "ipexctl install --with intel-openmp, or for a Python of your own: pip install intel-openmp",
    ),
    "libccl": ("oneCCL is missing, or its setvars.sh was not sourced", _SETVARS),
    "libmpi": ("Intel MPI is missing, or its variables are not set", _SETVARS),
    "libfabric": ("vars.sh was sourced instead of setvars.sh", _SETVARS),
    "libsycl": ("its oneCCL is newer than the oneCCL its bindings were built with", ""),
    "libcu": ("a part of torch's CUDA build is missing", ""),
    "libtorch": ("torch is damaged, or another torch than the package was built for", ""),
}


def _no_mpi(failure: _Failure, _: re.Match[str]) -> _Explanation:
    if failure.record is not None:
        return _no_oneccl_inside(failure, "libmpi.so", failure.record)
    return f"oneCCL in {failure.env} finds no MPI: its setvars.sh was not sourced", _SETVARS


def _missing_module(failure: _Failure, found: re.Match[str]) -> _Explanation:
    module = found[1].split(".")[0]
    name = _PACKAGES.get(module, module)
    return f"{name} is not installed in {failure.env}", failure.fix


_PACKAGES: Final = {
    "intel_extension_for_pytorch": "IPEX (intel-extension-for-pytorch)",
    "oneccl_bindings_for_pytorch": "oneccl_bind_pt (the oneCCL bindings)",
    "torch_ccl": "oneccl_bind_pt (the oneCCL bindings)",
}

_CAUSES: Final[Sequence[_Rule]] = (
    _Rule(
        r"needs to work with PyTorch ([\d.]+)\.\*,? but PyTorch (\S+) is found",
        "IPEX in {env} is built for torch {0}, but torch {1} is installed",
    ),
    _Rule(
        r"module 'os' has no attribute 'exit'|name 'exit' is not defined",
        "IPEX in {env} is built for another torch than the installed one",
    ),
    _Rule(
        r"(?:No space left on device|os error 28|Errno 28)",
        "{action} in {env} failed: a disk is full (its home, /tmp or /dev/shm)",
        "make room (ipexctl doctor shows which disk), then run ipexctl install again",
    ),
    _Rule(
        r"Disk quota exceeded|Errno 122",
        "{action} in {env} failed: the quota of this account is used up",
        "make room (ipexctl envs lists environments), then run ipexctl install again",
    ),
    _Rule(
        r"version `(GLIBC_[\d.]+)' not found",
        "{env} needs {0}, but the C library of this host is older",
        "choose an older stack with --stack: ipexctl versions shows the newest for this host",
    ),
    _Rule(
        r"version `((?:GLIBCXX|CXXABI)_[\d.]+)' not found",
        "{env} needs {0}, but the libstdc++ found on this host is older",
        "unload the module or conda environment that puts it into LD_LIBRARY_PATH; or ipexctl versions",
    ),
    _Rule(
        r"failed to map segment from shared object",
        "a library of {env} cannot be loaded: its filesystem is mounted noexec",
        "choose a directory on another filesystem: --home DIR",
    ),
    _Rule(
        r"cannot allocate memory in static TLS block",
        "a library of {env} was loaded too late (static TLS)",
        "import torch before other libraries, or remove LD_PRELOAD from the file of --setup",
    ),
    _Rule(r"undefined symbol: (\S+)", explain=_undefined_symbol),
    _Rule(
        r"could not open the library: libfabric\S*",
        "libfabric is not found in {env}: vars.sh was sourced instead of setvars.sh",
        _SETVARS,
    ),
    _Rule(
        r"check_impi_env: .* neither I_MPI_ROOT nor ONEAPI_ROOT is set",
        "I_MPI_ROOT is not set for {env}: setvars.sh set only some of its variables",
        _SETVARS,
    ),
    _Rule(r"could not initialize any transport library|could not open the library: libmpi", explain=_no_mpi),
    _Rule(
        r"prepend_path: not found",
        "setvars.sh of {env} was sourced by another shell than bash, and set only some variables",
        _SETVARS,
    ),
    _Rule(
        r"(?:ImportError|OSError): (?:.*/)?(lib[\w+.-]+\.so[\w.]*): cannot open shared object file",
        explain=_missing_library,
    ),
    _Rule(r"error while loading shared libraries: (lib[\w+.-]+\.so[\w.]*)", explain=_missing_library),
    _Rule(r"(lib[\w+.-]+\.so[\w.]*): cannot open shared object file", explain=_missing_library),
    _Rule(
        r"fi_getinfo\(\) failed|fi_getinfo error|can't create providers for name (\S+)",
        "libfabric in {env} finds no provider: FI_PROVIDER or FI_PROVIDER_PATH is wrong",
        "unset FI_PROVIDER and FI_PROVIDER_PATH, in the file of --setup too; or ipexctl install",
    ),
    _Rule(
        r"mpiexec\.hydra: not found|hydra_bstrap_proxy: No such file",
        "mpirun of {env} does not find mpiexec.hydra: PATH lacks its directory",
        "put the bin directory of that MPI on PATH in the file of --setup, or ipexctl install",
    ),
    _Rule(
        r"Unable to run bstrap_proxy on (\S+)",
        "mpirun of {env} could not start a process on {0}, this host itself",
        "check the name and address of this host with ipexctl doctor, then run ipexctl install again",
    ),
    _Rule(
        r"getaddrinfo returned error|unable to connect to server (\S+)|gai error",
        "the name of this host does not resolve, and {action} in {env} needs it",
        "add the name to /etc/hosts (ipexctl doctor shows it), then run ipexctl install again",
    ),
    _Rule(
        r"EADDRINUSE|[Aa]ddress already in use",
        "{action} in {env} could not start: another process took its port",
        "run ipexctl install again",
    ),
    _Rule(
        r"Unknown backend type ccl|Invalid backend: .?ccl",
        "the bindings in {env} did not register the backend ccl with this torch",
    ),
    _Rule(
        r"compiled using NumPy 1\.x|_ARRAY_API not found|numpy\.core\.multiarray failed",
        "numpy in {env} is 2.x, but a package there was built for 1.x",
        "ipexctl install --with 'numpy<2', or for a Python of your own: pip install 'numpy<2'",
    ),
    _Rule(r"numpy\.dtype size changed", "a package in {env} was built for another numpy than the installed one"),
    _Rule(r"(?:ModuleNotFoundError|ImportError): No module named '([\w.]+)'", explain=_missing_module),
    _Rule(
        r"ArithmeticError: (.+)",
        "{action} in {env} has a wrong result: {0}",
        "test the machine: ipexctl doctor --smoke; then {fix}",
    ),
    _Rule(r"Illegal instruction", *_SIGNALS[signal.SIGILL]),
    _Rule(r"KILLED BY SIGNAL: 7\b|Bus error", *_SIGNALS[signal.SIGBUS]),
    _Rule(
        r"MemoryError|[Cc]annot allocate memory|can't allocate memory|bad_alloc",
        "{action} in {env} got no memory from this host",
        "free memory (ipexctl doctor shows memory and limits), then run ipexctl install again",
    ),
    _Rule(
        r"can't start new thread|Resource temporarily unavailable",
        "{action} in {env} cannot start more threads: this account has reached its limit of processes",
        "raise ulimit -u, or end other processes, then run ipexctl install again",
    ),
    _Rule(
        r"Too many open files",
        "{action} in {env} cannot open more files",
        "raise ulimit -n, then run ipexctl install again",
    ),
    _Rule(
        r"failed to initialize ATL|PMPI_Init_thread",
        "MPI under oneCCL in {env} does not start",
        "unset FI_* and I_MPI_* variables, in the file of --setup too; or ipexctl install",
    ),
    _Rule(
        r"mpirun told this rank its number in none of",
        "the mpirun used with {env} does not set the rank numbers",
        "choose another MPI: --mpi intel, openmpi, mpich or a path",
    ),
    _Rule(
        r"Permission denied: '([^']+)'|Read-only file system: '([^']+)'",
        "{action} in {env} cannot write {0}{1}",
        "choose a directory that you can write to: --home DIR",
    ),
)

_CONSEQUENCES: Final[Sequence[_Rule]] = (
    _Rule(
        r"KILLED BY SIGNAL: 15",
        "{action} in {env} was ended with SIGTERM",
        "run ipexctl install again",
    ),
    _Rule(
        r"[Tt]imed out|client socket has timed out|Connection was likely closed|Connection closed by peer",
        "the two ranks of {env} lost their connection on this host",
        "look for a firewall on lo, then run ipexctl install again",
    ),
)
"""Messages of a rank whose peer is gone: the signal that ended the peer says more, so these come after it."""
