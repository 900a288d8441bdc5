"""`ipexctl trust` and `trust --revoke`: ssh from node0 to every node, which mpirun needs. If node0 can already log in
everywhere, nothing changes. Otherwise trust makes a key and a config in node0's HOME, and one line of authorized_keys
per home, limited to node0's addresses. `--revoke` removes exactly these.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeVar

from ipexctl.errors import Refusal, UserError
from ipexctl.hosts.host import Host, find_leaders
from ipexctl.hosts.internal_addresses import internal_addresses
from ipexctl.node.common.home import HomeRefused
from ipexctl.option_declaration import DEFAULT_HOME
from ipexctl.remote.connector import SessionPool
from ipexctl.remote.outcome import HostError, HostResult, Report
from ipexctl.remote.session import Session
from ipexctl.trust.authorized_keys import KeysEdit, Owner, TrustLine, add_line, is_public_key, remove_lines, tag_of
from ipexctl.trust.host_steps import HostState, HostSteps
from ipexctl.trust.login_errors import explain
from ipexctl.trust.trust_ssh_config import Files, SshConfigNode, names_in, path_problem, render, ssh_names_for


def keys_to_add(state: HostState, line: TrustLine) -> KeysEdit | None:
    new = add_line(state.keys, line, has_directory=state.has_ssh_dir)
    return KeysEdit(state.keys, new) if new != state.keys else _tidy(state)


def keys_to_remove(state: HostState, owner: Owner) -> KeysEdit | None:
    return remove_lines(state.keys, owner) or _tidy(state)


def _tidy(state: HostState) -> KeysEdit | None:
    return KeysEdit(state.keys, state.keys, tidy=True) if state.has_leftovers else None


def sources_of(node0: HostState, internal: str) -> tuple[str, ...]:
    """Addresses from which node0 may connect, the internal one first."""
    addresses = [nic.address for nic in node0.nics if nic.joins_hosts]
    if any(nic.address == internal for nic in node0.nics):
        addresses.insert(0, internal)
    return tuple(dict.fromkeys(addresses))


def nodes_for(
    hosts: Iterable[Host], states: Mapping[str, HostState], internal: Mapping[str, str]
) -> tuple[SshConfigNode, ...]:
    """Each node with its name and, if no other node has it, its internal address."""
    addresses = list(internal.values())
    nodes = []
    for host in hosts:
        if host.name not in states or host.name not in internal:
            continue
        address, state = internal[host.name], states[host.name]
        names = [host.name]
        if address != host.name and addresses.count(address) == 1:
            names.append(address)
        nodes.append(SshConfigNode(tuple(names), address, state.port, state.user, state.host_keys))
    return tuple(nodes)


def files_to_write(nodes: Sequence[SshConfigNode], node0: HostState) -> Files | None:
    before = Files(node0.config, node0.known_hosts)
    files = render(
        nodes, f"{node0.ipexctl_home}/ssh", before=before if node0.config else None, quick=node0.supports_preferred
    )
    return None if files == before else files


T = TypeVar("T")
_TRIES: Final = 4
_NEW_KEY: Final = "while ipexctl doctor shows no live run: ipexctl trust --revoke, then ipexctl trust"
_FILES_REMOVED: Final = "key and config removed"
Planner = Callable[[HostState], "KeysEdit | None"]
By = Literal["config", "own", "nothing"]
"""How node0 reaches the nodes: ipexctl's config, the account's own ssh, or not at all."""


@dataclass(frozen=True, slots=True)
class TrustOptions:
    home: str = DEFAULT_HOME
    iface: str | None = None
    timeout: float | None = None
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class TrustResult(HostResult):
    internal: str | None = None
    ssh_name: str | None = None


@dataclass(frozen=True, slots=True)
class TrustReport(Report[TrustResult]):
    by: By = "nothing"
    config: str | None = None
    revoke: bool = False
    dry_run: bool = False
    notes: tuple[str, ...] = ()

    @property
    def node0(self) -> Host:
        return self.hosts[0].host


class _TrustContext:
    def __init__(self, hosts: Sequence[Host], pool: SessionPool, options: TrustOptions, *, revoke: bool) -> None:
        self.hosts = tuple(hosts)
        self.options = options
        self.revoke = revoke
        self.errors: dict[str, HostError] = {}
        self.changes: dict[str, list[str]] = {host.name: [] for host in hosts}
        self.notes_by_host: dict[str, str] = {}
        self.notes: list[str] = []
        self.internal: Mapping[str, str] = {}
        self.ssh_names: Mapping[str, str] = {}
        self._pool = pool
        self._started = time.monotonic()
        self._seconds = dict.fromkeys((host.name for host in hosts), 0.0)
        self.states = self.each(hosts, self.probe)

    @property
    def node0(self) -> Host:
        return self.hosts[0]

    def each(self, hosts: Sequence[Host], work: Callable[[HostSteps], T]) -> dict[str, T]:
        """Run one step on many hosts at once; return the results of hosts that did not fail."""

        def run_step(host: Host, session: Session) -> T:
            return work(HostSteps(host, session, self.options.timeout, self._pool.cancel))

        results: dict[str, T] = {}
        for outcome in self._pool.each(hosts, run_step):
            self._seconds[outcome.host.name] = time.monotonic() - self._started
            if outcome.error is not None:
                self.errors[outcome.host.name] = outcome.error
            elif outcome.result is not None:
                results[outcome.host.name] = outcome.result
        return results

    def on_node0(self, work: Callable[[HostSteps], T]) -> T | None:
        return self.each([self.node0], work).get(self.node0.name)

    def probe(self, steps: HostSteps) -> HostState:
        return steps.probe(self.options.home, is_node0=steps.host == self.node0)

    @property
    def reachable(self) -> list[Host]:
        return [host for host in self.hosts if host.name in self.states and host.name not in self.errors]

    def fail(self, name: str, error: HostError) -> None:
        self.errors.setdefault(name, error)

    def stop_at_node0(self) -> TrustReport:
        for host in self.reachable:
            self.fail(host.name, HostError(f"skipped, because node0 ({self.node0.name}) failed"))
        return self.report()

    def report(self, *, by: By = "nothing", config: str | None = None) -> TrustReport:
        hosts = tuple(self._host_result(host) for host in self.hosts)
        seconds = time.monotonic() - self._started
        return TrustReport(hosts, seconds, by, config, self.revoke, self.options.dry_run, tuple(self.notes))

    def _host_result(self, host: Host) -> TrustResult:
        name = host.name
        error, changes = self.errors.get(name), self.changes[name]
        status = error.status if error else "changed" if changes else "ok"
        reason = error.reason if error else "; ".join(changes) or self.notes_by_host.get(name, "")
        fix = error.fix if error else ""
        seconds = self._seconds[name]
        return TrustResult(host, status, reason, fix, seconds, self.internal.get(name), self.ssh_names.get(name))


def trust(hosts: Sequence[Host], pool: SessionPool, options: TrustOptions) -> TrustReport:
    """Enable ssh from node0, the first host, to every node. Changes nothing if the transport needs no logins."""
    if note := pool.connector.options.transport.no_logins:
        return TrustReport(tuple(TrustResult(host, "ok") for host in hosts), 0.0, notes=(note,))
    context = _TrustContext(hosts, pool, options, revoke=False)
    states, node0 = context.states, context.node0
    if node0.name not in states:
        return context.stop_at_node0()
    if len(hosts) == 1:
        context.notes_by_host[node0.name] = "a single host needs no login"
        return context.report(by="own")
    node0_state = states[node0.name]
    addresses = {name: state.addresses for name, state in states.items()}
    internal = internal_addresses(addresses, [host for host in hosts if host.name in states], options.iface)
    if isinstance(internal, Refusal):
        for name in states:
            context.fail(name, HostError(internal.reason, internal.fix))
        return context.report()
    context.internal, context.ssh_names = internal, ssh_names_for(hosts, internal)
    if problem := _node0_problem(node0_state):
        context.fail(node0.name, problem)
        return context.stop_at_node0()

    if node0_state.key is None and _can_log_in_everywhere(context):
        return context.report(by="own")

    key = node0_state.key or _make_key(context)
    if not is_public_key(key) and not options.dry_run:
        context.fail(node0.name, HostError("ssh-keygen printed no valid public key", _NEW_KEY))
        return context.stop_at_node0()
    owner = Owner(tag_of(node0.internal or node0.address, options.home), key)
    line = TrustLine(owner, sources_of(node0_state, internal[node0.name]))
    nodes = nodes_for(context.reachable, states, internal)
    _write_files(context, node0_state, nodes)
    _edit_everywhere(context, lambda state: keys_to_add(state, line))
    config = f"{node0_state.ipexctl_home}/ssh/config"
    if node0.name in context.errors:
        return context.stop_at_node0()
    if options.dry_run and any(context.changes.values()):
        return context.report(by="config", config=config)
    _verify(context, config)
    return context.report(by="config", config=config)


def revoke(hosts: Sequence[Host], pool: SessionPool, options: TrustOptions) -> TrustReport:
    """Remove ipexctl's line from every home, and its files from node0."""
    context = _TrustContext(hosts, pool, options, revoke=True)
    node0 = context.node0
    node0_state = context.states.get(node0.name)
    key = node0_state.key if node0_state and node0_state.key and is_public_key(node0_state.key) else ""
    owner = Owner(tag_of(node0.internal or node0.address, options.home), key)
    _edit_everywhere(context, lambda state: keys_to_remove(state, owner))
    if node0_state is None or not node0_state.has_trust_dir:
        return context.report()
    given = {host.name for host in hosts}
    if elsewhere := [name for name in names_in(node0_state.config) if name not in given]:
        context.notes.append(
            f"{', '.join(elsewhere)}: not among the hosts of this call, so the line in authorized_keys stays there; "
            "its private key is removed. To remove the line: ipexctl trust --revoke with all hosts"
        )
    if options.dry_run:
        context.changes[node0.name].append(_FILES_REMOVED)
        return context.report()

    is_default = options.home == DEFAULT_HOME
    if context.on_node0(lambda steps: steps.remove_files(node0_state.ipexctl_home, is_default_home=is_default)):
        context.changes[node0.name].append(_FILES_REMOVED)
    return context.report()


def _node0_problem(node0: HostState) -> HostError | None:
    if node0.home_problem:
        detail = f": {node0.home_detail}" if node0.home_detail else ""
        refused = HomeRefused(node0.home_problem, node0.ipexctl_home, detail)
        if refused.is_wrong_call:
            raise UserError(refused.reason, fix=refused.fix)
        return HostError(refused.reason, refused.fix)
    if not node0.has_ssh_client:
        return HostError("it has no ssh or ssh-keygen", "install openssh-client (openssh-clients) there")
    if reason := path_problem(node0.ipexctl_home):
        return HostError(f"{node0.ipexctl_home} can't be ipexctl's directory: {reason}", "use another one: --home DIR")
    return None


def _can_log_in_everywhere(context: _TrustContext) -> bool:
    ssh_names = {host.name: context.ssh_names[host.name] for host in context.reachable}
    logins = context.on_node0(lambda steps: steps.log_in(ssh_names, None))
    if logins is None or not all(logins[name].reached(context.states[name]) for name in ssh_names):
        return False
    for name in ssh_names:
        context.notes_by_host[name] = "node0 can log in already, with its own ssh"
    return True


def _make_key(context: _TrustContext) -> str:
    ipexctl_home = context.states[context.node0.name].ipexctl_home
    context.changes[context.node0.name].append(f"a key created in {ipexctl_home}/ssh")
    if context.options.dry_run:
        return "ssh-ed25519 (to be created)"
    return context.on_node0(lambda steps: steps.make_key(ipexctl_home)) or ""


def _write_files(context: _TrustContext, node0_state: HostState, nodes: tuple[SshConfigNode, ...]) -> None:
    contents = files_to_write(nodes, node0_state)
    if contents is None:
        return
    if not context.options.dry_run:
        context.on_node0(lambda steps: steps.write_files(node0_state.ipexctl_home, contents))
    if context.node0.name not in context.errors:
        context.changes[context.node0.name].append("config and known_hosts written")


def _edit_everywhere(context: _TrustContext, plan: Planner) -> None:
    """Edit each home once, through its first host; the other hosts of the home check the result."""
    states = context.states
    leader_of = find_leaders(
        [host.name for host in context.reachable], lambda name: (states[name].store, states[name].home)
    )
    edits: dict[str, KeysEdit] = {}
    for host in context.reachable:
        state = states[host.name]
        if state.keys_problem:
            context.fail(host.name, _keys_error(state))
        elif edit := plan(state):
            edits[host.name] = edit
    for is_first_wave in (True, False):
        hosts = [h for h in context.reachable if h.name in edits and (leader_of[h.name] == h.name) is is_first_wave]
        done = (
            {host.name: is_first_wave for host in hosts}
            if context.options.dry_run
            else context.each(hosts, lambda steps: _edit(context, steps, edits[steps.host.name], plan))
        )
        for name, changed in done.items():
            if changed:
                context.changes[name].append(edits[name].summary)
            elif leader_of[name] != name:
                context.notes_by_host[name] = f"shares the home of {leader_of[name]}"


def _edit(context: _TrustContext, steps: HostSteps, edit: KeysEdit | None, plan: Planner) -> bool:
    """Return True if the file changed. If another program changed it in the meantime, probe and plan again."""
    state = context.states[steps.host.name]
    for _ in range(_TRIES):
        if edit is None:
            return False
        result = steps.edit_keys(state.home, edit)
        if result != "moved":
            return result == "done" or edit.tidy
        state = context.probe(steps)
        if state.keys_problem:
            raise _keys_error(state)
        edit = plan(state)
    raise HostError(
        "another program keeps changing ~/.ssh/authorized_keys", "find the program that writes to it, then run it again"
    )


def _keys_error(state: HostState) -> HostError:
    return HostError(state.keys_problem, "repair it there, then run it again")


def _verify(context: _TrustContext, config: str) -> None:
    states, node0 = context.states, context.node0
    ssh_names = {host.name: context.ssh_names[host.name] for host in context.reachable}
    logins = context.on_node0(lambda steps: steps.log_in(ssh_names, config))
    if logins is None:
        return
    addresses = {name: state.addresses for name, state in states.items()}
    for name, login in logins.items():
        if login.reached(states[name]):
            continue
        error = explain(login, states[name], context.internal[name], addresses)
        if name == node0.name:
            # Most MPIs start the ranks on node0 without ssh.
            context.notes.append(
                f"node0 ({name}) can't log in to itself, which few MPIs need: {error.reason}. {error.fix}"
            )
        else:
            context.fail(name, error)
