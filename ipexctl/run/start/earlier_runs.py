"""Warns that a fresh run may overwrite what earlier runs left in a directory that its command line names.

Each home is asked once, while the run starts. Whose a file is comes from the records of the runs' files. A host keeps a
copy of an unfinished run's newest checkpoint before it answers, so that this run can still be resumed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ipexctl.homes.local_copy import read_final_status
from ipexctl.homes.registry import RunRegistry
from ipexctl.hosts.host import Host
from ipexctl.hosts.nodeset import fold
from ipexctl.limits import PATIENCE
from ipexctl.node.common.files import format_size
from ipexctl.node.common.fix import Fix
from ipexctl.node.common.plan import Plan
from ipexctl.node.files.earlier_files import EarlierFiles, LookRequest
from ipexctl.remote.node_call import call
from ipexctl.remote.session import Session
from ipexctl.run.start.apart_checkpoints import places_in
from ipexctl.run.start.run_start import RunStart
from ipexctl.run.start.start_request import StartError, StartFailure, ask_all, first_of_stores
from ipexctl.text import format_count


def find_earlier_files(start: RunStart, plan: Plan) -> Sequence[Fix]:
    """Return notes for the user. Raises a StartError if a live run has the same `--checkpoint` directory, or if another
    account has put a checkpoint there."""
    checkpoint, registry = plan.asked.checkpoint or "", RunRegistry()
    paths = [*dict.fromkeys((*filter(None, (checkpoint,)), *places_in(plan.asked.argv[1:])))]
    if start.spec.asked.resumed or not paths:
        return ()
    statuses = {
        record.id: read_final_status(registry.directory / record.id)
        for record in registry.all()
        if record.project == str(start.spec.project.root)
    }
    finished = [name for name, status in statuses.items() if status is not None and status.state == "ok"]
    request: LookRequest = {
        "home": plan.home,
        "cwd": plan.cwd,
        "paths": paths,
        "checkpoint": checkpoint,
        "finished": finished,
    }

    def ask(_: Host, session: Session) -> tuple[EarlierFiles, ...]:
        label = "look for files of earlier runs"
        reply = call(session, "files.checkpoint", "look", request, label=label, silence=PATIENCE)
        return tuple(entry.decode(EarlierFiles) for entry in reply.records("earlier"))

    by_host = ask_all(first_of_stores(start.spec.nodes_of(plan), plan), start.pool, ask)
    for host, earlier in by_host.items():
        for entry in earlier:
            if entry.is_alive and entry.path == checkpoint:
                raise StartError(refuse_live(entry, host))
    return describe_earlier(plan.id, by_host)


def refuse_live(entry: EarlierFiles, host: str) -> StartFailure:
    """Return why a run may not have the `--checkpoint` of a run that lives. Pure."""
    return StartFailure(
        f"run {entry.run} goes on, and writes its checkpoints to {entry.path}, too",
        Fix(
            "give this run a directory of its own, `--checkpoint {own}`; or wait: `ipexctl wait {earlier}`",
            own=f"{entry.path}/{{run}}", earlier=entry.run,
        ),
        (host,),
        2,
    )  # fmt: skip


def describe_earlier(this: str, by_host: Mapping[str, Sequence[EarlierFiles]]) -> list[Fix]:
    """Return a note for each earlier run and directory. `this`: id of the new run. `by_host`: host → what it has.
    Pure."""
    of_hosts: dict[tuple[str, str], dict[str, EarlierFiles]] = {}
    for host, earlier in by_host.items():
        for entry in earlier:
            of_hosts.setdefault((entry.run, entry.path), {})[host] = entry
    notes = []
    for (run, path), entries in of_hosts.items():
        count, size = (sum(getattr(entry, name) for entry in entries.values()) for name in ("files", "size"))
        fields = {"this": this, "path": path, "earlier": run, "source": f"{run}:{path}", "own": f"{path}/{{run}}"}
        if any(entry.is_alive for entry in entries.values()):
            where = f"writes to {{path}} on {fold(entries)}"
            text = (
                f"run {{this}} {where}, and run {{earlier}}, which goes on, does, too; a directory of its own: {{own}}"
            )
        else:
            is_kept = any(entry.is_kept for entry in entries.values())
            kept = " (its newest checkpoint there is kept)" if is_kept else ""
            what = f"{format_count(count, 'file')} ({format_size(size)}) of run {{earlier}} on {fold(entries)}"
            text = (
                f"run {{this}} may overwrite what is in {{path}}, {what} that nobody fetched{kept}: "
                "`ipexctl fetch {source} fetched/`; a directory for each run: {own}"
            )
        notes.append(Fix(text, **fields))
    return notes
