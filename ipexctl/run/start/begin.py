"""Start a planned run on the hosts, in three steps that `pipeline.py` calls one after the other:

1. `Launch.start_supervisor`: the supervisor starts on node0, and each home gets RUNDIR/agent.zip, this run's own copy
   of the agent. Both happen in the background while the project is uploaded.
2. `Launch.upload_jobs`: the other hosts get their job files, and their starters if the run has them.
3. `Launch.start_launcher`: the supervisor starts the ranks.

The token and the secrets travel over stdin into files of mode 0600, so that no command line shows them.
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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from ipexctl.errors import OutputError, UserError
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
from ipexctl.node.common.records import RankStatus, RunStatus
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
"""Path in the run's directory → module of the agent. Every Python process of a rank imports these files."""
IN_RANK: Final = "hooks/ipexctl_inrank"
"""Path of the package `inrank/` in the run's directory. The hooks import it as `ipexctl_inrank`."""
_IN_RANK_SOURCE: Final = Path(__file__).parents[2] / "inrank"


@dataclass(frozen=True, slots=True)
class File:
    name: str
    content: bytes = field(repr=False)
    mode: int = 0o600


class Launch:
    """The start of one run. Hosts that share a home get its files once, through one of them."""

    def __init__(self, record: RunRecord, pool: SessionPool, retention: RetentionLimits | None = None) -> None:
        """Prepare the files of the run; nothing is sent yet, and the plan may still lack its working directory.

        `retention`: limits for pruning older runs in the homes; None keeps all of them.
        """
        self._record, self._plan, self._pool, self._retention = record, record.plan, pool, retention
        plan = self._plan
        self._hosts = {host.name: host for host in record.nodes}
        # One host for each home. The first is node0.
        self._node0, *self._others = (self._hosts[name] for name in plan.leaders)
        self._token = secrets.token_hex(32)
        self._job = HomeJob(plan.rundir, self._token)
        self._stdin = StdinQueue()
        self._may_run = False
        """True once the supervisor may have received the command to start the ranks."""
        self.is_shown = False
        """True once the run's output or status has come to this call."""
        self._agent_files = _agent_files(plan)
        self._cancel = Cancel()
        self._on_frame: Callable[[Frame], None] = lambda _: None
        """Called with the run's output once `follow` was called."""
        self._listening: Future[Mapping[str, Any]] = Future()
        """Event with the port on which the supervisor listens for the ranks."""
        self._started: Future[Mapping[str, Any]] = Future()
        """Event that says that the supervisor has started the run."""
        self._supervisor_call: Future[Reply] = Future()
        self._agent_uploads: Future[list[Outcome[Host, None]]] = Future()

    def start_supervisor(self) -> None:
        """Start the supervisor on node0 and upload the agent to the other homes, both in the background.

        The supervisor listens for ranks and waits until `start_launcher` gives it the job.
        """
        self._supervisor_call = run_in_background(self._call_supervisor, "supervisor")
        self._agent_uploads = run_in_background(self._upload_agents, "agents")

    def _upload_agents(self) -> list[Outcome[Host, None]]:
        command = Command(unpack_script(self._plan, self._retention), f"make {self._plan.rundir}")
        archive = make_tar(self._agent_files)
        return list(self._pool.each(self._others, lambda _, session: self._unpack(session, command, archive)))

    def _unpack(self, session: Session, command: Command, archive: bytes) -> None:
        """Run a command that unpacks the archive. Raises a HostError if it fails."""
        result = capture(session, command, stdin=io.BytesIO(archive), silence=PATIENCE)
        if result.ended.ok:
            return
        lines = result.stderr.decode(errors="replace").strip().splitlines()
        if lines and (refused := home_refusal(lines[-1], self._plan.home)) is not None:
            raise refused
        reason, fix = explain_stderr(result.stderr)
        raise HostError(f"could not {command.label}: {reason or result.ended}", fix)

    def upload_jobs(self, plan: Plan, secrets: Mapping[str, str]) -> None:
        """Send the job files, and begin the host starters, in one round trip to each host. Raises a StartError.

        `plan` is final: the hosts get it as plan.json. node0 gets its job from `start_launcher`, because the supervisor
        writes the files of its home.
        """
        self._plan, self._job = plan, self._job._replace(secrets=secrets, bytecode=bytecode_path(plan))
        _raise_first(self._agent_uploads.result())
        listening = self._wait_for(self._listening)
        local, port = str(listening.get("local") or ""), int(listening.get("port") or 0)
        contact = StarterContact(self._token, local, port)
        document = File("plan.json", plan_text(plan).encode())
        jobs = jobs_of(plan, self._job)

        def upload(host: Host, session: Session) -> None:
            archive = b""
            if host in self._others:
                job = jobs.get(plan.stores[host.name])
                archive = make_tar([document, *_job_files(plan, job)])
            if plan.has_starters:
                begin_starter(session, plan, contact, archive)
            else:
                self._unpack(session, Command(unpack_line(plan, len(archive)), f"write to {plan.rundir}"), archive)

        hosts = list(self._others)
        if plan.has_starters:  # each host has one, also a host whose home got its files through another host
            started = [self._hosts[host.name] for host in plan.all_hosts if host.name != plan.node0]
            hosts += [host for host in started if host not in hosts]
        _raise_first(self._pool.each(hosts, upload))

    def start_launcher(self, connectivity: ConnectivityRecord | None, notify: str = "") -> None:
        """Give the supervisor its job and wait until it has started the ranks. Raises a StartError.

        From then on the run continues on its own, whatever happens to this call.
        """
        self._may_run = not self._supervisor_call.done()  # a supervisor that is lost by now gets no command
        self._send(
            {
                "plan": to_json(self._plan),
                "job": self._job._asdict(),
                "connectivity": None if connectivity is None else connectivity._asdict(),
                "notify": notify,
            }
        )
        self._wait_for(self._started)

    def follow(self, request: FollowRequest, on_frame: Callable[[Frame], None], cancel: Cancel) -> Reply:
        """Follow the started run to its end, over the connection that started it."""

        def show(frame: Frame) -> None:
            self.is_shown = True
            on_frame(frame)

        self._on_frame = show
        self._send(request)
        with cancel.waking(self._cancel.throw):
            return self._supervisor_call.result()

    def leave(self) -> None:
        """Close the connection to the supervisor. A started run continues."""
        self._stdin.end()

    def _send(self, request: object) -> None:
        self._stdin.send(json.dumps(request).encode() + b"\n")

    def abandon(self) -> frozenset[str]:
        """End a supervisor that still waits for its job, and remove the run's directory on all hosts.

        Returns the hosts that still have the directory: they could not be reached, or their ranks may live.
        """
        self._stdin.end()
        if self._may_run and not self._is_stopped():
            return frozenset({self._node0.name})
        if self._pool.cancel.thrown or wait((self._supervisor_call,), CANCEL_CLEANUP).not_done:
            self._cancel.throw()
        wait((self._supervisor_call,))
        wait((self._agent_uploads,))
        rundir = shlex.quote(self._plan.rundir)
        return clean_up((self._node0, *self._others), walk_to(self._plan.rundir) + f"rm -rf {rundir}", self._pool)

    def _call_supervisor(self) -> Reply:
        """Run the supervisor on node0, and return its reply when it exits. Runs in a background thread."""
        plan = self._plan
        archive = make_tar([*self._agent_files, *_planned_files(plan, is_everywhere=False)])
        script = unpack_script(plan, self._retention, f"head -c {len(archive)} |")
        script += program_line(plan, "run.supervisor", plan.node0, *_words_for_ps(plan))
        return call_line(
            self._pool.session(self._node0),
            Command(script, f"run the supervisor in {plan.rundir}"),
            archive,
            Listen(plan.rundir, plan.hosts[0].address, self._token)._asdict(),
            stdin=self._stdin,
            on_event=self._on_event,
            on_frame=lambda frame: self._on_frame(frame),
            deadline=Deadline(STEP_SILENCE, self._cancel, is_of_silence=True),
        )

    def _on_event(self, event: Mapping[str, Any]) -> None:
        for name, future in (("listening", self._listening), ("started", self._started)):
            if event.get("event") == name and not future.done():
                future.set_result(event)

    def _wait_for(self, event: Future[Mapping[str, Any]]) -> Mapping[str, Any]:
        """Wait for an event of the supervisor.

        Raises a StartError if the supervisor exits, is lost, or does not send the event in time.
        """
        with self._pool.cancel.waking(self._cancel.throw):
            futures: tuple[Future[Any], ...] = (event, self._supervisor_call)
            wait(futures, PATIENCE, FIRST_COMPLETED)
            is_late = not (event.done() or self._supervisor_call.done())
            if is_late:
                self._cancel.throw()
                wait((self._supervisor_call,))
        if event.done():
            return event.result()
        try:
            if is_late:
                raise TimedOut(f"the supervisor did not start within {PATIENCE:g} s")
            self._supervisor_call.result()
            raise HostError("the supervisor ended before it had started the run")
        except HostError as error:
            raise StartError(self._failure_of_supervisor(error)) from None

    def _failure_of_supervisor(self, error: HostError) -> StartFailure:
        """Return the failure to report. If the run may have started nevertheless, try to stop it first."""
        failure = StartFailure.of_host(self._plan.node0, error)
        is_connection_lost = isinstance(error, (AgentEnded, Cancelled, TimedOut, Unreachable))
        if isinstance(error, Unreachable):
            self._pool.forget(self._node0)
        if not self._may_run or not is_connection_lost or self._is_stopped():
            return failure
        fix = Fix(f"it may run: `ipexctl ps` shows it, `ipexctl stop {self._plan.id}` stops it")
        return replace(failure, fix=fix, is_unsure=True)

    def _is_stopped(self) -> bool:
        """Stop the run if it has started although the call failed. True if it certainly does not run."""
        rundir, node0 = self._plan.rundir, self._node0
        until = time.monotonic() + START_CONFIRMED
        find_status = Command(f"test -e {shlex.quote(rundir)}/status.json", "look for the record")
        try:
            session = self._pool.session(node0)
            # The call may have been cancelled: the session must work in spite of that, with a limit of its own.
            session.cancel, session.timeout = None, 15.0
            while not capture(session, find_status, timeout=10).ended.ok:
                if time.monotonic() > until:  # without status.json, the supervisor has not received its job
                    return True
                time.sleep(0.3)
            return stop(session, self._record, wait=10).status.is_over
        except (HostError, UserError):
            return False

    @contextmanager
    def stopped_on_failure(self, on_note: Callable[[str], None]) -> Iterator[None]:
        """Stop the started run if the block fails before this call has shown anything of it: no call may end with an
        error while a rank that it started lives. A run that was shown goes on, as it does without a reader of stdout.
        """
        with ExitStack() as at_end:
            at_end.push(lambda kind, *_: self.end_or_tell(on_note) if kind not in (None, OutputError) else None)
            yield

    def end_or_tell(self, on_note: Callable[[str], None]) -> None:
        """Stop the run unless this call has shown something of it; say so if it may go on."""
        self.leave()
        if self.is_shown or not self._is_stopped():
            on_note(Fix(f"run {self._plan.id} may still be running: `ipexctl stop {self._plan.id}`"))


def _job_files(plan: Plan, job: HomeJob | None) -> list[File]:
    """Return the file with the job of the ranks in a home.

    A home without ranks has no job. But if its hosts may replace lost ones, and no starter process shows there that the
    run is not over, it gets an empty file that shows this.
    """
    if job is not None:
        return [File("job.json", json.dumps(job._asdict()).encode())]
    return [File(RESERVED_FILE, b"")] if plan.has_pool and not plan.has_starters else []


def _words_for_ps(plan: Plan) -> list[str]:
    """Return arguments for the supervisor that it ignores: other accounts read them from its command line.

    `ipexctl ps -H` shows these accounts when the run will end and what it is.
    """
    time_limit = plan.asked.time_limit
    words = [] if time_limit is None else [f"limit={math.ceil(time_limit)}"]
    call = json.dumps({"script": plan.asked.script[:80], "tag": plan.asked.tag or ""})
    escaped = call.replace('\\"', "\\u0022")  # facts/probe/runs.sh cannot parse a quote inside a text
    return [*words, f"call={escaped}"]


def bytecode_path(plan: Plan) -> str:
    """Return the path of a copy of the agent that contains bytecode; empty if the Python's version is unknown.

    An earlier run of this version of ipexctl may have left the copy in the home.
    """
    if not plan.python_version:
        return ""
    digest = hashlib.sha256(agent_zip(*_agent_folders(plan))).hexdigest()
    return f"{plan.home}/agent/{digest[:16]}.cpython-{plan.python_version.replace('.', '')}.zip"


def unpack_script(plan: Plan, retention: RetentionLimits | None = None, source: str = "") -> str:
    """Return the sh script that creates the run's directory in a home, unpacks its files there, and prunes older runs.

    `source`: what comes before `tar` in the pipe; without it, tar reads all of stdin. It fails if another account could
    change the home, so that nothing runs from there.
    """
    rundir, bytecode = shlex.quote(plan.rundir), bytecode_path(plan)
    use_bytecode = ""
    if bytecode:  # without the copy, each rank spends 40 ms on compiling the agent
        origin, target = shlex.quote(bytecode), shlex.quote(f"{plan.rundir}/agent.zip")
        use_bytecode = f"cp {origin} {target}.part 2>/dev/null && mv -f {target}.part {target} || rm -f {target}.part"
    script = use_home_or_fail(plan.home, "runs")
    # Ranks write bytecode of the hooks into __pycache__: made here, it is private, too.
    directories = ("hooks", IN_RANK) if _needs_in_rank(plan) else ("hooks",)
    caches = " && ".join(f"make_private {rundir}/{directory}/__pycache__" for directory in directories)
    # The umask is set in a subshell: the supervisor, and so node0's ranks, must keep the umask of the login.
    script += f"(umask 077; {caches} && {source} tar -xpof - -C {rundir} || exit 1\n"
    # Retention may run on another host with this home, where it cannot see these ranks; `machine` says where they are.
    script += f"uname -n >{rundir}/machine\n{use_bytecode}\n:) || exit 1\n"
    if retention is not None:
        script += background_prune(retention, plan.home, plan.python, plan.id) + "\n"
    return script


def _needs_in_rank(plan: Plan) -> bool:
    """True if the ranks import the package `inrank/`."""
    return plan.adds_up or plan.asked.meter or plan.world_size > 1


def _raise_first(outcomes: Iterable[Outcome[Host, None]]) -> None:
    """Raise the first failure as a StartError that names all hosts that failed."""
    failures = [StartFailure.of_host(done.host.name, done.error) for done in outcomes if done.error is not None]
    if failures:
        hosts = tuple(name for failure in failures for name in failure.hosts)
        raise StartError(replace(failures[0], hosts=hosts))


def clean_up(hosts: Sequence[Host], script: str, pool: SessionPool) -> frozenset[str]:
    """Run an sh script on the hosts, even if the call was cancelled. Return the hosts that could not be reached, or
    whose session failed; the script's exit status is not looked at."""

    def run(host: Host) -> None:
        if pool.session(host).is_stuck:
            raise Unreachable("its login does not end")
        capture(pool.session(host), Command(script, "clean up"), deadline=Deadline(CANCEL_CLEANUP))

    with cleaning("files"):
        outcomes = list(fan_out(hosts, run, forks=max(1, len(hosts)), cancel=Cancel()))
    return frozenset(done.host.name for done in outcomes if done.error is not None)


def remove_job_files(hosts: Sequence[Host], record: RunRecord, pool: SessionPool) -> None:
    """Remove token and secrets of a run that failed or was stopped before all ranks had read, and so removed, them."""
    names = hosts_with_job_files(record, read_final_status(RunRegistry().directory / record.id))
    rundir = shlex.quote(record.rundir)
    clean_up([host for host in hosts if host.name in names], f"rm -f {rundir}/job.json {rundir}/job.*.json", pool)


def hosts_with_job_files(record: RunRecord, final_status: RunStatus | None) -> frozenset[str]:
    """Return the hosts that may still have the job file. Pure.

    A rank wrapper removes the file once it has reached the supervisor. Such a host is not returned, because connecting
    to a host that was cut off takes the whole timeout. The file stays for a restart if the wrapper was killed, and on
    all hosts if the attempt was stopped. `final_status`: None if it is unknown; then all hosts may have the file.
    """
    if final_status is None:
        return frozenset(record.hosts)
    can_restart = final_status.attempt < final_status.restarts
    was_stopped = can_restart and final_status.state == "stopped"

    def may_be_left(rank: RankStatus) -> bool:
        was_killed = can_restart and rank.state == "lost"
        return was_stopped or rank.wrapper is None or was_killed

    return frozenset(record.hosts) & {rank.host for rank in final_status.ranks if may_be_left(rank)}


def _agent_files(plan: Plan) -> list[File]:
    """Return what every home gets: the agent, the hooks of the ranks, and planned files.

    It is this run's own copy, so an upgrade of ipexctl does not change a running training.
    """
    hooks = [File(name, script_text(module).encode()) for name, module in HOOKS.items()]
    agent = File("agent.zip", agent_zip(*_agent_folders(plan)))
    in_rank = in_rank_files() if _needs_in_rank(plan) else ()
    return [agent, *hooks, *in_rank, *_planned_files(plan, is_everywhere=True)]


def _planned_files(plan: Plan, *, is_everywhere: bool) -> list[File]:
    """Return the files of the plan that every home gets, or those that only node0's home gets."""
    return [
        File(file.name, file.text.encode(), file.mode) for file in plan.files if file.is_everywhere == is_everywhere
    ]


def in_rank_files() -> list[File]:
    """Return the package `inrank/` under the name by which the hooks import it."""
    return [File(f"{IN_RANK}/{path.name}", path.read_bytes()) for path in sorted(_IN_RANK_SOURCE.glob("*.py"))]


def _agent_folders(plan: Plan) -> tuple[str, ...]:
    """Return the folders of the agent that the run needs; `files` only if hosts exchange files during the run."""
    return ("run", "files") if plan.exchanged or plan.has_pool else ("run",)


def make_tar(files: Sequence[File]) -> bytes:
    """Return a tar archive of the files, with their modes, and with now as their time."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for file in files:
            member = tarfile.TarInfo(file.name)
            member.size, member.mode, member.mtime = len(file.content), file.mode, int(time.time())
            archive.addfile(member, io.BytesIO(file.content))
    return data.getvalue()
