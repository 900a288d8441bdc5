"""The values that go in and out of the resolver: what is requested, and the one stack for all hosts.

A `StackRequest` comes from options, `--stack` and its kin; with the packages of `--with` and requirements files it is
an `EnvRequest`, which env.json records, so that an equal request finds its environment again; records of older
versions lack fields. Out come a `StackPlan`, `Undecided` between two plans, or the `Reason` why there is none. A plan
carries its reasons as values; their sentences are read where they are printed or recorded.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ipexctl.node.env.replies import AvailableWheel
    from ipexctl.stack.catalog.table import StackSpec
    from ipexctl.stack.resolve.reasons import Reason


@dataclass(frozen=True, slots=True)
class StackRequest:
    """The requested stack; without any field the newest that fits."""

    torch: str | None = None
    """`2.8` or `2.8.0`."""
    stack: str | None = None
    """A row's name (`ipex-2.7`, `torch-2.13`), or a kind: `ipex`, `torch`."""
    ipex: str | None = None
    oneccl: str | None = None
    python: str | None = None
    """`3.11`."""
    require_oneccl: bool = False


@dataclass(frozen=True, slots=True)
class Sources:
    """The sources of wheels given by the call; pip's settings are read on the downloading machine."""

    index_url: str | None = None
    extra_index_urls: tuple[str, ...] = ()
    find_links: tuple[str, ...] = ()
    wheelhouse: str | None = None
    """An absolute directory on the control machine, or a URL."""
    offline: bool = False

    def with_more(self, other: Sources) -> Sources:
        """These sources, then those of a requirements file; the own index wins."""
        return replace(
            self,
            index_url=self.index_url or other.index_url,
            extra_index_urls=(*self.extra_index_urls, *other.extra_index_urls),
            find_links=(*self.find_links, *other.find_links),
        )


@dataclass(frozen=True, slots=True)
class EnvRequest:
    """A requested environment. An existing one made for an equal request is reused."""

    stack: StackRequest
    extras: tuple[str, ...] = ()
    """Requirements of --with, then of requirements files."""
    constraints: tuple[str, ...] = ()
    """Constraints of requirements files."""

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self.stack), "extras": list(self.extras), "constraints": list(self.constraints)}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> EnvRequest:
        """From an environment's record; records of older versions may lack fields."""
        texts = {name: fields.get(name) for name in ("torch", "stack", "ipex", "oneccl", "python")}
        stack = StackRequest(**texts, require_oneccl=bool(fields.get("require_oneccl")))
        return cls(stack, tuple(fields.get("extras") or ()), tuple(fields.get("constraints") or ()))


Backend = Literal["ccl", "gloo"]


@dataclass(frozen=True, slots=True)
class StackPlan:
    """One stack for all hosts."""

    row: StackSpec
    torch: str
    """The pinned version: `2.8.0+cpu` if an index has it, else `2.8.0`."""
    ipex: str | None
    oneccl: str | None
    python: str
    """`3.11`."""
    interpreters: Mapping[str, str] = field(hash=False)
    """Host name → path of that Python."""
    requirements: tuple[str, ...]
    """Requirements for torch, IPEX, bindings, MPI and OpenMP: `impi-rt>=2021.14,<2021.19`."""
    constraints: tuple[str, ...]
    """Such as `numpy<2`."""
    backend: Backend
    glibc: str
    """The oldest of the hosts, else the minimum of the row; wheels must run on it."""
    reason: Reason
    """Why it is this stack."""
    bundled_mpi: str | None = None
    """The version of the Intel MPI inside the bindings, which starts the ranks; None if there is none."""
    torch_wheel: AvailableWheel | None = None
    """None if no index was queried."""
    notes: tuple[Reason, ...] = ()
    """What the user should know: IPEX is retired, gloo instead of ccl, a yanked wheel."""

    @property
    def mpi(self) -> str | None:
        """The Intel MPI inside the bindings (`2021.14`), else the requirement; None for the hosts' own MPI."""
        return self.bundled_mpi or next((line for line in self.requirements if line.startswith("impi-rt")), None)


@dataclass(frozen=True, slots=True)
class Undecided:
    """Stacks that run on the hosts; the indexes, which were not queried, decide which of them it is."""

    candidates: tuple[StackPlan, ...]
    """Best first; the last one needs the least of the indexes."""
    reason: Reason
    """What it depends on."""
