"""env.json and the replies of environment commands. Values with logins show nothing in their repr."""

from __future__ import annotations

from typing import TYPE_CHECKING, Mapping, NamedTuple

from ipexctl.node.common.owners import Owned  # noqa: TC001  # `decode` looks it up
from ipexctl.node.common.plan import RunBy  # noqa: TC001  # `decode` looks it up
from ipexctl.node.common.records import Detail  # noqa: TC001  # `decode` looks it up

if TYPE_CHECKING:
    from ipexctl.node.common.answer import Json
    from ipexctl.node.common.http import HttpSettings


class EnvRecord(NamedTuple):
    """Content of env.json. Older and newer versions read it, so a new field needs a default."""

    schema: str
    name: str
    row: str
    python: str
    interpreter: str
    digest: str
    packages: Mapping[str, str]
    backend: str
    requests: tuple[Json, ...]
    module: str | None = None
    retired: bool = False
    mpi: str | None = None
    why: str = ""
    installer: Json | None = None
    created: str = ""
    build: str = ""
    variables: Mapping[str, str] = {}
    prepended: tuple[str, ...] = ()
    built: tuple[str, ...] = ()
    by: Json | None = None
    """Who installed it, as `RunBy`; None if that is unknown."""
    origins: Mapping[str, str] = {}
    """Package → the index of the call or the project that has it, without credentials."""


class CheckResult(NamedTuple):
    problems: tuple[str, ...]
    exists: bool
    name: str
    """As in `ipex-2.8-1a2b3c4d`."""
    build: str | None
    """Token of the environment's build; None without a record."""
    record: EnvRecord | None = None
    verified: Mapping[str, Json] = {}

    @property
    def ok(self) -> bool:
        return self.record is not None

    @property
    def problem(self) -> str:
        return "".join(self.problems[:1])

    @property
    def has_failed(self) -> bool:
        """True if the environment failed on every machine that verified it."""
        return bool(self.verified) and all(record.get("ok") is False for record in self.verified.values())


class EnvEntry(NamedTuple):
    name: str
    names: tuple[str, ...]
    path: str
    row: str | None
    python: str | None
    backend: str | None
    created: str | None
    packages: Mapping[str, str]
    bytes: int | None
    """Bytes on disk; None if not measured in time."""
    complete: bool
    by: RunBy | None = None


class EnvListing(NamedTuple):
    envs: tuple[EnvEntry, ...]
    leftovers: int
    leftover_bytes: int
    wheels: int
    wheel_bytes: int

    @property
    def unnamed(self) -> tuple[EnvEntry, ...]:
        return tuple(env for env in self.envs if not env.names)

    @property
    def prunable_bytes(self) -> int | None:
        """Bytes that a prune frees if nothing is in use; None if not measured."""
        sizes = [env.bytes for env in self.unnamed]
        if None in sizes:
            return None
        return self.leftover_bytes + self.wheel_bytes * bool(self.wheels) + sum(size for size in sizes if size)


class Removed(NamedTuple):
    removed: tuple[str, ...]
    failed: Mapping[str, str]
    """Name → why it was not removed."""
    bytes: int = 0
    foreign: tuple[Owned, ...] = ()
    """What others installed, which a prune without force keeps."""


class VerifyPhase(NamedTuple):
    name: str
    ok: bool
    seconds: float
    rc: int | None = None
    signal: int | None = None
    """Signal that killed the step; for ranks, as mpirun reports it."""
    timed_out: bool = False
    text: str = ""
    detail: Detail | None = None


class VerifyResult(NamedTuple):
    ok: bool
    phases: tuple[VerifyPhase, ...]
    seconds: float
    torch: str | None = None
    ipex: str | None = None
    oneccl: str | None = None
    python: str | None = None
    capability: str | None = None
    """Instruction set of torch's kernels, such as `AVX512`; never AMX, which only oneDNN uses."""
    bf16: str | None = None
    """`training`, `inference` or `no`."""
    backend: str | None = None
    launcher: str | None = None
    """The mpirun that started the two ranks, if any."""
    allreduce_ms: tuple[float, ...] = ()
    """Best of three all-reduces of 4 KB, and of 4 MB."""
    amx: bool | None = None
    """None if torch can't tell."""
    allreduce_of: str | None = None
    """Environment with the same files that passed the all-reduce before; None if the all-reduce ran here."""

    @property
    def failed(self) -> VerifyPhase | None:
        return next((phase for phase in self.phases if not phase.ok), None)

    def to_json(self) -> Json:
        phases = [phase._asdict() for phase in self.phases]
        for phase in phases:
            del phase["timed_out"], phase["detail"]
        return {**self._asdict(), "phases": phases, "allreduce_ms": list(self.allreduce_ms)}


class PipSettings(NamedTuple):
    index_url: str | None = None
    extra_index_urls: tuple[str, ...] = ()
    find_links: tuple[str, ...] = ()
    no_index: bool = False
    trusted_hosts: tuple[str, ...] = ()
    cert: str | None = None
    client_cert: str | None = None
    proxy: str | None = None

    def __repr__(self) -> str:
        return "PipSettings()"  # no credentials of URLs in logs

    def transport(self) -> HttpSettings:
        return {
            "trusted_hosts": self.trusted_hosts,
            "cert": self.cert,
            "client_cert": self.client_cert,
            "proxy": self.proxy,
        }


class AvailableWheel(NamedTuple):
    project: str
    version: str
    filename: str
    source: str
    size: int | None = None
    yanked: bool = False
    requires_python: str | None = None
    url: str | None = None
    sha256: str | None = None
    mpi: str | None = None
    """Version of the Intel MPI inside a local bindings wheel; empty without one, None if unknown."""
    oneccl: bool | None = None
    """True if a local bindings wheel contains oneCCL's library; None if unknown."""


class SourceFailure(NamedTuple):
    source: str
    reason: str
    has_replied: bool = False
    """True if it answered for another package."""


class QueryReply(NamedTuple):
    candidates: Mapping[str, tuple[AvailableWheel, ...]]
    answered: tuple[str, ...]
    failures: tuple[SourceFailure, ...]
    logins: Mapping[str, str] = {}
    """Origin, such as `https://host` → value of the Authorization header, for later downloads."""


class LocalWheel(NamedTuple):
    path: str
    sha256: str
    size: int


class ListReply(NamedTuple):
    requires: tuple[str, ...] = ()
    """As in METADATA, with the markers of extras."""
    message: str = ""
    """Why the backend did not answer."""


class CompileReply(NamedTuple):
    pylock: str | None
    local_wheels: Mapping[str, LocalWheel] = {}
    message: str = ""
    is_of_named: bool = False
    """True if the wheels of the named directories do not fulfil what is required of them."""
