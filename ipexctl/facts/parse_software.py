"""Parses the probe's lines about Pythons, environments and MPIs. Pure."""

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


def parse_software(answers: Answers) -> Software:
    return Software(
        pythons=tuple(_python(line) for line in answers.all("python")),
        envs=_envs(answers),
        mpis=tuple(parse_mpi(line, answers.first("path") or "") for line in answers.all("mpi")),
        libraries=_libraries(answers.all("library")),
        conda=answers.first("conda"),
    )


def _python(line: str) -> Python:
    """`PATH VERSION venv|- BUILT`, or the path alone if it doesn't run; BUILT is `311-x86_64-linux-gnu`."""
    path, version, venv_support, built = [*line.split(" "), "", "", ""][:4]
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
    )


def _envs(answers: Answers) -> tuple[Env, ...]:
    home = answers.first("home.path") or ""
    runs = set(answers.all("env.runs"))
    pythons = dict(reversed(list(_by_env(answers.all("env.python")))))
    records: defaultdict[str, list[str]] = defaultdict(list)
    packages: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for name, line in _by_env(answers.all("env.record")):
        records[name].append(line)
    names: defaultdict[str, list[str]] = defaultdict(list)
    for name, link in _by_env(answers.all("env.link")):
        names[name].append(link)
    for name, directory in _by_env(answers.all("env.package")):
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
        for name in dict.fromkeys(answers.all("env"))
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
    """A line with the path of an mpirun and the first lines of its --version."""
    path, _, banner = line.partition(" ")
    flavor: Flavor = next((name for pattern, name in _FLAVORS if re.search(pattern, banner)), "unknown")
    if flavor == "mpich" and "mvapich" in path.lower():
        flavor = "mvapich"
    version = re.search(r"(?:Version:?|\))\s*(\d+(?:\.\w+)*(?: Update \d+)?)", banner)
    return Mpi(
        path=path,
        flavor=flavor,
        # Intel's packages call 2019 Update 7 2019.7.
        version=version[1].replace(" Update ", ".") if version else None,
        on_path=dirname(path) in login_path.split(":"),
    )


def _libraries(paths: Iterable[str]) -> dict[str, tuple[str, ...]]:
    libraries: defaultdict[str, list[str]] = defaultdict(list)
    for path in paths:
        libraries[re.split(r"_minimal|\.so", basename(path))[0]].append(path)
    return {name: tuple(dict.fromkeys(found)) for name, found in libraries.items()}
