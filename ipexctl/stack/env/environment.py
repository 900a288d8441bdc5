"""Calls of the agent's environment commands on one host: build, check, verify, list, remove (`node/env/`).

An environment is built under another name and renamed, so it is complete or absent. Verifications are recorded per
machine (`machine_token`), because hosts that share a home share the environment but may differ in CPU and libraries.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ipexctl.facts.facts import Facts
from ipexctl.hosts.host import Host
from ipexctl.limits import ENV_BUILD, ENV_CHECK, ENV_STEP
from ipexctl.node.common.answer import Json
from ipexctl.node.env.build import BuildRequest, LockedWheel
from ipexctl.node.env.check import normalize
from ipexctl.node.env.environments import (
    CheckRequest,
    HomeRequest,
    LinkRequest,
    NoteRequest,
    PruneRequest,
    RemoveRequest,
    UsedRequest,
)
from ipexctl.node.env.replies import CheckResult, EnvListing, EnvRecord, Removed, Unpacked, VerifyResult
from ipexctl.node.env.unpacked import UnpackedRequest
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.node_call import call
from ipexctl.remote.outcome import HostError
from ipexctl.remote.reply import MalformedReply, Reply
from ipexctl.remote.session import Session
from ipexctl.stack.lock.lock import Lock, Wheel

if TYPE_CHECKING:
    from ipexctl.node.env.verify import VerifyRequest
    from ipexctl.stack.lock.indexes import IndexAnswer


@dataclass(frozen=True, slots=True)
class EnvSpec:
    name: str
    lock: Lock
    installer: Wheel | None
    """uv; None if nothing is built."""
    record: EnvRecord = field(hash=False)
    interpreters: Mapping[str, str] = field(hash=False)
    index_answer: IndexAnswer | None = field(default=None, repr=False)
    """None for an older lock that was read from a host."""
    by_node0: bool = True
    """True if the first host downloads the wheels; their URLs come from a host then."""
    unpacked: Mapping[str, frozenset[str]] = field(default_factory=dict, hash=False)
    """Host → hashes of wheels unpacked in its home; they need not be sent."""
    broken: Mapping[str, str | None] = field(default_factory=dict, hash=False)
    """Host → build token of a damaged or failed environment to replace."""

    def lacking(self, hosts: Sequence[Host]) -> Lock:
        return self.lock.without(in_common(self.unpacked, hosts))

    def files(self, hosts: Sequence[Host]) -> tuple[Wheel, ...]:
        return (*self.lacking(hosts).wheels, *((self.installer,) if self.installer else ()))


def in_common(unpacked: Mapping[str, frozenset[str]], hosts: Sequence[Host]) -> frozenset[str]:
    of_hosts = [unpacked.get(host.name, frozenset()) for host in hosts]
    return frozenset.intersection(*of_hosts) if of_hosts else frozenset()


def machine_token(facts: Facts, host: Host) -> str:
    return hashlib.sha256((facts.machine or host.name).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class EnvClient:
    """The environments in one host's home. Every call raises a HostError."""

    session: Session
    python: str
    home: str
    cancel: Cancel | None = None

    def build(
        self,
        spec: EnvSpec,
        interpreter: str,
        *,
        drop_wheels: bool = False,
        replace: str | None = None,
        on_event: Callable[[Reply], None],
        timeout: float | None = ENV_BUILD,
    ) -> bool:
        """Build for `interpreter` from the host's wheels and unpacked packages; False if the environment exists.

        `replace` is the build token of a damaged environment.
        """
        lock, uv = spec.lock, spec.installer
        assert uv is not None
        request: BuildRequest = {
            "home": self.home,
            "name": spec.name,
            "python": interpreter,
            "files": [wheel.stored_file.to_json() for wheel in spec.lacking([self.session.host]).wheels],
            "installer": uv.stored_file.to_json(),
            "record": spec.record._replace(interpreter=interpreter)._asdict(),
            "lock": lock.to_json(),
            "drop_wheels": drop_wheels,
            "replace": replace,
        }
        reply = call(
            self.session,
            "env.build",
            "build",
            request,
            python=self.python,
            home=self.home,
            cached=True,
            on_event=on_event,
            timeout=timeout,
            cancel=self.cancel,
        )
        return reply.text("state") == "built"

    def check(
        self, name: str, *, digest: str | None = None, cached: bool = False, timeout: float | None = ENV_CHECK
    ) -> CheckResult:
        """Compare an environment, given by directory or name, with its lock."""
        request: CheckRequest = {"home": self.home, "name": name, "digest": digest}
        return self._call("check", request, cached=cached, timeout=timeout).decode(CheckResult)

    def verify(
        self, name: str, record: EnvRecord, *, machine: str, packages: Sequence[str] = (), timeout: float | None = None
    ) -> VerifyResult:
        """The result is recorded under `machine`."""
        path = f"{self.home}/envs/{name}"
        return verify(
            self.session,
            f"{path}/bin/python",
            record,
            packages=packages,
            keep=f"{path}/verified/{machine}.json",
            timeout=timeout,
            cancel=self.cancel,
        )

    def unpacked(self, python: str, wheels: Sequence[LockedWheel], *, cached: bool) -> frozenset[str]:
        request: UnpackedRequest = {"home": self.home, "python": python, "wheels": wheels}
        return frozenset(self._call("unpacked", request, cached=cached).decode(Unpacked).wheels)

    def listing(self) -> EnvListing:
        return self._call("list", {"home": self.home}, cached=False).decode(EnvListing)

    def remove(self, names: Sequence[str], used: Mapping[str, str]) -> Removed:
        """Remove environments by directory or name; one in use stays, which is an error.

        `used`: environment in use on other hosts of the home → where.
        """
        request: RemoveRequest = {"home": self.home, "names": names, "used": used}
        return self._remove("remove", request)

    def is_used(self, name: str, names: Sequence[str], *, or_named: bool) -> bool:
        """True if a process uses the environment, also by one of `names`, or (with `or_named`) if it has a name."""
        request: UsedRequest = {"home": self.home, "name": name, "names": names, "or_named": or_named}
        return self._call("used", request).flag("used")

    def prune(self, used: Mapping[str, str]) -> Removed:
        """Remove leftovers, wheels, and environments without a name; `used` as for `remove`."""
        request: PruneRequest = {"home": self.home, "used": used}
        return self._remove("prune", request)

    def _remove(self, action: str, request: PruneRequest) -> Removed:
        outcome = self._call(action, request, timeout=ENV_BUILD).decode(Removed)
        for name, reason in outcome.failed.items():
            raise HostError(f"{name} was not removed: {reason}")
        return outcome

    def link(self, name: str, link: str) -> None:
        request: LinkRequest = {"home": self.home, "name": name, "link": link}
        self._call("link", request)

    def unlink(self, name: str, link: str) -> None:
        request: LinkRequest = {"home": self.home, "name": name, "link": link}
        self._call("unlink", request)

    def add_request(self, name: str, request: Json) -> None:
        added: NoteRequest = {"home": self.home, "name": name, "request": request}
        self._call("note", added)

    def _call(
        self, action: str, request: HomeRequest, *, cached: bool = True, timeout: float | None = ENV_CHECK
    ) -> Reply:
        return call(
            self.session,
            "env.environments",
            action,
            request,
            python=self.python,
            home=self.home,
            cached=cached,
            timeout=timeout,
            cancel=self.cancel,
        )


def verify(
    session: Session,
    python: str,
    record: EnvRecord | None = None,
    *,
    packages: Sequence[str] = (),
    setup: str | None = None,
    keep: str | None = None,
    timeout: float | None = None,
    cancel: Cancel | None = None,
) -> VerifyResult:
    """Verify an interpreter's environment: imports, a training step in bf16, an all-reduce of two ranks.

    With a record, what it lists must exist; of `packages`, the listed ones are imported. `keep` is a file on the host
    for the result.
    """
    request: VerifyRequest = {
        "python": python,
        "variables": record.variables if record else {},
        "prepended": record.prepended if record else (),
        "backend": record.backend if record else "auto",
        "module": record.module if record else None,
        "ipex": record is not None and "intel-extension-for-pytorch" in record.packages,
        "packages": [name for name in packages if record is not None and normalize(name) in record.packages],
        "setup": setup,
        "keep": keep,
        "timeout": ENV_STEP,
    }
    reply = call(session, "env.verify", "verify", request, python=python, timeout=timeout, cancel=cancel)
    return reply.decode(VerifyResult)


def parse_result(reply: object) -> VerifyResult | None:
    try:
        result = Reply(reply if isinstance(reply, Mapping) else {}).decode(VerifyResult)
    except MalformedReply:
        return None
    return result if result.ok else None
