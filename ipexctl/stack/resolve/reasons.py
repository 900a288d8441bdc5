"""The reasons of the resolver as values: why a row does not run, why a stack was chosen, what the user does not get.

The other modules of this package decide and return these; `explanations.py` alone makes sentences from them, once, when
the decision is made. A program that wants to know a reason matches the class and reads its fields, so a sentence can be
reworded without a change of behaviour. All are frozen and hashable: equal reasons of many hosts are said once.

A field `part` names what a row is to a user, `IPEX 2.8` or `oneccl_bind_pt 2.7.0`. Versions of Python are `3.11`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ipexctl.stack.catalog.table import Isa, KnownBad, StackSpec


# One host cannot run a row.


@dataclass(frozen=True, slots=True)
class WrongSystem:
    kernel: str
    """`Darwin`."""


@dataclass(frozen=True, slots=True)
class WrongProcessor:
    arch: str


@dataclass(frozen=True, slots=True)
class MuslInsteadOfGlibc:
    pass


@dataclass(frozen=True, slots=True)
class MissingInstructions:
    isa: Isa
    part: str


@dataclass(frozen=True, slots=True)
class OldGlibc:
    glibc: str
    needed: str
    part: str


@dataclass(frozen=True, slots=True)
class NoPython:
    pass


@dataclass(frozen=True, slots=True)
class UnusablePythons:
    """The host has Pythons that do not run the agent, or take no wheels."""

    pythons: tuple[str, ...]
    all_too_old: bool


@dataclass(frozen=True, slots=True)
class OtherPythons:
    """The host has usable Pythons, and the row is built for others."""

    pythons: tuple[str, ...]
    part: str
    built_for: tuple[str, ...]


HostProblem = (
    WrongSystem
    | WrongProcessor
    | MuslInsteadOfGlibc
    | MissingInstructions
    | OldGlibc
    | NoPython
    | UnusablePythons
    | OtherPythons
)


# All hosts together cannot have a row.


@dataclass(frozen=True, slots=True)
class Incompatibility:
    """Why a row is not the stack of these hosts."""

    hosts: tuple[str, ...] = field(default=(), kw_only=True)
    """The hosts at fault; empty if the request or the indexes are."""


@dataclass(frozen=True, slots=True)
class HostProblems(Incompatibility):
    groups: tuple[tuple[HostProblem, tuple[str, ...]], ...]
    """Each problem with its hosts."""
    python: str
    """The Python to install where one is missing."""


@dataclass(frozen=True, slots=True)
class NoCommonPython(Incompatibility):
    """Each host could run the row, but with no Python that all of them have; `hosts` lack the best one."""

    part: str
    built_for: tuple[str, ...]
    found: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]
    """Hosts and the Pythons that they have."""
    python: str
    """The Python that most hosts have."""


@dataclass(frozen=True, slots=True)
class BuiltForOldPythons(Incompatibility):
    """The row's newest Python is older than those that run the agent."""

    part: str
    pythons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BuiltForOtherPythons(Incompatibility):
    """The row has no builds for the requested Python."""

    part: str
    pythons: tuple[str, ...]
    requested: str


@dataclass(frozen=True, slots=True)
class NoStackForGlibc(Incompatibility):
    """Some hosts have a glibc that is too old for every candidate."""

    glibc: str
    oldest: str


@dataclass(frozen=True, slots=True)
class OnlyCudaBuild(Incompatibility):
    """Only the CUDA build of torch is available, and something else runs without gigabytes of it."""

    line: str | None = None
    """The torch of a row with more parts; None where torch is the row."""


@dataclass(frozen=True, slots=True)
class BindingsNeverPublished(Incompatibility):
    line: str


@dataclass(frozen=True, slots=True)
class PartsDisagree(Incompatibility):
    """By the table, no versions of the row's parts work together on these hosts."""

    title: str


@dataclass(frozen=True, slots=True)
class QueriedIndexes:
    answered: tuple[str, ...]
    failed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OtherBuilds:
    """A version that the indexes have, but not in a build for these hosts."""

    project: str
    version: str
    pythons: tuple[str, ...]
    """Those that it has wheels for."""


@dataclass(frozen=True, slots=True)
class MissingWheels(Incompatibility):
    """The row fits all hosts, and the queried indexes lack wheels of it."""

    title: str
    absent: tuple[tuple[str, str | None], ...]
    """Projects, with a version if the indexes have others."""
    other_builds: tuple[OtherBuilds, ...]
    pythons: tuple[str, ...]
    """Those that the wheels must be for, and `glibc`."""
    glibc: str
    never_published: str | None
    """The torch line whose bindings were never published for CPUs."""
    indexes: QueriedIndexes


@dataclass(frozen=True, slots=True)
class MissingRequirement(Incompatibility):
    row: str
    requirement: str
    indexes: QueriedIndexes


@dataclass(frozen=True, slots=True)
class RejectedRow:
    """A better row that was not taken."""

    name: str
    problem: Incompatibility


# A stack was chosen.


class Basis(Enum):
    """The sense in which a stack is the best."""

    REQUESTED = "requested"
    NEWEST_TORCH = "newest torch"
    NEWEST_MAINTAINED_TORCH = "newest maintained torch"
    NEWEST_WITH_ONECCL = "newest with oneCCL"
    NEWEST_WITH_IPEX = "newest with IPEX"


@dataclass(frozen=True, slots=True)
class ResolvedReason:
    """The resolver chose the stack."""

    basis: Basis
    title: str
    any_hosts: bool
    newer: RejectedRow | None
    """The first newer row, with the reason why it is not this one."""
    over_gloo: bool
    instead_of_oneccl: RejectedRow | None
    """The newest row with oneCCL, where a row without it is better than one with IPEX over gloo."""
    gloo_without_bindings: bool
    """No index was queried yet; the stack runs over gloo if none has its bindings."""
    queried_at: str | None = None
    """The time of an earlier query whose answer decided: `14:05`."""


@dataclass(frozen=True, slots=True)
class InstalledReason:
    """The hosts have the stack already."""

    hosts: str
    """Folded: `node[1-4]`."""
    env: str


@dataclass(frozen=True, slots=True)
class RecordedReason:
    """The stack is kept; the environment's record has the sentence from its own install."""

    text: str


ChoiceReason = ResolvedReason | InstalledReason | RecordedReason


# What the user should know about a chosen stack.


@dataclass(frozen=True, slots=True)
class GlooInsteadOfOneccl:
    problem: Incompatibility | None
    """Why there is no oneCCL; None if no queried index has any bindings."""
    row: str | None
    """The row with oneCCL that the problem is about; None for the chosen one."""
    indexes: QueriedIndexes


@dataclass(frozen=True, slots=True)
class IpexIsRetired:
    maintained: str | None
    """The newest maintained row that runs on the hosts, else the problem of the newest."""
    problem: Incompatibility | None


@dataclass(frozen=True, slots=True)
class YankedWheel:
    project: str
    version: str
    source: str


@dataclass(frozen=True, slots=True)
class UnpublishedBindings:
    """The bindings were never published for CPUs; this wheel is of other origin."""

    version: str
    line: str
    source: str
    bundled_mpi: str | None


@dataclass(frozen=True, slots=True)
class KnownProblem:
    problem: KnownBad


@dataclass(frozen=True, slots=True)
class NoIntelMpi:
    requirement: str
    indexes: QueriedIndexes
    every_host_has_mpi: bool


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A package that the stack can do without, and that no index has."""

    requirement: str
    title: str
    indexes: QueriedIndexes


StackNote = (
    GlooInsteadOfOneccl | IpexIsRetired | YankedWheel | UnpublishedBindings | KnownProblem | NoIntelMpi | LeftOut
)


# No stack was chosen: the request is at fault.


@dataclass(frozen=True, slots=True)
class UnknownName:
    """The request names something that the version table does not have: a wrong call, exit code 2."""

    requested: str
    near: tuple[str, ...] = field(default=(), kw_only=True)
    """The nearest that there are."""


@dataclass(frozen=True, slots=True)
class UnknownStack(UnknownName):
    oldest: str
    newest: str


@dataclass(frozen=True, slots=True)
class UnknownVersion(UnknownName):
    part: str
    known: tuple[str, ...]
    """Oldest first."""


@dataclass(frozen=True, slots=True)
class UnknownPatch(UnknownName):
    """The torch line is known, this patch of it is not."""

    line: str
    known: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class UnknownPython(UnknownName):
    known: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PythonWithPatch(UnknownName):
    """`3.11.4` was given for `3.11`."""


@dataclass(frozen=True, slots=True)
class PythonTooOld:
    python: str


@dataclass(frozen=True, slots=True)
class NoBindings:
    """oneCCL is required, and no candidate has bindings."""

    title: str
    with_bindings: str | None
    """A stack that has them."""


@dataclass(frozen=True, slots=True)
class NotBuiltForPython:
    """No candidate is built for the requested Python."""

    title: str
    pythons: tuple[str, ...]
    requested: str


@dataclass(frozen=True, slots=True)
class StackHasOtherTorch:
    stack: str
    line: str
    requested: str
    matching: str | None
    """The stack with the requested torch."""


@dataclass(frozen=True, slots=True)
class StackWithoutIpex:
    stack: str
    matching: str


@dataclass(frozen=True, slots=True)
class StackWithoutOneccl:
    stack: str
    matching: str


@dataclass(frozen=True, slots=True)
class IpexForOtherTorch:
    ipex: str
    torch: str
    built_for: str
    fitting: str | None
    """The IPEX for the requested torch."""


@dataclass(frozen=True, slots=True)
class OnecclForOtherTorch:
    oneccl: str
    torch: str
    works_with: str
    """A torch that these bindings work with."""
    fitting: str | None
    """Published bindings for the requested torch."""


@dataclass(frozen=True, slots=True)
class StockWithRequiredOneccl:
    """`--stack torch --require-oneccl`."""


@dataclass(frozen=True, slots=True)
class NoIpexForTorch:
    torch: str
    last_line: str | None
    """The torch of the last IPEX."""
    stack: str
    """The stack of the requested torch."""


Contradiction = (
    PythonTooOld
    | NoBindings
    | NotBuiltForPython
    | StackHasOtherTorch
    | StackWithoutIpex
    | StackWithoutOneccl
    | IpexForOtherTorch
    | OnecclForOtherTorch
    | StockWithRequiredOneccl
    | NoIpexForTorch
)
"""The parts of a request exclude one another, whatever the hosts have."""


# No stack was chosen: the hosts or the indexes are at fault.


@dataclass(frozen=True, slots=True)
class MissingPython:
    """Some hosts lack the requested Python."""

    python: str
    hosts: tuple[str, ...]
    example: tuple[str, ...]
    """Hosts among them with the same Pythons, and these."""
    example_pythons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NothingFits:
    """No candidate can be had; `row` is the one to talk about, as its problem is the easiest to solve."""

    row: StackSpec
    problem: Incompatibility
    total_hosts: int
    queried: bool
    is_named: bool
    """Whether the request names a row, not only a kind."""
    required_oneccl: str | None
    """The requested version of the bindings."""
    fits: StackSpec | None
    """The newest row of the same kind that can be had."""
    stock: StackSpec | None
    """A row without IPEX that can be had."""
    gloo: StackSpec | None
    """A row that can be had over gloo, where oneCCL is required."""


NoStackReason = UnknownName | Contradiction | MissingPython | NothingFits


@dataclass(frozen=True, slots=True)
class NoStack:
    """The resolver's answer where no stack can be chosen. `explanations.refusal` words it."""

    reason: NoStackReason

    @property
    def is_wrong_call(self) -> bool:
        """Whether the request names something that does not exist, whatever the hosts have."""
        return isinstance(self.reason, UnknownName)

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts at fault; empty if the request or the indexes are."""
        if isinstance(self.reason, MissingPython):
            return self.reason.hosts
        return self.reason.problem.hosts if isinstance(self.reason, NothingFits) else ()
