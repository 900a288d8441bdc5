"""The verbs behind `ipexctl trust` and `ipexctl trust --revoke`: look, plan, change what is to be changed, verify."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from ipexctl.hosts.home import DEFAULT_HOME
from ipexctl.hosts.internal import NoCommonNetwork, internal_addresses
from ipexctl.remote.outcome import HostError
from ipexctl.trust.authorized_keys import Owner, TrustLine, is_public_key, tag_of
from ipexctl.trust.config import names_in, unusable
from ipexctl.trust.host_state import HostState
from ipexctl.trust.login_errors import explain
from ipexctl.trust.plan import (
    files_to_write,
    keys_to_add,
    keys_to_remove,
    nodes_for,
    sources_of,
    stores,
    words_for,
)
from ipexctl.trust.report import HostTrust, TrustReport

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
    """What is known and done so far in one call: the only thing here that changes."""

    def __init__(self, pool: TrustSteps, home: str, *, dry_run: bool, revoke: bool) -> None:
        self.pool = pool
        self.home = home
        self.dry_run = dry_run
        self.revoke = revoke
        self.changes: dict[str, list[str]] = {host.name: [] for host in pool.hosts}
        self.asides: dict[str, str] = {}
        self.notes: list[str] = []
        self.internal: Mapping[str, str] = {}
        self.words: Mapping[str, str] = {}
        self._started = time.monotonic()
        self.seen = pool.look(home)

    @property
    def node0(self) -> Host:
        return self.pool.hosts[0]

    @property
    def there(self) -> list[Host]:
        """The hosts that have answered and at which nothing has failed."""
        return [host for host in self.pool.hosts if host.name in self.seen and host.name not in self.pool.errors]

    def fail(self, name: str, error: HostError) -> None:
        self.pool.errors.setdefault(name, error)

    def stop_at_node0(self) -> TrustReport:
        """node0 can't do its part, so the others' was for nothing."""
        for host in self.there:
            self.fail(host.name, HostError(f"not done, as node0 ({self.node0.name}) failed"))
        return self.report()

    def report(self, *, by: By = "nothing", config: str | None = None) -> TrustReport:
        done = tuple(self._of(host) for host in self.pool.hosts)
        seconds = time.monotonic() - self._started
        return TrustReport(done, seconds, by, config, self.revoke, self.dry_run, tuple(self.notes))

    def _of(self, host: Host) -> HostTrust:
        name = host.name
        error, changes = self.pool.errors.get(name), self.changes[name]
        status = error.status if error else "changed" if changes else "ok"
        reason = error.reason if error else "; ".join(changes) or self.asides.get(name, "")
        fix = error.fix if error else ""
        seconds = self.pool.seconds[name]
        return HostTrust(host, status, reason, fix, self.internal.get(name), self.words.get(name), seconds)


def trust(
    pool: TrustSteps, *, home: str = DEFAULT_HOME, iface: str | None = None, dry_run: bool = False
) -> TrustReport:
    """Let node0, the first host, reach every node by ssh."""
    context = _TrustContext(pool, home, dry_run=dry_run, revoke=False)
    seen, node0 = context.seen, context.node0
    if node0.name not in seen:
        return context.stop_at_node0()
    if len(pool.hosts) == 1:
        context.asides[node0.name] = "one host alone needs no login"
        return context.report(by="own")
    at_node0 = seen[node0.name]
    addresses = {name: there.addresses for name, there in seen.items()}
    internal = internal_addresses(addresses, [host for host in pool.hosts if host.name in seen], iface)
    if isinstance(internal, NoCommonNetwork):
        for name in seen:
            context.fail(name, HostError(internal.reason, internal.fix))
        return context.report()
    context.internal, context.words = internal, words_for(pool.hosts, internal)
    if problem := _problem_at(at_node0):
        context.fail(node0.name, problem)
        return context.stop_at_node0()

    if at_node0.key is None and _reaches_everyone(context):
        return context.report(by="own")

    key = at_node0.key or _make_key(context)
    if not is_public_key(key) and not dry_run:
        context.fail(node0.name, HostError("what ssh-keygen says there is no public key"))
        return context.stop_at_node0()
    owner = Owner(tag_of(node0.internal or node0.address, home), key)
    line = TrustLine(key, sources_of(at_node0, internal[node0.name]), owner.tag)
    nodes = nodes_for(context.there, seen, internal)
    _write_files(context, at_node0, nodes)
    _edit_everywhere(context, lambda there: keys_to_add(there, line, owner))
    config = f"{at_node0.ours}/ssh/config"
    if node0.name in pool.errors:
        return context.stop_at_node0()
    if dry_run and any(context.changes.values()):
        return context.report(by="config", config=config)
    _verify(context, config)
    return context.report(by="config", config=config)


def revoke(pool: TrustSteps, *, home: str = DEFAULT_HOME, dry_run: bool = False) -> TrustReport:
    """Take our line out of every store, and our files away from node0. What others added stays."""
    context = _TrustContext(pool, home, dry_run=dry_run, revoke=True)
    node0 = context.node0
    at_node0 = context.seen.get(node0.name)
    key = at_node0.key if at_node0 and at_node0.key and is_public_key(at_node0.key) else ""
    owner = Owner(tag_of(node0.internal or node0.address, home), key)
    _edit_everywhere(context, lambda there: keys_to_remove(there, owner))
    if at_node0 is None or not at_node0.has_dir:
        return context.report()
    here = {host.name for host in pool.hosts}
    if elsewhere := [name for name in names_in(at_node0.config) if name not in here]:
        context.notes.append(
            f"{', '.join(elsewhere)}: not among these hosts, so the line there stays (its key is gone); "
            "run it again with them too"
        )
    if dry_run:
        context.changes[node0.name].append("the key and config taken away")
        return context.report()

    def remove(host: Host) -> bool:
        return pool.remove_files(host, at_node0.ours, ours_by_name=home == DEFAULT_HOME)

    if pool.each([node0], remove).get(node0.name):
        context.changes[node0.name].append("the key and config taken away")
    return context.report()


def _problem_at(node0: HostState) -> HostError | None:
    if not node0.client:
        return HostError("there is no ssh or ssh-keygen on it", "install openssh-client (openssh-clients) there")
    if why := unusable(node0.ours):
        return HostError(f"{node0.ours} can't be our home directory: {why}", "name another: --home DIR")
    return None


def _reaches_everyone(context: _TrustContext) -> bool:
    """Whether node0 gets into every node as it is: mpirun needs nothing else then."""
    words = {host.name: context.words[host.name] for host in context.there}
    node0 = context.node0
    answers = context.pool.each([node0], lambda host: context.pool.log_in(host, words, None)).get(node0.name)
    if answers is None or not all(answers[name].reached(context.seen[name]) for name in words):
        return False
    for name in words:
        context.asides[name] = "node0 gets in as it is, by ssh of its own"
    return True


def _make_key(context: _TrustContext) -> str:
    """node0's new public key; the private one is made there where there is none, and stays there."""
    pool, node0 = context.pool, context.node0
    ours = context.seen[node0.name].ours
    context.changes[node0.name].append(f"a key made in {ours}/ssh")
    if context.dry_run:
        return "ssh-ed25519 (to be made)"
    return pool.each([node0], lambda host: pool.make_key(host, ours)).get(node0.name, "")


def _write_files(context: _TrustContext, at_node0: HostState, nodes: tuple[Node, ...]) -> None:
    wanted = files_to_write(nodes, at_node0)
    if wanted is None:
        return
    node0 = context.node0
    if not context.dry_run:

        def write(host: Host) -> bool:
            context.pool.write_files(host, at_node0.ours, wanted)
            return True

        if not context.pool.each([node0], write):
            return
    context.changes[node0.name].append("config and known_hosts written")


def _edit_everywhere(context: _TrustContext, plan: Planner) -> None:
    """Each home once: the first host of each, then those that share it, which only make sure."""
    seen = context.seen
    first_of = stores({host.name: seen[host.name] for host in context.there})
    edits: dict[str, KeysEdit] = {}
    for host in context.there:
        there = seen[host.name]
        if there.keys_bad:
            context.fail(host.name, _unworkable(there))
        elif edit := plan(there):
            edits[host.name] = edit
    for wave in (True, False):
        hosts = [h for h in context.there if h.name in edits and (first_of[h.name] == h.name) is wave]
        done = (
            {host.name: wave for host in hosts}
            if context.dry_run
            else context.pool.each(hosts, lambda host: _edit(context, host, edits[host.name], plan))
        )
        for name, changed in done.items():
            if changed:
                context.changes[name].append(edits[name].summary)
            elif first_of[name] != name:
                context.asides[name] = f"shares the home of {first_of[name]}"


def _edit(context: _TrustContext, host: Host, edit: KeysEdit | None, plan: Planner) -> bool:
    """Whether we changed it. Where somebody else did so in between, look again and plan again."""
    there = context.seen[host.name]
    for _ in range(_TRIES):
        if edit is None:
            return False
        answer = context.pool.edit_keys(host, there.home, edit)
        if answer != "moved":
            return answer == "done" or edit.tidy
        there = context.pool.look_at(host, context.home)
        if there.keys_bad:
            raise _unworkable(there)
        edit = plan(there)
    raise HostError("~/.ssh/authorized_keys changes faster than we can", "see what writes to it, then run it again")


def _unworkable(there: HostState) -> HostError:
    return HostError(there.keys_bad, "mend it there, then run it again")


def _verify(context: _TrustContext, config: str) -> None:
    """Log in from node0 everywhere, and say of every node that can't be reached why."""
    pool, seen, node0 = context.pool, context.seen, context.node0
    words = {host.name: context.words[host.name] for host in context.there}
    logins = pool.each([node0], lambda host: pool.log_in(host, words, config)).get(node0.name)
    if logins is None:
        return
    addresses = {name: there.addresses for name, there in seen.items()}
    for name, login in logins.items():
        if login.reached(seen[name]):
            continue
        why = explain(login, seen[name], context.internal[name], addresses)
        if name == node0.name:
            # Most MPIs start what runs on node0 without ssh.
            context.notes.append(f"node0 ({name}) can't log into itself, which few MPIs need: {why.reason}. {why.fix}")
        else:
            context.fail(name, HostError(why.reason, why.fix))
