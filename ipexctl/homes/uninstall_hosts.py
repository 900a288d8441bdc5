"""List, then remove what ipexctl put on the hosts and on the control machine: the command `ipexctl uninstall`.

Files on the control machine go last, because the records are needed to reach the hosts again. Nothing is removed while
a run, an install or any process uses a home, and only what carries ipexctl's marker files is removed.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from ipexctl.errors import UserError
from ipexctl.facts.gather import HostFacts, gather_facts
from ipexctl.homes.control_files import FETCH_FIRST, find_control_files, remove_control_files
from ipexctl.homes.pending import abandoned_runs, runs_directory, starting_runs
from ipexctl.homes.registry import RunRegistry
from ipexctl.hosts.host import Host, find_leaders
from ipexctl.hosts.nodeset import fold
from ipexctl.hosts.select import LOCAL
from ipexctl.node.common.fix import Fix, join_fixes
from ipexctl.node.common.owners import Owned, name_owners
from ipexctl.node.uninstall import FileGroup, HomeReply, UninstallRequest
from ipexctl.remote.caller import describe_foreign, removal_request
from ipexctl.remote.connector import OpenHosts
from ipexctl.remote.node_call import AgentPlace, call
from ipexctl.remote.outcome import HostError, HostResult, Report, exit_code
from ipexctl.remote.session import Session
from ipexctl.text import join_words

CONTROL_MACHINE: Final = Host("control machine", "localhost")


@dataclass(frozen=True, slots=True)
class UninstallOptions:
    with_results: bool = False
    force: bool = False
    """Remove runs and environments of others, too."""


@dataclass(frozen=True, slots=True)
class UninstallResult(HostResult):
    home: str | None = None
    store: str | None = None
    found: tuple[FileGroup, ...] = ()
    left: tuple[FileGroup, ...] = ()
    live: tuple[str, ...] = ()
    """Runs that are still running there."""
    starting: tuple[str, ...] = ()
    """Runs that have files there and may still start; only their node0 knows."""
    over: tuple[str, ...] = ()
    """Runs that have ended, as their records there say."""
    busy: tuple[str, ...] = ()
    """Reasons, other than runs, why nothing can be removed now."""
    foreign: tuple[Owned, ...] = ()
    """Runs and environments that others made there."""

    @property
    def has_failed(self) -> bool:
        """True if the host could not be reached, or something there could not be listed or removed."""
        return self.status in ("failed", "unreachable")


@dataclass(frozen=True, slots=True)
class UninstallReport(Report[UninstallResult]):
    control: UninstallResult
    with_results: bool = False
    is_survey: bool = True
    obstacles: Mapping[str, HostError] = field(default_factory=dict)
    """For a dry run: host → why the call without --dry-run would remove nothing now."""

    @property
    def results(self) -> tuple[UninstallResult, ...]:
        """The results of the hosts, then that of the control machine."""
        return (*self.hosts, self.control)

    @property
    def has_changes(self) -> bool:
        """True if something was removed, or would be."""
        return any(result.status == "changed" for result in self.results)

    @property
    def exit_code(self) -> int:
        """The exit code of the command, for the hosts and the control machine."""
        return exit_code([result.status for result in self.results])


class _Uninstall:
    def __init__(self, opened: OpenHosts, options: UninstallOptions) -> None:
        self.hosts, self.selection = opened.hosts, shlex.split(opened.options.hosts)
        self.results: dict[str, UninstallResult] = {}
        self._opened = opened
        self._options = options
        self._began = time.monotonic()

    def report(self, control: UninstallResult, *, is_survey: bool) -> UninstallReport:
        hosts = tuple(self.results[host.name] for host in self.hosts)
        return UninstallReport(
            hosts, time.monotonic() - self._began, control, self._options.with_results, is_survey=is_survey
        )

    def working(self) -> list[UninstallResult]:
        return [self.results[host.name] for host in self.hosts if not self.results[host.name].has_failed]

    def leaders(self) -> dict[Host, Host]:
        """Return host without an error → the first host with the same home."""
        return find_leaders([result.host for result in self.working()], lambda host: self.results[host.name].store)

    def update(self, host: Host, error: HostError) -> None:
        self.results[host.name] = replace(
            self.results[host.name], status=error.status, reason=error.reason, fix=error.fix
        )

    def ended_runs(self) -> list[str]:
        return sorted({run for result in self.results.values() for run in result.over})

    def find_homes(self) -> None:
        for answer in gather_facts(self._opened):
            self.results[answer.host.name] = _first_result(answer)

    def call_agent(self, action: str, hosts: Sequence[Host]) -> None:
        """Let the agent do an action (`list`, `remove_data`, `remove`) on those of the hosts that have a home, and set
        their results."""
        ended = [*abandoned_runs(runs_directory()), *self.ended_runs()]
        known = [record.id for record in RunRegistry().all()]
        removal = removal_request(force=self._options.force, known=known)

        def work(host: Host, session: Session) -> UninstallResult:
            before = self.results[host.name]
            home = before.home or ""
            request: UninstallRequest = {
                **removal,
                "home": home,
                "results": self._options.with_results,
                "ended": ended,
            }
            reply = call(
                session,
                "uninstall",
                action,
                request,
                AgentPlace("", home),
                label=f"{action} the files of ipexctl",
                timeout=self._opened.timeout,
            )
            return _with_reply(before, reply.decode(HomeReply), self.selection)

        for outcome in self._opened.only(host for host in hosts if self.results[host.name].home).each(work):
            if outcome.result is not None:
                self.results[outcome.host.name] = outcome.result
            elif outcome.error is not None:
                self.update(outcome.host, outcome.error)

    def follow_leaders(self) -> None:
        """Set the results of hosts that share the home of another host: what is there counts once."""
        for host, leader in self.leaders().items():
            if leader != host:
                reason = f"shares the home of {leader.name}"
                self.results[host.name] = replace(
                    self.results[host.name], status="ok", reason=reason, found=(), left=()
                )

    def obstacles(self) -> dict[str, HostError]:
        """Return host in use → why nothing can be removed there now: a run, an install or another process."""
        ended = set(self.ended_runs())
        obstacles = {}
        for name, result in self.results.items():
            if runs := [run for run in (*result.live, *result.starting) if run in result.live or run not in ended]:
                stop = join_fixes(map(self._stop, runs))
                obstacles[name] = HostError(
                    f"nothing is removed while a run is alive: {', '.join(runs)}", Fix("to end it: {stop}", stop=stop)
                )
            elif result.busy:
                again = Fix("wait until it has ended, then: `ipexctl uninstall {*hosts}`", hosts=self.selection)
                obstacles[name] = HostError(result.busy[0], again)
        if starting := starting_runs(runs_directory()):
            reason = f"run {starting[0]} is being started by another call"
            obstacles[CONTROL_MACHINE.name] = HostError(reason, "wait for that call, or press Ctrl-C in it")
        return obstacles

    def _stop(self, run: str) -> Fix:
        """Return the fix that ends a run. It finds the run from the directory in which this call was typed: it names
        localhost for a run on this machine alone, and has --force for another caller's run."""
        options: tuple[str, ...] = ()
        if not RunRegistry().has(run):
            is_alone = [host.name for host in self.hosts] == [LOCAL.name]  # what no command looks at unnamed
            owned = {foreign_entry.name for result in self.results.values() for foreign_entry in result.foreign}
            options = ("--hosts", LOCAL.name) * is_alone + ("--force",) * (run in owned)
        return Fix("`ipexctl stop {run} {*words}`", run=run, words=options)

    def refuse(self, obstacles: Mapping[str, HostError]) -> UninstallReport:
        for result in self.working():
            name = result.host.name
            self.update(result.host, obstacles.get(name) or HostError(f"not done, because of {fold(obstacles)}"))
        error = obstacles.get(CONTROL_MACHINE.name) or HostError("not done, because of the hosts")
        return self.report(UninstallResult.of_error(CONTROL_MACHINE, error), is_survey=True)


def survey(opened: OpenHosts, options: UninstallOptions, *, dry_run: bool = False) -> UninstallReport:
    """Return what `uninstall` would remove, and change nothing. If something stands in the way, such as a live run, the
    result of each host is an error. Raises a UserError if others made something there, unless the call has --force. A
    dry run lists all the same, with the obstacles."""
    state = _Uninstall(opened, options)
    state.find_homes()
    state.call_agent("list", opened.hosts)  # on every host: processes of a shared home are seen on their own host only
    obstacles = state.obstacles()
    foreign = {name: result.foreign for name, result in state.results.items() if result.foreign and not options.force}
    arguments = (*state.selection, *(("--with-results",) if options.with_results else ()))
    again = Fix("`ipexctl uninstall {*words} --force`", words=arguments)
    if foreign and not dry_run:
        groups = [group for result in state.results.values() for group in (*result.found, *result.left)]
        others = {owned.name for on_host in foreign.values() for owned in on_host}
        pushed = {group.path for group in groups if group.kind == "pushed"} - others
        yours = f"; data that push wrote stays, too: {join_words(sorted(pushed))}" if pushed else ""
        raise UserError(f"nothing was removed: {describe_foreign(foreign)}{yours}", fix=again)
    for name, owned in foreign.items():
        obstacles[name] = HostError(f"this is not yours: {name_owners(owned)}", again)
    if obstacles and not dry_run:
        return state.refuse(obstacles)
    state.follow_leaders()
    removable, left = find_control_files(
        opened.hosts, opened.options.hosts, opened.home, with_results=options.with_results
    )
    if dry_run and any(result.has_failed for result in state.results.values()):
        left = ()  # their fixes would repeat the options of a call that failed, maybe because of its --home
    control = UninstallResult(CONTROL_MACHINE, "changed" if removable else "ok", found=removable, left=left)
    report = state.report(control, is_survey=True)
    return replace(report, obstacles=obstacles)


def uninstall(opened: OpenHosts, options: UninstallOptions) -> UninstallReport:
    """Remove what `survey` lists on the hosts, and if that worked on all of them, on the control machine."""
    listed = survey(opened, options)
    if listed.control.has_failed:
        return listed
    state = _Uninstall(opened, options)
    state.results = {result.host.name: result for result in listed.hosts}
    if options.with_results:  # hosts that share a home may each have pushed data on their own disks
        state.call_agent("remove_data", [host for host, leader in state.leaders().items() if host != leader])
    state.call_agent("remove", list(dict.fromkeys(state.leaders().values())))
    if any(result.has_failed for result in state.results.values()):
        # The call is not proposed again, because its --home may be wrong.
        control = replace(listed.control, status="failed", reason="not done, because hosts failed")
        return state.report(control, is_survey=False)
    remove_control_files(opened.hosts, opened.home, with_results=options.with_results)
    return state.report(listed.control, is_survey=False)


def _first_result(answer: HostFacts) -> UninstallResult:
    """Return the result of a host before its home is looked at: where the home is, or why the host can't be probed."""
    try:
        facts, home = answer.require_home()
    except HostError as error:
        return UninstallResult.of_error(answer.host, error)
    store = facts.store_of(answer.host.name)
    return UninstallResult(
        answer.host,
        "ok",
        home=home.path if home.exists else None,
        store=store,
    )


def _with_reply(before: UninstallResult, reply: HomeReply, selection: Sequence[str]) -> UninstallResult:
    """Return the result with what the host found, removed and left."""
    return replace(
        before,
        status="changed" if reply.found else before.status,
        found=reply.found or before.found,
        left=tuple(group._replace(fix=_fix_of_left(group.kind, selection)) for group in reply.left),
        live=reply.live,
        starting=reply.starting,
        over=reply.over,
        busy=reply.busy,
        foreign=reply.foreign,
    )


def _fix_of_left(kind: str, hosts: Sequence[str]) -> str:
    """Return why files of this kind stay on a host, or what removes them."""
    if kind == "changed":
        return "it was changed since push wrote it: look at it before you remove it"
    if kind in ("runs", "projects", "results", "pushed"):
        return Fix(FETCH_FIRST, hosts=hosts)
    if kind == "settings":
        return Fix("it undoes the settings of tune: `ipexctl play tune-xeon {*hosts} -e undo=true`", hosts=hosts)
    return "ipexctl did not make it: look at it before you remove it"
