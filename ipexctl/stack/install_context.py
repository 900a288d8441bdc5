"""Hold one call of install: its request, what is known and done so far, and its report.

`InstallContext` changes during the call: later steps read what earlier ones stored in it. Requests and reports are
immutable.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import InvalidName, canonicalize_name
from packaging.version import InvalidVersion, Version

from ipexctl.errors import Refusal, UserError
from ipexctl.facts.facts import Facts
from ipexctl.facts.gather import HostFacts, gather_facts
from ipexctl.files.store_client import StoreClient, StoreLocation
from ipexctl.found_files import cache_directory
from ipexctl.hosts.host import Host
from ipexctl.node.common.fix import Fix, FixCommand, ipexctl_command
from ipexctl.node.common.urls import strip_login
from ipexctl.node.env.env_replies import EnvRecord
from ipexctl.option_declaration import DEFAULT_ENV, install_command
from ipexctl.projects.declaration import PYPROJECT
from ipexctl.projects.declared_indexes import find_indexes
from ipexctl.projects.ipex_use import find_ipex_use
from ipexctl.projects.layout import NO_LAYOUT, ProjectLayout
from ipexctl.projects.requirement_files import UV_LOCK
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.connector import OpenHosts
from ipexctl.remote.local import LocalSession
from ipexctl.remote.outcome import HostError, HostResult, HostStatus, Report, StepTimed, Watch, exit_code
from ipexctl.remote.session import Session
from ipexctl.stack.catalog import TORCH, StackSpec, known_rows, rows_digest
from ipexctl.stack.env.record import check_new_env_name
from ipexctl.stack.expected_stack import check_stack_request
from ipexctl.stack.lock.wheel_lock import BuiltPackage, Lock, takes_wheels
from ipexctl.stack.resolve.compatibility import usable_pythons
from ipexctl.stack.resolve.model import EnvRequest, Sources, StackPlan, StackRequest
from ipexctl.stack.resolve.reasons import Reason
from ipexctl.stack.resolve.resolver import resolve

if TYPE_CHECKING:
    from ipexctl.stack.lock.project_packages import BackendList

_BOUNDS = frozenset(("==", "===", "~=", "<", "<="))
"""Operators that limit how high a version may be."""


@dataclass(frozen=True, slots=True)
class PackageChange:
    """A package whose version an install changes."""

    name: str
    before: str | None
    """None for a new package."""
    after: str | None
    """None for a package that is lost."""

    @property
    def is_lower(self) -> bool:
        """True if the package is lost or its version becomes lower. Versions that can't be compared do not count as
        lower."""
        if self.before is None or self.after is None:
            return self.after is None
        try:
            return Version(self.after) < Version(self.before)
        except InvalidVersion:
            return False

    def __str__(self) -> str:
        if self.after is None:
            return f"{self.name} {self.before} is lost"
        return f"{self.name} {self.before} -> {self.after}" if self.before else f"{self.name} {self.after} is new"


def changes_of(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[PackageChange, ...]:
    """Return the packages whose versions differ, sorted by name; None stands for a package that is new or lost."""
    names = sorted({*before, *after})
    return tuple(
        PackageChange(name, before.get(name), after.get(name)) for name in names if before.get(name) != after.get(name)
    )


def refuse_downgrade(
    changes: Sequence[PackageChange], record: EnvRecord, row: str, request: EnvRequest, name: str
) -> Refusal | None:
    """Refuse to lose or lower what an earlier call asked for, and torch, because a working script could fail after the
    install; else return None.

    What the call pins is exempt, and what only the resolver chose may move or go.
    """
    named = names_of((*request.packages, *request.constraints), _BOUNDS)
    before = [EnvRequest.from_json(made_for) for made_for in record.requests]
    wanted = names_of(line for made_for in before for line in made_for.packages)
    is_other_stack = row != record.row and request.stack != StackRequest()
    lower = [
        change
        for change in changes
        if change.is_lower
        and canonicalize_name(change.name) not in named
        and (canonicalize_name(change.name) in wanted or (not is_other_stack and change.name == TORCH))
    ]
    if not lower:
        return None
    listed = ", ".join(map(str, lower))
    fix = Fix(f"to keep it and make a second environment: `--env {name}-2`; to change this one: `--downgrade`")
    return Refusal(
        f"packages of the environment {name} would get lower versions or be lost: {listed}", fix, exit_code=2
    )


def with_packages(present: EnvRequest, added: EnvRequest) -> EnvRequest:
    """Return the present request with the packages of the added one. If both name a package, the added line wins."""
    named = names_of((*added.packages, *added.constraints))
    packages = [line for line in present.packages if not names_of([line]) & named]
    constraints = [line for line in present.constraints if not names_of([line]) & named]
    return replace(
        present,
        packages=tuple(dict.fromkeys((*packages, *added.packages))),
        constraints=tuple(dict.fromkeys((*constraints, *added.constraints))),
        lists=tuple(dict.fromkeys((*present.lists, *added.lists))),
    )


def names_of(lines: Iterable[str], operators: frozenset[str] = frozenset()) -> frozenset[str]:
    """Return the normalized names of the packages in these lines; lines that are no requirements are skipped.
    `operators`: if given, only packages whose version a line limits with one of these."""
    names = set()
    for line in lines:
        try:
            requirement = Requirement(line)
        except InvalidRequirement:  # a path or URL
            continue
        if not operators or any(clause.operator in operators for clause in requirement.specifier):
            names.add(canonicalize_name(requirement.name))
    return frozenset(names)


class ProjectArchive(NamedTuple):
    """A copy of the user's project, to build a wheel from."""

    name: str
    """Normalized."""
    version: str
    directory: str
    """As it was typed."""
    path: Path


@dataclass(frozen=True, slots=True)
class InstallRequest:
    """What a call of install asks for, with what its files and the project say."""

    env: EnvRequest
    sources: Sources
    rows: tuple[StackSpec, ...] = field(repr=False)
    """The version table, with the user's own rows."""
    origins: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Requirement → where the user wrote it, such as `requirements.txt:3`."""
    torch: str | None = None
    """By the project's files. It counts if no environment and no request decides, as does `ipex_use`."""
    ipex_use: str = ""
    """Where the project uses IPEX, as in `train.py imports …`."""
    notes: tuple[str, ...] = ()
    """What was left out of the files."""
    files: tuple[Path, ...] = field(default=(), repr=False)
    """All files that were read."""
    named_files: tuple[Path, ...] = field(default=(), repr=False)
    """Requirements files named on the command line, with their extras."""
    named: tuple[str, ...] = ()
    """Packages that the call or its files name, without those that only others require."""
    builds: tuple[str, ...] = ()
    """Packages to build from source. Never taken from a host's record, because a build runs code: what was built stays
    as it is unpacked there."""
    projects: tuple[ProjectArchive, ...] = ()
    """Projects to build a wheel of; likewise never from a record."""
    own: tuple[tuple[str, str], ...] = ()
    """Names and versions of the project's own packages, for which no index is asked."""
    left_out: tuple[str, ...] = ()
    """Lines of the files that hosts cannot install."""
    hashes: Mapping[str, frozenset[str]] = field(default_factory=dict, hash=False, repr=False)
    """Normalized name of a package → sha256 of its files that the files allow."""
    needed: frozenset[str] | None = None
    """Modules that the script imports in any case; None if no script is known."""
    loads_by_name: bool = False
    """True if it may import others, whose names its code makes."""
    unread: tuple[BackendList, ...] = ()
    """Lists that the project's build backend reads on node0, once the stack is chosen."""
    tree: Path | None = None
    """An archive of the project's files, for these lists."""
    name: str = DEFAULT_ENV
    """Name of the environment."""
    dry_run: bool = False
    upgrade: bool = False
    """True to choose all versions again; an existing environment is not searched."""
    downgrade: bool = False
    """True if packages may become older, or be lost."""

    def for_project(self) -> InstallRequest:
        """Return the request in which the project's torch and its use of IPEX count, so that they no longer stand
        beside it."""
        stack = self.env.stack.for_project(uses_ipex=bool(self.ipex_use), torch=self.torch)
        return replace(self, env=replace(self.env, stack=stack), torch=None)

    def to_json(self) -> dict[str, Any]:
        """Return the request as env.json records it; it differs once the user's version table has changed."""
        digest = rows_digest(self.rows)
        return {**self.env.to_json(), **({"rows": digest} if digest else {})}


def install_line(typed: InstallRequest, *, packages: Iterable[str] = (), builds: Iterable[str] = ()) -> FixCommand:
    """Return the install command of the call with more packages or builds, for a fix. It contains no login."""
    stack, sources = typed.env.stack, typed.sources
    options = [(name, getattr(stack, name)) for name in ("torch", "stack", "ipex", "oneccl", "python")]
    options += [("env", typed.name if typed.name != DEFAULT_ENV else None)]
    options += [("with", line) for line in typed.env.packages if line not in typed.origins]
    options += [("with", package) for package in packages]
    options += [("build", name) for name in (*typed.builds, *(copy.directory for copy in typed.projects), *builds)]
    options += [("index-url", sources.index_url)]
    options += [("extra-index-url", url) for url in sources.extra_index_urls]
    options += [("find-links", location) for location in sources.find_links]
    options += [("wheelhouse", sources.wheelhouse)]
    arguments = ["--require-oneccl"] if stack.require_oneccl else []
    for file in typed.named_files:
        arguments += ["-r", str(file)]
    for name, value in options:
        arguments += [f"--{name}", strip_login(value)] if value else []
    return ipexctl_command("install", *arguments)


def install_request(
    stack: StackRequest,
    packages: Sequence[str],
    files: Sequence[Path],
    sources: Sources,
    env: str,
    environ: Mapping[str, str],
    builds: Sequence[str] = (),
    layout: ProjectLayout = NO_LAYOUT,
    needed: frozenset[str] | None = None,
    *,
    loads_by_name: bool = False,
    are_found: bool = False,
    ipex_use: str = "",
) -> InstallRequest:
    """Return the request of a call. Raises a UserError for anything that can be refused before a host is contacted.

    `layout`: of the project that the call is in. `are_found`: True if the files were not named by the user, so that
    they can't set indexes. The others are described at InstallRequest.
    """
    rows = known_rows(environ)
    check_stack_request(stack, rows)
    _refuse_own_name_of_stack(layout)
    own = tuple((package.normalized, package.version) for package in layout.own if package.name)
    own += tuple((name, "0+local") for name in layout.members if name not in dict(own))
    name = check_new_env_name(env)
    request = InstallRequest(EnvRequest(stack), sources, rows, ipex_use=ipex_use, name=name, own=own)
    request = replace(request, needed=needed, loads_by_name=loads_by_name, named_files=tuple(files))
    request = replace(request, builds=tuple(map(_package_to_build, builds)))
    if not (packages or files) and sources == Sources():
        return request
    from ipexctl.stack.lock.project_packages import ProjectScope, split_extras
    from ipexctl.stack.lock.requirements import (  # slow to import
        read_package_request,
        sources_of,
        with_project_indexes,
        without_torch,
    )

    packages_read = read_package_request(packages, files, ProjectScope(layout, needed or frozenset(), Path.cwd()))
    torch = None if stack.torch else packages_read.torch
    if torch is not None and (refusal := _refuse_torch(stack, torch, rows)):
        origin = next(place for line, place in packages_read.origins.items() if Requirement(line).name == "torch")
        packages_read, torch = without_torch(packages_read, f"{origin}: {refusal.reason}"), None
    wanted = [line for line in map(Requirement, packages_read.lines) if line.url is None]
    names = frozenset(canonicalize_name(line.name) for line in wanted)
    project = Sources.of_project(find_indexes(layout)) if wanted or packages_read.unread else Sources()
    of_files, named = packages_read.sources, sources_of(sources, Sources())
    is_project_named = any(split_extras(file)[0].name in (PYPROJECT, UV_LOCK) for file in files)
    if not are_found:
        named = named.with_more(of_files).with_more(project if is_project_named else Sources())
    options = [word for package in packages for word in ("--with", package)]
    options += [word for file in files for word in ("-r", str(file))]
    line = install_command(env).with_words(*options)
    request = replace(
        request,
        env=EnvRequest(stack, packages_read.lines, packages_read.constraints),
        sources=with_project_indexes(named, of_files.with_more(project), names, line),
        hashes=packages_read.hashes,
        origins=packages_read.origins,
        torch=torch if stack.ipex is None and stack.oneccl is None else None,
        ipex_use=ipex_use or find_ipex_use((), names),
        notes=packages_read.notes,
        files=packages_read.files,
        named=tuple(dict.fromkeys(Requirement(line).name for line in packages_read.named)),
        left_out=packages_read.left_out,
        unread=packages_read.unread,
    )
    return request if stack == StackRequest(python=stack.python) else request.for_project()


_OF_STACKS: Final = frozenset({"torch", "intel-extension-for-pytorch", "oneccl-bind-pt", "impi-rt", "intel-openmp"})


def _refuse_own_name_of_stack(layout: ProjectLayout) -> None:
    """Refuse a project whose own package has the name of a part of the stack."""
    if (name := next((name for name in layout.members if name in _OF_STACKS), None)) is not None:
        raise UserError(
            f"the project's own package is {name} ({layout.members[name]}), which is part of the stack",
            fix=Fix("install from another directory: `cd ~ && ipexctl install`"),
        )


def _package_to_build(name: str) -> str:
    try:
        return canonicalize_name(name, validate=True)
    except InvalidName:
        raise UserError(f"--build {name!r} is not the name of a package", fix="versions belong to --with") from None


def _refuse_torch(stack: StackRequest, torch: str, rows: Sequence[StackSpec]) -> Refusal | None:
    """Refuse a torch that no stack has, or that differs from the torch of the requested stack."""
    decided = resolve(replace(stack, torch=torch), {}, None, rows=rows)
    return decided.refusal() if isinstance(decided, Reason) else None


@dataclass(frozen=True, slots=True)
class StackSummary:
    """What a report says about the installed stack."""

    name: str
    torch: str
    ipex: str | None
    oneccl: str | None
    mpi: str | None
    """Version of Intel MPI in the environment; None if it has none."""
    python: str
    backend: str
    why: str
    """Why this stack was chosen."""
    retired: bool


@dataclass(frozen=True, slots=True)
class InstallResult(HostResult):
    """What came of an install on one host."""

    env: str | None = None
    """Directory of the environment; None if it was not chosen yet."""
    packages: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Package → version."""
    verify: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Result of the verification; empty if there was none."""


@dataclass(frozen=True, slots=True)
class InstallReport(Report[InstallResult]):
    """What came of an install."""

    stack: StackSummary | None = None
    refusal: Refusal | None = None
    """Why nothing was installed; None if nothing was refused."""
    lock: Lock | None = None
    notes: tuple[str, ...] = ()
    path: str | None = None
    """The environment's directory on every host; with --download-only, the directory on the control machine."""
    unread: tuple[str, ...] = ()
    """Lists that are known once they are installed."""
    dry_run: bool = False
    uplink: int = 0
    """Bytes that the control machine sent to hosts."""
    downloaded: int = 0
    """Bytes of wheels downloaded, on any machine."""
    changes: tuple[PackageChange, ...] = ()
    """Changes to the environment of that name; empty if there was none."""

    @property
    def exit_code(self) -> int:
        """Return 2 if the call itself was refused (an unknown version, a downgrade), else 3 or 1 if hosts were
        unreachable or failed, and 1 for any other refusal."""
        if self.refusal is not None and self.refusal.exit_code == 2:
            return 2
        code = exit_code([host.status for host in self.hosts])
        return code or (1 if self.refusal is not None else 0)


@dataclass(frozen=True, slots=True)
class ControlMachine:
    """The machine on which ipexctl was called, as a machine that runs commands and stores wheels."""

    session: Session
    python: str
    home: str
    """ipexctl's cache directory, which stands for a home here."""

    @classmethod
    def find(cls, cancel: Cancel) -> ControlMachine:
        """Return the machine that ipexctl runs on. `cancel`: ends its running commands."""
        return cls(LocalSession(Host("localhost", "localhost"), cancel), sys.executable, str(cache_directory()))

    @property
    def location(self) -> StoreLocation:
        """Return where the control machine stores wheels, in ipexctl's cache directory."""
        return StoreLocation(self.session.host, self.python, f"{self.home}/wheels")

    @property
    def store(self) -> StoreClient:
        """Return the client of that store."""
        return StoreClient(self.location, self.session)


class InstallContext:
    """What is known and done so far in one install. Steps of the install read and change it."""

    def __init__(self, opened: OpenHosts, request: InstallRequest, watch: Watch) -> None:
        self.opened, self.hosts, self.pool = opened, opened.hosts, opened.pool
        self.request = request
        self.typed = request
        """The request as typed; packages from a host's record may be added to `request`."""
        self.made_for = request.to_json()
        """The request with the packages of the environment that it adds to, before lines of lists are left out."""
        self.watch = watch
        self.extended: EnvRecord | None = None
        self.origins: Mapping[str, str] = {}
        """Of the environment whose packages were added to `request`, as in EnvRecord."""
        self.built: tuple[BuiltPackage, ...] = ()
        """What was built for that environment, and the call does not build again."""
        self.control = ControlMachine.find(opened.pool.cancel)
        self.changes: tuple[PackageChange, ...] = ()
        self.notes: list[str] = [*request.notes]
        self.unread: list[str] = []
        self.silent_indexes: list[str] = []
        """Notes, which a call that changes nothing leaves out."""
        self.facts: dict[str, Facts] = {}
        self.done: dict[str, InstallResult] = {}
        self.installed_mpi: str | None = None
        """Intel MPI of the built environments. Only an installed wheel shows which MPI it has, if it came from a URL.
        """
        self.uplink = 0
        self.downloaded = 0
        self._began = time.monotonic()

    @property
    def pending(self) -> tuple[Host, ...]:
        """Return the hosts that answered and have no result yet."""
        return tuple(host for host in self.hosts if host.name in self.facts and host.name not in self.done)

    @property
    def first(self) -> Host:
        """Return the host that stores the wheels first: node0, or the next host with space for them."""
        answered = [host for host in self.hosts if host.name in self.facts]
        return next((host for host in answered if takes_wheels(self.facts[host.name])), answered[0])

    @property
    def home(self) -> str:
        """Return the path of the ipexctl home, by the first host whose facts have it; an install refuses hosts with
        different paths."""
        return next(facts.home.path for facts in self.facts.values() if facts.home is not None)

    @property
    def made_for_all(self) -> tuple[dict[str, Any], ...]:
        """Return the requests that env.json records: what the next call will ask for again, and last what the lock has.
        Both are one entry if they are equal."""
        locked = self.request.to_json()
        return (locked,) if locked == self.made_for else (self.made_for, locked)

    @contextmanager
    def timed(self, host: str, what: str) -> Iterator[None]:
        """Report how long the step in the `with` block took, unless it raised."""
        began = time.monotonic()
        yield
        self.watch(StepTimed(host, what, time.monotonic() - began))

    @property
    def seconds(self) -> float:
        """Return the time since the call began."""
        return time.monotonic() - self._began

    def python(self, host: Host, preferred: str | None = None) -> str:
        """Return the Python that runs the agent on this host: the preferred one, else the first usable one, else
        `python3`."""
        if preferred:
            return preferred
        usable = usable_pythons(self.facts[host.name])
        return usable[0].path if usable else "python3"

    def add_result(self, host: Host, status: HostStatus, reason: str = "", fix: str = "", **details: Any) -> None:
        """Store the result of a host, which is no longer pending then. `details`: fields of InstallResult."""
        self.done[host.name] = InstallResult(host, status, reason, fix, self.seconds, **details)

    def end(self, host: Host, error: HostError, env: str | None = None) -> None:
        """Store the error of a host as its result."""
        self.done[host.name] = InstallResult.of_error(host, error, seconds=self.seconds, env=env)

    def report(
        self,
        *,
        stack: StackSummary | None = None,
        refusal: Refusal | None = None,
        lock: Lock | None = None,
        path: str | None = None,
    ) -> InstallReport:
        """Return the report of the call. With a refusal, the pending hosts fail, too; those that it does not name fail
        because all hosts get the same stack."""
        if refusal is not None:
            for host in self.pending:
                named = not refusal.hosts or host.name in refusal.hosts
                reason = refusal.reason if named else "nothing was started, because all hosts get the same stack"
                self.add_result(host, "failed", reason, refusal.fix if named else "")
        hosts = tuple(self.done[host.name] for host in self.hosts if host.name in self.done)
        is_unchanged = bool(hosts) and not self.request.dry_run and all(host.status == "ok" for host in hosts)
        is_changed = self.request.dry_run or any(host.status == "changed" for host in hosts)
        return InstallReport(
            hosts=hosts,
            seconds=self.seconds,
            stack=stack,
            refusal=refusal,
            lock=lock,
            notes=tuple(dict.fromkeys((*self.notes, *(() if is_unchanged else self.silent_indexes)))),
            path=path,
            unread=tuple(self.unread),
            dry_run=self.request.dry_run,
            uplink=self.uplink,
            downloaded=self.downloaded,
            changes=self.changes if is_changed or refusal is not None else (),
        )


def inspect_hosts(context: InstallContext, probed: Sequence[HostFacts] = ()) -> None:
    """Gather the facts of all hosts into the context. A host without facts, or without a home, gets its result at once.
    `probed`: facts gathered before, which are used instead."""
    if not context.hosts:
        return

    def on_step(host: Host, step: str, seconds: float) -> None:
        context.watch(StepTimed(host.name, step, seconds))

    for gathered in probed or gather_facts(context.opened, on_step=on_step):
        try:
            context.facts[gathered.host.name], _ = gathered.require_home()
        except HostError as error:
            context.end(gathered.host, error)


def summary_of(plan: StackPlan, lock: Lock) -> StackSummary:
    """Return what a report says about the stack. If the bindings contain no Intel MPI, `mpi` is the version of its
    package in the lock."""
    return StackSummary(
        name=plan.row.name,
        torch=plan.torch,
        ipex=plan.ipex,
        oneccl=plan.oneccl,
        mpi=plan.bundled_mpi or lock.packages.get("impi-rt"),
        python=plan.python,
        backend=plan.backend,
        why=plan.reason.text,
        retired=plan.row.retired,
    )
