"""install and env: one matching stack on every host of the play, and its environments by name."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

from ipexctl.errors import UserError
from ipexctl.playbook.modules.cluster import bad_call, refused
from ipexctl.playbook.options import local_path
from ipexctl.playbook.report import Told
from ipexctl.playbook.result import Result

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ipexctl.facts.facts import Facts
    from ipexctl.hosts.host import Host
    from ipexctl.playbook.result import Call
    from ipexctl.playbook.world import World
    from ipexctl.remote.session import Session
    from ipexctl.stack.course import Wishes


class _Install:
    def together(self, world: World, calls: Sequence[Call]) -> Mapping[str, Result]:
        from ipexctl.stack.install import install
        from ipexctl.stack.progress import Said

        def watch(event: Any) -> None:
            if isinstance(event, Said):
                world.watch(Told(event.text))

        try:
            wishes = _wishes(world, calls[0])
            report = install([call.host for call in calls], wishes, world.crew, watch)
        except UserError as error:
            return bad_call(calls, error)
        for note in report.notes:
            world.watch(Told(f"note: {note}"))
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


def _wishes(world: World, call: Call) -> Wishes:
    from ipexctl.stack.choice.request import EnvRequest, StackRequest
    from ipexctl.stack.course import Wishes
    from ipexctl.stack.env.names import check_env_name
    from ipexctl.stack.lock.wanted import check_request, sources_of, wanted_packages
    from ipexctl.stack.rows.user_rows import known_rows

    args, options = call.args, world.options
    files = [local_path(call.task.base, each) for each in args["requirements"] or ()]
    wanted = wanted_packages(args["with"] or (), files)
    names = ("torch", "stack", "ipex", "oneccl", "python")
    asked = StackRequest(**{name: args[name] for name in names}, require_oneccl=args["require_oneccl"])
    rows = known_rows(os.environ)
    check_request(asked, rows)
    house = args["wheelhouse"]
    return Wishes(
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
    def together(self, world: World, calls: Sequence[Call]) -> Mapping[str, Result]:
        from ipexctl.stack.env.names import check_env_name

        call = calls[0]
        hosts = [each.host for each in calls]
        try:
            name = check_env_name(call.args["name"])
        except UserError as error:
            return bad_call(calls, error)
        if call.args["state"] == "named":
            return _named(world, calls, name)
        if call.args["state"] == "absent":
            return _absent(world, calls, name)
        from ipexctl.stack.env.envs import Subject, verify_envs

        report = verify_envs(hosts, world.crew, Subject(name), home=world.options.home, timeout=call.timeout)
        return {
            done.host.name: Result(done.status, done.reason, done.fix, {"verify": dict(done.verify)})
            for done in report.hosts
        }


def _absent(world: World, calls: Sequence[Call], name: str) -> Mapping[str, Result]:
    from ipexctl.stack.env.envs import remove_envs

    hosts = [call.host for call in calls]
    if calls[0].check:
        found: dict[str, Result] = {}
        for host, facts in _looked(world, hosts, found).items():
            there = any(name in (env.name, *env.names) for env in facts.software.envs)
            found[host] = Result("changed" if there else "ok", f"{name} would be taken away" if there else "")
        return found
    report = remove_envs(hosts, world.crew, [name], home=world.options.home, timeout=calls[0].timeout)
    return {
        done.host.name: Result(done.status, done.reason, done.fix, {"removed": list(done.removed)})
        for done in report.hosts
    }


def _named(world: World, calls: Sequence[Call], name: str) -> Mapping[str, Result]:
    """Give an environment a name more: what `default` means is exchanged in one step on each host."""
    from ipexctl.stack.choice.fit import usable_pythons
    from ipexctl.stack.env import environment

    source, hosts = calls[0].args["from"], [call.host for call in calls]
    found: dict[str, Result] = {}
    moves: dict[str, tuple[str, str, str]] = {}
    for host, facts in _looked(world, hosts, found).items():
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
        environment.link(session, python, home=home, name=env, links=(name,), cancel=world.cancel)

    for done in world.crew.each([host for host in hosts if host.name in moves], give):
        if done.error is not None:
            found[done.host.name] = Result(_status(done.error.status), done.error.reason, done.error.fix)
    return found


def _looked(world: World, hosts: Sequence[Host], found: dict[str, Result]) -> dict[str, Facts]:
    from ipexctl.facts.gather import gather

    facts: dict[str, Facts] = {}
    for answer in gather(hosts, world.crew, home=world.options.home, timeout=world.options.timeout):
        if answer.facts is None or answer.status != "ok":
            found[answer.host.name] = Result(_status(answer.status), answer.reason, answer.fix)
        else:
            facts[answer.host.name] = answer.facts
    return facts


def _status(status: str) -> Any:
    return "unreachable" if status == "unreachable" else "failed"


RUNNERS: Final = {"install": _Install(), "env": _Env()}
