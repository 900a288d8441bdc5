"""Finds a run that another control machine or account began, in the homes of its hosts: one round trip to each host.

What a home says is checked as any answer of a host. Nothing of such a run is kept on the control machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from ipexctl.errors import CallError, UserError
from ipexctl.facts.live_runs import RUN_ID
from ipexctl.hosts.host import Host, check_host, quoted
from ipexctl.hosts.nodeset import fold
from ipexctl.limits import PS_ANSWER
from ipexctl.node.common.plan import Plan, read_outline
from ipexctl.node.run.runs import FindRequest
from ipexctl.option_declaration import CallOptions
from ipexctl.remote.connector import ConnectOptions, SessionPool
from ipexctl.remote.node_call import call
from ipexctl.remote.outcome import HostError, Unreachable
from ipexctl.remote.reply import Reply
from ipexctl.remote.session import Session
from ipexctl.run.registry import LAST, RunRecord
from ipexctl.text import printable

_MOST_SHOWN = 4


class RunInHome(NamedTuple):
    names: tuple[str, ...]
    plan: Plan | None = None
    """None unless the home has exactly one such run."""
    at: float = 0.0
    is_node0: bool | None = None
    """True on the machine of the supervisor; None on a host without the run's status."""


def find_on_hosts(
    word: str,
    hosts: Sequence[Host],
    pool: SessionPool,
    home: str,
    options: CallOptions,
    *,
    timeout: float | None = None,
) -> RunRecord:
    """`word`: an id or a unique part of it; `last` is the newest run of these homes."""
    request: FindRequest = {"home": home, "word": "" if word in LAST else word}

    def look(_: Host, session: Session) -> RunInHome:
        reply = call(session, "run.runs", "find", request, home=home, timeout=timeout or PS_ANSWER, cancel=pool.cancel)
        return _read(reply)

    found, errors = dict[str, RunInHome](), dict[str, HostError]()
    for outcome in pool.each(hosts, look):
        if outcome.result is not None:
            found[outcome.host.name] = outcome.result
        elif outcome.error is not None:
            errors[outcome.host.name] = outcome.error
    by_name = {host.name: host for host in hosts}
    node0, plan, started = choose_run(word, {name: found[name] for name in by_name if name in found}, errors)
    return _record(by_name[node0], plan, started, hosts, pool.connector.options, options)


def _read(reply: Reply) -> RunInHome:
    """Raises a HostError if an id or a host's name can't be one: both become parts of paths here."""
    document, at, is_node0 = reply.get("plan"), reply.get("at"), reply.get("is_node0")
    names = tuple(printable(str(name)) for name in reply.get("names") or ())
    try:
        plan = None if document is None else read_outline(document)
        for host in () if plan is None else plan.names:
            check_host(host)
    except (ValueError, UserError):
        plan = None
    if (document is not None and plan is None) or (plan is not None and not RUN_ID.fullmatch(plan.id)):
        raise HostError("its record of a run can't be read")
    started = float(at) if isinstance(at, (int, float)) else 0.0
    return RunInHome(names, plan, started, is_node0 if isinstance(is_node0, bool) else None)


def choose_run(word: str, found: dict[str, RunInHome], errors: dict[str, HostError]) -> tuple[str, Plan, float]:
    """Node0, the plan, and when it was made. Raises a UserError or a CallError. Pure."""
    if word in LAST:
        newest = max((home.at for home in found.values() if home.names), default=0.0)
        found = {name: home for name, home in found.items() if home.names and home.at >= newest}
    names = sorted({run for home in found.values() for run in home.names})
    if word in names:
        names = [word]
    if len(names) > 1:
        some = ", ".join(names[:_MOST_SHOWN]) + (" …" if len(names) > _MOST_SHOWN else "")
        raise UserError(
            f"{len(names)} runs on these hosts have {quoted(word)} in their id: {some}", fix="use more of the id"
        )
    homes = {name: home for name, home in found.items() if home.plan is not None and home.plan.id in names}
    if not homes:
        for name, error in errors.items():
            code = 3 if isinstance(error, Unreachable) else 1
            raise CallError(f"{name}: {error.reason}", fix=error.advice, exit_code=code)
        what = "no run" if word in LAST else f"no run {quoted(word)}"
        raise UserError(
            f"there is {what} in the home of this account on {fold(tuple(found))}",
            fix="look for it in another home: --home DIR",
        )
    with_status = [name for name, home in homes.items() if home.is_node0 is not None]
    order = [name for name in with_status if homes[name].is_node0]
    order += [name for name in with_status if (plan := homes[name].plan) is not None and plan.node0 == name]
    order += with_status
    plan = next(home.plan for home in homes.values() if home.plan is not None)
    if not order:
        raise UserError(
            f"run {plan.id} has its record on {printable(plan.node0)}, which is none of these hosts or does not answer",
            fix=f"add it: --hosts {printable(plan.node0)}",
        )
    return order[0], plan, homes[order[0]].at


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
