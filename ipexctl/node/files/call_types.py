"""Requests and replies of the calls about files. The control machine decodes replies strictly by their types."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Sequence, TypedDict

if TYPE_CHECKING:
    from typing_extensions import NotRequired


class StoreFile(TypedDict):
    sha256: str
    name: str
    size: int | None
    offset: NotRequired[int]
    """Where to start sending: the receiver has the bytes before it."""


class StoreRequest(TypedDict):
    store: str
    home: NotRequired[str]
    """Home that contains the store. Other stores are in directories only ipexctl uses."""
    files: list[StoreFile]
    guarded: NotRequired[bool]
    """Other accounts may change a directory above the store: it is `entered`."""
    is_of_path: NotRequired[bool]
    """The store is of a push to the user's PATH, not in a home."""


class HaveRequest(StoreRequest):
    verify: bool


class ReceiveRequest(TypedDict):
    store: str
    home: NotRequired[str]
    files: list[StoreFile] | None
    """The only files accepted; None accepts all."""
    guarded: NotRequired[bool]
    is_of_path: NotRequired[bool]


class ServeRequest(StoreRequest):
    bind: str
    token: str
    clients: int
    addresses: Sequence[str]
    """Their addresses if known: when strangers fill the port, their connections are kept longest."""
    idle: float
    """The server exits after this many seconds without a client."""


class ConnectRequest(StoreRequest):
    address: str
    port: int
    token: str


class TreeRequest(TypedDict):
    home: str
    project: str
    digest: str
    lease: str | None
    ended: list[str]
    """Runs that use no tree any more, whatever their records say."""
    dry_run: bool
    data: list[str]
    """Paths the host owns now, even where an earlier sync wrote something."""
    manifest: NotRequired[int]
    """For an update: size of the packed manifest that follows, before the contents."""
    expected: NotRequired[str | None]
    """Digest of the only tree, to update in the same call. None: no tree yet."""
    size: NotRequired[int]
    """Bytes of the contents that follow."""


class PutRequest(TreeRequest):
    generation: int
    parcels: list[str]
    """Hashes of parcels that are in the tree's stage already."""


class InspectRequest(TypedDict):
    path: str
    """Absolute, or relative to the account's home."""
    home: str
    manifest: int
    is_file: bool
    force: bool
    dry_run: bool
    repos: str
    """Repositories of a hub: the list is of its cache, and the path is the cache's place below the home. Else empty."""
    is_of_path: bool
    """False for a hub."""
    quick: bool
    """Compare sizes only: another host with this directory has just written it."""


class PlaceRequest(TypedDict):
    path: str
    listed: str
    force: bool
    repos: str
    is_of_path: bool
    parcels: list[str]


class Generation(NamedTuple):
    number: int
    path: str
    digest: str | None
    whole: bool
    held: tuple[str, ...] = ()
    ended: tuple[str, ...] = ()
    staged: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    blocked: tuple[str, ...] = ()


class TreeChanges(NamedTuple):
    path: str
    changed: bool
    placed: int
    deleted: int
    kept: tuple[str, ...]
    blocked: tuple[str, ...]
    moved_away: tuple[str, ...]
    would_place: tuple[str, ...] = ()
    would_delete: tuple[str, ...] = ()


class PutReply(NamedTuple):
    """Without changes, the reason: missing contents, or runs that use the tree. Neither: another call was faster."""

    changes: TreeChanges | None = None
    need: tuple[str, ...] = ()
    busy: tuple[str, ...] = ()


class TreesReply(NamedTuple):
    home: str
    store: str | None
    """Equal on hosts that share this home; None if unknown."""
    python: str
    generations: tuple[Generation, ...]
    updated: TreeChanges | None = None
    """Of an update in the same call."""

    @property
    def is_changed(self) -> bool:
        return self.updated is not None and self.updated.changed

    def generation(self, number: int) -> Generation | None:
        return next((generation for generation in self.generations if generation.number == number), None)


class InspectReply(NamedTuple):
    """What a path has of a push's list. Names are cut after the first few."""

    path: str
    python: str
    directory: str
    """The push's directory, next to or in the path; empty if nothing is missing."""
    token: str
    """Equal on hosts that share this directory."""
    listed: str
    """Hash of the list in the directory, passed back to `place`."""
    same: int
    lacking: int
    is_complete: bool
    is_refused: bool
    need: tuple[str, ...]
    names: tuple[str, ...] = ()
    differing: tuple[str, ...] = ()
    differing_count: int = 0
    blocked: tuple[str, ...] = ()
    """Names where a directory, or a link to one, is in the way of a file, or vice versa."""
    blocked_count: int = 0


class PlaceReply(NamedTuple):
    placed: int


class SnapshotReply(NamedTuple):
    folder: str
    commit: str
    entries: str
    files: int
    downloaded: int


class DownloadReply(NamedTuple):
    snapshots: tuple[SnapshotReply, ...]


class CachedRepo(NamedTuple):
    kind: str
    repo_id: str
    revisions: tuple[str, ...]
    """Branches and tags in the cache, else commits."""
    files: int
    size: int
    used: float
    """Last read of one of its files if the filesystem records that, else last write."""


class CacheReply(NamedTuple):
    path: str
    repos: tuple[CachedRepo, ...]
    removed: tuple[str, ...] = ()
    freed: int = 0
