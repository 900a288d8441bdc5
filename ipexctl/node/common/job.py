"""What starts a run besides its plan: the secret `StoreJob`, two requests to the supervisor, one to a host starter.

The control machine makes them (`run/start/begin.py`). Readers check them by their types. A job has the run's token and
secrets: its file has mode 0600, and its repr shows only the directory. This is a module of its own because each rank
imports it, and the other records take 5 ms.
"""

from __future__ import annotations

from typing import Mapping, NamedTuple, Optional

from ipexctl.node.common.json_records import decode
from ipexctl.node.common.plan import Plan  # noqa: TC001  # `decode` looks it up

Variables = Mapping[str, Optional[str]]


class Master(NamedTuple):
    """MASTER_ADDR and MASTER_PORT of the ranks."""

    addr: str
    port: int | None = None
    """None until the supervisor picks one."""


class StoreJob(NamedTuple):
    """job.json of a store, removed once its ranks have read it. All else is in plan.json beside it."""

    rundir: str
    token: str
    """64 hex digits; rank wrapper and supervisor authenticate each other with it."""
    secrets: Mapping[str, str] = {}
    """Variable → value, empty in the plan."""
    here: tuple[str, ...] = ()
    """Hosts that share this file."""
    hosts: tuple[str, ...] = ()
    """Hosts of the attempt; empty for those of the plan."""
    attempt: int | None = None
    """Attempt of this job; None if all attempts have the same ranks."""
    bytecode: str = ""
    """Where the run leaves its agent with bytecode, for faster starts later."""

    def __repr__(self) -> str:
        return f"StoreJob({self.rundir!r})"  # no secrets in logs


class Listen(NamedTuple):
    """The supervisor's first line of stdin. It answers once it listens."""

    rundir: str
    bind: str
    token: str

    def __repr__(self) -> str:
        return f"Listen({self.rundir!r})"  # no secrets in logs


class ConnectivityRecord(NamedTuple):
    """A passed check of the connections between nodes; on node0 in `runs/` after a successful run."""

    key: str
    checked: float
    no_logins: str = ""
    """Why node0 could not log in to the others; the ranks were then started without logins."""
    logins_tried: float = 0.0
    """When that was found, in seconds since the boot."""


CONNECTIVITY_FILE = ".connectivity.json"


class Start(NamedTuple):
    """The supervisor's second line of stdin."""

    plan: Plan
    job: StoreJob
    connectivity: ConnectivityRecord | None = None
    notify: str = ""
    """Line for sh at the end of the run, which may have a token; or empty."""

    def __repr__(self) -> str:
        return f"Start({self.plan.id!r})"  # no secrets in logs


class HostStarterRequest(NamedTuple):
    """A host starter's line of stdin (`run/host_starter.py`)."""

    rundir: str
    host: str
    argv: tuple[str, ...]
    """Words of a rank wrapper, before its number and addresses."""
    token: str
    local: str
    address: str
    """The supervisor's address for the starter and its ranks; `local` is for ranks on node0."""
    port: int
    rejoins: bool = False
    """True to wait for a lost supervisor: the host may rejoin the run."""

    def __repr__(self) -> str:
        return f"HostStarterRequest({self.host})"  # no secrets in logs


def job_file(attempt: int) -> str:
    """Name of an attempt's job file. A late rank wrapper removes only its own attempt's."""
    return f"job.{attempt}.json" if attempt else "job.json"


def jobs_of(plan: Plan, job: StoreJob) -> Mapping[str, StoreJob]:
    """Store → its job, without stores where no rank is planned."""
    here: dict[str, list[str]] = {}
    for host in plan.hosts:
        here.setdefault(plan.stores[host.name], []).append(host.name)
    return {store: job._replace(here=tuple(names)) for store, names in here.items()}


def read_job(document: object) -> StoreJob:
    job = decode(StoreJob, document, "the job")
    if not (job.rundir and job.token and job.here):
        raise ValueError("the job has no rundir, token or host")
    return job
