"""An environment on one host: made, checked, verified, listed, removed. Each call is one script of `node/`.

What a failed verification means is said by `explain`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from ipexctl.remote.node_call import call
from ipexctl.remote.reply import MalformedReply, Reply

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ipexctl.remote.cancel import Cancel
    from ipexctl.remote.session import Session
    from ipexctl.stack.lock.lock import Lock, Wheel

PhaseName = Literal["torch", "ipex", "bindings", "allreduce"]
_BUILD_TIME = 3600.0
_LOOK_TIME = 120.0


def _ignore(event: dict[str, Any]) -> None:
    """Nobody follows."""


@dataclass(frozen=True, slots=True)
class BuildResult:
    state: str
    """built, or there: nothing was to be done."""
    path: str
    """The environment's directory on the host."""
    seconds: float


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Whether an environment is what its lock says."""

    ok: bool
    wrong: tuple[str, ...]
    """Sentences: what isn't."""
    there: bool
    """Whether there is one of that name at all."""
    name: str
    """Its own: `ipex-2.8-1a2b3c4d`."""
    build: str | None
    """Which making of it this is; what `build` takes as `replace`."""
    record: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Its env.json."""
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
    """What ended it, as a number; of mpirun's ranks, the one it reports."""
    timed_out: bool = False
    text: str = ""
    """What it printed, where it failed: its beginning and its end."""


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
    """torch's own word for the instructions it uses: `AVX512`."""
    bf16: str | None = None
    """What was possible in bf16: `training`, `inference` or `no`."""
    bf16_why: str = ""
    backend: str | None = None
    launcher: str | None = None
    """The mpirun that started the two ranks; None where they were started without one."""
    allreduce_ms: tuple[float, ...] = ()
    """The best of three, for 4 KB and for 4 MB."""

    @property
    def failed(self) -> Phase | None:
        """The first step that failed."""
        return next((phase for phase in self.phases if not phase.ok), None)

    def to_json(self) -> dict[str, Any]:
        """The contract's `verify{}`."""
        return {
            "ok": self.ok,
            "torch": self.torch,
            "ipex": self.ipex,
            "oneccl": self.oneccl,
            "python": self.python,
            "capability": self.capability,
            "bf16": self.bf16,
            "backend": self.backend,
            "launcher": self.launcher,
            "allreduce_ms": list(self.allreduce_ms),
            "phases": [
                {"name": p.name, "ok": p.ok, "seconds": p.seconds, "rc": p.rc, "signal": p.signal, "text": p.text}
                for p in self.phases
            ],
            "seconds": self.seconds,
        }


@dataclass(frozen=True, slots=True)
class EnvEntry:
    """An environment as `envs` shows it."""

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
    dangling: tuple[str, ...]
    """Names whose environment is gone."""
    leftovers: int
    """Half-made things, of builds at work or of builds that died."""
    leftover_bytes: int
    wheels: int
    wheel_bytes: int


@dataclass(frozen=True, slots=True)
class Removed:
    removed: tuple[str, ...]
    failed: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Name → why it is still there."""
    bytes: int = 0
    """Of wheels and leftovers that went besides."""


def build(
    session: Session,
    python: str,
    *,
    home: str,
    name: str,
    interpreter: str,
    lock: Lock,
    record: Mapping[str, Any],
    installer: Wheel | None,
    links: Sequence[str] = (),
    drop_wheels: bool = False,
    replace: str | None = None,
    on_event: Callable[[dict[str, Any]], None] = _ignore,
    timeout: float | None = _BUILD_TIME,
    cancel: Cancel | None = None,
) -> BuildResult:
    """Have the environment on the host, made of wheels in its store. Raises a HostError where that can't be.

    `python` runs the script; `interpreter` is the one the environment is for. `replace` is the `build` of an
    environment that a check found broken: it is made anew.
    """
    request = {
        "home": home,
        "name": name,
        "python": interpreter,
        "files": [{"sha256": wheel.sha256, "name": wheel.filename} for wheel in lock.wheels],
        "installer": {"sha256": installer.sha256, "name": installer.filename} if installer else None,
        "record": {"digest": lock.digest, "packages": lock.packages, **record},
        "lock": lock.to_json(),
        "links": list(links),
        "drop_wheels": drop_wheels,
        "replace": replace,
    }
    done = call(
        session,
        "env.build",
        "build",
        request,
        python=python,
        home=home,
        cached=True,
        on_event=on_event,
        timeout=timeout,
        cancel=cancel,
    )
    return BuildResult(done.text("state"), done.text("path"), done.number("seconds"))


def check(
    session: Session,
    python: str,
    *,
    home: str,
    name: str,
    digest: str | None = None,
    cached: bool = False,
    timeout: float | None = _LOOK_TIME,
    cancel: Cancel | None = None,
) -> CheckResult:
    """Whether that environment, by its own name or one that points at it, is whole: in a fraction of a second."""
    request = {"home": home, "name": name, "digest": digest}
    done = _manage(session, "check", request, python=python, cached=cached, timeout=timeout, cancel=cancel)
    return CheckResult(
        done.flag("ok"),
        done.texts("wrong"),
        done.flag("there"),
        done.text("name"),
        done.text_or_none("build"),
        done.record("record"),
        done.record("verified"),
    )


def verify(
    session: Session,
    python: str,
    *,
    variables: Mapping[str, str] | None = None,
    prepended: Sequence[str] = (),
    backend: str = "auto",
    module: str | None = None,
    ipex: bool = False,
    mpirun: str | None = None,
    ranks: int = 2,
    setup: str | None = None,
    tmp: str | None = None,
    keep: str | None = None,
    limit: float = 300.0,
    on_event: Callable[[dict[str, Any]], None] = _ignore,
    timeout: float | None = None,
    cancel: Cancel | None = None,
) -> VerifyResult:
    """Use the environment of that interpreter: imports, a step in bf16, an all-reduce of two ranks.

    `ipex` says that IPEX has to be there; where it is, it is used anyway. `limit` is for each step. `keep` is a file
    on the host to note a good result in.
    """
    request = {
        "python": python,  # what is verified, also where another one runs the agent
        "variables": dict(variables or {}),
        "prepended": list(prepended),
        "backend": backend,
        "module": module,
        "ipex": ipex,
        "mpirun": mpirun,
        "ranks": ranks,
        "setup": setup,
        "tmp": tmp,
        "keep": keep,
        "timeout": limit,
    }
    done = call(
        session, "env.verify", "verify", request, python=python, on_event=on_event, timeout=timeout, cancel=cancel
    )
    return verify_result(done)


def verify_env(
    session: Session,
    *,
    path: str,
    record: Mapping[str, Any],
    machine: str | None = None,
    limit: float = 300.0,
    on_event: Callable[[dict[str, Any]], None] = _ignore,
    timeout: float | None = None,
    cancel: Cancel | None = None,
) -> VerifyResult:
    """Verify an environment of ours, at that path and with that env.json, and note it for this machine."""
    return verify(
        session,
        f"{path}/bin/python",
        variables=record["variables"],
        prepended=record["prepended"],
        backend=record["backend"],
        module=record.get("module"),
        ipex="intel-extension-for-pytorch" in record["packages"],
        keep=f"{path}/verified/{machine}.json" if machine else None,
        limit=limit,
        on_event=on_event,
        timeout=timeout,
        cancel=cancel,
    )


def verify_result(reply: Reply) -> VerifyResult:
    """The value of a reply."""
    return VerifyResult(
        ok=reply.flag("ok"),
        phases=tuple(_phase(phase) for phase in reply.records("phases")),
        seconds=reply.number("seconds"),
        torch=reply.text_or_none("torch"),
        ipex=reply.text_or_none("ipex"),
        oneccl=reply.text_or_none("oneccl"),
        python=reply.text_or_none("python"),
        capability=reply.text_or_none("capability"),
        bf16=reply.text_or_none("bf16"),
        bf16_why=reply.text_or_none("bf16_why") or "",
        backend=reply.text_or_none("backend"),
        launcher=reply.text_or_none("launcher"),
        allreduce_ms=reply.numbers("allreduce_ms") if "allreduce_ms" in reply else (),
    )


def _phase(reply: Reply) -> Phase:
    return Phase(
        reply.text("name"),
        reply.flag("ok"),
        reply.number("seconds"),
        reply.integer_or_none("rc"),
        reply.integer_or_none("signal"),
        reply.get("timed_out") is True,
        reply.text_or_none("text") or "",
    )


def noted(said: Mapping[str, Any] | None) -> VerifyResult | None:
    """A good result that was noted on the host; None where there is none, or it can't be read."""
    try:
        result = verify_result(Reply(said or {}))
    except MalformedReply:
        return None
    return result if result.ok else None


def listing(session: Session, python: str, *, home: str, cancel: Cancel | None = None) -> EnvListing:
    """All environments of a home, with what they take on disk."""
    done = _manage(session, "list", {"home": home}, python=python, cached=False, cancel=cancel)
    return EnvListing(
        tuple(_env_entry(env) for env in done.records("envs")),
        done.texts("dangling"),
        done.record("leftovers").integer("count"),
        done.record("leftovers").integer("bytes"),
        done.record("wheels").integer("count"),
        done.record("wheels").integer("bytes"),
    )


def _env_entry(reply: Reply) -> EnvEntry:
    return EnvEntry(
        name=reply.text("name"),
        names=reply.texts("names"),
        path=reply.text("path"),
        row=reply.text_or_none("row"),
        python=reply.text_or_none("python"),
        backend=reply.text_or_none("backend"),
        created=reply.text_or_none("created"),
        packages=reply.texts_by_name("packages"),
        bytes=reply.integer("bytes"),
        complete=reply.flag("complete"),
    )


def remove(session: Session, python: str, *, home: str, names: Sequence[str], cancel: Cancel | None = None) -> Removed:
    """Remove environments, by their own names or by those that point at them. One in use stays, and says so."""
    request = {"home": home, "names": list(names)}
    done = _manage(session, "remove", request, python=python, timeout=_BUILD_TIME, cancel=cancel)
    return Removed(done.texts("removed"), done.texts_by_name("failed"))


def prune(
    session: Session,
    python: str,
    *,
    home: str,
    unnamed: bool = True,
    wheels: bool = True,
    cancel: Cancel | None = None,
) -> Removed:
    """Remove leftovers, wheels, and environments no name points at."""
    request = {"home": home, "unnamed": unnamed, "wheels": wheels}
    done = _manage(session, "remove", request, python=python, timeout=_BUILD_TIME, cancel=cancel)
    return Removed(done.texts("removed"), done.texts_by_name("failed"))


def link(
    session: Session, python: str, *, home: str, name: str, links: Sequence[str], cancel: Cancel | None = None
) -> None:
    """Make names point at an environment."""
    request = {"home": home, "name": name, "links": list(links)}
    _manage(session, "link", request, python=python, cancel=cancel)


def unlink(
    session: Session, python: str, *, home: str, name: str, links: Sequence[str], cancel: Cancel | None = None
) -> None:
    """Take names away from an environment, which stays."""
    request = {"home": home, "name": name, "links": list(links)}
    call(session, "env.environments", "unlink", request, python=python, timeout=_LOOK_TIME, cancel=cancel)


def note(
    session: Session,
    python: str,
    *,
    home: str,
    name: str,
    request: Mapping[str, Any],
    cancel: Cancel | None = None,
) -> None:
    """Record one more request that this environment answers, so that the next call knows it by that."""
    said = {"home": home, "name": name, "request": dict(request)}
    _manage(session, "note", said, python=python, cancel=cancel)


def _manage(
    session: Session,
    action: str,
    request: Mapping[str, Any],
    *,
    python: str,
    cached: bool = True,
    timeout: float | None = _LOOK_TIME,
    cancel: Cancel | None = None,
) -> Reply:
    home = str(request["home"])
    return call(
        session,
        "env.environments",
        action,
        request,
        python=python,
        home=home,
        cached=cached,
        timeout=timeout,
        cancel=cancel,
    )
