"""Starts a planned run: the supervisor on node0, a job file for every host, then mpirun.

The steps of a `Launch`: `start_supervisor`, `upload_jobs`, `start_mpirun`, then `follow` or `leave`; before mpirun
starts, `abandon` ends the supervisor and removes the files. The supervisor starts while the project is compared. Each
store gets RUNDIR/agent.zip, the run's own copy of the agent, or a copy with bytecode from an earlier run. The package
`inrank/` is added to the hooks only if ranks add gradients up with it. Token and secrets travel by stdin into files of
mode 0600, never on a command line.
"""

from __future__ import annotations

import hashlib
import io
import json
import secrets
import shlex
import tarfile
import time
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ipexctl.limits import CANCEL_CLEANUP, JOB_UPLOAD, RUN_START, START_CONFIRMED
from ipexctl.node.common.job import (
    ConnectivityRecord,
    HostStarterRequest,
    JobRecord,
    Master,
    ProcessOptions,
    RankJob,
    StarterCall,
    StartRequest,
    SupervisorRequest,
)
from ipexctl.node.common.json_records import as_json, decode
from ipexctl.node.common.liveness import RESERVED_FILE
from ipexctl.node.common.plan import ELASTIC_NAMES, WRAPPER_NAMES, Plan
from ipexctl.node.common.queue_files import DIRECTORY
from ipexctl.node.run.host_pool import jobs_with
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.command import Command
from ipexctl.remote.fanout import fan_out, run_in_background
from ipexctl.remote.home_script import home_refusal, use_home_or_fail, walk_to
from ipexctl.remote.node_call import agent_zip, call_line, explain_stderr, script_text
from ipexctl.remote.outcome import AgentEnded, Cancelled, HostError, TimedOut, Unreachable
from ipexctl.remote.session import Session, StdinQueue, capture
from ipexctl.run.retention import RetentionLimits, background_prune
from ipexctl.run.start.request import StartError, StartFailure
from ipexctl.run.stop import stop

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from ipexctl.facts.system import Logind
    from ipexctl.hosts.host import Host
    from ipexctl.node.common.frames import Frame
    from ipexctl.node.run.follow import FollowRequest
    from ipexctl.remote.fanout import Outcome
    from ipexctl.remote.reply import Reply
    from ipexctl.remote.session_pool import SessionPool
    from ipexctl.run.registry import RunRecord
    from ipexctl.spec import RunSpec

HOOKS: Final = {"shim/sitecustomize.py": "run.sitecustomize", "shim/ipexctl_shim.py": "run.rank_hooks"}
"""Files that every Python of a rank imports, in a directory of their own."""
IN_RANK: Final = "shim/ipexctl_inrank"
"""Where the hooks find the package `inrank/`, which they import under this name."""
_IN_RANK_SOURCE: Final = Path(__file__).parents[2] / "inrank"


@dataclass(frozen=True, slots=True)
class File:
    name: str
    content: bytes = field(repr=False)
    mode: int = 0o600


@dataclass(frozen=True, slots=True)
class LaunchRecords:
    """What the start of a run sends, before the project's directory on the hosts is known."""

    record: RunRecord
    bind: str
    """Node0's address for the ranks; 127.0.0.1 on a single host."""
    start: StartRequest = field(hash=False, repr=False)
    """For the supervisor: the mpirun line, the ranks, the limits."""
    job: JobRecord = field(hash=False, repr=False)
    """The common part of all hosts' jobs; `job_of` adds the rest once the project's tree is known."""
    stores: Mapping[str, str] = field(hash=False)
    files: Sequence[File] = ()
    """For node0: the hostfile."""
    files_everywhere: Sequence[File] = ()
    python_version: str = ""
    """Of the ranks, such as `3.11`; empty if unknown."""
    logind: Mapping[str, Logind | None] = field(default_factory=dict, hash=False)
    retention: RetentionLimits | None = None
    """Older runs are pruned by these limits; None: they are kept."""
    needs_in_rank: bool = False
    has_starters: bool = False
    """True if each host with ranks but node0 gets a starter."""
    ssh_words: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Host → its name for ssh.sh on node0, if that can begin a starter there."""

    @property
    def bytecode(self) -> str:
        """Path of the agent with bytecode, which an earlier run of this version left in a store."""
        if not self.python_version:
            return ""
        digest = hashlib.sha256(agent_zip(*_agent_folders(self.start))).hexdigest()
        return f"{self.record.home}/agent/{digest[:16]}.cpython-{self.python_version.replace('.', '')}.zip"

    @property
    def use_bytecode(self) -> str:
        """A line of sh for a store: without bytecode each rank compiles the agent (40 ms)."""
        if not self.bytecode:
            return ""
        source, target = shlex.quote(self.bytecode), shlex.quote(f"{self.record.rundir}/agent.zip")
        return f"cp {source} {target}.part 2>/dev/null && mv -f {target}.part {target} || rm -f {target}.part"

    def starter_ranks(self) -> dict[str, tuple[int, ...]]:
        if not self.has_starters:
            return {}
        placements = self.start.ranks if self.start.pool is None else self.start.pool.hosts
        hosts = dict.fromkeys(placement.host for placement in placements)
        hosts.pop(self.record.node0.name, None)
        return {host: tuple(each.rank for each in self.start.ranks if each.host == host) for host in hosts}

    @property
    def _of_python(self) -> tuple[str, ...]:
        return ("shim", IN_RANK) if self.needs_in_rank else ("shim",)

    def unpack(self, source: str = "") -> str:
        """Lines of sh that unpack a store's private files and prune older runs there."""
        rundir = shlex.quote(self.record.rundir)
        # Bytecode that a rank's Python adds is private, too.
        # No program is started where another account can change it, and no run is made among files of others.
        script = use_home_or_fail(self.record.home, "runs")
        # In a subshell: the supervisor, and with it node0's ranks, keep the umask of the login.
        caches = " ".join(f"{rundir}/{directory}/__pycache__" for directory in self._of_python)
        script += f"(umask 077; mkdir -p {caches} && {source} tar -xpof - -C {rundir} || exit 1\n"
        # Retention on another host with this home, which does not see these ranks, reads `machine`.
        script += f"uname -n >{rundir}/machine\n{self.use_bytecode}\n:) || exit 1\n"
        if self.retention is not None:
            script += background_prune(self.retention, self.record.home, self.record.python, self.record.id) + "\n"
        return script


class Launch:
    """One start of a run. The first host is node0; hosts that share a store get its files once."""

    def __init__(self, hosts: Sequence[Host], records: LaunchRecords, pool: SessionPool) -> None:
        self._records, self._record, self._pool = records, records.record, pool
        stores: dict[str, list[Host]] = {}
        for host in hosts:
            stores.setdefault(records.stores[host.name], []).append(host)
        self._node0, *self._others = stores.values()
        self._token = secrets.token_hex(32)
        self._stdin = StdinQueue()
        self._may_run = False
        self._agent = _agent_files(records)
        self._start = records.start
        self._cancel = Cancel()
        self._on_frame: Callable[[Frame], None] = _ignore
        self._listening: Future[Mapping[str, Any]] = Future()
        self._started: Future[Mapping[str, Any]] = Future()
        self._supervisor: Future[Reply] = Future()

    def start_supervisor(self) -> None:
        """Call it first. The supervisor on node0 listens and waits for its job while the rest is made ready."""
        self._supervisor = run_in_background(self._call_supervisor, "supervisor")

    def upload_jobs(self, make_job: Callable[[JobRecord, Collection[str]], JobRecord | None], plan: str) -> None:
        """One round trip to each other store; the supervisor listens at the end. It passes node0's job to its store,
        and starters wait for its word. Raises a StartError.

        `make_job`: `job_of` for the plan, with the secrets. `plan`: the text of plan.json.
        """
        common = self._records.job._replace(token=self._token, bytecode=self._records.bytecode)
        jobs = self._jobs(partial(make_job, common))
        records = self._records
        calls = tuple(
            StarterCall(host, records.ssh_words[host], _program(records, "run.host_starter", host))
            for host in records.starter_ranks()
            if host in records.ssh_words
        )
        self._start = self._start._replace(job=jobs.get(self._node0[0], ""), plan=plan, starter_calls=calls)
        command = Command(self._records.unpack(), f"make {self._record.rundir}")
        reserved = [File(RESERVED_FILE, b"")] if self._start.pool is not None and self._start.pool.shell else []

        def upload(host: Host, session: Session) -> None:
            job = [File("job.json", jobs[host].encode())] if host in jobs else reserved
            files = io.BytesIO(packed([*self._agent, *job]))
            result = capture(session, command, stdin=files, timeout=JOB_UPLOAD, cancel=self._pool.cancel)
            if not result.ended.ok:
                lines = result.stderr.decode(errors="replace").strip().splitlines()
                if lines and (refused := home_refusal(lines[-1], self._record.home)) is not None:
                    raise refused
                reason, fix = explain_stderr(result.stderr)
                raise HostError(f"could not {command.label}: {reason or result.ended}", fix)

        _raise_first(self._pool.each([group[0] for group in self._others], upload))
        self._start_starters(self._wait_for(self._listening))

    def _start_starters(self, listening: Mapping[str, Any]) -> None:
        """Begin each host's starter over its session. It ends with the supervisor that waits."""
        records, ranks = self._records, self._records.starter_ranks()
        hosts = {host.name: host for group in (self._node0, *self._others) for host in group}

        def start(host: Host, session: Session) -> None:
            request = HostStarterRequest(
                rundir=self._record.rundir,
                host=host.name,
                ranks=ranks[host.name],
                argv=records.start.argv,
                token=self._token,
                local=str(listening.get("local") or ""),
                address=records.bind,
                port=int(listening.get("port") or 0),
                rejoins=records.start.pool is not None,
            )
            line = _program(records, "run.host_starter", host.name)
            command = Command(line, "begin the starter of ranks")
            call_line(session, command, b"", request._asdict(), timeout=JOB_UPLOAD, cancel=self._pool.cancel)

        if ranks:
            _raise_first(self._pool.each([hosts[name] for name in ranks], start))

    def start_mpirun(self, connectivity: ConnectivityRecord | None) -> None:
        """Let the supervisor start mpirun; from then on the run continues on its own. Raises a StartError."""
        start = self._start._replace(connectivity=connectivity)
        self._may_run = not self._supervisor.done()  # one that is lost by now gets no command
        self._send(as_json(start))
        self._wait_for(self._started)

    def follow(self, request: FollowRequest, on_frame: Callable[[Frame], None], cancel: Cancel) -> Reply:
        """Follow the started run to its end, by the process that started it. Its connection must stay open."""
        self._on_frame = on_frame
        self._send(request)
        with cancel.waking(self._cancel.throw):
            return self._supervisor.result()

    def leave(self) -> None:
        """End the supervisor's call; the started run continues on its own."""
        self._stdin.end()

    def _send(self, request: object) -> None:
        self._stdin.send(json.dumps(request).encode() + b"\n")

    def abandon(self) -> frozenset[str]:
        """End a waiting supervisor and remove the files of the run; return the hosts that still have them."""
        self._stdin.end()
        if self._pool.cancel.thrown or wait((self._supervisor,), CANCEL_CLEANUP).not_done:
            self._cancel.throw()
        wait((self._supervisor,))
        firsts = [group[0] for group in (self._node0, *self._others)]
        rundir = shlex.quote(self._record.rundir)
        # The kept directory belongs to the job that starts this run, and says why it did not start; in a later start
        # of the job it has the record of the first one.
        keep = f"find {rundir} -mindepth 1 -maxdepth 1 ! -name {DIRECTORY} -exec rm -rf {{}} +"
        again = f"if [ -e {rundir}/{DIRECTORY}/again ]; then rm -f {rundir}/job.json"
        line = f"{again}; elif [ -d {rundir}/{DIRECTORY} ]; then {keep}; else rm -rf {rundir}; fi"
        return clean_up(firsts, walk_to(self._record.rundir) + line, self._pool)

    def _call_supervisor(self) -> Reply:
        """Unpack node0's files and start the supervisor; returns when `follow` or `leave` ends it."""
        records, node0 = self._records, self._node0[0]
        files = packed([*self._agent, *records.files])
        request = SupervisorRequest(self._record.id, self._record.rundir, records.bind, self._token, node0.name)
        return call_line(
            self._pool.session(node0),
            _supervisor_command(records, len(files)),
            files,
            request._asdict(),
            stdin=self._stdin,
            on_event=self._on_event,
            on_frame=lambda frame: self._on_frame(frame),
            cancel=self._cancel,
        )

    def _on_event(self, event: Mapping[str, Any]) -> None:
        for name, future in (("listening", self._listening), ("started", self._started)):
            if event.get("event") == name and not future.done():
                future.set_result(event)

    def _jobs(self, make_job: Callable[[Collection[str]], JobRecord | None]) -> dict[Host, str]:
        """First host of each store → the text of job.json, without stores where no rank is planned."""
        groups = {group[0]: [host.name for host in group] for group in (self._node0, *self._others)}
        jobs = {first: make_job(names) for first, names in groups.items()}
        if self._start.pool is not None:
            whole = make_job([name for names in groups.values() for name in names])
            assert whole is not None
            of_stores = jobs_with(whole, self._start, None)
            jobs = {first: of_stores.get(self._records.stores[first.name]) for first in groups}
            self._start = self._start._replace(pool=self._start.pool._replace(job=json.dumps(whole.to_json())))
        return {first: json.dumps(job.to_json()) for first, job in jobs.items() if job is not None}

    def _wait_for(self, future: Future[Mapping[str, Any]]) -> Mapping[str, Any]:
        """Wait for this event, or for the end of the supervisor's call, which is then the failure."""
        with self._pool.cancel.waking(self._cancel.throw):
            futures: tuple[Future[Any], ...] = (future, self._supervisor)
            wait(futures, RUN_START, FIRST_COMPLETED)
            is_late = not (future.done() or self._supervisor.done())
            if is_late:
                self._cancel.throw()
                wait((self._supervisor,))
        if future.done():
            return future.result()
        try:
            if is_late:
                raise TimedOut(f"the supervisor did not start within {RUN_START:g} s")
            self._supervisor.result()
            raise HostError("the supervisor ended before it had started the run")
        except HostError as error:
            failure = StartFailure.of_host(self._record.node0.name, error)
            is_lost = self._may_run and isinstance(error, (AgentEnded, Cancelled, TimedOut, Unreachable))
            if is_lost and not self._is_stopped(error):
                fix = f"it may run: ipexctl ps shows it, ipexctl stop {self._record.id} stops it"
                failure = replace(failure, fix=fix, is_unsure=True)
            raise StartError(failure) from None

    def _is_stopped(self, error: HostError) -> bool:
        """Stop a run that may have started before the connection was lost; False if that is not confirmed."""
        record, node0 = self._record, self._node0[0]
        if isinstance(error, Unreachable):
            self._pool.forget(node0)
        until = time.monotonic() + START_CONFIRMED
        find_status = Command(f"test -e {shlex.quote(record.rundir)}/status.json", "look for the record")
        try:
            session = self._pool.session(node0)
            while not capture(session, find_status, timeout=10).ended.ok:
                if time.monotonic() > until:  # the supervisor did not receive the command to start
                    return True
                time.sleep(0.3)
            return stop(session, record, wait=10, timeout=15).status.is_over
        except HostError:
            return False


def _supervisor_command(records: LaunchRecords, size: int) -> Command:
    """Stdin begins with `size` bytes of files."""
    script = records.unpack(f"head -c {size} |") + _program(records, "run.supervisor", records.record.node0.name)
    return Command(script, f"run the supervisor in {records.record.rundir}")


def _program(records: LaunchRecords, name: str, host: str) -> str:
    """A line of sh that becomes a program of the run's agent, which outlives the session."""
    argv = shlex.join([records.record.python, "-IS", f"{records.record.rundir}/agent.zip", name])
    logind = records.logind.get(host)
    if logind is None or not logind.kill_user_processes:
        return f"exec {argv}"
    scope = "systemd-run --user --scope --quiet"
    return f"if {scope} true </dev/null >/dev/null 2>&1; then exec {scope} {argv}; fi; exec {argv}"


def _raise_first(outcomes: Iterable[Outcome[Host, None]]) -> None:
    failures = [StartFailure.of_host(done.host.name, done.error) for done in outcomes if done.error is not None]
    if failures:
        hosts = tuple(name for failure in failures for name in failure.hosts)
        raise StartError(replace(failures[0], hosts=hosts))


def _ignore(frame: Frame) -> None:
    """Before the run is followed."""


def clean_up(hosts: Sequence[Host], script: str, pool: SessionPool) -> frozenset[str]:
    """Run a line of sh on every host that answers, even after the command was cancelled; return the other hosts."""

    def run(host: Host) -> None:
        capture(pool.session(host), Command(script, "clean up"), timeout=CANCEL_CLEANUP)

    outcomes = fan_out(hosts, run, forks=max(1, len(hosts)), cancel=Cancel())
    return frozenset(done.host.name for done in outcomes if done.error is not None)


def _agent_files(records: LaunchRecords) -> list[File]:
    """The run's own copy of the agent, which upgrades do not touch."""
    hooks = [File(name, script_text(module).encode()) for name, module in HOOKS.items()]
    agent = File("agent.zip", agent_zip(*_agent_folders(records.start)))
    return [agent, *hooks, *(in_rank_files() if records.needs_in_rank else ()), *records.files_everywhere]


def in_rank_files() -> list[File]:
    """The package `inrank/` under the name by which the hooks import it."""
    return [File(f"{IN_RANK}/{path.name}", path.read_bytes()) for path in sorted(_IN_RANK_SOURCE.glob("*.py"))]


def _agent_folders(start: StartRequest) -> tuple[str, ...]:
    return ("run", "files") if start.checkpoint or start.pool is not None else ("run",)


def packed(files: Sequence[File]) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for file in files:
            member = tarfile.TarInfo(file.name)
            member.size, member.mode, member.mtime = len(file.content), file.mode, int(time.time())
            archive.addfile(member, io.BytesIO(file.content))
    return data.getvalue()


def common_job(plan: Plan, spec: RunSpec) -> JobRecord:
    """The common part of all hosts' jobs, from the plan and the options passed on to ranks unchanged."""
    return JobRecord(
        world_size=plan.world_size,
        master=Master(plan.master_addr, plan.master_port),
        command=plan.command,
        cwd="",
        ranks={},
        variables={one.name: one.value for one in spec.exports if one.name in ELASTIC_NAMES and not one.secret},
        checkpoint_is_found=spec.checkpoint_is_found,
        has_rendezvous=plan.backend != "none",
        options=decode(ProcessOptions, plan.asked, "the options"),
        meter=spec.meter,
        metric=spec.metric or "",
        hosts=tuple(host.name for host in plan.hosts),
        restarts=spec.max_restarts,
    )


def job_of(plan: Plan, secrets: Mapping[str, str], common: JobRecord, hosts: Collection[str]) -> JobRecord | None:
    """The job of the hosts with one store: the common part, their ranks, variables and directory.

    None if no rank is planned there. A variable for only one of several hosts goes to that host's ranks. A secret of
    the plan that is missing in `secrets` is a KeyError: it must not reach a rank empty.
    """
    own = {host.name: host for host in plan.hosts if host.name in hosts}
    if not own:
        return None
    variables = dict(common.variables)
    of_ranks: dict[int, dict[str, str | None]] = {rank.rank: {} for host in own.values() for rank in host.ranks}
    prepended: dict[str, None] = {}
    for setting in plan.settings:
        if setting.host not in (None, *own) or setting.name in WRAPPER_NAMES:
            continue  # the rank wrapper sets these: the number is mpirun's, the rest is in the job
        if setting.rank is not None:
            targets = [of_ranks[setting.rank]]
        elif setting.host is None or len(own) == 1:
            targets = [variables]
        else:
            targets = [of_ranks[rank.rank] for rank in own[setting.host].ranks]
        for target in targets:
            target[setting.name] = secrets[setting.name] if setting.secret else setting.value
        if setting.prepend:
            prepended[setting.name] = None
    return common._replace(
        cwd=plan.cwd,
        variables=variables,
        prepended=tuple(prepended),
        ranks={
            rank.rank: RankJob(
                host.name, rank.local_rank, len(host.ranks), rank.cores, rank.memory, of_ranks[rank.rank], rank.batch
            )
            for host in own.values()
            for rank in host.ranks
        },
    )
