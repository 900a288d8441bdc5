"""Running a playbook: play after play, each task on all hosts before the next, hosts that fail leave.

What one task does on its hosts is in `turn`.
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any, Final

from ipexctl.playbook.facts_hints import ANSIBLE_FACTS
from ipexctl.playbook.masks import masked, secrets_in, shown
from ipexctl.playbook.model import Block, Flush
from ipexctl.playbook.positions import templates_in
from ipexctl.playbook.report import (
    Counts,
    HostDone,
    PlayBegan,
    PlayNotice,
    PlayReport,
    TaskBegan,
    TaskDone,
    TaskReport,
)
from ipexctl.playbook.result import Result
from ipexctl.playbook.task_runner import TaskRunner
from ipexctl.playbook.templater import Filled, Job
from ipexctl.playbook.variables import ansible_facts, tell_call, tell_hosts, tell_play

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ipexctl.hosts.host import Host
    from ipexctl.playbook.model import Play, Playbook, Step, Task
    from ipexctl.playbook.play_context import PlayContext
    from ipexctl.playbook.positions import Templated

_FACTS: Final = re.compile(rf"\b((ansible_)?facts|ansible_({'|'.join(ANSIBLE_FACTS)}))\b")
GATHER: Final = "gather facts"


class Engine:
    """One run of a playbook: the only thing here that changes."""

    def __init__(
        self,
        playbook: Playbook,
        hosts_of: Mapping[int, Sequence[Host]],
        tasks: frozenset[int],
        files: Mapping[int, Templated],
        context: PlayContext,
        ask: Callable[[Task], str] | None = None,
    ) -> None:
        self.context = context
        self.counts = {host.name: Counts() for host in context.hosts}
        self.gone: set[str] = set()
        """Unreachable."""
        self.out: set[str] = set()
        """Failed, and for good."""
        self.away: dict[str, str] = {}
        """Hosts that the play goes on without, and why; those a rescue has back are none of them."""
        self.reports: list[TaskReport] = []
        self._playbook = playbook
        self._hosts_of = hosts_of
        self._tasks = tasks
        self._files = files
        self._ask = ask
        self._facts: set[str] = set()
        self._fell: set[str] = set()
        """Counted as failed, and not rescued so far."""
        self._whole: set[str] = set()
        """All hosts that this play, or its turn of `serial`, was meant for."""
        self._notified: dict[str, set[str]] = {}
        self._play: Play = playbook.plays[0]
        self._over = False
        self._began = time.monotonic()

    def run(self) -> PlayReport:
        tell_call(self.context, str(self._playbook.path.parent))
        for number, play in enumerate(self._playbook.plays):
            if self._over or self.context.cancel.thrown:
                break
            self._play = play
            self._run_play(number, play)
        return PlayReport(
            self._playbook.shown,
            self.counts,
            tuple(self.reports),
            time.monotonic() - self._began,
            check=self.context.options.check,
            plays=tuple(play.name for play in self._playbook.plays),
        )

    def remember(self, host: str, values: Mapping[str, Any]) -> None:
        """What a task found out: for all later ones on that host."""
        self.context.templater.add(f"own:{host}", values)

    # Plays

    def _run_play(self, number: int, play: Play) -> None:
        every = self._hosts_of[number]
        hosts = [host for host in every if host.name not in self.gone | self.out]
        if not hosts:
            note = "none of its hosts is left" if every else "the limit leaves none of its hosts"
            self.context.watch(PlayBegan(play.name, (), note))
            return
        tell_play(self.context, number, play)
        groups = batches(hosts, play.serial)
        for index, batch in enumerate(groups, 1):
            if self._over or self.context.cancel.thrown:
                break
            names = tuple(host.name for host in batch)
            note = f"{index} of {len(groups)}, serial" if len(groups) > 1 else ""
            self.context.watch(PlayBegan(play.name, names, note))
            tell_hosts(self.context, names, [host.name for host in hosts])
            self._whole = {host.name for host in every} - {host.name for host in hosts} | set(names)
            self._run_batch(play, batch)
            if index < len(groups) and not self._left(names):
                self.context.watch(
                    PlayNotice("serial: all of these failed, so the others are left alone", warning=True)
                )
                self._over = True

    def _run_batch(self, play: Play, hosts: Sequence[Host]) -> None:
        self._notified = {}
        wants_facts = play.gather_facts or (play.gather_facts is None and self._uses_facts(play))
        if wants_facts and any(id(task) in self._tasks for task in play.tasks):
            self._gather(hosts)
        names = [host.name for host in hosts]
        self.out |= self._steps(play.steps, self._left(names))
        self.out |= self._handlers(play, self._left(names))
        if play.any_errors_fatal and not self._left(names):
            self.context.watch(PlayNotice("any_errors_fatal: the play ends here, for all hosts", warning=True))
            self._over = True

    def missing(self, hosts: Sequence[str]) -> dict[str, str]:
        """Of the hosts this play was meant for those that have left it, and why; `hosts` are here still."""
        return {name: why for name, why in self.away.items() if name in self._whole - set(hosts)}

    def _left(self, names: Sequence[str]) -> list[str]:
        return [name for name in names if name not in self.gone | self.out]

    def _uses_facts(self, play: Play) -> bool:
        values: list[Any] = [dict(play.vars), list(play.file_vars), list(self.context.options.extra)]
        values += self.context.options.vars_dirs.values()
        for task in (*play.tasks, *play.handlers):
            if id(task) in self._tasks:
                values += task_values(task)
                if id(task) in self._files:
                    values.append(self._files[id(task)])
        return any(_FACTS.search(template.text) for template in templates_in(values))

    def _gather(self, hosts: Sequence[Host]) -> None:
        from ipexctl.facts.facts import to_json
        from ipexctl.facts.gather import gather

        wanted = [host for host in hosts if host.name not in self._facts]
        if not wanted:
            return
        report = self.begin(GATHER, "facts", "")
        options = self.context.options
        for answer in gather(wanted, self.context.pool, home=options.home, timeout=options.timeout):
            name = answer.host.name
            if answer.facts is None or answer.status != "ok":
                status: Any = "unreachable" if answer.status == "unreachable" else "failed"
                self.end(report, name, Result(status, answer.reason, answer.fix))
                self.out |= {name} if status == "failed" else set()
                continue
            self._facts.add(name)
            facts = to_json(answer.facts)
            named = ansible_facts(facts, name)
            told = {
                "facts": facts,
                "ansible_facts": {**facts, **named},
                **{f"ansible_{k}": v for k, v in named.items()},
            }
            self.context.templater.layer(f"facts:{name}", told, templated=False)
            self.end(report, name, Result("ok"))
        self.finish(report)

    def _handlers(self, play: Play, hosts: Sequence[str]) -> set[str]:
        """Those that were notified since the last time; returns the hosts that failed."""
        failed: set[str] = set()
        for handler in play.handlers:
            told: set[str] = set()
            for name in (handler.called, *handler.listen):
                told |= self._notified.get(name, set())
            wanted = [name for name in hosts if name in told and name not in self.gone | failed]
            if wanted and not self._over:
                failed |= self._task(handler, wanted, handler=True)
        for name in self._notified:
            self._notified[name] -= set(hosts)
        return failed

    def notify(self, name: str, host: str) -> None:
        self._notified.setdefault(name, set()).add(host)

    # Steps

    def _steps(self, steps: Sequence[Step], hosts: Sequence[str]) -> set[str]:
        """Each on all hosts that are still there; returns those that failed, and so left."""
        failed: set[str] = set()
        for step in steps:
            alive = [name for name in hosts if name not in failed | self.gone]
            if not alive or self._over or self.context.cancel.thrown:
                break
            if isinstance(step, Block):
                failed |= self._block(step, alive)
            elif isinstance(step, Flush):
                failed |= self._handlers(self._play, alive)
            elif id(step) in self._tasks:
                failed |= self._task(step, alive)
        return failed

    def _block(self, block: Block, hosts: Sequence[str]) -> set[str]:
        failed = self._steps(block.block, hosts)
        if block.rescue and (helped := [name for name in hosts if name in failed and name not in self.gone]):
            for name in helped:
                self.away.pop(name, None)
                self._rescue(name)
            failed = (failed - set(helped)) | self._steps(block.rescue, helped)
        if block.always:
            failed |= self._steps(block.always, [name for name in hosts if name not in self.gone])
        return failed

    def _rescue(self, name: str) -> None:
        """Only what it failed at itself is rescued: others may have left with it."""
        if name in self._fell:
            self._fell.discard(name)
            self.counts[name].failed -= 1
            self.counts[name].rescued += 1

    def _task(self, task: Task, hosts: Sequence[str], *, handler: bool = False) -> set[str]:
        if self._ask is not None and not self._may(task):
            return set()
        report = self.begin(self._name(task, hosts[0]), task.spec.name, str(task.place), handler=handler)
        failed = TaskRunner(self, task, report, hosts).run()
        self.finish(report)
        if self._play.any_errors_fatal and (failed or self.gone & set(hosts)):
            first = next(name for name in hosts if name in failed | self.gone)
            failed = set(hosts) - self.gone
            for name in failed:
                self.away.setdefault(name, f"any_errors_fatal, and {first} failed")
        return failed

    def _name(self, task: Task, host: str) -> str:
        """As it reads on the first host; as it is written where that can't be known."""
        if isinstance(task.name, str):
            return task.name
        local = [(values, True) for values in task.inherited.vars]
        (found,) = self.context.templater.fill([Job(host, {"name": task.name}, local=local)])
        name = str(found.values["name"]) if isinstance(found, Filled) else task.called
        return masked(name, self.context.templater.secrets)

    def _may(self, task: Task) -> bool:
        """--step: yes, no, or all the rest."""
        assert self._ask is not None
        answer = self._ask(task)
        if answer == "all":
            self._ask = None
        return answer != "no"

    # What is told, counted and kept

    def begin(self, name: str, module: str, place: str, *, handler: bool = False) -> TaskReport:
        report = TaskReport(name, self._play.name, module, place, seconds=time.monotonic())
        self.reports.append(report)
        self.context.watch(TaskBegan(name, module, place, handler))
        return report

    def end(
        self,
        report: TaskReport,
        host: str,
        result: Result,
        *,
        no_log: bool = False,
        ignored: bool = False,
        loop: bool = False,
    ) -> None:
        """Count one host's outcome and tell it; nothing secret gets past here."""
        counts = self.counts[host]
        if no_log:
            self.context.templater.secrets |= secrets_in(result)
        seen = shown(result, self.context.templater.secrets, no_log=no_log)
        report.hosts[host] = seen
        if ignored and result.status == "failed":
            report.ignored.add(host)
            counts.ok += 1
            counts.changed += result.changed
            counts.ignored += 1
        elif result.status == "unreachable":
            counts.unreachable += 1
            self.gone.add(host)
            self.away[host] = f"unreachable at {report.name}"
        elif result.status == "failed":
            counts.failed += 1
            self._fell.add(host)
            self.away[host] = f"failed at {report.name}"
        elif result.status == "skipped":
            counts.skipped += 1
        else:
            counts.ok += 1
            counts.changed += result.status == "changed"
        self.context.watch(HostDone(host, seen, ignored, loop, time.monotonic() - report.seconds))

    def finish(self, report: TaskReport) -> None:
        report.seconds = time.monotonic() - report.seconds
        self.context.watch(TaskDone())

    def host(self, name: str) -> Host | None:
        return next((host for host in self.context.known() if name in (host.name, host.address)), None)

    def file_of(self, task: Task) -> Templated | None:
        """The text of the file a template task fills."""
        return self._files.get(id(task))


def batches(hosts: Sequence[Host], sizes: Sequence[int | str]) -> list[Sequence[Host]]:
    """`serial`: so many hosts, or percent of all of them, at a time; the last size is that of all that are left."""
    found: list[Sequence[Host]] = []
    begin = 0
    while begin < len(hosts):
        size = sizes[min(len(found), len(sizes) - 1)] if sizes else 0
        if isinstance(size, str):
            size = max(len(hosts) * int(size.rstrip("%")) // 100, 1)
        end = begin + (size or len(hosts))
        found.append(hosts[begin:end])
        begin = end
    return found


def task_values(task: Task) -> list[Any]:
    """Everything of a task that may be a template."""
    inherited, loop = task.inherited, task.loop
    found: list[Any] = [task.name, *(arg.value for arg in task.args.values())]
    found += [list(inherited.when), list(inherited.vars), list(inherited.environment)]
    found += [inherited.become_user, inherited.ignore_errors, inherited.delegate_to, list(task.until)]
    found += [list(each) for each in (task.changed_when, task.failed_when) if isinstance(each, tuple)]
    if loop is not None:
        found += [loop.items, loop.label]
    return found
