"""Judge libc, interpreters, environments, MPIs, libraries and homes, of one host and of several. Pure.

The limits of Python and glibc are the newest IPEX's. All hosts need the same path of the home, because MPI starts ranks
by one path. Other differences (distribution, libc, Pythons) usually don't matter for the stack.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ipexctl.doctor.finding import (
    ClusterContext,
    ClusterRule,
    Finding,
    HostContext,
    HostRule,
    Level,
    few,
    groups,
    odd_ones,
)
from ipexctl.facts.facts import Facts
from ipexctl.facts.software import (
    Env,
    Python,
    minor_of,
    package_command,
    python_without_root,
    ways_to_python,
)
from ipexctl.node.common.fix import Fix
from ipexctl.node.common.mpi import MPIS
from ipexctl.option_declaration import install_command
from ipexctl.stack.env.record import read_record

FIRST: Final = (3, 9)
LAST: Final = (3, 13)
"""Oldest and newest Python with wheels of the newest IPEX."""
_OLDEST_PYTHON: Final = (3, 8)
NEWER_GLIBC: Final = (2, 28)
OLDEST_GLIBC: Final = (2, 17)


def libc(host: HostContext) -> Iterator[Finding]:
    """Report a failure with musl, or with a glibc for which there are no wheels; warn of a glibc that is too old for
    newer stacks."""
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
            "use a newer system, or a container of one",
        )
    elif system.libc == "glibc" and version is not None and version < NEWER_GLIBC:
        yield Finding(
            "libc.old",
            "warn",
            f"glibc {system.libc_version}: the newest that run on this host are IPEX 2.5 and, without IPEX, PyTorch "
            "2.6; anything later needs glibc 2.28",
            "for newer versions use a newer system or container: RHEL 8, Ubuntu 20.04, Debian 10 or later",
        )


def supported_pythons(facts: Facts) -> tuple[Python, ...]:
    """Return the Pythons of the host for which the newest IPEX has wheels."""
    return tuple(python for python in facts.software.running_pythons if python.minor and FIRST <= python.minor <= LAST)


def pythons(host: HostContext) -> Iterator[Finding]:
    """Report a failure without a working Python 3, or with one that is too old for any stack; warn of an older one, and
    say if all are too new for IPEX."""
    if host.facts.system.libc == "musl" or not host.facts.has_finished("programs"):
        return
    running = host.facts.software.running_pythons
    minors = sorted({python.minor for python in running if python.minor})
    versions = few([f"{major}.{minor}" for major, minor in minors])
    fix = ways_to_python(host.facts.system)
    if not minors:
        yield Finding(
            "python.none",
            "fail",
            "There is no working Python 3: nothing can be installed or started on this host. Any of 3.9 to 3.13 is "
            "fine",
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
    elif not supported_pythons(host.facts):
        yield Finding(
            "python.too_new",
            "info",
            f"Python {versions}, but none of 3.9 to 3.13: PyTorch has wheels for it, IPEX does not",
            "nothing to do without IPEX; with it: " + python_without_root("3.12"),
        )


def venv(host: HostContext) -> Iterator[Finding]:
    """Warn if none of the supported Pythons can create environments."""
    supported = supported_pythons(host.facts)
    if not supported or any(python.venv is not False for python in supported):
        return
    first = supported[0]
    minor = ".".join(str(part) for part in first.minor or FIRST)
    yield Finding(
        "python.no_venv",
        "warn",
        f"Python {minor} can't create environments (venv or ensurepip is a separate package): install uses uv",
        package_command(host.facts.system, f"python{minor}-venv", f"python{minor}", f"python{minor.replace('.', '')}"),
    )


def broken_programs(host: HostContext) -> Iterator[Finding]:
    """Say which Pythons are installed but do not run."""
    if dead := [python.path[:50] for python in host.facts.software.pythons if python.version is None]:
        yield Finding(
            "python.broken",
            "info",
            f"{few(dead, 2)} is installed but doesn't run: scripts that start it by name fail on this host",
            "nothing to do for ipexctl, which uses another; for other programs, reinstall it with the tool that "
            "installed it (the system's packages, conda, uv)",
        )


def changed_packages(host: HostContext) -> Iterator[Finding]:
    """Report a failure if an environment's IPEX or bindings are for another torch; warn if its oneCCL needs another
    Intel MPI, or if packages have changed since its install. pip does not check these, because IPEX and the bindings
    don't declare torch as a dependency."""
    for env in host.facts.software.envs:
        torch = minor_of(env.torch)
        others = [("IPEX", env.ipex), ("oneCCL bindings", env.oneccl_bindings)]
        wrong = [f"{name} {version}" for name, version in others if torch and (minor_of(version) or torch) != torch]
        if wrong:
            yield Finding(
                "env.drift",
                "fail",
                f"Environment {env.name[:40]} has torch {env.torch} with {' and '.join(wrong)}: these fit only the "
                "torch they were built for, and fail at import",
                Fix("run `ipexctl install` again, and don't change torch there with pip"),
            )
        elif mismatch := _mpi_mismatch(env):
            yield mismatch
        elif replaced := _replaced(env):
            yield replaced


def _replaced(env: Env) -> Finding | None:
    """Warn if packages of an environment have other versions than its record; return None if they have the same."""
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
        f"Environment {env.name[:40]} has changed since it was installed and verified: {few(changed, 3)}",
        Fix("run `ipexctl install` again to restore it; add your own packages with --with"),
    )


def _mpi_mismatch(env: Env) -> Finding | None:
    """Warn of oneCCL 2021.15 with another Intel MPI; return None for other versions, because only this one is known to
    need its own."""
    if minor_of(env.oneccl) != (2021, 15) or minor_of(env.mpi) in (None, (2021, 15)):
        return None
    return Finding(
        "env.mpi_mismatch",
        "warn",
        f"Environment {env.name[:40]} has oneCCL {env.oneccl} with Intel MPI {env.mpi}: oneCCL needs 2021.15 and may "
        "crash at the first collective",
        Fix("run `ipexctl install` again, and don't change impi-rt there with pip"),
    )


def dead_envs(host: HostContext) -> Iterator[Finding]:
    """Warn of environments whose Python is gone, or which have lost files of packages."""
    if not host.facts.has_finished("home"):
        return
    for env in host.facts.software.envs:
        name = env.name[:40]
        if not env.runs:
            problem = f"The Python of environment {name} is gone (removed or upgraded), so nothing in it starts"
        elif env.lost:
            problem = f"Environment {name} has lost the files of {few(env.lost, 3)}: scripts that import it fail"
        else:
            continue
        fix = Fix("to rebuild it on the hosts that need it: `ipexctl install`, with the same options")
        yield Finding("env.broken", "warn", problem, fix)


def mpis(host: HostContext) -> Iterator[Finding]:
    """Say that there is no MPI, neither on the host nor in an environment, or that there are several kinds."""
    if not host.facts.has_finished("programs"):
        return
    on_host = host.facts.software.mpis
    records = (read_record(env.record) for env in host.facts.software.envs if not env.mpi)
    if not on_host and not any(env.mpi for env in host.facts.software.envs) and not any(r and r.mpi for r in records):
        yield Finding(
            "mpi.missing",
            "info",
            "No mpirun is installed; mpirun starts the ranks on all hosts",
            Fix("nothing to do: install puts Intel MPI into the environment, without root"),
        )
    kinds: dict[str, str] = {"mvapich": "MVAPICH", **{mpi.flavor: mpi.title for mpi in MPIS}}
    flavors = list(dict.fromkeys(kinds[mpi.flavor] for mpi in on_host if mpi.flavor in kinds))
    if len(flavors) > 1:
        yield Finding(
            "mpi.mixed",
            "info",
            f"{' and '.join(flavors)} are installed: an mpirun of one kind can't start ranks linked with another",
            "nothing to do under ipexctl run, which starts an mpirun by its path; --mpi PATH chooses another",
        )


def libraries(host: HostContext) -> Iterator[Finding]:
    """Say that Intel's OpenMP library is missing beside IPEX, or that there is neither tcmalloc nor jemalloc."""
    if not host.facts.has_finished("programs"):
        return
    have = host.facts.software.libraries
    with_ipex = [env.name for env in host.facts.software.envs if env.ipex and not env.packages.get("intel-openmp")]
    if with_ipex and "libiomp5" not in have:
        yield Finding(
            "openmp.no_libiomp5",
            "info",
            f"Environment {with_ipex[0][:40]} has no Intel OpenMP library (libiomp5): IPEX uses libgomp, which is "
            "often a little slower",
            Fix("`ipexctl install --with intel-openmp`"),
        )
    if "libtcmalloc" not in have and "libjemalloc" not in have:
        yield Finding(
            "allocator.missing",
            "info",
            "Neither tcmalloc nor jemalloc is installed: ranks that `ipexctl run` did not start request memory from "
            "the kernel again at every step, which takes time",
            package_command(host.facts.system, "libtcmalloc-minimal4", "gperftools-libs", "libtcmalloc4"),
        )


def compiler(host: HostContext) -> Iterator[Finding]:
    """Say that Python's headers or g++ are missing, which torch.compile needs."""
    if not host.facts.has_finished("programs") or not host.facts.environment.tools:
        return
    software = host.facts.software
    minors = {python for env in software.envs if (python := minor_of(env.python))}
    known = [python for python in software.pythons if python.headers is not None]
    used = [python for python in known if python.minor in minors] or known
    has_headers = any(python.headers for python in used)
    if not used:
        return
    if not has_headers:
        yield Finding(
            "compiler.no_headers",
            "info",
            f"Python {few(sorted({python.version or '' for python in used}))} has no headers (Python.h), which "
            "torch.compile needs with any C++ compiler",
            package_command(host.facts.system, "python3-dev", "python3-devel", "python3-devel"),
        )
    if "g++" not in host.facts.environment.tools and not any("ziglang" in env.packages for env in software.envs):
        yield Finding(
            "compiler.missing",
            "info",
            "There is no g++, which torch.compile needs" + "; Python.h is there" * has_headers,
            Fix("only for scripts that compile: `ipexctl install --with-compiler`"),
        )


def tools(host: HostContext) -> Iterator[Finding]:
    """Warn if tar or sha256sum is missing; report a failure if node0 has no ssh to start the ranks of the others."""
    have = host.facts.environment.tools
    if not host.facts.has_finished("programs") or not have:
        return
    missing = [name for name in ("tar", "sha256sum") if name not in have]
    if missing:
        yield Finding(
            "tools.missing",
            "warn",
            f"No {' and no '.join(missing)}: code and wheels can't be unpacked or verified on this host",
            package_command(host.facts.system, "tar coreutils", "tar coreutils", "tar coreutils"),
        )
    if host.node0 and not host.alone and "ssh" not in have:
        yield Finding(
            "tools.no_ssh",
            "fail",
            "No ssh on node0: mpirun on node0 starts the ranks of all other hosts by ssh",
            package_command(host.facts.system, "openssh-client", "openssh-clients", "openssh-clients")
            + "; or put another host first in the hostfile",
        )


HOST_RULES: Final[tuple[HostRule, ...]] = (
    libc, pythons, venv, broken_programs, changed_packages, dead_envs, mpis, libraries, compiler, tools,
)  # fmt: skip


def homes(cluster: ClusterContext) -> Iterator[Finding]:
    """Report a failure if ipexctl's home has different paths on the hosts."""
    by_path = groups(cluster.runnable, lambda node: node.facts.home.path if node.facts.home else None)
    if len(by_path) > 1:
        usual, others, names = odd_ones(by_path)
        yield Finding(
            "cluster.homes_differ",
            "fail",
            f"ipexctl's home is {few([path[:40] for path in others], 1)}, but {usual[:40]} on the other hosts: MPI "
            "starts ranks by the same path on all hosts",
            "use --home DIR with an absolute path that you may write to on every host, such as /scratch/ME/ipexctl",
            names,
        )


def shared_homes(cluster: ClusterContext) -> Iterator[Finding]:
    """Say which hosts share one home."""
    by_store = groups(cluster.runnable, lambda node: node.facts.home.store if node.facts.home else None)
    for names in by_store.values():
        if len(names) > 1:
            yield Finding(
                "cluster.homes_shared",
                "info",
                f"{'All' if len(names) == len(cluster.runnable) else 'These'} {len(names)} hosts share one home: "
                "an install or a copy on one host is there for all of them",
                "nothing to do; if Python starts slowly from there, use --home DIR on each host's own disk",
                tuple(names),
            )


def different_pythons(cluster: ClusterContext) -> Iterator[Finding]:
    """Say which Python all hosts have if their Pythons differ; warn of the hosts that lack the usual one if there is
    none for all."""
    minors = {
        node.name: frozenset(python.minor for python in supported_pythons(node.facts) if python.minor)
        for node in cluster.runnable
    }
    minors = {name: of_host for name, of_host in minors.items() if of_host}
    if len(set(minors.values())) < 2:
        return
    every = frozenset.union(*minors.values())
    common = frozenset.intersection(*minors.values())
    if common:
        best = max(common)
        yield Finding(
            "cluster.mixed_python",
            "info",
            f"Not every host has the same Pythons; {_dotted(best)} is the newest on all of them, so install uses it",
            f"nothing to do; --python {_dotted(best)} makes that choice explicit",
            tuple(minors),
        )
        return
    usual = max(every, key=lambda minor: (sum(minor in of_host for of_host in minors.values()), minor))
    without = tuple(name for name, of_host in minors.items() if usual not in of_host)
    yield Finding(
        "cluster.mixed_python",
        "warn",
        f"No Python of 3.9 to 3.13 is on all hosts: these hosts lack {_dotted(usual)}, which most have, and an "
        "environment needs the same Python on all hosts",
        Fix(
            f"as root: `apt-get install -y python{_dotted(usual)} python{_dotted(usual)}-venv` (dnf install -y "
            f"python{_dotted(usual)}); "
        )
        + python_without_root(_dotted(usual)),
        without,
    )


def _dotted(minor: tuple[int, int]) -> str:
    return f"{minor[0]}.{minor[1]}"


def different_libcs(cluster: ClusterContext) -> Iterator[Finding]:
    """Warn of hosts whose older glibc limits all hosts to older stacks; otherwise only say that the versions differ."""
    by_version = groups(
        cluster.runnable,
        lambda node: minor_of(node.facts.system.libc_version) if node.facts.system.libc == "glibc" else None,
    )
    if len(by_version) < 2:
        return
    oldest, newest = min(by_version), max(by_version)
    if oldest < NEWER_GLIBC <= newest:
        versions = {name: version for version, names in by_version.items() for name in names}
        old = tuple(node.name for node in cluster.runnable if versions.get(node.name, NEWER_GLIBC) < NEWER_GLIBC)
        yield Finding(
            "cluster.mixed_libc",
            "warn",
            f"glibc {_dotted(oldest)}, but up to {_dotted(newest)} elsewhere: these hosts limit all hosts to IPEX 2.5 "
            "or PyTorch 2.6, because all must run one stack",
            "train without them (--limit '!NAME,!NAME'), or use a container with a newer system on all hosts",
            old,
        )
    else:
        yield Finding(
            "cluster.mixed_libc",
            "info",
            f"glibc {_dotted(oldest)}, but up to {_dotted(newest)} elsewhere: the same stacks run on all; build "
            "your own extensions on the hosts with the older glibc",
            "nothing to do",
            tuple(by_version[oldest]),
        )


def distros(cluster: ClusterContext) -> Iterator[Finding]:
    """Say that the hosts have different distributions."""
    by_distro = groups(cluster.runnable, lambda node: node.facts.system.distro)
    if len(by_distro) > 1:
        usual, others, names = odd_ones(by_distro)
        yield Finding(
            "cluster.mixed_distro",
            "info",
            f"{few([distro[:34] for distro in others], 2)}, but {usual[:34]} on the other hosts: system libraries and "
            "package names differ",
            "nothing to do: the stack brings its own libraries",
            names,
        )


_PARTS: Final = ("torch", "ipex", "oneccl_bindings", "oneccl", "mpi", "python")
_NAMES: Final = {
    "ipex": "IPEX",
    "oneccl_bindings": "oneCCL bindings",
    "oneccl": "oneCCL",
    "mpi": "Intel MPI",
    "python": "Python",
}


def _envs(cluster: ClusterContext) -> dict[str, dict[str, Env]]:
    """Return name of an environment → host → the environment there."""
    by_name: dict[str, dict[str, Env]] = {}
    for node in cluster.runnable:
        for env in node.facts.software.envs:
            by_name.setdefault(env.name, {})[node.name] = env
    return by_name


def stacks(cluster: ClusterContext) -> Iterator[Finding]:
    """Report a failure if an environment has other versions on some hosts than on most."""
    envs = _envs(cluster)
    for name, by_host in envs.items():
        having = tuple(node for node in cluster.runnable if node.name in by_host)
        versions = {host: tuple(getattr(env, part) for part in _PARTS) for host, env in by_host.items()}
        by_versions = groups(having, lambda node, of=versions: of[node.name])  # type: ignore[misc]
        if len(by_versions) < 2:
            continue
        usual, others, names = odd_ones(by_versions)
        at = next(position for position, value in enumerate(usual) if value != others[0][position])
        part = _NAMES.get(_PARTS[at], _PARTS[at])
        torch, ipex = minor_of(usual[0]), minor_of(usual[1])
        version = ("--ipex", _dotted(ipex)) if ipex else ("--torch", _dotted(torch)) if torch else ()
        install = install_command(name[:40]).with_words(*version)
        yield Finding(
            "cluster.mixed_stacks",
            "fail",
            f"Environment {name[:30]} differs: {part} is {others[0][at] or 'missing'} here and "
            f"{usual[at] or 'missing'} on the other hosts; ranks with different versions hang or crash at the first "
            "collective",
            Fix("give all hosts the version that most have: {install}", install=install),
            names,
        )


def missing_envs(cluster: ClusterContext) -> Iterator[Finding]:
    """Say which hosts lack an environment that others have."""
    known = tuple(node for node in cluster.runnable if node.facts.has_finished("home"))
    for name, by_host in _envs(cluster).items():
        without = tuple(node.name for node in known if node.name not in by_host)
        if without:
            yield Finding(
                "cluster.env_missing",
                "info",
                f"Environment {name[:40]} is missing here, but {len(by_host)} other "
                f"host{'s have' if len(by_host) > 1 else ' has'} it: a run that uses it would fail to start",
                Fix("`ipexctl install`"),
                without,
            )


def _first_mpi(node: HostContext) -> tuple[str, str] | None:
    """Return kind and version of the first mpirun on PATH; None if there is none that is known."""
    first = next((mpi for mpi in node.facts.software.mpis if mpi.on_path and mpi.flavor != "unknown"), None)
    return (first.flavor, first.version or "") if first else None


def different_mpis(cluster: ClusterContext) -> Iterator[Finding]:
    """Say that the first mpirun on PATH is another kind or version on some hosts."""
    by_mpi = groups(cluster.runnable, _first_mpi)
    if len(by_mpi) > 1:
        usual, others, names = odd_ones(by_mpi)
        yield Finding(
            "cluster.mixed_mpi",
            "info",
            f"The first mpirun on PATH is {' '.join(others[0])} here and {' '.join(usual)} on the other hosts: neither "
            "can start the other's daemons",
            "nothing to do under ipexctl run, which uses the mpirun of the environment; else --mpi PATH",
            names,
        )


CLUSTER_RULES: Final[tuple[ClusterRule, ...]] = (
    homes, shared_homes, stacks, missing_envs, different_pythons, different_libcs, distros, different_mpis,
)  # fmt: skip
