"""The steps of each command about hosts: doctor, trust, install, sync, push, hub, exec, envs, versions, uninstall.

Progress goes to a callback; throwing the pool's cancellation ends a call early. Options are checked before the first
host is contacted, and slow imports happen while the hosts connect.
"""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from ipexctl.call_options import NO_OPTIONS, CallOptions
from ipexctl.errors import UserError
from ipexctl.hosts.host import private_keys
from ipexctl.option_defaults import DEFAULT_ENV, HUB_MACHINE
from ipexctl.remote.connector import ConnectOptions, Connector
from ipexctl.remote.fanout import ExecResult, run_in_background
from ipexctl.remote.fanout import execute as execute_on_hosts
from ipexctl.remote.outcome import Report
from ipexctl.remote.progress import BytesMoved, Watch, ignore_event
from ipexctl.remote.session_pool import SessionPool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import BinaryIO

    from ipexctl.doctor.finding import DoctorReport
    from ipexctl.files.push import PushReport
    from ipexctl.hosts.host import Host
    from ipexctl.hub.cache import CacheReport
    from ipexctl.hub.push import HubPushReport
    from ipexctl.hugging_face import HubRepo
    from ipexctl.node.common.frames import StreamName
    from ipexctl.remote.cancel import Cancel
    from ipexctl.remote.command import Command
    from ipexctl.run.uninstall import UninstallReport
    from ipexctl.stack.choice import VersionsReport
    from ipexctl.stack.env.envs import EnvsReport
    from ipexctl.stack.install_context import InstallReport
    from ipexctl.stack.resolve.model import Sources, StackRequest
    from ipexctl.sync.node_calls import SyncReport
    from ipexctl.sync.project import Project
    from ipexctl.sync_options import SyncOptions
    from ipexctl.trust.setup import TrustReport

_LONGEST: Final = 10_000_000
"""Seconds, about four months: a longer timeout is a mistake, and more than the system's clocks take."""
InstructionSet = Literal["avx2", "avx512", "avx512_bf16", "amx"]


@dataclass(frozen=True, slots=True)
class OpenHosts:
    hosts: tuple[Host, ...]
    pool: SessionPool
    home: str
    iface: str | None = None
    timeout: float | None = None
    options: CallOptions = NO_OPTIONS


def check_seconds(option: str, seconds: float | None) -> None:
    """Raise a UserError for an invalid timeout."""
    if seconds is not None and not 0 < seconds <= _LONGEST:
        raise UserError(f"{option} must be a number of seconds up to {_LONGEST:,}, not {seconds}")


@contextmanager
def open_sessions(options: ConnectOptions, cancel: Cancel, *, forks: int = 1) -> Iterator[SessionPool]:
    """Sessions open when first needed, and close at the end of the block."""
    with Connector(options) as connector, SessionPool(connector, cancel, forks=forks) as pool:
        yield pool


def doctor(
    opened: OpenHosts, *, require: InstructionSet | None = None, network: bool = True, smoke: bool = False
) -> DoctorReport:
    from ipexctl.facts.gather import gather_facts

    began, hosts, pool = time.monotonic(), opened.hosts, opened.pool
    probed = gather_facts(hosts, pool, home=opened.home, timeout=opened.timeout)
    answers = run_in_background(lambda: list(probed), "facts")
    pool.connector.load(hosts)
    # This import takes as long as a connection.
    from ipexctl.doctor.doctor_run import DoctorRequest, run_doctor
    from ipexctl.run.registry import RunRegistry
    from ipexctl.stack.catalog.user_table import known_rows

    request = DoctorRequest(
        home=opened.home,
        iface=opened.iface,
        require=require,
        network=network,
        smoke=smoke,
        rows=known_rows(os.environ),
        node0_of=RunRegistry().node0_of,
    )
    report = run_doctor(hosts, answers.result(), request, pool)
    return opened.options.in_report(report._replace(seconds=time.monotonic() - began))  # includes connecting


def trust(opened: OpenHosts, *, revoke: bool = False, dry_run: bool = False) -> TrustReport:
    from ipexctl.trust import setup

    change = setup.revoke if revoke else setup.trust
    options = setup.TrustOptions(opened.home, opened.iface, opened.timeout, dry_run)
    return opened.options.in_report(change(opened.hosts, opened.pool, options))


class InstallOptions(NamedTuple):
    upgrade: bool = False
    downgrade: bool = False
    dry_run: bool = False
    download_only: Path | None = None
    build: Sequence[str] = ()


def install(
    opened: OpenHosts,
    stack: StackRequest | None = None,
    sources: Sources | None = None,
    *,
    env: str = DEFAULT_ENV,
    packages: Sequence[str] = (),
    requirements: Sequence[Path] = (),
    options: InstallOptions = InstallOptions(),  # noqa: B008  # frozen
    watch: Watch = ignore_event,
) -> InstallReport:
    """Install and verify one stack on every host, or only download its wheels."""
    opened.pool.warm(opened.hosts)  # connect while modules are imported
    from ipexctl.stack.install import install
    from ipexctl.stack.install_context import install_request
    from ipexctl.stack.resolve.model import Sources, StackRequest

    request = replace(
        install_request(
            stack or StackRequest(), packages, requirements, sources or Sources(), env, os.environ, options.build
        ),
        home=opened.home,
        iface=opened.iface,
        timeout=opened.timeout,
        dry_run=options.dry_run,
        upgrade=options.upgrade,
        downgrade=options.downgrade,
    )
    if options.download_only is not None:
        from ipexctl.stack.download import download

        report = download(opened.hosts, request, opened.pool, options.download_only, watch)
    else:
        report = install(opened.hosts, request, opened.pool, watch)
    return opened.options.in_report(report)


def sync(
    opened: OpenHosts,
    root: Path,
    files: SyncOptions,
    *,
    dry_run: bool = False,
    asks_early: bool = True,
    on_read: Callable[[Project], object] = ignore_event,
    watch: Watch = ignore_event,
) -> SyncReport:
    """Sync the project to the same path on every host; `on_read` gets it before it is sent.

    `asks_early`: ask the hosts for their copies while it is read. If reading fails, they wait until the pool closes.
    """
    hosts, pool = opened.hosts, opened.pool
    pool.warm(hosts)  # connect while modules are imported and the project is read
    from ipexctl.run.registry import RunRegistry, abandoned_runs
    from ipexctl.sync.node_calls import TreeCalls
    from ipexctl.sync.project import read_project
    from ipexctl.sync.project_sync import TreeQuery, query_project

    query = None
    if asks_early and not dry_run and opened.timeout is None:  # the timeout would include reading the project
        query = TreeQuery(hosts, pool, TreeCalls(opened.home, dry_run, opened.timeout, pool.cancel))
    project = read_project(
        root,
        files.exclude,
        includes=files.include,
        home=opened.home,
        allow_big=files.allow_big,
        secret_files=private_keys(hosts),
        data=[Path(path) for path in files.data],
    )
    on_read(project)
    report = query_project(
        project,
        hosts,
        pool,
        home=opened.home,
        iface=opened.iface,
        watch=watch,
        timeout=opened.timeout,
        dry_run=dry_run,
        ended=abandoned_runs(RunRegistry().directory),
        query=query,
    ).upload()
    return opened.options.in_report(report)


def push(
    opened: OpenHosts,
    source: Path,
    path: str,
    *,
    force: bool = False,
    dry_run: bool = False,
    watch: Watch = ignore_event,
) -> PushReport:
    hosts, pool = opened.hosts, opened.pool
    pool.warm(hosts)  # connect while the source is read
    from ipexctl.files.push import PushOptions, push
    from ipexctl.files.push_source import read_source

    content = read_source(source, lambda done, total: watch(BytesMoved("", "reading", done, total)), pool.cancel)
    options = PushOptions(path, opened.home, force, dry_run, opened.iface, opened.timeout)
    return opened.options.in_report(push(content, str(source), hosts, pool, options, watch))


def push_repos(
    opened: OpenHosts,
    repos: Sequence[HubRepo],
    *,
    include: Sequence[str] = (),
    on: str = HUB_MACHINE,
    dry_run: bool = False,
    watch: Watch = ignore_event,
) -> HubPushReport:
    """Copy hub repositories to every host's cache. Uses this process's HF_ENDPOINT and HF_TOKEN."""
    opened.pool.warm(opened.hosts)
    from ipexctl.hub.downloader import hub_access
    from ipexctl.hub.push import HubPushOptions, push_repos

    options = HubPushOptions(opened.home, on, tuple(include), dry_run, opened.iface, opened.timeout)
    report = push_repos(repos, hub_access(os.environ), opened.hosts, opened.pool, options, watch)
    return opened.options.in_report(report)


def list_repos(opened: OpenHosts) -> CacheReport:
    from ipexctl.hub.cache import list_cache

    return opened.options.in_report(list_cache(opened.hosts, opened.pool, opened.home, opened.timeout))


def remove_repos(opened: OpenHosts, repos: Sequence[HubRepo]) -> CacheReport:
    from ipexctl.hub.cache import remove_from_cache

    return opened.options.in_report(remove_from_cache(repos, opened.hosts, opened.pool, opened.home, opened.timeout))


def execute(
    opened: OpenHosts,
    command: Command,
    sink_for: Callable[[Host], Callable[[StreamName, bytes], None]],
    *,
    on_done: Callable[[ExecResult], object] = ignore_event,
    stdin_for: Callable[[], BinaryIO] | None = None,
) -> Report[ExecResult]:
    began, results, pool = time.monotonic(), dict[str, ExecResult](), opened.pool
    for done in execute_on_hosts(
        opened.hosts,
        command,
        connector=pool.connector,
        cancel=pool.cancel,
        sink_for=sink_for,
        forks=pool.forks,
        timeout=opened.timeout,
        stdin_for=stdin_for,
    ):
        results[done.host.name] = done
        on_done(done)
    return Report(tuple(results[host.name] for host in opened.hosts), time.monotonic() - began)


@dataclass(frozen=True, slots=True)
class HostOutput(ExecResult):
    stdout: str = ""
    stderr: str = ""


def execute_quietly(opened: OpenHosts, command: Command) -> Report[HostOutput]:
    printed: dict[str, dict[StreamName, bytearray]] = {
        host.name: {"stdout": bytearray(), "stderr": bytearray()} for host in opened.hosts
    }
    report = execute(opened, command, lambda host: lambda stream, data: printed[host.name][stream].extend(data))
    hosts = []
    for done in report.hosts:
        stdout, stderr = (bytes(data).decode(errors="replace") for data in printed[done.host.name].values())
        hosts.append(HostOutput(done.host, done.status, done.reason, done.fix, done.seconds, done.rc, stdout, stderr))
    return opened.options.in_report(Report(tuple(hosts), report.seconds))


def versions(stack: StackRequest, opened: OpenHosts | None = None) -> VersionsReport:
    from ipexctl.stack.catalog.user_table import known_rows
    from ipexctl.stack.choice import VersionsReport, choose_stack, versions_for

    rows = known_rows(os.environ)
    if opened is None:
        return VersionsReport(rows, choose_stack(stack, {}, rows))
    return versions_for(opened.hosts, stack, rows, opened.pool, home=opened.home, timeout=opened.timeout)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvsRequest:
    """List environments, or do one of the others. Raises a UserError for a contradiction."""

    remove: tuple[str, ...] = ()
    prune: bool = False
    verify: bool = False
    env: str | None = None
    python: str | None = None
    setup: str | None = None

    def __post_init__(self) -> None:
        from ipexctl.stack.env.record import check_env_name

        if sum(map(bool, (self.remove, self.prune, self.verify))) > 1:
            raise UserError("--remove, --prune and --verify exclude each other", fix="use one of them at a time")
        if self.setup and not self.python:
            raise UserError("--setup needs --python", fix="add --python with the path of a Python on the hosts")
        for name, path in (("--python", self.python), ("--setup", self.setup)):
            if path is not None and not path.startswith("/"):
                raise UserError(
                    f"{name} {path!r} is not an absolute path", fix="use a path on the hosts: /opt/train/bin/python"
                )
        for name in (*self.remove, *([self.env] if self.env is not None else [])):
            check_env_name(name)


def envs(opened: OpenHosts, request: EnvsRequest) -> EnvsReport:
    from ipexctl.stack.env import envs

    hosts, pool, home, timeout = opened.hosts, opened.pool, opened.home, opened.timeout
    if request.remove:
        report = envs.remove_envs(hosts, pool, request.remove, home=home, timeout=timeout)
    elif request.prune:
        report = envs.prune_envs(hosts, pool, home=home, timeout=timeout)
    elif request.verify:
        name, python, setup = request.env or DEFAULT_ENV, request.python, request.setup
        report = envs.verify_envs(hosts, pool, name, python=python, setup=setup, home=home, timeout=timeout)
    else:
        report = envs.list_envs(hosts, pool, home=home, timeout=timeout)
    return opened.options.in_report(report)


def uninstall(
    opened: OpenHosts, *, with_results: bool = False, only_lists: bool = False, dry_run: bool = False
) -> UninstallReport:
    """Remove ipexctl from the hosts and the control machine, or only list what would be removed.

    While a run is alive nothing is removed, and a listing for a removal fails; a dry run lists everything.
    """
    from ipexctl.run.uninstall import UninstallOptions, survey, uninstall

    options = UninstallOptions(opened.home, with_results, opened.timeout, opened.options.hosts)
    if only_lists or dry_run:
        report = survey(opened.hosts, opened.pool, options, dry_run=dry_run)
    else:
        report = uninstall(opened.hosts, opened.pool, options)
    return opened.options.in_report(report)
