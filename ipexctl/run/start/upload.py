"""The project on its way to the hosts of a run: read, compared with the copies there, uploaded, and released. Reading
and asking run in the background while facts are gathered.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Final

from ipexctl.hosts.nodeset import fold
from ipexctl.launch.request import Gathered
from ipexctl.node.common.job import ConnectivityRecord
from ipexctl.remote.fanout import run_in_background
from ipexctl.remote.home_script import walk_to
from ipexctl.remote.session_pool import SessionPool
from ipexctl.run.registry import RunRegistry, abandoned_runs
from ipexctl.run.start.begin import clean_up
from ipexctl.run.start.preflight.checkpoint import check_synced_path, check_unsynced_path, first_link
from ipexctl.run.start.project import describe_project
from ipexctl.run.start.request import StartError, StartFailure
from ipexctl.spec import RunSpec
from ipexctl.sync.path_notes import PathNotes
from ipexctl.sync.project import Project, read_project
from ipexctl.sync.project_sync import ProjectSync, query_project

_SHOWN: Final = PathNotes("said")


def start_reading(spec: RunSpec, on_step: Callable[[str], None]) -> Future[Project] | None:
    if not spec.sync:
        check_unsynced_path(spec)
        on_step(describe_project(spec))
        return None

    def read_content() -> Project:
        content = read_project(
            spec.project.root,
            spec.exclude,
            includes=spec.include,
            secret_files=spec.secret_files,
            home=spec.home,
            allow_big=spec.allow_big,
            data=[Path(path) for path in spec.data],
        )
        check_synced_path(spec, content.manifest)
        on_step(describe_project(spec, content.manifest.summary))
        return content

    reading = run_in_background(read_content, "project")
    if first_link(spec):
        reading.result()  # it may be refused, and then no host is asked anything
    return reading


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
            home=spec.home,
            iface=spec.iface,
            timeout=spec.timeout,
            dry_run=lease is None,
            lease=lease,
            ended=(*abandoned_runs(RunRegistry().directory), *spec.resumed),
        )

    return run_in_background(query, "tree")


def release_tree(query: Future[ProjectSync], spec: RunSpec, pool: SessionPool, *, lease: str) -> frozenset[str]:
    """Remove the run's leases; return the hosts that still have them."""
    wait((query,))  # it may still ask for a lease
    home = shlex.quote(spec.home.removeprefix("~/"))  # sessions start in the home directory
    return clean_up(spec.hosts, f"{walk_to(f'{spec.home}/code')}rm -f {home}/code/*/.ipexctl/leases/{lease}", pool)


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
    changed = [host for host in report.hosts if host.files_sent]
    if changed and not sync.dry_run:
        files = "1 file" if report.files == 1 else f"{report.files} files"
        sent, names = max(host.files_sent for host in changed), fold(host.host.name for host in changed)
        on_step(f"{report.root}: {sent} of {files} uploaded to {names}, {report.seconds:.1f} s")
    path = report.path or next((host.path for host in report.hosts if host.path), None)
    return path or f"{context.home}/code/{report.project}", seconds
