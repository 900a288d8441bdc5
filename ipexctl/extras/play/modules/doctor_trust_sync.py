"""The modules doctor, trust and sync: one call for all hosts of the play, one result for each host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ipexctl.api import hosts as api
from ipexctl.extras.play.options import local_path
from ipexctl.extras.play.result import Call, Result, failed_host, host_result
from ipexctl.remote.progress import Notice
from ipexctl.sync.root import find_root
from ipexctl.sync_options import SyncOptions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ipexctl.extras.play.play_context import PlayContext
    from ipexctl.hosts.host import Host


def _doctor(context: PlayContext, call: Call, hosts: Sequence[Host]) -> Mapping[str, Result]:
    args = call.args
    opened = context.opened(call, hosts)
    report = api.doctor(opened, require=args["require"], network=args["network"], smoke=args["smoke"])
    failing_levels = ("fail", "warn") if args["warnings"] == "fail" else ("fail",)
    ignored = {*(args["ignore"] or ()), *(context.fixed if call.check else ())}
    results: dict[str, Result] = {}
    for host in report.hosts:
        name = host.host.name
        if host.status == "unreachable" or (host.facts is None and host.status == "fail"):
            results[name] = failed_host(host)
            continue
        findings = [*host.findings, *(found for found in report.cluster if not found.hosts or name in found.hosts)]
        relevant = [finding for finding in findings if finding.id not in ignored]
        failures = [finding for finding in relevant if finding.level in failing_levels]
        shown = failures or [finding for finding in relevant if finding.level == "warn"]
        text = "\n".join(f"{finding.id}: {finding.message}" for finding in shown)
        fixes = "\n".join(finding.fix for finding in failures if finding.fix)
        data = {
            "findings": [{"id": f.id, "level": f.level, "message": f.message, "fix": f.fix} for f in findings],
            "tier": host.facts.cpu.tier if host.facts else None,
        }
        results[name] = Result("failed" if failures else "ok", text, fixes, data)
    return results


def _trust(context: PlayContext, call: Call, hosts: Sequence[Host]) -> Mapping[str, Result]:
    report = api.trust(context.opened(call, hosts), revoke=call.args["state"] == "absent", dry_run=call.check)
    for note in report.notes:
        context.watch(Notice(f"note: {note}"))
    if any(done.status == "changed" for done in report.hosts):
        context.fixed.add("network.login")
    return {done.host.name: host_result(done, internal=done.internal, by=report.by) for done in report.hosts}


def _sync(context: PlayContext, call: Call, hosts: Sequence[Host]) -> Mapping[str, Result]:
    args, base, src = call.args, call.task.base, call.args["src"]
    root = find_root(None, None if src is None else local_path(base, src), base)
    given = {name: tuple(args[name] or ()) for name in ("exclude", "include", "data")}
    files = SyncOptions(**given, allow_big=args["allow_big"])
    report = api.sync(context.opened(call, hosts), root, files, dry_run=call.check, asks_early=False)
    for note in report.notes:
        context.watch(Notice(f"note: {note}"))
    results = {}
    for done in report.hosts:
        send, deleted = done.would_send, done.would_delete
        counts = (len(send), len(deleted)) if call.check else (done.files_sent, done.files_deleted)
        changes = [f"{counts[0]} files sent"] * bool(counts[0]) + [f"{counts[1]} deleted"] * bool(counts[1])
        diff = "".join(f"+ {path}\n" for path in send) + "".join(f"- {path}\n" for path in deleted)
        data = {"path": done.path or report.path, "files": report.files, "sent": counts[0], "deleted": counts[1]}
        results[done.host.name] = Result(done.status, done.reason or ", ".join(changes), done.fix, data, diff)
    return results


RUNNERS: Final = {"doctor": _doctor, "trust": _trust, "sync": _sync}
