"""What the user asked for: what can't be had, which backend, and whose value of a variable wins. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ipexctl.hosts.nodeset import fold
from ipexctl.launch.plan import LaunchRefusal, Setting
from ipexctl.launch.rank_env import RANK_NAMES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ipexctl.launch.plan import Backend
    from ipexctl.launch.request import Export, LaunchOptions, LaunchRequest

_MOST_RANKS: Final = 100_000
_MPIS: Final = ("auto", "intel", "openmpi", "mpich")


def find_obstacle(request: LaunchRequest) -> LaunchRefusal | None:
    """What is wrong with the request itself, whatever the plan would be."""
    if not request.hosts:
        return LaunchRefusal("there is no host to run on", "name some: --hosts SPEC, or -H FILE")
    unknown = tuple(host.name for host in request.hosts if host.name not in request.facts)
    if unknown:
        return LaunchRefusal(f"nothing is known of {fold(unknown)}", "see: ipexctl doctor", unknown)
    return impossible(request.options) or _addresses(request)


def impossible(options: LaunchOptions) -> LaunchRefusal | None:
    """What is wrong with the options, whatever the hosts are."""
    counts = {"-n": options.n, "--ppn": options.ppn, "--omp": options.omp, "--ccl-workers": options.ccl_workers}
    for option, value in counts.items():
        if value is not None and not 0 < value <= _MOST_RANKS:
            return LaunchRefusal(f"{option} {value} is not possible", f"{option} 1, or more")
    if options.master_port is not None and not 0 < options.master_port < 1 << 16:
        return LaunchRefusal(f"--master-port {options.master_port} is no port", "a number from 1024 to 65535")
    if "/" not in options.mpi and options.mpi not in _MPIS:
        return LaunchRefusal(f"--mpi {options.mpi} is no MPI we know", f"{', '.join(_MPIS)}, or an mpirun's path")
    for export in options.exports:
        if export.name in RANK_NAMES:
            return LaunchRefusal(
                f"{export.name} can't be exported: each rank has one of its own, and one for all would hang them",
                f"leave {export.name} out of {export.said}",
            )
    return None


def _addresses(request: LaunchRequest) -> LaunchRefusal | None:
    if len(request.hosts) == 1:
        return None
    without = tuple(host.name for host in request.hosts if host.name not in request.internal)
    if without:
        return LaunchRefusal(
            f"it isn't known by which address the others reach {fold(without)}",
            "--iface NAME or CIDR, or internal=ADDRESS behind the host in the hostfile",
            without,
        )
    owners: dict[str, str] = {}
    for host in request.hosts:
        other = owners.setdefault(request.internal[host.name], host.name)
        if other != host.name:
            return LaunchRefusal(
                f"{other} and {host.name} are one machine: both have the address {request.internal[host.name]}",
                f"name it once, with as many slots as it may have ranks: {other}:2",
                (other, host.name),
            )
    return None


def chosen_backend(request: LaunchRequest) -> Backend | LaunchRefusal:
    constraints, env = request.options.backend, request.env
    place = f"the environment {env.name}" if env.name else f"the environment of {env.python}"
    if constraints == "auto":
        return "ccl" if env.ccl else "gloo"
    if constraints == "ccl" and not env.ccl:
        return LaunchRefusal(
            f"{place} has no oneCCL bindings, so there is no ccl backend",
            "--backend gloo, or: ipexctl install --require-oneccl",
        )
    if constraints == "mpi" and env.mpi_backend is False:
        return LaunchRefusal(
            f"the torch of {place} has no mpi backend: no wheel of torch has, it takes a torch built with MPI",
            "--backend gloo; ranks are started by mpirun with every backend",
        )
    return constraints


def requested_variables(request: LaunchRequest) -> dict[str, str]:
    """What holds for all ranks by the user's word: configuration first, then exports over it."""
    options = request.options
    wanted = {one.name: one.value for one in options.given if one.value is not None and one.host is None}
    return {**wanted, **{export.name: export.value for export in options.exports}}


def requested_number(wanted: Mapping[str, str], name: str) -> int | None:
    """The user's own value of that variable where the rest of the plan has to follow it."""
    text = wanted.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and 0 < int(text) < 1 << 16 else None


def overridden(made: Iterable[Setting], given: Iterable[Setting], exports: Iterable[Export]) -> tuple[Setting, ...]:
    """Ours, then what a configuration says, then what the user exports: the last word wins."""
    kept = list(made)
    for one in given:
        kept = [each for each in kept if each.name != one.name or (one.host is not None and each.host != one.host)]
        kept.append(one)
    last = {export.name: export for export in exports}
    kept = [each for each in kept if each.name not in last]
    for export in last.values():
        if export.secret:
            reason = f"you said so: {export.said}; its value travels apart and is never shown"
            kept.append(Setting(export.name, "", reason, secret=True))
        else:
            kept.append(Setting(export.name, export.value, f"you said so: {export.said}"))
    return tuple(kept)
