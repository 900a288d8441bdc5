"""doctor, trust and sync: one call for all hosts of the play, and to each its outcome."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ipexctl.errors import UserError
from ipexctl.playbook.options import local_path
from ipexctl.playbook.report import PlayNotice
from ipexctl.playbook.result import Result, failed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ipexctl.playbook.play_context import PlayContext
    from ipexctl.playbook.result import Call


def refused(calls: Sequence[Call], reason: str, fix: str = "", status: Any = "failed") -> dict[str, Result]:
    """The same for all: nothing was begun."""
    return {call.host.name: Result(status, reason, fix) for call in calls}


class _Doctor:
    def together(self, context: PlayContext, calls: Sequence[Call]) -> Mapping[str, Result]:
        import os

        from ipexctl.doctor.run import DoctorRequest, run_doctor
        from ipexctl.jobs.registry import RunRegistry
        from ipexctl.stack.catalog.user_table import known_rows

        args, options = calls[0].args, context.options
        wishes = DoctorRequest(
            home=options.home,
            iface=options.iface,
            require=args["require"],
            network=args["network"],
            smoke=args["smoke"],
            timeout=calls[0].timeout,
            rows=known_rows(os.environ),
            node0_of=RunRegistry().node0_of,
        )
        report = run_doctor([call.host for call in calls], wishes, context.pool)
        bad = ("fail", "warn") if args["warnings"] == "fail" else ("fail",)
        everyone = {call.host.name for call in calls}
        ignored = {*(args["ignore"] or ()), *(context.mended if calls[0].check else ())}
        results: dict[str, Result] = {}
        for host in report.hosts:
            name = host.host.name
            if host.status == "unreachable" or (host.facts is None and host.status == "fail"):
                status: Any = "unreachable" if host.status == "unreachable" else "failed"
                results[name] = Result(status, host.reason, host.fix)
                continue
            found = [*host.findings, *(each for each in report.cluster if name in (each.hosts or everyone))]
            minded = [finding for finding in found if finding.id not in ignored]
            wrong = [finding for finding in minded if finding.level in bad]
            shown = wrong or [finding for finding in minded if finding.level == "warn"]
            text = "\n".join(f"{finding.id}: {finding.message}" for finding in shown)
            fixes = "\n".join(finding.fix for finding in wrong if finding.fix)
            data = {
                "findings": [{"id": f.id, "level": f.level, "message": f.message, "fix": f.fix} for f in found],
                "tier": host.facts.cpu.tier if host.facts else None,
            }
            results[name] = Result("failed" if wrong else "ok", text, fixes, data)
        return results


class _Trust:
    def together(self, context: PlayContext, calls: Sequence[Call]) -> Mapping[str, Result]:
        from ipexctl.trust import setup as verb
        from ipexctl.trust.host_steps import TrustSteps

        call, options = calls[0], context.options
        hosts = [each.host for each in calls]
        with TrustSteps(
            hosts,
            PlaySessions(context),
            context.cancel,
            forks=options.forks,
            timeout=call.timeout,
        ) as pool:
            if call.args["state"] == "absent":
                report = verb.revoke(pool, home=options.home, dry_run=call.check)
            else:
                report = verb.trust(pool, home=options.home, iface=options.iface, dry_run=call.check)
        for note in report.notes:
            context.watch(PlayNotice(f"note: {note}"))
        if any(done.status == "changed" for done in report.hosts):
            context.mended.add("network.login")
        return {
            done.host.name: Result(done.status, done.reason, done.fix, {"internal": done.internal, "by": report.by})
            for done in report.hosts
        }


class PlaySessions:
    """Opens nothing of its own: the playbook's connections serve."""

    def __init__(self, context: PlayContext) -> None:
        self._world = context

    def open(self, host: Any, cancel: Any) -> Any:
        return self._world.lent(host, cancel)


class _Sync:
    def together(self, context: PlayContext, calls: Sequence[Call]) -> Mapping[str, Result]:
        from ipexctl.sync.project import data_patterns, read_project
        from ipexctl.sync.sync import sync_project

        call, options = calls[0], context.options
        args = call.args
        root = local_path(call.task.base, args["src"])
        try:
            excludes = (*(args["exclude"] or ()), *data_patterns(root, [root / each for each in args["data"] or ()]))
            includes = tuple(args["include"] or ())
            project = read_project(root, excludes, includes=includes, home=options.home, allow_big=args["allow_big"])
        except UserError as error:
            return refused(calls, error.message, error.fix)
        report = sync_project(
            project,
            [each.host for each in calls],
            context.pool,
            home=options.home,
            iface=options.iface,
            timeout=call.timeout,
            dry_run=call.check,
        )
        for note in report.notes:
            context.watch(PlayNotice(f"note: {note}"))
        results = {}
        for done in report.hosts:
            send, gone = done.would_send, done.would_delete
            counts = (len(send), len(gone)) if call.check else (done.files_sent, done.files_deleted)
            said = [f"{counts[0]} files sent"] * bool(counts[0]) + [f"{counts[1]} deleted"] * bool(counts[1])
            diff = "".join(f"+ {path}\n" for path in send) + "".join(f"- {path}\n" for path in gone)
            data = {"path": done.path or report.path, "files": report.files, "sent": counts[0], "deleted": counts[1]}
            results[done.host.name] = Result(done.status, done.reason or ", ".join(said), done.fix, data, diff)
        return results


def bad_call(calls: Sequence[Call], error: UserError) -> dict[str, Result]:
    return {call.host.name: failed(error.message, error.fix) for call in calls}


RUNNERS: Final = {"doctor": _Doctor(), "trust": _Trust(), "sync": _Sync()}
