"""install and env: one matching stack on every host of the play, and its environments by name."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

from ipexctl.errors import UserError
from ipexctl.playbook.modules.doctor_trust_sync import bad_call, refused
from ipexctl.playbook.options import local_path
from ipexctl.playbook.report import PlayNotice
from ipexctl.playbook.result import Result

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ipexctl.facts.facts import Facts
    from ipexctl.hosts.host import Host
    from ipexctl.playbook.play_context import PlayContext
    from ipexctl.playbook.result import Call
    from ipexctl.remote.session import Session
    from ipexctl.stack.install_context import InstallRequest


class _Install:
    def together(self, context: PlayContext, calls: Sequence[Call]) -> Mapping[str, Result]:
        from ipexctl.stack.install import install
        from ipexctl.stack.progress import Notice

        def watch(event: Any) -> None:
            if isinstance(event, Notice):
                context.watch(PlayNotice(event.text))

        try:
            wishes = _wishes(context, calls[0])
            report = install([call.host for call in calls], wishes, context.pool, watch)
        except UserError as error:
            return bad_call(calls, error)
        for note in report.notes:
            context.watch(PlayNotice(f"note: {note}"))
        stack = report.stack
        found = (
            {} if stack is None else {"stack": stack.name, "torch": stack.torch, "ipex": stack.ipex, "mpi": stack.mpi}
        )
        results = {
            done.host.name: Result(
                done.status,
                done.reason or (f"{stack.name}: torch {stack.torch}" if stack and done.status == "changed" else ""),
                done.fix,
                {
                    **found,
                    "env": done.env,
                    "path": report.path,
                    "packages": dict(done.packages),
                    "verify": dict(done.verify),
                },
            )
            for done in report.hosts
        }
        if report.refusal is not None:
            lacking = [call for call in calls if call.host.name not in results]
            results |= refused(lacking, report.refusal.reason, report.refusal.fix)
        return {**refused(calls, "install says nothing of it"), **results}


def _wishes(context: PlayContext, call: Call) -> InstallRequest:
    from ipexctl.stack.catalog.user_table import known_rows
    from ipexctl.stack.env.names import check_env_name
    from ipexctl.stack.install_context import InstallRequest
    from ipexctl.stack.lock.request import check_request, sources_of, wanted_packages
    from ipexctl.stack.resolve.request import EnvRequest, StackRequest

    args, options = call.args, context.options
    files = [local_path(call.task.base, each) for each in args["requirements"] or ()]
    wanted = wanted_packages(args["with"] or (), files)
    names = ("torch", "stack", "ipex", "oneccl", "python")
    asked = StackRequest(**{name: args[name] for name in names}, require_oneccl=args["require_oneccl"])
    rows = known_rows(os.environ)
    check_request(asked, rows)
    house = args["wheelhouse"]
    return InstallRequest(
        env=EnvRequest(asked, wanted.lines, wanted.constraints),
        sources=sources_of(
            wanted.sources,
            index_url=args["index_url"],
            extra_index_urls=tuple(args["extra_index_url"] or ()),
            find_links=tuple(_place(call, each) for each in args["find_links"] or ()),
            wheelhouse=None if house is None else _place(call, house),
            offline=args["offline"],
        ),
        rows=rows,
        origins=wanted.origins,
        name=check_env_name(args["env"]),
        home=options.home,
        iface=options.iface,
        timeout=call.timeout,
        dry_run=call.check,
        upgrade=args["upgrade"],
    )


def _place(call: Call, word: str) -> str:
    return word if "://" in word else str(local_path(call.task.base, word))


class _Env:
    def together(self, context: PlayContext, calls: Sequence[Call]) -> Mapping[str, Result]:
        from ipexctl.stack.env.names import check_env_name

        call = calls[0]
        hosts = [each.host for each in calls]
        try:
            name = check_env_name(call.args["name"])
        except UserError as error:
            return bad_call(calls, error)
        if call.args["state"] == "named":
            return _named(context, calls, name)
        if call.args["state"] == "absent":
            return _absent(context, calls, name)
        from ipexctl.stack.env.envs import Subject, verify_envs

        report = verify_envs(hosts, context.pool, Subject(name), home=context.options.home, timeout=call.timeout)
        return {
            done.host.name: Result(done.status, done.reason, done.fix, {"verify": dict(done.verify)})
            for done in report.hosts
        }


def _absent(context: PlayContext, calls: Sequence[Call], name: str) -> Mapping[str, Result]:
    from ipexctl.stack.env.envs import remove_envs

    hosts = [call.host for call in calls]
    if calls[0].check:
        found: dict[str, Result] = {}
        for host, facts in _looked(context, hosts, found).items():
            there = any(name in (env.name, *env.names) for env in facts.software.envs)
            found[host] = Result("changed" if there else "ok", f"{name} would be taken away" if there else "")
        return found
    report = remove_envs(hosts, context.pool, [name], home=context.options.home, timeout=calls[0].timeout)
    return {
        done.host.name: Result(done.status, done.reason, done.fix, {"removed": list(done.removed)})
        for done in report.hosts
    }


def _named(context: PlayContext, calls: Sequence[Call], name: str) -> Mapping[str, Result]:
    """Give an environment a name more: what `default` means is exchanged in one step on each host."""
    from ipexctl.stack.env import environment
    from ipexctl.stack.resolve.compatibility import usable_pythons

    source, hosts = calls[0].args["from"], [call.host for call in calls]
    found: dict[str, Result] = {}
    moves: dict[str, tuple[str, str, str]] = {}
    for host, facts in _looked(context, hosts, found).items():
        env = next((each for each in facts.software.envs if source in (each.name, *each.names)), None)
        pythons = usable_pythons(facts)
        if env is None and calls[0].check:
            found[host] = Result("skipped", f"--check: there is no environment {source} yet")
        elif env is None:
            known = ", ".join(sorted({word for each in facts.software.envs for word in (each.name, *each.names)}))
            found[host] = Result("failed", f"there is no environment {source}", f"there are: {known}" if known else "")
        elif name in (env.name, *env.names):
            found[host] = Result("ok", data={"env": env.name})
        elif not pythons or facts.home is None:
            found[host] = Result("failed", "there is no Python 3.8 or newer", "ipexctl doctor says more")
        else:
            moves[host] = (pythons[0].path, facts.home.path, env.name)
            found[host] = Result("changed", f"{name} is {env.name} now", data={"env": env.name})
    if calls[0].check:
        return found

    def give(host: Host, session: Session) -> None:
        python, home, env = moves[host.name]
        environment.link(session, python, home=home, name=env, links=(name,), cancel=context.cancel)

    for done in context.pool.each([host for host in hosts if host.name in moves], give):
        if done.error is not None:
            found[done.host.name] = Result(_status(done.error.status), done.error.reason, done.error.fix)
    return found


def _looked(context: PlayContext, hosts: Sequence[Host], found: dict[str, Result]) -> dict[str, Facts]:
    from ipexctl.facts.gather import gather

    facts: dict[str, Facts] = {}
    for answer in gather(hosts, context.pool, home=context.options.home, timeout=context.options.timeout):
        if answer.facts is None or answer.status != "ok":
            found[answer.host.name] = Result(_status(answer.status), answer.reason, answer.fix)
        else:
            facts[answer.host.name] = answer.facts
    return facts


def _status(status: str) -> Any:
    return "unreachable" if status == "unreachable" else "failed"


RUNNERS: Final = {"install": _Install(), "env": _Env()}
