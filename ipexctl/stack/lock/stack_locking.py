"""Make a lock from a request: query the indexes, resolve the stack, and lock it on one machine.

Node0's answer is preferred to the control machine's, because node0 downloads. If an index that the call names does not
answer, the call fails, because others may have different packages under the same names.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from ipexctl.errors import Refusal, UserError
from ipexctl.files.store_client import DownloadItem, StoreClient, StoredFile, StoreLocation
from ipexctl.found_files import parse_toml
from ipexctl.hub.hugging_face import LEAST_USEFUL
from ipexctl.known_errors.packages import known_packages
from ipexctl.limits import BACKEND_STEP
from ipexctl.node.common.files import sha256_of
from ipexctl.node.common.fix import Fix, join_fixes
from ipexctl.node.common.urls import strip_login
from ipexctl.node.env.env_replies import EnvRecord, ListReply, PipSettings, SourceFailure
from ipexctl.node.env.lock import ProjectSource
from ipexctl.node.env.project_list import BackendListRequest
from ipexctl.node.files.call_requests import StoreFile
from ipexctl.projects.declaration import PYPROJECT
from ipexctl.projects.declared_indexes import IndexBinding
from ipexctl.projects.requirement_files import UV_LOCK, digest_of_list
from ipexctl.remote.fanout import run_in_background
from ipexctl.remote.outcome import HostError, Notice
from ipexctl.remote.session import Session
from ipexctl.stack.catalog import IPEX, ONECCL, TORCH, project_of
from ipexctl.stack.env.record import SCHEMA, env_directory
from ipexctl.stack.expected_stack import installed_plan, with_ipex_use
from ipexctl.stack.install_context import InstallContext, InstallRequest, ProjectArchive, install_line
from ipexctl.stack.lock.project_packages import BackendList
from ipexctl.stack.lock.requirements import PackageRequest, contradiction, read_answer, without_torch
from ipexctl.stack.lock.wheel_indexes import (
    CONTROL_MACHINE,
    PYPI,
    STACK_SOURCES,
    TORCH_CPU,
    IndexAnswer,
    IndexCache,
    Source,
    call_labels,
    directory_of,
    is_for_hosts,
    lacks_answer_about_mpi,
    lock_sources,
    named_projects,
    pip_settings,
    plain_url,
    query_indexes,
    sources_for,
)
from ipexctl.stack.lock.wheel_lock import (
    UNPACKED,
    Conflict,
    LacksFile,
    LacksPackage,
    LacksVersion,
    LacksWheel,
    Lock,
    LockMaker,
    NamedWheels,
    Wheel,
    find_bound_wheels,
    find_named_wheels,
    make_lock,
    read_refusal,
    sized,
    uv_for_node,
    uv_here,
    wheels_in_directories,
)
from ipexctl.stack.lock.wheels import (
    NOT_QUERIED,
    Availability,
    allows_python,
    is_cpu_build,
    is_prerelease,
    lacks_oneccl,
)
from ipexctl.stack.resolve import resolver
from ipexctl.stack.resolve.model import Sources, StackPlan, StackRequest
from ipexctl.stack.resolve.reasons import Reason, because, join_names, recorded
from ipexctl.text import join_words, readable, tilde_path


def find_older(
    lines: Iterable[str], packages: Mapping[str, str], found: Availability, python: str
) -> dict[str, Version]:
    """Return the locked packages that the lines name without a version and of which an index has a newer one: name →
    that version. Pure."""
    bare = (line for line in map(Requirement, lines) if not line.specifier and not line.url)
    names = (name for line in bare if (name := canonicalize_name(line.name)) in packages)
    newest = {name: found.newest(name, SpecifierSet(), python) for name in names}
    return {name: newer for name, newer in newest.items() if newer is not None and newer > Version(packages[name])}


def note_on_older(older: Mapping[str, Version], packages: Mapping[str, str], found: Availability) -> str:
    """Return a note that names the outdated packages and the indexes with their newest versions; empty if `older` is
    empty."""
    shown = []
    for name, newest in older.items():
        sources = {wheel.source for wheel in found.of(name) if wheel.version == str(newest)}
        shown.append(f"{name} {packages[name]} ({join_words(sorted(sources))} has {newest})")
    return f"older than the newest: {join_names(shown, _SHOWN)}" if shown else ""


def needed_builds(first: LacksWheel, built: Iterable[str], make: Callable[..., object]) -> list[str]:
    """Return the packages that must be built besides `built`; empty if builds of them would not lead to a lock either.

    `make` tries a lock in which stubs stand for the packages, so that nothing is built to find out.
    """
    names = [first.package]
    while len(names) <= _MOST_BUILDS:
        try:
            make(stubs={*built, *names})
        except LacksWheel as error:
            if error.package in names:  # the user names it: what it requires is known once it is built
                return names
            names.append(error.package)
        except (HostError, UserError):
            break
        else:
            return [name for name in names if name not in built]
    return []


def floors_of(packages: Iterable[str], kept: Collection[str]) -> tuple[str, ...]:
    """Return lower bounds, such as `trl>=1.14.1`, for new packages that are asked for by their names alone. `kept`:
    packages that the environment already has."""
    lines = map(Requirement, packages)
    bare = {line.name for line in lines if not line.specifier and line.url is None}.difference(kept)
    return tuple(f"{name}>={least}" for name, least in LEAST_USEFUL.items() if name in bare)


def built_for_another_torch(lock: Lock, index_answer: IndexAnswer, held: Mapping[str, str]) -> tuple[str, str] | None:
    """Return problem and fix if the lock has libraries of compiled code that are built for the CUDA build of torch;
    else None. Pure.

    PyPI and its mirrors have only such builds, and beside a torch for CPUs their import fails. Wheels of a directory,
    and wheels that no index has, are the user's own: only the check of imports tells. `held`: packages of the
    environment that gets more.
    """
    torch, availability = lock.packages.get(TORCH), index_answer.availability
    indexes = {source.label for source in index_answer.sources if source.kind == "index"}
    builds = [wheel for name in _FOR_ONE_TORCH for wheel in availability.of(name)]
    published = {wheel.sha256 for wheel in builds if wheel.source in indexes}
    named = {wheel.filename for wheel in builds if wheel.source not in indexes}
    wheels = [wheel for wheel in lock.wheels if wheel.name in _FOR_ONE_TORCH and Version(wheel.version).local is None]
    wheels = [wheel for wheel in wheels if wheel.sha256 in published and not (wheel.path and wheel.filename in named)]
    if not wheels or torch is None or lock.is_cuda:
        return None
    one, names = len(wheels) == 1, join_words([wheel.name for wheel in wheels])
    what = (
        f"{join_words([f'{wheel.name} {wheel.version}' for wheel in wheels])} in reach {'is' if one else 'are'} built"
    )
    fix = (
        f"PyTorch's index for CPUs has {'its build' if one else 'their builds'}, {TORCH_CPU}: use a machine that "
        f"reaches it, or name a mirror of it, --extra-index-url URL, or a directory with the wheel{'s' * (not one)}, "
        f"--find-links DIR; or leave out {names} and what requires {'it' if one else 'them'}"
    )
    if own := [f"{wheel.name} {held[wheel.name]}" for wheel in wheels if wheel.name in held]:
        origin = f"directory or index from which the environment has {join_words(own)}"
        fix = f"name again the {origin}: --find-links DIR or --extra-index-url URL"
    return f"{what} for torch with CUDA, and the hosts get torch {torch}: importing {names} would fail", fix


def unneeded_lines(request: InstallRequest, names: Iterable[str]) -> tuple[str, ...]:
    """Return the lines of lists with these packages, unless an import of the script needs them. Empty if no script is
    known. Pure."""
    if request.needed is None:
        return ()
    of_script = {name for module in request.needed for name in known_packages().get(module, (module,))}
    left = {*map(canonicalize_name, names)} - {canonicalize_name(project_of(name)) for name in of_script}
    listed = (line for line in request.env.packages if line in request.origins)
    return tuple(line for line in listed if canonicalize_name(Requirement(line).name) in left)


def build_fix(typed: InstallRequest, packages: Sequence[str], machine: str) -> str:
    """Return the fix that builds these packages from source, and say on which machine their code runs then."""
    return Fix(
        "build from source, which runs the code of {names} on {machine}: {line}",
        names=join_words(packages),
        machine=machine,
        line=install_line(typed, builds=packages),
    )


TORCH_LIBRARIES: Final = ("torchaudio", "torchtext", "torchvision")
"""PyTorch's index has builds of these for its CPU torch; other packages require them."""
_FOR_ONE_TORCH: Final = ("torchaudio", "torchvision")
OF_STACK: Final = frozenset({TORCH, IPEX, ONECCL, *TORCH_LIBRARIES})
"""A project's hashes are of other builds of these."""
_MOST_BUILDS: Final = 12
_SHOWN: Final = 8
_LARGE: Final = 2_000_000_000
"""Bytes; for a larger download, a smaller stack is suggested."""


@dataclass(frozen=True, slots=True)
class LockedStack:
    """A chosen stack with its lock, and where its wheels come from."""

    plan: StackPlan
    lock: Lock
    installer: Wheel
    """The uv that builds the environment."""
    index_answer: IndexAnswer
    by_node0: bool
    """True if node0 queried the indexes and made the lock, so that it downloads."""
    origins: Mapping[str, str] = field(default_factory=dict, hash=False)
    """As in EnvRecord."""

    @property
    def mpi(self) -> str | None:
        """Return the version of Intel MPI inside the bindings or of its own package; None if the environment has
        none."""
        return self.plan.bundled_mpi or self.lock.packages.get("impi-rt")

    def record(self) -> EnvRecord:
        """Return the content of env.json, without what only the request or the build knows."""
        plan, lock, installer = self.plan, self.lock, dict(self.installer.to_json())
        module = plan.row.module if plan.oneccl else None
        name = env_directory(plan.row.name, lock.digest)
        made = EnvRecord(SCHEMA, name, plan.row.name, plan.python, "", lock.digest, lock.packages, plan.backend, ())
        made = made._replace(module=module, retired=plan.row.retired, mpi=self.mpi, why=plan.reason.text)
        return made._replace(installer=installer, origins=self.origins)


def lock_stack(context: InstallContext, *, node0_may: bool = True) -> LockedStack | Refusal:
    """Resolve and lock one stack for all hosts; return a refusal if no stack fits. Raises a HostError for the machine
    that makes the lock.

    With `node0_may`, node0 also queries the indexes, and makes the lock if it reaches one.
    """
    request = context.request.env.stack
    if context.extended is not None:
        request = StackRequest(stack=context.extended.row, python=context.extended.python)
    by_table = resolver.resolve(request, context.facts, None, rows=context.request.rows)
    if isinstance(by_table, Reason) and context.typed.torch is not None and request.torch == context.typed.torch:
        _leave_torch_out(context, by_table.refusal().reason)  # the lists, not the call, name that version
        request = replace(request, torch=None)
        context.request = replace(context.request, env=replace(context.request.env, stack=request))
        by_table = resolver.resolve(request, context.facts, None, rows=context.request.rows)
    if isinstance(by_table, Reason) and (by_table.is_wrong_call or by_table.hosts):
        return by_table.refusal()  # a build that was not published may still be in a wheelhouse
    projects = resolver.projects(request, context.request.rows)
    if context.request.env.packages or context.request.unread or context.request.projects:
        projects += TORCH_LIBRARIES
    if context.request.sources.extra_index_urls:
        named = named_projects(context.request.env.packages)
        local = wheels_in_directories(context.request.sources)
        projects += tuple(name for name in named if name not in local)
    return _Locking(context, projects).lock(node0_may=node0_may)


def _leave_torch_out(context: InstallContext, why: str) -> None:
    """Take the versions of torch out of the request's lines, and note why."""
    request = context.request
    fewer = without_torch(PackageRequest(lines=request.env.packages, origins=request.origins), why)
    env = replace(request.env, packages=fewer.lines)
    context.request = replace(request, env=env, origins=fewer.origins, left_out=(*request.left_out, *fewer.left_out))
    context.notes += fewer.notes


def _check_against(plan: StackPlan, context: InstallContext) -> None:
    """Leave other versions of torch out of the lists. Raises a UserError for one of the call, and for IPEX."""
    request = context.request
    typed = [line for line in request.env.packages if line not in request.origins]
    if error := contradiction(plan, typed, {}):
        raise error
    if error := contradiction(plan, request.env.packages, request.origins):
        _leave_torch_out(context, error.message)
    if error := contradiction(plan, context.request.env.packages, context.request.origins):
        raise error


def lock_plan(context: InstallContext, plan: StackPlan, projects: tuple[str, ...]) -> LockedStack | Refusal:
    """Lock an existing plan. An index counts as reached if it has the first of `projects`."""
    return _Locking(context, projects, plan).lock(node0_may=True)


def query_here(context: InstallContext, projects: tuple[str, ...]) -> IndexAnswer:
    """Return what the indexes have of these projects, asked from the control machine."""
    return _Locking(context, projects).query_here()


def _with_versions(line: str, versions: str) -> str:
    """Return the requirement with these versions in place of its own; with all if `versions` is empty."""
    required = Requirement(line)
    required.specifier = SpecifierSet(versions)
    return str(required)


def _first_lock(
    make: Callable[..., Lock], held: Sequence[str], choices: Iterable[tuple[str, ...]]
) -> tuple[Lock | None, tuple[str, ...], HostError | UserError | None]:
    """Return the lock with the first constraints of `choices` that allow one, and these constraints. Returns None and
    the last refusal if none does."""
    failure: HostError | UserError | None = None
    for more in choices:
        try:
            return make(constraints=(*held, *more)), more, None
        except (HostError, UserError) as error:
            failure = error
    return None, (), failure


@dataclass(frozen=True, slots=True)
class _Locking:
    context: InstallContext
    projects: tuple[str, ...]
    given: StackPlan | None = None

    @property
    def _main(self) -> str:
        return TORCH if self.given is None else self.projects[0]

    def lock(self, *, node0_may: bool) -> LockedStack | Refusal:
        """Return the lock of the stack. A wheelhouse is tried first, and with --offline only directories are; otherwise
        the indexes are queried."""
        context, sources = self.context, self.context.request.sources
        from_wheelhouse: LockedStack | Refusal | HostError | None = None
        if sources.wheelhouse is not None:
            from_wheelhouse = self._from_directories()
            if isinstance(from_wheelhouse, LockedStack):
                return from_wheelhouse
        if sources.offline:
            local = self._from_directories(and_pips=True)
            if isinstance(local, LockedStack):
                return local
            failure = local if from_wheelhouse is None else from_wheelhouse  # report the named directory first
            if isinstance(failure, HostError):
                raise failure
            return failure
        named = [source for source in (sources.wheelhouse, *sources.find_links) if source]
        here_only = not node0_may or any(directory_of(source) is not None for source in named)
        index_answer, by_node0 = self._ask(here_only=here_only)
        plan = self._plan(index_answer)
        if not isinstance(plan, Refusal) and lacks_answer_about_mpi(plan, index_answer.availability):
            # An index that was slow once may answer the next time.
            index_answer, by_node0 = self._ask(here_only=here_only)
            plan = self._plan(index_answer)
        self._report_failures(index_answer.availability, by_node0=by_node0)
        if context.facts:
            self._save_answer(context.facts[context.first.name].machine or context.first.name, index_answer)
        return plan if isinstance(plan, Refusal) else self._lock(plan, index_answer, by_node0=by_node0)

    def _ask(self, *, here_only: bool) -> tuple[IndexAnswer, bool]:
        with self.context.timed("", "queried the indexes"):
            return (self.query_here(), False) if here_only else self._query_both()

    def _save_answer(self, machine: str, index_answer: IndexAnswer) -> None:
        if self.context.request.sources == Sources():
            IndexCache(os.environ).save(machine, index_answer.availability)

    def _from_directories(self, *, and_pips: bool = False) -> LockedStack | Refusal | HostError:
        """Lock with directories alone. A HostError is returned, not raised, so that the caller can try the indexes."""
        control = self.context.control
        try:
            settings = pip_settings(control.session, control.python) if and_pips else PipSettings()
            sources_here = sources_for(self.context.request.sources, settings._replace(no_index=True))
            index_answer = query_indexes(control.session, control.python, sources_here, self.projects, PipSettings())
            self._report_failures(index_answer.availability, by_node0=False)
            plan = self._plan(index_answer)
            return plan if isinstance(plan, Refusal) else self._lock(plan, index_answer, by_node0=False)
        except HostError as error:
            return error

    def _plan(self, index_answer: IndexAnswer) -> StackPlan | Refusal:
        """Return the plan: a given one, that of the environment which gets more packages, or what the resolver
        chooses."""
        context, rows = self.context, self.context.request.rows
        if self.given is not None:
            return self.given
        if context.extended is not None:
            plan = installed_plan(context.extended, context.facts, rows)
            return replace(plan, reason=because(recorded, text=context.extended.why))
        request = context.request.env.stack
        decided = resolver.resolve(request, context.facts, index_answer.availability, rows=rows)
        if isinstance(decided, Reason):
            return decided.refusal()
        return replace(decided, reason=with_ipex_use(decided.reason, request, context.request.ipex_use))

    def query_here(self) -> IndexAnswer:
        index_answer = self._query(self.context.control.session, self.context.control.python, here=True)
        self._save_answer(CONTROL_MACHINE, index_answer)
        return index_answer

    def _query(self, session: Session, python: str, *, here: bool) -> IndexAnswer:
        """Query the sources from one machine. `here`: True if it is the control machine."""
        request = self.context.request
        settings = pip_settings(session, python)
        # The candidate rows' indexes, with their known labels.
        labels = {source.url.rstrip("/"): source for source in STACK_SOURCES}
        besides = [
            labels.get(index.url.rstrip("/"), Source(index.kind, index.url, strip_login(index.url)))
            for index in (resolver.indexes(request.env.stack, request.rows) if self.given is None else ())
            if index.url.rstrip("/") != PYPI
        ]
        wanted = sources_for(request.sources, settings, here=here, besides=besides)
        return query_indexes(session, python, wanted, self.projects, settings)

    def _query_both(self) -> tuple[IndexAnswer, bool]:
        """Query the sources from node0 and the control machine at once; return the answer that counts, and whether it
        is node0's."""
        context = self.context

        def query_node0() -> IndexAnswer | None:
            host = context.first
            try:
                return self._query(context.pool.session(host), context.python(host), here=False)
            except HostError as error:
                context.notes.append(f"{host.name} could not query the indexes: {error.reason}")
                return None

        querying = run_in_background(query_node0, "query-node0")
        try:
            own: IndexAnswer | HostError = self.query_here()
        except HostError as error:
            own = error
        from_node0 = querying.result()
        if isinstance(own, HostError):
            if from_node0 is None:
                raise own
            return from_node0, True
        by_node0 = (
            from_node0 is not None
            and bool(from_node0.availability.of(self._main))
            and (not self._unanswered(from_node0) or bool(self._unanswered(own)))
        )
        if context.request.dry_run and own.availability.of(self._main):
            return replace(own, is_for_node0=by_node0), False  # a lock made on node0 would leave uv there
        return (from_node0, True) if from_node0 is not None and by_node0 else (own, False)

    def _unanswered(self, index_answer: IndexAnswer) -> list[SourceFailure]:
        """Return the failures of indexes that the call names."""
        named = call_labels(self.context.request.sources)
        return [f for f in index_answer.availability.failures if f.source in named and index_answer.sources]

    def _report_failures(self, availability: Availability, *, by_node0: bool) -> None:
        """Note which indexes did not answer. A call that changes nothing leaves these notes out."""
        where = self.context.first.name if by_node0 else "the control machine"
        reasons: dict[str, list[str]] = {}
        for failures in availability.failures:
            reasons.setdefault(failures.reason, []).append(failures.source)
        for reason, sources in reasons.items():
            self.context.silent_indexes.append(f"{where} got no answer from {join_names(sources, 3)}: {reason}")

    def _lock(self, plan: StackPlan, index_answer: IndexAnswer, *, by_node0: bool) -> LockedStack | Refusal:
        """Lock a plan with this answer. Raises a HostError if the answer can't be relied on, or if the lock can't work
        on hosts."""
        context, request = self.context, self.context.request
        if failures := self._unanswered(index_answer):
            raise HostError(
                f"{failures[0].source} gave no answer ({failures[0].reason}), and other indexes may have other "
                "packages under the same names",
                "leave this index out to install from the others",
            )
        if problem := lacks_answer_about_mpi(plan, index_answer.availability):
            raise HostError(*problem)
        _check_against(plan, context)
        if problem := lacks_oneccl(plan, request.env.packages, index_answer.availability):
            raise HostError(*problem)
        to_build = (*request.builds, *(project.name for project in request.projects))
        uv = uv_for_node(index_answer.availability, plan.glibc, context.request.sources)
        maker = self._maker(uv, index_answer, plan, by_node0=by_node0)
        context.watch(Notice(f"{plan.row.name} for Python {plan.python}: making the lock"))
        if to_build and request.dry_run:
            names = join_names(to_build, 3)
            stops = f"--dry-run stops before it builds {names}, which would run their code: the lock lacks them and"
            context.watch(Notice(f"{stops} what only they require"))
        elif to_build:
            names = join_names(to_build, 3)
            context.watch(Notice(f"{maker.name} builds {names} from source, which runs the package's code there"))
        self._read_lists(plan, index_answer, maker, uv)
        bound, index_answer, is_silent = self._find_bound(plan, index_answer, maker)
        if is_silent and by_node0:  # an index of the project may be reached from here alone
            own = self.query_here()
            again = self._plan(own)
            return again if isinstance(again, Refusal) else self._lock(again, own, by_node0=False)
        with context.timed("", "made the lock"):
            try:
                lock = self._make(plan, index_answer, maker, bound)
            except LacksFile as error:
                raise self._explain_lacking_file(error, plan) from None
        held = context.extended.packages if context.extended is not None else {}
        problem = built_for_another_torch(lock, index_answer, held)
        if problem is not None and self._leave_out_lines({*_FOR_ONE_TORCH} & {*lock.packages}, problem[0]):
            lock = self._make(plan, index_answer, maker, bound)
            problem = built_for_another_torch(lock, index_answer, held)
        if problem is not None:
            raise HostError(*problem)
        if uv.size is None:
            (uv,) = sized(maker, (uv,), index_answer)
        labels = call_labels(request.sources)
        origins = {
            wheel.name: plain_url(candidate.source)
            for wheel in lock.wheels
            for candidate in index_answer.availability.of(wheel.name)
            if candidate.source in labels and candidate.sha256 == wheel.sha256
        }
        origins |= {name: wheels.option for name, wheels in bound.items() if name in lock.packages}
        return LockedStack(plan, lock, uv, index_answer, by_node0, origins)

    def _explain_lacking_file(self, error: LacksFile, plan: StackPlan) -> HostError:
        """Return the same error, or why a uv.lock cannot have the file: it is for other Pythons."""
        typed = self.context.typed
        for path in (path for path in typed.files if path.name == UV_LOCK):
            required = str(parse_toml(path.read_text()).get("requires-python", ""))
            if not allows_python(required, plan.python):
                files = tuple(file.with_name(file.name.replace(UV_LOCK, PYPROJECT)) for file in typed.named_files)
                line = install_line(replace(typed, named_files=files))
                return HostError(
                    f"{tilde_path(path)} is for Python {required} and has no file of {error.package} for Python "
                    f"{plan.python}, which the hosts get",
                    Fix("take the project's own list in its place: {line}", line=line),
                )
        return error

    def _read_lists(self, plan: StackPlan, index_answer: IndexAnswer, maker: LockMaker, uv: Wheel) -> None:
        """Add what the project's build backends answer on node0. Nothing of a project is run on the control machine."""
        context, unread, tree = self.context, self.context.request.unread, self.context.request.tree
        context.request = replace(context.request, unread=())  # read once
        for listed in unread:
            name = os.path.relpath(listed.path)
            if tree is None:
                context.unread.append(name)
                what = f"the list of {name} is known once it is installed, because the code of its build makes it"
                context.notes.append(what)
                continue
            what = f"{context.first.name} reads the list of {name}, which runs the code of its build there"
            context.watch(Notice(what))
            try:
                reply = self._ask_backend(listed, tree, plan, index_answer, maker, uv)
                requires, why = [*reply.requires], reply.message and f"its build says {reply.message}"
            except (LacksPackage, UserError) as error:  # of what the build needs
                requires, why = [], str(error)
            request = context.request
            lists = request.env.lists if why else (*request.env.lists, digest_of_list(listed.path))
            if why:
                requires = [line.text for line in listed.shown("")]
                shown = f"read as far as its text shows it ({', '.join(requires[:_SHOWN])})" if requires else "left out"
                context.notes.append(f"the list of {name} is {shown}: {why}")
            answer = read_answer(listed, requires, plan)
            env = replace(
                request.env, packages=tuple(dict.fromkeys((*request.env.packages, *answer.lines))), lists=lists
            )
            origins, left_out = {**request.origins, **answer.origins}, (*request.left_out, *answer.left_out)
            context.request = replace(request, env=env, origins=origins, left_out=left_out)
            context.notes += answer.notes

    def _ask_backend(
        self, asked: BackendList, tree: Path, plan: StackPlan, index_answer: IndexAnswer, maker: LockMaker, uv: Wheel
    ) -> ListReply:
        """Return what the build backend answers on node0 (`node/env/project_list.py`). What the backend needs comes
        through the control machine if node0 reaches no index."""
        backend, requires, paths = asked.backend
        if maker.session is self.context.control.session:
            bare = replace(plan, requirements=(), constraints=())
            needed = read_answer(asked, requires, plan).lines
            wheels = make_lock(maker, bare, index_answer, packages=needed, constraints=plan.requirements).wheels
            self._bring((uv, *wheels), index_answer, by_node0=False)
            requires = [f"{self.context.home}/wheels/{wheel.sha256}/{wheel.filename}" for wheel in wheels]
            maker, index_answer = self._on_node0(uv, plan), IndexAnswer(NOT_QUERIED, (), PipSettings())
        archive = StoredFile(sha256_of(tree), tree.name, tree.stat().st_size)
        self._store().push([(archive, tree)])
        directory = os.path.relpath(asked.path.parent.absolute(), Path(os.path.abspath(asked.scope.layout.root)))  # noqa: PTH100
        request: BackendListRequest = {
            "home": maker.home,
            "uv": maker.uv if isinstance(maker.uv, str) else maker.uv.stored_file.to_json(),
            "archive": archive.to_json(),
            "directory": f"{tree.name.removesuffix('.tar.gz')}-0/{directory}",
            "backend": backend,
            "requires": requires,
            "paths": paths,
            "python": maker.interpreter,
            "sources": [source.to_json() for source in lock_sources(index_answer)],
            "settings": index_answer.settings.transport(),
            "logins": index_answer.logins,
            "timeout": BACKEND_STEP,
        }
        return maker.call("env.project_list", "read", request).decode(ListReply)

    def _find_bound(
        self, plan: StackPlan, index_answer: IndexAnswer, maker: LockMaker
    ) -> tuple[dict[str, NamedWheels], IndexAnswer, bool]:
        """Return the wheels of packages with an index of their own, the answer with these indexes added, and whether
        one of them did not answer."""
        request = self.context.request
        urls = {plain_url(url): url for url in request.sources.urls}
        bindings = [IndexBinding(name, urls.get(url, ""), url) for name, url in self.context.origins.items()]
        by_url = (line.name for line in map(Requirement, request.env.packages) if line.url is not None)
        left_out = {*dict(request.own), *map(canonicalize_name, by_url)}
        bindings = [
            binding
            for binding in (*request.sources.bound, *bindings)
            if binding.name not in left_out and is_for_hosts(binding.marker, plan.python)
        ]
        if request.sources.offline or not bindings:
            return {}, index_answer, False
        labels = {binding.url: binding.label for binding in bindings if binding.url}
        names = {binding.name for binding in bindings}
        sources = [Source("explicit", url, label) for url, label in labels.items()]
        answer = query_indexes(maker.session, maker.python, sources, names, index_answer.settings)
        joined = replace(
            index_answer,
            sources=(*index_answer.sources, *answer.sources),
            logins={**index_answer.logins, **answer.logins},
        )
        bound = find_bound_wheels(bindings, answer, plan, request.hashes, install_line(self.context.typed))
        return bound, joined, bool(answer.availability.failures)

    def _make(
        self, plan: StackPlan, index_answer: IndexAnswer, maker: LockMaker, bound: Mapping[str, NamedWheels]
    ) -> Lock:
        """Make the lock, and again without lines that prevent one as long as there are such lines. Raises a HostError
        or a UserError if there is none."""
        context, request, typed = self.context, self.context.request, self.context.typed
        named = find_named_wheels(request.sources, plan, request.builds) if index_answer.has_index else {}
        named = {**bound, **named}
        attempt = partial(
            make_lock,
            maker,
            plan,
            index_answer,
            packages=request.env.packages,
            origins=request.origins,
            own=dict(request.own),
            named=named,
            projects=[] if request.dry_run else [self._project_source(maker, each) for each in request.projects],
            strict=request.sources.is_strict,
            hashes={name: allowed for name, allowed in request.hashes.items() if name in bound or name not in OF_STACK},
        )
        make = partial(attempt, builds=request.builds)
        if request.dry_run:
            make = partial(attempt, stubs=dict.fromkeys(request.builds, "0"))
        held, limits = request.env.constraints, list[str]()
        kept = context.extended.packages.items() if context.extended is not None else ()
        pins = tuple(f"{name}=={version}" for name, version in kept if name not in request.builds)
        floors = floors_of(request.env.packages, dict(kept))
        # What the environment has keeps its version if possible, and what was built stays.
        choices = [each for each in dict.fromkeys(((*pins, *floors), pins, ())) if each or context.built]
        lock, more, failure = _first_lock(partial(make, kept=context.built), held, choices)
        held = (*held, *more[len(pins) :])
        if lock is not None:
            attempt, make = partial(attempt, kept=context.built), partial(make, kept=context.built)

        def limit(lock: Lock) -> bool:
            limits.extend(self._without_prereleases(plan, lock, index_answer, maker, left_out=named))
            return bool(limits)

        def try_lock(*more: str, stubs: Collection[str] = (), packages: Sequence[str] = request.env.packages) -> Lock:
            pinned = dict(line.split("==") for line in more if "==" in line)
            stand_ins = {name: pinned.get(name, "0") for name in stubs}
            return attempt(packages=packages, constraints=(*held, *limits, *more), stubs=stand_ins)

        try:
            lock = lock or make(constraints=held)
            lock = make(constraints=(*held, *limits)) if limit(lock) else lock
        except (LacksPackage, LacksVersion, Conflict) as error:
            if self._leave_out(error, plan):
                return self._make(plan, index_answer, maker, bound)
            built = [package.wheel.name for package in context.built]
            if type(failure) is HostError and isinstance(error, LacksWheel) and error.package in built:
                raise failure from None  # a build of this call failed, not what was built before
            raise self._lacks_wheels(error, try_lock, limit, index_answer, maker) from None
        except UserError as error:
            if lock is None:
                error.fix = error.fix or self._find_versions(error.message, try_lock, limit, index_answer)
                raise
            early = [f"{name}=={lock.packages[name]}" for name in (limit.partition("<")[0] for limit in limits)]
            line = install_line(typed, packages=early)
            raise UserError(error.message, fix=Fix("to take a pre-release: {line}", line=line)) from None
        self._refuse_unrequired(lock)
        older = self._note_on_older(plan, lock, index_answer, maker, named)
        majors = {name: each.major for name, each in older.items() if each.major > Version(lock.packages[name]).major}
        self._refuse_for_builds(majors, try_lock, limit, index_answer, maker)
        return lock

    def _refuse_for_builds(
        self,
        majors: Mapping[str, int],
        try_lock: Callable[..., Lock],
        limit: Callable[[Lock], bool],
        index_answer: IndexAnswer,
        maker: LockMaker,
    ) -> None:
        """Raise a HostError if a package that the script needs is years older than its newest release, and a build
        leads to a newer one."""
        for name in (name for name in majors if not unneeded_lines(self.context.request, (name,))):
            try_newer = partial(try_lock, f"{name}>={majors[name]}")
            try:
                if limit(try_newer()):
                    try_newer()
            except LacksWheel as error:
                refusal = self._lacks_wheels(error, try_newer, limit, index_answer, maker)
                if isinstance(refusal, HostError):
                    raise refusal from None
            except (HostError, UserError):
                continue

    def _note_on_older(
        self, plan: StackPlan, lock: Lock, index_answer: IndexAnswer, maker: LockMaker, named: Collection[str]
    ) -> Mapping[str, Version]:
        """Return what `find_older` finds. `named`: packages that no index is asked for."""
        typed = self.context.typed.env
        held = {*named, *named_projects((*plan.requirements, *plan.constraints, *typed.constraints))}
        lines = [line for line in typed.packages if not held.issuperset(named_projects((line,)))]
        sources = [source for source in index_answer.sources if source.kind == "index" and not source.is_of_stacks]
        ask = partial(query_indexes, maker.session, maker.python, sources, settings=index_answer.settings, sdists=True)
        try:
            availability = ask(named_projects(lines)).availability if lines and sources else NOT_QUERIED
        except HostError:  # the note is not worth an error
            availability = NOT_QUERIED
        older = find_older(lines, lock.packages, availability, plan.python)
        self.context.notes += filter(None, (note_on_older(older, lock.packages, availability),))
        return older

    def _leave_out(self, error: LacksPackage | LacksVersion | Conflict, plan: StackPlan) -> bool:
        """True if lines of lists that need this package, or exclude others, are left out now."""
        if isinstance(error, Conflict):
            of_torch = {*re.findall(r"\btorch==\S+\s+depends\s+on\s+([A-Za-z0-9][\w.-]*)", error.message)}
            if self._leave_out_versions(of_torch & error.packages, "torch requires another"):
                return True
            return self._leave_out_lines(error.packages, f"it can't be installed with {plan.row.name} and the others")
        if self._take_package(error.package):
            return True
        pattern = rf"([A-Za-z0-9][\w.-]*?)(?:==\S+)? depends\s+on\s+{re.escape(error.package)}"
        names = {error.package, *re.findall(pattern, error.reason)}
        if isinstance(error, LacksWheel):
            why = f"{error.package} has no wheel for Python {plan.python}"
            return self._leave_out_lines(names, why, build=f"; to build it: --build {error.package}")
        return self._leave_out_lines(names, error.why if isinstance(error, LacksVersion) else "no index has it")

    def _take_package(self, name: str) -> bool:
        """True if a line of a list that names a module (`sklearn`, `PIL`) names its package now."""
        line = next((text for text in self.context.request.env.packages if Requirement(text).name.lower() == name), "")
        package = next(iter(known_packages().get(re.split(r"[^\w.-]", line)[0], ())), name)
        is_module = canonicalize_name(project_of(package)) != name
        return is_module and self._change_line(line, package, f" names a module; its package is taken: {package}")

    def _leave_out_versions(self, names: Collection[str], why: str) -> bool:
        """True if a line of a list with one of these packages has no version any more."""
        lines = map(Requirement, self.context.request.env.packages)
        for line in (line for line in lines if line.specifier and canonicalize_name(line.name) in names):
            if self._change_line(str(line), line.name, f": its version is left out: {why}"):
                return True
        return False

    def _change_line(self, line: str, package: str, note: str) -> bool:
        """True if the line is one of a list, and changed now."""
        context, request = self.context, self.context.request
        if line not in request.origins:
            return False
        env = replace(request.env, packages=tuple(package if old == line else old for old in request.env.packages))
        origin = request.origins[line]
        context.request = replace(request, env=env, origins={**request.origins, package: origin})
        context.notes.append(f"{origin}: {line}{note}")
        return True

    def _leave_out_lines(self, names: Collection[str], why: str, *, build: str = "") -> bool:
        """True if lines of lists with these packages are left out now."""
        context, request = self.context, self.context.request
        lines = unneeded_lines(request, names)
        if request.needed is None or (request.loads_by_name and lines):
            others = names if request.needed is None else named_projects(lines)
            if self._leave_out_versions(others, why):
                return True
        if not lines:
            return False
        packages = tuple(line for line in request.env.packages if line not in lines)
        context.request = replace(
            request, env=replace(request.env, packages=packages), left_out=(*request.left_out, *lines)
        )
        context.notes += [
            f"{request.origins[line]}: {line} is left out: {why}, and the script does not import it{build}"
            for line in lines
        ]
        return True

    def _refuse_unrequired(self, lock: Lock) -> None:
        """Refuse to go on if a package that is to be built is not in the lock, because nothing requires it."""
        request = self.context.request
        absent = [name for name in request.builds if name not in lock.packages and not request.dry_run]
        if absent:
            raise HostError(
                f"nothing requires {join_names(absent, 3)}, so it was not built",
                Fix("also require it: {line}", line=install_line(self.context.typed, packages=absent)),
            )

    def _lacks_wheels(
        self,
        error: LacksPackage | LacksVersion | Conflict,
        try_lock: Callable[..., Lock],
        limit: Callable[[Lock], bool],
        index_answer: IndexAnswer,
        maker: LockMaker,
    ) -> HostError | UserError:
        """Names all packages that must be built."""
        if isinstance(error, UserError):
            error.fix = error.fix or self._find_versions(str(error), try_lock, limit, index_answer)
        if not isinstance(error, LacksWheel):
            return error
        builds = self.context.request.builds
        names = needed_builds(error, builds, try_lock)
        if not names:
            return UserError(error.reason, fix=self._find_versions(error.reason, try_lock, limit, index_answer))
        if closed := self._without_source(names, index_answer, maker):
            no_source = f"no index has the source of {join_words(closed)}"
            return UserError(
                error.reason,
                fix=join_fixes((no_source, self._find_versions(error.reason, try_lock, limit, index_answer))),
            )
        if limit(try_lock(stubs={*builds, *names})):
            names = needed_builds(error, builds, try_lock) or names
        reason = error.reason
        if len(names) > 1:  # uv's own lines are about the first
            reason = reason.partition(":\n")[0].replace(f"{error.package} has", f"{join_words(names)} have", 1)
        return HostError(reason, build_fix(self.context.typed, names, maker.name))

    def _find_versions(
        self,
        reason: str,
        try_lock: Callable[..., Lock],
        limit: Callable[[Lock], bool],
        index_answer: IndexAnswer,
    ) -> str:
        """Return the fix that names installable versions of the packages that uv's messages in `reason` mention. It
        says so if there are none."""
        request, typed, names = self.context.request, self.context.typed, read_refusal(reason).names
        of_reason = tuple(line for line in request.env.packages if not names.isdisjoint(named_projects((line,))))
        mentioned, lock = join_words(list(named_projects(of_reason))), None
        for lines in (of_reason, request.env.packages):  # the next refusal may be about another package
            bare = [_with_versions(line, "") if line in lines else line for line in request.env.packages]
            with contextlib.suppress(HostError, UserError):
                lock = try_lock(packages=bare, stubs=request.builds)
                lock = try_lock(packages=bare, stubs=request.builds) if limit(lock) else lock
                break
        if lock is None:
            return f"no version of {mentioned} in reach can be installed with the others: leave out {mentioned}"
        if problem := built_for_another_torch(lock, index_answer, {}):
            return problem[1]
        new = dict[str, str]()
        for line, required in zip(lines, map(Requirement, lines), strict=True):
            version = lock.packages.get(canonicalize_name(required.name), "")
            if version and not required.specifier.contains(version, prereleases=True):
                new[line] = _with_versions(line, f"=={version}")
        listed = [
            f"{new[line]} in place of {line} in {request.origins[line]}" for line in new if line in request.origins
        ]
        if listed:
            return f"write {join_words(listed)}: these versions can be installed"
        packages = tuple(dict.fromkeys(new.get(line, line) for line in typed.env.packages))
        call = install_line(replace(typed, env=replace(typed.env, packages=packages)))
        return Fix("these versions can be installed: {call}", call=call)

    def _without_source(self, names: Sequence[str], index_answer: IndexAnswer, maker: LockMaker) -> list[str]:
        """Return the packages that --build could not build either, because no allowed version has a source archive.
        Empty if the indexes do not answer."""
        ask = partial(query_indexes, maker.session, maker.python, index_answer.sources, names, index_answer.settings)
        try:
            answer = ask(sdists=True).availability
        except HostError:
            return []
        lines = map(Requirement, self.context.request.env.packages)
        allowed: dict[str, SpecifierSet] = {canonicalize_name(line.name): line.specifier for line in lines}
        sources = {name: [file for file in answer.of(name) if not file.filename.endswith(".whl")] for name in names}
        return [
            name
            for name in filter(answer.of, names)
            if not any(
                allowed.get(name, SpecifierSet()).filter((file.version for file in sources[name]), prereleases=True)
            )
        ]

    def _without_prereleases(
        self, plan: StackPlan, lock: Lock, index_answer: IndexAnswer, maker: LockMaker, left_out: Collection[str]
    ) -> list[str]:
        """Return constraints that exclude pre-releases which nobody asked for and which have releases beside them. uv
        takes a pre-release if no release can be installed."""
        context, request = self.context, self.context.request
        lines = map(
            Requirement, (*plan.requirements, *plan.constraints, *request.env.packages, *request.env.constraints)
        )
        asked = {canonicalize_name(line.name) for line in lines if line.url is not None or line.specifier.prereleases}
        kept = context.extended.packages if context.extended is not None else {}
        early_names = [
            name
            for name, version in lock.packages.items()
            if Version(version).is_prerelease and name not in asked.union(left_out) and kept.get(name) != version
        ]
        if not early_names:
            return []
        answer = query_indexes(
            maker.session, maker.python, index_answer.sources, early_names, index_answer.settings, sdists=True
        ).availability
        newest = {name: answer.newest(name, SpecifierSet(), plan.python) for name in early_names}
        limits = [f"{name}<={version}" for name, version in newest.items() if version is not None]
        early = ((name, other) for name in newest if newest[name] is not None for other in answer.versions(name))
        return limits + [f"{name}!={other}" for name, other in early if is_prerelease(other)]

    def _project_source(self, maker: LockMaker, project: ProjectArchive) -> ProjectSource:
        """Return how the machine that makes the lock gets the project's files, which are sent to node0 if it is
        node0."""
        archive: str | StoreFile = str(project.path)
        if maker.session is not self.context.control.session:
            file = StoredFile(sha256_of(project.path), project.path.name, project.path.stat().st_size)
            self._store().push([(file, project.path)])
            archive = file.to_json()
        return {"name": project.name, "version": project.version, "archive": archive}

    def _maker(self, uv: Wheel, index_answer: IndexAnswer, plan: StackPlan, *, by_node0: bool) -> LockMaker:
        """Return the machine that makes the lock. On node0, its uv is stored first."""
        control = self.context.control
        if by_node0:
            self._bring((uv,), index_answer, by_node0=True)
            return self._on_node0(uv, plan)
        binary = uv_here()
        if binary is None:
            raise HostError(
                "there is no uv on the control machine, which makes the lock",
                Fix("install it next to ipexctl: `pip install uv`"),
            )
        return LockMaker(control.session, control.python, control.home, binary)

    def _on_node0(self, uv: Wheel, plan: StackPlan) -> LockMaker:
        context, host = self.context, self.context.first
        interpreter = plan.interpreters.get(host.name, "")
        return LockMaker(context.pool.session(host), context.python(host), context.home, uv, host.name, interpreter)

    def _store(self) -> StoreClient:
        """Return the client of node0's store."""
        context, host = self.context, self.context.first
        location = StoreLocation(host, context.python(host), f"{context.home}/wheels", home=context.home)
        return StoreClient(location, context.pool.session(host))

    def _bring(self, wheels: Sequence[Wheel], index_answer: IndexAnswer, *, by_node0: bool) -> None:
        """Bring wheels into node0's store, from the indexes or through the control machine."""
        store, here = self._store(), self.context.control.store
        items = [DownloadItem(w.stored_file, w.url, index_answer.headers_for(w.url)) for w in wheels if w.url]
        fetched = (store if by_node0 else here).fetch(items, settings=index_answer.settings.transport())
        for name, reason in ((item.blob.name, fetched.failed.get(item.blob.sha256)) for item in items):
            if reason:
                raise HostError(f"{name} cannot be downloaded: {reason}")
        kept = [(wheel, wheel.path or f"{here.location.store}/{wheel.sha256}/{wheel.filename}") for wheel in wheels]
        if local := [(wheel.stored_file, Path(path)) for wheel, path in kept if wheel.path or not by_node0]:
            store.push(local)


def announce_stack(
    context: InstallContext, locked: LockedStack, *, by: str, shared: frozenset[str] = frozenset()
) -> None:
    """Announce the stack, the reason for it, and its download; for a large one, also a smaller stack. `by`: who
    downloads the wheels. `shared`: hashes of wheels that hosts already have."""
    plan, lock = locked.plan, locked.lock.without(shared)
    count = f"{len(lock.wheels)} {'new ' if shared else ''}wheel{'s' * (len(lock.wheels) != 1)}"
    places = {Path(each.path).parent if each.path else urlsplit(each.url or "").hostname for each in lock.wheels}
    sources = sorted(tilde_path(place) if isinstance(place, Path) else place for place in places if place)
    unknown = " plus wheels of unknown size" if any(wheel.size is None for wheel in lock.wheels) else ""
    context.watch(
        Notice(
            f"{plan.row.name} for Python {plan.python}: {count}, {readable(lock.size)}{unknown}"
            f"{f' from {join_names(sources, 3)}' if sources else ''}; {by}; {plan.reason.text}"
        )
    )
    if not lock.is_cuda and lock.size <= _LARGE:
        return
    text = f"{readable(lock.size)} to download"
    if lock.is_cuda:
        cuda = sum(wheel.size or 0 for wheel in lock.wheels if wheel.name.startswith(("nvidia-", "triton")))
        text = (
            f"only the CUDA build of torch {plan.torch} is available: {text}, of which {readable(cuda)} are useless "
            "on a CPU"
        )
    text += f"; the environment takes about {readable(locked.lock.size * UNPACKED)} in each home"
    text += f"; {_smaller_stack(context, locked)}"
    context.notes.append(text)
    context.watch(Notice(text, warning=True))


def _smaller_stack(context: InstallContext, locked: LockedStack) -> str:
    """Return the end of a sentence that names a smaller stack, or where smaller builds are."""
    request = StackRequest(stack="torch", python=context.request.env.stack.python)
    other = resolver.resolve(request, context.facts, locked.index_answer.availability, rows=context.request.rows)
    if isinstance(other, StackPlan) and other.torch_wheel is not None and is_cpu_build(other.torch_wheel):
        size = f", about {readable(other.torch_wheel.size)}" if other.torch_wheel.size else ""
        if other.row.name != locked.plan.row.name:
            return f"smaller: --stack {other.row.name}, a build for CPUs{size}"
    return f"much smaller builds for CPUs are at {TORCH_CPU}"
