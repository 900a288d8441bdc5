"""Rules over what is installed on a host: libc, interpreters, environments, MPIs, libraries. Pure.

The limits of Python and glibc are the newest IPEX's; a test compares them with the version table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ipexctl.doctor.context import few
from ipexctl.doctor.finding import Finding
from ipexctl.facts.packages import package_command, python_without_root, running_pythons, ways_to_python
from ipexctl.facts.software import minor_of
from ipexctl.stack.env.record import read_record

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ipexctl.doctor.context import HostContext, HostRule
    from ipexctl.doctor.finding import Level
    from ipexctl.facts.facts import Facts
    from ipexctl.facts.software import Env, Python

FIRST: Final = (3, 9)
LAST: Final = (3, 13)
"""Pythons with wheels of the newest IPEX."""
_OLDEST_PYTHON: Final = (3, 8)
NEWER_GLIBC: Final = (2, 28)
OLDEST_GLIBC: Final = (2, 17)


def libc(host: HostContext) -> Iterator[Finding]:
    system = host.facts.system
    version = minor_of(system.libc_version)
    if system.libc == "musl":
        yield Finding(
            "libc.musl",
            "fail",
            "This system's C library is musl (Alpine): PyTorch, IPEX and Intel MPI are built for glibc only",
            "use a glibc system, such as Debian, Ubuntu or Rocky Linux, or a container of one",
        )
    elif system.libc == "glibc" and version is not None and version < OLDEST_GLIBC:
        yield Finding(
            "libc.too_old",
            "fail",
            f"glibc {system.libc_version}: every PyTorch and IPEX wheel needs 2.17 or newer, so none can be loaded "
            "on this host",
            "a newer system, or a container of one",
        )
    elif system.libc == "glibc" and version is not None and version < NEWER_GLIBC:
        yield Finding(
            "libc.old",
            "warn",
            f"glibc {system.libc_version}: the newest that run on this host are IPEX 2.5 and, without IPEX, PyTorch "
            "2.6; anything later needs glibc 2.28",
            "for newer ones a newer system or container: RHEL 8, Ubuntu 20.04, Debian 10 or later",
        )


def usable(facts: Facts) -> tuple[Python, ...]:
    return tuple(python for python in running_pythons(facts) if python.minor and FIRST <= python.minor <= LAST)


def pythons(host: HostContext) -> Iterator[Finding]:
    if not host.facts.system.is_linux or host.facts.system.libc == "musl" or not host.facts.has_finished("programs"):
        return
    running = running_pythons(host.facts)
    minors = sorted({python.minor for python in running if python.minor})
    versions = few([f"{major}.{minor}" for major, minor in minors])
    fix = ways_to_python(host.facts)
    if not minors:
        yield Finding(
            "python.none",
            "fail",
            "No Python 3 that runs: nothing can be installed or started on this host. Any of 3.9 to 3.13 is fine",
            fix,
        )
    elif minors[-1] < FIRST:
        level: Level = "warn" if minors[-1] >= _OLDEST_PYTHON else "fail"
        yield Finding(
            "python.too_old",
            level,
            f"Python {versions} only: "
            + ("the newest for it are IPEX 2.4 and PyTorch 2.4; " if level == "warn" else "no stack runs on it; ")
            + "IPEX 2.8 needs one of 3.9 to 3.13",
            fix,
        )
    elif not usable(host.facts):
        yield Finding(
            "python.too_new",
            "info",
            f"Python {versions}, and none of 3.9 to 3.13: PyTorch has wheels for it, IPEX has none",
            f"nothing to do without IPEX; with it: {python_without_root('3.12')}",
        )


def venv(host: HostContext) -> Iterator[Finding]:
    found = usable(host.facts)
    if not found or any(python.venv is not False for python in found):
        return
    first = found[0]
    minor = ".".join(str(part) for part in first.minor or FIRST)
    yield Finding(
        "python.no_venv",
        "warn",
        f"Python {minor} can't make environments (venv or ensurepip is a separate package): install uses another way",
        package_command(host.facts, f"python{minor}-venv", f"python{minor}", f"python{minor.replace('.', '')}"),
    )


def broken(host: HostContext) -> Iterator[Finding]:
    if dead := [python.path[:50] for python in host.facts.software.pythons if python.version is None]:
        yield Finding(
            "python.broken",
            "info",
            f"{few(dead, 2)} is installed but doesn't run: scripts that start it by name fail on this host",
            "nothing to do for ipexctl, which uses another; for other programs, reinstall it with the tool that "
            "installed it (the system's packages, conda, uv)",
        )


def drift(host: HostContext) -> Iterator[Finding]:
    """Versions that pip does not check: IPEX and the bindings declare no torch."""
    for env in host.facts.software.envs:
        torch = minor_of(env.torch)
        others = [("IPEX", env.ipex), ("oneCCL bindings", env.oneccl_bindings)]
        wrong = [f"{name} {version}" for name, version in others if torch and (minor_of(version) or torch) != torch]
        if wrong:
            yield Finding(
                "env.drift",
                "fail",
                f"Environment {env.name[:40]} has torch {env.torch} with {' and '.join(wrong)}: they fit only the "
                "torch they were built for, and fail at import",
                "ipexctl install again; keep pip from changing torch there",
            )
        elif mismatch := _mpi_mismatch(env):
            yield mismatch
        elif replaced := _replaced(env):
            yield replaced


def _replaced(env: Env) -> Finding | None:
    """Packages that pip changed since ipexctl installed and verified them."""
    record = read_record(env.record)
    if record is None:
        return None
    changed = [
        f"{name} is {env.packages[name]}, was {version}"
        for name, version in record.packages.items()
        if name in env.packages and env.packages[name] != version
    ]
    if not changed:
        return None
    return Finding(
        "env.drift",
        "warn",
        f"Environment {env.name[:40]} is not what was installed and verified: {few(changed, 3)}",
        "ipexctl install again restores it; packages of your own go into it with --with",
    )


def _mpi_mismatch(env: Env) -> Finding | None:
    """Only 2021.15 is known to pin it."""
    if minor_of(env.oneccl) != (2021, 15) or minor_of(env.mpi) in (None, (2021, 15)):
        return None
    return Finding(
        "env.mpi_mismatch",
        "warn",
        f"Environment {env.name[:40]} has oneCCL {env.oneccl} with Intel MPI {env.mpi}: it needs 2021.15, and may "
        "crash at the first collective",
        "ipexctl install again; keep pip from changing impi-rt there",
    )


def dead_envs(host: HostContext) -> Iterator[Finding]:
    if not host.facts.has_finished("home"):
        return
    for env in host.facts.software.envs:
        if not env.runs:
            yield Finding(
                "env.broken",
                "warn",
                f"The Python of environment {env.name[:40]} is gone (removed or upgraded): nothing in it starts",
                "ipexctl install with its options builds it again, on the hosts that need it only",
            )
        elif env.lost:
            yield Finding(
                "env.broken",
                "warn",
                f"Environment {env.name[:40]} has lost the files of {few(env.lost, 3)}: scripts that import it fail",
                "ipexctl install with its options builds it again, on the hosts that need it only",
            )


def mpis(host: HostContext) -> Iterator[Finding]:
    if not host.facts.system.is_linux or not host.facts.has_finished("programs"):
        return
    found = host.facts.software.mpis
    records = (read_record(env.record) for env in host.facts.software.envs if not env.mpi)
    if not found and not any(env.mpi for env in host.facts.software.envs) and not any(r and r.mpi for r in records):
        yield Finding(
            "mpi.missing",
            "info",
            "No mpirun is installed: it starts the ranks on all hosts",
            "nothing to do: ipexctl install brings Intel MPI with the environment, without root",
        )
    kinds = {"mpich": "MPICH", "openmpi": "Open MPI", "intel": "Intel MPI", "mvapich": "MVAPICH"}
    flavors = list(dict.fromkeys(kinds[mpi.flavor] for mpi in found if mpi.flavor in kinds))
    if len(flavors) > 1:
        yield Finding(
            "mpi.mixed",
            "info",
            f"{' and '.join(flavors)} are installed: an mpirun of one kind can't start ranks linked with another",
            "nothing to do under ipexctl run, which starts one by its path; --mpi PATH chooses another",
        )


def libraries(host: HostContext) -> Iterator[Finding]:
    if not host.facts.system.is_linux or not host.facts.has_finished("programs"):
        return
    have = host.facts.software.libraries
    with_ipex = [env.name for env in host.facts.software.envs if env.ipex and not env.packages.get("intel-openmp")]
    if with_ipex and "libiomp5" not in have:
        yield Finding(
            "openmp.no_libiomp5",
            "info",
            f"Environment {with_ipex[0][:40]} has no Intel OpenMP library (libiomp5): IPEX uses libgomp, which is "
            "often a little slower",
            "ipexctl install --with intel-openmp",
        )
    if "libtcmalloc" not in have and "libjemalloc" not in have:
        yield Finding(
            "allocator.missing",
            "info",
            "Neither tcmalloc nor jemalloc is installed: ranks that `ipexctl run` did not start get memory from the "
            "kernel anew at every step, which costs time",
            package_command(host.facts, "libtcmalloc-minimal4", "gperftools-libs", "libtcmalloc4"),
        )


def tools(host: HostContext) -> Iterator[Finding]:
    have = host.facts.environment.tools
    if not host.facts.system.is_linux or not host.facts.has_finished("programs") or not have:
        return
    missing = [name for name in ("tar", "sha256sum") if name not in have]
    if missing:
        yield Finding(
            "tools.missing",
            "warn",
            f"No {' and no '.join(missing)}: code and wheels can't be unpacked or verified on this host",
            package_command(host.facts, "tar coreutils", "tar coreutils", "tar coreutils"),
        )
    if host.node0 and not host.alone and "ssh" not in have:
        yield Finding(
            "tools.no_ssh",
            "fail",
            "No ssh on node0: mpirun on node0 starts the ranks of all other hosts by ssh",
            f"{package_command(host.facts, 'openssh-client', 'openssh-clients', 'openssh-clients')}; "
            "or put another host first in the hostfile",
        )


RULES: Final[tuple[HostRule, ...]] = (
    libc, pythons, venv, broken, drift, dead_envs, mpis, libraries, tools,
)  # fmt: skip
