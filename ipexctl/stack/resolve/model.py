"""Define what goes in and out of the resolver: a request, and the one stack for all hosts.

env.json records an `EnvRequest`, so that an equal request finds its environment again. Records of older versions lack
fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import urlsplit

from ipexctl.node.env.env_replies import AvailableWheel
from ipexctl.projects.declared_indexes import IndexBinding, ProjectIndexes
from ipexctl.stack.catalog import StackSpec

if TYPE_CHECKING:
    from ipexctl.stack.resolve.reasons import Reason


UV: Final = "uv"
OPTIONAL: Final = ("intel-openmp", "numpy")
"""torch works without these; IPEX imports numpy."""
COMPILER_PACKAGES: Final = ("ziglang", "intel-openmp")
"""Of which `node/env/build.py` makes a C++ compiler."""


@dataclass(frozen=True, slots=True)
class StackRequest:
    """What the user asked for. A request without any field means the newest PyTorch that fits."""

    torch: str | None = None
    """`2.8` or `2.8.0`."""
    stack: str | None = None
    """A row's name, or a kind: `ipex`, `torch`."""
    ipex: str | None = None
    oneccl: str | None = None
    python: str | None = None
    require_oneccl: bool = False

    def for_project(self, *, uses_ipex: bool, torch: str | None = None) -> StackRequest:
        """Return the request with what the project says: its version of torch, and IPEX if the request asks for nothing
        but a Python."""
        if self != StackRequest(python=self.python):
            return replace(self, torch=torch or self.torch)
        kind = "ipex" if uses_ipex else "torch" if torch else None  # a torch version alone would bring its IPEX
        return replace(self, torch=torch, stack=kind)


@dataclass(frozen=True, slots=True)
class Sources:
    """Sources of wheels. pip's settings are read on the machine that downloads."""

    index_url: str | None = None
    extra_index_urls: tuple[str, ...] = ()
    find_links: tuple[str, ...] = ()
    wheelhouse: str | None = None
    """An absolute directory on the control machine, or a URL."""
    offline: bool = False
    bound: tuple[IndexBinding, ...] = ()
    """Packages that come from one index only, by the project's files. Without a URL, that index may not be asked."""
    is_strict: bool = False
    """True if the project's files name indexes: the first one that has a package decides, as for uv."""

    @property
    def urls(self) -> tuple[str, ...]:
        """Return the indexes, pages and directories, without the wheelhouse. They may hold credentials."""
        general = (*([self.index_url] if self.index_url else []), *self.extra_index_urls, *self.find_links)
        return (*general, *(binding.url for binding in self.bound if binding.url))

    @property
    def places(self) -> tuple[str, ...]:
        """Return the host names of the indexes and pages, and the directories, for messages."""
        return tuple(urlsplit(location).hostname or location for location in self.urls)

    def with_more(self, other: Sources) -> Sources:
        """Return these sources followed by those of `other`. This request's `--index-url` wins, and `wheelhouse` and
        `offline` of `other` do not count."""
        return replace(
            self,
            index_url=self.index_url or other.index_url,
            extra_index_urls=tuple(dict.fromkeys((*self.extra_index_urls, *other.extra_index_urls))),
            find_links=tuple(dict.fromkeys((*self.find_links, *other.find_links))),
            bound=tuple(dict.fromkeys((*self.bound, *other.bound))),
            is_strict=self.is_strict or other.is_strict,
        )

    @classmethod
    def of_project(cls, indexes: ProjectIndexes) -> Sources:
        """Return the sources that a project's files declare. Packages that are bound to an index do not make the
        sources strict."""
        default, first, links = indexes.default or None, indexes.first, indexes.links
        return cls(default, first, links, bound=indexes.bound, is_strict=bool(default or first or links))


@dataclass(frozen=True, slots=True)
class EnvRequest:
    """What an environment is asked to have: a stack, and packages beside it."""

    stack: StackRequest
    packages: tuple[str, ...] = ()
    """Requirements, such as `peft>=0.17`."""
    constraints: tuple[str, ...] = ()
    lists: tuple[str, ...] = ()
    """Digests of the lists that build backends have read (`requirement_files.py: digest_of_list`)."""

    def to_json(self) -> dict[str, Any]:
        """Return the request as env.json records it; `extras` are its packages."""
        lists = {"lists": list(self.lists)} if self.lists else {}
        return {**asdict(self.stack), "extras": list(self.packages), "constraints": list(self.constraints), **lists}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> EnvRequest:
        """Read a recorded request. Fields that the record lacks stay empty."""
        texts = {name: fields.get(name) for name in ("torch", "stack", "ipex", "oneccl", "python")}
        stack = StackRequest(**texts, require_oneccl=bool(fields.get("require_oneccl")))
        return cls(stack, *(tuple(fields.get(name) or ()) for name in ("extras", "constraints", "lists")))


Backend = Literal["ccl", "gloo"]


@dataclass(frozen=True, slots=True)
class StackPlan:
    """The stack that the resolver chose for all hosts."""

    row: StackSpec
    torch: str
    """Its exact version, with the label of the chosen wheel (`2.8.0+cpu`) if indexes were queried."""
    ipex: str | None
    """Its exact version; None for a stack without IPEX."""
    oneccl: str | None
    """Exact version of the bindings; None if the ranks use gloo."""
    python: str
    interpreters: Mapping[str, str] = field(hash=False)
    """Host → path of its Python of that version."""
    requirements: tuple[str, ...]
    """torch, IPEX, bindings, MPI and OpenMP, such as `impi-rt>=2021.14,<2021.19`."""
    constraints: tuple[str, ...]
    backend: Backend
    glibc: str
    """The hosts' oldest glibc, else the row's minimum."""
    reason: Reason
    bundled_mpi: str | None = None
    """Version of the Intel MPI inside the bindings, which starts the ranks; None if there is none inside."""
    torch_wheel: AvailableWheel | None = None
    """The chosen wheel of torch; None if no index was queried."""
    notes: tuple[Reason, ...] = ()

    @property
    def mpi(self) -> str | None:
        """Return the version of the Intel MPI inside the bindings (`2021.14`), else its requirement; None if the hosts'
        own MPI is used."""
        return self.bundled_mpi or next((line for line in self.requirements if line.startswith("impi-rt")), None)


@dataclass(frozen=True, slots=True)
class Undecided:
    """Stacks that run on the hosts, if it depends on the indexes, not queried yet, which one is chosen."""

    candidates: tuple[StackPlan, ...]
    """Best one first. The last one needs the fewest wheels from the indexes."""
    reason: Reason
