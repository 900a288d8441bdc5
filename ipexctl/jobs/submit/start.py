"""Starting a run: the agent and job files to the nodes, the supervisor on node0, then the word to go.

Token and secrets travel by stdin into files of mode 0600, never on a command line, never over a disk of ours.
"""

from __future__ import annotations

import io
import json
import secrets
import shlex
import tarfile
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO, Final, cast

from ipexctl.errors import UserError
from ipexctl.jobs.events import FINAL
from ipexctl.jobs.retention import background_prune
from ipexctl.remote.command import Command
from ipexctl.remote.node_call import agent_zip, call, call_line, script_text
from ipexctl.remote.outcome import Cancelled, HostError, TimedOut, Unreachable
from ipexctl.remote.session import capture
from ipexctl.remote.stdin_queue import StdinQueue

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ipexctl.facts.system import Logind
    from ipexctl.hosts.host import Host
    from ipexctl.jobs.retention import RetentionLimits
    from ipexctl.jobs.submit.failure import PreflightFailure
    from ipexctl.remote.cancel import Cancel
    from ipexctl.remote.session import Session
    from ipexctl.remote.session_pool import SessionPool

HOOKS: Final = {"shim/sitecustomize.py": "run.sitecustomize", "shim/ipexctl_shim.py": "run.rank_hooks"}
"""Files of a run's directory that the ranks' own Pythons import: a directory with nothing else in it."""
_START_TIME: Final = 60.0
_UNHEARD: Final = 6.0
"""Seconds for a supervisor that was told to go to say in its record that it has."""
_LONGEST_START: Final = 120.0
"""With the answer of `may_go`, which may be waiting for hosts that don't answer."""


@dataclass(frozen=True, slots=True)
class File:
    """A small file for a run's directory."""

    name: str
    content: bytes = field(repr=False)
    mode: int = 0o600


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """All that starting a run needs to know; `launch/` has decided it."""

    id: str
    home: str
    """Absolute, the same on every node."""
    python: str
    """What our scripts run under on every node, 3.8 or newer."""
    bind: str
    """The address of node0 the ranks reach it by; 127.0.0.1 where there is but one host."""
    argv: Sequence[str]
    launcher_env: Mapping[str, str | None] = field(hash=False)
    jobs: Mapping[str, Mapping[str, Any]] = field(hash=False, repr=False)
    """Host name → `launch.plan.job_of`, secrets and all. The first is node0."""
    stores: Mapping[str, str | None] = field(default_factory=dict, hash=False)
    """Host name → its home's token: hosts that share a home share a job file."""
    files: Sequence[File] = ()
    """For node0: hostfile, plan.json."""
    cwd: str | None = None
    """Where mpirun is started; the run's directory by default. The ranks' own is in their jobs."""
    setup: str | None = None
    """A file on the nodes that bash sources, for mpirun and for the ranks."""
    script: str = ""
    env: str = ""
    time_limit: float | None = None
    restarts: int = 0
    hang_after: float | None = None
    grace: float | None = None
    begin_within: float | None = None
    ports: tuple[int, int] | None = None
    """The supervisor's port is one of these, where a firewall has a range."""
    addresses: Sequence[str] = ()
    """The addresses of the planned hosts: their connections come before a stranger's."""
    logind: Logind | None = None
    """Node0's."""
    keep: RetentionLimits | None = None
    """How long older runs are kept there; none is taken away without."""

    @property
    def rundir(self) -> str:
        return f"{self.home}/runs/{self.id}"


@dataclass(frozen=True, slots=True)
class SupervisorStarted:
    """The run is on its own now."""

    pid: int
    port: int
    master_port: int
    notes: tuple[str, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class StartFailure:
    """What kept the run from starting, by host; nothing of it runs anywhere, as far as that is known."""

    errors: Mapping[str, HostError] = field(hash=False)
    refused: PreflightFailure | None = None
    """What was said against it when only the word to go was missing."""
    unsure: bool = False
    """It was told to go, and nobody knows whether it did: it may run."""


def _no_objection() -> None:
    """It may go."""


def start(
    hosts: Sequence[Host],
    spec: LaunchSpec,
    pool: SessionPool,
    may_go: Callable[[], PreflightFailure | None] = _no_objection,
) -> SupervisorStarted | StartFailure:
    """Bring all to the nodes and say go. The first host is node0; hosts without a job are left alone.

    `may_go` is asked when only the word is missing; until then no mpirun has been started.
    """
    began = time.monotonic()
    node0, token = hosts[0], secrets.token_hex(32)
    told, errors = StdinQueue(), dict[str, HostError]()
    port, went = 0, False
    refused: PreflightFailure | None = None

    def listening(event: dict[str, Any]) -> None:
        nonlocal port, went, refused
        if event.get("event") != "listening":
            return
        port = int(event["port"])
        errors.update(_upload_jobs(hosts, spec, token, port, pool))
        refused = None if errors else may_go()
        if errors or refused:
            told.end()
        else:
            went = True
            told.send(json.dumps(_go(hosts, spec)).encode() + b"\n")
            told.end()

    try:
        files = _packed([*_agent(), *spec.files])
        answer = call_line(
            pool.session(node0),
            _supervisor(spec, len(files)),
            files,
            {
                "id": spec.id,
                "rundir": spec.rundir,
                "bind": spec.bind,
                "token": token,
                "host": node0.name,
                "ports": spec.ports,
            },
            stdin=cast("BinaryIO", told),
            on_event=listening,
            timeout=_LONGEST_START,
            cancel=pool.cancel,
        )
    except HostError as error:
        told.end()
        began_maybe = went and isinstance(error, (Cancelled, TimedOut, Unreachable))
        unsure = began_maybe and not _stop_unconfirmed(node0, spec, pool, error)
        if not began_maybe:
            _remove_files(hosts, spec, pool)
        return StartFailure(errors or {node0.name: error}, refused, unsure)
    except UserError:
        told.end()
        _remove_files(hosts, spec, pool)
        raise
    return SupervisorStarted(
        int(answer["pid"]), port, int(answer["master_port"]), _notes(node0, spec), time.monotonic() - began
    )


def _supervisor(spec: LaunchSpec, size: int) -> Command:
    """Its files come first on stdin. Out of the session's own scope where logind ends that with the session."""
    unpack = f"{_unpack(spec.rundir, f'head -c {size} |')} || exit 1\n"
    words = shlex.join([spec.python, "-I", f"{spec.rundir}/agent.zip", "run.supervisor"])
    label = f"start the supervisor in {spec.rundir}"
    if spec.logind is not None and spec.logind.kill_user_processes:
        scope = "systemd-run --user --scope --quiet"
        return Command(
            f"{unpack}if {scope} true </dev/null >/dev/null 2>&1; then exec {scope} {words}; fi; exec {words}", label
        )
    return Command(f"{unpack}exec {words}", label)


def _notes(node0: Host, spec: LaunchSpec) -> tuple[str, ...]:
    logind = spec.logind
    if logind is None or not logind.kill_user_processes or logind.linger:
        return ()
    said = f"{node0.name}: logind there ends an account's processes at its last logout, and the run with them"
    return (f"{said}; `loginctl enable-linger` there, once, lets it go on",)


def _go(hosts: Sequence[Host], spec: LaunchSpec) -> dict[str, Any]:
    ranks = [
        {"rank": int(rank), "host": host.name, "store": _store(spec, host)}
        for host in hosts
        for rank in spec.jobs.get(host.name, {}).get("ranks", {})
    ]
    any_job = next(iter(spec.jobs.values()))
    return {
        "go": True,
        "argv": list(spec.argv),
        "environ": dict(spec.launcher_env),
        "cwd": spec.cwd,
        "setup": spec.setup,
        "nodes": len({rank["host"] for rank in ranks}),
        "world_size": any_job["world_size"],
        "addresses": list(spec.addresses),
        "ranks": sorted(ranks, key=lambda rank: int(str(rank["rank"]))),
        "master": dict(any_job["master"]),
        "script": spec.script,
        "env": spec.env,
        "time_limit": spec.time_limit,
        "grace": spec.grace,
        "begin_within": spec.begin_within,
        "restarts": spec.restarts,
        "hang_after": spec.hang_after,
    }


def _store(spec: LaunchSpec, host: Host) -> str:
    return spec.stores.get(host.name) or f"alone:{host.name}"


def _groups(hosts: Sequence[Host], spec: LaunchSpec) -> dict[str, list[Host]]:
    """The hosts that have ranks, by the home they share."""
    groups: dict[str, list[Host]] = {}
    for host in hosts:
        if host.name in spec.jobs:
            groups.setdefault(_store(spec, host), []).append(host)
    return groups


def merged(jobs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One job file for hosts that share a home: what differs between them goes to their ranks."""
    if len(jobs) == 1:
        return dict(jobs[0])
    ranks: dict[str, Any] = {}
    prepended = {name for job in jobs for name in job.get("prepended", ())}
    for job in jobs:
        of_host = {**dict.fromkeys(job.get("unset", ())), **job.get("variables", {})}
        for rank, plan in job["ranks"].items():
            ranks[rank] = {**plan, "variables": {**of_host, **plan.get("variables", {})}}
    return {**jobs[0], "variables": {}, "unset": [], "prepended": sorted(prepended), "ranks": ranks}


def _upload_jobs(
    hosts: Sequence[Host], spec: LaunchSpec, token: str, port: int, pool: SessionPool
) -> dict[str, HostError]:
    groups = _groups(hosts, spec)
    firsts = [group[0] for group in groups.values()]
    keep = spec.keep
    behind = background_prune(keep, spec.home, spec.python, spec.id) if keep is not None else ""

    def bring(host: Host, session: Session) -> None:
        group = groups[_store(spec, host)]
        job = {
            **merged([spec.jobs[each.name] for each in group]),
            "id": spec.id,
            "token": token,
            "supervisor": {"address": spec.bind, "port": port},
            "home": spec.home,
            "rundir": spec.rundir,
            "setup": spec.setup,
        }
        agent = [] if host == hosts[0] else _agent()  # the supervisor has brought node0's, and runs from it
        _put(session, spec.rundir, [*agent, File("job.json", json.dumps(job).encode())], pool.cancel, behind)

    done = pool.each(firsts, bring)
    return {each.host.name: each.error for each in done if each.error is not None}


def _stop_unconfirmed(node0: Host, spec: LaunchSpec, pool: SessionPool, error: HostError) -> bool:
    """It was told to go and we don't know whether it has: it is stopped. False where that could not be seen to."""
    if isinstance(error, Unreachable) and (lost := pool.detach(node0)) is not None:
        lost.close()
    request = {"home": spec.home, "id": spec.id, "wait": 10}
    until = time.monotonic() + _UNHEARD
    record = Command(f"test -e {shlex.quote(spec.rundir)}/status.json", "look for the record")
    try:
        session = pool.session(node0)
        while not capture(session, record, timeout=10).ended.ok:
            if time.monotonic() > until:  # it never heard the word
                return True
            time.sleep(0.3)
        answer = call(session, "run.runs", "stop", request, python=spec.python, label="stop the run", timeout=15)
    except HostError:
        return False
    return answer["status"]["state"] in FINAL


def _remove_files(hosts: Sequence[Host], spec: LaunchSpec, pool: SessionPool) -> None:
    """What a run that never started has left; as far as the hosts answer, and even where we were stopped."""
    script = f"rm -rf {shlex.quote(spec.rundir)}"

    def clean(host: Host) -> None:
        try:
            capture(pool.session(host), Command(script, "clean up"), timeout=5)
        except HostError:
            return

    threads = [threading.Thread(target=clean, args=(group[0],), daemon=True) for group in _groups(hosts, spec).values()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(6)


def _agent() -> list[File]:
    """The run's own copy of the agent: a newer one that comes to the node doesn't touch a run."""
    hooks = [File(name, script_text(module).encode()) for name, module in HOOKS.items()]
    return [File("agent.zip", agent_zip("run")), *hooks]


def _packed(files: Sequence[File]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for file in files:
            node = tarfile.TarInfo(file.name)
            node.size, node.mode, node.mtime = len(file.content), file.mode, int(time.time())
            archive.addfile(node, io.BytesIO(file.content))
    return packed.getvalue()


def _unpack(directory: str, source: str = "") -> str:
    """A directory of the node, made where it isn't, readable by nobody else."""
    where = shlex.quote(directory)
    return f"umask 077; mkdir -p {where} && {source} tar -xpof - -C {where}"


def _put(session: Session, directory: str, files: Sequence[File], cancel: Cancel, behind: str) -> None:
    """Files into such a directory; one round trip. What stands `behind` follows where that went well."""
    command = Command(f"{_unpack(directory)} || exit 1\n{behind}", f"make {directory}")
    result = capture(session, command, stdin=io.BytesIO(_packed(files)), timeout=_START_TIME, cancel=cancel)
    if not result.ended.ok:
        said = result.stderr.decode(errors="replace").strip().splitlines()
        raise HostError(f"could not {command.label}: {said[-1] if said else result.ended}")
