"""Runs one task on all its hosts, in Ansible's order: `when` before the options, so skipped hosts need no variables;
then the module; then changed_when, failed_when and until. With --check, a condition is reported if it needs the result
of a task that did not run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
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
_RETRIES = 3


@dataclass
class _Item:
    """One host's turn of the loop, or its only one."""

    host: Host
    value: object = None
    index: int = 0
    local: Sequence[Mapping[str, Value]] = ()
    label: str = ""
    call: Call | None = None
    result: TaskResult = _NOT_BEGUN
    ignored: bool = False
    attempts: int = 0


class TaskEngine(Protocol):
    """What a task needs of the play that it belongs to: `engine.py` has it."""

    context: PlayContext
    variables: Variables

    def host(self, name: str) -> Host | None: ...
    def missing(self, hosts: Sequence[str]) -> dict[str, str]: ...
    def notify(self, name: str, host: str) -> None: ...
    def end(self, report: TaskReport, host: str, result: TaskResult, *, no_log: bool, ignored: bool) -> None: ...


@dataclass
class TaskRunner:
    engine: TaskEngine
    task: Task
    report: TaskReport
    names: Sequence[str]
    items_done: list[ItemDone] = field(default_factory=list)

    def run(self) -> set[str]:
        names = self.names[:1] if self.task.inherited.run_once else self.names
        hosts = [host for name in names if (host := self.engine.host(name)) is not None]
        items = {host.name: self._items(host) for host in hosts}
        everything = [item for of_host in items.values() for item in of_host]
        for item in everything:
            if item.result is _NOT_BEGUN:
                self._prepare(item)
        self._call_with_retries([item for item in everything if item.call is not None])
        failed = {name for name, of_host in items.items() if self._finish(name, of_host)}
        # run_once: a failure counts for all hosts.
        return set(self.names) if self.task.inherited.run_once and failed else failed

    def _scope(self, item: _Item, *strong: Mapping[str, Value]) -> Scope:
        return self.engine.variables.scope(item.host.name, self.task.inherited.vars, [*item.local, *strong])

    def _items(self, host: Host) -> list[_Item]:
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
            values = [value for entry in values for value in (entry if isinstance(entry, list) else [entry])]
        return [
            _Item(host, value, index, [{loop.index_var or "": index, loop.loop_var: value}], _label(value))
            for index, value in enumerate(values)
        ]

    def _skipped(self, item: _Item, scope: Scope, otherwise: TaskResult) -> TaskResult:
        """Skipped if a condition is false; names the registered results that are missing because of --check."""
        try:
            condition = next((each.text for each in self.task.inherited.when if not scope.holds(each)), None)
        except FileError as error:
            return otherwise if otherwise is not _NOT_BEGUN else failure_from(error)
        if condition is None:
            return otherwise
        words = dict.fromkeys(re.findall(r"[A-Za-z_]\w*", condition))
        unknown = [word for word in words if (item.host.name, word) in self.engine.context.not_run]
        note = f" (--check skipped the task that registers {', '.join(unknown)})" if unknown else ""
        return TaskResult("skipped", f"when: {condition}{note}")

    def _prepare(self, item: _Item) -> None:
        """Make the item's call, or its result if it is skipped or can't be called."""
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
            of_call = self.engine.context.options
            item.call = Call(
                host=item.host,
                target=self._target(item.host, scope.fill(inherited.delegate_to)),
                task=task,
                args=options,
                check=of_call.check if inherited.check_mode is None else inherited.check_mode,
                diff=(of_call.diff if inherited.diff is None else inherited.diff) and not inherited.no_log,
                become=(scope.fill(inherited.become_user) or "root") if inherited.become else None,
                environment=environment,
                timeout=inherited.timeout or of_call.timeout,
            )
        except UserError as error:
            item.result = failure_from(error)

    def _target(self, host: Host, delegate: object) -> Host:
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
        retries = (_RETRIES if task.until else 0) if task.retries is None else task.retries
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
        if self.task.spec.where == "control":
            for item in items:
                item.result = runner(self.task.spec.name)(self.engine.context, item.call)
        elif self.task.spec.where == "all":
            self._call_together(items)
        else:
            self._call_on_each(items)

    def _call_on_each(self, items: Sequence[_Item]) -> None:
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
        """One call for all hosts with the same options, or, for a cluster job, for all hosts."""
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

        def truth(asked: Any) -> bool | None:
            return all(map(scope.holds, asked)) if isinstance(asked, tuple) and asked else asked

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


def _label(item: object) -> str:
    if isinstance(item, dict) and isinstance(item.get("name"), str):
        return str(item["name"])
    return item if isinstance(item, str) else json.dumps(item)[:80]
