"""Hosts and indexes to resolve stacks for: as little of them as counts."""

from __future__ import annotations

from ipexctl.facts.cpu import Cpu
from ipexctl.facts.facts import Facts
from ipexctl.facts.software import Mpi, Python, Software
from ipexctl.facts.system import Disk, Home, System
from ipexctl.stack.obtainable import Candidate, Obtainable, Silent
from ipexctl.stack.plan import Refusal, StackPlan

AVX = frozenset({"avx", "sse4_2"})
AVX2 = frozenset({"avx2", "fma"})
AVX512 = AVX2 | {"avx512f", "avx512bw", "avx512dq", "avx512vl"}


def host(
    glibc: str | None = "2.36",
    *pythons: str,
    flags: frozenset[str] = AVX512,
    arch: str | None = "x86_64",
    kernel: str | None = "Linux",
    libc: str | None = "glibc",
    store: str | None = None,
    mpi: bool = False,
) -> Facts:
    """Pythons as `3.11`, in /usr/bin, or as `PATH=3.11`."""
    found = tuple(_python(word) for word in (pythons or ("3.11",)))
    return Facts(
        system=System(kernel_name=kernel, arch=arch, libc=libc, libc_version=glibc),  # type: ignore[arg-type]
        cpu=Cpu(arch=arch, flags=flags),
        home=Home("/home/me/.ipexctl", disk=Disk("/home/me"), store=store),
        software=Software(pythons=found, mpis=(Mpi("/usr/bin/mpirun", "openmpi", "4.1", on_path=True),) if mpi else ()),
    )


def _python(word: str) -> Python:
    path, equals, version = word.rpartition("=")
    return Python(path if equals else f"/usr/bin/python{version}", f"{version}.2", "x86_64", "glibc", True)


def index(*files: str, source: str = "pypi.org", silent: tuple[str, ...] = ()) -> Obtainable:
    """An index with those wheels; one with a `!` behind it is withdrawn."""
    found: dict[str, list[Candidate]] = {}
    for file in files:
        name = file.rstrip("!")
        project, version = name.split("-")[:2]
        candidate = Candidate(project, version, name, source, yanked=file.endswith("!"))
        found.setdefault(project.replace("_", "-"), []).append(candidate)
    return Obtainable(
        {project: tuple(wheels) for project, wheels in found.items()},
        (source,),
        tuple(Silent(each, "no answer in 5 s") for each in silent),
    )


def planned(outcome: StackPlan | Refusal) -> StackPlan:
    assert isinstance(outcome, StackPlan), outcome
    return outcome


def refused(outcome: StackPlan | Refusal) -> Refusal:
    assert isinstance(outcome, Refusal), outcome
    return outcome
