"""An environment on one host: made, checked, verified, listed, removed. Each call is one script of `node/`.

What a failed verification means is said by `explain`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from ipexctl.remote.node_call import call

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
    state: Literal["built", "there"]
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
    """Machine → what verifying found there, where it was noted."""


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
        session, "env.build", "build", request, python=python, on_event=on_event, timeout=timeout, cancel=cancel
    )
    return BuildResult(done["state"], done["path"], done["seconds"])


def check(
    session: Session,
    python: str,
    *,
    home: str,
    name: str,
    digest: str | None = None,
    timeout: float | None = _LOOK_TIME,
    cancel: Cancel | None = None,
) -> CheckResult:
    """Whether that environment, by its own name or one that points at it, is whole: in a fraction of a second."""
    request = {"home": home, "name": name, "digest": digest}
    done = call(session, "env.environments", "check", request, python=python, timeout=timeout, cancel=cancel)
    return CheckResult(
        done["ok"], tuple(done["wrong"]), done["there"], done["name"], done["build"], done["record"], done["verified"]
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


def verify_result(said: Mapping[str, Any]) -> VerifyResult:
    """The value of what the script says."""
    return VerifyResult(
        ok=said["ok"],
        phases=tuple(Phase(**phase) for phase in said["phases"]),
        seconds=said["seconds"],
        torch=said["torch"],
        ipex=said["ipex"],
        oneccl=said["oneccl"],
        python=said["python"],
        capability=said["capability"],
        bf16=said["bf16"],
        bf16_why=said.get("bf16_why", ""),
        backend=said["backend"],
        launcher=said["launcher"],
        allreduce_ms=tuple(said.get("allreduce_ms", ())),
    )


def noted(said: Mapping[str, Any] | None) -> VerifyResult | None:
    """A good result that was noted on the host; None where there is none, or it can't be read."""
    try:
        result = verify_result(said or {})
    except (KeyError, TypeError):
        return None
    return result if result.ok else None


def listing(session: Session, python: str, *, home: str, cancel: Cancel | None = None) -> EnvListing:
    """All environments of a home, with what they take on disk."""
    done = call(session, "env.environments", "list", {"home": home}, python=python, timeout=_LOOK_TIME, cancel=cancel)
    return EnvListing(
        tuple(EnvEntry(**{**env, "names": tuple(env["names"])}) for env in done["envs"]),
        tuple(done["dangling"]),
        done["leftovers"]["count"],
        done["leftovers"]["bytes"],
        done["wheels"]["count"],
        done["wheels"]["bytes"],
    )


def remove(session: Session, python: str, *, home: str, names: Sequence[str], cancel: Cancel | None = None) -> Removed:
    """Remove environments, by their own names or by those that point at them. One in use stays, and says so."""
    request = {"home": home, "names": list(names)}
    done = call(session, "env.environments", "remove", request, python=python, timeout=_BUILD_TIME, cancel=cancel)
    return Removed(tuple(done["removed"]), done["failed"])


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
    done = call(session, "env.environments", "prune", request, python=python, timeout=_BUILD_TIME, cancel=cancel)
    return Removed(tuple(done["removed"]), done["failed"], done["bytes"])


def link(
    session: Session, python: str, *, home: str, name: str, links: Sequence[str], cancel: Cancel | None = None
) -> None:
    """Make names point at an environment."""
    request = {"home": home, "name": name, "links": list(links)}
    call(session, "env.environments", "link", request, python=python, timeout=_LOOK_TIME, cancel=cancel)


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
    call(session, "env.environments", "note", said, python=python, timeout=_LOOK_TIME, cancel=cancel)
