"""The Python interface to hosts: a `Cluster` has the hosts and how to reach them, and its methods are the commands.

Keywords are the long options of the command line, with `_` for `-` (and `with_`). A wrong call raises a `UserError`, a
run that cannot start a `CallError`. Files of defaults and $IPEXCTL_HOSTFILE are not read: a program says itself what it
wants. Threads may share a `Cluster`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_type_hints

from ipexctl.api import host_checks, host_files, host_stacks, open_hosts, pushed_files
from ipexctl.api.fetch_calls import fetch_files
from ipexctl.api.host_checks import InstructionSet
from ipexctl.api.host_stacks import EnvsRequest, InstallOptions, Optional
from ipexctl.api.interruptible import check_lists, check_types, interruptible, refuses_wrong_calls
from ipexctl.api.known_runs import CallWatcher, RunList, stop
from ipexctl.api.known_runs import ps as list_runs
from ipexctl.api.open_hosts import HostOutput, open_sessions
from ipexctl.api.run import run as start_run
from ipexctl.api.run_handle import Run
from ipexctl.doctor.finding import DoctorReport
from ipexctl.errors import CallError, UserError
from ipexctl.files.push_files import PushReport
from ipexctl.files.push_source import parse_target
from ipexctl.files.requested import FetchResult, parse_source
from ipexctl.homes.registry import RunRecord
from ipexctl.homes.uninstall_hosts import UninstallReport
from ipexctl.hosts.host import Host, home_on_nodes, private_keys
from ipexctl.hosts.internal_addresses import InterfaceChoice
from ipexctl.hosts.select import LOCAL, HostRequest, Selection, select_hosts
from ipexctl.launch.launchers.program import read_program
from ipexctl.launch.run_declarations import DECLARED, call_of
from ipexctl.launch.spec import RunSpec
from ipexctl.node.common.plan import Plan
from ipexctl.node.common.run_options import CommandKind, RunOptions
from ipexctl.option_declaration import (
    CONNECT_SECONDS,
    DEFAULT_ENV,
    FORKS,
    TRANSPORT,
    CallOptions,
    SyncOptions,
    check_seconds,
    option_text,
)
from ipexctl.projects.root import find_root
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.command import Command
from ipexctl.remote.connector import ConnectOptions, OpenHosts, SessionPool
from ipexctl.remote.local import with_own_address
from ipexctl.remote.outcome import Cancelled, Notice, ProgressEvent, Report, StepStarted, Watch, ignore_event
from ipexctl.run.fetch import order_of_host
from ipexctl.run.find_run import find_runs
from ipexctl.run.notify_command import check_notify
from ipexctl.run.start.resume import on_hosts_left, refuse_job
from ipexctl.run.start.start_project import locate_project
from ipexctl.run.start.start_request import (
    StartFailure,
    check_packages,
    check_request,
    read_exports,
    refuse_bad_rank_counts,
    set_options,
)
from ipexctl.run.start.watcher import PlannedRun, RunWatcher, StartedRun
from ipexctl.stack.env.envs import EnvsReport
from ipexctl.stack.expected_stack import VersionsReport
from ipexctl.stack.install_context import InstallReport
from ipexctl.stack.resolve.model import Sources, StackRequest
from ipexctl.sync.node_calls import SyncReport
from ipexctl.text import expand_tilde
from ipexctl.transports import TransportOption, choose_transport

if TYPE_CHECKING:
    from typing_extensions import TypedDict, Unpack

    from ipexctl.launch.run_declarations import RunKeywords

    class HostKeywords(TypedDict, total=False):
        """Keywords of `Cluster`, for type checkers."""

        limit: str | None
        forks: int
        user: str | None
        port: int | None
        identity: str | Path | None
        ssh_config: str | Path | None
        known_hosts: str | Path | None
        host_keys: HostKeyPolicy | None
        transport: TransportOption
        connect_timeout: float
        timeout: float | None
        home: str | Path | None
        iface: str | None
        on_line: Callable[[str], object]

    class PlanKeywords(RunKeywords, total=False):
        """Keywords of `Cluster.plan`, for type checkers."""

        module: str | None
        command: Sequence[str]
        export: Mapping[str, object] | Sequence[str]
        env_file: Sequence[str | Path]

    class StackKeywords(TypedDict, total=False):
        """Keywords that choose a stack, for type checkers."""

        torch: str | None
        stack: str | None
        ipex: str | None
        oneccl: str | None
        python: str | None
        require_oneccl: bool


T = TypeVar("T")
HostKeyPolicy = Literal["strict", "accept-new", "off"]
_TYPES_OF_HOSTS = {"host_keys": HostKeyPolicy | None, "transport": TransportOption, "forks": int}


def _path(given: str | Path | None) -> Path | None:
    """Return the path; None if none is given."""
    return None if given is None else Path(given)


@refuses_wrong_calls
class Cluster:
    """Hosts and how to reach them; this machine alone if neither hosts nor a hostfile are given."""

    def __init__(
        self,
        hosts: Sequence[str] | None = None,
        *,
        hostfile: str | Path | None = None,
        limit: str | None = None,
        forks: int = FORKS,
        user: str | None = None,
        port: int | None = None,
        identity: str | Path | None = None,
        ssh_config: str | Path | None = None,
        known_hosts: str | Path | None = None,
        host_keys: HostKeyPolicy | None = None,
        transport: TransportOption = TRANSPORT,
        connect_timeout: float = CONNECT_SECONDS,
        timeout: float | None = None,
        home: str | Path | None = None,
        iface: str | None = None,
        on_line: Callable[[str], object] = ignore_event,
    ) -> None:
        """Read the hosts; none of them is contacted yet. Raises a UserError for a wrong option or hostfile.

        `hosts`: as on the command line, such as `["node[1-4]", "me@10.0.0.9", "localhost"]`. `on_line` gets progress as
        plain lines, from any thread.
        """
        if hosts is not None and not hosts:
            raise UserError("hosts is empty", fix="name hosts; Cluster() without any is this machine")
        check_types(_TYPES_OF_HOSTS, {"host_keys": host_keys, "transport": transport, "forks": forks})
        check_seconds("connect_timeout", connect_timeout)
        check_seconds("timeout", timeout)
        if forks < 1:
            raise UserError(f"forks={forks} is not possible", fix="forks: 1, or more")
        if iface is not None:
            InterfaceChoice(iface)
        named = ",".join(hosts or ()) or (LOCAL.name if hostfile is None else None)
        request = HostRequest(
            hosts=named,
            hostfile=_path(hostfile),
            limit=limit,
            user=user,
            port=port,
            identity=_path(identity),
            ssh_config=_path(ssh_config),
            known_hosts=_path(known_hosts),
        )
        if named is not None and hostfile is not None:
            raise UserError("hosts and hostfile both name the hosts", fix="use one of them")
        selection: Selection = select_hosts(request, environ={}, cwd=Path.cwd())
        self.hosts: tuple[Host, ...] = with_own_address(selection.hosts)
        self._source = selection.source
        self._home = home_on_nodes(_path(home), os.environ)
        self._iface, self._timeout, self._forks, self._on_line = iface, timeout, forks, on_line
        self._connection = ConnectOptions(
            transport=choose_transport(transport, self.hosts, os.environ),
            connect_timeout=connect_timeout,
            host_keys=host_keys,
            on_warning=self._tell,
        )
        values = {
            "-H": hostfile, "--hosts": named, "-l": limit, "--user": user, "--port": port, "--identity": identity,
            "--ssh-config": ssh_config, "--known-hosts": known_hosts, "--host-keys": host_keys,
            "--transport": None if transport == TRANSPORT else transport, "--home": home, "--iface": iface,
        }  # fmt: skip
        self._options = CallOptions(option_text(values.items()))

    @classmethod
    def from_hostfile(cls, path: str | Path, **options: Unpack[HostKeywords]) -> Cluster:
        """Return a Cluster with the hosts of a hostfile, or of an Ansible inventory."""
        return cls(hostfile=path, **options)

    def __repr__(self) -> str:
        return f"Cluster({[host.name for host in self.hosts]!r})"

    def doctor(
        self, *, require: InstructionSet | None = None, network: bool = True, smoke: bool = False
    ) -> DoctorReport:
        """Check whether the hosts can train together. Problems are findings of the report, not errors."""
        return self._call(partial(host_checks.doctor, require=require, network=network, smoke=smoke))

    def install(
        self,
        *,
        env: str = DEFAULT_ENV,
        with_: Sequence[str] = (),
        requirement: Sequence[str | Path] = (),
        extra: Sequence[str] = (),
        group: Sequence[str] = (),
        index_url: str | None = None,
        extra_index_url: Sequence[str] = (),
        find_links: Sequence[str] = (),
        wheelhouse: str | None = None,
        offline: bool = False,
        upgrade: bool = False,
        downgrade: bool = False,
        dry_run: bool = False,
        **stack: Unpack[StackKeywords],
    ) -> InstallReport:
        """Install one matching PyTorch stack on every host."""
        check_types(get_type_hints(StackRequest), stack, signature(self.install).parameters)
        sources = Sources(index_url, tuple(extra_index_url), tuple(find_links), wheelhouse, offline)
        return self._call(
            partial(
                host_stacks.install,
                stack=StackRequest(**stack),
                sources=sources,
                env=env,
                packages=with_,
                requirements=[Path(file) for file in requirement],
                optional=Optional(tuple(extra), tuple(group)),
                options=InstallOptions(upgrade, downgrade, dry_run),
                watch=self._watch,
            )
        )

    def versions(self, **stack: Unpack[StackKeywords]) -> VersionsReport:
        """Return the table of stacks, and the one that an install on these hosts would choose."""
        check_types(get_type_hints(StackRequest), stack)
        return self._call(partial(host_stacks.versions, StackRequest(**stack)))

    def envs(
        self,
        *,
        remove: Sequence[str] = (),
        prune: bool = False,
        verify: bool = False,
        env: str | None = None,
        python: str | None = None,
        setup: str | None = None,
        force: bool = False,
    ) -> EnvsReport:
        """List the environments of every host, remove some (with `force`, also those of others), or verify one."""
        request = EnvsRequest(
            remove=tuple(remove), prune=prune, verify=verify, env=env, python=python, setup=setup, force=force
        )
        return self._call(partial(host_stacks.envs, request=request))

    def sync(
        self,
        directory: str | Path | None = None,
        *,
        exclude: Sequence[str] = (),
        include: Sequence[str] = (),
        data: Sequence[str] = (),
        allow_big: bool = False,
        dry_run: bool = False,
    ) -> SyncReport:
        """Sync a project directory to the same path on every host."""
        root = find_root(None, _path(directory), Path.cwd())
        files = SyncOptions(exclude=tuple(exclude), include=tuple(include), data=tuple(data), allow_big=allow_big)
        return self._call(partial(host_files.sync, root=root, files=files, dry_run=dry_run, watch=self._watch))

    def push(self, source: str | Path, path: str, *, force: bool = False, dry_run: bool = False) -> PushReport:
        """Copy data to the same path on every host."""
        source = expand_tilde(source)
        hosts, path_on_hosts = parse_target(path, source)
        if hosts is not None:
            raise UserError(f"{path!r} names hosts, which a Cluster has", fix="limit='…' of Cluster chooses some")
        return self._call(
            partial(
                pushed_files.push, source=source, path=path_on_hosts, force=force, dry_run=dry_run, watch=self._watch
            )
        )

    def exec(self, command: Sequence[str] | str) -> Report[HostOutput]:
        """Run a program with its arguments, or a line for sh, on every host."""
        request = Command.shell(command) if isinstance(command, str) else Command.argv(*command)
        return self._call(partial(open_hosts.execute_quietly, command=request))

    def fetch(self, source: str, dest: str | Path) -> FetchResult:
        """Fetch files of a host: `source` is HOST:PATH. For files of a run: `Run.fetch`."""
        request = order_of_host(parse_source(source), os.fspath(dest), self.hosts, self._home)
        return interruptible(lambda cancel: fetch_files(request, self._connection, cancel, timeout=self._timeout)[0])

    def uninstall(self, *, with_results: bool = False, dry_run: bool = False, force: bool = False) -> UninstallReport:
        """Remove everything that ipexctl put on the hosts and on this machine; a dry run lists it.

        `force`: also remove runs and environments of others.
        """
        return self._call(partial(host_stacks.uninstall, with_results=with_results, dry_run=dry_run, force=force))

    def run(
        self,
        script: str | Path | None = None,
        args: Sequence[object] = (),
        *,
        module: str | None = None,
        command: Sequence[str] = (),
        export: Mapping[str, object] | Sequence[str] = (),
        env_file: Sequence[str | Path] = (),
        install: bool = False,
        with_: Sequence[str] = (),
        requirement: Sequence[str | Path] = (),
        extra: Sequence[str] = (),
        group: Sequence[str] = (),
        no_requirements: bool = False,
        stack: str | None = None,
        torch: str | None = None,
        notify: str = "",
        resume: Run | str | None = None,
        **options: Unpack[RunKeywords],
    ) -> Run:
        """Start a script, a module or a command on all hosts, one process per rank, and return once it runs.

        The run outlives this program; `Run.stop` ends it. `resume`: a run, or its ID, that the same call started
        before. It starts again on those of its hosts that answer. Raises a CallError if the run does not start.
        """
        spec = self._checked(
            script,
            args,
            options,
            module=module,
            command=command,
            export=export,
            env_file=env_file,
            stack=stack,
            torch=torch,
            install=install or bool(with_ or requirement or extra or group),
            packages=tuple(with_),
            requirements=tuple(str(expand_tilde(path)) for path in requirement),
            takes_own_requirements=not no_requirements,
            extra=tuple(extra),
            group=tuple(group),
            notify=notify,
        )
        resumed = None
        if resume is not None:
            resumed = (resume if isinstance(resume, Run) else self._find(resume, hosts_first=False)).record
            refuse_job(resumed)
        return Run(interruptible(partial(self._start, spec, resumed)), on_line=self._on_line)

    def plan(
        self, script: str | Path | None = None, args: Sequence[object] = (), **options: Unpack[PlanKeywords]
    ) -> Plan:
        """Plan a run and start nothing: its ranks, their variables with reasons, the command line of mpirun.

        Raises a CallError if there can be no run.
        """
        given: dict[str, Any] = dict(options)
        command: dict[str, Any] = {
            name: given.pop(name) for name in ("module", "command", "export", "env_file") if name in given
        }
        check_lists(command)
        spec = self._checked(script, args, given, **command)
        result = interruptible(lambda cancel: start_run(spec, _WatchedStart(self, spec.hosts, cancel), dry_run=True))
        if isinstance(result, PlannedRun):
            return result.plan
        raise _call_error(spec, result)

    def find(self, run: str = "last") -> Run:
        """Find a run on these hosts, whoever began it, by its ID or a unique part of it; `last` is the newest there."""
        return self._find(run, hosts_first=True)

    def _find(self, run: str, *, hosts_first: bool) -> Run:
        """Return the run. `hosts_first`: look on the hosts before looking in the records of this machine."""
        (record,) = self._call(lambda opened: find_runs([run], lambda: nullcontext(opened), hosts_first=hosts_first))
        return Run(record, on_line=self._on_line)

    def ps(self, *, running: bool = False, newest: int | None = None) -> RunList:
        """List the runs that were started from this machine, on any hosts, with their states."""

        def work(cancel: Cancel) -> RunList:
            """List the runs."""
            watcher = CallWatcher(cancel, self._tell, self._tell, timeout=self._timeout)
            return list_runs(watcher, running=running, newest=newest)

        return interruptible(work)

    def _checked(
        self,
        script: str | Path | None,
        args: Sequence[object],
        options: Mapping[str, Any],
        *,
        module: str | None = None,
        command: Sequence[str] = (),
        export: Mapping[str, object] | Sequence[str] = (),
        env_file: Sequence[str | Path] = (),
        notify: str = "",
        **others: Any,
    ) -> RunSpec:
        """Return the spec of a run. Raises a UserError for wrong options, before any host is contacted."""
        if sum(map(bool, (script, module, command))) != 1:
            raise UserError(
                "run needs one of script, module and command", fix='cluster.run("train.py", ["--lr", "0.1"])'
            )
        kind: CommandKind = "script" if script else "module" if module else "command"
        types = get_type_hints(RunOptions)
        known = {name: types[name] for name in DECLARED} | {"cwd": Path | None}
        check_types(known, options, signature(self.run).parameters)
        check_notify(notify)
        variables = [f"{name}={value}" for name, value in export.items()] if hasattr(export, "items") else export
        files = list(map(expand_tilde, env_file))
        exports, secrets = read_exports(variables, files, os.environ)
        asked = set_options(
            RunOptions(
                kind,
                (*map(str, filter(None, (script, module))), *command, *map(str, args)),
                home=self._home,
                iface=self._iface,
                exports=exports,
                is_followed=False,
                is_behind_dashes=bool(command),
                **others,
            ),
            options,
        )
        asked = read_program(asked.argv).put_into(asked) if command else asked
        check_request(asked)
        check_packages(asked)
        refuse_bad_rank_counts(asked, self.hosts)
        spec = RunSpec(
            asked,
            secrets=secrets,
            secret_files=(*files, *private_keys(self.hosts)),
            timeout=self._timeout,
            notify=notify,
            hosts=self.hosts,
            hosts_from=self._source,
            options=replace(self._options, call=call_of(asked), program=asked.program),
        )
        return replace(spec, project=locate_project(spec, Path.cwd()))

    def _start(self, spec: RunSpec, resumed: RunRecord | None, cancel: Cancel) -> RunRecord:
        """Start a run and return its record. `resumed`: the run to resume; None for a new one."""
        if resumed is not None:
            with self._sessions(cancel, spec.hosts) as pool:
                spec = on_hosts_left(spec, resumed, pool, self._tell)
            if cancel.thrown:
                raise Cancelled("the program was interrupted before the run was started")
        result = start_run(spec, _WatchedStart(self, spec.hosts, cancel))
        if isinstance(result, StartedRun):
            return result.record
        raise _call_error(spec, result)

    def _call(self, step: Callable[[OpenHosts], T]) -> T:
        """Do a step on the open hosts, in a thread that Ctrl-C cancels."""

        def work(cancel: Cancel) -> T:
            """Do the step."""
            with self._sessions(cancel, self.hosts) as pool:
                return step(OpenHosts(self.hosts, pool, self._home, self._iface, self._timeout, self._options))

        return interruptible(work)

    def _sessions(self, cancel: Cancel, hosts: Sequence[Host]) -> AbstractContextManager[SessionPool]:
        """Open sessions to these hosts."""
        node0s = frozenset(host.name for host in hosts[:1])  # its supervisor outlives the call
        return open_sessions(self._connection._replace(stays_on=node0s), cancel, forks=self._forks)

    def _tell(self, text: str) -> None:
        """Pass a line to the program."""
        self._on_line(text)

    def _watch(self, event: ProgressEvent) -> None:
        """Pass progress to the program: notices and the beginning of steps."""
        if isinstance(event, Notice):
            self._on_line("warning: " + event.text if event.warning else event.text)
        elif isinstance(event, StepStarted):
            self._on_line(f"{event.host or 'this machine'}: {event.what}")


def _call_error(spec: RunSpec, result: object) -> CallError:
    """Return the error for a run that was not started.

    `result`: a StartFailure, or the report of an install that failed.
    """
    if isinstance(result, StartFailure):
        failure = result.with_call_options(spec.options)
        return CallError(failure.reason, fix=failure.fix, exit_code=failure.exit_code)
    assert isinstance(result, InstallReport)
    failed = next(host for host in result.hosts if host.status in ("failed", "unreachable"))
    return CallError(
        f"the install failed: {failed.host.name}: {failed.reason}",
        fix=spec.options.apply(failed.fix),
        exit_code=result.exit_code,
    )


class _WatchedStart(RunWatcher):
    """Connects the start of a run to the `Cluster` that starts it."""

    def __init__(self, cluster: Cluster, hosts: Sequence[Host], cancel: Cancel) -> None:
        self._cluster, self._hosts, self._cancel = cluster, hosts, cancel

    @contextmanager
    def sessions(self) -> Iterator[SessionPool]:
        """Open sessions, also after an interrupt: then to remove the secrets of the run."""
        cancel = Cancel() if self._cancel.thrown else self._cancel  # again, to remove secrets
        with self._cluster._sessions(cancel, self._hosts) as pool:
            pool.warm(self._hosts)
            yield pool

    def on_step(self, text: str) -> None:
        """Pass on what is being done."""
        self._cluster._tell(text)

    def on_note(self, text: str) -> None:
        """Pass on a note."""
        self._cluster._tell("note: " + text)

    def on_warning(self, text: str) -> None:
        """Pass on a warning."""
        self._cluster._tell(text)

    @contextmanager
    def installing(self) -> Iterator[Watch]:
        """Yield the function that takes the events of an install."""
        yield self._cluster._watch

    def on_started(self, run: StartedRun) -> None:
        """Leave the run to itself, and say that it runs."""
        run.launch.leave()
        self._cluster._tell(f"{run.record.id}: {run.record.plan.size}, {run.record.plan.connection}")

    def follow(self, run: StartedRun) -> int:
        """Stop the run: it is only followed if the call was interrupted."""
        stop(run.record, CallWatcher(Cancel()))
        return 1
