"""Starts a planned run: the supervisor on node0, job files and starters on the other hosts, then the launcher. While
the project is compared, the supervisor starts, and each home gets RUNDIR/agent.zip, the run's own copy of the agent,
or a copy with bytecode from an earlier run. Token and secrets travel by stdin into files of mode 0600.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import secrets
import shlex
import tarfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from ipexctl.homes.local_copy import read_final_status
from ipexctl.homes.prune_runs import RetentionLimits, background_prune
from ipexctl.homes.registry import RunRecord, RunRegistry
from ipexctl.hosts.host import Host
from ipexctl.limits import CANCEL_CLEANUP, PATIENCE, START_CONFIRMED, STEP_SILENCE
from ipexctl.node.common.fix import Fix
from ipexctl.node.common.frames import Frame
from ipexctl.node.common.job import ConnectivityRecord, HomeJob, Listen, StarterContact, jobs_of
from ipexctl.node.common.liveness import RESERVED_FILE
from ipexctl.node.common.plan import Plan, plan_text, program_line, to_json
from ipexctl.node.common.records import RunStatus
from ipexctl.node.run.follow import FollowRequest
from ipexctl.remote.cancel import Cancel, Deadline, cleaning
from ipexctl.remote.command import Command
from ipexctl.remote.connector import SessionPool
from ipexctl.remote.fanout import Outcome, fan_out, run_in_background
from ipexctl.remote.home_script import home_refusal, use_home_or_fail, walk_to
from ipexctl.remote.node_call import agent_zip, call_line, explain_stderr, script_text
from ipexctl.remote.outcome import AgentEnded, Cancelled, HostError, TimedOut, Unreachable
from ipexctl.remote.reply import Reply
from ipexctl.remote.session import Session, StdinQueue, capture
from ipexctl.run.start.start_request import StartError, StartFailure
from ipexctl.run.starters import begin_starter, unpack_line
from ipexctl.run.stop import stop

HOOKS: Final = {"hooks/sitecustomize.py": "run.rank.sitecustomize", "hooks/ipexctl_hooks.py": "run.rank.rank_hooks"}
"""Files that every Python of a rank imports, in a directory of their own."""
IN_RANK: Final = "hooks/ipexctl_inrank"
"""Where the hooks find the package `inrank/`, which they import under this name."""
_IN_RANK_SOURCE: Final = Path(__file__).parents[2] / "inrank"


@dataclass(frozen=True, slots=True)
class File:
    name: str
    content: bytes = field(repr=False)
    mode: int = 0o600


class Launch:
    """One start of a run. Hosts that share a home get its files once."""

    def __init__(self, record: RunRecord, pool: SessionPool, retention: RetentionLimits | None = None) -> None:
        """The plan may have no directory yet. `retention`: limits by which older runs are pruned; None keeps them."""
        self._record, self._plan, self._pool, self._retention = record, record.plan, pool, retention
        plan = self._plan
        self._hosts = {host.name: host for host in record.nodes}
        self._node0, *self._others = (self._hosts[name] for name in plan.leaders)
        self._token = secrets.token_hex(32)
        self._job = HomeJob(plan.rundir, self._token)
        self._stdin = StdinQueue()
        self._may_run = False
        self._agent = _agent_files(plan)
        self._cancel = Cancel()
        self._on_frame: Callable[[Frame], None] = lambda _: None  # before the run is followed
        self._listening: Future[Mapping[str, Any]] = Future()
        self._started: Future[Mapping[str, Any]] = Future()
        self._supervisor: Future[Reply] = Future()
        self._agents: Future[list[Outcome[Host, None]]] = Future()

    def start_supervisor(self) -> None:
        """Call it first. While the rest is made ready, the supervisor on node0 listens and waits for its job, and the
        other homes get the agent."""
        self._supervisor = run_in_background(self._call_supervisor, "supervisor")
        self._agents = run_in_background(self._upload_agents, "agents")

    def _upload_agents(self) -> list[Outcome[Host, None]]:
        command = Command(unpack_script(self._plan, self._retention), f"make {self._plan.rundir}")
        files = packed(self._agent)
        return list(self._pool.each(self._others, lambda _, session: self._unpack(session, command, files)))

    def _unpack(self, session: Session, command: Command, files: bytes) -> None:
        result = capture(session, command, stdin=io.BytesIO(files), silence=PATIENCE)
        if not result.ended.ok:
            lines = result.stderr.decode(errors="replace").strip().splitlines()
            if lines and (refused := home_refusal(lines[-1], self._plan.home)) is not None:
                raise refused
            reason, fix = explain_stderr(result.stderr)
            raise HostError(f"could not {command.label}: {reason or result.ended}", fix)

    def upload_jobs(self, plan: Plan, secrets: Mapping[str, str]) -> None:
        """One round trip to each other host: its job, if the home has none yet, and its starter, which ends with the
        supervisor that waits. The supervisor, which listens at the end, writes the files of node0's home. Raises a
        StartError. `plan`: the final one.
        """
        self._plan, self._job = plan, self._job._replace(secrets=secrets, bytecode=bytecode_path(plan))
        _raise_first(self._agents.result())
        listening = self._wait_for(self._listening)
        local, port = str(listening.get("local") or ""), int(listening.get("port") or 0)
        contact = StarterContact(self._token, local, port)
        jobs = jobs_of(plan, self._job)
        document = File("plan.json", plan_text(plan).encode())
        reserved = [File(RESERVED_FILE, b"")] if plan.has_pool and not plan.has_starters else []

        def upload(host: Host, session: Session) -> None:
            files = b""
            if host in self._others:
                own = jobs.get(plan.stores[host.name])
                job = reserved if own is None else [File("job.json", json.dumps(own._asdict()).encode())]
                files = packed([document, *job])
            if plan.has_starters:
                begin_starter(session, plan, contact, files)
            else:
                self._unpack(session, Command(unpack_line(plan, len(files)), f"write to {plan.rundir}"), files)

        with_starters = [self._hosts[host.name] for host in plan.all_hosts if host.name != plan.node0]
        hosts = with_starters if plan.has_starters else []
        _raise_first(self._pool.each([*self._others, *(host for host in hosts if host not in self._others)], upload))

    def start_launcher(self, connectivity: ConnectivityRecord | None, notify: str = "") -> None:
        """From then on the run continues on its own. Raises a StartError."""
        self._may_run = not self._supervisor.done()  # one that is lost by now gets no command
        checked = None if connectivity is None else connectivity._asdict()
        job = self._job._asdict()
        self._send({"plan": to_json(self._plan), "job": job, "connectivity": checked, "notify": notify})
        self._wait_for(self._started)

    def follow(self, request: FollowRequest, on_frame: Callable[[Frame], None], cancel: Cancel) -> Reply:
        """Follow the started run to its end over the connection that started it."""
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
        wait((self._agents,))
        rundir = shlex.quote(self._plan.rundir)
        return clean_up((self._node0, *self._others), walk_to(self._plan.rundir) + f"rm -rf {rundir}", self._pool)

    def _call_supervisor(self) -> Reply:
        plan = self._plan
        files = packed([*self._agent, *_files(plan, is_everywhere=False)])
        request = Listen(plan.rundir, plan.hosts[0].address, self._token)
        script = unpack_script(plan, self._retention, f"head -c {len(files)} |")
        # Other accounts read these words there (`ipexctl ps -H`).
        limit = plan.asked.time_limit
        words = [] if limit is None else [f"limit={math.ceil(limit)}"]
        call = json.dumps({"script": plan.asked.script[:80], "tag": plan.asked.tag or ""})
        words.append("call=" + call.replace('\\"', "\\u0022"))  # runs.sh takes texts without quotes
        script += program_line(plan, "run.supervisor", plan.node0, *words)
        return call_line(
            self._pool.session(self._node0),
            Command(script, f"run the supervisor in {plan.rundir}"),
            files,
            request._asdict(),
            stdin=self._stdin,
            on_event=self._on_event,
            on_frame=lambda frame: self._on_frame(frame),
            deadline=Deadline(STEP_SILENCE, self._cancel, is_of_silence=True),
        )

    def _on_event(self, event: Mapping[str, Any]) -> None:
        for name, future in (("listening", self._listening), ("started", self._started)):
            if event.get("event") == name and not future.done():
                future.set_result(event)

    def _wait_for(self, future: Future[Mapping[str, Any]]) -> Mapping[str, Any]:
        with self._pool.cancel.waking(self._cancel.throw):
            futures: tuple[Future[Any], ...] = (future, self._supervisor)
            wait(futures, PATIENCE, FIRST_COMPLETED)
            is_late = not (future.done() or self._supervisor.done())
            if is_late:
                self._cancel.throw()
                wait((self._supervisor,))
        if future.done():
            return future.result()
        try:
            if is_late:
                raise TimedOut(f"the supervisor did not start within {PATIENCE:g} s")
            self._supervisor.result()
            raise HostError("the supervisor ended before it had started the run")
        except HostError as error:
            failure = StartFailure.of_host(self._plan.node0, error)
            is_lost = self._may_run and isinstance(error, (AgentEnded, Cancelled, TimedOut, Unreachable))
            if is_lost and not self._is_stopped(error):
                fix = Fix(f"it may run: `ipexctl ps` shows it, `ipexctl stop {self._plan.id}` stops it")
                failure = replace(failure, fix=fix, is_unsure=True)
            raise StartError(failure) from None

    def _is_stopped(self, error: HostError) -> bool:
        """Stop a run that may have started before the connection was lost; False if that is not confirmed."""
        rundir, node0 = self._plan.rundir, self._node0
        if isinstance(error, Unreachable):
            self._pool.forget(node0)
        until = time.monotonic() + START_CONFIRMED
        find_status = Command(f"test -e {shlex.quote(rundir)}/status.json", "look for the record")
        try:
            session = self._pool.session(node0)
            session.cancel, session.timeout = None, 15.0  # this call may be cancelled by now
            while not capture(session, find_status, timeout=10).ended.ok:
                if time.monotonic() > until:  # the supervisor did not receive the command to start
                    return True
                time.sleep(0.3)
            return stop(session, self._record, wait=10).status.is_over
        except HostError:
            return False


def bytecode_path(plan: Plan) -> str:
    """Path of the agent with bytecode, which an earlier run of this version left in a home."""
    if not plan.python_version:
        return ""
    digest = hashlib.sha256(agent_zip(*_agent_folders(plan))).hexdigest()
    return f"{plan.home}/agent/{digest[:16]}.cpython-{plan.python_version.replace('.', '')}.zip"


def unpack_script(plan: Plan, retention: RetentionLimits | None = None, source: str = "") -> str:
    """Lines of sh that unpack a home's private files and prune older runs there."""
    rundir, bytecode = shlex.quote(plan.rundir), bytecode_path(plan)
    use_bytecode = ""
    if bytecode:  # without it each rank compiles the agent (40 ms)
        origin, target = shlex.quote(bytecode), shlex.quote(f"{plan.rundir}/agent.zip")
        use_bytecode = f"cp {origin} {target}.part 2>/dev/null && mv -f {target}.part {target} || rm -f {target}.part"
    # Bytecode that a rank's Python adds is private, too.
    # No program is started where another account can change it, and no run is made among files of others.
    script = use_home_or_fail(plan.home, "runs")
    # In a subshell: the supervisor, and with it node0's ranks, keep the umask of the login.
    directories = ("hooks", IN_RANK) if _needs_in_rank(plan) else ("hooks",)
    caches = " && ".join(f"make_private {rundir}/{directory}/__pycache__" for directory in directories)
    script += f"(umask 077; {caches} && {source} tar -xpof - -C {rundir} || exit 1\n"
    # Retention on another host with this home, which does not see these ranks, reads `machine`.
    script += f"uname -n >{rundir}/machine\n{use_bytecode}\n:) || exit 1\n"
    if retention is not None:
        script += background_prune(retention, plan.home, plan.python, plan.id) + "\n"
    return script


def _needs_in_rank(plan: Plan) -> bool:
    return plan.adds_up or plan.asked.meter or plan.world_size > 1


def _raise_first(outcomes: Iterable[Outcome[Host, None]]) -> None:
    failures = [StartFailure.of_host(done.host.name, done.error) for done in outcomes if done.error is not None]
    if failures:
        hosts = tuple(name for failure in failures for name in failure.hosts)
        raise StartError(replace(failures[0], hosts=hosts))


def clean_up(hosts: Sequence[Host], script: str, pool: SessionPool) -> frozenset[str]:
    """Run a line of sh on every host that answers, even after a cancel; return the other hosts."""

    def run(host: Host) -> None:
        if pool.session(host).is_stuck:
            raise Unreachable("its login does not end")
        capture(pool.session(host), Command(script, "clean up"), deadline=Deadline(CANCEL_CLEANUP))

    with cleaning("files"):
        outcomes = list(fan_out(hosts, run, forks=max(1, len(hosts)), cancel=Cancel()))
    return frozenset(done.host.name for done in outcomes if done.error is not None)


def remove_job_files(hosts: Sequence[Host], record: RunRecord, pool: SessionPool) -> None:
    """For a run that failed or was stopped before all ranks had read their token and secrets."""
    names = hosts_with_job_files(record, read_final_status(RunRegistry().directory / record.id))
    rundir = shlex.quote(record.rundir)
    clean_up([host for host in hosts if host.name in names], f"rm -f {rundir}/job.json {rundir}/job.*.json", pool)


def hosts_with_job_files(record: RunRecord, ended: RunStatus | None) -> frozenset[str]:
    """The hosts that may still have the job file. Pure. A rank wrapper that has reached the supervisor removes it, so
    such a host is not contacted again: connecting to one that was cut off takes the whole timeout. A killed wrapper
    leaves the file for a restart, as do all of a stopped attempt.
    """
    if ended is None:
        return frozenset(record.hosts)
    for_restart = ended.attempt < ended.restarts
    is_left = for_restart and ended.state == "stopped"
    left = {
        rank.host for rank in ended.ranks if is_left or rank.wrapper is None or (for_restart and rank.state == "lost")
    }
    return frozenset(record.hosts) & left


def _agent_files(plan: Plan) -> list[File]:
    """The run's own copy of the agent, which upgrades do not touch."""
    hooks = [File(name, script_text(module).encode()) for name, module in HOOKS.items()]
    agent = File("agent.zip", agent_zip(*_agent_folders(plan)))
    in_rank = in_rank_files() if _needs_in_rank(plan) else ()
    return [agent, *hooks, *in_rank, *_files(plan, is_everywhere=True)]


def _files(plan: Plan, *, is_everywhere: bool) -> list[File]:
    return [File(f.name, f.text.encode(), f.mode) for f in plan.files if f.is_everywhere == is_everywhere]


def in_rank_files() -> list[File]:
    """The package `inrank/` under the name by which the hooks import it."""
    return [File(f"{IN_RANK}/{path.name}", path.read_bytes()) for path in sorted(_IN_RANK_SOURCE.glob("*.py"))]


def _agent_folders(plan: Plan) -> tuple[str, ...]:
    return ("run", "files") if plan.exchanged or plan.has_pool else ("run",)


def packed(files: Sequence[File]) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for file in files:
            member = tarfile.TarInfo(file.name)
            member.size, member.mode, member.mtime = len(file.content), file.mode, int(time.time())
            archive.addfile(member, io.BytesIO(file.content))
    return data.getvalue()
