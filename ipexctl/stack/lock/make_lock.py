"""Makes a lock with uv on one machine, from a plan and the sources that answered there."""

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
from ipexctl.remote.reply import MalformedReply, Reply
from ipexctl.stack.lock import pylock
from ipexctl.stack.lock.indexes import IndexAnswer, lock_sources
from ipexctl.stack.lock.lock import Lock, Wheel
from ipexctl.stack.lock.solver_errors import explain, no_index_error
from ipexctl.stack.lock.wheels import tag_ranks

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping

    from packaging.tags import Tag

    from ipexctl.remote.cancel import Cancel
    from ipexctl.remote.session import Session
    from ipexctl.stack.resolve.model import Availability, Candidate, StackPlan

_OLDEST_UV: Final = Version("0.13")
"""Older versions leave out hashes that an index does not give."""
_TIME: Final = 300.0


@dataclass(frozen=True, slots=True)
class LockMaker:
    """The machine that makes the lock."""

    session: Session
    python: str
    """The interpreter that runs the agent."""
    home: str
    """The home directory there, with tmp and the store."""
    uv: str | Wheel
    """A path there, or a file of its store."""
    name: str = "the control machine"
    """For messages."""

    @property
    def store(self) -> str:
        return f"{self.home.rstrip('/')}/wheels"


def uv_here() -> str | None:
    """The uv installed with ipexctl; None if it has no binary for this machine."""
    try:
        import uv

        return str(uv.find_uv_bin())
    except (ImportError, FileNotFoundError):
        return None


def uv_for_node(availability: Availability | None, glibc: str) -> Wheel | None:
    """uv for a node: the newest of its indexes, else that of the control machine; None if neither runs on the node."""
    fitting = tag_ranks("3.8", glibc)
    candidates = availability.of("uv") if availability else ()
    found = [candidate for candidate in candidates if _is_usable(candidate, fitting)]
    if found:
        newest = max(found, key=lambda candidate: Version(candidate.version))
        return Wheel("uv", newest.version, newest.filename, newest.sha256 or "", newest.size, newest.url)
    binary = uv_here() if (sys.platform, platform.machine()) == ("linux", "x86_64") else None
    if binary is None:
        return None
    path = Path(binary)
    with path.open("rb") as file:
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
    return Wheel("uv", "", "uv", digest.hexdigest(), path.stat().st_size, path=str(path))


def make_lock(
    maker: LockMaker,
    plan: StackPlan,
    index_answer: IndexAnswer,
    *,
    extras: Iterable[str] = (),
    constraints: Iterable[str] = (),
    origins: Mapping[str, str] | None = None,
    cancel: Cancel | None = None,
) -> Lock:
    """The exact wheels of this plan, from the sources that answered on that machine. Raises a HostError.

    `origins` says where the user wrote each requirement, for messages.
    """
    wanted = tuple(extras)
    if not index_answer.sources:
        raise no_index_error(index_answer)
    request = {
        "uv": _uv_request(maker),
        "requirements": [*plan.requirements, *wanted],
        "constraints": [*plan.constraints, *constraints],
        "python": plan.python,
        "platform": pylock.platform_for(plan.glibc),
        "sources": [source.to_json() for source in lock_sources(index_answer)],
        "settings": index_answer.settings.transport(),
        "home": maker.home,
        "timeout": _TIME,
    }
    reply = _run(maker, "env.lock", "compile", request, cancel=cancel, timeout=_TIME + 30)
    if reply.get("pylock") is None:
        raise explain(str(reply.get("said") or ""), plan, wanted, origins or {}, index_answer, maker.name)
    try:
        wheels = pylock.read(reply["pylock"], plan.python, plan.glibc, reply.get("on_disk") or {})
    except pylock.NoWheel as package:
        raise HostError(f"there is no wheel of {package} for Python {plan.python} and glibc {plan.glibc}") from None
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise MalformedReply(f"pylock.toml: {error}", str(reply["pylock"])) from None
    if unknown := [wheel.filename for wheel in wheels if not wheel.sha256]:
        raise HostError(f"the index gives no sha256 of {', '.join(unknown)}", "use another index: --index-url URL")
    if not isinstance(maker.session, LocalSession):
        wheels = tuple(_without_path(wheel) for wheel in wheels)
    return Lock(plan.python, sized(maker, wheels, index_answer, cancel))


def _without_path(wheel: Wheel) -> Wheel:
    """A path on another host is a URL for that host: this machine must not read a file that a host names."""
    if wheel.path is None:
        return wheel
    return replace(wheel, path=None, url=f"file://{quote(wheel.path)}")


def sized(
    maker: LockMaker, wheels: tuple[Wheel, ...], index_answer: IndexAnswer, cancel: Cancel | None = None
) -> tuple[Wheel, ...]:
    """Add sizes that the indexes did not give, by HTTP HEAD requests; some may stay unknown."""
    known = {
        c.url: c.size for items in index_answer.availability.candidates.values() for c in items if c.size is not None
    }
    wheels = tuple(replace(w, size=known.get(w.url)) if w.size is None and w.url in known else w for w in wheels)
    urls = [wheel.url for wheel in wheels if wheel.size is None and wheel.url]
    if not urls:
        return wheels
    found = _run(
        maker, "env.indexes", "sizes", {"urls": urls, "timeout": 5, **_transport(index_answer)}, cancel=cancel
    ).record("sizes")
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


def _transport(index_answer: IndexAnswer) -> dict[str, Any]:
    return {"settings": index_answer.settings.transport(), "logins": dict(index_answer.logins)}


def _uv_request(maker: LockMaker) -> str | dict[str, str]:
    if isinstance(maker.uv, str):
        return maker.uv
    return {"store": maker.store, "sha256": maker.uv.sha256, "name": maker.uv.filename}


def _is_usable(candidate: Candidate, fitting: Container[Tag]) -> bool:
    try:
        name, version, _, named = parse_wheel_filename(candidate.filename)
    except (InvalidWheelFilename, InvalidVersion):
        return False
    if not candidate.sha256 or not (candidate.url or "").startswith("http"):
        return False  # a file on the disk of one machine
    usable = not candidate.yanked and not version.is_prerelease and version >= _OLDEST_UV
    # Its wheels fit every Python, so only the platform is compared.
    return usable and name == "uv" and any(tag in fitting for tag in named)
