"""Install an environment on hosts: wheels to each store, one build per store, verification on every host.

Hosts that share a home are verified separately, because CPU and libraries may differ. A failure ends only its own host,
unless that host passes the wheels on. The requested name points at an environment only after the environment passed its
verification.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from ipexctl.errors import Refusal
from ipexctl.facts.facts import addresses_among
from ipexctl.files.store_client import DamagedFile, StoreClient, StoredFile, StoreLocation
from ipexctl.files.stream import NotInStore
from ipexctl.hosts.host import Host, find_leaders
from ipexctl.hosts.nodeset import fold
from ipexctl.node.common.fix import Fix
from ipexctl.node.env.env_replies import CheckResult
from ipexctl.remote.node_call import AgentPlace
from ipexctl.remote.outcome import Cancelled, HostError, HostFinished, HostStatus, StepStarted, TimedOut
from ipexctl.remote.reply import Reply
from ipexctl.remote.session import Session
from ipexctl.stack.env.environment import EnvClient, EnvSpec, explain, machine_token, parse_result
from ipexctl.stack.install_context import InstallContext
from ipexctl.stack.lock.wheel_lock import Lock, home_problem


class EnvInstaller:
    """Installs one environment on the hosts of a call. Results go into the context, and nothing is raised for a single
    host."""

    def __init__(self, context: InstallContext, spec: EnvSpec) -> None:
        self.context = context
        self.spec = spec

    def build_everywhere(self, hosts: Sequence[Host]) -> None:
        """Build the environment where it is missing or broken, verify it on each of these hosts, and store the results
        in the context."""
        from ipexctl.files.routes import Distributor  # slow to import

        context = self.context
        ready = [host for host in hosts if self._check_room(host)]
        if not ready:
            return
        self._find_damaged(ready)
        locations = self._store_locations()
        source: StoreLocation | None = locations[context.first.name]
        if any(self._needs_build(host) for host in ready):
            source = self._stage(locations, ready)
        if source is None:
            return
        leader_of = find_leaders(ready, self._store)
        leaders = list(dict.fromkeys(leader_of.values()))
        built: set[str] = set()
        files, timeout = self._files(leaders), context.opened.timeout
        with Distributor(context.pool, source, files, context.watch, timeout=timeout) as distributor:

            def build_one(host: Host, session: Session) -> None:
                if self._needs_build(host):
                    with context.timed(host.name, "got the wheels"):
                        distributor.bring(locations[host.name], session, self._files([host]))
                    context.uplink += distributor.sent.get(host.name, 0)
                with context.timed(host.name, "built the environment"):
                    is_new = self._build(host, session)
                built.add(host.name)
                if not is_new:
                    # so that the next call with this request needs no index
                    for request in context.made_for_all:
                        self._client(host, session).add_request(self.spec.name, request)
                self._verify(host, session, changed=is_new)

            for done in context.pool.each(leaders, build_one):
                if done.error is not None:
                    context.end(done.host, done.error, self.spec.name)
                    context.watch(HostFinished(done.host.name, done.error.reason, ok=False))
        self._verify_followers(leader_of, built)
        self._drop_wheels([h for h in leaders if h.name in built and self._store(h) != self._store(source.host)])

    def _find_damaged(self, hosts: Sequence[Host]) -> None:
        """Ask hosts that have the environment whether it is intact; a damaged or failed one is built again."""
        present = [host for host in hosts if not self._needs_build(host)]
        damaged = {
            done.host.name: done.result.build
            for done in self.context.pool.each(present, self.check)
            if done.result is not None and (not done.result.ok or done.result.has_failed)
        }
        self.spec = replace(self.spec, broken={**self.spec.broken, **damaged})

    def _files(self, hosts: Sequence[Host]) -> list[StoredFile]:
        return [wheel.stored_file for wheel in self.spec.files([host for host in hosts if self._needs_build(host)])]

    def _needs_build(self, host: Host) -> bool:
        return host.name in self.spec.broken or not self._has_env(self.spec.name, host)

    def _has_env(self, name: str, host: Host) -> bool:
        """True if the host has this environment and its Python starts, by the facts gathered before."""
        return any(env.name == name and env.runs for env in self.context.facts[host.name].software.envs)

    def is_named(self, host: Host) -> bool:
        """True if the requested name leads to this environment on the host, by the facts gathered before."""
        envs = self.context.facts[host.name].software.envs
        return any(env.name == self.spec.name and self.context.request.name in env.names for env in envs)

    def _stage(self, locations: Mapping[str, StoreLocation], ready: list[Host]) -> StoreLocation | None:
        """Bring the wheels into the store of one host, and return that store. The first host that can take them is
        used, and need not be one that builds. None if none can: then each of `ready` has its error."""
        from ipexctl.stack.env.staging import Staging

        context, first = self.context, self.context.first
        wheels = self.spec.files([host for host in ready if self._needs_build(host)])
        is_fit = first.name not in context.done or context.done[first.name].status in ("ok", "changed")
        for host in [*([first] if is_fit else []), *(host for host in tuple(ready) if host != first)]:
            try:
                Staging(context, self.spec, context.pool.session(host), locations[host.name]).stage(wheels)
            except (Cancelled, TimedOut, NotInStore, DamagedFile) as error:
                reason = f"{host.name}, which passes the wheels on, failed: {error.reason}"
                for other in ready:
                    is_its_own = other == host or isinstance(error, NotInStore)
                    context.end(other, HostError(error.reason if is_its_own else reason, error.fix))
                return None
            except HostError as error:
                if host in ready:
                    ready.remove(host)
                    context.end(host, error)
                    context.watch(HostFinished(host.name, error.reason, ok=False))
                else:
                    context.notes.append(f"{host.name} cannot store the wheels to pass them on: {error.reason}")
            else:
                return locations[host.name]
        return None

    def _drop_wheels(self, hosts: Sequence[Host]) -> None:
        """Remove the wheels, except on the first host, which keeps them for the next install."""
        for done in self.context.pool.each(hosts, lambda host, session: self._build(host, session, drop=True)):
            if done.error is not None:
                self.context.notes.append(
                    Fix(
                        f"{done.host.name} still has the wheels ({done.error.reason}); to remove them and "
                        "environments without a name, while no run or install is alive (`ipexctl "
                        "doctor`): `ipexctl envs --prune`"
                    )
                )

    def remove_superseded(self, name: str) -> None:
        """Remove the environment that this one replaces, once per store. It stays, with a note, where a host of the
        store uses it or did not answer, or where it has another name."""
        context = self.context
        hosts = [host for host in context.hosts if host.name in context.facts and self._has_env(name, host)]

        def is_used(host: Host, session: Session) -> bool:
            return self._client(host, session).is_used(name, [context.request.name], or_named=True)

        def remove(host: Host, session: Session) -> None:
            self._client(host, session).remove([name], {})

        used = {done.host.name for done in context.pool.each(hosts, is_used) if done.result is not False}
        used_stores = {self._store(host) for host in hosts if host.name in used}
        unused = [host for host in hosts if self._store(host) not in used_stores]
        leaders = dict.fromkeys(find_leaders(unused, self._store).values())
        for removed in context.pool.each(list(leaders), remove):
            if removed.error is not None:
                context.notes.append(f"{removed.host.name} still has {name}: {removed.error.reason}")
        if used:
            where = fold(host.name for host in hosts if host.name in used)
            context.notes.append(
                Fix(
                    "{name} stays on {where}, where it is in use; to remove it later: `ipexctl envs --prune`",
                    name=name,
                    where=where,
                )
            )

    def _verify_followers(self, leader_of: Mapping[Host, Host], built: Collection[str]) -> None:
        """Verify hosts that share the home of a host that has built. Where that build failed, they fail, too."""
        followers = []
        for host, leader in leader_of.items():
            if host != leader and leader.name in built:
                followers.append(host)
            elif host != leader:
                self.context.end(host, HostError(f"it shares the home of {leader.name}, where the build failed"))
        self.verify_on_hosts(followers, shares_home=True)

    def verify_on_hosts(self, hosts: Sequence[Host], *, shares_home: bool = False) -> None:
        """Verify the environment on each host and record the results. `shares_home`: True if another host built it in a
        shared home, so that the host counts as changed."""

        def verify(host: Host, session: Session) -> None:
            self._verify(host, session, changed=shares_home, shares_home=shares_home)

        for done in self.context.pool.each(hosts, verify):
            if done.error is not None:
                self.context.end(done.host, done.error, self.spec.name)

    def link_where_missing(self, hosts: Sequence[Host]) -> None:
        """Make the requested name lead to this environment on hosts where it does not yet. A host whose result is `ok`
        becomes `changed`."""
        context, name = self.context, self.context.request.name

        def link(host: Host, session: Session) -> None:
            self._client(host, session).link(self.spec.name, name)

        for done in context.pool.each([host for host in hosts if not self.is_named(host)], link):
            if done.error is not None:
                context.end(done.host, done.error, self.spec.name)
            elif (before := context.done[done.host.name]).status == "ok":
                reason = f"is now named {name}"
                context.done[done.host.name] = replace(before, status="changed", reason=reason)

    def _check_room(self, host: Host) -> bool:
        """True if the environment fits into the host's home; otherwise the host gets its error."""
        if not self._needs_build(host):
            return True
        obstacle = find_obstacle(self.context, host, self.spec.lacking([host]), self.spec.interpreters.get(host.name))
        if obstacle is not None:
            self.context.end(host, HostError(*obstacle))
        return obstacle is None

    def _store(self, host: Host) -> str:
        return self.context.facts[host.name].store_of(host.name)

    def _store_locations(self) -> dict[str, StoreLocation]:
        """Return host → where its wheels are stored. Without a common network, wheels pass through the control machine,
        which a note says."""
        context = self.context
        hosts = [host for host in context.hosts if host.name in context.facts]
        internal = addresses_among(hosts, context.facts, context.opened.iface)
        if isinstance(internal, Refusal):
            if len(hosts) > 1:
                context.notes.append(f"wheels pass through the control machine: {internal.reason}. " + internal.fix)
            internal = {}
        store = f"{context.home}/wheels"
        return {
            host.name: StoreLocation(host, self._python(host), store, internal.get(host.name), context.home)
            for host in hosts
        }

    def _python(self, host: Host) -> str:
        return self.context.python(host, self.spec.interpreters.get(host.name))

    def _client(self, host: Host, session: Session) -> EnvClient:
        return EnvClient(session, AgentPlace(self._python(host), self.context.home))

    def _build(self, host: Host, session: Session, *, drop: bool = False) -> bool:
        """Build the environment on a host; return False if it exists. `drop`: True to remove the wheels afterwards."""

        def on_event(event: Reply) -> None:
            self.context.watch(StepStarted(host.name, str(event.get("what") or "building")))

        return self._client(host, session).build(
            self.spec,
            self.spec.interpreters[host.name],
            drop_wheels=drop,
            replace=None if drop else self.spec.broken.get(host.name),
            on_event=on_event,
            timeout=self.context.opened.timeout,
        )

    def check(self, host: Host, session: Session) -> CheckResult:
        """Return what the agent finds wrong with the environment on this host, compared with its lock."""
        python = self.spec.interpreters.get(host.name)
        return check_by_digest(self.context, self.spec.name, self.spec.lock.digest, python, session)

    def _verify(self, host: Host, session: Session, *, changed: bool, shares_home: bool = False) -> None:
        """Verify on this host and record the result; only a good environment gets the name."""
        context, name = self.context, self.spec.name
        began = time.monotonic()
        context.watch(StepStarted(host.name, "verifying"))
        checked = self.check(host, session)
        if checked.record is None:
            raise HostError(
                f"the environment {name} is damaged: {checked.problem}",
                Fix(
                    "check the disk of its home: `ipexctl doctor --smoke`; then remove it: `ipexctl envs "
                    f"--remove {name}`"
                ),
            )
        context.installed_mpi = checked.record.mpi or context.installed_mpi
        machine = machine_token(context.facts[host.name], host)
        client = self._client(host, session)
        result = client.verify(
            name, checked.record, machine=machine, packages=context.request.named, timeout=context.opened.timeout
        )
        problem = explain(result, env=name, record=checked.record)
        named = self.is_named(host)
        works_elsewhere = any(parse_result(other) for key, other in checked.verified.items() if key != machine)
        if problem is None and not named:
            client.link(name, context.request.name)
        elif problem is not None and named and not works_elsewhere:
            client.unlink(name, context.request.name)
        status: HostStatus = "failed" if problem is not None else "changed" if changed or not named else "ok"
        if problem is not None and result.failed and result.failed.timed_out and (burden := session.burden()):
            problem = f"{problem[0]}; {burden}", problem[1]
        reason, fix = problem or ("shares the home of another host" if shares_home else "", "")
        packages = self.spec.lock.packages
        context.add_result(host, status, reason, fix, env=name, packages=packages, verify=result.to_json())
        context.watch(HostFinished(host.name, f"verified ({time.monotonic() - began:.1f} s)", ok=problem is None))


def find_unpacked(
    context: InstallContext, hosts: Sequence[Host], lock: Lock, interpreters: Mapping[str, str]
) -> dict[str, frozenset[str]]:
    """Return host → hashes of the wheels that are unpacked in its home. One host of each home is asked; if it has no
    environment or does not answer, the set is empty."""
    facts, wheels = context.facts, [wheel.to_json() for wheel in lock.wheels]
    leader_of = find_leaders(hosts, lambda host: facts[host.name].store_of(host.name))
    leaders = [host for host in dict.fromkeys(leader_of.values()) if facts[host.name].software.envs]

    def query(host: Host, session: Session) -> frozenset[str]:
        client = EnvClient(session, AgentPlace(context.python(host, interpreters.get(host.name)), context.home))
        with context.timed(host.name, "compared its environments"):
            return client.unpacked(lock.python, wheels, cached=not context.request.dry_run)

    # A host that doesn't answer gets all wheels; if it is lost, sending them reports it.
    of_leaders = {done.host: done.result for done in context.pool.each(leaders, query) if done.result is not None}
    return {host.name: of_leaders.get(leader, frozenset()) for host, leader in leader_of.items()}


def find_obstacle(context: InstallContext, host: Host, lock: Lock, interpreter: str | None) -> tuple[str, str] | None:
    """Return problem and fix if the host's home can't take an environment of this lock; None if it can. Wheels that are
    already in its store need no space."""
    facts = context.facts[host.name]
    problem = home_problem(facts, lock)
    if problem is None:
        return None
    location = StoreLocation(host, context.python(host, interpreter), f"{context.home}/wheels")
    files = [wheel.stored_file for wheel in lock.wheels]
    try:
        lacking = StoreClient(location, context.pool.session(host), None).missing(files)
    except HostError:
        return problem
    return home_problem(facts, lock, held=lock.size - sum(file.size or 0 for file in lacking))


def check_by_digest(
    context: InstallContext, name: str, digest: str, interpreter: str | None, session: Session
) -> CheckResult:
    """Return what the agent finds wrong with the environment on the session's host, which must have this lock's
    digest."""
    host = session.host
    client = EnvClient(session, AgentPlace(context.python(host, interpreter), context.home))
    with context.timed(host.name, "checked the environment"):
        return client.check(name, digest=digest, cached=not context.request.dry_run)
