"""The probe's lines about interpreters, environments and MPIs, as Software. Pure."""

from __future__ import annotations

import re
from collections import defaultdict
from posixpath import basename, dirname
from typing import TYPE_CHECKING, Final

from ipexctl.facts.software import Env, Mpi, Python, Software

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ipexctl.facts.answers import Answers
    from ipexctl.facts.software import Flavor


def parse_software(said: Answers) -> Software:
    return Software(
        pythons=tuple(_python(line) for line in said.all("python")),
        envs=_envs(said),
        mpis=tuple(_mpi(line, said.first("path") or "") for line in said.all("mpi")),
        libraries=_libraries(said.all("library")),
        conda=said.first("conda"),
    )


def _python(line: str) -> Python:
    """`PATH VERSION ARCH IMPLEMENTATION MULTIARCH VENV REAL`, or the path alone of one that doesn't run."""
    words = line.split(" ", 6)
    if len(words) < 7 or not re.fullmatch(r"\d+\.\d+\.\d+", words[1]):
        return Python(words[0])
    path, version, arch, implementation, multiarch, venv, real = words
    return Python(
        path=path,
        version=version,
        real=real,
        arch=arch,
        libc="musl" if "musl" in multiarch else "glibc" if "gnu" in multiarch else None,
        venv=venv == "venv",
        implementation=implementation,
    )


def _envs(said: Answers) -> tuple[Env, ...]:
    home = said.first("home.path") or ""
    runs = set(said.all("env.runs"))
    pythons = dict(reversed(list(_by_env(said.all("env.python")))))
    records: defaultdict[str, list[str]] = defaultdict(list)
    packages: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for name, line in _by_env(said.all("env.record")):
        records[name].append(line)
    for name, directory in _by_env(said.all("env.package")):
        package, _, version = directory.removesuffix(".dist-info").rpartition("-")
        if package:
            packages[name][re.sub(r"[-_.]+", "-", package).lower()] = version
    return tuple(
        Env(
            name=name,
            path=f"{home}/envs/{name}",
            python=pythons.get(name),
            runs=name in runs,
            packages=packages[name],
            record="\n".join(records[name]),
        )
        for name in dict.fromkeys(said.all("env"))
    )


def _by_env(lines: Iterable[str]) -> Iterable[tuple[str, str]]:
    for line in lines:
        name, _, rest = line.partition(" ")
        yield name, rest


_FLAVORS: Final[tuple[tuple[str, Flavor], ...]] = (
    (r"Intel\(R\) MPI Library", "intel"),
    (r"\((Open MPI|OpenRTE|PRRTE|Open ?PMIx?)\)", "openmpi"),
    (r"MVAPICH", "mvapich"),
    (r"HYDRA build details", "mpich"),
)


def _mpi(line: str, login_path: str) -> Mpi:
    path, _, banner = line.partition(" ")
    flavor: Flavor = next((name for pattern, name in _FLAVORS if re.search(pattern, banner)), "unknown")
    if flavor == "mpich" and "mvapich" in path.lower():
        flavor = "mvapich"
    version = re.search(r"(?:Version:?|\))\s*(\d+(?:\.\w+)*)", banner)
    return Mpi(
        path=path,
        flavor=flavor,
        version=version[1] if version else None,
        on_path=dirname(path) in login_path.split(":"),
    )


def _libraries(paths: Iterable[str]) -> dict[str, tuple[str, ...]]:
    found: defaultdict[str, list[str]] = defaultdict(list)
    for path in paths:
        found[re.split(r"_minimal|\.so", basename(path))[0]].append(path)
    return {name: tuple(dict.fromkeys(where)) for name, where in found.items()}
