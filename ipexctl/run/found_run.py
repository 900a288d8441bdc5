"""Finds a run that another control machine or account began, in the homes of its hosts: one round trip to each host.

What a home says is checked as any answer of a host. Nothing of such a run is kept on the control machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from ipexctl.errors import CallError, UserError
from ipexctl.facts.live_runs import RUN_ID
from ipexctl.homes.registry import LAST, RunRecord
from ipexctl.hosts.host import Host, check_host, quote
from ipexctl.hosts.nodeset import fold
from ipexctl.limits import PATIENCE
from ipexctl.node.common.json_records import check_type
from ipexctl.node.common.plan import Plan, read_outline
from ipexctl.node.run.runs import FindRequest
from ipexctl.option_declaration import CallOptions
from ipexctl.remote.connector import ConnectOptions, SessionPool
from ipexctl.remote.node_call import AgentPlace, call
from ipexctl.remote.outcome import Cancelled, HostError, Unreachable
from ipexctl.remote.reply import Reply
from ipexctl.remote.session import Session


class RunInHome(NamedTuple):
    names: tuple[str, ...]
    plan: Plan | None = None
    """None unless the home has exactly one such run."""
    at: float = 0.0
    is_node0: bool | None = None
    """True on the machine of the supervisor; None on a host without the run's status."""


def find_on_hosts(word: str, hosts: Sequence[Host], pool: SessionPool, home: str, options: CallOptions) -> RunRecord:
    """`word`: an id or a unique part of it; `last` is the newest run of these homes."""
    request: FindRequest = {"home": home, "word": "" if word in LAST else word}

    def look(_: Host, session: Session) -> RunInHome:
        return _read(call(session, "run.runs", "find", request, AgentPlace("", home), silence=PATIENCE))

    outcomes = {outcome.host: outcome for outcome in pool.each(hosts, look)}
    if pool.cancel.thrown:
        raise Cancelled("stopped")
    found = {host.name: done for host in hosts if (done := outcomes[host].result) is not None}
    errors = {host.name: error for host in hosts if (error := outcomes[host].error) is not None}
    node0, plan, at = choose_run(word, found, errors)
    return _record(next(host for host in hosts if host.name == node0), plan, at, hosts, pool.connector.options, options)


def _read(reply: Reply) -> RunInHome:
    """Raises a HostError if an id or a host's name can't be one: both become parts of paths here."""
    document, at, is_node0 = reply.get("plan"), reply.get("at"), reply.get("is_node0")
    names = tuple(str(name) for name in reply.get("names") or ())
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


def choose_run(word: str, found: Mapping[str, RunInHome], errors: Mapping[str, HostError]) -> tuple[str, Plan, float]:
    """Node0, the plan, and when it was made. Raises a UserError or a CallError. Pure."""
    if word in LAST:
        newest = max((home.at for home in found.values()), default=0.0)
        found = {name: home for name, home in found.items() if home.at >= newest}
    names = sorted({run for home in found.values() for run in home.names})
    if len(names) > 1 and word not in names:
        some = ", ".join(names[:4]) + (" …" if len(names) > 4 else "")
        reason = f"{len(names)} runs on these hosts have {quote(word)} in their id: {some}"
        raise UserError(reason, fix="use more of the id")
    run = word if word in names else "".join(names)
    homes = {name: (home, home.plan) for name, home in found.items() if home.plan is not None and home.plan.id == run}
    if not homes and errors:
        name, error = next(iter(errors.items()))
        code = 3 if isinstance(error, Unreachable) else 1
        raise CallError(f"{name}: {error.reason}", fix=error.advice, exit_code=code)
    if not homes:
        what = "no run" if word in LAST else f"no run {quote(word)}"
        reason = f"there is {what} in the home of this account on {fold(tuple(found))}"
        raise UserError(reason, fix="look for it in another home: --home DIR")
    node0 = max(
        homes,
        key=lambda name: (homes[name][0].is_node0 is not None, homes[name][0].is_node0, homes[name][1].node0 == name),
    )
    home, plan = homes[node0]
    if home.is_node0 is None:
        reason = f"run {run} has its record on {plan.node0}, which is none of these hosts or does not answer"
        raise UserError(reason, fix=f"add it: --hosts {plan.node0}")
    return node0, plan, home.at


def _record(
    node0: Host, plan: Plan, started: float, hosts: Sequence[Host], connect: ConnectOptions, options: CallOptions
) -> RunRecord:
    known = {address: host for host in hosts for address in (host.address, host.name)}
    nodes = [replace(node0, name=plan.node0)]
    for planned in plan.all_hosts:
        host = known.get(planned.name) or known.get(planned.address)  # no host that only the plan names is contacted
        if host is not None and planned.name != plan.node0:
            nodes.append(replace(host, name=planned.name))
    return RunRecord(
        id=plan.id,
        node0=nodes[0],
        home=plan.home,
        python=plan.python,
        source=plan,
        started=started,
        nodes=tuple(nodes),
        host_keys=connect.host_keys,
        connect_timeout=connect.connect_timeout,
        transport_name=connect.transport.name,
        options=options,
        is_kept=False,
    )
