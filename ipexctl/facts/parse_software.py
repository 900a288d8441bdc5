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
        mpis=tuple(parse_mpi(line, said.first("path") or "") for line in said.all("mpi")),
        libraries=_libraries(said.all("library")),
        conda=said.first("conda"),
    )


def _python(line: str) -> Python:
    """`PATH VERSION venv|- BUILT`, or the path alone of one that doesn't run; BUILT is `311-x86_64-linux-gnu`."""
    path, version, can, built = [*line.split(" "), "", "", ""][:4]
    if not re.fullmatch(r"3\.\d+(\.\d+)*", version):
        return Python(path)
    parts = built.split("-")
    libc = re.match(r"musl|gnu", parts[-1])
    return Python(
        path=path,
        version=version,
        arch=parts[1] if len(parts) > 2 else None,
        libc=None if libc is None else "musl" if libc[0] == "musl" else "glibc",
        venv=can == "venv",
    )


def _envs(said: Answers) -> tuple[Env, ...]:
    home = said.first("home.path") or ""
    runs = set(said.all("env.runs"))
    pythons = dict(reversed(list(_by_env(said.all("env.python")))))
    records: defaultdict[str, list[str]] = defaultdict(list)
    packages: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for name, line in _by_env(said.all("env.record")):
        records[name].append(line)
    names: defaultdict[str, list[str]] = defaultdict(list)
    for name, link in _by_env(said.all("env.link")):
        names[name].append(link)
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
            names=tuple(names[name]),
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


def parse_mpi(line: str, login_path: str = "") -> Mpi:
    """Its path, and the first lines of what it says to --version."""
    path, _, banner = line.partition(" ")
    flavor: Flavor = next((name for pattern, name in _FLAVORS if re.search(pattern, banner)), "unknown")
    if flavor == "mpich" and "mvapich" in path.lower():
        flavor = "mvapich"
    version = re.search(r"(?:Version:?|\))\s*(\d+(?:\.\w+)*(?: Update \d+)?)", banner)
    return Mpi(
        path=path,
        flavor=flavor,
        # Intel's 2019 Update 7 is what its packages call 2019.7.
        version=version[1].replace(" Update ", ".") if version else None,
        on_path=dirname(path) in login_path.split(":"),
    )


def _libraries(paths: Iterable[str]) -> dict[str, tuple[str, ...]]:
    found: defaultdict[str, list[str]] = defaultdict(list)
    for path in paths:
        found[re.split(r"_minimal|\.so", basename(path))[0]].append(path)
    return {name: tuple(dict.fromkeys(where)) for name, where in found.items()}
