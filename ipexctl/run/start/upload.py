"""The project on its way to the hosts of a run: read, compared with the copies there, uploaded, and released. Reading
and asking run in the background while facts are gathered. A `--checkpoint` that leads through a link of the project is
refused; `node/files/checkpoint_path.py` has the rule, which each host applies again.
"""

from __future__ import annotations

import posixpath
import shlex
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, wait
from functools import partial
from pathlib import Path
from typing import Final

from ipexctl.errors import UserError
from ipexctl.files.manifest import Manifest
from ipexctl.hosts.host import Host, quote
from ipexctl.hosts.nodeset import fold
from ipexctl.launch.request import Gathered
from ipexctl.limits import PATHS_CHECK
from ipexctl.node.common.fix import Fix, ipexctl_command
from ipexctl.node.common.job import ConnectivityRecord
from ipexctl.node.common.plan import Plan
from ipexctl.node.files.checkpoint_report import HostCopies, read_host_copies
from ipexctl.node.files.checkpoint_units import plan_exchange
from ipexctl.remote.connector import SessionPool
from ipexctl.remote.fanout import run_in_background
from ipexctl.remote.home_script import walk_to
from ipexctl.remote.node_call import call as call_node
from ipexctl.remote.outcome import HostError
from ipexctl.remote.session import Session
from ipexctl.run.local_copy import read_copy
from ipexctl.run.pending import abandoned_runs, runs_directory
from ipexctl.run.registry import RunRegistry
from ipexctl.run.start.begin import clean_up
from ipexctl.run.start.project import describe_project
from ipexctl.run.start.request import StartError, StartFailure
from ipexctl.spec import RunSpec, TypedCall
from ipexctl.sync.ignore import is_credential, pattern_for
from ipexctl.sync.node_calls import TreeCalls
from ipexctl.sync.path_notes import PathNotes
from ipexctl.sync.project import Project, read_project
from ipexctl.sync.project_sync import ProjectSync, query_project
from ipexctl.text import join_words

_SHOWN: Final = PathNotes("said")


def start_reading(spec: RunSpec, on_step: Callable[[str], None]) -> Future[Project] | None:
    asked = spec.asked
    if not asked.sync:
        check_unsynced_path(spec)
        on_step(describe_project(spec))
        return None

    def read_content() -> Project:
        read = partial(
            read_project,
            spec.project.root,
            asked.exclude,
            secret_files=spec.secret_files,
            home=asked.home,
            allow_big=asked.allow_big,
            data=[Path(path) for path in asked.data],
        )
        content = read(includes=asked.include)
        if unsent := unsent_modules(spec, content):
            content = read(includes=(*asked.include, *map(pattern_for, unsent)))
            on_step(
                f"note: {join_words(unsent)} {'is' if len(unsent) == 1 else 'are'} sent although an ignore file "
                "excludes it: the project's own modules import it"
            )
        check_synced_path(spec, content.manifest)
        on_step(describe_project(spec, content.manifest.summary))
        script = spec.project.script
        for note in (*spec.project.layout.notes, *(script.notes if script is not None else ())):
            on_step(f"note: {note}")
        return content

    reading = run_in_background(read_content, "project")
    if first_link(spec):
        reading.result()  # it may be refused, and then no host is asked anything
    return reading


def unsent_modules(spec: RunSpec, project: Project) -> tuple[str, ...]:
    """Python files of own packages that the script imports in any case, and that an ignore file excludes."""
    script = spec.project.script
    if script is None or spec.asked.exclude:
        return ()
    sent = {entry.path for entry in project.manifest.entries}
    packages = tuple(f"{path}/" for path in spec.project.layout.paths if path != ".")
    below = [name for name in script.own_files if "/" in name and (name.startswith(packages) or not packages)]
    return tuple(name for name in below if name not in sent and not is_credential(name, is_directory=False))


def begin_query(
    reading: Future[Project] | None, spec: RunSpec, pool: SessionPool, *, lease: str | None
) -> Future[ProjectSync] | None:
    """Ask the hosts in the background which files of the project they have; None if it is not synced.
    A complete tree gets the run's lease at once. Without a lease, nothing is changed anywhere.
    """
    if reading is None:
        return None

    def query() -> ProjectSync:
        return query_project(
            reading.result(),
            spec.hosts,
            pool,
            TreeCalls(spec.asked.home, lease is None, spec.timeout, pool.cancel),
            iface=spec.asked.iface,
            lease=lease,
            ended=(*abandoned_runs(runs_directory()), *spec.asked.resumed),
        )

    return run_in_background(query, "tree")


def release_tree(query: Future[ProjectSync], spec: RunSpec, pool: SessionPool, *, lease: str) -> frozenset[str]:
    """Remove the run's leases; return the hosts that still have them."""
    wait((query,))  # it may still ask for a lease
    home = shlex.quote(spec.asked.home.removeprefix("~/"))  # sessions start in the home directory
    return clean_up(
        spec.hosts, f"{walk_to(f'{spec.asked.home}/code')}rm -f {home}/code/*/.ipexctl/leases/{lease}", pool
    )


def _shown_before(project: Project) -> Sequence[str]:
    """The notes on what is left out of the project, such as credentials, if an earlier run showed the same ones."""
    text = "\n".join(project.notes)
    if _SHOWN.text_of(str(project.root)) == text:
        return project.notes
    _SHOWN.add([str(project.root)], text)
    return ()


def upload_project(
    query: Future[ProjectSync] | None,
    context: Gathered,
    on_step: Callable[[str], None],
    preflight: Future[ConnectivityRecord | None] | None = None,
) -> tuple[str, float]:
    """Upload what the hosts lack of the project, if preflight passed. Returns the path of the tree, and seconds."""
    if query is None:
        return str(context.spec.project.root), 0.0
    sync = query.result()
    if sync.needs_upload and preflight is not None:
        preflight.result()
    sync.facts.update(context.facts)
    began = time.monotonic()
    report = sync.upload()
    seconds = time.monotonic() - began
    failed = [host for host in report.hosts if host.status in ("failed", "unreachable")]
    if failed:
        first = failed[0]
        raise StartError(
            StartFailure(
                f"{first.host.name}: the project could not be synced: {first.reason}",
                first.fix,
                tuple(host.host.name for host in failed),
                first.exit_code,
            )
        )
    known = () if context.spec.repeats_notes or sync.dry_run else _shown_before(sync.project)
    for text in report.notes:
        if text not in known:
            on_step(f"note: {text}")
    for text in report.warnings:
        on_step(f"warning: {text}")
    changed = [host for host in report.hosts if host.files_sent]
    if changed and not sync.dry_run:
        files = "1 file" if report.files == 1 else f"{report.files} files"
        sent, names = max(host.files_sent for host in changed), fold(host.host.name for host in changed)
        on_step(f"{report.root}: {sent} of {files} uploaded to {names}, {report.seconds:.1f} s")
    path = report.path or next((host.path for host in report.hosts if host.path), None)
    return path or f"{context.home}/code/{report.project}", seconds


_FIX: Final = (
    "have a directory of that name in place of the link, or name the place itself in the call: "
    "--checkpoint /PATH/ON/EVERY/HOST"
)
_HOSTS: Final = frozenset(("-H", "--hostfile", "--hosts", "-c", "--cluster", "-l", "--limit"))


def check_synced_path(spec: RunSpec, manifest: Manifest) -> None:
    """Refuse a relative path with a link that sync brings to the hosts. Pure."""
    links = {entry.path: entry.content for entry in manifest.entries if entry.kind == "l"}
    for path in _parts_of(spec):
        if path in links:
            raise UserError(
                f"{_named(spec)}: {quote(path)} is a link of the project to {quote(links[path])}; sync brings it to "
                "every host, and there it would decide which files are exchanged",
                fix=f"{_FIX}; a link that you make on the hosts yourself is followed",
            )


def check_unsynced_path(spec: RunSpec) -> None:
    """Refuse a path with a link if a project's file set the path: nobody can tell there whose link it is."""
    if spec.asked.checkpoint_is_found and (link := first_link(spec)):
        raise UserError(
            f"{_named(spec)}: {quote(link)} is a link, and a file that was found, not named, set this path",
            fix=_FIX,
        )


def _named(spec: RunSpec) -> str:
    return f"--checkpoint {quote(spec.asked.checkpoint or '')}"


def first_link(spec: RunSpec) -> str:
    """The first link of the project on the control machine in a relative path, synced or not; or empty."""
    return next((path for path in _parts_of(spec) if (spec.project.root / path).is_symlink()), "")


def _parts_of(spec: RunSpec) -> Iterator[str]:
    """The path and those above it within the project's root; none for an absolute path, which only a host knows."""
    parts = posixpath.normpath(posixpath.join(spec.project.subdirectory, spec.asked.checkpoint or "")).split("/")
    if spec.asked.checkpoint and parts[0] not in ("", ".."):
        yield from ("/".join(parts[:end]) for end in range(1, len(parts) + 1))


def refuse_lost_checkpoint(
    spec: RunSpec, nodes: Sequence[Host], plan: Plan, pool: SessionPool, registry: RunRegistry
) -> None:
    """Raise a StartError if the resumed run had a checkpoint, and every host says that it has no complete one."""
    asked = spec.asked
    path, cwd, home = asked.checkpoint, plan.cwd, plan.home
    records = [read_copy(registry.directory / run) for run in asked.resumed]
    if not path or not any(record is not None and record.status.has_checkpoint for record in records):
        return
    tree = "" if posixpath.isabs(path) else posixpath.relpath(cwd, f"{home}/code").partition("/")[0]
    request = {"path": posixpath.join(cwd, path), "home": home, "tree": tree}

    def ask(host: Host, session: Session) -> HostCopies:
        del host
        reply = call_node(
            session, "files.checkpoint", "find", request, label="look for checkpoints", timeout=PATHS_CHECK,
            cancel=pool.cancel,
        )  # fmt: skip
        try:
            return read_host_copies(reply.record("report"), posixpath.basename(path))
        except (ValueError, TypeError, KeyError):
            raise HostError("its list of checkpoints cannot be read", Fix("`ipexctl doctor`")) from None

    reports = {done.host.name: done.result for done in pool.each(nodes, ask)}
    found = {name: report for name, report in reports.items() if report is not None}
    if len(found) == len(reports) and not any(plan_exchange(found).known.values()):
        away = [name for name in registry.find(asked.resumed[-1]).hosts if name not in reports]
        raise StartError(lost_checkpoint(path, asked.resumed[-1], list(reports), away, spec.typed))


def lost_checkpoint(path: str, run: str, hosts: Sequence[str], away: Collection[str], typed: TypedCall) -> StartFailure:
    """Why the run is not resumed, with the line that begins at the first step. Pure."""
    options = list(typed.options)
    for at in reversed(range(len(options))):  # the hosts that answer replace those in the first call
        name = options[at].partition("=")[0]
        if name in _HOSTS or (name[:2] in _HOSTS and not name.startswith("--")):
            del options[at : at + 2 if options[at] in _HOSTS else at + 1]
    anew = Fix("to start over: {call}", call=ipexctl_command("run", *options, argv=typed.words))
    return StartFailure(
        f"run {run} had a checkpoint in {quote(path)}, but there is no complete copy on {fold(hosts)}",
        Fix("when {hosts} answers again: `ipexctl run --resume {run}`; {anew}", hosts=fold(away), run=run, anew=anew)
        if away
        else anew,
        tuple(away),
        2,
    )
