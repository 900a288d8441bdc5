"""Find the run that a word means: an ID, a unique part of one, `last` or `last:all`.

There is one rule for every command, playbooks and Python: first the records of this machine, then the homes on the
hosts of the call, in one round trip to each. Hosts that the call names come before the records. What a home says is
checked, as is any answer of a host. Nothing of a run that others began is kept on this machine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import NamedTuple, TypeAlias

from ipexctl.errors import CallError, IpexctlError, UserError
from ipexctl.facts.live_runs import RUN_ID
from ipexctl.found_files import account_name
from ipexctl.homes.registry import LAST, RunRecord, RunRegistry, UnreadableRecord, record_of
from ipexctl.hosts.host import Host, check_host, quote
from ipexctl.hosts.nodeset import fold
from ipexctl.limits import PATIENCE
from ipexctl.node.common.fix import Fix
from ipexctl.node.common.json_records import check_type
from ipexctl.node.common.plan import Plan, read_outline
from ipexctl.node.run.runs import FindRequest, meant_runs
from ipexctl.option_declaration import NO_OPTIONS, CallOptions
from ipexctl.projects.root import ProjectHere
from ipexctl.remote.connector import OpenHosts
from ipexctl.remote.node_call import AgentPlace, call
from ipexctl.remote.outcome import Cancelled, HostError, Unreachable
from ipexctl.remote.reply import Reply
from ipexctl.remote.session import Session

OpensHosts: TypeAlias = Callable[[], AbstractContextManager[OpenHosts] | None]


class NoSuchRun(UserError):
    """A word means no run."""


def find_runs(
    words: Sequence[str], open_hosts: OpensHosts = lambda: None, *, hosts_first: bool = False
) -> list[RunRecord]:
    """Return the runs that the words mean, in their order. Raises a UserError or a CallError if a word means no run, or
    several.

    `open_hosts` returns None if nothing names hosts. `hosts_first`: the call names hosts, so look there first.
    """
    own = OwnRuns.read()
    records = {word: None if hosts_first else own.choose(word) for word in words}
    not_found, on_hosts = [word for word, record in records.items() if record is None], None
    if not_found:
        try:
            if (opening := open_hosts()) is not None:
                with opening as opened:
                    records |= {word: own.with_own(_find_on_hosts(word, opened), opened) for word in not_found}
        except IpexctlError as error:
            # Hosts that do not answer hide no run whose record is here.
            records |= {word: own.records.get(word) for word in not_found}
            on_hosts = error
    for word in not_found:
        if records[word] is None:
            raise own.error(word, on_hosts, hosts_first=hosts_first)
    return [record for word in words if (record := records[word]) is not None]


class OwnRuns(NamedTuple):
    """The records of this machine, the newest last."""

    records: dict[str, RunRecord]
    """ID → record."""
    damaged: Sequence[UnreadableRecord] = ()
    last_sequence: int = 0
    """Number of the newest run that was started here, even if its record is damaged."""

    @classmethod
    def read(cls, registry: RunRegistry | None = None) -> OwnRuns:
        """Read the records."""
        registry = registry or RunRegistry()
        every, damaged = registry.read_records()
        return cls({record.id: record for record in every}, damaged, registry.last_sequence())

    def choose(self, word: str) -> RunRecord | None:
        """Return the run that the word means; None if the records have no such run.

        Raises a UserError for several, or for a record that cannot be read.
        """
        if word in LAST:
            return self._last(word)
        runs = meant_runs(word, [*self.records, *(record.id for record in self.damaged)])
        if len(runs) > 1:
            raise _ambiguous(word, runs, "here")
        for record in self.damaged:
            if record.id in runs:
                raise record
        return self.records[runs[0]] if runs else None

    def _last(self, word: str) -> RunRecord | None:
        """Return the last run, of this project or of all; None without one.

        Raises the error of a damaged record that may be newer.
        """
        here, all_records = ProjectHere.find(), [*self.records.values()]
        records = [
            record for record in all_records if word != "last" or here.has(record.typed.directory, record.project)
        ]
        began = records[-1].started if records else 0.0
        is_newest_lost = not all_records or all_records[-1].sequence < self.last_sequence
        lost = [record for record in self.damaged if is_newest_lost or record.written > began]
        if lost:
            raise max(lost, key=lambda record: record.written)
        return records[-1] if records else None

    def error(self, word: str, on_hosts: IpexctlError | None, *, hosts_first: bool) -> IpexctlError:
        """Return why a word means no run, with what to type.

        `on_hosts`: the reason on the hosts; None if none were asked.
        """
        newest = [*reversed(self.records)]
        if not newest:
            own = NoSuchRun(
                "no run was started from the control machine yet", fix=Fix("`ipexctl run --help` says how to start one")
            )
        elif word in LAST:
            own = NoSuchRun(
                "no run of the project in this directory was started from the control machine yet",
                fix=Fix(f"`ipexctl ps` lists all runs; ``last:all`` is the newest of them, {newest[0]}"),
            )
        else:
            some = Fix(f"`ipexctl ps` shows them; the newest: {', '.join(newest[:3])}")
            own = NoSuchRun(f"there is no run {quote(word)}", fix=some)
        if on_hosts is not None and not hosts_first and isinstance(on_hosts, (NoSuchRun, CallError)):
            on_hosts.message = f"{own.message}; {on_hosts.message}"
        return on_hosts or own

    def with_own(self, found_record: RunRecord, opened: OpenHosts) -> RunRecord:
        """Return the record of this machine if there is one, with the call's way to its hosts.

        A host says which run it has, but not where the other hosts of the run are.
        """
        own_record = self.records.get(found_record.id)
        if own_record is None:
            return found_record
        way = {name: getattr(found_record, name) for name in ("host_keys", "connect_timeout", "transport_name")}
        known = {key: host for host in opened.hosts for key in (host.name, host.address)}

        def reached(host: Host) -> Host:
            """Return the host, reached as the call reaches it."""
            return replace(known.get(host.address) or known.get(host.name) or host, name=host.name)

        return replace(own_record, node0=reached(own_record.node0), nodes=tuple(map(reached, own_record.nodes)), **way)


def _ambiguous(word: str, runs: Sequence[str], where: str) -> UserError:
    """Return the error for a word that means several runs."""
    some = ", ".join(runs[-4:]) + (" …" if len(runs) > 4 else "")
    return UserError(f"{len(runs)} runs {where} have {quote(word)} in their id: {some}", fix="use more of the id")


class RunInHome(NamedTuple):
    """What one home says about the run that a word means."""

    names: tuple[str, ...]
    """IDs of the runs that the word may mean."""
    plan: Plan | None = None
    """None unless the home has exactly one such run."""
    at: float = 0.0
    """When the plan was made, in seconds since the epoch."""
    is_node0: bool | None = None
    """True on the machine of the supervisor; None on a host without the run's status."""


def _find_on_hosts(word: str, opened: OpenHosts) -> RunRecord:
    """Return the run that the word means on these hosts; `last` is the newest run of their homes."""
    hosts, pool, home = opened.hosts, opened.pool, opened.home
    request: FindRequest = {"home": home, "word": "" if word in LAST else word}

    def look(_: Host, session: Session) -> RunInHome:
        """Ask one home."""
        return _read(call(session, "run.runs", "find", request, AgentPlace("", home), silence=PATIENCE))

    outcomes = {outcome.host: outcome for outcome in pool.each(hosts, look)}
    if pool.cancel.thrown:
        raise Cancelled("stopped")
    homes = {host.name: done for host in hosts if (done := outcomes[host].result) is not None}
    errors = {host.name: error for host in hosts if (error := outcomes[host].error) is not None}
    try:
        node0, plan, at = choose_run(word, homes, errors, opened.options)
    except IpexctlError as error:
        raise _of_another_account(word, opened) or error from None
    return _record(next(host for host in hosts if host.name == node0), plan, at, opened)


def _of_another_account(word: str, opened: OpenHosts) -> UserError | None:
    """Return an error that names the live runs of other accounts on these hosts that the word may mean; None if it
    means none.
    """
    from ipexctl.run.hosts_now import hosts_now  # with the planner's sentences, for this answer alone
    from ipexctl.run.start.exclusive import inspect_hosts

    own = {host.user or account_name() for host in opened.hosts}
    seen = inspect_hosts(opened.hosts, opened.pool, timeout=opened.timeout)
    now = hosts_now({done.host.name: done.result for done in seen if done.result is not None})
    runs = {entry.run.id: entry.run for entry in now.runs if entry.run.account not in own}
    meant = [*runs] if word in LAST else meant_runs(word, [*runs])
    if not meant:
        return None
    names = "; ".join(f"run {run} on {fold(runs[run].hosts)} is of account {runs[run].account}" for run in meant[:4])
    return UserError(
        f"{names}; its record is in that account's home, which this account can't read",
        fix=Fix("see what is known of it: `ipexctl ps`; its owner can stop it"),
    )


def _read(reply: Reply) -> RunInHome:
    """Return what a home says.

    Raises a HostError if an ID or the name of a host cannot be one: both become parts of paths here.
    """
    document, at, is_node0 = reply.get("plan"), reply.get("at"), reply.get("is_node0")
    names = tuple(name for name in map(str, reply.get("names") or ()) if RUN_ID.fullmatch(name))
    if document is None:
        return RunInHome(names)
    try:
        plan = read_outline(document)
        for host in plan.names:
            check_host(host)
    except (ValueError, UserError):
        raise HostError("its record of the run can't be read") from None
    if not RUN_ID.fullmatch(plan.id):
        raise HostError("its record of the run has a wrong id")
    return RunInHome(names, plan, check_type(float, at, "at"), is_node0 if isinstance(is_node0, bool) else None)


def choose_run(
    word: str, answers: Mapping[str, RunInHome], errors: Mapping[str, HostError], options: CallOptions = NO_OPTIONS
) -> tuple[str, Plan, float]:
    """Return node0, the plan, and when it was made. Raises a UserError or a CallError. Pure.

    `answers`: host → what it says; `errors`: host → why it did not answer.
    """
    if word in LAST:
        newest = max((home.at for home in answers.values()), default=0.0)
        answers = {name: home for name, home in answers.items() if home.at >= newest}
    names = sorted({run for home in answers.values() for run in home.names})
    names = names if word in LAST else meant_runs(word, names)
    if len(names) > 1:
        raise _ambiguous(word, names, "on these hosts")
    run = "".join(names)
    homes = {name: (home, home.plan) for name, home in answers.items() if home.plan is not None and home.plan.id == run}
    if not homes and errors:
        name, error = next(iter(errors.items()))
        code = 3 if isinstance(error, Unreachable) else 1
        raise CallError(f"{name}: {error.reason}", fix=error.advice, exit_code=code)
    if not homes:
        what = "no run" if word in LAST else f"no run {quote(word)}"
        reason = f"there is {what} in the home of this account on {fold(tuple(answers))}"
        hint = options.apply(Fix("`ipexctl ps` shows what runs there"))
        raise NoSuchRun(reason, fix=Fix("`ipexctl run --help` says how to start one") if word in LAST else hint)
    node0 = max(
        homes,
        key=lambda name: (homes[name][0].is_node0 is not None, homes[name][0].is_node0, homes[name][1].node0 == name),
    )
    home, plan = homes[node0]
    if home.is_node0 is None:
        reason = f"run {run} has its record on {plan.node0}, which is none of these hosts or does not answer"
        raise UserError(reason, fix=f"add it: --hosts {plan.node0}")
    return node0, plan, home.at


def _record(node0: Host, plan: Plan, started: float, opened: OpenHosts) -> RunRecord:
    """Return the record of a run that was found on the hosts."""
    connect = opened.pool.connector.options
    known = {address: host for host in opened.hosts for address in (host.address, host.name)}
    nodes = [replace(node0, name=plan.node0)]
    for planned in plan.all_hosts:
        host = known.get(planned.name) or known.get(planned.address)  # no host that only the plan names is contacted
        if host is not None and planned.name != plan.node0:
            nodes.append(replace(host, name=planned.name))
    return replace(record_of(plan, nodes, connect, opened.options, started), is_kept=False)
