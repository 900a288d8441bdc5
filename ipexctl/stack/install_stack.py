"""Do the work of `ipexctl install`: inspect hosts, resolve and lock a stack, distribute its wheels, build and verify.

All hosts get the same stack, because ranks with different versions don't work together. Until the first build a refusal
changes no host; from then on hosts fail independently, and a second call completes the rest.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from email import message_from_bytes
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from ipexctl.errors import Refusal, UserError
from ipexctl.facts.facts import Facts, parse
from ipexctl.facts.gather import HostFacts
from ipexctl.facts.probe import environment_command, read_answers
from ipexctl.facts.software import Env, ways_to_python
from ipexctl.hosts.host import Host, check_same_home
from ipexctl.node.common.fix import Fix, FixCommand
from ipexctl.node.common.json_records import parse_json, parse_object
from ipexctl.node.env.check import check_packages, find_problems
from ipexctl.node.env.env_replies import CheckResult, EnvRecord, VerifyResult
from ipexctl.node.env.lock import MAX_REQUIRED
from ipexctl.remote.command import Command
from ipexctl.remote.connector import OpenHosts
from ipexctl.remote.fanout import run_in_background
from ipexctl.remote.node_call import script_text
from ipexctl.remote.outcome import Cancelled, HostError, Notice, Watch, ignore_event
from ipexctl.remote.reply import MalformedReply
from ipexctl.remote.session import Session, capture
from ipexctl.stack.catalog import TORCH
from ipexctl.stack.env.env_installer import EnvInstaller, check_by_digest, find_obstacle, find_unpacked
from ipexctl.stack.env.environment import EnvSpec, in_common, machine_token, parse_result
from ipexctl.stack.env.record import Existing, find_existing, is_requirement, records_of
from ipexctl.stack.expected_stack import installed_plan, installed_record
from ipexctl.stack.install_context import (
    InstallContext,
    InstallReport,
    InstallRequest,
    StackSummary,
    changes_of,
    inspect_hosts,
    install_line,
    names_of,
    refuse_downgrade,
    summary_of,
    with_packages,
)
from ipexctl.stack.lock.wheel_indexes import is_for_hosts
from ipexctl.stack.lock.wheel_lock import BuiltPackage, Lock, Wheel, uv_for_node
from ipexctl.stack.resolve.compatibility import incompatibility, interpreters_for
from ipexctl.stack.resolve.constraints import is_range, stacks
from ipexctl.stack.resolve.model import EnvRequest, Sources, StackRequest

if TYPE_CHECKING:
    from ipexctl.stack.lock.stack_locking import LockedStack


class IntactEnv(NamedTuple):
    """An environment that matches its lock and was verified since the host last booted."""

    facts: Facts
    name: str
    lock: Lock
    verified: VerifyResult


def find_intact(context: InstallContext) -> dict[str, IntactEnv] | None:
    """Return host → intact environment of the requested name; None unless all hosts have one."""
    request = context.request
    command = environment_command(context.opened.home, request.name, script_text("env.check"))

    def check(host: Host, session: Session) -> IntactEnv | None:
        with context.timed(host.name, "checked the environment"):
            output = capture(session, command, timeout=context.opened.timeout)
        return parse_intact(output.stdout.decode("utf-8", "replace"), host, request.name)

    intact = {done.host.name: done.result for done in context.opened.each(check) if done.result}
    return {host.name: intact[host.name] for host in context.hosts} if len(intact) == len(context.hosts) else None


def parse_intact(text: str, host: Host, name: str) -> IntactEnv | None:
    """Return the environment that a host's answers describe; None if it is missing, damaged, or not verified on this
    machine since boot, or if facts are missing. `name`: the name that leads to it."""
    facts, answers = parse(text), read_answers(text)
    env = next((env for env in facts.software.envs if name in env.names), None)
    if env is None or not facts.complete:
        return None
    verified = dict(line.partition(" ")[::2] for line in answers.all("env.verified"))
    damaged = frozenset(answers.all("env.damaged"))
    try:
        record, recorded_lock = _object(env.record), _object(answers.first("env.lock"))
        lock = Lock.from_json(recorded_lock)
        proof = parse_result(_object(verified.get(machine_token(facts, host))))
        problems = find_problems(env.path, record, recorded_lock, lock.digest) or check_packages(
            (*answers.all("env.intact"), *damaged), recorded_lock, lambda _, info: [info] if info in damaged else []
        )
    except (ValueError, KeyError, TypeError, MalformedReply):
        return None
    return None if problems or proof is None else IntactEnv(facts, env.name, lock, proof)


def _object(text: str | None) -> Mapping[str, Any]:
    return parse_object(text or "")


def install(
    opened: OpenHosts,
    request: InstallRequest,
    watch: Watch = ignore_event,
    *,
    probed: Sequence[HostFacts] = (),
) -> InstallReport:
    """Install one stack on every host, or return the report at once if nothing is to be done. `probed`: facts gathered
    before; with them, the quick check is skipped."""
    if not (request.upgrade or request.dry_run or probed):
        report = find_unchanged(opened, request, watch)
        if report is not None:
            return report
    context = InstallContext(opened, request, watch)
    inspect_hosts(context, probed)
    if not context.pending:
        return context.report()
    if refusal := _check_homes(context):
        return context.report(refusal=refusal)
    known = _find_known(context)
    try:
        if known is not None and (report := _reuse(context, known)) is not None:
            return report
        if known is not None or (context.extended is not None and not _fits(context, context.extended)):
            context.extended = None
        if not context.pending:
            return context.report()
        context.built = _read_built(context)
        locked = _lock(context)
    except Cancelled as error:
        for host in context.pending:
            context.end(host, error)
        return context.report()
    except HostError as error:
        return context.report(refusal=Refusal(error.reason, error.fix))
    if isinstance(locked, Refusal):
        return context.report(refusal=_with_ways_to_python(context, locked))
    report = _install_locked(context, locked)
    return replace(
        report, hosts=tuple(replace(host, fix=_whole_line(host.fix, context.typed)) for host in report.hosts)
    )


def _whole_line(fix: str, typed: InstallRequest) -> str:
    """Return a fix in which each install command with a package also names what this call asked for: the stack was not
    finished, so that command alone would leave it out."""

    def whole(command: FixCommand) -> FixCommand:
        more = [package for option, package in pairwise(command.options) if option == "--with"]
        return install_line(typed, packages=more) if command.verb == "install" and more else command

    return fix.with_commands(whole) if isinstance(fix, Fix) else fix


def _lock(context: InstallContext) -> LockedStack | Refusal:
    """Raises a HostError, or a UserError after the notes."""
    from ipexctl.stack.lock.stack_locking import lock_stack  # slow to import, and not needed if nothing is to be done

    try:
        return lock_stack(context)
    except UserError:
        for note in context.notes:
            context.watch(Notice(note, warning=True))
        raise


def _with_ways_to_python(context: InstallContext, refusal: Refusal) -> Refusal:
    """Return the refusal with doctor's fix, if one of its hosts has no working Python."""
    for name in refusal.hosts:
        facts = context.facts.get(name)
        if facts is not None and facts.has_finished("programs") and not facts.software.running_pythons:
            return replace(refusal, fix=ways_to_python(facts.system))
    return refusal


def _check_homes(context: InstallContext) -> Refusal | None:
    homes = {host.name: home.path for host in context.pending if (home := context.facts[host.name].home)}
    return check_same_home(homes, [context.facts[host.name].account.user for host in context.pending])


def _find_known(context: InstallContext) -> Existing | None:
    """Return the environment made for this request; None if there is none, or with --upgrade.

    A request without a stack, or with the present one's, adds packages to the present environment: a second project on
    the same hosts keeps the first one's packages. The request in the context is changed for that.
    """
    request = context.request
    if request.upgrade:
        context.request = request.for_project()
        return None
    installed = installed_record(request.env.stack, request.name, context.facts, request.rows)
    context.extended = installed if installed is not None and _has_name(context, installed) else None
    if request.torch is not None and not (context.extended and _has_torch(context.extended, request.torch)):
        context.extended = None
    if context.extended is None:
        context.request = request = request.for_project()
    if context.extended is not None:
        present, stack = EnvRequest.from_json(context.extended.requests[-1]), request.env.stack
        if stack == StackRequest() or (stack == present.stack and not request.downgrade):
            typed, env = request.env.packages, with_packages(present, request.env)
            origins = {line: f"the environment {request.name}" for line in env.packages if line not in typed}
            context.request = replace(request, env=env, origins={**request.origins, **origins})
            context.origins = context.extended.origins
    context.made_for = made_for = context.request.to_json()

    def answers(_: Env, record: EnvRecord) -> bool:
        is_built = set(request.builds) <= set(record.built)
        is_bound = all(
            record.origins.get(binding.name) == binding.label
            for binding in request.sources.bound
            if binding.name in record.packages and is_for_hosts(binding.marker, record.python)
        )
        may_have_changed = bool(request.projects or request.unread)
        return made_for in record.requests and is_built and is_bound and not may_have_changed

    return find_existing(context.facts, request.name, answers)


def _has_torch(record: EnvRecord, requested: str) -> bool:
    version = record.packages.get(TORCH, "").partition("+")[0]
    if is_range(requested):
        return bool(version) and version in SpecifierSet(requested)
    return version == requested or version.startswith(f"{requested}.")


def find_unchanged(opened: OpenHosts, request: InstallRequest, watch: Watch = ignore_event) -> InstallReport | None:
    """Return the report if the environment is intact, named and verified since boot on every host; else None. Processor
    and libraries have not changed since boot. Takes one round trip."""
    context = InstallContext(opened, request, watch)
    intact = find_intact(context)
    if intact is None:
        return None
    context.facts = {name: env.facts for name, env in intact.items()}
    known = None if _check_homes(context) else _find_known(context)
    if known is None or set(known.hosts) != set(intact) or not _fits(context, known.record):
        return None
    record, lock = known.record, next(iter(intact.values())).lock
    if any((env.name, env.lock.digest) != (record.name, record.digest) for env in intact.values()):
        return None
    for host in context.hosts:
        verify = intact[host.name].verified.to_json()
        context.add_result(host, "ok", env=record.name, packages=lock.packages, verify=verify)
    return context.report(stack=_summary_of_record(context, record, lock), lock=lock, path=_path_of(context))


def _summary_of_record(context: InstallContext, record: EnvRecord, lock: Lock) -> StackSummary:
    plan = installed_plan(record, context.facts, context.request.rows)
    return replace(summary_of(plan, lock), mpi=record.mpi, why=record.why)


def _path_of(context: InstallContext) -> str:
    return f"{context.home}/envs/{context.request.name}"


def _has_name(context: InstallContext, record: EnvRecord) -> bool:
    """True if the requested name leads to this environment on some host."""
    return any(
        other.name == record.name and context.request.name in (entry.name, *entry.names)
        for facts in context.facts.values()
        for entry, other in records_of(facts)
    )


def _install_locked(context: InstallContext, locked: LockedStack) -> InstallReport:
    """Install a new lock, or with --dry-run only say what would happen. A refusal here still changes no host."""
    from ipexctl.stack.lock.stack_locking import announce_stack

    plan, lock = locked.plan, locked.lock
    context.notes += [note.text for note in plan.notes]
    record = locked.record()
    name, summary = record.name, summary_of(plan, lock)
    if refusal := _check_changes(context, name, plan.row.name, lock.packages):
        return context.report(stack=summary, refusal=refusal)
    fetches = f"{context.first.name} downloads them"
    lacking = [host for host in context.pending if not _is_installed(context, host, name)]
    unpacked = find_unpacked(context, lacking, lock, plan.interpreters)
    announce_stack(
        context,
        locked,
        by=fetches
        if locked.by_node0 or locked.index_answer.is_for_node0
        else "they are sent through the control machine",
        shared=in_common(unpacked, lacking),
    )
    if context.request.dry_run:
        for host in context.pending:
            if _is_installed(context, host, name):
                context.add_result(host, "ok", env=name, packages=lock.packages)
            elif problems := find_obstacle(
                context, host, lock.without(unpacked[host.name]), plan.interpreters.get(host.name)
            ):
                context.end(host, HostError(*problems))
            else:
                context.add_result(host, "changed", env=name, packages=lock.packages)
        return context.report(stack=summary, lock=lock, path=_path_of(context))
    built = [*context.request.builds, *(project.name for project in context.request.projects)]
    built += [package.wheel.name for package in context.built if package.wheel in lock.wheels]
    record = record._replace(requests=context.made_for_all, built=tuple(built))
    installer = EnvInstaller(context, EnvSpec.of(locked, record, unpacked))
    installer.build_everywhere(context.pending)
    has_failed = any(result.status not in ("ok", "changed") for result in context.done.values())
    if context.extended is not None and context.extended.name != name and not has_failed:
        installer.remove_superseded(context.extended.name)
    summary = replace(summary, mpi=context.installed_mpi or summary.mpi)
    return context.report(stack=summary, lock=lock, path=_path_of(context))


def _check_changes(context: InstallContext, env: str, row: str, packages: Mapping[str, str]) -> Refusal | None:
    """Refuse the lock if it lowers or loses packages of the environment that has the name. The changes are kept for the
    report."""
    named = (
        record
        for facts in context.facts.values()
        for entry, record in records_of(facts)
        if context.request.name in (entry.name, *entry.names)
    )
    record = next(named, None)
    if record is None or record.name == env:
        return None
    asked = names_of(context.typed.env.packages)
    changes = changes_of(record.packages, packages)
    context.changes = tuple(sorted(changes, key=lambda change: canonicalize_name(change.name) not in asked))
    if context.request.downgrade:
        return None
    return refuse_downgrade(context.changes, record, row, context.request.env, context.request.name)


def _is_installed(context: InstallContext, host: Host, name: str) -> bool:
    """True if the host has this environment under the requested name, by the facts gathered before."""
    return any(
        record.name == name and context.request.name in (env.name, *env.names) and env.runs
        for env, record in records_of(context.facts[host.name])
    )


def _fits(context: InstallContext, record: EnvRecord) -> bool:
    """True if the environment's row is still in the table and runs on all hosts, and each has its Python."""
    row = stacks(context.request.rows).get(record.row)
    if row is None or any(incompatibility(row, facts) for facts in context.facts.values()):
        return False
    interpreters = interpreters_for(record.python, context.facts)
    return all(host.name in interpreters for host in context.pending)


def _lock_of(context: InstallContext, known: Existing) -> Lock | None:
    """Return the lock of an environment from the first host where it can be read; None if there is none."""
    hosts = {host.name: host for host in context.hosts}
    locks = (_read_lock(context, hosts[name], known.record) for name in known.hosts)
    return next((lock for lock in locks if lock is not None), None)


def _read_lock(context: InstallContext, host: Host, record: EnvRecord) -> Lock | None:
    """Return the lock of an environment from a host; None if it can't be read, or is not the one of the record."""
    path = f"{context.home}/envs/{record.name}/lock.json"
    try:
        session = context.pool.session(host)
        output = capture(session, Command.argv("cat", path))
        lock = Lock.from_json(parse_json(output.stdout))
    except (HostError, ValueError, KeyError, TypeError):
        return None
    return lock if lock.digest == record.digest else None


def _read_built(context: InstallContext) -> tuple[BuiltPackage, ...]:
    """Return what was built for the environment that gets more packages, from a host that has it. What this call builds
    again is left out."""
    record, request = context.extended, context.request
    again = {*request.builds, *(project.name for project in request.projects)}
    for line in map(Requirement, (*request.env.packages, *request.env.constraints)):
        version = record.packages.get(name := canonicalize_name(line.name)) if record is not None else None
        again |= {name} if version is not None and not line.specifier.contains(version, prereleases=True) else set()
    if record is None or not (names := {*record.built} - again):
        return ()
    site = f"{context.home}/envs/{record.name}/lib/python{record.python}/site-packages"
    for host in context.pending:
        has_it = any(env.name == record.name for env, _ in records_of(context.facts[host.name]))
        if has_it and (lock := _read_lock(context, host, record)) is not None:
            built = (_read_package(context, host, site, wheel) for wheel in lock.wheels if wheel.name in names)
            return tuple(package for package in built if package is not None)
    return ()


def _read_package(context: InstallContext, host: Host, site: str, wheel: Wheel) -> BuiltPackage | None:
    """Return an unpacked wheel with what it requires; None if its METADATA can't be read. Requirements with a URL are
    left out, because a host has written them."""
    info = "-".join(wheel.filename.split("-")[:2])
    try:
        output = capture(context.pool.session(host), Command.argv("cat", f"{site}/{info}.dist-info/METADATA"))
    except HostError:
        return None
    metadata = message_from_bytes(output.stdout)
    lines = [str(line) for line in metadata.get_all("Requires-Dist", [])[:MAX_REQUIRED]]
    requires = tuple(line for line in lines if "@" not in line and is_requirement(line))
    return BuiltPackage(replace(wheel, url=None), requires) if metadata["Name"] else None


def _reuse(context: InstallContext, known: Existing) -> InstallReport | None:
    """Keep an existing environment, and rebuild it from its lock where it is damaged or missing. None if it does not
    fit all hosts, if its lock can't be read, or if it failed its verification everywhere."""
    inspected = _inspect_existing(context, known)
    if inspected is None:
        return None
    record, (spec, checks) = known.record, inspected
    present = [(host, checks[host.name]) for host in context.hosts if host.name in checks and checks[host.name].exists]
    if present and all(result.has_failed for _, result in present):
        return None
    summary, path = _summary_of_record(context, record, spec.lock), _path_of(context)
    if refusal := _check_changes(context, record.name, record.row, record.packages):
        return context.report(stack=summary, refusal=refusal)
    broken = {host.name: result.build for host, result in present if not result.ok or result.has_failed}
    intact = [host for host, result in present if host.name not in broken]
    spec = replace(spec, broken=broken)
    rest = [host for host in context.pending if host not in intact]
    add_result = partial(context.add_result, env=spec.name, packages=spec.lock.packages)
    if context.request.dry_run:
        for host in context.pending:
            add_result(host, "ok" if host in intact else "changed")
        return context.report(stack=summary, lock=spec.lock, path=path)
    for host, result in present:
        if host.name in broken:
            reason = result.problem or "its verification failed"
            context.watch(Notice(f"{host.name}: rebuilding the environment: {reason}"))
    unverified = []
    for host in intact:
        proof = parse_result(checks[host.name].verified.get(machine_token(context.facts[host.name], host)))
        if proof is None:
            unverified.append(host)
        else:
            add_result(host, "ok", verify=proof.to_json())
    installer = EnvInstaller(context, spec)
    installer.verify_on_hosts(unverified)
    installer.link_where_missing([host for host in intact if host not in unverified])
    if rest:  # hashing the control machine's uv takes time
        unpacked = find_unpacked(context, rest, spec.lock, spec.interpreters)
        installer.spec = replace(
            spec, installer=_recorded_installer(record, context.request.sources), unpacked=unpacked
        )
        installer.build_everywhere(rest)
    return context.report(stack=summary, lock=spec.lock, path=path)


def _inspect_existing(context: InstallContext, known: Existing) -> tuple[EnvSpec, dict[str, CheckResult]] | None:
    """Return what is needed to build the environment again, and host → what is wrong with it there. None if it does not
    fit all hosts, or if no host has its lock."""
    record = known.record
    if not _fits(context, record):
        return None
    row, interpreters = stacks(context.request.rows)[record.row], interpreters_for(record.python, context.facts)

    def check(host: Host, session: Session) -> CheckResult:
        return check_by_digest(context, record.name, record.digest, interpreters.get(host.name), session)

    reading = run_in_background(partial(_lock_of, context, known), "lock")
    outcomes = list(context.pool.each(context.pending, check))
    lock = reading.result()
    if lock is None:
        return None
    checked: dict[str, CheckResult] = {}
    for done in outcomes:
        if done.error is not None:
            context.end(done.host, done.error)
        elif done.result is not None:
            checked[done.host.name] = done.result
    return EnvSpec(record.name, lock, None, record._replace(retired=row.retired), interpreters), checked


def _recorded_installer(record: EnvRecord, sources: Sources) -> Wheel:
    """Return the uv that built the environment if its URL is known, else the control machine's, or one in directories
    that the call names."""
    with contextlib.suppress(MalformedReply):
        if record.installer and record.installer.get("url"):
            return Wheel.from_json(record.installer)
    return uv_for_node(None, "2.17", sources)
