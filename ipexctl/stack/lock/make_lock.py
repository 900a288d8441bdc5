"""Makes a lock with uv on one machine, from a plan and the sources that answered there."""

from __future__ import annotations

import platform
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from packaging.version import Version

from ipexctl.node.common.files import sha256_of
from ipexctl.remote.local import LocalSession
from ipexctl.remote.node_call import call
from ipexctl.remote.outcome import HostError
from ipexctl.remote.reply import MalformedReply, Reply
from ipexctl.stack.lock import pylock
from ipexctl.stack.lock.indexes import IndexAnswer, lock_sources
from ipexctl.stack.lock.lock import Lock, Wheel
from ipexctl.stack.lock.solver_errors import explain, no_index_error
from ipexctl.stack.lock.wheels import Target, Wheels

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ipexctl.remote.cancel import Cancel
    from ipexctl.remote.session import Session
    from ipexctl.stack.resolve.model import Availability, StackPlan

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
    cancel: Cancel | None = None

    def call(self, command: str, action: str, request: Mapping[str, Any], timeout: float | None = None) -> Reply:
        return call(self.session, command, action, request, python=self.python, timeout=timeout, cancel=self.cancel)


def uv_here() -> str | None:
    """The uv installed with ipexctl; None if it has no binary for this machine."""
    try:
        import uv

        return str(uv.find_uv_bin())
    except (ImportError, FileNotFoundError):
        return None


def uv_for_node(availability: Availability | None, glibc: str) -> Wheel | None:
    """uv for a node: the newest of its indexes, else that of the control machine; None if neither runs on the node."""
    # Its wheels fit every Python, so only the platform is compared.
    found = [
        (version, candidate)
        for candidate, version in Wheels(availability).runnable("uv", Target("3.8", glibc))
        if candidate.filename.startswith("uv-") and not (candidate.yanked or version.is_prerelease)
        # Not a file on the disk of one machine.
        if version >= _OLDEST_UV and candidate.sha256 and (candidate.url or "").startswith("http")
    ]
    if found:
        newest = max(found, key=lambda item: item[0])[1]
        return Wheel("uv", newest.version, newest.filename, newest.sha256 or "", newest.size, newest.url)
    binary = uv_here() if (sys.platform, platform.machine()) == ("linux", "x86_64") else None
    if binary is None:
        return None
    return Wheel("uv", "", "uv", sha256_of(binary), Path(binary).stat().st_size, path=binary)


def make_lock(
    maker: LockMaker,
    plan: StackPlan,
    index_answer: IndexAnswer,
    *,
    extras: Iterable[str] = (),
    constraints: Iterable[str] = (),
    origins: Mapping[str, str] | None = None,
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
    reply = maker.call("env.lock", "compile", request, timeout=_TIME + 30)
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
    return Lock(plan.python, sized(maker, wheels, index_answer))


def _without_path(wheel: Wheel) -> Wheel:
    """A path on another host is a URL for that host: this machine must not read a file that a host names."""
    if wheel.path is None:
        return wheel
    return replace(wheel, path=None, url=f"file://{quote(wheel.path)}")


def sized(maker: LockMaker, wheels: tuple[Wheel, ...], index_answer: IndexAnswer) -> tuple[Wheel, ...]:
    """Add sizes that the indexes did not give, by HTTP HEAD requests; some may stay unknown."""
    known = {
        c.url: c.size for items in index_answer.availability.candidates.values() for c in items if c.size is not None
    }
    wheels = tuple(replace(w, size=known.get(w.url)) if w.size is None and w.url in known else w for w in wheels)
    urls = [wheel.url for wheel in wheels if wheel.size is None and wheel.url]
    if not urls:
        return wheels
    settings, logins = index_answer.settings.transport(), dict(index_answer.logins)
    request = {"urls": urls, "timeout": 5, "settings": settings, "logins": logins}
    found = maker.call("env.indexes", "sizes", request).record("sizes")
    return tuple(replace(w, size=found.integer_or_none(w.url)) if w.size is None and w.url else w for w in wheels)


def _uv_request(maker: LockMaker) -> str | dict[str, str]:
    if isinstance(maker.uv, str):
        return maker.uv
    store = f"{maker.home.rstrip('/')}/wheels"
    return {"store": store, "sha256": maker.uv.sha256, "name": maker.uv.filename}
