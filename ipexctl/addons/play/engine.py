"""Run a playbook in Ansible's order: each task on all hosts before the next; a failed host leaves the play.

Every result passes through `Engine.end`, which masks secrets and counts. The methods that run steps return the names of
the hosts that failed there; unreachable hosts are in `Engine.unreachable_hosts`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from ipexctl.addons.play.keywords import ANSIBLE_FACTS
from ipexctl.addons.play.playbook import Block, Flush, Play, Step, Task, templates_in
from ipexctl.addons.play.prepare import PreparedPlay
from ipexctl.addons.play.result import (
    Counts,
    ItemDone,
    PlayReport,
    TaskReport,
    TaskResult,
    hide_secrets,
    host_failure,
    mask_secrets,
)
from ipexctl.addons.play.task_runner import TaskRunner
from ipexctl.addons.play.variables import PlayContext, ansible_facts
from ipexctl.errors import FileError
from ipexctl.facts.facts import to_json
from ipexctl.facts.gather import gather_facts
from ipexctl.hosts.host import Host
from ipexctl.remote.outcome import Notice

_FACTS: Final = re.compile(rf"\b((ansible_)?facts|ansible_({'|'.join(ANSIBLE_FACTS)}))\b")
"""A template with such a name uses facts."""


class Engine:
    """One run of a playbook. `confirm`: asks before each task and returns `yes`, `no` or `all`; None asks nothing."""

    def __init__(self, ready: PreparedPlay, context: PlayContext, confirm: Callable[[Task], str] | None = None) -> None:
        self.context = context
        self.variables = context.variables(ready.playbook.path.parent)
        self.counts = {host.name: Counts() for host in context.hosts}
        self.unreachable_hosts: set[str] = set()
        """Hosts that are left out from then on, also of later plays."""
        self.failed_hosts: set[str] = set()
        """Hosts that failed and were not rescued; they are left out of later plays, too."""
        self.departed: dict[str, str] = {}
        """Host → why it left the play; rescued hosts are removed."""
        self.reports: list[TaskReport] = []
        self._ready = ready
        self._confirm = confirm
        self._unrescued: set[str] = set()
        """Hosts with a failed task of their own, not with one of another host (any_errors_fatal)."""
        self._play_hosts: set[str] = set()
        """Hosts of the present play: those of the present batch, and those that have left."""
        self._notified: dict[str, set[str]] = {}
        """Name of a handler → hosts on which it is to run."""
        self._play: Play = ready.playbook.plays[0]
        self._ended = False

    @property
    def _stops(self) -> bool:
        return self._ended or self.context.cancel.thrown

    def run(self) -> PlayReport:
        """Run all plays, and return the report."""
        playbook, started = self._ready.playbook, time.monotonic()
        for number, self._play in enumerate(playbook.plays):
            if not self._stops:
                self._run_play(self._play, self._ready.hosts[number])
        names, check = tuple(play.name for play in playbook.plays), self.context.options.check
        seconds = time.monotonic() - started
        return PlayReport(playbook.shown, self.counts, tuple(self.reports), seconds, check=check, plays=names)

    def _run_play(self, play: Play, all_hosts: Sequence[Host]) -> None:
        """Run a play, batch after batch. If all hosts of a batch have failed and others follow, the playbook ends."""
        hosts = self._remaining([host.name for host in all_hosts])
        if not hosts:
            note = "none of its hosts is left" if all_hosts else "--limit leaves out all its hosts"
            self.context.watcher.on_play(play.name, (), note)
            return
        self.variables.begin_play(play)
        groups = batches(hosts, play.serial)
        for index, batch in enumerate(groups, 1):
            if self._stops:
                break
            note = f"{index} of {len(groups)}, serial" if len(groups) > 1 else ""
            self.context.watcher.on_play(play.name, batch, note)
            self.variables.begin_batch(hosts, batch)
            self._play_hosts = {host.name for host in all_hosts} - set(hosts) | set(batch)
            self._run_batch(play, batch)
            if index < len(groups) and not self._remaining(batch):
                self._end("serial: all hosts of this batch failed; the others are skipped")

    def _run_batch(self, play: Play, names: Sequence[str]) -> None:
        """Gather facts if something uses them, run the tasks, then the notified handlers."""
        self._notified = {}
        needs_facts = play.gather_facts or (play.gather_facts is None and self._uses_facts(play))
        if needs_facts and any(id(task) in self._ready.tasks for task in play.tasks):
            self._gather([host for host in self.context.all_hosts if host.name in names])
        self.failed_hosts |= self._steps(play.steps, self._remaining(names))
        self.failed_hosts |= self._handlers(play, self._remaining(names))
        if play.any_errors_fatal and not self._remaining(names):
            self._end("any_errors_fatal: the play ends here, for all hosts")

    def _end(self, reason: str) -> None:
        """Run no further task."""
        self.context.watcher.on_notice(Notice(reason, warning=True))
        self._ended = True

    def missing(self, hosts: Sequence[str]) -> dict[str, str]:
        """Return host → why it left the play, for the hosts of the play that are not among these."""
        return {name: reason for name, reason in self.departed.items() if name in self._play_hosts - set(hosts)}

    def _remaining(self, names: Sequence[str]) -> list[str]:
        return [name for name in names if name not in self.unreachable_hosts | self.failed_hosts]

    def _uses_facts(self, play: Play) -> bool:
        """True if a template of a chosen task, or of a variable, has the name of a fact."""
        options = self.context.options
        tasks = [task.values for task in play.all_tasks if id(task) in self._ready.tasks]
        values = [play.vars, play.file_vars, options.extra, list(options.vars_dirs.values()), tasks]
        return any(_FACTS.search(template.text) for template in templates_in(values))

    def _gather(self, hosts: Sequence[Host]) -> None:
        """Gather the facts of hosts that have none yet, as a task of its own in the output."""
        missing = [host for host in hosts if host.name not in self.variables.facts]
        if not missing:
            return
        report = self.begin("gather facts", "facts", "")
        for answer in gather_facts(self.context.opened(missing, self.context.options.timeout)):
            name = answer.host.name
            if answer.facts is None or answer.status != "ok":
                result = host_failure(answer)
                self.failed_hosts |= {name} if result.status == "failed" else set()
                self.end(report, name, result)
                continue
            facts, of_ansible = to_json(answer.facts), ansible_facts(answer.facts, name)
            prefixed = {f"ansible_{key}": value for key, value in of_ansible.items()}
            self.variables.facts[name] = {"facts": facts, "ansible_facts": facts | of_ansible, **prefixed}
            self.end(report, name, TaskResult("ok"))
        self.finish(report)

    def _handlers(self, play: Play, hosts: Sequence[str]) -> set[str]:
        """Run the handlers that these hosts notified, in the order of the play; return the hosts that failed."""
        failed: set[str] = set()
        for handler in play.handlers:
            notified = set[str]().union(*(self._notified.get(name, ()) for name in (handler.called, *handler.listen)))
            selected = [name for name in hosts if name in notified and name not in self.unreachable_hosts | failed]
            if selected and not self._ended:
                failed |= self._task(handler, selected, handler=True)
        for name in self._notified:
            self._notified[name] -= set(hosts)
        return failed

    def notify(self, name: str, host: str) -> None:
        """Note that a handler is to run on a host."""
        self._notified.setdefault(name, set()).add(host)

    def _steps(self, steps: Sequence[Step], hosts: Sequence[str]) -> set[str]:
        """Run tasks and blocks on the hosts that remain; return the hosts that failed."""
        failed: set[str] = set()
        for step in steps:
            alive = [name for name in hosts if name not in failed | self.unreachable_hosts]
            if not alive or self._stops:
                break
            if isinstance(step, Block):
                failed |= self._block(step, alive)
            elif isinstance(step, Flush):
                failed |= self._handlers(self._play, alive)
            elif id(step) in self._ready.tasks:
                failed |= self._task(step, alive)
        return failed

    def _block(self, block: Block, hosts: Sequence[str]) -> set[str]:
        """Run a block, its `rescue` on the hosts that failed, and its `always`; return the hosts that failed.

        A host whose `rescue` succeeds has not failed. An unreachable host is not rescued.
        """
        failed = self._steps(block.block, hosts)
        rescued = [name for name in hosts if name in failed - self.unreachable_hosts] if block.rescue else []
        for name in rescued:
            self.departed.pop(name, None)
            if name in self._unrescued:  # else another host failed: any_errors_fatal
                self._unrescued.discard(name)
                self.counts[name].failed -= 1
                self.counts[name].rescued += 1
        if rescued:
            failed = (failed - set(rescued)) | self._steps(block.rescue, rescued)
        return failed | self._steps(block.always, [name for name in hosts if name not in self.unreachable_hosts])

    def _task(self, task: Task, hosts: Sequence[str], *, handler: bool = False) -> set[str]:
        """Run a task, after asking if that is wanted; return the hosts that failed.

        With any_errors_fatal, all hosts fail if one fails or is unreachable.
        """
        if self._confirm is not None:
            answer = self._confirm(task)
            if answer == "no":
                return set()
            self._confirm = None if answer == "all" else self._confirm
        report = self.begin(self._name(task, hosts[0]), task.spec.name, str(task.position), handler=handler)
        runner = TaskRunner(self, task, report, hosts)
        failed = runner.run()
        self.finish(report, runner.items_done)
        if self._play.any_errors_fatal and (failed or self.unreachable_hosts & set(hosts)):
            first = next(name for name in hosts if name in failed | self.unreachable_hosts)
            failed = set(hosts) - self.unreachable_hosts
            for name in failed:
                self.departed.setdefault(name, f"any_errors_fatal, and {first} failed")
        return failed

    def _name(self, task: Task, host: str) -> str:
        """Return the task's name, filled in for the first host; the raw template if that fails, or with no_log."""
        name = task.called
        if task.name != name and not task.inherited.no_log:
            with suppress(FileError):
                name = str(self.variables.scope(host, task.inherited.vars).fill(task.name))
        return mask_secrets(name, self.context.secrets)

    def begin(self, name: str, module: str, position: str, *, handler: bool = False) -> TaskReport:
        """Return the report of a task that begins. `seconds` is the time of its start, until `finish` is called."""
        report = TaskReport(name, self._play.name, module, position, seconds=time.monotonic())
        self.reports.append(report)
        self.context.watcher.on_task(report, is_handler=handler)
        return report

    def end(
        self, report: TaskReport, host: str, result: TaskResult, *, no_log: bool = False, ignored: bool = False
    ) -> None:
        """Report and count a host's result. A failed or unreachable host leaves the play, unless that is ignored."""
        counts = self.counts[host]
        report.hosts[host] = hide_secrets(result, self.context.secrets, no_log=no_log)
        if ignored and result.status == "failed":
            report.ignored.add(host)
            counts.ignored += 1
        elif result.status == "unreachable":
            counts.unreachable += 1
            self.unreachable_hosts.add(host)
            self.departed[host] = f"unreachable at {report.name}"
            return
        elif result.status == "failed":
            counts.failed += 1
            self._unrescued.add(host)
            self.departed[host] = f"failed at {report.name}"
            return
        elif result.status == "skipped":
            counts.skipped += 1
            return
        counts.ok += 1
        counts.changed += result.changed

    def finish(self, report: TaskReport, items: Sequence[ItemDone] = ()) -> None:
        """Turn `report.seconds` from the time at which the task began into its duration, and tell the watcher that the
        task is done."""
        report.seconds = time.monotonic() - report.seconds
        self.context.watcher.on_task_done(report, items)

    def host(self, name: str) -> Host | None:
        """Return the host with this name or address, also one that --limit leaves out; None if there is none."""
        return next((host for host in self.context.all_hosts if name in (host.name, host.address)), None)


def batches(hosts: Sequence[str], sizes: Sequence[int | str]) -> list[Sequence[str]]:
    """Return the hosts in batches. `sizes`: counts, or percentages such as `30%`; the last one repeats, 0 is all."""
    groups: list[Sequence[str]] = []
    start = 0
    while start < len(hosts):
        size = sizes[min(len(groups), len(sizes) - 1)] if sizes else 0
        if isinstance(size, str):
            size = max(len(hosts) * int(size.rstrip("%")) // 100, 1)
        groups.append(hosts[start : start + (size or len(hosts))])
        start += size or len(hosts)
    return groups
