"""`ipexctl trust` and `ipexctl trust --revoke`: probe, plan, change, verify."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from ipexctl.hosts.home import DEFAULT_HOME
from ipexctl.hosts.internal import NoCommonNetwork, internal_addresses
from ipexctl.remote.outcome import HostError
from ipexctl.trust.authorized_keys import Owner, TrustLine, is_public_key, tag_of
from ipexctl.trust.config import names_in, path_problem
from ipexctl.trust.host_state import HostState
from ipexctl.trust.login_errors import explain
from ipexctl.trust.plan import (
    files_to_write,
    keys_to_add,
    keys_to_remove,
    nodes_for,
    sources_of,
    ssh_names_for,
    stores,
)
from ipexctl.trust.report import TrustReport, TrustResult

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ipexctl.hosts.host import Host
    from ipexctl.trust.config import Node
    from ipexctl.trust.host_steps import TrustSteps
    from ipexctl.trust.plan import KeysEdit
    from ipexctl.trust.report import By


_TRIES: Final = 4
Planner = Callable[[HostState], "KeysEdit | None"]


class _TrustContext:
    """The state of one call: probe results, changes and notes. Nothing else here is mutable."""

    def __init__(self, pool: TrustSteps, home: str, *, dry_run: bool, revoke: bool) -> None:
        self.pool = pool
        self.home = home
        self.dry_run = dry_run
        self.revoke = revoke
        self.changes: dict[str, list[str]] = {host.name: [] for host in pool.hosts}
        self.notes_by_host: dict[str, str] = {}
        self.notes: list[str] = []
        self.internal: Mapping[str, str] = {}
        self.ssh_names: Mapping[str, str] = {}
        self._started = time.monotonic()
        self.states = pool.probe(home)

    @property
    def node0(self) -> Host:
        return self.pool.hosts[0]

    @property
    def reachable(self) -> list[Host]:
        """The hosts that were probed and have no error."""
        return [host for host in self.pool.hosts if host.name in self.states and host.name not in self.pool.errors]

    def fail(self, name: str, error: HostError) -> None:
        self.pool.errors.setdefault(name, error)

    def stop_at_node0(self) -> TrustReport:
        """Report that node0 failed; the other hosts fail too."""
        for host in self.reachable:
            self.fail(host.name, HostError(f"not done, as node0 ({self.node0.name}) failed"))
        return self.report()

    def report(self, *, by: By = "nothing", config: str | None = None) -> TrustReport:
        hosts = tuple(self._host_result(host) for host in self.pool.hosts)
        seconds = time.monotonic() - self._started
        return TrustReport(hosts, seconds, by, config, self.revoke, self.dry_run, tuple(self.notes))

    def _host_result(self, host: Host) -> TrustResult:
        name = host.name
        error, changes = self.pool.errors.get(name), self.changes[name]
        status = error.status if error else "changed" if changes else "ok"
        reason = error.reason if error else "; ".join(changes) or self.notes_by_host.get(name, "")
        fix = error.fix if error else ""
        seconds = self.pool.seconds[name]
        return TrustResult(host, status, reason, fix, seconds, self.internal.get(name), self.ssh_names.get(name))


def trust(
    pool: TrustSteps, *, home: str = DEFAULT_HOME, iface: str | None = None, dry_run: bool = False
) -> TrustReport:
    """Enable ssh from node0, the first host, to every node."""
    context = _TrustContext(pool, home, dry_run=dry_run, revoke=False)
    states, node0 = context.states, context.node0
    if node0.name not in states:
        return context.stop_at_node0()
    if len(pool.hosts) == 1:
        context.notes_by_host[node0.name] = "one host alone needs no login"
        return context.report(by="own")
    node0_state = states[node0.name]
    addresses = {name: state.addresses for name, state in states.items()}
    internal = internal_addresses(addresses, [host for host in pool.hosts if host.name in states], iface)
    if isinstance(internal, NoCommonNetwork):
        for name in states:
            context.fail(name, HostError(internal.reason, internal.fix))
        return context.report()
    context.internal, context.ssh_names = internal, ssh_names_for(pool.hosts, internal)
    if problem := _node0_problem(node0_state):
        context.fail(node0.name, problem)
        return context.stop_at_node0()

    if node0_state.key is None and _can_log_in_everywhere(context):
        return context.report(by="own")

    key = node0_state.key or _make_key(context)
    if not is_public_key(key) and not dry_run:
        context.fail(node0.name, HostError("what ssh-keygen says there is no public key"))
        return context.stop_at_node0()
    owner = Owner(tag_of(node0.internal or node0.address, home), key)
    line = TrustLine(key, sources_of(node0_state, internal[node0.name]), owner.tag)
    nodes = nodes_for(context.reachable, states, internal)
    _write_files(context, node0_state, nodes)
    _edit_everywhere(context, lambda state: keys_to_add(state, line, owner))
    config = f"{node0_state.ipexctl_home}/ssh/config"
    if node0.name in pool.errors:
        return context.stop_at_node0()
    if dry_run and any(context.changes.values()):
        return context.report(by="config", config=config)
    _verify(context, config)
    return context.report(by="config", config=config)


def revoke(pool: TrustSteps, *, home: str = DEFAULT_HOME, dry_run: bool = False) -> TrustReport:
    """Remove the line of ipexctl from every store and its files from node0. Other lines and files stay."""
    context = _TrustContext(pool, home, dry_run=dry_run, revoke=True)
    node0 = context.node0
    node0_state = context.states.get(node0.name)
    key = node0_state.key if node0_state and node0_state.key and is_public_key(node0_state.key) else ""
    owner = Owner(tag_of(node0.internal or node0.address, home), key)
    _edit_everywhere(context, lambda state: keys_to_remove(state, owner))
    if node0_state is None or not node0_state.has_trust_dir:
        return context.report()
    given = {host.name for host in pool.hosts}
    if elsewhere := [name for name in names_in(node0_state.config) if name not in given]:
        context.notes.append(
            f"{', '.join(elsewhere)}: not among these hosts, so the line there stays (its key is gone); "
            "run it again with them too"
        )
    if dry_run:
        context.changes[node0.name].append("the key and config taken away")
        return context.report()

    def remove(host: Host) -> bool:
        return pool.remove_files(host, node0_state.ipexctl_home, is_default_home=home == DEFAULT_HOME)

    if pool.each([node0], remove).get(node0.name):
        context.changes[node0.name].append("the key and config taken away")
    return context.report()


def _node0_problem(node0: HostState) -> HostError | None:
    if not node0.has_ssh_client:
        return HostError("there is no ssh or ssh-keygen on it", "install openssh-client (openssh-clients) there")
    if reason := path_problem(node0.ipexctl_home):
        return HostError(f"{node0.ipexctl_home} can't be our home directory: {reason}", "name another: --home DIR")
    return None


def _can_log_in_everywhere(context: _TrustContext) -> bool:
    """Whether node0 can already log in to every node: then mpirun needs nothing else."""
    ssh_names = {host.name: context.ssh_names[host.name] for host in context.reachable}
    node0 = context.node0
    logins = context.pool.each([node0], lambda host: context.pool.log_in(host, ssh_names, None)).get(node0.name)
    if logins is None or not all(logins[name].reached(context.states[name]) for name in ssh_names):
        return False
    for name in ssh_names:
        context.notes_by_host[name] = "node0 gets in as it is, by ssh of its own"
    return True


def _make_key(context: _TrustContext) -> str:
    """node0's new public key. The private key is created on node0 if it is missing, and never leaves it."""
    pool, node0 = context.pool, context.node0
    ipexctl_home = context.states[node0.name].ipexctl_home
    context.changes[node0.name].append(f"a key made in {ipexctl_home}/ssh")
    if context.dry_run:
        return "ssh-ed25519 (to be made)"
    return pool.each([node0], lambda host: pool.make_key(host, ipexctl_home)).get(node0.name, "")


def _write_files(context: _TrustContext, node0_state: HostState, nodes: tuple[Node, ...]) -> None:
    contents = files_to_write(nodes, node0_state)
    if contents is None:
        return
    node0 = context.node0
    if not context.dry_run:

        def write(host: Host) -> bool:
            context.pool.write_files(host, node0_state.ipexctl_home, contents)
            return True

        if not context.pool.each([node0], write):
            return
    context.changes[node0.name].append("config and known_hosts written")


def _edit_everywhere(context: _TrustContext, plan: Planner) -> None:
    """Edit each home once, through its first host; then the hosts that share it check the result."""
    states = context.states
    first_of = stores({host.name: states[host.name] for host in context.reachable})
    edits: dict[str, KeysEdit] = {}
    for host in context.reachable:
        state = states[host.name]
        if state.keys_problem:
            context.fail(host.name, _keys_error(state))
        elif edit := plan(state):
            edits[host.name] = edit
    for is_first_wave in (True, False):
        hosts = [h for h in context.reachable if h.name in edits and (first_of[h.name] == h.name) is is_first_wave]
        done = (
            {host.name: is_first_wave for host in hosts}
            if context.dry_run
            else context.pool.each(hosts, lambda host: _edit(context, host, edits[host.name], plan))
        )
        for name, changed in done.items():
            if changed:
                context.changes[name].append(edits[name].summary)
            elif first_of[name] != name:
                context.notes_by_host[name] = f"shares the home of {first_of[name]}"


def _edit(context: _TrustContext, host: Host, edit: KeysEdit | None, plan: Planner) -> bool:
    """Edit the file; returns whether it was changed. If another program changed it meanwhile, probe and plan again."""
    state = context.states[host.name]
    for _ in range(_TRIES):
        if edit is None:
            return False
        result = context.pool.edit_keys(host, state.home, edit)
        if result != "moved":
            return result == "done" or edit.tidy
        state = context.pool.probe_host(host, context.home)
        if state.keys_problem:
            raise _keys_error(state)
        edit = plan(state)
    raise HostError("~/.ssh/authorized_keys changes faster than we can", "see what writes to it, then run it again")


def _keys_error(state: HostState) -> HostError:
    return HostError(state.keys_problem, "mend it there, then run it again")


def _verify(context: _TrustContext, config: str) -> None:
    """Log in from node0 to every node, and record an error for each that fails."""
    pool, states, node0 = context.pool, context.states, context.node0
    ssh_names = {host.name: context.ssh_names[host.name] for host in context.reachable}
    logins = pool.each([node0], lambda host: pool.log_in(host, ssh_names, config)).get(node0.name)
    if logins is None:
        return
    addresses = {name: state.addresses for name, state in states.items()}
    for name, login in logins.items():
        if login.reached(states[name]):
            continue
        diagnosis = explain(login, states[name], context.internal[name], addresses)
        if name == node0.name:
            # Most MPIs start the ranks on node0 without ssh.
            context.notes.append(
                f"node0 ({name}) can't log into itself, which few MPIs need: {diagnosis.reason}. {diagnosis.fix}"
            )
        else:
            context.fail(name, HostError(diagnosis.reason, diagnosis.fix))
