"""The modules install, env, doctor and sync: each is one call for all hosts of the play, as the command is.

Only naming an environment is a step on each host: new runs use the environment that has the name `default` by then,
and running ones keep theirs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Final

from ipexctl.addons.play.modules.local_files import local_path
from ipexctl.addons.play.result import Call, TaskResult, failure, host_failure, host_result
from ipexctl.addons.play.variables import PlayContext
from ipexctl.api import host_checks, host_files, host_stacks
from ipexctl.errors import UserError
from ipexctl.facts.facts import Facts
from ipexctl.facts.gather import gather_facts
from ipexctl.hosts.host import Host
from ipexctl.node.common.fix import join_fixes
from ipexctl.option_declaration import SyncOptions
from ipexctl.projects.root import find_root
from ipexctl.remote.caller import describe_foreign
from ipexctl.remote.node_call import AgentPlace
from ipexctl.remote.outcome import Notice
from ipexctl.remote.session import Session
from ipexctl.stack.env.environment import EnvClient
from ipexctl.stack.env.envs import find_foreign_envs
from ipexctl.stack.env.record import check_new_env_name
from ipexctl.stack.resolve.compatibility import usable_pythons
from ipexctl.stack.resolve.model import Sources, StackRequest


def _doctor(context: PlayContext, call: Call, hosts: Sequence[Host]) -> Mapping[str, TaskResult]:
    """Check the hosts. A host fails by its own findings, and by those of the cluster that name it or no host."""
    args = call.args
    opened = context.opened(hosts, call.timeout)
    report = host_checks.doctor(opened, require=args["require"], network=args["network"], smoke=args["smoke"])
    failing_levels = ("fail", "warn") if args["warnings"] == "fail" else ("fail",)
    ignored = set(args["ignore"] or ())
    results: dict[str, TaskResult] = {}
    for host in report.hosts:
        name = host.host.name
        if host.status == "unreachable" or (host.facts is None and host.status == "fail"):
            results[name] = host_failure(host)
            continue
        of_cluster = [finding for finding in report.cluster.findings if not finding.hosts or name in finding.hosts]
        findings = [*host.findings, *of_cluster]
        relevant = [finding for finding in findings if finding.id not in ignored]
        failures = [finding for finding in relevant if finding.level in failing_levels]
        shown = failures or [finding for finding in relevant if finding.level == "warn"]
        text = "\n".join(f"{finding.id}: {finding.message}" for finding in shown)
        fixes = join_fixes((finding.fix for finding in failures), "\n")
        data = {
            "findings": [
                {"id": finding.id, "level": finding.level, "message": finding.message, "fix": finding.fix}
                for finding in findings
            ],
            "tier": host.facts.cpu.tier if host.facts else None,
        }
        results[name] = TaskResult("failed" if failures else "ok", text, fixes, data)
    return results


def _sync(context: PlayContext, call: Call, hosts: Sequence[Host]) -> Mapping[str, TaskResult]:
    """Upload a project; with --check, say what would change."""
    args, base, src = call.args, call.task.base, call.args["src"]
    root = find_root(None, None if src is None else local_path(base, src), base)
    patterns = {name: tuple(args[name] or ()) for name in ("exclude", "include", "data")}
    files = SyncOptions(**patterns, allow_big=args["allow_big"])
    report = host_files.sync(context.opened(hosts, call.timeout), root, files, dry_run=call.check, asks_early=False)
    for note in report.notes:
        context.watcher.on_notice(Notice("note: " + note))
    results = {}
    for done in report.hosts:
        would_send, would_delete = done.would_send, done.would_delete
        sent, deleted = done.files_sent, done.files_deleted
        if call.check:
            sent, deleted = len(would_send), len(would_delete)
        changes = [f"{sent} files sent"] if sent else []
        changes += [f"{deleted} deleted"] if deleted else []
        diff = "".join(f"+ {path}\n" for path in would_send) + "".join(f"- {path}\n" for path in would_delete)
        data = {"path": done.path or report.path, "files": report.files, "sent": sent, "deleted": deleted}
        results[done.host.name] = TaskResult(done.status, done.reason or ", ".join(changes), done.fix, data, diff)
    return results


_REMOVE_FOREIGN: Final = "to remove it, too, add to the task: force: true"
_STACK: Final = ("torch", "stack", "ipex", "oneccl", "python", "require_oneccl")


def _install(context: PlayContext, call: Call, hosts: Sequence[Host]) -> Mapping[str, TaskResult]:
    """Install a stack on all hosts; with --check, only resolve it."""
    args = call.args
    wheelhouse = args["wheelhouse"]

    def watch(event: object) -> None:
        if isinstance(event, Notice):
            context.watcher.on_notice(Notice(event.text))

    report = host_stacks.install(
        context.opened(hosts, call.timeout),
        StackRequest(**{name: args[name] for name in _STACK}),
        Sources(
            index_url=args["index_url"],
            extra_index_urls=tuple(args["extra_index_url"] or ()),
            find_links=tuple(_source(call, source) for source in args["find_links"] or ()),
            wheelhouse=None if wheelhouse is None else _source(call, wheelhouse),
            offline=args["offline"],
        ),
        env=args["env"],
        packages=args["with"] or (),
        requirements=[local_path(call.task.base, source) for source in args["requirements"] or ()],
        options=host_stacks.InstallOptions(args["upgrade"], args["downgrade"], call.check),
        watch=watch,
    )
    for note in report.notes:
        context.watcher.on_notice(Notice("note: " + note))
    stack, refusal = report.stack, report.refusal
    stack_text = f"{stack.name}: torch {stack.torch}" if stack else ""
    data: dict[str, object] = {"path": report.path, **({"stack": stack.name} if stack else {})}
    data |= {name: getattr(stack, name) for name in ("torch", "ipex", "mpi", "backend") if stack}
    unreported = failure(refusal.reason, refusal.fix) if refusal else failure("install reported nothing for this host")
    results = dict.fromkeys([host.name for host in hosts], unreported)
    for done in report.hosts:
        of_host = {**data, "env": done.env, "packages": dict(done.packages), "verify": dict(done.verify)}
        reason = done.reason or (stack_text if done.status == "changed" else "")
        results[done.host.name] = TaskResult(done.status, reason, done.fix, of_host)
    return results


def _source(call: Call, source: str) -> str:
    """Return a source of wheels: a URL as it is, or the path of a directory on this machine."""
    return source if "://" in source else str(local_path(call.task.base, source))


def _env(context: PlayContext, call: Call, hosts: Sequence[Host]) -> Mapping[str, TaskResult]:
    """Verify an environment, give it a name, or remove it, by `state`."""
    name = call.args["name"]
    if call.args["state"] == "named":
        return _name_env(context, call, hosts, check_new_env_name(name))
    if call.args["state"] == "absent":
        return _remove_env(context, call, hosts, name)
    report = host_stacks.envs(context.opened(hosts, call.timeout), host_stacks.EnvsRequest(verify=True, env=name))
    return {done.host.name: host_result(done, verify=dict(done.verify)) for done in report.hosts}


def _remove_env(context: PlayContext, call: Call, hosts: Sequence[Host], name: str) -> Mapping[str, TaskResult]:
    """Remove an environment by name or directory; without `force`, one that others installed is a failure."""
    if call.check:
        results: dict[str, TaskResult] = {}
        for host, facts in _gather_facts(context, hosts, results).items():
            exists = any(name in (env.name, *env.names) for env in facts.software.envs)
            if (foreign := find_foreign_envs(facts, [name])) and not call.args["force"]:
                results[host] = failure(describe_foreign({host: foreign}), _REMOVE_FOREIGN)
                continue
            results[host] = TaskResult("changed" if exists else "ok", f"{name} would be removed" if exists else "")
        return results
    request = host_stacks.EnvsRequest(remove=(name,), force=call.args["force"])
    try:
        report = host_stacks.envs(context.opened(hosts, call.timeout), request)
    except UserError as error:  # the environment is of others
        return dict.fromkeys([host.name for host in hosts], failure(error.message, _REMOVE_FOREIGN))
    return {done.host.name: host_result(done, removed=list(done.removed)) for done in report.hosts}


def _name_env(context: PlayContext, call: Call, hosts: Sequence[Host], name: str) -> Mapping[str, TaskResult]:
    """Give the environment `from`, a name or a directory, another name on each host that has it."""
    source = call.args["from"]
    results: dict[str, TaskResult] = {}
    links: dict[str, tuple[str, str, str]] = {}
    """Host → its Python, its home, and the environment to name."""
    for host, facts in _gather_facts(context, hosts, results).items():
        env = next((env for env in facts.software.envs if source in (env.name, *env.names)), None)
        pythons = usable_pythons(facts)
        if env is None and call.check:
            results[host] = TaskResult("skipped", f"--check: environment {source!r} does not exist yet")
        elif env is None:
            names = chain.from_iterable((known_env.name, *known_env.names) for known_env in facts.software.envs)
            known = ", ".join(sorted(set(names)))
            results[host] = failure(f"environment {source!r} does not exist", f"one of: {known}" if known else "")
        elif name in (env.name, *env.names):
            results[host] = TaskResult("ok", data={"env": env.name})
        elif not pythons or facts.home is None:
            results[host] = failure("there is no Python 3.8 or newer", "install one on that host")
        else:
            links[host] = (pythons[0].path, facts.home.path, env.name)
            results[host] = TaskResult("changed", f"{name} is now {env.name}", data={"env": env.name})
    if call.check:
        return results

    def link_env(host: Host, session: Session) -> None:
        python, home, env = links[host.name]
        EnvClient(session, AgentPlace(python, home)).link(env, name)

    for done in context.pool.each([host for host in hosts if host.name in links], link_env):
        if done.error is not None:
            results[done.host.name] = host_failure(done.error)
    return results


def _gather_facts(context: PlayContext, hosts: Sequence[Host], results: dict[str, TaskResult]) -> dict[str, Facts]:
    """Return host → its facts; hosts that fail are added to `results` instead."""
    facts: dict[str, Facts] = {}
    for answer in gather_facts(context.opened(hosts, context.options.timeout)):
        if answer.facts is None or answer.status != "ok":
            results[answer.host.name] = host_failure(answer)
        else:
            facts[answer.host.name] = answer.facts
    return facts


RUNNERS: Final = {"doctor": _doctor, "sync": _sync, "install": _install, "env": _env}
