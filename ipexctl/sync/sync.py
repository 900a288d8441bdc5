"""The verb behind `ipexctl sync`, and what `run` does before it launches: the project on every host, at one path."""

from __future__ import annotations

import json
import os
import threading
import time
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from ipexctl.remote.outcome import HostError
from ipexctl.remote.progress import Notice, Timed, ignore_event
from ipexctl.remote.reply import MalformedReply
from ipexctl.sync.node_calls import TreeRequest, frame, put_tree, query_tree
from ipexctl.sync.plan import homes_differ, make_sync_plan
from ipexctl.sync.project import remember, sent_before
from ipexctl.sync.report import SyncReport, SyncResult

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ipexctl.facts.facts import Facts
    from ipexctl.hosts.host import Host
    from ipexctl.remote.progress import Watch
    from ipexctl.remote.reply import Reply
    from ipexctl.remote.session import Session
    from ipexctl.remote.session_pool import SessionPool
    from ipexctl.sync.manifest import Entry
    from ipexctl.sync.node_calls import TreeState
    from ipexctl.sync.plan import SyncPlan
    from ipexctl.sync.project import Project
    from ipexctl.sync.upload import Uploader

MUCH: Final = 8_000_000
"""Bytes. Less than that is sent to every host by ourselves: the first host would have to answer before the others."""
_ROUNDS: Final = 4
"""How often a host may say that it lacks something still: once is the rule, where nobody remembers what it has."""


def query_project(
    project: Project,
    hosts: Sequence[Host],
    pool: SessionPool,
    facts: Mapping[str, Facts] | None = None,
    *,
    home: str,
    iface: str | None = None,
    watch: Watch = ignore_event,
    timeout: float | None = None,
    dry_run: bool = False,
    lease: str | None = None,
    ended: Sequence[str] = (),
) -> ProjectSync:
    """Ask every host which files of the project it has. `upload` of the result sends what is missing.

    `facts`, when they are known already, save a probe when there is much to send. `lease` is the id of the run that
    will use the tree: each host notes it in the same call, and nobody changes it until that run has ended. `ended` are
    runs that use no tree, whatever the hosts' records say.
    """
    pythons = {name: python for name, known in (facts or {}).items() if (python := _python(known))}
    order = TreeRequest(home, project, None if dry_run else lease, tuple(ended), pythons)
    sync = ProjectSync(order, hosts, pool, facts, iface=iface, watch=watch, timeout=timeout, dry_run=dry_run)
    sync.query()
    return sync


def _python(facts: Facts) -> str | None:
    fit = (python.path for python in facts.software.pythons if (python.minor or (0, 0)) >= (3, 8))
    return next(fit, None)


class ProjectSync:
    """One sync of a project: hosts are asked first, and what they lack is uploaded afterwards."""

    def __init__(
        self,
        order: TreeRequest,
        hosts: Sequence[Host],
        pool: SessionPool,
        facts: Mapping[str, Facts] | None,
        *,
        iface: str | None,
        watch: Watch,
        timeout: float | None,
        dry_run: bool,
    ) -> None:
        self.order, self.project, self.hosts, self.pool = order, order.project, tuple(hosts), pool
        self.facts = dict(facts or {})
        self.iface, self.watch, self.timeout, self.dry_run = iface, watch, timeout, dry_run
        self.done: dict[str, SyncResult] = {}
        self.answers: dict[str, TreeState] = {}
        self.plan: SyncPlan | None = None
        """None before the query, and if the hosts' homes differ."""
        self.notes = list(self.project.notes)
        self._began = time.monotonic()
        self._frames: dict[frozenset[str], bytes] = {}
        self._packing = threading.Lock()

    @property
    def needs_upload(self) -> bool:
        return self.plan is not None and bool(self.plan.leaders)

    def query(self) -> None:
        self._ask(self.hosts)
        reason = homes_differ({name: answer.home for name, answer in self.answers.items()})
        if reason is not None:
            for host in self.hosts:
                if host.name in self.answers:
                    self._fail(
                        host, HostError(reason, "--home DIR names one path for all, such as /scratch/me/ipexctl")
                    )
            return
        self.plan = make_sync_plan(self.hosts, self.answers)
        self.order = replace(self.order, ended=tuple(sorted({*self.order.ended, *self.plan.ended})))
        for host in self.plan.whole:
            self._end_whole(host, self.plan.generation)

    def upload(self) -> SyncReport:
        """Upload to every host what it lacks."""
        if self.plan is None:
            return self._report(None)
        if self.plan.leaders:
            self._note_generation(self.plan)
            self._deliver(self.plan)
        if not self.dry_run and any(done.status == "changed" for done in self.done.values()):
            remember(self.project)
        return self._report(self.plan.generation)

    # Asking

    def _ask(self, hosts: Sequence[Host]) -> None:
        def work(host: Host, session: Session) -> TreeState:
            began = time.monotonic()
            answer = query_tree(
                session, self.order, dry_run=self.dry_run, timeout=self.timeout, cancel=self.pool.cancel
            )
            self.watch(Timed(host.name, "asked", time.monotonic() - began))
            return answer

        for done in self.pool.each(hosts, work):
            if done.result is not None:
                self.answers[done.host.name] = done.result
            elif done.error is not None:
                self._fail(done.host, done.error)

    def _end_whole(self, host: Host, number: int, reason: str = "") -> bool:
        """Note that a host has what it should; False where it hasn't."""
        found = self.answers[host.name].generation(number)
        if found is None or not found.whole:
            return False
        self.done[host.name] = SyncResult(
            host, "changed" if reason else "ok", reason, "", self._seconds, found.path, number, kept=found.kept
        )
        return True

    # Sending

    def _deliver(self, decision: SyncPlan) -> None:
        needs = {host.name: self._guess(host, decision.generation) for host in decision.leaders}
        self._to_leaders(decision, decision.leaders, needs)
        if self.dry_run:
            for host, leader in decision.followers:
                self.done[host.name] = replace(
                    self.done[leader.name], host=host, reason=f"shares the home of {leader.name}"
                )
            return
        followers = []
        for host, leader in decision.followers:
            led = self.done[leader.name]
            if led.status in ("failed", "unreachable"):
                said = f"it shares the home of {leader.name}, where this went wrong: {led.reason}"
                self._fail(host, HostError(said, led.fix))
            else:
                followers.append((host, leader))
        self._ask([host for host, _ in followers])
        alone = []
        for host, leader in followers:
            if host.name in self.done:
                continue
            if not self._end_whole(host, decision.generation, f"shares the home of {leader.name}"):
                alone.append(host)  # a machine that was cloned from the other, with a disk of its own
        if alone:
            self._to_leaders(decision, alone, {host.name: self._guess(host, decision.generation) for host in alone})

    def _guess(self, host: Host, number: int) -> set[str]:
        """The contents a host lacks, as far as we remember what it has. What it lacks beside, it will say."""
        wanted = set(self.project.manifest.files)
        for each in self.answers[host.name].generations:
            if not each.digest:
                continue
            had = sent_before(self.project, each.digest)
            if had is None:
                return set()
            wanted -= set(had.files)
        here = self.answers[host.name].generation(number)
        return wanted - set(here.staged if here else ())

    def _to_leaders(self, decision: SyncPlan, hosts: Sequence[Host], needs: Mapping[str, set[str]]) -> None:
        with ExitStack() as ends:
            bringer = self._bringer(hosts, needs)
            if bringer is not None:
                try:
                    ends.enter_context(bringer)
                except HostError as error:
                    first = hosts[0]
                    for host in hosts:
                        said = error.reason if host is first else f"files come by way of {first.name}: {error.reason}"
                        self._fail(host, error if host is first else HostError(said, error.fix))
                    return
            for done in self.pool.each(
                hosts, lambda host, session: self._to_one(host, session, decision, needs[host.name], bringer)
            ):
                if done.result is not None:
                    self.done[done.host.name] = done.result
                elif done.error is not None:
                    self._fail(done.host, done.error)
            if bringer is not None:
                for _ in self.pool.each(hosts, bringer.drop):
                    pass

    def _bringer(self, hosts: Sequence[Host], needs: Mapping[str, set[str]]) -> Uploader | None:
        """Where it is much, and for many, it takes another way than from here to each."""
        contents = [self.project.manifest.files[sha] for sha in sorted(set().union(*needs.values()))]
        if self.dry_run or len(hosts) < 2 or sum(entry.size for entry in contents) < MUCH:
            return None
        from ipexctl.facts.gather import gather  # these cost start-up, and are seldom needed
        from ipexctl.sync.upload import Cluster, Uploader

        unknown = [host for host in hosts if host.name not in self.facts]
        if unknown:
            for answer in gather(unknown, self.pool, home=self.order.home, timeout=self.timeout):
                if answer.facts is not None:
                    self.facts[answer.host.name] = answer.facts
        first = [host for host in hosts if needs[host.name]]
        order = (*first, *(host for host in hosts if host not in first))
        cluster = Cluster(order, self.answers, self.facts, self.iface, self.timeout)
        return Uploader(self.project, contents, cluster, self.pool, self.watch)

    def _to_one(
        self, host: Host, session: Session, decision: SyncPlan, need: set[str], bringer: Uploader | None
    ) -> SyncResult:
        began, sent = time.monotonic(), 0
        blobs = bringer.bring(host, session) if bringer is not None and need else []
        sent += bringer.sent.get(host.name, 0) if bringer is not None else 0
        contents = [] if blobs else self._contents(need)
        for _ in range(_ROUNDS):
            said, count = put_tree(
                session,
                self.order,
                decision.generation,
                contents,
                blobs=blobs,
                dry_run=self.dry_run,
                timeout=self.timeout,
                cancel=self.pool.cancel,
            )
            sent += count
            if "need" not in said:
                break
            needed = set(said.texts("need"))
            if not needed <= set(self.project.manifest.files):
                raise MalformedReply("it needs files that are not in the project", json.dumps(said))
            blobs, contents = [], self._contents(needed)
        self.watch(Timed(host.name, "sent", time.monotonic() - began))
        return self._synced(host, said, decision.generation, 0 if self.dry_run else sent)

    def _synced(self, host: Host, said: Reply, number: int, sent: int) -> SyncResult:
        if "busy" in said:
            runs = ", ".join(said.texts("busy"))
            raise HostError(f"the run {runs} has begun to use the tree meanwhile", "run it again")
        if "need" in said:
            raise HostError("files don't arrive there", "run it again")
        return SyncResult(
            host,
            "changed" if said.flag("changed") else "ok",
            seconds=self._seconds,
            path=said.text("path"),
            generation=number,
            sent_bytes=sent,
            files_sent=said.integer("placed"),
            files_deleted=said.integer("deleted"),
            kept=said.texts("kept"),
            blocked=said.texts("blocked"),
            aside=said.texts("aside"),
            would_send=said.optional_texts("place"),
            would_delete=said.optional_texts("delete"),
        )

    def _contents(self, need: set[str]) -> list[bytes | Entry]:
        """Small amounts are read once for all hosts that lack the same."""
        entries = [self.project.manifest.files[sha] for sha in sorted(need)]
        if self.dry_run or sum(entry.size for entry in entries) > MUCH:
            return [] if self.dry_run else list(entries)
        key = frozenset(need)
        with self._packing:
            if key not in self._frames:
                root = os.fsencode(self.project.root)
                self._frames[key] = b"".join(frame(root, entry) for entry in entries)
            return [self._frames[key]]

    # Saying

    def _note_generation(self, decision: SyncPlan) -> None:
        if decision.generation > 1 and decision.users:
            use = "uses" if len(decision.users) == 1 else "use"
            text = (
                f"{', '.join(decision.users)} still {use} the tree, which is left as it is; the project as it is now "
                "goes beside it, without the files that runs wrote there"
            )
            self.notes.append(text)
            self.watch(Notice(text))

    @property
    def _seconds(self) -> float:
        return time.monotonic() - self._began

    def _fail(self, host: Host, error: HostError) -> None:
        self.done[host.name] = SyncResult(host, error.status, error.reason, error.fix, seconds=self._seconds)

    def _report(self, generation: int | None) -> SyncReport:
        hosts = tuple(self.done[host.name] for host in self.hosts if host.name in self.done)
        paths = {host.path for host in hosts if host.path}
        return SyncReport(
            hosts,
            self._seconds,
            self.project.root,
            self.project.name,
            self.project.manifest.digest,
            self.project.manifest.count,
            self.project.manifest.size,
            paths.pop() if len(paths) == 1 else None,
            generation,
            tuple(dict.fromkeys(self.notes)),
            self.dry_run,
            self.project.left_out,
        )
