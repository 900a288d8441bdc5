"""Requests of the calls about files. A sync does not import this module: its classes take 2 ms of each host's time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Sequence, TypedDict

from ipexctl.node.common.files import HomeRequest

if TYPE_CHECKING:
    from typing_extensions import NotRequired

    from ipexctl.node.common.answer import Json


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
    """Other accounts may change a directory above the store: `enter_store` holds it."""
    is_of_path: NotRequired[bool]
    """The store is of a push to the user's PATH, not in a home."""


class HaveRequest(StoreRequest):
    verify: bool


class ReceiveRequest(TypedDict):
    store: str
    home: NotRequired[str]
    files: list[StoreFile] | None
    """The only files accepted; None accepts all."""
    asks: NotRequired[bool]
    """First report which of these files the store lacks; only those are accepted then."""
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


class TreeRequest(HomeRequest):
    project: str
    digest: str
    lease: str | None
    ended: list[str]
    """Runs that use no tree any more, whatever their records say."""
    dry_run: bool
    data: list[str]
    """Paths the host owns now, even where an earlier sync wrote something."""


class PutRequest(TreeRequest):
    manifest: int
    """Size of the packed manifest that follows, before the contents."""
    size: int
    """Bytes of the contents that follow."""
    generation: int
    parcels: list[str]
    """Hashes of parcels that are in the tree's stage already."""


class InspectRequest(HomeRequest):
    path: str
    """Absolute, or relative to the account's home."""
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


class PlaceRequest(HomeRequest):
    by: Json | None
    """Who pushes, as `RunBy`."""
    path: str
    listed: str
    force: bool
    repos: str
    is_of_path: bool
    parcels: list[str]
