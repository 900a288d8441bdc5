"""Parse what the probe prints about Pythons, environments, MPIs and libraries, and name the commands that install a
program there. Nothing here touches a host. An MPI's flavor comes from its --version, because every MPI's program is
called mpirun.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from posixpath import basename, dirname
from typing import Final, Literal, NamedTuple

from ipexctl.facts.probe import Answers
from ipexctl.facts.system_facts import System
from ipexctl.node.common.fix import Fix, join_fixes
from ipexctl.node.common.mpi import MPICH, MpiFlavor, recognised

_32_BITS: Final = ("i386", "i486", "i586", "i686")
_APT: Final = frozenset({"debian", "ubuntu", "linuxmint", "pop", "raspbian"})
_DNF: Final = frozenset({"rhel", "centos", "rocky", "almalinux", "fedora", "ol", "amzn"})
_ZYPPER: Final = frozenset({"sles", "sled", "opensuse-leap", "opensuse-tumbleweed"})


def package_command(system: System, apt: str, dnf: str, zypper: str) -> str:
    """Return the fix that installs a package. For an unknown distribution, it has no command and names Debian's
    package."""
    distro = system.distro_id
    if distro in _APT:
        return Fix(f"as root: `apt-get install -y {apt}`")
    if distro in _DNF:
        tool = "yum" if (system.distro_version or "").startswith("7") else "dnf"
        return Fix(f"as root: `{tool} install -y {dnf}`")
    if distro in _ZYPPER:
        return Fix(f"as root: `zypper install -y {zypper}`")
    return f"as root, with this system's package manager, install {apt}"


def python_without_root(version: str) -> str:
    """Return the advice that gives an account this Python."""
    return Fix(
        "without root, if you trust astral.sh: `curl -LsSf https://astral.sh/uv/install.sh | sh && ~/.local/bin/uv "
        f"python install {version}`"
    )


def ways_to_python(system: System) -> str:
    """Return the ways to get a newer Python. CentOS 7 has no package that is new enough."""
    if (system.distro_version or "").startswith("7") and system.distro_id in ("centos", "rhel"):
        return python_without_root("3.12")
    dnf = "python3" if system.distro_id == "fedora" else "python3.11"
    package = package_command(system, "python3 python3-venv", dnf, "python311")
    return join_fixes((package, python_without_root("3.12")))


FoundFlavor = Literal[MpiFlavor, "mvapich", "unknown"]
"""ipexctl can't start ranks with MVAPICH, whose banner is like MPICH's."""

GLOO_MENDED: Final = (2, 14)
"""First torch whose gloo checks offset and length of a message separately (pytorch/gloo#509). In the wheels, 2.13.0 has
the check whose sum can wrap around, 2.14.0 and 2.15.0 have the new one.
"""


def minor_of(version: str | None) -> tuple[int, int] | None:
    """Return (3, 11) of `3.11.2`; None for text that is no version."""
    parts = (version or "").split("+")[0].split(".")
    if len(parts) < 2 or not (parts[0].isdigit() and parts[1].isdigit()):
        return None
    return int(parts[0]), int(parts[1])


def has_gloo_overflow(torch: str) -> bool:
    """True if anyone who reaches a gloo port can write into the process; False if the version can't be parsed."""
    return (minor_of(torch) or GLOO_MENDED) < GLOO_MENDED


class Python(NamedTuple):
    path: str
    version: str | None = None
    arch: str | None = None
    libc: Literal["glibc", "musl"] | None = None
    venv: bool | None = None
    """True if `-m venv` can create an environment with pip."""
    headers: bool | None = None
    """True if its Python.h is installed."""

    @property
    def minor(self) -> tuple[int, int] | None:
        """(3, 11) of 3.11.2; None if the version is unknown."""
        return minor_of(self.version)


class Env(NamedTuple):
    name: str
    path: str
    python: str | None = None
    """`3.11`, from the path of the environment's packages."""
    runs: bool = False
    packages: Mapping[str, str] = {}
    """Normalized name → version, for the packages of a stack."""
    record: str = ""
    """Text of the environment's env.json; empty if there is none."""
    names: tuple[str, ...] = ()
    """Names of links to the environment."""
    lost: tuple[str, ...] = ()
    """Modules of the environment's packages whose directory is missing."""

    @property
    def torch(self) -> str | None:
        """Version of PyTorch; None without it."""
        return self.packages.get("torch")

    @property
    def ipex(self) -> str | None:
        """Version of Intel Extension for PyTorch; None without it."""
        return self.packages.get("intel-extension-for-pytorch")

    @property
    def oneccl_bindings(self) -> str | None:
        """Version of oneCCL's bindings; None without them."""
        return self.packages.get("oneccl-bind-pt")

    @property
    def oneccl(self) -> str | None:
        """Version of oneCCL; None without it."""
        return self.packages.get("oneccl")

    @property
    def mpi(self) -> str | None:
        """Version of Intel MPI; None without it."""
        return self.packages.get("impi-rt")


class Mpi(NamedTuple):
    path: str
    flavor: FoundFlavor = "unknown"
    version: str | None = None
    on_path: bool = False
    """True if a command over ssh finds this mpirun in PATH."""


class Software(NamedTuple):
    pythons: tuple[Python, ...] = ()
    envs: tuple[Env, ...] = ()
    mpis: tuple[Mpi, ...] = ()
    libraries: Mapping[str, tuple[str, ...]] = {}
    """`libgomp`, `libiomp5`, `libtcmalloc` or `libjemalloc` → paths."""
    conda: str | None = None

    @property
    def running_pythons(self) -> tuple[Python, ...]:
        """Return the Pythons that wheels of PyTorch may fit: 64 bits, and not musl."""
        return tuple(
            python for python in self.pythons if python.minor and python.libc != "musl" and python.arch not in _32_BITS
        )

    @property
    def agent_pythons(self) -> tuple[str, ...]:
        """Return the paths of the Pythons that can run the agent."""
        return tuple(python.path for python in self.pythons if (python.minor or (0, 0)) >= (3, 8))


def parse_software(answers: Answers) -> Software:
    """Return the Pythons, environments, MPIs and libraries that the probe found."""
    return Software(
        pythons=tuple(_python(line) for line in answers.all("python")),
        envs=_envs(answers),
        mpis=tuple(_mpi(line, answers.first("path") or "") for line in answers.all("mpi")),
        libraries=_libraries(answers.all("library")),
        conda=answers.first("conda"),
    )


def _python(line: str) -> Python:
    """Return the Python of a line `PATH VERSION VENV BUILT HEADERS`; with only its path if the version is not one of
    Python 3."""
    path, version, venv_support, built, headers = [*line.split(" "), "", "", "", ""][:5]
    if not re.fullmatch(r"3\.\d+(\.\d+)*", version):
        return Python(path)
    parts = built.split("-")
    libc = re.match(r"musl|gnu", parts[-1])
    return Python(
        path=path,
        version=version,
        arch=parts[1] if len(parts) > 2 else None,
        libc=None if libc is None else "musl" if libc[0] == "musl" else "glibc",
        venv=venv_support == "venv",
        headers=headers == "headers" if headers else None,
    )


def _envs(answers: Answers) -> tuple[Env, ...]:
    """Return the environments of the host's home, in the order in which the probe names them."""
    home = answers.first("home.path") or ""
    runs = set(answers.all("env.runs"))
    pythons, packages, records, links, lost = (
        _by_env(answers.all(f"env.{key}")) for key in ("python", "package", "record", "link", "lost")
    )
    return tuple(
        Env(
            name=name,
            path=f"{home}/envs/{name}",
            python=next(iter(pythons[name]), None),
            runs=name in runs,
            packages=dict(filter(None, map(_package, packages[name]))),
            record="\n".join(records[name]),
            names=tuple(links[name]),
            lost=tuple(lost[name]),
        )
        for name in dict.fromkeys(answers.all("env"))
    )


def _by_env(lines: Iterable[str]) -> Mapping[str, list[str]]:
    """Group lines `ENVIRONMENT REST` by environment."""
    rests: defaultdict[str, list[str]] = defaultdict(list)
    for line in lines:
        name, _, rest = line.partition(" ")
        rests[name].append(rest)
    return rests


def _package(directory: str) -> tuple[str, str] | None:
    """Return the normalized name and the version of `Some_name-1.0.dist-info`."""
    package, _, version = directory.removesuffix(".dist-info").rpartition("-")
    return (re.sub(r"[-_.]+", "-", package).lower(), version) if package else None


def _mpi(line: str, login_path: str) -> Mpi:
    path, _, banner = line.partition(" ")
    return parse_mpi(path, banner, on_path=dirname(path) in login_path.split(":"))


def parse_mpi(path: str, banner: str, *, on_path: bool = False) -> Mpi:
    """Return the MPI whose mpirun prints this banner; its flavor is `unknown` for a banner that no row knows."""
    row = recognised(banner)
    is_mvapich = "MVAPICH" in banner or (row is MPICH and "mvapich" in path.lower())
    flavor: FoundFlavor = "mvapich" if is_mvapich else row.flavor if row is not None else "unknown"
    version = re.search(r"(?:Version:?|\))\s*(\d+(?:\.\w+)*(?: Update \d+)?)", banner)
    return Mpi(
        path=path,
        flavor=flavor,
        # Intel's packages call "2019 Update 7" 2019.7.
        version=version[1].replace(" Update ", ".") if version else None,
        on_path=on_path,
    )


def _libraries(paths: Iterable[str]) -> dict[str, tuple[str, ...]]:
    libraries: defaultdict[str, list[str]] = defaultdict(list)
    for path in paths:
        libraries[re.split(r"_minimal|\.so", basename(path))[0]].append(path)
    return {name: tuple(dict.fromkeys(files)) for name, files in libraries.items()}
