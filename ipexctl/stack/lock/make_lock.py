"""Making a lock on one machine: uv decides which versions, and what the indexes leave out is found out here.

Which stack is meant is decided before; getting the wheels comes after.
"""

from __future__ import annotations

import hashlib
import platform
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from ipexctl.remote.local import LocalSession
from ipexctl.remote.node_call import call
from ipexctl.remote.outcome import HostError
from ipexctl.remote.reply import MalformedReply
from ipexctl.stack.lock import pylock
from ipexctl.stack.lock.lock import Lock
from ipexctl.stack.lock.solver_errors import explain, no_index_error

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from packaging.tags import Tag

    from ipexctl.remote.cancel import Cancel
    from ipexctl.remote.reply import Reply
    from ipexctl.remote.session import Session
    from ipexctl.stack.lock.indexes import IndexAnswer
    from ipexctl.stack.lock.lock import Wheel
    from ipexctl.stack.resolve.model import Availability, Candidate, StackPlan

_OLDEST_UV: Final = Version("0.13")
"""Older ones leave out hashes that an index doesn't give."""
_TIME: Final = 300.0


@dataclass(frozen=True, slots=True)
class UvFile:
    """uv as a file for a node's store: its wheel, or the binary alone."""

    name: str
    sha256: str
    size: int | None = None
    url: str | None = None
    """Where the node can fetch it itself."""
    path: str | None = None
    """Where it lies on this machine."""


@dataclass(frozen=True, slots=True)
class LockMaker:
    """The machine that makes the lock."""

    session: Session
    python: str
    """Its interpreter for our scripts."""
    home: str
    """Our directory there: its tmp is worked in, and uv may lie in its store."""
    uv: str | UvFile
    """A path there, or what lies in its store."""

    @property
    def store(self) -> str:
        return f"{self.home.rstrip('/')}/wheels"


def uv_here() -> str | None:
    """The uv that came with us; None where there is no binary of it for this machine."""
    try:
        import uv

        return str(uv.find_uv_bin())
    except (ImportError, FileNotFoundError):
        return None


def uv_for_node(obtainable: Availability | None, glibc: str) -> UvFile | None:
    """How a node gets uv: its indexes' newest, else ours where the node can run it. None: the lock is made here."""
    ranks = set(pylock.tags("3.8", glibc))
    found = [candidate for candidate in (obtainable.of("uv") if obtainable else ()) if _is_usable(candidate, ranks)]
    if found:
        newest = max(found, key=lambda candidate: Version(candidate.version))
        return UvFile(newest.filename, newest.sha256 or "", newest.size, newest.url)
    binary = uv_here() if (sys.platform, platform.machine()) == ("linux", "x86_64") else None
    if binary is None:
        return None
    path = Path(binary)
    with path.open("rb") as file:
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
    return UvFile("uv", digest.hexdigest(), path.stat().st_size, path=str(path))


def make_lock(
    maker: LockMaker,
    plan: StackPlan,
    asked: IndexAnswer,
    *,
    extras: Iterable[str] = (),
    constraints: Iterable[str] = (),
    origins: Mapping[str, str] | None = None,
    kept: Iterable[Wheel] = (),
    cancel: Cancel | None = None,
) -> Lock:
    """The exact wheels of this plan, from the sources that answered on that machine; raises a HostError.

    `origins`: requirement line → where the user wrote it, for messages. `kept`: wheels in that machine's store that
    count besides, such as those of a wheelhouse that is elsewhere.
    """
    wanted = tuple(extras)
    files = [{"sha256": wheel.sha256, "name": wheel.filename} for wheel in kept]
    if not asked.sources and not files:
        raise no_index_error(asked)
    request = {
        "uv": _uv_word(maker),
        "requirements": [*plan.requirements, *wanted],
        "constraints": [*plan.constraints, *constraints],
        "python": plan.python,
        "platform": pylock.platform_for(plan.glibc),
        "sources": [source.to_json() for source in asked.sources],
        "settings": asked.settings.transport(),
        "home": maker.home,
        "kept": {"store": maker.store, "files": files} if files else None,
        "timeout": _TIME,
    }
    said = _run(maker, "env.lock", "compile", request, cancel=cancel, timeout=_TIME + 30)
    if said.get("pylock") is None:
        raise explain(str(said.get("said") or ""), plan, wanted, origins or {}, asked)
    try:
        wheels = pylock.read(said["pylock"], plan.python, plan.glibc, said.get("on_disk") or {})
    except pylock.NoWheel as package:
        raise HostError(f"there is no wheel of {package} for Python {plan.python} and glibc {plan.glibc}") from None
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise MalformedReply(f"pylock.toml: {error}", str(said["pylock"])) from None
    if unknown := [wheel.filename for wheel in wheels if not wheel.sha256]:
        raise HostError(f"the index gives no sha256 of {', '.join(unknown)}", "use another index for it")
    if not isinstance(maker.session, LocalSession):
        wheels = tuple(_without_path(wheel) for wheel in wheels)
    return Lock(plan.python, sized(maker, wheels, asked, cancel))


def _without_path(wheel: Wheel) -> Wheel:
    """A path on another host is a URL for that host: this machine must not read a file that a host names."""
    if wheel.path is None:
        return wheel
    return replace(wheel, path=None, url=f"file://{quote(wheel.path)}")


def sized(
    maker: LockMaker, wheels: tuple[Wheel, ...], asked: IndexAnswer, cancel: Cancel | None = None
) -> tuple[Wheel, ...]:
    """Sizes the index didn't give, asked for without fetching; a size nobody says stays unknown."""
    known = {c.url: c.size for items in asked.obtainable.candidates.values() for c in items if c.size is not None}
    wheels = tuple(replace(w, size=known.get(w.url)) if w.size is None and w.url in known else w for w in wheels)
    urls = [wheel.url for wheel in wheels if wheel.size is None and wheel.url]
    if not urls:
        return wheels
    found = _run(maker, "env.sizes", "read", {"urls": urls, "timeout": 5, **_transport(asked)}, cancel=cancel).record(
        "sizes"
    )
    return tuple(replace(w, size=found.integer_or_none(w.url)) if w.size is None and w.url else w for w in wheels)


def _run(
    maker: LockMaker,
    command: str,
    action: str,
    request: Mapping[str, Any],
    *,
    cancel: Cancel | None = None,
    timeout: float | None = None,
) -> Reply:
    return call(maker.session, command, action, request, python=maker.python, timeout=timeout, cancel=cancel)


def _transport(asked: IndexAnswer) -> dict[str, Any]:
    return {"settings": asked.settings.transport(), "logins": dict(asked.logins)}


def _uv_word(maker: LockMaker) -> str | dict[str, str]:
    if isinstance(maker.uv, str):
        return maker.uv
    return {"store": maker.store, "sha256": maker.uv.sha256, "name": maker.uv.name}


def _is_usable(candidate: Candidate, fitting: set[Tag]) -> bool:
    try:
        name, version, _, named = parse_wheel_filename(candidate.filename)
    except (InvalidWheelFilename, InvalidVersion):
        return False
    if not candidate.sha256 or not (candidate.url or "").startswith("http"):
        return False  # a file on one machine's disk is not to be had on another
    usable = not candidate.yanked and not version.is_prerelease and version >= _OLDEST_UV
    # Its wheels are for every Python: what counts is the platform.
    return usable and name == "uv" and any(tag in fitting for tag in named)
