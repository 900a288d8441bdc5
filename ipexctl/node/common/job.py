"""What starts a run besides its plan: the secret `HomeJob`, two requests to the supervisor, one to a host starter.

Each rank imports this module; importing the other records too would take 5 ms.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Mapping, NamedTuple, Optional

from ipexctl.node.common.json_records import check_type, decode, encode
from ipexctl.node.common.plan import Plan, read_plan

if TYPE_CHECKING:
    from ipexctl.node.common.answer import Json

Variables = Mapping[str, Optional[str]]


class Master(NamedTuple):
    addr: str
    port: int | None = None
    """None until the supervisor picks one."""


class HomeJob(NamedTuple):
    """job.json of a home, removed once the ranks of its hosts have read it."""

    rundir: str
    token: str
    """64 hex digits, with which rank wrappers and supervisor authenticate each other."""
    secrets: Mapping[str, str] = {}
    """Variable → value that the plan leaves empty."""
    here: tuple[str, ...] = ()
    """Hosts that share this file."""
    hosts: tuple[str, ...] = ()
    """Hosts of the attempt; empty for the plan's hosts."""
    attempt: int | None = None
    """Attempt that this job is for; None if all attempts have the same ranks."""
    bytecode: str = ""
    """Path where the run saves its agent with bytecode, so that later runs start faster; or empty."""

    def __repr__(self) -> str:
        return f"HomeJob({self.rundir!r})"  # no secrets in logs


class Listen(NamedTuple):
    """First line of the supervisor's stdin."""

    rundir: str
    bind: str
    token: str

    def __repr__(self) -> str:
        return f"Listen({self.rundir!r})"  # no secrets in logs


class ConnectivityRecord(NamedTuple):
    key: str
    checked: float
    """Seconds since node0's boot."""


CONNECTIVITY_FILE = ".connectivity.json"


class Start(NamedTuple):
    plan: Plan
    job: HomeJob
    connectivity: ConnectivityRecord | None = None
    notify: str = ""
    """Line that sh runs at the end of the run; may contain a token; or empty."""

    def __repr__(self) -> str:
        return f"Start({self.plan.id!r})"  # no secrets in logs


def read_start(document: object) -> Start:
    """Decode the second line of the supervisor's stdin; raises a ValueError. `decode` alone would lose what the plan
    has chosen for each option of `rank_options.py`."""
    document = check_type(dict, document, "the request")
    return decode(Start, document, "the request", {"plan": read_plan(document.get("plan"))})


class StarterContact(NamedTuple):
    """How starters of hosts reach the supervisor. STARTERS_FILE has it for a call that follows the run, which begins
    lost starters again."""

    token: str
    local: str
    """The supervisor's address for ranks on node0."""
    port: int
    hosts: tuple[str, ...] = ()
    """Hosts that have lost their starters."""

    def __repr__(self) -> str:
        return f"StarterContact({self.hosts})"  # no secrets in logs


STARTERS_FILE = "starters.json"


class HostStarterRequest(NamedTuple):
    """Line that a host starter reads on stdin (`run/host_starter/`)."""

    rundir: str
    host: str
    argv: tuple[str, ...]
    """Command line of a rank wrapper, without rank number and addresses."""
    contact: StarterContact
    address: str
    """The supervisor's address for the starter and the ranks it starts."""
    rejoins: bool = False
    """True if the host may rejoin the run, so the starter waits for a lost supervisor."""

    def __repr__(self) -> str:
        return f"HostStarterRequest({self.host})"  # no secrets in logs


def starter_request(plan: Plan, host: str, contact: StarterContact) -> Json:
    """Return the line for the starter of a host, as a JSON object."""
    request = HostStarterRequest(plan.rundir, host, plan.argv, contact, plan.hosts[0].address, plan.has_pool)
    document: Json = encode(request)
    return document


def job_file(attempt: int) -> str:
    """Return the name of an attempt's job file. Names differ, so that a late rank wrapper removes only its own
    attempt's file."""
    return f"job.{attempt}.json" if attempt else "job.json"


def jobs_of(plan: Plan, job: HomeJob) -> Mapping[str, HomeJob]:
    """Return store → its job, with the names of the plan's hosts that share it."""
    here: dict[str, list[str]] = {}
    for host in plan.hosts:
        here.setdefault(plan.stores[host.name], []).append(host.name)
    return {home: job._replace(here=tuple(names)) for home, names in here.items()}


def read_job(document: object) -> HomeJob:
    """Decode a job. Raises a ValueError if it is damaged, or lacks its run, its token or its hosts."""
    job = decode(HomeJob, document, "the job")
    if not (job.rundir and job.token and job.here):
        raise ValueError("the job has no rundir, token or host")
    return job
