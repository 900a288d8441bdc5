"""Calls of the agent's environment commands on one host: build, check, verify, list, remove.

`verify_errors` explains a failed verification.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from ipexctl.remote.node_call import call
from ipexctl.remote.outcome import HostError
from ipexctl.remote.reply import MalformedReply, Reply

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ipexctl.facts.facts import Facts
    from ipexctl.hosts.host import Host
    from ipexctl.node.env.build import BuildRequest
    from ipexctl.node.env.environments import (
        CheckRequest,
        HomeRequest,
        LinkRequest,
        NoteRequest,
        PruneRequest,
        RemoveRequest,
        UsedRequest,
    )
    from ipexctl.node.env.verify import VerifyRequest
    from ipexctl.remote.cancel import Cancel
    from ipexctl.remote.session import Session
    from ipexctl.stack.env.build import EnvSpec

_BUILD_TIME = 3600.0
_CHECK_TIME = 120.0
_PHASE_TIME = 300.0


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Whether an environment is what its lock says."""

    ok: bool
    problems: tuple[str, ...]
    """Sentences: what is damaged."""
    exists: bool
    """Whether there is an environment of that name."""
    name: str
    """The name of its directory: `ipex-2.8-1a2b3c4d`."""
    build: str | None
    """The token of its build, for the `replace` of `build`."""
    record: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """The content of env.json."""
    verified: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Machine → how its verification there ended, where that was recorded."""

    @property
    def has_failed(self) -> bool:
        """Whether it was verified, and failed on every machine that verified it."""
        records = [record for record in self.verified.values() if isinstance(record, dict)]
        return bool(records) and all(record.get("ok") is False for record in records)


@dataclass(frozen=True, slots=True)
class Phase:
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


@dataclass(frozen=True, slots=True)
class VerifyResult:
    ok: bool
    phases: tuple[Phase, ...]
    seconds: float
    torch: str | None = None
    ipex: str | None = None
    oneccl: str | None = None
    python: str | None = None
    capability: str | None = None
    """torch's CPU capability: `AVX512`."""
    bf16: str | None = None
    """`training`, `inference` or `no`."""
    bf16_why: str = ""
    """The reason why bf16 training was not possible."""
    backend: str | None = None
    launcher: str | None = None
    """The mpirun that started the two ranks; None if they were started without one."""
    allreduce_ms: tuple[float, ...] = ()
    """The best of three, for 4 KB and for 4 MB."""

    @property
    def failed(self) -> Phase | None:
        """The first failed phase."""
        return next((phase for phase in self.phases if not phase.ok), None)

    def to_json(self) -> dict[str, Any]:
        """The contract's `verify{}`."""
        document = asdict(self)
        del document["bf16_why"]
        for phase in document["phases"]:
            del phase["timed_out"]
        return {**document, "phases": list(document["phases"]), "allreduce_ms": list(self.allreduce_ms)}


@dataclass(frozen=True, slots=True)
class EnvEntry:
    """An entry of `ipexctl envs`."""

    name: str
    names: tuple[str, ...]
    """The names that point at it."""
    path: str
    row: str | None
    python: str | None
    backend: str | None
    created: str | None
    packages: Mapping[str, str] = field(hash=False)
    bytes: int
    complete: bool


@dataclass(frozen=True, slots=True)
class EnvListing:
    envs: tuple[EnvEntry, ...]
    leftovers: int
    """Files of builds that run or died."""
    leftover_bytes: int
    wheels: int
    wheel_bytes: int


@dataclass(frozen=True, slots=True)
class Removed:
    removed: tuple[str, ...]
    bytes: int = 0
    """Bytes of removed wheels and leftovers."""


def machine_token(facts: Facts, host: Host) -> str:
    """The name of a host's verification record: hosts that share a home share the environment."""
    return hashlib.sha256((facts.machine or host.name).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class EnvClient:
    """The environments in the home of one host. Every call raises a HostError."""

    session: Session
    python: str
    """Runs the agent."""
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
        timeout: float | None = _BUILD_TIME,
    ) -> bool:
        """Build the environment for `interpreter` from wheels in the host's store; False if it exists.

        `replace` is the build token of a damaged environment to be replaced.
        """
        lock, uv = spec.lock, spec.installer
        assert uv is not None
        request: BuildRequest = {
            "home": self.home,
            "name": spec.name,
            "python": interpreter,
            "files": [wheel.stored_file.to_json() for wheel in lock.wheels],
            "installer": uv.stored_file.to_json(),
            "record": {"digest": lock.digest, "packages": lock.packages, **spec.record, "interpreter": interpreter},
            "lock": lock.to_json(),
            "drop_wheels": drop_wheels,
            "replace": replace,
            "base": spec.base.name if spec.base else None,
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
        self, name: str, *, digest: str | None = None, cached: bool = False, timeout: float | None = _CHECK_TIME
    ) -> CheckResult:
        """Compare an environment, given by its directory or by a name, with its lock."""
        request: CheckRequest = {"home": self.home, "name": name, "digest": digest}
        reply = self._call("check", request, cached=cached, timeout=timeout)
        return reply.decode(CheckResult, record=reply.record("record"), verified=reply.record("verified"))

    def verify(
        self, name: str, record: Mapping[str, Any], *, machine: str, timeout: float | None = None
    ) -> VerifyResult:
        """Verify an environment by its directory and env.json; the result is recorded under the name `machine`."""
        path = f"{self.home}/envs/{name}"
        return verify(
            self.session,
            f"{path}/bin/python",
            variables=record["variables"],
            prepended=record["prepended"],
            backend=record["backend"],
            module=record.get("module"),
            ipex="intel-extension-for-pytorch" in record["packages"],
            keep=f"{path}/verified/{machine}.json",
            timeout=timeout,
            cancel=self.cancel,
        )

    def listing(self) -> EnvListing:
        """All environments of the home, with their size on disk."""
        reply = self._call("list", {"home": self.home}, cached=False)
        return reply.decode(EnvListing, envs=tuple(env.decode(EnvEntry) for env in reply.records("envs")))

    def remove(self, names: Sequence[str], used: Mapping[str, str]) -> Removed:
        """Remove environments, given by directory or name; one in use stays, which is an error.

        `used` says of environments in use on other hosts of the home where.
        """
        request: RemoveRequest = {"home": self.home, "names": list(names), "used": dict(used)}
        reply = self._call("remove", request, timeout=_BUILD_TIME)
        _raise_failed(reply)
        return Removed(reply.texts("removed"))

    def is_used(self, name: str, names: Sequence[str], *, or_named: bool) -> bool:
        """Whether a process of this host uses an environment, also by one of `names`, or, if wanted, it has a name."""
        request: UsedRequest = {"home": self.home, "name": name, "names": list(names), "or_named": or_named}
        return self._call("used", request).flag("used")

    def prune(self, used: Mapping[str, str]) -> Removed:
        """Remove leftovers, wheels, and environments without a name; `used` as for `remove`."""
        request: PruneRequest = {"home": self.home, "used": dict(used)}
        reply = self._call("prune", request, timeout=_BUILD_TIME)
        _raise_failed(reply)
        return Removed(reply.texts("removed"), reply.integer("bytes"))

    def link(self, name: str, link: str) -> None:
        """Make a name point at an environment."""
        request: LinkRequest = {"home": self.home, "name": name, "link": link}
        self._call("link", request)

    def unlink(self, name: str, link: str) -> None:
        """Take a name away from an environment, which stays."""
        request: LinkRequest = {"home": self.home, "name": name, "link": link}
        self._call("unlink", request)

    def add_request(self, name: str, request: Mapping[str, Any]) -> None:
        """Record one more request that this environment satisfies."""
        added: NoteRequest = {"home": self.home, "name": name, "request": dict(request)}
        self._call("note", added)

    def _call(
        self, action: str, request: HomeRequest, *, cached: bool = True, timeout: float | None = _CHECK_TIME
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


def _raise_failed(reply: Reply) -> None:
    for name, reason in reply.texts_by_name("failed").items():
        raise HostError(f"{name} was not removed: {reason}")


def verify(
    session: Session,
    python: str,
    *,
    variables: Mapping[str, str] | None = None,
    prepended: Sequence[str] = (),
    backend: str = "auto",
    module: str | None = None,
    ipex: bool = False,
    setup: str | None = None,
    keep: str | None = None,
    timeout: float | None = None,
    cancel: Cancel | None = None,
) -> VerifyResult:
    """Use the environment of an interpreter: imports, a training step in bf16, an all-reduce of two ranks.

    With `ipex` a missing IPEX is a failure. `keep` is a file on the host for the result.
    """
    request: VerifyRequest = {
        "python": python,
        "variables": dict(variables or {}),
        "prepended": list(prepended),
        "backend": backend,
        "module": module,
        "ipex": ipex,
        "setup": setup,
        "keep": keep,
        "timeout": _PHASE_TIME,
    }
    reply = call(session, "env.verify", "verify", request, python=python, timeout=timeout, cancel=cancel)
    return verify_result(reply)


def verify_result(reply: Reply) -> VerifyResult:
    return reply.decode(VerifyResult, phases=tuple(phase.decode(Phase) for phase in reply.records("phases")))


def parse_result(reply: object) -> VerifyResult | None:
    """A recorded good result; None if there is none or it is unreadable."""
    try:
        result = verify_result(Reply(reply if isinstance(reply, Mapping) else {}))
    except MalformedReply:
        return None
    return result if result.ok else None
