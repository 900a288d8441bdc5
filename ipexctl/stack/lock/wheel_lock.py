"""Make a lock: the exact wheels of an environment, with their hashes. uv makes it on one machine.

Every wheel fits all hosts. If uv fails, common causes get a sentence with a fix; otherwise uv's lines are quoted.
"""

from __future__ import annotations

import hashlib
import platform
import re
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import quote, unquote, urlsplit

from packaging.requirements import Requirement
from packaging.tags import Tag
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version

from ipexctl.errors import UserError
from ipexctl.facts.facts import Facts
from ipexctl.facts.system_facts import Mount
from ipexctl.files.store_client import StoredFile
from ipexctl.found_files import parse_toml
from ipexctl.known_errors.packages import known_packages
from ipexctl.limits import ENV_BUILD, INDEX_ANSWER, LOCK_SOLVE, STEP_SILENCE
from ipexctl.node.common.files import sha256_of
from ipexctl.node.common.fix import Fix, FixCommand
from ipexctl.node.common.urls import strip_login
from ipexctl.node.env.build import LockDocument
from ipexctl.node.env.env_replies import AvailableWheel, CompileReply, LocalWheel
from ipexctl.node.env.indexes import SizesRequest
from ipexctl.node.env.lock import CompileRequest, ProjectSource
from ipexctl.node.env.unpacked import LockedWheel
from ipexctl.projects.declared_indexes import IndexBinding
from ipexctl.remote.local import LocalSession
from ipexctl.remote.node_call import AgentPlace, call
from ipexctl.remote.outcome import HostError
from ipexctl.remote.reply import MalformedReply, Reply
from ipexctl.remote.session import Session
from ipexctl.stack.lock.wheel_indexes import IndexAnswer, directory_of, lock_sources, silent_index
from ipexctl.stack.lock.wheels import NOT_QUERIED, OLDEST_GLIBC, Availability, Target, glibc_minor, tag_ranks
from ipexctl.stack.resolve.model import Sources, StackPlan
from ipexctl.text import join_words, readable, tilde_path

UNPACKED: Final = 2.1
"""Bytes of an environment on disk per byte of its wheels."""
_FILES: Final = 30_000
EMPTY: Final[Mapping[str, Any]] = MappingProxyType({})
ENDED: Final = {"torchtext": "2.3"}
"""Packages without further releases → the last torch that their compiled parts can be loaded with."""
_LEAST: Final = 200_000_000
"""Free bytes for the host that stores the wheels first; even the smallest stack needs more."""


@dataclass(frozen=True, slots=True)
class Wheel:
    """A file of a lock, or the uv that installs it."""

    name: str
    """As in `intel-extension-for-pytorch`."""
    version: str
    filename: str
    sha256: str
    size: int | None = None
    """Bytes; None if the index does not say."""
    url: str | None = None
    """http URL without credentials, or None."""
    path: str | None = None
    """Path on this machine, for a wheel of a directory or a built one; None for one of an index."""

    @property
    def stored_file(self) -> StoredFile:
        """Return the wheel as the store of a home knows it."""
        return StoredFile(self.sha256, self.filename, self.size)

    def to_json(self) -> LockedWheel:
        """Return the wheel as lock.json has it, without its path, which is valid only on one machine."""
        return {
            "name": self.name,
            "version": self.version,
            "filename": self.filename,
            "sha256": self.sha256,
            "size": self.size,
            "url": self.url,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Wheel:
        """Read a wheel, but not its path in a host's record. Raises a MalformedReply if this is not a wheel."""
        wheel = Reply(data).decode(cls, path=None)
        if "/" in wheel.filename:
            raise MalformedReply("a wheel's name is not a file name", wheel.filename)
        return wheel


@dataclass(frozen=True, slots=True)
class Lock:
    """The exact wheels of an environment."""

    python: str
    wheels: tuple[Wheel, ...]
    """Sorted by name."""

    @property
    def digest(self) -> str:
        """Return the SHA-256 over the Python and the hashes of all wheels. Its beginning is part of the environment's
        directory name."""
        lines = [self.python, *sorted(wheel.sha256 for wheel in self.wheels)]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()

    def without(self, hashes: frozenset[str]) -> Lock:
        """Return the lock without the wheels that have these hashes."""
        return Lock(self.python, tuple(wheel for wheel in self.wheels if wheel.sha256 not in hashes))

    @property
    def size(self) -> int:
        """Return the bytes of all wheels; a wheel of unknown size counts as 0."""
        return sum(wheel.size or 0 for wheel in self.wheels)

    @property
    def packages(self) -> dict[str, str]:
        """Return package → version."""
        return {wheel.name: wheel.version for wheel in self.wheels}

    @property
    def is_cuda(self) -> bool:
        """True if the lock has CUDA libraries of NVIDIA, which a torch for CUDA requires."""
        return any(wheel.name.startswith(("nvidia-cu", "nvidia-nccl")) for wheel in self.wheels)

    def to_json(self) -> LockDocument:
        """Return the content of lock.json."""
        return {"schema": "ipexctl.lock/1", "python": self.python, "wheels": [w.to_json() for w in self.wheels]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Lock:
        """Read a lock. Raises a MalformedReply, KeyError or TypeError if this is not one."""
        return cls(data["python"], tuple(Wheel.from_json(wheel) for wheel in data["wheels"]))


class BuiltPackage(NamedTuple):
    """A package that was built for an environment, which has it unpacked."""

    wheel: Wheel
    requires: tuple[str, ...]


def takes_wheels(facts: Facts) -> bool:
    """True if a host's home can store the wheels first: it is writable, may hold programs and has space for the
    smallest stack. Unknown facts count as yes."""
    disk = facts.home.disk if facts.home else None
    if disk is None:
        return True
    return disk.writable is not False and not disk.noexec and (disk.free is None or disk.free >= _LEAST)


def home_problem(facts: Facts, lock: Lock, held: int = 0) -> tuple[str, str] | None:
    """Return problem and fix if an environment can't be built in the host's home; None if it can, or if its disk is
    unknown. `held`: bytes of the wheels that are already in the store."""
    home = facts.home
    disk = home.disk if home else None
    if home is None or disk is None:
        return None
    elsewhere = "choose another directory: --home DIR"
    if disk.writable is False:
        return f"{home.path} cannot be written ({_where(disk.mount)})", elsewhere
    if disk.noexec:
        return f"{home.path} is on a filesystem mounted noexec, where no program or library starts", elsewhere
    needed = int(lock.size * (1 + UNPACKED)) - held
    if disk.free is not None and disk.free < needed:
        reason = f"an environment of {len(lock.wheels)} wheels needs about {readable(needed)} in {home.path}"
        fix = Fix(f"free some space there (`ipexctl envs` lists environments), or {elsewhere}")
        return f"{reason}, but {readable(disk.free)} are free", fix
    if disk.inodes_free is not None and disk.inodes_free < _FILES:
        return (
            f"{home.path} has space for {disk.inodes_free} more files, but an environment has about {_FILES}",
            elsewhere,
        )
    return None


def _where(mount: Mount | None) -> str:
    return f"{mount.point} is mounted read-only" if mount and "ro" in mount.options else "no permission, or read-only"


_OLDEST_UV: Final = Version("0.13")
"""Older versions leave out hashes that the index does not give."""
_PLATFORMS: Final = (OLDEST_GLIBC, 28, *range(31, 41))
"""Minor versions of glibc that have a platform name in uv."""
_FULL: Final = re.compile(r"No space left on device|os error (?:28|122)\b|[Qq]uota exceeded")
_FETCH: Final = re.compile(r"(?:Failed to fetch|Failed to download|for url)[:\s`(]+(https?://[^\s`)]+)")
# Matches start at a word boundary, because a long word would otherwise take quadratic time.
_NO_WHEEL: Final = re.compile(
    r"(?<![\w.-])(?:([\w.-]+)(?:\[[\w,.-]+\])?[=<>!~]=?[\w.+*]+(?:,[<>!]=?[\w.+*]+)? has"
    r"|all versions of ([\w.-]+)(?:\[[\w,.-]+\])? have) no "
    r"(?:wheels with a matching|usable wheels)"
)
_DAMAGED: Final = re.compile(r"Failed to extract archive: (\S+\.whl)")
_NO_PACKAGE: Final = re.compile(
    r"(?<![\w.-])([\w.-]+) was not found in the package registry and you require \1(?![\w-])"
)
_ABSENT: Final = re.compile(
    r"(?<![\w.-])([\w.-]+) was not found in the (?:package registry|provided package locations)"
    r"|there (?:is|are) no versions? of ([\w.-]+)|only ([\w.-]+)[<>=!~][^ ]* is available"
)
_MAX_LINES: Final = 15
_FIRST_LINES: Final = 5
_MAX_WIDTH: Final = 200


@dataclass(frozen=True, slots=True)
class LockMaker:
    """The machine that makes a lock, and the uv that it uses."""

    session: Session
    python: str
    home: str
    """Home on that machine; on the control machine, its cache directory."""
    uv: str | Wheel
    """A path on that machine, or a file in its store."""
    name: str = "the control machine"
    interpreter: str = ""
    """The Python for builds; empty if unknown."""

    def call(self, command: str, action: str, request: Mapping[str, Any]) -> Reply:
        """Call a command of the agent on this machine. It may be silent for twice the usual time."""
        return call(self.session, command, action, request, AgentPlace(self.python), silence=2 * STEP_SILENCE)


def uv_here() -> str | None:
    """Return the path of the uv that is installed with ipexctl; None if there is no binary for this machine."""
    try:
        import uv

        return str(uv.find_uv_bin())
    except (ImportError, FileNotFoundError):
        return None


def uv_for_node(availability: Availability | None, glibc: str, sources: Sources) -> Wheel:
    """Return the newest uv in the node's indexes, else the control machine's if it runs on the node, else the newest in
    directories that the call names. Raises a HostError if there is none."""
    # uv's wheels fit every Python, so only the platform matters.
    fitting = [
        (version, candidate)
        for candidate, version in (availability or NOT_QUERIED).runnable("uv", Target("3.8", glibc))
        if candidate.filename.startswith("uv-") and not (candidate.yanked or version.is_prerelease)
        # Only http URLs, because a file would be on one machine's disk.
        if version >= _OLDEST_UV and candidate.sha256 and (candidate.url or "").startswith("http")
    ]
    if fitting:
        newest = max(fitting, key=lambda item: item[0])[1]
        return Wheel("uv", newest.version, newest.filename, newest.sha256 or "", newest.size, newest.url)
    binary = uv_here() if (sys.platform, platform.machine()) == ("linux", "x86_64") else None
    if binary is None:
        if (named := _uv_in_directories(sources, glibc)) is not None:
            return named
        raise HostError(
            "no index has uv for the hosts, and this machine's uv does not run there",
            "add its wheel for Linux on x86-64: --find-links DIR",
        )
    return Wheel("uv", "", "uv", sha256_of(binary), Path(binary).stat().st_size, path=binary)


def _uv_in_directories(sources: Sources, glibc: str) -> Wheel | None:
    """Return the newest uv in directories that the call names; None if there is none for the hosts."""
    places = [directory_of(option) for option in (sources.wheelhouse, *sources.find_links) if option]
    paths = {path.name: path for directory in places if directory for path in sorted(Path(directory).glob("uv-*.whl"))}
    available = tuple(AvailableWheel("uv", "", name, "") for name in paths)
    fitting = [
        (version, paths[candidate.filename])
        for candidate, version in Availability({"uv": available}).runnable("uv", Target("3.8", glibc))
        if version >= _OLDEST_UV
    ]
    if not fitting:
        return None
    version, path = max(fitting)
    return Wheel("uv", str(version), path.name, sha256_of(path), path.stat().st_size, path=str(path))


def make_lock(
    maker: LockMaker,
    plan: StackPlan,
    index_answer: IndexAnswer,
    *,
    packages: Iterable[str] = (),
    constraints: Iterable[str] = (),
    origins: Mapping[str, str] | None = None,
    builds: Sequence[str] = (),
    own: Mapping[str, str] = EMPTY,
    stubs: Mapping[str, str] = EMPTY,
    named: Mapping[str, NamedWheels] = EMPTY,
    projects: Sequence[ProjectSource] = (),
    kept: Sequence[BuiltPackage] = (),
    strict: bool = False,
    hashes: Mapping[str, frozenset[str]] = EMPTY,
) -> Lock:
    """Return the plan's exact wheels from the sources that answered on that machine. Raises a HostError or UserError if
    there is no such lock.

    - `origins`: requirement → where the user wrote it.
    - `builds`: packages that are built on that machine. `projects`: the user's projects, which are built there, too.
    - `own`: project's own packages → version, for which no index is asked.
    - `stubs`: package → version of packages that are left out together with what they require.
    - `named`: packages that only the directories of the call, or one index, are asked for.
    - `kept`: packages that were built before.
    - `strict`: as in CompileRequest.
    - `hashes`: normalized name of a package → sha256 of the files that may be used.
    """
    wanted = tuple(packages)
    refuse_ended_packages(wanted, plan.torch)
    asked = {*_projects_of(wanted), *(project["name"] for project in projects), *(each.wheel.name for each in kept)}
    own = {name: version for name, version in own.items() if name not in asked} | dict(stubs)
    held = [*plan.constraints, *constraints]
    timeout = ENV_BUILD if builds or projects else LOCK_SOLVE
    if not index_answer.sources:
        raise _no_index_error(index_answer)
    request: CompileRequest = {
        "home": maker.home,
        "uv": maker.uv if isinstance(maker.uv, str) else maker.uv.stored_file.to_json(),
        "requirements": [*plan.requirements, *wanted],
        "constraints": held,
        "python": plan.python,
        "platform": platform_for(plan.glibc),
        "sources": [source.to_json() for source in lock_sources(index_answer)],
        "settings": index_answer.settings.transport(),
        "logins": index_answer.logins,
        "builds": list(builds),
        "projects": list(projects),
        "own": own,
        "named": {
            name: wheels.best([*plan.requirements, *wanted, *(() if wheels.option.startswith("--") else held)])
            for name, wheels in named.items()
        },
        "kept": {wheel.name: {"version": wheel.version, "requires": list(requires)} for wheel, requires in kept},
        "strict": strict,
        "interpreter": maker.interpreter,
        "timeout": timeout,
    }
    reply = maker.call("env.lock", "compile", request).decode(CompileReply)
    if reply.pylock is None and reply.is_of_named and named:
        raise _refused_by_named(named, wanted, reply.message)
    if reply.pylock is None:
        raise explain_refusal(reply.message, plan, wanted, origins or {}, index_answer, maker.name)
    try:
        wheels = read_pylock(reply.pylock, plan.python, plan.glibc, reply.local_wheels, hashes)
    except NoWheel as package:
        raise HostError(f"there is no wheel of {package} for Python {plan.python} and glibc {plan.glibc}") from None
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise MalformedReply(f"pylock.toml: {error}", reply.pylock) from None
    if unknown := [wheel.filename for wheel in wheels if not wheel.sha256]:
        raise HostError(f"the index has no sha256 for {', '.join(unknown)}", "use another index: --index-url URL")
    before = {each.wheel.name: each.wheel for each in kept}
    wheels = tuple(before.get(wheel.name, wheel) for wheel in wheels)
    if not isinstance(maker.session, LocalSession):
        # A path on another host becomes a URL, because this machine must not read a file that a host names.
        wheels = tuple(replace(w, path=None, url=f"file://{quote(w.path)}") if w.path else w for w in wheels)
    return Lock(plan.python, sized(maker, wheels, index_answer))


def _projects_of(lines: Iterable[str]) -> frozenset[str]:
    return frozenset(str(canonicalize_name(Requirement(line).name)) for line in lines)


@dataclass(frozen=True, slots=True)
class NamedWheels:
    """The wheels of one package in the directories that the call names, or in the package's own index."""

    option: str
    """As in `--find-links ~/wheels`, or the index."""
    wheels: tuple[tuple[Version, str], ...]
    """Version and path or URL of those that fit the hosts, the best first."""
    others: tuple[str, ...] = ()
    """Versions of those that do not fit."""
    problem: HostError | UserError | None = None
    """Why the index has none."""

    def best(self, requirements: Iterable[str]) -> str:
        """Return the path or URL of the newest wheel that the requirements allow; empty if none fits."""
        project = _project_in(self.wheels[0][1]) if self.wheels else ""
        held = [line.specifier for line in map(Requirement, requirements) if canonicalize_name(line.name) == project]
        allowed = (path for version, path in self.wheels if all(limit.contains(version, True) for limit in held))
        return next(allowed, "")

    @property
    def versions(self) -> str:
        """Return the versions that fit the hosts, joined for a message. If none fits, these are the others, each with
        `for other hosts`; empty if there are no wheels."""
        texts = [str(version) for version, _ in self.wheels] or [
            f"{version} for other hosts" for version in self.others
        ]
        return ", ".join(dict.fromkeys(texts))


def _project_in(path: str) -> str:
    return canonicalize_name(Path(path).name.partition("-")[0])


def wheels_in_directories(sources: Sources) -> frozenset[str]:
    """Return the normalized names of packages of which a directory that the call names has wheels."""
    places = [directory_of(location) for location in (sources.wheelhouse, *sources.find_links) if location]
    return frozenset(_project_in(str(path)) for location in places if location for path in Path(location).glob("*.whl"))


def find_named_wheels(sources: Sources, plan: StackPlan, builds: Collection[str]) -> dict[str, NamedWheels]:
    """Return package → its wheels in the directories that the call names. Packages of the stack and those that are
    built do not count."""
    ranks = tag_ranks(plan.python, plan.glibc)
    left_out = {*_projects_of(plan.requirements), *builds, "uv"}
    by_name: dict[str, NamedWheels] = {}
    options = [("--wheelhouse", sources.wheelhouse), *(("--find-links", location) for location in sources.find_links)]
    for option, location in options:
        directory = directory_of(location) if location else None
        for path in sorted(Path(directory).glob("*.whl")) if directory else ():
            try:
                name, version, _, tags = parse_wheel_filename(path.name)
            except InvalidWheelFilename:
                continue
            if name in left_out:
                continue
            known = by_name.get(name, NamedWheels(f"{option} {tilde_path(Path(str(directory)))}", ()))
            if any(tag in ranks for tag in tags):
                wheels = tuple(sorted((*known.wheels, (version, str(path))), reverse=True))
                by_name[name] = replace(known, wheels=wheels)
            else:
                by_name[name] = replace(known, others=(*known.others, str(version)))
    return by_name


def find_bound_wheels(
    bindings: Iterable[IndexBinding],
    index_answer: IndexAnswer,
    plan: StackPlan,
    hashes: Mapping[str, frozenset[str]],
    line: FixCommand,
) -> dict[str, NamedWheels]:
    """Return package → its wheels in the index of its own. `index_answer`: the answer of these indexes. `line`: the
    command of the call, for fixes."""
    by_name: dict[str, NamedWheels] = {}
    failures = {failure.source: failure.reason for failure in index_answer.availability.failures}
    for name, url, label, _ in bindings:
        usable = [
            ((not file.yanked, not version.is_prerelease, version), f"{file.url}#sha256={file.sha256 or ''}")
            for file, version in index_answer.availability.runnable(name, Target(plan.python, plan.glibc))
            if file.source == label and (file.sha256 is None or file.sha256 in hashes.get(name, {file.sha256}))
        ]
        wheels = tuple((key[-1], wheel.removesuffix("#sha256=")) for key, wheel in sorted(usable, reverse=True))
        others = [file.version for file in index_answer.availability.of(name) if file.source == label]
        what = f"{name} comes only from {label}, an index of the project's own"
        problem: HostError | UserError | None = None
        if not url:
            fix: str = Fix("if you trust it: `{line} --extra-index-url {label}`", line=line, label=label)
            problem = UserError(f"{what}, which this call does not name", fix=fix)
        elif label in failures:
            fix = "run the same command again once it answers, or name a directory that has the wheel: --find-links DIR"
            problem = HostError(f"{what}, which gave no answer ({failures[label]})", fix)
        elif others and not usable and name in hashes:
            problem = HostError(f"{what}, which has no file of it with a sha256 of the project's files", _OTHER_FILE)
        by_name.setdefault(name, NamedWheels(label, wheels, tuple(others), problem))
    return by_name


def _refused_by_named(named: Mapping[str, NamedWheels], wanted: Sequence[str], message: str) -> HostError | UserError:
    """Return the error for a package that has wheels in the call's own directories, or in its one index, but none that
    is required."""
    lines = [(line, canonicalize_name(line.name)) for line in map(Requirement, wanted)]
    for line, project in lines:
        name = str(project)
        if name in named and not any(line.specifier.contains(v, prereleases=True) for v, _ in named[name].wheels):
            return _unfit(f"{line} is needed", name, named[name])
    mentioned = [name for name in named if re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", message)]
    name = (mentioned or list(named))[0]
    return _unfit(f"other packages need another {name}{_quote(message)}\n ", name, named[name])


def _unfit(what: str, name: str, wheels: NamedWheels) -> HostError | UserError:
    """Return the error for a package whose own wheels do not fulfil what is required. `what`: beginning of the
    sentence."""
    option, _, path = wheels.option.partition(" ")
    if wheels.problem is not None:
        return wheels.problem
    if not path:
        return UserError(
            f"{what}, but {option}, from which alone the project takes {name}, has {wheels.versions or 'none'}",
            fix=f"require a version that it has, or name a directory with the wheel of {name}: --find-links DIR",
        )
    return UserError(
        f"{what}, but {path} has only {name} {wheels.versions}; an index is not asked for a package that {option} has",
        fix=f"build the version again, or take it out of {path}",
    )


def sized(maker: LockMaker, wheels: tuple[Wheel, ...], index_answer: IndexAnswer) -> tuple[Wheel, ...]:
    """Return the wheels with their sizes, asking the servers for those that the indexes did not give. A size stays None
    if the server does not say it, either."""
    known = {
        c.url: c.size for items in index_answer.availability.candidates.values() for c in items if c.size is not None
    }
    wheels = tuple(replace(w, size=known.get(w.url)) if w.size is None and w.url in known else w for w in wheels)
    urls = [wheel.url for wheel in wheels if wheel.size is None and wheel.url]
    if not urls:
        return wheels
    request: SizesRequest = {
        "urls": urls,
        "settings": index_answer.settings.transport(),
        "logins": index_answer.logins,
        "timeout": INDEX_ANSWER,
    }
    sizes = maker.call("env.indexes", "sizes", request).record("sizes")
    return tuple(replace(w, size=sizes.integer_or_none(w.url)) if w.size is None and w.url else w for w in wheels)


class NoWheel(Exception):
    """No file of a package fits the target."""


_OTHER_FILE: Final = Fix(
    "find out why; to take the index's file, write the list again: `uv lock --upgrade`, or pip-compile"
)


class LacksFile(HostError):
    """No index has a file of a package with one of the hashes in the project's files."""

    def __init__(self, package: str) -> None:
        reason = f"no index has the file of {package} whose sha256 is in the project's files"
        super().__init__(reason, _OTHER_FILE)
        self.package = package


class LacksPackage(HostError):
    """No index has a package that the call names."""

    def __init__(self, package: str, reason: str, fix: str) -> None:
        super().__init__(reason, fix)
        self.package = package


class LacksWheel(LacksPackage):
    """The indexes have no wheel of a package outside the stack that fits the hosts."""

    def __init__(self, package: str, reason: str) -> None:
        super().__init__(package, reason, f"use another version, or build it from its source: --build {package}")


class LacksVersion(UserError):
    """No index has a version of a package outside the stack that the call allows. `why`: for the note of a list's line
    that is left out for it. The fix is empty until `stack_locking.py` has looked for versions that work."""

    def __init__(self, package: str, reason: str, fix: str = "", why: str = "") -> None:
        super().__init__(reason, fix=fix)
        self.package, self.reason, self.why = package, reason, why or f"no index has that version of {package}"


def refuse_ended_packages(wanted: Iterable[str], torch: str) -> None:
    """Refuse a package whose last release cannot be imported with this torch (LacksVersion)."""
    for name in (canonicalize_name(Requirement(line).name) for line in wanted):
        last = ENDED.get(name, "")
        if last and Version(torch).release[:2] > Version(last).release:
            why = f"the last release of {name} is for torch {last}"
            line = Fix("take its torch: `ipexctl install --torch {last} --with {name}`", last=last, name=name)
            raise LacksVersion(name, f"{why}, and this stack has torch {torch}", line, why)


class Conflict(UserError):
    """Packages outside the stack whose versions exclude each other or the stack's. The fix is empty, as in
    LacksVersion."""

    def __init__(self, packages: frozenset[str], reason: str) -> None:
        super().__init__(reason)
        self.packages = packages


def platform_for(glibc: str) -> str:
    """Return uv's name for the newest platform with that glibc: `x86_64-manylinux_2_28`."""
    known = [number for number in _PLATFORMS if number <= glibc_minor(glibc)]
    return f"x86_64-manylinux_2_{max(known, default=OLDEST_GLIBC)}"


def read_pylock(
    text: str, python: str, glibc: str, local: Mapping[str, LocalWheel], hashes: Mapping[str, frozenset[str]] = EMPTY
) -> tuple[Wheel, ...]:
    """Return one wheel for each package; the sha256 is empty if the lock has none. Raises NoWheel if no file fits, or
    LacksFile if no file has one of the `hashes`.

    `local`: URL → the wheel, for files on the machine that made the lock; built wheels are under the URL of their
    source. A file of that machine is the user's own choice, and may have another hash.
    """
    ranks = tag_ranks(python, glibc)
    made = []
    for package in parse_toml(text).get("packages", ()):
        files = package.get("wheels") or [package[kind] for kind in ("archive",) if kind in package]
        source = str((package.get("sdist") or {}).get("url"))
        if (allowed := hashes.get(canonicalize_name(package["name"]))) and (files or source in local):
            is_built = not files and _sha256(package["sdist"]) in allowed
            files = [file for file in files if file.get("url") in local or _sha256(file) in allowed]
            if not (files or is_built):
                raise LacksFile(package["name"])
        if not files and source in local:
            files = [{"url": source, "name": Path(local[source].path).name}]
        fitting = [(fit, file) for file in files if (fit := _fit(file, ranks)) is not None]
        if not fitting:
            raise NoWheel(package["name"])
        made.append(_wheel(package, min(fitting, key=lambda pair: pair[0])[1], local))
    return tuple(sorted(made, key=lambda wheel: wheel.name))


def _sha256(file: Mapping[str, Any]) -> str:
    return str((file.get("hashes") or {}).get("sha256") or "")


def _filename_of(file: Mapping[str, Any]) -> str:
    return str(file.get("name") or unquote(urlsplit(file.get("url") or file.get("path") or "").path.rpartition("/")[2]))


def _fit(file: Mapping[str, Any], ranks: Mapping[Tag, int]) -> tuple[int, tuple[int, str]] | None:
    """Return how well a file fits the tags, smaller is better; None if it does not fit or is no wheel."""
    try:
        _, _, build, named = parse_wheel_filename(_filename_of(file))
    except InvalidWheelFilename:
        return None
    rank = min((ranks[tag] for tag in named if tag in ranks), default=None)
    number, rest = build if build else (0, "")
    return None if rank is None else (rank, (-number, rest))


def _wheel(package: Mapping[str, Any], file: Mapping[str, Any], local: Mapping[str, LocalWheel]) -> Wheel:
    """Return a package's wheel from its entry in a pylock.toml and the chosen file."""
    filename = _filename_of(file)
    url = str(file.get("url") or "")
    known = local.get(url)
    version = package.get("version") or str(parse_wheel_filename(filename)[1])
    return Wheel(
        name=canonicalize_name(package["name"]),
        version=version,
        filename=filename,
        sha256=known.sha256 if known else _sha256(file),
        size=known.size if known else file.get("size"),
        url=None if known else strip_login(url),
        path=known.path if known else None,
    )


class UvRefusal(NamedTuple):
    """What uv's English says."""

    is_full: bool = False
    url: str = ""
    """What could not be fetched."""
    asks: Literal["", "certificate", "login"] = ""
    """What the server, or uv, lacked."""
    damaged: str = ""
    """A wheel that can't be read."""
    without_wheel: str = ""
    absent: str = ""
    """A package that no index that answered has, or not in the required version."""
    is_wanted: bool = False
    """True if the call requires the absent package itself."""
    is_unsolvable: bool = False
    names: frozenset[str] = frozenset()

    @property
    def is_conflict(self) -> bool:
        """True if each package that is named can be had, but not together."""
        return self.is_unsolvable and not (self.without_wheel or self.absent)


def read_refusal(messages: str) -> UvRefusal:
    """Return what uv's messages say. They have no form for programs, so their English is searched."""
    text = " ".join(re.sub(r"(?m)^\s*(error|cause):", "", messages).split())
    fetched, damaged, wheel = _FETCH.search(text), _DAMAGED.search(text), _NO_WHEEL.search(text)
    absent = _NO_PACKAGE.search(text) or _ABSENT.search(text)
    is_login = re.search(r"\b40[13] (?:Unauthorized|Forbidden)", text)
    return UvRefusal(
        _FULL.search(text) is not None,
        strip_login(fetched[1]) if fetched else "",
        "certificate" if "certificate" in text else "login" if is_login else "",
        damaged[1] if damaged else "",
        canonicalize_name(wheel[1] or wheel[2]) if wheel else "",
        canonicalize_name(next(filter(None, absent.groups()))) if absent else "",
        _NO_PACKAGE.search(text) is not None,
        "requirements are unsatisfiable" in text,
        frozenset(canonicalize_name(word.rstrip(".")) for word in re.findall(r"[A-Za-z0-9][\w.-]*", text)),
    )


def explain_refusal(
    messages: str,
    plan: StackPlan,
    packages: Iterable[str],
    origins: Mapping[str, str],
    index_answer: IndexAnswer,
    machine: str,
) -> HostError | UserError:
    """Return the error for uv's messages, the true reason first: trouble of the machine or of an index that was asked,
    a package without a wheel, an index that did not answer (if a package was missed), a package or version that no
    index has, and then versions that exclude each other."""
    messages = re.sub(r"://[^/@\s]+@", "://", messages)
    said, quote = read_refusal(messages), _quote(messages)
    named = {line: name for line in packages if (name := canonicalize_name(Requirement(line).name)) in said.names}
    user_lines = [f"{line} (from {origins.get(line, '--with')})" for line in named]
    who = ", ".join(user_lines) or plan.row.name
    if said.is_full:
        return HostError(
            f"uv on {machine} has no disk space to make the lock{quote}", "free some space there, or use --home DIR"
        )
    of_network = (
        f"check the network of {machine}, and correct or unset its proxy (HTTPS_PROXY, or pip's); or use another "
        "index, --index-url URL, or the wheels of a directory, --wheelhouse DIR"
    )
    if said.url:
        source = next(
            (
                each.label
                for each in index_answer.sources
                if said.url.startswith(strip_login(each.url).rstrip("/") + "/")
            ),
            said.url,
        )
        fixes = {
            "certificate": "if your site has its own certificate authority, get its certificate from your "
            f"administrator and name it on {machine}, with pip config set global.cert",
            "login": f"put the name and password of that index into ~/.netrc on {machine} (mode 0600), or use another "
            "index: --index-url URL",
            "": of_network,
        }
        return HostError(f"fetching from {source} on {machine} failed{quote}", fixes[said.asks])
    if said.damaged:
        fix = "remove that file, and download or build it again"
        return HostError(f"{said.damaged} can't be read on {machine}: it is damaged{quote}", fix)
    of_stack = {canonicalize_name(Requirement(line).name) for line in plan.requirements}
    wanted = f"Python {plan.python} and glibc {plan.glibc} on x86_64"
    if said.without_wheel and said.without_wheel not in of_stack:
        reason = f"{said.without_wheel} has no wheel for {wanted}, needed for {who}{quote}"
        return LacksWheel(said.without_wheel, reason)
    if said.without_wheel and user_lines:
        reason = f"{who} can't be installed with {plan.row.name}: there is no wheel for {wanted}{quote}"
        return UserError(reason)
    silent = silent_index(index_answer.availability)
    if silent is not None and said.is_unsolvable and not said.is_conflict:
        how = "did not answer" if silent.has_replied else "can't be reached from"
        reason = f"{silent.source} {how} {machine}: {silent.reason}; other indexes do not have all of {who}"
        again = "try again; or use another index, --index-url URL, or the wheels of a directory, --wheelhouse DIR"
        return HostError(reason + quote, again if silent.has_replied else of_network)
    failures = index_answer.availability.failures
    if said.is_wanted and said.absent not in of_stack:
        advice = "correct the name, or add the index that has it: --extra-index-url URL, or --find-links DIR"
        known = {re.split(r"[^\w.-]", each)[0] for packages in known_packages().values() for each in packages}
        if near := get_close_matches(said.absent, known, n=1, cutoff=0.75):
            advice = f"did you mean {near[0]}? Or {advice}"
        return LacksPackage(
            said.absent, f"no index {'that answered ' * bool(failures)}has the package of {who}", advice
        )
    if user_lines and said.absent and said.absent not in of_stack:
        return LacksVersion(said.absent, f"{who} can't be installed with {plan.row.name}{quote}")
    if user_lines and (said.is_conflict or said.absent):
        return Conflict(frozenset(named.values()), f"{who} can't be installed with {plan.row.name}{quote}")
    fix = Fix("choose another stack: `ipexctl versions`")
    if user_lines:
        fix = Fix(f"install on {machine} what the build lacks, or leave out {join_words([*named.values()])}")
    return HostError(f"uv on {machine} failed to lock {who}{quote}", fix)


def _no_index_error(index_answer: IndexAnswer) -> HostError:
    """Return the error for a call that has no source of wheels at all."""
    failures = "; ".join(f"{failures.source}: {failures.reason}" for failures in index_answer.availability.failures)
    return HostError(
        f"no package index can be reached ({failures})" if failures else "no index or directory of wheels is given",
        Fix("install from a directory: --wheelhouse DIR, made elsewhere by ```ipexctl install --download-only DIR```"),
    )


def _quote(messages: str) -> str:
    """Return uv's own lines, shortened, to follow a sentence; empty if there are none."""
    lines = [re.sub(r"^\s*(error|cause): ", "", line).strip() for line in messages.splitlines()]
    kept = [
        line[:_MAX_WIDTH]
        for line in lines
        if line and not line.startswith(("No solution found", "warning:")) and not re.match(r"hint:.*--", line)
    ]
    if len(kept) > _MAX_LINES:  # a build's own error is at the end
        kept = [*kept[:_FIRST_LINES], "…", *kept[_FIRST_LINES - _MAX_LINES :]]
    return ":" + "".join(f"\n  {line}" for line in kept) if kept else ""
