"""The modules doctor, trust and sync: one call for all hosts of the play, one result for each host."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from ipexctl.extras.play.options import local_path
from ipexctl.extras.play.result import Call, Result, failed_host, host_result
from ipexctl.remote.progress import Notice

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ipexctl.extras.play.play_context import PlayContext
    from ipexctl.hosts.host import Host


def _doctor(context: PlayContext, call: Call, hosts: Sequence[Host]) -> Mapping[str, Result]:

    from ipexctl.doctor.run import DoctorRequest, run_doctor
    from ipexctl.facts.gather import gather_facts
    from ipexctl.run.registry import RunRegistry
    from ipexctl.stack.catalog.user_table import known_rows

    args, options = call.args, context.options
    request = DoctorRequest(
        home=options.home,
        iface=options.iface,
        require=args["require"],
        network=args["network"],
        smoke=args["smoke"],
        rows=known_rows(os.environ),
        node0_of=RunRegistry().node0_of,
    )
    probed = gather_facts(hosts, context.pool, home=options.home, timeout=call.timeout)
    report = run_doctor(hosts, probed, request, context.pool)
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
    from ipexctl.trust import setup

    options = context.options
    change = setup.revoke if call.args["state"] == "absent" else setup.trust
    trust_options = setup.TrustOptions(options.home, options.iface, call.timeout, call.check)
    report = change(hosts, context.pool, trust_options)
    for note in report.notes:
        context.watch(Notice(f"note: {note}"))
    if any(done.status == "changed" for done in report.hosts):
        context.fixed.add("network.login")
    return {done.host.name: host_result(done, internal=done.internal, by=report.by) for done in report.hosts}


def _sync(context: PlayContext, call: Call, hosts: Sequence[Host]) -> Mapping[str, Result]:
    from ipexctl.hosts.host import private_keys
    from ipexctl.sync.project import read_project
    from ipexctl.sync.root import find_root
    from ipexctl.sync.sync import query_project

    args, options, base = call.args, context.options, call.task.base
    src = args["src"]
    root = find_root(None, None if src is None else local_path(base, src), base)
    includes = tuple(args["include"] or ())
    project = read_project(
        root,
        args["exclude"] or (),
        includes=includes,
        home=options.home,
        allow_big=args["allow_big"],
        secret_files=private_keys(hosts),
        data=[root / entry for entry in args["data"] or ()],
    )
    report = query_project(
        project,
        hosts,
        context.pool,
        home=options.home,
        iface=options.iface,
        timeout=call.timeout,
        dry_run=call.check,
        may_update=True,
    ).upload()
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
