"""What env.json contains, and what the commands for environments reply.

The control machine decodes the replies by these types (`reply.decode(KIND)`). `PipSettings` shows nothing in its repr,
because its URLs may contain logins.
"""

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
    """Directory of the environment, as in `ipex-2.8-1a2b3c4d`: the row and the beginning of the digest."""
    row: str
    """The stack, as in `ipex-2.8`."""
    python: str
    """Such as `3.11`."""
    interpreter: str
    """Path of the Python for which it was built."""
    digest: str
    """Hash of the lock; environments with equal digests have equal packages."""
    packages: Mapping[str, str]
    """Package → version."""
    backend: str
    """Backend of torch.distributed."""
    requests: tuple[Json, ...]
    """The requests of `install` that this environment fulfils; a later one with the same request finds it."""
    module: str | None = None
    """Module of the oneCCL bindings; None without bindings."""
    retired: bool = False
    """True for a stack that gets no more fixes."""
    mpi: str | None = None
    """Version of the Intel MPI in the environment; None if it has none."""
    why: str = ""
    """Why this stack was chosen."""
    installer: Json | None = None
    """The wheel of uv that built it."""
    created: str = ""
    """Time of the build in UTC: `2026-11-20T13:25:12Z`."""
    build: str = ""
    """Token of the build; a rebuilt environment has another."""
    variables: Mapping[str, str] = {}
    """Variables that ranks need, such as CCL_ROOT."""
    prepended: tuple[str, ...] = ()
    """Names of `variables` whose value is put before the value that a rank has."""
    built: tuple[str, ...] = ()
    """Packages that were built from source."""
    by: Json | None = None
    """Who installed it, as `RunBy`; None if that is unknown."""
    origins: Mapping[str, str] = {}
    """Package → the index of the call or the project that has it, without credentials."""


class CheckResult(NamedTuple):
    """What a check found of an environment."""

    problems: tuple[str, ...]
    """Sentences; empty if the environment is intact."""
    exists: bool
    name: str
    """As in `ipex-2.8-1a2b3c4d`."""
    build: str | None
    """Token of the environment's build; None without a record."""
    record: EnvRecord | None = None
    """None if there are problems."""
    verified: Mapping[str, Json] = {}
    """Token of a machine → the result of the last verification there (`VerifyResult`)."""

    @property
    def ok(self) -> bool:
        """True if the environment is intact, whether or not it passed a verification."""
        return self.record is not None

    @property
    def problem(self) -> str:
        """Return the first problem; empty if there is none."""
        return "".join(self.problems[:1])

    @property
    def has_failed(self) -> bool:
        """True if the environment failed on every machine that verified it."""
        return bool(self.verified) and all(record.get("ok") is False for record in self.verified.values())


class EnvEntry(NamedTuple):
    """An environment in a listing. Fields of its record are None if the record is damaged."""

    name: str
    """Its directory, as in `ipex-2.8-1a2b3c4d`."""
    names: tuple[str, ...]
    """Names that users gave it, such as `default`; empty if it has none."""
    path: str
    row: str | None
    python: str | None
    backend: str | None
    created: str | None
    packages: Mapping[str, str]
    bytes: int | None
    """Bytes on disk; None if not measured in time."""
    complete: bool
    """True if its record has the digest of a lock, and its Python exists."""
    by: RunBy | None = None
    """Who installed it; None if that is unknown."""


class EnvListing(NamedTuple):
    """The environments of a home, and what a prune could remove beside them."""

    envs: tuple[EnvEntry, ...]
    leftovers: int
    """Number of directories of unfinished builds and removals."""
    leftover_bytes: int
    wheels: int
    """Number of entries in the store of wheels."""
    wheel_bytes: int

    @property
    def unnamed(self) -> tuple[EnvEntry, ...]:
        """Return the environments that no name leads to, which a prune removes."""
        return tuple(env for env in self.envs if not env.names)

    @property
    def prunable_bytes(self) -> int | None:
        """Return the bytes that a prune frees if nothing is in use; None if a size was not measured in time."""
        sizes = [env.bytes for env in self.unnamed]
        if None in sizes:
            return None
        wheel_bytes = self.wheel_bytes if self.wheels else 0
        return self.leftover_bytes + wheel_bytes + sum(size for size in sizes if size)


class Removed(NamedTuple):
    """What a removal or a prune has removed, and what it has not."""

    removed: tuple[str, ...]
    """Names and directories of environments that are gone."""
    failed: Mapping[str, str]
    """Name → why it was not removed."""
    bytes: int = 0
    """Bytes of leftovers and wheels that a prune freed, without those of environments."""
    foreign: tuple[Owned, ...] = ()
    """What others installed, which a prune without force keeps."""


class VerifyPhase(NamedTuple):
    """One step of a verification: `torch`, `ipex`, `bindings`, `import PACKAGE` or `allreduce`."""

    name: str
    ok: bool
    seconds: float
    rc: int | None = None
    """Exit code; 0 if ok."""
    signal: int | None = None
    """Signal that killed the step; for ranks, as mpirun reports it. None if no signal did, or after a timeout."""
    timed_out: bool = False
    text: str = ""
    """Output of a failed step."""
    detail: Detail | None = None
    """What a rank of a failed all-reduce reported; None if it reported nothing."""


class VerifyResult(NamedTuple):
    """Result of a verification. Facts are None if their step failed or did not run."""

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
        """Return the first failed step; None if all passed."""
        return next((phase for phase in self.phases if not phase.ok), None)

    def to_json(self) -> Json:
        """Return the result for `--json`; its steps lack `timed_out` and `detail`."""
        phases = [phase._asdict() for phase in self.phases]
        for phase in phases:
            del phase["timed_out"], phase["detail"]
        return {**self._asdict(), "phases": phases, "allreduce_ms": list(self.allreduce_ms)}


class PipSettings(NamedTuple):
    """Options of pip on a host; None and empty: not set."""

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
        """Return the settings for the connection itself, without the indexes."""
        return {
            "trusted_hosts": self.trusted_hosts,
            "cert": self.cert,
            "client_cert": self.client_cert,
            "proxy": self.proxy,
        }


class AvailableWheel(NamedTuple):
    """A wheel, or a source archive, that an index or a directory has. None: the source does not say."""

    project: str
    """Normalized name of the package."""
    version: str
    filename: str
    source: str
    """Label of the index or directory."""
    size: int | None = None
    """Bytes."""
    yanked: bool = False
    requires_python: str | None = None
    """As in `>=3.9`."""
    url: str | None = None
    sha256: str | None = None
    mpi: str | None = None
    """Version of the Intel MPI inside a local bindings wheel; empty without one, None if unknown."""
    oneccl: bool | None = None
    """True if a local bindings wheel contains oneCCL's library; None if unknown."""


class SourceFailure(NamedTuple):
    """An index or a directory that could not be asked."""

    source: str
    """Its label."""
    reason: str
    has_replied: bool = False
    """True if it answered for another package."""


class QueryReply(NamedTuple):
    """What the sources have. Contains logins, so it must not be logged."""

    candidates: Mapping[str, tuple[AvailableWheel, ...]]
    """Normalized name of a package → its wheels, in the order of the sources."""
    answered: tuple[str, ...]
    """Labels of the sources that answered for all packages."""
    failures: tuple[SourceFailure, ...]
    logins: Mapping[str, str] = {}
    """Origin, such as `https://host` → value of the Authorization header, for later downloads."""


class LocalWheel(NamedTuple):
    """A wheel on the machine that made the lock."""

    path: str
    sha256: str
    size: int
    """Bytes."""


class ListReply(NamedTuple):
    """What a project requires, as its build backend says."""

    requires: tuple[str, ...] = ()
    """As in METADATA, with the markers of extras."""
    message: str = ""
    """Why the backend did not answer; empty if it did."""


class CompileReply(NamedTuple):
    """The lock that uv made."""

    pylock: str | None
    """Text of a pylock.toml; None if no lock was made."""
    local_wheels: Mapping[str, LocalWheel] = {}
    """URL in the lock → the wheel, for wheels of directories and wheels that were built."""
    message: str = ""
    """What uv printed, or the names of packages whose wheels do not fit, if no lock was made."""
    is_of_named: bool = False
    """True if the wheels of the named directories, or packages built before, do not fulfil what is required of them."""
