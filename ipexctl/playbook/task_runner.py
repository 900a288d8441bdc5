"""One task on all its hosts: conditions and values filled, the module called, its outcome judged, tried again, kept."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ipexctl.errors import UserError
from ipexctl.hosts.host import Host
from ipexctl.hosts.names import quoted
from ipexctl.hosts.nodeset import fold
from ipexctl.playbook.cluster_tasks import missing_hosts
from ipexctl.playbook.masks import masked, shown
from ipexctl.playbook.modules.registry import runner
from ipexctl.playbook.options import BadOption, filled, filled_environment
from ipexctl.playbook.play_context import HERE, LOCAL
from ipexctl.playbook.positions import did_you_mean
from ipexctl.playbook.rephrase import as_playbook
from ipexctl.playbook.report import ItemDone, PlayNotice
from ipexctl.playbook.result import Call, Result, failed, together
from ipexctl.playbook.templater import Filled, Job, TemplateError
from ipexctl.remote.outcome import HostError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ipexctl.playbook.engine import Engine
    from ipexctl.playbook.model import Task
    from ipexctl.playbook.positions import Templated
    from ipexctl.playbook.report import TaskReport

_GLANCE = 0.05


@dataclass
class _Piece:
    """One host's task, or one turn of its loop."""

    host: Host
    item: Any = None
    index: int = 0
    label: str = ""
    call: Call | None = None
    result: Result | None = None
    ignored: bool = False
    thats: Sequence[bool] = ()
    attempts: int = 0
    local: list[tuple[Mapping[str, Any], bool]] = field(default_factory=list)


class TaskRunner:
    def __init__(self, engine: Engine, task: Task, report: TaskReport, hosts: Sequence[str]) -> None:
        self._engine = engine
        self._world = engine.context
        self._task = task
        self._report = report
        self._names = list(hosts)
        self._told = engine.context.templater
        self._pieces: dict[str, list[_Piece]] = {}

    def run(self) -> set[str]:
        """The hosts that failed, and leave."""
        task = self._task
        names = self._names[:1] if task.inherited.run_once else self._names
        hosts = [host for name in names if (host := self._engine.host(name)) is not None]
        self._cut(hosts)
        pieces = [piece for name in names for piece in self._pieces[name]]
        self._fill([piece for piece in pieces if piece.result is None])
        self._act([piece for piece in pieces if piece.call is not None])
        return self._end(names)

    # What is to be done

    def _cut(self, hosts: Sequence[Host]) -> None:
        """One piece a host, or as many as its loop has items."""
        loop = self._task.loop
        if loop is None:
            for host in hosts:
                self._pieces[host.name] = [_Piece(host, local=self._vars())]
            return
        jobs = [Job(host.name, {"items": loop.items}, local=self._vars()) for host in hosts]
        for host, found in zip(hosts, self._told.fill(jobs), strict=True):
            if isinstance(found, TemplateError):
                # Ansible looks at `when` first where the list can't be had.
                skipped = self._told.fill([Job(host.name, when=self._task.inherited.when, local=self._vars())])[0]
                not_wanted = isinstance(skipped, Filled) and not skipped.held
                result = Result("skipped", f"when: {skipped.by}") if not_wanted else _bad_template(found)  # type: ignore[union-attr]
                self._pieces[host.name] = [_Piece(host, result=result)]
                continue
            items = found.values["items"]
            if not isinstance(items, list):
                error = loop.place.error(
                    f"'loop' came to {quoted(str(items)[:40])}, which is no list", fix="[one, two]"
                )
                self._pieces[host.name] = [_Piece(host, result=failed(error.message, error.fix))]
                continue
            self._pieces[host.name] = [
                _Piece(host, item, index, local=[*self._vars(), (self._of_item(item, index), False)])
                for index, item in enumerate(items)
            ]

    def _vars(self) -> list[tuple[Mapping[str, Any], bool]]:
        return [(values, True) for values in self._task.inherited.vars]

    def _of_item(self, item: Any, index: int) -> dict[str, Any]:
        loop = self._task.loop
        assert loop is not None
        return {loop.var: item, **({loop.index_var: index} if loop.index_var else {})}

    def _fill(self, pieces: Sequence[_Piece]) -> None:
        """Conditions, and where they hold all options."""
        task, inherited = self._task, self._task.inherited
        thats = task.args["that"].value if task.spec.name == "assert" else ()
        args = {name: arg.value for name, arg in task.args.items() if not (thats and name == "that")}
        file = self._engine.file_of(task)
        values: dict[str, Any] = {
            "args": args,
            "environment": list(inherited.environment),
            "ignore": inherited.ignore_errors,
            "user": inherited.become_user,
            "delegate": inherited.delegate_to,
            "label": task.loop.label if task.loop else None,
            "file": file,
        }
        jobs = [Job(piece.host.name, values, inherited.when, {}, thats, piece.local) for piece in pieces]
        for piece, found in zip(pieces, self._told.fill(jobs), strict=True):
            piece.label = _label(piece.item)
            if isinstance(found, TemplateError):
                piece.result = _bad_template(found)
                piece.ignored = inherited.ignore_errors is True
            elif not found.held:
                piece.result = Result("skipped", f"when: {found.by}")
            else:
                self._prepare(piece, found)

    def _prepare(self, piece: _Piece, found: Filled) -> None:
        task, inherited, values = self._task, self._task.inherited, found.values
        piece.ignored = str(values["ignore"]).lower() in ("true", "yes", "on", "1")
        piece.thats = found.thats
        if values["label"] is not None:
            piece.label = str(values["label"])
        args = dict(values["args"])
        if found.thats:
            args["that"] = [each.text for each in task.args["that"].value]
        try:
            options = filled(task.spec, args)
            environment = filled_environment(values["environment"])
        except BadOption as bad:
            error = task.place.error(f"{task.spec.name}: {bad.what}", fix=bad.fix)
            piece.result = failed(error.message, error.fix)
            return
        if values["file"] is not None:
            options["content"] = str(values["file"])
        target = self._target(piece.host, values["delegate"])
        if isinstance(target, Result):
            piece.result = target
            return
        context = self._world.options
        user = values["user"] or "root"
        piece.call = Call(
            host=piece.host,
            target=target,
            task=task,
            args=options,
            check=context.check if inherited.check_mode is None else inherited.check_mode,
            diff=(context.diff if inherited.diff is None else inherited.diff) and not inherited.no_log,
            become=user if inherited.become else None,
            environment=environment,
            timeout=inherited.timeout or context.timeout,
        )

    def _target(self, host: Host, delegate: Any) -> Host | Result:
        if delegate is None or self._task.spec.where == "here":
            return host
        if delegate == "node0":
            return self._world.hosts[0]
        found = self._engine.host(str(delegate))
        if found is None and delegate in HERE and self._world.options.local:
            return Host("localhost", "localhost")
        if found is None:
            names = [each.name for each in self._world.hosts]
            return failed(
                f"delegate_to: {quoted(str(delegate))} is none of the hosts of this call",
                LOCAL if delegate in HERE else did_you_mean(str(delegate), [*names, "node0"], "node0 is the first"),
            )
        return found

    # Doing it

    def _act(self, pieces: Sequence[_Piece]) -> None:
        """Until `until` holds, for whom it doesn't, as often as `retries` says."""
        task = self._task
        waiting = list(pieces)
        tries = (task.retries + 1) if task.until else 1
        for attempt in range(1, tries + 1):
            self._call(waiting)
            for piece in waiting:
                piece.attempts = attempt
            again = self._judge(waiting)
            if not again or attempt == tries or self._world.cancel.thrown:
                break
            who = fold(dict.fromkeys(piece.host.name for piece in again))
            self._world.watch(PlayNotice(f"{who}: {self._report.name}: until doesn't hold yet; {tries - attempt} more"))
            self._rest(task.delay)
            waiting = again
        if task.until:
            for piece in pieces:
                if piece.result is not None:
                    piece.result = replace(piece.result, data={**piece.result.data, "attempts": piece.attempts})

    def _call(self, pieces: Sequence[_Piece]) -> None:
        run = runner(self._task.spec.name)
        if self._task.spec.where == "here":
            for piece in pieces:
                assert piece.call is not None
                piece.result = run.here(self._world, piece.call, piece.thats)
        elif self._task.spec.where == "together":
            self._call_together(pieces)
        else:
            self._call_on_each(pieces)

    def _call_on_each(self, pieces: Sequence[_Piece]) -> None:
        run = runner(self._task.spec.name)
        by_host: dict[str, list[_Piece]] = {}
        for piece in pieces:
            by_host.setdefault(piece.host.name, []).append(piece)
        pause = self._task.loop.pause if self._task.loop else 0.0

        def work(host: Host) -> None:
            for number, piece in enumerate(by_host[host.name]):
                assert piece.call is not None
                if number and pause:
                    self._rest(pause)
                with self._world.session(piece.call.target) as session:
                    try:
                        piece.result = run.on_host(self._world, piece.call, session)
                    except UserError as error:
                        piece.result = failed(error.message, error.fix)

        for done in self._world.each([group[0].host for group in by_host.values()], work):
            if done.error is not None:
                undone = [piece for piece in by_host[done.host.name] if piece.result is None or piece.attempts]
                for piece in undone:
                    piece.result = _of_error(done.error)

    def _call_together(self, pieces: Sequence[_Piece]) -> None:
        """One call for all hosts whose options are the same; turns of a loop one after the other."""
        run = runner(self._task.spec.name)
        groups: dict[tuple[int, str], list[_Piece]] = {}
        for piece in pieces:
            assert piece.call is not None
            alike = "" if self._task.spec.whole else json.dumps(dict(piece.call.args), sort_keys=True)
            groups.setdefault((piece.index, alike), []).append(piece)
        missing = self._engine.missing(self._names)
        for group in groups.values():
            calls = [piece.call for piece in group if piece.call is not None]
            try:
                refusal = missing_hosts(calls, missing) if self._task.spec.whole else None
                results = dict.fromkeys(self._names, refusal) if refusal else run.together(self._world, calls)
            except HostError as error:
                results = {call.host.name: _of_error(error) for call in calls}
            except UserError as error:
                results = {call.host.name: failed(error.message, error.fix) for call in calls}
            for piece in group:
                piece.result = as_playbook(results[piece.host.name], self._task.spec.options)

    def _judge(self, pieces: Sequence[_Piece]) -> list[_Piece]:
        """`changed_when`, `failed_when`, `until`; returns those that are to be tried again."""
        task = self._task
        truths = {"until": task.until}
        for name in ("changed_when", "failed_when"):
            value = getattr(task, name)
            if isinstance(value, tuple):
                truths[name] = value
        truths = {name: value for name, value in truths.items() if value}
        judged = [piece for piece in pieces if piece.result is not None and piece.result.status != "unreachable"]
        for piece in judged:
            if piece.result is not None and piece.result.not_run and task.changed_when is False:
                piece.result = replace(piece.result, status="skipped" if piece.result.status == "skipped" else "ok")
        judged = [piece for piece in judged if piece.result is not None and not piece.result.not_run]
        found: list[Filled | TemplateError] = [Filled(True)] * len(judged)
        if truths:
            found = self._told.fill([self._question(piece, truths) for piece in judged])
        again = []
        for piece, answer in zip(judged, found, strict=True):
            assert piece.result is not None
            if isinstance(answer, TemplateError):
                piece.result = _bad_template(answer, piece.result)
                continue
            piece.result = self._judged(piece.result, answer.truths)
            if task.until and not answer.truths["until"]:
                again.append(piece)
                last = f"until did not hold: {' and '.join(each.text for each in task.until)}"
                piece.result = replace(piece.result, status="failed", reason=piece.result.reason or last)
        return again

    def _question(self, piece: _Piece, truths: Mapping[str, Sequence[Templated]]) -> Job:
        assert piece.result is not None
        local = [*piece.local]
        if self._task.register:
            local.append(({self._task.register: piece.result.to_variable()}, False))
        return Job(piece.host.name, truths=truths, local=local)

    def _judged(self, result: Result, truths: Mapping[str, bool]) -> Result:
        task = self._task
        fails = truths.get("failed_when", task.failed_when if isinstance(task.failed_when, bool) else None)
        changes = truths.get("changed_when", task.changed_when if isinstance(task.changed_when, bool) else None)
        if fails is True:
            data = {**result.data, "changed": result.changed if changes is None else changes}
            return replace(result, status="failed", reason=result.reason or "failed_when holds", data=data)
        if fails is False and result.status == "failed":
            result = replace(result, status="changed", reason="", fix="")
        if changes is not None and result.status in ("ok", "changed"):
            result = replace(result, status="changed" if changes else "ok")
        elif changes is not None and result.status == "failed":
            result = replace(result, data={**result.data, "changed": changes})
        return result

    def _rest(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self._world.cancel.thrown:
            time.sleep(min(_GLANCE, max(0.0, until - time.monotonic())))

    # What became of it

    def _end(self, names: Sequence[str]) -> set[str]:
        task, bad = self._task, set()
        for name in names:
            pieces = self._pieces[name]
            results = [piece.result or failed("it was not begun") for piece in pieces]
            result = results[0] if task.loop is None else self._of_loop(pieces, results)
            ignored = result.status == "failed" and all(
                piece.ignored for piece, each in zip(pieces, results, strict=True) if each.status == "failed"
            )
            self._keep(name, result, pieces)
            no_log = bool(task.inherited.no_log)
            self._engine.end(self._report, name, result, no_log=no_log, ignored=ignored, loop=task.loop is not None)
            if result.status == "changed":
                for word, _ in task.notify:
                    self._engine.notify(word, name)
            if result.status == "failed" and not ignored:
                bad.add(name)
                about = {"name": self._report.name, "action": task.spec.name}
                told = {"ansible_failed_task": about, "ansible_failed_result": result.to_variable()}
                self._engine.remember(name, told)
        if task.inherited.run_once:
            bad = self._share(names[0], bad)
        return bad

    def _of_loop(self, pieces: Sequence[_Piece], results: Sequence[Result]) -> Result:
        task, secrets = self._task, self._told.secrets
        assert task.loop is not None
        if len(pieces) == 1 and pieces[0].call is None and pieces[0].item is None:
            return results[0]
        for piece, result in zip(pieces, results, strict=True):
            seen = shown(result, secrets, no_log=bool(task.inherited.no_log))
            label = "" if task.inherited.no_log else masked(piece.label, secrets)
            self._world.watch(ItemDone(piece.host.name, label, seen))
        return together(results, [piece.item for piece in pieces], task.loop.var)

    def _keep(self, name: str, result: Result, pieces: Sequence[_Piece]) -> None:
        facts: dict[str, Any] = {}
        if self._task.spec.name == "set_fact":
            for piece in pieces:
                if piece.result is not None and piece.result.status == "ok":
                    facts.update(piece.result.data.get("ansible_facts", {}))
        if self._task.register:
            facts[self._task.register] = result.to_variable()
        if facts:
            for host in self._names if self._task.inherited.run_once else [name]:
                self._engine.remember(host, facts)

    def _share(self, first: str, bad: set[str]) -> set[str]:
        """run_once: what failed once has failed for all."""
        return set(self._names) if first in bad else bad


def _label(item: Any) -> str:
    if isinstance(item, dict) and isinstance(item.get("name"), str):
        return str(item["name"])
    return item if isinstance(item, str) else json.dumps(item)[:80]


def _of_error(error: HostError) -> Result:
    return Result("unreachable" if error.status == "unreachable" else "failed", error.reason, error.fix)


def _bad_template(error: TemplateError, before: Result | None = None) -> Result:
    wrong = error.error
    data = dict(before.data) if before else {}
    return Result("failed", wrong.message, wrong.fix, data, line=wrong.text, column=wrong.column)
