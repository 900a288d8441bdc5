"""Run one task on all its hosts, in Ansible's order:

1. `when`, before the options are filled, so that a skipped host need not have their variables.
2. The module, on each host or once for all.
3. `changed_when`, `failed_when` and `until`, with the result.

With --check, a result of a task that did not run is unknown; a skipped task says so if its `when` needs one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Protocol

from ipexctl.addons.play.modules import runner
from ipexctl.addons.play.options import BadOption, fill_environment, fill_options
from ipexctl.addons.play.playbook import Task, Value
from ipexctl.addons.play.prepare import LOCALHOST, unknown_delegate
from ipexctl.addons.play.result import (
    Call,
    ItemDone,
    TaskReport,
    TaskResult,
    combine_items,
    failure,
    failure_from,
    hide_secrets,
    mask_secrets,
    missing_hosts,
    secrets_in,
)
from ipexctl.addons.play.templates import Scope
from ipexctl.addons.play.variables import PlayContext, Variables
from ipexctl.errors import FileError, UserError
from ipexctl.hosts.host import Host, quote
from ipexctl.hosts.nodeset import fold
from ipexctl.remote.fanout import fan_out
from ipexctl.remote.outcome import HostError, Notice

_NOT_BEGUN = failure("it was not started")
"""Result of an item that has none yet; compared by identity."""
_DEFAULT_RETRIES = 3
"""Retries with `until`, if the task does not say how many."""


@dataclass
class _Item:
    """One turn of the loop on one host, or the only one without a loop."""

    host: Host
    value: object = None
    """The loop's item; None without a loop."""
    index: int = 0
    local: Sequence[Mapping[str, Value]] = ()
    """Variables of the loop; empty without one."""
    label: str = ""
    call: Call | None = None
    """None if the item is skipped or can't be called."""
    result: TaskResult = _NOT_BEGUN
    ignored: bool = False
    """True if a failure does not count (ignore_errors)."""
    attempts: int = 0


class TaskEngine(Protocol):
    """What a task needs of the play that it belongs to: `engine.py` has it."""

    context: PlayContext
    variables: Variables

    def host(self, name: str) -> Host | None:
        """Return the host with this name or address; None if there is none."""

    def missing(self, hosts: Sequence[str]) -> dict[str, str]:
        """Return host → why it left the play, for hosts of the play that are not among these."""

    def notify(self, name: str, host: str) -> None:
        """Note that the handler `name` is to run on a host."""

    def end(self, report: TaskReport, host: str, result: TaskResult, *, no_log: bool, ignored: bool) -> None:
        """Report and count a host's result. A failed or unreachable host leaves the play, unless that is ignored."""


@dataclass
class TaskRunner:
    """One task of a play. `run` calls it once."""

    engine: TaskEngine
    task: Task
    report: TaskReport
    names: Sequence[str]
    """Hosts for which the task runs."""
    items_done: list[ItemDone] = field(default_factory=list)
    """Results of a loop's items, for the output."""

    def run(self) -> set[str]:
        """Run the task, and return the hosts that failed, without unreachable ones.

        With run_once, it runs for the first host, and a failure counts for all.
        """
        names = self.names[:1] if self.task.inherited.run_once else self.names
        hosts = [host for name in names if (host := self.engine.host(name)) is not None]
        items = {host.name: self._items(host) for host in hosts}
        all_items = list(chain.from_iterable(items.values()))
        for item in all_items:
            if item.result is _NOT_BEGUN:
                self._prepare(item)
        self._call_with_retries([item for item in all_items if item.call is not None])
        failed = {name for name, items_of_host in items.items() if self._finish(name, items_of_host)}
        return set(self.names) if self.task.inherited.run_once and failed else failed

    def _scope(self, item: _Item, *strong: Mapping[str, Value]) -> Scope:
        return self.engine.variables.scope(item.host.name, self.task.inherited.vars, [*item.local, *strong])

    def _items(self, host: Host) -> list[_Item]:
        """Return an item for each value of the loop on a host; one that has its result if the list can't be filled."""
        loop, alone = self.task.loop, _Item(host)
        if loop is None:
            return [alone]
        scope = self._scope(alone)
        try:
            values = scope.fill(loop.items)
            if not isinstance(values, list):
                what = f"'loop' is {quote(str(values)[:40])}, which is not a list"
                raise loop.position.error(what, fix="[one, two]")
        except FileError as error:
            # As in Ansible, a host whose list can't be filled is skipped if `when` is false.
            alone.result = self._skipped(alone, scope, failure_from(error))
            return [alone]
        if loop.is_flattened:
            lists = [entry if isinstance(entry, list) else [entry] for entry in values]
            values = list(chain.from_iterable(lists))
        return [
            _Item(host, value, index, [{loop.index_var or "": index, loop.loop_var: value}], _label(value))
            for index, value in enumerate(values)
        ]

    def _skipped(self, item: _Item, scope: Scope, otherwise: TaskResult) -> TaskResult:
        """Return a skipped result if a condition of `when` is false, else `otherwise`.

        The reason names the registered results in the condition that are missing because of --check. If a condition
        can't be filled, that is the result, unless `otherwise` is an error already.
        """
        try:
            false_condition = next(
                (condition.text for condition in self.task.inherited.when if not scope.holds(condition)), None
            )
        except FileError as error:
            return otherwise if otherwise is not _NOT_BEGUN else failure_from(error)
        if false_condition is None:
            return otherwise
        names = dict.fromkeys(re.findall(r"[A-Za-z_]\w*", false_condition))
        unknown = [name for name in names if (item.host.name, name) in self.engine.context.not_run]
        note = f" (--check skipped the task that registers {', '.join(unknown)})" if unknown else ""
        return TaskResult("skipped", f"when: {false_condition}{note}")

    def _prepare(self, item: _Item) -> None:
        """Set the item's call, or its result if it is skipped or can't be called."""
        task, inherited, scope = self.task, self.task.inherited, self._scope(item)
        item.ignored = inherited.ignore_errors is True
        item.result = self._skipped(item, scope, _NOT_BEGUN)
        if item.result is not _NOT_BEGUN:
            return
        try:
            kinds = {name: task.spec.kind(name) for name in task.args}
            args = {name: scope.truths(task.args[name].value) for name, kind in kinds.items() if kind == "exprs"}
            args |= {name: scope.fill(task.args[name].value) for name, kind in kinds.items() if kind != "exprs"}
            item.ignored = str(scope.fill(inherited.ignore_errors)).lower() in ("true", "yes", "on", "1")
            if task.loop and task.loop.label:
                item.label = str(scope.fill(task.loop.label))
            try:
                options = fill_options(task.spec, args)
                environment = fill_environment(scope.fill(inherited.environment))
            except BadOption as bad:
                raise task.position.error(f"{task.spec.name}: {bad.message}", fix=bad.fix) from None
            if task.file is not None:
                options["content"] = str(scope.fill(task.file))
            play_options = self.engine.context.options
            item.call = Call(
                host=item.host,
                target=self._target(item.host, scope.fill(inherited.delegate_to)),
                task=task,
                args=options,
                check=play_options.check if inherited.check_mode is None else inherited.check_mode,
                diff=(play_options.diff if inherited.diff is None else inherited.diff) and not inherited.no_log,
                become=(scope.fill(inherited.become_user) or "root") if inherited.become else None,
                environment=environment,
                timeout=inherited.timeout or play_options.timeout,
            )
        except UserError as error:
            item.result = failure_from(error)

    def _target(self, host: Host, delegate: object) -> Host:
        """Return the host on which the module runs. Raises a UserError if `delegate` is none."""
        context = self.engine.context
        if delegate is None or self.task.spec.where == "control":
            return host
        if delegate == "node0":
            return context.hosts[0]
        if (target := self.engine.host(str(delegate))) is not None:
            return target
        if delegate in LOCALHOST and context.options.local:
            return Host("localhost", "localhost")
        what, fix = unknown_delegate(str(delegate), [*(host.name for host in context.hosts), "node0"])
        raise UserError(what, fix=fix)

    def _call_with_retries(self, items: Sequence[_Item]) -> None:
        """Retry up to `retries` times until `until` is true or, without one, the module succeeds."""
        task, context = self.task, self.engine.context
        retries = task.retries
        if retries is None:
            retries = _DEFAULT_RETRIES if task.until else 0
        pending = items
        for left in range(retries, -1, -1):
            self._call(pending)
            for item in pending:
                item.attempts += 1
            pending = [item for item in pending if self._is_unfinished(item)]
            if not pending or not left or context.cancel.thrown:
                break
            names = fold(dict.fromkeys(item.host.name for item in pending))
            reason = "until is not true yet" if task.until else "it failed"
            context.watcher.on_notice(Notice(f"{names}: {self.report.name}: {reason}; {left} more"))
            context.sleep(task.delay)
        for item in items if retries or task.until else ():
            item.result = replace(item.result, data={**item.result.data, "attempts": item.attempts})

    def _call(self, items: Sequence[_Item]) -> None:
        """Call the module for these items, and set their results."""
        if self.task.spec.where == "control":
            for item in items:
                item.result = runner(self.task.spec.name)(self.engine.context, item.call)
        elif self.task.spec.where == "all":
            self._call_together(items)
        else:
            self._call_on_each(items)

    def _call_on_each(self, items: Sequence[_Item]) -> None:
        """Call the module on all hosts at once; items of one host one after the other."""
        run, context = runner(self.task.spec.name), self.engine.context
        by_host: dict[str, list[_Item]] = {}
        for item in items:
            by_host.setdefault(item.host.name, []).append(item)

        def work(waiting: list[_Item]) -> None:
            while waiting:
                call = waiting[0].call
                assert call is not None
                with context.session(call.target) as session:
                    try:
                        result = run(context, call, session)
                    except UserError as error:
                        result = failure_from(error)
                waiting.pop(0).result = result
                if waiting and self.task.loop and self.task.loop.pause:
                    context.sleep(self.task.loop.pause)

        for done in fan_out(list(by_host.values()), work, forks=context.pool.forks, cancel=context.cancel):
            if done.error is not None:
                for item in done.item:
                    item.result = failure_from(done.error)

    def _call_together(self, items: Sequence[_Item]) -> None:
        """Call the module once for all hosts with the same options; a job on all hosts, once for all."""
        spec, context = self.task.spec, self.engine.context
        groups: dict[tuple[int, str], list[tuple[_Item, Call]]] = {}
        for item in items:
            assert item.call is not None
            options_key = "" if spec.is_cluster_job else json.dumps(dict(item.call.args), sort_keys=True)
            groups.setdefault((item.index, options_key), []).append((item, item.call))
        missing = self.engine.missing(self.names)
        for group in groups.values():
            calls = [call for _, call in group]
            try:
                refusal = missing_hosts(calls, missing) if spec.is_cluster_job else None
                done = refusal or runner(spec.name)(context, calls[0], [call.host for call in calls])
            except (HostError, UserError) as error:
                done = failure_from(error)
            for item, _ in group:
                item.result = done if isinstance(done, TaskResult) else done[item.host.name]

    def _is_unfinished(self, item: _Item) -> bool:
        """Apply changed_when, failed_when and until; True if the item is to be called again."""
        task, result = self.task, item.result
        if result.not_run and task.changed_when is False and result.status != "skipped":
            item.result = replace(result, status="ok")
        if result.status == "unreachable" or result.not_run:
            return False
        own = [{task.register: result.to_variable()}] if task.register else []
        scope = self._scope(item, *own)

        def truth(conditions: Any) -> bool | None:
            has_conditions = isinstance(conditions, tuple) and bool(conditions)
            return all(map(scope.holds, conditions)) if has_conditions else conditions

        try:
            until, changes, fails = truth(task.until), truth(task.changed_when), truth(task.failed_when)
        except FileError as error:
            item.result = failure_from(error, **result.data)
            return False
        if fails or (result.status == "failed" and fails is not False):
            data = {**result.data, **({} if changes is None else {"changed": changes})}
            data |= {"changed": result.changed} if fails and changes is None else {}
            result = replace(
                result, status="failed", reason=result.reason or ("failed_when holds" if fails else ""), data=data
            )
        elif result.status != "skipped":
            is_changed = result.changed if changes is None else changes
            result = replace(result, reason="", fix="") if result.status == "failed" else result
            result = replace(result, status="changed" if is_changed else "ok")
        if task.until and not until:
            reason = f"until never became true: {' and '.join(template.text for template in task.until)}"
            result = replace(result, status="failed", reason=result.reason or reason)
        item.result = result
        return not until if task.until else bool(task.retries) and result.status == "failed"

    def _finish(self, name: str, items: Sequence[_Item]) -> bool:
        """Register and report the host's result; True if it failed."""
        task, engine = self.task, self.engine
        result = items[0].result if task.loop is None else self._loop_result(items)
        failed_items = [item for item in items if item.result.status == "failed"]
        ignored = result.status == "failed" and all(item.ignored for item in failed_items)
        self._register(name, result, items)
        if task.inherited.no_log:
            engine.context.secrets.update(secrets_in(result, task.loop.loop_var if task.loop else "item"))
        engine.end(self.report, name, result, no_log=bool(task.inherited.no_log), ignored=ignored)
        for handler, _ in task.notify if result.status == "changed" else ():
            engine.notify(handler, name)
        if result.status != "failed" or ignored:
            return False
        failed_task = {"name": self.report.name, "action": task.spec.name}
        variables = {"ansible_failed_task": failed_task, "ansible_failed_result": result.to_variable()}
        engine.variables.own[name].update(variables)
        return True

    def _loop_result(self, items: Sequence[_Item]) -> TaskResult:
        """Return the result of a host's loop, and add the items to the output."""
        loop, secrets, no_log = self.task.loop, self.engine.context.secrets, bool(self.task.inherited.no_log)
        assert loop is not None
        if len(items) == 1 and not items[0].local:  # without a list
            return items[0].result
        for item in items:
            label = "" if no_log else mask_secrets(item.label, secrets)
            shown = hide_secrets(item.result, secrets, no_log=no_log)
            self.items_done.append(ItemDone(item.host.name, label, shown))
        return combine_items([item.result for item in items], [item.value for item in items], loop.loop_var)

    def _register(self, name: str, result: TaskResult, items: Sequence[_Item]) -> None:
        """Set the variables of `set_fact` and `register` for the host; with run_once, for all hosts of the task."""
        facts: dict[str, Any] = {}
        for item in items if self.task.spec.name == "set_fact" else ():
            if item.result.status == "ok":
                facts |= item.result.data.get("ansible_facts", {})
        hosts = self.names if self.task.inherited.run_once else [name]
        if register := self.task.register:
            facts[register] = result.to_variable()
            registered = {(host, register) for host in hosts}
            self.engine.context.not_run -= registered
            self.engine.context.not_run |= registered if result.not_run else set()
        for host in hosts:
            self.engine.variables.own[host].update(facts)


def _label(value: object) -> str:
    """Return how the output calls an item of a loop: its `name`, the text, or the beginning of its JSON."""
    if isinstance(value, dict) and isinstance(value.get("name"), str):
        return str(value["name"])
    return value if isinstance(value, str) else json.dumps(value)[:80]
