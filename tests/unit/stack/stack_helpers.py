"""Minimal hosts and indexes for tests of the stack resolver."""

from __future__ import annotations

import json
from typing import Any

from ipexctl.errors import Refusal
from ipexctl.facts.cpu import Cpu
from ipexctl.facts.facts import Facts
from ipexctl.facts.software import Env, Mpi, Python, Software
from ipexctl.facts.system_facts import Disk, HomeDirectory, System
from ipexctl.node.env.env_replies import AvailableWheel, SourceFailure
from ipexctl.stack.lock.wheels import Availability
from ipexctl.stack.resolve.model import EnvRequest, StackPlan, StackRequest, Undecided
from ipexctl.stack.resolve.reasons import Reason

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
    """Facts of a host; Pythons are given as `3.11` (in /usr/bin) or as `PATH=3.11`."""
    found = tuple(_python(word) for word in (pythons or ("3.11",)))
    return Facts(
        system=System(kernel_name=kernel, arch=arch, libc=libc, libc_version=glibc),  # type: ignore[arg-type]
        cpu=Cpu(arch=arch, flags=flags),
        home=HomeDirectory("/home/me/.ipexctl", disk=Disk("/home/me"), store=store),
        software=Software(pythons=found, mpis=(Mpi("/usr/bin/mpirun", "openmpi", "4.1", on_path=True),) if mpi else ()),
    )


def _python(word: str) -> Python:
    path, equals, version = word.rpartition("=")
    return Python(path if equals else f"/usr/bin/python{version}", f"{version}.2", "x86_64", "glibc", True)


def index(*files: str, source: str = "pypi.org", failures: tuple[str, ...] = ()) -> Availability:
    """An index with these wheels; a trailing `!` marks a yanked wheel."""
    found: dict[str, list[AvailableWheel]] = {}
    for file in files:
        name = file.rstrip("!")
        project, version = name.split("-")[:2]
        candidate = AvailableWheel(project, version, name, source, yanked=file.endswith("!"))
        found.setdefault(project.replace("_", "-"), []).append(candidate)
    return Availability(
        {project: tuple(wheels) for project, wheels in found.items()},
        (source,),
        tuple(SourceFailure(each, "no answer in 5 s") for each in failures),
    )


def planned(outcome: StackPlan | Undecided | Reason | Refusal) -> StackPlan:
    assert isinstance(outcome, StackPlan), outcome
    return outcome


def notes_of(outcome: StackPlan | Reason) -> tuple[str, ...]:
    return tuple(note.text for note in planned(outcome).notes)


def refused(outcome: StackPlan | Undecided | Reason | Refusal) -> Refusal:
    """The refusal as the user sees it."""
    if isinstance(outcome, Reason):
        return outcome.refusal()
    assert isinstance(outcome, Refusal), outcome
    return outcome


NEWEST = StackRequest()
PYPI = (
    "torch-2.15.0-cp311-cp311-manylinux_2_28_x86_64.whl",
    "torch-2.15.0-cp314-cp314-manylinux_2_28_x86_64.whl",
    "torch-2.8.0-cp311-cp311-manylinux_2_28_x86_64.whl",
    "torch-2.8.0-cp313-cp313-manylinux_2_28_x86_64.whl",
    "torch-2.7.0-cp311-cp311-manylinux_2_28_x86_64.whl",
    "torch-2.7.1-cp311-cp311-manylinux_2_28_x86_64.whl",
    "torch-2.5.0-cp311-cp311-manylinux1_x86_64.whl",
    "intel_extension_for_pytorch-2.8.0-cp311-cp311-manylinux_2_28_x86_64.whl",
    "intel_extension_for_pytorch-2.8.0-cp313-cp313-manylinux_2_28_x86_64.whl",
    "intel_extension_for_pytorch-2.7.0-cp311-cp311-manylinux_2_28_x86_64.whl",
    "intel_extension_for_pytorch-2.5.0-cp311-cp311-manylinux2014_x86_64.whl!",
    "impi_rt-2021.18.0-py2.py3-none-manylinux_2_28_x86_64.whl",
    "impi_rt-2021.19.0-py2.py3-none-manylinux_2_28_x86_64.whl",
    "impi_rt-2021.13.1-py2.py3-none-manylinux1_x86_64.whl",
    "intel_openmp-2024.1.2-py2.py3-none-manylinux1_x86_64.whl",
    "setuptools-80.9.0-py3-none-any.whl",
)
BINDINGS_2_7 = "oneccl_bind_pt-2.7.0+cpu-cp311-cp311-linux_x86_64.whl"
TORCH_2_7_CPU = "torch-2.7.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl"
PYPI_INDEX = index(*PYPI)


def env_record(name: str, *requests: EnvRequest) -> dict[str, Any]:
    """The env.json of an environment made for these requests."""
    return {
        "schema": "ipexctl.env/1",
        "name": name,
        "row": name.rpartition("-")[0],
        "python": "3.11",
        "interpreter": "/usr/bin/python3.11",
        "digest": "1234567890",
        "backend": "gloo",
        "requests": [request.to_json() for request in requests],
        "packages": {"torch": "2.8.0"},
        "variables": {"PATH": "/h/envs/x/bin"},
        "prepended": ["PATH"],
    }


def installed(record: dict[str, Any], *names: str) -> Env:
    """An environment with that record, as a host reports it."""
    path = f"/h/envs/{record['name']}"
    return Env(name=record["name"], path=path, runs=True, record=json.dumps(record), names=names)
