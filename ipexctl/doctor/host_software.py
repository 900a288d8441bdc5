"""Rules over what is installed on a host: libc, interpreters, environments, MPIs, libraries. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ipexctl.doctor.finding import Finding
from ipexctl.doctor.host_context import few, minor_of, package_command, quoted_output
from ipexctl.stack.env.record import read_record

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ipexctl.doctor.finding import Level
    from ipexctl.doctor.host_context import HostContext, Rule, RuleInContext
    from ipexctl.facts.facts import Facts
    from ipexctl.facts.software import Env, Python

IDS: Final[Mapping[str, str]] = {
    "libc.musl": "the C library is musl, for which there are no wheels",
    "libc.too_old": "glibc is older than every wheel needs",
    "libc.old": "glibc is too old for the newer stacks",
    "python.none": "no Python that runs",
    "python.too_new": "every Python is newer than IPEX knows",
    "python.too_old": "every Python is older than the newest stacks need",
    "python.no_venv": "Python can't make environments",
    "python.broken": "a Python that doesn't run",
    "env.drift": "packages of an environment don't fit each other",
    "env.broken": "an environment whose Python is gone",
    "env.mpi_mismatch": "oneCCL and Intel MPI of an environment don't fit",
    "mpi.missing": "no mpirun",
    "mpi.mixed": "several kinds of MPI",
    "openmp.no_libiomp5": "an IPEX environment without Intel's OpenMP library",
    "allocator.missing": "no fast memory allocator is there",
    "tools.missing": "a program we need is not there",
    "tools.no_ssh": "node0 has no ssh to start the others with",
}

FIRST: Final = (3, 9)
LAST: Final = (3, 13)
"""Which Pythons the newest IPEX has wheels for."""
_OUR_FLOOR: Final = (3, 8)
NEWER_GLIBC: Final = (2, 28)
OLDEST_GLIBC: Final = (2, 17)
_32_BITS: Final = ("i386", "i486", "i586", "i686")
_WITHOUT_ROOT: Final = (
    "without root: curl -LsSf https://astral.sh/uv/install.sh | sh && ~/.local/bin/uv python install 3.12"
)


def libc(facts: Facts) -> Iterator[Finding]:
    system = facts.system
    version = minor_of(system.libc_version)
    if system.libc == "musl":
        yield Finding(
            "libc.musl",
            "fail",
            "This system's C library is musl (Alpine): PyTorch, IPEX and Intel MPI are built for glibc alone",
            "use a glibc system, such as Debian, Ubuntu or Rocky Linux, or a container of one",
        )
    elif system.libc == "glibc" and version is not None and version < OLDEST_GLIBC:
        yield Finding(
            "libc.too_old",
            "fail",
            f"glibc {system.libc_version}: every PyTorch and IPEX wheel needs 2.17 or newer, so none can be loaded "
            "here",
            "a newer system, or a container of one",
        )
    elif system.libc == "glibc" and version is not None and version < NEWER_GLIBC:
        yield Finding(
            "libc.old",
            "warn",
            f"glibc {system.libc_version}: the newest that run here are IPEX 2.5 and, without IPEX, PyTorch 2.6; "
            "anything later needs glibc 2.28",
            "a newer system or container for newer ones: RHEL 8, Ubuntu 20.04, Debian 10 or later",
        )


def usable(facts: Facts) -> tuple[Python, ...]:
    """The interpreters the newest IPEX has wheels for."""
    return tuple(python for python in _running(facts) if python.minor and FIRST <= python.minor <= LAST)


def _running(facts: Facts) -> list[Python]:
    return [
        python
        for python in facts.software.pythons
        if python.minor and python.libc != "musl" and python.arch not in _32_BITS
    ]


def pythons(facts: Facts) -> Iterator[Finding]:
    if not facts.system.is_linux or facts.system.libc == "musl" or not quoted_output(facts, "programs"):
        return
    running = _running(facts)
    minors = sorted({python.minor for python in running if python.minor})
    said = few([f"{major}.{minor}" for major, minor in minors])
    get = _get_python(facts)
    if not minors:
        yield Finding(
            "python.none",
            "fail",
            "No Python 3 that runs: nothing can be installed or started here. Any of 3.9 to 3.13 will do",
            get,
        )
    elif minors[-1] < FIRST:
        level: Level = "warn" if minors[-1] >= _OUR_FLOOR else "fail"
        yield Finding(
            "python.too_old",
            level,
            f"Python {said} only: "
            + (
                "the newest for it are IPEX 2.4 and PyTorch 2.4; "
                if level == "warn"
                else "no stack of ours runs on it; "
            )
            + "IPEX 2.8 needs one of 3.9 to 3.13",
            get,
        )
    elif not usable(facts):
        yield Finding(
            "python.too_new",
            "warn",
            f"Python {said}, and none of 3.9 to 3.13: IPEX has no wheels for it; stock PyTorch with gloo has",
            f"{_WITHOUT_ROOT}; or ipexctl install --stack torch, without IPEX",
        )


def _get_python(facts: Facts) -> str:
    """CentOS 7 has no package new enough."""
    if (facts.system.distro_version or "").startswith("7") and facts.system.distro_id in ("centos", "rhel"):
        return _WITHOUT_ROOT
    dnf = "python3" if facts.system.distro_id == "fedora" else "python3.11"
    return f"{package_command(facts, 'python3 python3-venv', dnf, 'python311')}; {_WITHOUT_ROOT}"


def venv(facts: Facts) -> Iterator[Finding]:
    found = usable(facts)
    if not found or any(python.venv is not False for python in found):
        return
    first = found[0]
    minor = ".".join(str(part) for part in first.minor or FIRST)
    yield Finding(
        "python.no_venv",
        "warn",
        f"Python {minor} can't make environments (venv or ensurepip is packed apart): install has to bring its own way",
        package_command(facts, f"python{minor}-venv", f"python{minor}", f"python{minor.replace('.', '')}"),
    )


def broken(facts: Facts) -> Iterator[Finding]:
    if dead := [python.path[:50] for python in facts.software.pythons if python.version is None]:
        yield Finding(
            "python.broken",
            "info",
            f"{few(dead, 2)} is there and doesn't run: scripts that start it by name fail on this host",
            "nothing to do for ipexctl, which takes another; for other programs, install it again with what brought "
            "it (the system's packages, conda, uv)",
        )


def drift(facts: Facts) -> Iterator[Finding]:
    """What pip can't see, for IPEX and the bindings declare no torch: a later install changed one of them alone."""
    for env in facts.software.envs:
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
        elif fabric := _mpi_mismatch(env):
            yield fabric
        elif replaced := _replaced(env):
            yield replaced


def _replaced(env: Env) -> Finding | None:
    """What somebody's pip has changed since it was installed and verified; among the packages that are looked at."""
    record = read_record(env.record)
    if record is None:
        return None
    other = [
        f"{name} is {env.packages[name]}, installed was {version}"
        for name, version in record.packages.items()
        if name in env.packages and env.packages[name] != version
    ]
    if not other:
        return None
    return Finding(
        "env.drift",
        "warn",
        f"Environment {env.name[:40]} is not what was installed and verified: {few(other, 3)}",
        "ipexctl install again puts it right; packages of your own: ipexctl install --with",
    )


def _mpi_mismatch(env: Env) -> Finding | None:
    """Known of 2021.15, which pins it; other versions pin otherwise, or not at all."""
    if minor_of(env.oneccl) != (2021, 15) or minor_of(env.mpi) in (None, (2021, 15)):
        return None
    return Finding(
        "env.mpi_mismatch",
        "warn",
        f"Environment {env.name[:40]} has oneCCL {env.oneccl} with Intel MPI {env.mpi}: it needs 2021.15, and may "
        "crash at the first collective",
        "ipexctl install again; keep pip from changing impi-rt there",
    )


def dead_envs(facts: Facts) -> Iterator[Finding]:
    if not quoted_output(facts, "home"):
        return
    for env in facts.software.envs:
        if not env.runs:
            yield Finding(
                "env.broken",
                "warn",
                f"Environment {env.name[:40]} has lost its Python (removed or upgraded since): nothing in it starts",
                "ipexctl install, with the options it was made with, makes it anew on the hosts that need it, and "
                "only there",
            )


def mpis(facts: Facts) -> Iterator[Finding]:
    if not facts.system.is_linux or not quoted_output(facts, "programs"):
        return
    found = facts.software.mpis
    if not found and not any(env.mpi for env in facts.software.envs):
        yield Finding(
            "mpi.missing",
            "info",
            "No mpirun is installed: that is what starts ranks on all hosts",
            "nothing to do: ipexctl install brings Intel MPI with the environment, without root",
        )
    kinds = {"mpich": "MPICH", "openmpi": "Open MPI", "intel": "Intel MPI", "mvapich": "MVAPICH"}
    flavors = list(dict.fromkeys(kinds[mpi.flavor] for mpi in found if mpi.flavor in kinds))
    if len(flavors) > 1:
        yield Finding(
            "mpi.mixed",
            "info",
            f"{' and '.join(flavors)} are installed: an mpirun of one kind can't start ranks linked with another",
            "nothing to do under ipexctl run, which calls one by its path; --mpi PATH chooses",
        )


def libraries(facts: Facts) -> Iterator[Finding]:
    if not facts.system.is_linux or not quoted_output(facts, "programs"):
        return
    have = facts.software.libraries
    with_ipex = [env.name for env in facts.software.envs if env.ipex and not env.version("intel-openmp")]
    if with_ipex and "libiomp5" not in have:
        yield Finding(
            "openmp.no_libiomp5",
            "info",
            f"Environment {with_ipex[0][:40]} is without Intel's OpenMP library (libiomp5): IPEX runs with libgomp, "
            "often a little slower",
            "ipexctl install --with intel-openmp",
        )
    if "libtcmalloc" not in have and "libjemalloc" not in have:
        yield Finding(
            "allocator.missing",
            "info",
            "Neither tcmalloc nor jemalloc is there: memory for tensors is asked from the kernel more often, which "
            "costs time",
            package_command(facts, "libtcmalloc-minimal4", "gperftools-libs", "libtcmalloc4"),
        )


def tools(facts: Facts, context: HostContext) -> Iterator[Finding]:
    have = facts.environment.tools
    if not facts.system.is_linux or not quoted_output(facts, "programs") or not have:
        return
    missing = [name for name in ("tar", "sha256sum") if name not in have]
    if missing:
        yield Finding(
            "tools.missing",
            "warn",
            f"No {' and no '.join(missing)}: code and wheels can't be unpacked or checked here",
            package_command(facts, "tar coreutils", "tar coreutils", "tar coreutils"),
        )
    if context.node0 and not context.alone and "ssh" not in have:
        yield Finding(
            "tools.no_ssh",
            "fail",
            "No ssh on the first host: mpirun starts the ranks of all other hosts from here, over ssh",
            f"{package_command(facts, 'openssh-client', 'openssh-clients', 'openssh-clients')}; "
            "or put another host first in the hostfile",
        )


RULES: Final[tuple[Rule, ...]] = (libc, pythons, venv, broken, drift, dead_envs, mpis, libraries)
IN_CONTEXT: Final[tuple[RuleInContext, ...]] = (tools,)
