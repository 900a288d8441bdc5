"""The record of an environment, and the answers of the commands for environments, for both sides. Data.

`EnvRecord` is env.json; it is read by later and earlier versions, so a field that is added needs a default. The others
are what the commands of `node/env/` answer; the control machine decodes them by these types (`remote/reply.py`), which
makes a malformed answer that host's failure. Values with logins show nothing in their repr.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Mapping, NamedTuple

from ipexctl.node.common.records import Detail  # noqa: TC001  # `decode` looks it up

if TYPE_CHECKING:
    from ipexctl.node.common.answer import Json
    from ipexctl.node.common.http import HttpSettings


class EnvRecord(NamedTuple):
    """The content of env.json. A field that is added needs a default, as older files lack it.

    The control machine sends it; the agent adds the fields from `created` on, and the MPI inside the bindings.
    """

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
    """That of the oneCCL bindings."""
    retired: bool = False
    mpi: str | None = None
    why: str = ""
    installer: Json | None = None
    """The wheel of uv."""
    created: str = ""
    build: str = ""
    variables: Mapping[str, str] = {}
    prepended: tuple[str, ...] = ()
    built: tuple[str, ...] = ()
    """The packages whose wheels were built from source."""


class CheckResult(NamedTuple):
    """Whether an environment is what its lock says."""

    problems: tuple[str, ...]
    """Sentences: what is damaged."""
    exists: bool
    """Whether there is an environment of that name."""
    name: str
    """The name of its directory: `ipex-2.8-1a2b3c4d`."""
    build: str | None
    """The token of its build, for the `replace` of a build."""
    record: EnvRecord | None = None
    """None if it is damaged."""
    verified: Mapping[str, Json] = {}
    """Machine → how its verification there ended, where that was recorded."""

    @property
    def ok(self) -> bool:
        return self.record is not None

    @property
    def problem(self) -> str:
        """The first one; empty if there is none."""
        return "".join(self.problems[:1])

    @property
    def has_failed(self) -> bool:
        """Whether it was verified, and failed on every machine that verified it."""
        return bool(self.verified) and all(record.get("ok") is False for record in self.verified.values())


class EnvEntry(NamedTuple):
    """An entry of `ipexctl envs`."""

    name: str
    names: tuple[str, ...]
    """The names that point at it."""
    path: str
    row: str | None
    python: str | None
    backend: str | None
    created: str | None
    packages: Mapping[str, str]
    bytes: int | None
    """On disk; None if there was no time to look at all its files."""
    complete: bool


class EnvListing(NamedTuple):
    envs: tuple[EnvEntry, ...]
    leftovers: int
    """Files of builds that run or died."""
    leftover_bytes: int
    wheels: int
    wheel_bytes: int

    @property
    def unnamed(self) -> tuple[EnvEntry, ...]:
        return tuple(env for env in self.envs if not env.names)

    @property
    def prunable_bytes(self) -> int | None:
        """The bytes that a prune frees if nothing is in use; None if that was not measured."""
        sizes = [env.bytes for env in self.unnamed]
        if None in sizes:
            return None
        return self.leftover_bytes + self.wheel_bytes * bool(self.wheels) + sum(size for size in sizes if size)


class Unpacked(NamedTuple):
    wheels: tuple[str, ...]
    """The hashes of those that environments of the home have unpacked."""


class Removed(NamedTuple):
    removed: tuple[str, ...]
    failed: Mapping[str, str]
    """Name → the reason why it was not removed."""
    bytes: int = 0
    """Bytes of removed wheels and leftovers."""


class VerifyPhase(NamedTuple):
    """One step of a verification."""

    name: str
    ok: bool
    seconds: float
    rc: int | None = None
    signal: int | None = None
    """The number of the signal that ended it; of ranks, the one that mpirun reports."""
    timed_out: bool = False
    text: str = ""
    """The beginning and the end of its output, if it failed."""
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
    """The instructions of torch's own kernels: `AVX512`; never AMX, which only oneDNN uses."""
    bf16: str | None = None
    """`training`, `inference` or `no`."""
    bf16_why: str = ""
    """The reason why bf16 training was not possible."""
    backend: str | None = None
    launcher: str | None = None
    """The mpirun that started the two ranks; None if they were started without one."""
    allreduce_ms: tuple[float, ...] = ()
    """The best of three, for 4 KB and for 4 MB."""
    amx: bool | None = None
    """Whether torch finds AMX in the CPU; None if it can't tell."""
    allreduce_of: str | None = None
    """The environment whose all-reduce counts, as all its files are in this one; None: the ranks were those of this."""

    @property
    def failed(self) -> VerifyPhase | None:
        """The first failed phase."""
        return next((phase for phase in self.phases if not phase.ok), None)

    def to_json(self) -> Json:
        """The contract's `verify{}`."""
        document = self._asdict()
        del document["bf16_why"]
        phases = [phase._asdict() for phase in self.phases]
        for phase in phases:
            del phase["timed_out"], phase["detail"]
        return {**document, "phases": phases, "allreduce_ms": list(self.allreduce_ms)}


class PipSettings(NamedTuple):
    """The settings of pip on one machine."""

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
        """The settings for the machine's own http requests."""
        return {
            "trusted_hosts": self.trusted_hosts,
            "cert": self.cert,
            "client_cert": self.client_cert,
            "proxy": self.proxy,
        }


class AvailableWheel(NamedTuple):
    """An available wheel."""

    project: str
    """The normalised name."""
    version: str
    """`2.8.0+cpu`."""
    filename: str
    source: str
    """The label of its index or directory."""
    size: int | None = None
    yanked: bool = False
    requires_python: str | None = None
    url: str | None = None
    """Without credentials."""
    sha256: str | None = None
    mpi: str | None = None
    """The Intel MPI inside, read from a wheel of the bindings on a disk; empty if there is none, None if not known."""
    oneccl: bool | None = None
    """Whether oneCCL's library is inside, read in the same way."""


class SourceFailure(NamedTuple):
    """An index or directory that gave no answer, and the reason."""

    source: str
    reason: str


class QueryReply(NamedTuple):
    candidates: Mapping[str, tuple[AvailableWheel, ...]]
    """Project → its wheels; empty if no source has any."""
    answered: tuple[str, ...]
    """The sources that answered, in their order."""
    failures: tuple[SourceFailure, ...]
    logins: Mapping[str, str] = {}
    """`https://host` → the Authorization header for it, for later downloads."""


class LocalWheel(NamedTuple):
    """A wheel of a lock that is a file of the machine that made it."""

    path: str
    sha256: str
    size: int


class CompileReply(NamedTuple):
    pylock: str | None
    """None if uv made none."""
    local_wheels: Mapping[str, LocalWheel] = {}
    """By URL."""
    message: str = ""
    """What uv printed if it failed."""
