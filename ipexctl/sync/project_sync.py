"""Sync a project to every host, at the same path: `ipexctl sync`, and a step of `run`.

First every host tells what it has. What it lacks follows in the same call if that is little; much goes to one host, and
from there to the others (`FileTransfer`). A tree in use by a run is never changed; a sync makes a second tree. A `run`
takes its lease in the same call, so that no sync comes between the upload and the start.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent import futures
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from ipexctl.files.stream import stream_entries
from ipexctl.hosts.host import Host, check_same_home, find_leaders
from ipexctl.node.common.fix import Fix
from ipexctl.node.common.home import STATE_DIRECTORY
from ipexctl.node.files.call_replies import Generation, TreeChanges, TreesReply
from ipexctl.node.files.manifest import ManifestEntry
from ipexctl.remote.connector import OpenHosts
from ipexctl.remote.fanout import Outcome, run_in_background
from ipexctl.remote.outcome import HostError, StepTimed, Watch, ignore_event
from ipexctl.remote.reply import MalformedReply
from ipexctl.remote.session import Session
from ipexctl.sync.node_calls import SyncReport, SyncResult, TreeCall, TreeCallOptions
from ipexctl.sync.project import Project, read_sent_manifest, remember

if TYPE_CHECKING:  # most syncs send little, and ask for no facts: 50 ms
    from ipexctl.facts.facts import Facts
    from ipexctl.files.file_transfer import FileTransfer
    from ipexctl.files.sent_manifest import Manifest


class SyncPlan(NamedTuple):
    """One generation for all hosts, and the hosts by what they need for it."""

    generation: int
    whole: tuple[Host, ...]
    """Hosts that have this generation."""
    leaders: tuple[Host, ...]
    """One host of each home that lacks this generation."""
    followers: tuple[tuple[Host, Host], ...]
    """The other hosts. Each has beside it the host whose home it shares: a leader, or a host that has the
    generation."""
    ended: tuple[str, ...]
    """Runs that ended, by the record on any host."""
    users: tuple[str, ...] = ()
    """Runs that use earlier generations."""


def make_sync_plan(hosts: Sequence[Host], answers: Mapping[str, TreesReply]) -> SyncPlan:
    """Return which copy of the project to use, which hosts have it, and which host gets it from whom."""
    present = [host for host in hosts if host.name in answers]
    generations = [generation for host in present for generation in answers[host.name].generations]
    ended = {run for generation in generations for run in generation.ended}
    held = {(generation.number, run) for generation in generations for run in generation.held if run not in ended}
    number = 1
    while not all(_is_usable(answers[host.name].generation(number), ended) for host in present):
        number += 1
    whole = tuple(host for host in present if _has(answers[host.name], number))
    lacking = [host for host in present if host not in whole]
    leader_of = find_leaders([*whole, *lacking], lambda host: answers[host.name].store or host)
    leaders = tuple(host for host in lacking if leader_of[host] == host)
    followers = tuple((host, leader_of[host]) for host in lacking if leader_of[host] != host)
    users = sorted({run for at, run in held if at < number})
    return SyncPlan(number, whole, leaders, followers, tuple(sorted(ended)), tuple(users))


def _is_usable(generation: Generation | None, ended: set[str]) -> bool:
    """Return True if the copy does not exist yet or no run uses it. Two runs in one copy would read and write each
    other's files."""
    return generation is None or not set(generation.held) - ended


def _has(answer: TreesReply, number: int) -> bool:
    """Return True if this is the host's first up-to-date copy that no run uses, because the host gave the lease to that
    one."""
    first = next((generation for generation in answer.generations if generation.whole and not generation.held), None)
    return first is not None and first.number == number


DISTRIBUTE_SIZE: Final = 8_000_000
"""Bytes. Less is sent from this machine to every host because going through one host costs a round trip."""
_MOST_ROUNDS: Final = 4
"""Times that a host may answer that files are missing: usually once, without a cached manifest."""


def query_project(
    project: Project,
    opened: OpenHosts,
    *,
    dry_run: bool = False,
    watch: Watch = ignore_event,
    lease: str | None = None,
    ended: Sequence[str] = (),
    query: TreeQuery | None = None,
) -> ProjectSync:
    """Ask every host which files it has; `upload` of the result sends the rest.

    `query` may have started already. `lease`: run that will use the tree; each host records it in the same call, and
    no sync changes the tree until that run ended. `ended`: runs that use no tree, whatever the hosts' records say.
    """
    request = TreeCallOptions(opened.home, project, dry_run, None if dry_run else lease, tuple(ended))
    sync = ProjectSync(request, opened, watch)
    sync.query(query)
    return sync


class TreeQuery:
    """The call to every host, which starts the agents before the project is read."""

    def __init__(self, opened: OpenHosts, *, dry_run: bool = False) -> None:
        self._opened, self._dry_run = opened, dry_run
        self._request: Future[TreeCallOptions] = Future()
        self._watch: Watch = ignore_event
        self._outcomes = run_in_background(lambda: list(opened.each(self._work)), "trees")

    def _work(self, host: Host, session: Session) -> TreeCall:
        began = time.monotonic()
        answered = TreeCall(session, self._opened, lambda: self._request.result().fields(), dry_run=self._dry_run)
        self._watch(StepTimed(host.name, "asked", time.monotonic() - began))
        return answered

    def send(self, request: TreeCallOptions, watch: Watch) -> list[Outcome[Host, TreeCall]]:
        """Send the request to all hosts, and return their answers. May be called once."""
        self._watch = watch
        self._request.set_result(request)
        return self._outcomes.result()


class ProjectSync:
    def __init__(self, request: TreeCallOptions, opened: OpenHosts, watch: Watch) -> None:
        self.request, self.project, self.opened, self.hosts = request, request.project, opened, opened.hosts
        self.facts: dict[str, Facts] = {}
        self.watch, self.dry_run = watch, request.dry_run
        self.done: dict[str, SyncResult] = {}
        self.answers: dict[str, TreesReply] = {}
        self._calls: dict[str, TreeCall] = {}
        """The calls to hosts that may still be asked for something."""
        self._sent: dict[str, int] = {}
        """Host → bytes from this machine."""
        self.plan: SyncPlan | None = None
        self.notes = list(self.project.notes)
        self._began = time.monotonic()
        self._manifests: dict[str, Manifest | None] = {}
        self._packed: dict[frozenset[str], bytes] = {}
        self._packing = threading.Lock()

    @property
    def needs_upload(self) -> bool:
        """True if some host lacks the project as it is now."""
        return self.plan is not None and bool(self.plan.leaders or self.plan.followers)

    def query(self, query: TreeQuery | None = None) -> None:
        """Ask the hosts for their copies, and plan the upload. `query`: one that was begun before."""
        self._query(self.hosts, query)
        refusal = check_same_home({name: answer.home for name, answer in self.answers.items()})
        if refusal is not None:
            for host in self.hosts:
                if host.name in self.answers:
                    self._fail(host, HostError(refusal.reason, refusal.fix))
            self._end_calls(self.hosts)
            return
        self.plan = make_sync_plan(self.hosts, self.answers)
        self.request = self.request._replace(ended=tuple(sorted({*self.request.ended, *self.plan.ended})))
        for host in self.plan.whole:
            self._end_whole(host)
        self._end_calls([host for host in self.hosts if host not in self.plan.leaders])

    def upload(self) -> SyncReport:
        """Send the project to the hosts that lack it. Returns the report of all hosts."""
        if self.plan is not None and self.needs_upload:
            self._note_generation(self.plan)
            self._upload(self.plan)
            self._end_calls(self.hosts)
        if self.plan is not None and not self.dry_run and any(done.status == "changed" for done in self.done.values()):
            remember(self.project)
        return self._report()

    @property
    def _generation(self) -> int:
        assert self.plan is not None
        return self.plan.generation

    def _query(self, hosts: Sequence[Host], query: TreeQuery | None = None) -> None:
        """Ask these hosts for their copies. Hosts that can't answer get their error as result."""
        query = query or TreeQuery(self.opened.only(hosts), dry_run=self.dry_run)
        for done in query.send(self.request, self.watch):
            if done.result is not None:
                self._calls[done.host.name], self.answers[done.host.name] = done.result, done.result.trees
                self._sent[done.host.name] = 0
            elif done.error is not None:
                self._fail(done.host, done.error)

    def _end_calls(self, hosts: Sequence[Host]) -> None:
        futures.wait([call.end() for host in hosts if (call := self._calls.pop(host.name, None)) is not None])

    def _end_whole(self, host: Host, reason: str = "") -> bool:
        """Set the result of a host that has the whole project, and return True; False if the host lacks some of it.
        `reason`: why the host counts as changed; empty if it had everything before."""
        generation = self.answers[host.name].generation(self._generation)
        if generation is None or not generation.whole:
            return False
        self.done[host.name] = SyncResult(
            host,
            "changed" if reason else "ok",
            reason,
            seconds=self._seconds,
            path=generation.path,
            generation=generation.number,
            kept=generation.kept,
            blocked=generation.blocked,
        )
        return True

    def _upload(self, plan: SyncPlan) -> None:
        """Bring the project to one host of each home. Then look whether the other hosts see it, and bring it to those
        that do not."""
        self._to_leaders(plan.leaders)
        followers = []
        for host, leader in plan.followers:
            result = self.done[leader.name]
            if self.dry_run:
                self.done[host.name] = replace(result, host=host, reason=f"shares the home of {leader.name}")
            elif result.status in ("failed", "unreachable"):
                reason = f"it shares the home of {leader.name}, where the sync failed: {result.reason}"
                self._fail(host, HostError(reason, result.fix))
            else:
                followers.append((host, leader))
        self._query([host for host, _ in followers])
        left = [(host, f"shares the home of {leader.name}") for host, leader in followers if host.name not in self.done]
        # A clone of the other machine, with its own disk, does not have the tree.
        self._to_leaders([host for host, reason in left if not self._end_whole(host, reason)])

    def _guess_missing(self, host: Host, number: int) -> set[str]:
        """Return the contents that a host lacks, by cached manifests of its trees; none if a manifest is not cached.
        The host answers if it lacks more."""
        wanted = set(self.project.manifest.files)
        for generation in self.answers[host.name].generations:
            if not generation.digest:
                continue
            if generation.digest not in self._manifests:
                self._manifests[generation.digest] = read_sent_manifest(self.project, generation.digest)
            if (sent := self._manifests[generation.digest]) is None:
                return set()
            wanted -= set(sent.files)
        current = self.answers[host.name].generation(number)
        return wanted - set(current.staged if current else ())

    def _to_leaders(self, hosts: Sequence[Host]) -> None:
        """Bring the project to these hosts, and set their results."""
        needs = {host.name: self._guess_missing(host, self._generation) for host in hosts}
        transfer, ready = self._make_transfer(hosts, needs), list(hosts)
        if transfer is not None:
            from ipexctl.files.file_transfer import local_files

            origin = local_files(self.project.root, self.project.manifest.files.__getitem__, in_groups=False)
            ready = transfer.bring_all(origin, self._fail)

        def put(host: Host, _: Session) -> TreeChanges:
            if transfer is None:
                return self._put(host, self._contents(needs[host.name]))
            self._sent[host.name] += transfer.sent.get(host.name, 0)
            return self._put(host, b"", transfer.parcels)

        for done in self.opened.only(ready).each(put):
            if done.result is not None:
                self._finish(done.host, done.result)
            elif done.error is not None:
                self._fail(done.host, done.error)

    def _make_transfer(self, hosts: Sequence[Host], needs: Mapping[str, set[str]]) -> FileTransfer | None:
        """Return the transfer from host to host, for much content and several hosts; else None."""
        size = sum(self.project.manifest.files[sha256].size for sha256 in set[str]().union(*needs.values()))
        if self.dry_run or len(hosts) < 2 or size < DISTRIBUTE_SIZE:
            return None
        from ipexctl.files.file_transfer import FileTransfer
        from ipexctl.files.store_client import StoreLocation
        from ipexctl.node.files.tree import STAGE, tree_directory

        stage = f"code/{tree_directory(self.project.name, self._generation)}/{STATE_DIRECTORY}/{STAGE}"
        stores = []
        for host in hosts:
            answer = self.answers[host.name]
            stores.append(StoreLocation(host, answer.python, f"{answer.home}/{stage}", home=answer.home))
        return FileTransfer(stores, needs, self.opened, self.facts, self.watch)

    def _put(
        self,
        host: Host,
        contents: bytes | Sequence[ManifestEntry],
        parcels: Sequence[str] = (),
    ) -> TreeChanges:
        """Let the host change its tree, and send what it still lacks, in a few rounds at most. Raises a HostError if a
        run has begun to use the tree, or if contents are still missing."""
        began = time.monotonic()
        for _ in range(_MOST_ROUNDS):
            reply, count = self._calls[host.name].put(self.request, self._generation, contents, parcels)
            self._sent[host.name] += count
            if not reply.need:
                break
            if not set(reply.need) <= set(self.project.manifest.files):
                raise MalformedReply("it needs files that are not in the project", json.dumps(reply))
            parcels, contents = (), self._contents(set(reply.need))
        self.watch(StepTimed(host.name, "sent", time.monotonic() - began))
        if reply.busy:
            raise HostError(f"run {', '.join(reply.busy)} began to use the tree during the sync", "run it again")
        if reply.changes is None:
            raise HostError("files that were sent are still missing there", "run it again")
        return reply.changes

    def _contents(self, need: set[str]) -> bytes | Sequence[ManifestEntry]:
        """Return contents for the agent. A small amount is read once for all hosts that lack the same files."""
        entries = [self.project.manifest.files[sha256] for sha256 in sorted(need)]
        if self.dry_run:
            return b""
        return entries if sum(entry.size for entry in entries) > DISTRIBUTE_SIZE else self._pack(need)

    def _pack(self, need: set[str]) -> bytes:
        """Return the stream of these contents, made once for all hosts that lack the same."""
        key = frozenset(need)
        with self._packing:
            if key not in self._packed:
                root = os.fsencode(self.project.root)
                entries = [self.project.manifest.files[sha256] for sha256 in sorted(need)]
                self._packed[key] = b"".join(stream_entries(root, entries))
            return self._packed[key]

    def _note_generation(self, plan: SyncPlan) -> None:
        """Note that the project gets a new directory, because runs use the old one."""
        if plan.generation > 1 and plan.users:
            verb = "uses" if len(plan.users) == 1 else "use"
            text = Fix(
                "the project is copied to a new directory, because {users} still {verb} the old one. Files that runs "
                "wrote there stay there (`ipexctl fetch` brings them), also data that an earlier run prepared: put it "
                "outside of the project, as a --data directory, or first type `ipexctl wait {*runs}`",
                users=", ".join(plan.users), verb=verb, runs=plan.users,
            )  # fmt: skip
            self.notes.append(text)

    @property
    def _seconds(self) -> float:
        return time.monotonic() - self._began

    def _finish(self, host: Host, changes: TreeChanges) -> None:
        """Set the result of a host whose tree was changed."""
        self.done[host.name] = SyncResult(
            host,
            "changed" if changes.changed else "ok",
            seconds=self._seconds,
            path=changes.path,
            generation=self._generation,
            sent_bytes=0 if self.dry_run else self._sent[host.name],
            files_sent=changes.placed,
            files_deleted=changes.deleted,
            kept=changes.kept,
            blocked=changes.blocked,
            moved_away=changes.moved_away,
            would_send=changes.would_place,
            would_delete=changes.would_delete,
        )

    def _fail(self, host: Host, error: HostError) -> None:
        self.done[host.name] = SyncResult.of_error(host, error, seconds=self._seconds)

    def _report(self) -> SyncReport:
        """Return the report of all hosts that have a result. The path is in it only if all hosts have the same."""
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
            self.plan.generation if self.plan is not None else None,
            tuple(dict.fromkeys(self.notes)),
            self.dry_run,
            self.project.left_out,
            self.project.fetched,
        )
