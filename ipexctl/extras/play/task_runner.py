"""Runs one task on all its hosts, in Ansible's order: `when` before the options, so skipped hosts need no variables;
then the module; then changed_when, failed_when and until. With --check, a condition is reported if it needs the result
of a task that did not run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ipexctl.errors import FileError, UserError
from ipexctl.extras.play.modules import runner
from ipexctl.extras.play.play_context import LOCALHOST, unknown_delegate
from ipexctl.extras.play.playbook_model import BadOption, Task, fill_environment, fill_options
from ipexctl.extras.play.result import (
    Call,
    ItemDone,
    TaskReport,
    TaskResult,
    combine_items,
    failure,
    failure_from,
    hide_secrets,
    host_failure,
    mask_secrets,
    missing_hosts,
    secrets_in,
)
from ipexctl.extras.play.templater import FillResult, Job
from ipexctl.hosts.host import Host, quote
from ipexctl.hosts.nodeset import fold
from ipexctl.remote.fanout import fan_out
from ipexctl.remote.outcome import HostError, Notice

if TYPE_CHECKING:
    from ipexctl.extras.play.engine import Engine

_WORD = re.compile(r"[A-Za-z_]\w*")
_NOT_BEGUN = failure("it was not started")
_RETRIES = 3


@dataclass
class _WorkItem:
    host: Host
    item: object = None
    index: int = 0
    label: str = ""
    call: Call | None = None
    result: TaskResult = _NOT_BEGUN
    ignored: bool = False
    attempts: int = 0
    local: list[tuple[Mapping[str, Any], bool]] = field(default_factory=list)


class TaskRunner:
    def __init__(self, engine: Engine, task: Task, report: TaskReport, hosts: Sequence[str]) -> None:
        self._engine = engine
        self._context = engine.context
        self._task = task
        self._report = report
        self._names = list(hosts)
        self._templater = engine.context.templater
        self._items: dict[str, list[_WorkItem]] = {}
        self.items_done: list[ItemDone] = []

    def run(self) -> set[str]:
        task = self._task
        names = self._names[:1] if task.inherited.run_once else self._names
        hosts = [host for name in names if (host := self._engine.host(name)) is not None]
        self._create_items(hosts)
        work_items = [work_item for name in names for work_item in self._items[name]]
        self._fill([work_item for work_item in work_items if work_item.result is _NOT_BEGUN])
        self._call_with_retries([work_item for work_item in work_items if work_item.call is not None])
        return self._finish(names)

    def _create_items(self, hosts: Sequence[Host]) -> None:
        loop = self._task.loop
        if loop is None:
            for host in hosts:
                self._items[host.name] = [_WorkItem(host, local=self._vars())]
            return
        jobs = [Job(host.name, {"items": loop.items}, local=self._vars()) for host in hosts]
        for host, answer in zip(hosts, self._templater.fill(jobs), strict=True):
            if isinstance(answer, FileError):
                # As in Ansible, a host whose list can't be filled is skipped if `when` is false.
                condition_job = Job(host.name, when=self._task.inherited.when, local=self._vars())
                (condition,) = self._templater.fill([condition_job])
                is_skipped = isinstance(condition, FillResult) and not condition.held
                result = self._skip(host, condition.by) if is_skipped else _template_failure(answer)  # type: ignore[union-attr]
                self._items[host.name] = [_WorkItem(host, result=result)]
                continue
            items = answer.values["items"]
            if not isinstance(items, list):
                what = f"'loop' is {quote(str(items)[:40])}, which is not a list"
                result = failure_from(loop.position.error(what, fix="[one, two]"))
                self._items[host.name] = [_WorkItem(host, result=result)]
                continue
            if loop.is_flattened:
                items = [item for entry in items for item in (entry if isinstance(entry, list) else [entry])]
            self._items[host.name] = []
            for index, item in enumerate(items):
                item_vars = {loop.loop_var: item, **({loop.index_var: index} if loop.index_var else {})}
                self._items[host.name].append(_WorkItem(host, item, index, local=[*self._vars(), (item_vars, False)]))

    def _vars(self) -> list[tuple[Mapping[str, Any], bool]]:
        return [(values, True) for values in self._task.inherited.vars]

    def _fill(self, work_items: Sequence[_WorkItem]) -> None:
        task, inherited = self._task, self._task.inherited
        truths = {"that": task.args["that"].value} if task.spec.name == "assert" else {}
        args = {name: arg.value for name, arg in task.args.items() if name not in truths}
        values: dict[str, Any] = {
            "args": args,
            "environment": list(inherited.environment),
            "ignore": inherited.ignore_errors,
            "user": inherited.become_user,
            "delegate": inherited.delegate_to,
            "label": task.loop.label if task.loop else None,
            "file": task.file,
        }
        jobs = [Job(work_item.host.name, values, inherited.when, truths, work_item.local) for work_item in work_items]
        for work_item, answer in zip(work_items, self._templater.fill(jobs), strict=True):
            work_item.label = _label(work_item.item)
            if isinstance(answer, FileError):
                work_item.result = _template_failure(answer)
                work_item.ignored = inherited.ignore_errors is True
            elif not answer.held:
                work_item.result = self._skip(work_item.host, answer.by)
            else:
                self._prepare(work_item, answer)

    def _skip(self, host: Host, condition: str) -> TaskResult:
        """Result for a false condition; names the registered results that are missing because of --check."""
        words = dict.fromkeys(_WORD.findall(condition))
        unknown = [word for word in words if (host.name, word) in self._context.not_run]
        note = f" (--check skipped the task that registers {', '.join(unknown)})" if unknown else ""
        return TaskResult("skipped", f"when: {condition}{note}")

    def _prepare(self, work_item: _WorkItem, answer: FillResult) -> None:
        task, inherited, values = self._task, self._task.inherited, answer.values
        work_item.ignored = str(values["ignore"]).lower() in ("true", "yes", "on", "1")
        if values["label"] is not None:
            work_item.label = str(values["label"])
        args = dict(values["args"])
        for name, truths in answer.truths.items():
            texts = [template.text for template in task.args[name].value]
            args[name] = list(zip(texts, truths, strict=False))
        try:
            options = fill_options(task.spec, args)
            environment = fill_environment(values["environment"])
        except BadOption as bad:
            work_item.result = failure_from(task.position.error(f"{task.spec.name}: {bad.message}", fix=bad.fix))
            return
        if values["file"] is not None:
            options["content"] = str(values["file"])
        target = self._target(work_item.host, values["delegate"])
        if isinstance(target, TaskResult):
            work_item.result = target
            return
        context = self._context.options
        user = values["user"] or "root"
        work_item.call = Call(
            host=work_item.host,
            target=target,
            task=task,
            args=options,
            check=context.check if inherited.check_mode is None else inherited.check_mode,
            diff=(context.diff if inherited.diff is None else inherited.diff) and not inherited.no_log,
            become=user if inherited.become else None,
            environment=environment,
            timeout=inherited.timeout or context.timeout,
        )

    def _target(self, host: Host, delegate: object) -> Host | TaskResult:
        if delegate is None or self._task.spec.where == "control":
            return host
        if delegate == "node0":
            return self._context.hosts[0]
        target = self._engine.host(str(delegate))
        if target is None and delegate in LOCALHOST and self._context.options.local:
            return Host("localhost", "localhost")
        if target is None:
            return failure(*unknown_delegate(str(delegate), [*(host.name for host in self._context.hosts), "node0"]))
        return target

    def _call_with_retries(self, work_items: Sequence[_WorkItem]) -> None:
        """Retry up to `retries` times until `until` is true or, without one, the module succeeds."""
        task = self._task
        pending = list(work_items)
        retries = (_RETRIES if task.until else 0) if task.retries is None else task.retries
        max_attempts = retries + 1
        for attempt in range(1, max_attempts + 1):
            self._call(pending)
            for work_item in pending:
                work_item.attempts = attempt
            unfinished = self._apply_conditions(pending)
            if not unfinished or attempt == max_attempts or self._context.cancel.thrown:
                break
            names = fold(dict.fromkeys(work_item.host.name for work_item in unfinished))
            reason = "until is not true yet" if task.until else "it failed"
            self._context.watch(Notice(f"{names}: {self._report.name}: {reason}; {max_attempts - attempt} more"))
            self._context.sleep(task.delay)
            pending = unfinished
        if max_attempts > 1 or task.until:
            for work_item in work_items:
                data = {**work_item.result.data, "attempts": work_item.attempts}
                work_item.result = replace(work_item.result, data=data)

    def _call(self, work_items: Sequence[_WorkItem]) -> None:
        if self._task.spec.where == "control":
            for work_item in work_items:
                work_item.result = runner(self._task.spec.name)(self._context, work_item.call)
        elif self._task.spec.where == "all":
            self._call_together(work_items)
        else:
            self._call_on_each(work_items)

    def _call_on_each(self, work_items: Sequence[_WorkItem]) -> None:
        run = runner(self._task.spec.name)
        by_host: dict[str, list[_WorkItem]] = {}
        for work_item in work_items:
            by_host.setdefault(work_item.host.name, []).append(work_item)
        pause = self._task.loop.pause if self._task.loop else 0.0

        def work(waiting: list[_WorkItem]) -> None:
            while waiting:
                call = waiting[0].call
                assert call is not None
                with self._context.session(call.target) as session:
                    try:
                        result = run(self._context, call, session)
                    except UserError as error:
                        result = failure_from(error)
                waiting.pop(0).result = result
                if waiting and pause:
                    self._context.sleep(pause)

        for done in fan_out(list(by_host.values()), work, forks=self._context.pool.forks, cancel=self._context.cancel):
            if done.error is not None:
                for work_item in done.item:
                    work_item.result = host_failure(done.error)

    def _call_together(self, work_items: Sequence[_WorkItem]) -> None:
        run = runner(self._task.spec.name)
        groups: dict[tuple[int, str], list[_WorkItem]] = {}
        for work_item in work_items:
            assert work_item.call is not None
            options_key = (
                "" if self._task.spec.is_cluster_job else json.dumps(dict(work_item.call.args), sort_keys=True)
            )
            groups.setdefault((work_item.index, options_key), []).append(work_item)
        missing = self._engine.missing(self._names)
        for group in groups.values():
            calls = [work_item.call for work_item in group if work_item.call is not None]
            try:
                refusal = missing_hosts(calls, missing) if self._task.spec.is_cluster_job else None
                done = refusal or run(self._context, calls[0], [call.host for call in calls])
            except HostError as error:
                done = host_failure(error)
            except UserError as error:
                done = failure_from(error)
            for work_item in group:
                work_item.result = done if isinstance(done, TaskResult) else done[work_item.host.name]

    def _apply_conditions(self, work_items: Sequence[_WorkItem]) -> list[_WorkItem]:
        task = self._task
        conditions = {"until": task.until, "changed_when": task.changed_when, "failed_when": task.failed_when}
        queries = {name: value for name, value in conditions.items() if isinstance(value, tuple) and value}
        finished = [item for item in work_items if item.result.status != "unreachable" and not item.result.not_run]
        for work_item in work_items:
            if work_item.result.not_run and task.changed_when is False and work_item.result.status != "skipped":
                work_item.result = replace(work_item.result, status="ok")
        jobs = []
        for work_item in finished:
            own = [({task.register: work_item.result.to_variable()}, False)] if task.register and queries else []
            jobs.append(Job(work_item.host.name, truths=queries, local=[*work_item.local, *own]))
        answers = self._templater.fill(jobs)
        unfinished = []
        for work_item, answer in zip(finished, answers, strict=True):
            if isinstance(answer, FileError):
                work_item.result = _template_failure(answer, work_item.result)
                continue
            truths = {name: all(held) for name, held in answer.truths.items()}
            work_item.result = self._apply_truths(work_item.result, truths)
            if task.until and not truths["until"]:
                unfinished.append(work_item)
                reason = f"until never became true: {' and '.join(template.text for template in task.until)}"
                work_item.result = replace(work_item.result, status="failed", reason=work_item.result.reason or reason)
            elif task.retries and not task.until and work_item.result.status == "failed":
                unfinished.append(work_item)
        return unfinished

    def _apply_truths(self, result: TaskResult, truths: Mapping[str, bool]) -> TaskResult:
        task = self._task
        fails = truths.get("failed_when", task.failed_when if isinstance(task.failed_when, bool) else None)
        changes = truths.get("changed_when", task.changed_when if isinstance(task.changed_when, bool) else None)
        if fails is True:
            data = {**result.data, "changed": result.changed if changes is None else changes}
            return replace(result, status="failed", reason=result.reason or "failed_when holds", data=data)
        if fails is False and result.status == "failed":
            result = replace(result, status="changed" if result.changed else "ok", reason="", fix="")
        if changes is not None and result.status in ("ok", "changed"):
            result = replace(result, status="changed" if changes else "ok")
        elif changes is not None and result.status == "failed":
            result = replace(result, data={**result.data, "changed": changes})
        return result

    def _finish(self, names: Sequence[str]) -> set[str]:
        task, failed_names = self._task, set()
        for name in names:
            work_items = self._items[name]
            results = [work_item.result for work_item in work_items]
            result = results[0] if task.loop is None else self._loop_result(work_items, results)
            ignored = result.status == "failed" and all(
                work_item.ignored for work_item in work_items if work_item.result.status == "failed"
            )
            self._register(name, result, work_items)
            if task.inherited.no_log:
                self._templater.secrets |= secrets_in(result, task.loop.loop_var if task.loop else "item")
            self._engine.end(self._report, name, result, no_log=bool(task.inherited.no_log), ignored=ignored)
            if result.status == "changed":
                for handler, _ in task.notify:
                    self._engine.notify(handler, name)
            if result.status == "failed" and not ignored:
                failed_names.add(name)
                task_variable = {"name": self._report.name, "action": task.spec.name}
                variables = {"ansible_failed_task": task_variable, "ansible_failed_result": result.to_variable()}
                self._templater.add(f"own:{name}", variables)
        # run_once: a failure counts for all hosts.
        return set(self._names) if task.inherited.run_once and failed_names else failed_names

    def _loop_result(self, work_items: Sequence[_WorkItem], results: Sequence[TaskResult]) -> TaskResult:
        task, secrets = self._task, self._templater.secrets
        assert task.loop is not None
        if len(work_items) == 1 and work_items[0].call is None and work_items[0].item is None:
            return results[0]
        for work_item, result in zip(work_items, results, strict=True):
            visible = hide_secrets(result, secrets, no_log=bool(task.inherited.no_log))
            label = "" if task.inherited.no_log else mask_secrets(work_item.label, secrets)
            self.items_done.append(ItemDone(work_item.host.name, label, visible))
        return combine_items(results, [work_item.item for work_item in work_items], task.loop.loop_var)

    def _register(self, name: str, result: TaskResult, work_items: Sequence[_WorkItem]) -> None:
        facts: dict[str, Any] = {}
        if self._task.spec.name == "set_fact":
            for work_item in work_items:
                if work_item.result.status == "ok":
                    facts.update(work_item.result.data.get("ansible_facts", {}))
        hosts = self._names if self._task.inherited.run_once else [name]
        if register := self._task.register:
            facts[register] = result.to_variable()
            registered = {(host, register) for host in hosts}
            self._context.not_run -= registered
            self._context.not_run |= registered if result.not_run else set()
        if facts:
            for host in hosts:
                self._templater.add(f"own:{host}", facts)


def _label(item: object) -> str:
    if isinstance(item, dict) and isinstance(item.get("name"), str):
        return str(item["name"])
    return item if isinstance(item, str) else json.dumps(item)[:80]


def _template_failure(error: FileError, previous: TaskResult = _NOT_BEGUN) -> TaskResult:
    return TaskResult("failed", error.message, error.fix, previous.data, line=error.text, column=error.column)
