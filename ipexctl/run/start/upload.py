"""Bring the project of a run to the hosts: read it, compare it with the copies there, upload what differs.

Reading and comparing happen in the background while the hosts' facts are gathered.

This module also refuses a `--checkpoint` whose path leads through a symlink of the project, because the project would
then decide which files of a host are exchanged. `node/files/checkpoint_path.py` checks the same on each host.
"""

from __future__ import annotations

import posixpath
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from functools import partial
from pathlib import Path
from typing import Final

from ipexctl.errors import UserError
from ipexctl.files.sent_manifest import Manifest
from ipexctl.homes.pending import abandoned_runs, runs_directory
from ipexctl.hosts.host import quote
from ipexctl.hosts.nodeset import fold
from ipexctl.launch.run_context import RunContext
from ipexctl.launch.spec import RunSpec
from ipexctl.node.common.job import ConnectivityRecord
from ipexctl.remote.connector import OpenHosts
from ipexctl.remote.fanout import run_in_background
from ipexctl.remote.home_script import walk_to
from ipexctl.run.start.begin import clean_up
from ipexctl.run.start.start_project import describe_project
from ipexctl.run.start.start_request import StartError
from ipexctl.sync.ignore import is_secret, pattern_for, stays_home
from ipexctl.sync.node_calls import SyncReport
from ipexctl.sync.path_notes import PathNotes
from ipexctl.sync.project import Project, read_project
from ipexctl.sync.project_sync import ProjectSync, query_project
from ipexctl.text import join_words

_SHOWN_NOTES: Final = PathNotes("said")
"""For each project, the notes on files left out that its last run has shown."""


class ProjectUpload:
    """The project of one run on its way to the hosts. Creating it starts to read the project in the background.

    With --no-sync, the hosts are expected to have the project already: nothing is read, compared or sent.
    """

    def __init__(self, spec: RunSpec, opened: OpenHosts, on_step: Callable[[str], None]) -> None:
        self._spec, self._opened, self._on_step = spec, opened, on_step
        self.tree = str(spec.project.root)
        """Path of the project on the hosts, known once it is uploaded; with --no-sync, the path here."""
        self._lease: str | None = None
        self._query: Future[ProjectSync] | None = None
        self._reading: Future[Project] | None = None
        if not spec.asked.sync:
            check_unsynced_path(spec)
            on_step(describe_project(spec))
            return
        self._reading = run_in_background(self._read, "project")
        if first_symlink(spec):
            self.content()  # wait: it may be refused for the symlink, and then no host is asked anything

    def content(self, *, waits: bool = True) -> Project | None:
        """Return the project; None with --no-sync. Raises a UserError if the project cannot be sent.

        `waits=False`: return None if the project is not read yet.
        """
        if self._reading is None or not (waits or self._reading.done()):
            return None
        return self._reading.result()

    def compare(self, lease: str | None) -> None:
        """Start to ask the hosts, in the background, which files of the project they have.

        `lease`: the run that will use the copy. A host with a complete copy notes at once that the run uses it. None
        for a dry run, which changes nothing.
        """
        self._lease = lease
        reading, spec = self._reading, self._spec
        if reading is None:
            return

        def query() -> ProjectSync:
            return query_project(
                reading.result(),
                self._opened,
                dry_run=lease is None,
                lease=lease,
                ended=(*abandoned_runs(runs_directory()), *spec.asked.resumed),
            )

        self._query = run_in_background(query, "tree")

    def upload(self, context: RunContext, preflight: Future[ConnectivityRecord | None] | None = None) -> float:
        """Upload the files that the hosts lack, once `preflight` has passed, and set `tree`.

        Return how many seconds the upload took. Raises a StartError if a host could not be synced, or if `preflight`
        failed, which is only awaited if files must be sent.
        """
        if self._query is None:
            return 0.0
        sync = self._query.result()
        if sync.needs_upload and preflight is not None:
            preflight.result()
        sync.facts.update(context.facts)
        began = time.monotonic()
        report = sync.upload()
        seconds = time.monotonic() - began
        failed = [host for host in report.hosts if host.status in ("failed", "unreachable")]
        if failed:
            first = failed[0]
            reason = f"{first.host.name}: the project could not be synced: {first.reason}"
            hosts = tuple(host.host.name for host in failed)
            raise StartError.because(reason, first.fix, hosts, first.exit_code)
        self._show(report, sync)
        path = report.path or next((host.path for host in report.hosts if host.path), None)
        self.tree = path or f"{context.home}/code/{report.project}"
        return seconds

    def _show(self, report: SyncReport, sync: ProjectSync) -> None:
        """Show the notes and warnings of the sync, and what was uploaded."""
        known = () if self._spec.repeats_notes or sync.dry_run else _notes_shown_before(sync.project)
        for text in report.notes:
            if text not in known:
                self._on_step("note: " + text)
        for text in report.warnings:
            self._on_step("warning: " + text)
        changed = [host for host in report.hosts if host.files_sent]
        if not changed or sync.dry_run:
            return
        files = "1 file" if report.files == 1 else f"{report.files} files"
        sent = max(host.files_sent for host in changed)
        names = fold(host.host.name for host in changed)
        self._on_step(f"{report.root}: {sent} of {files} uploaded to {names}, {report.seconds:.1f} s")

    def release(self) -> frozenset[str]:
        """Remove the run's leases on the hosts. Returns the hosts that could not be reached, and still have them."""
        if self._query is None:
            return frozenset()
        wait((self._query,))  # it may be about to lease a copy
        if self._lease is None:
            return frozenset()
        code = f"{self._spec.asked.home}/code"
        home = shlex.quote(code.removeprefix("~/"))  # sessions start in the home directory
        return clean_up(
            self._spec.hosts, f"{walk_to(code)}rm -f {home}/*/.ipexctl/leases/{self._lease}", self._opened.pool
        )

    def _read(self) -> Project:
        """Read which files of the project are sent. Runs in a background thread."""
        spec, asked = self._spec, self._spec.asked
        read = partial(
            read_project,
            spec.project.root,
            asked.exclude,
            secret_files=spec.secret_files,
            home=asked.home,
            allow_big=asked.allow_big,
            data=[Path(path) for path in asked.data],
            named=asked.argv,
        )
        content = read(includes=asked.include)
        imported, beside = unsent_modules(spec, content)
        if imported:
            content = read(includes=(*asked.include, *map(pattern_for, (*imported, *beside))))
            self._on_step(_sent_anyway(imported, "the project's own modules import {them}"))
        if beside:
            self._on_step(
                _sent_anyway(beside, "modules beside {them} are imported, and the project loads some by name")
            )
        check_synced_path(spec, content.manifest)
        self._on_step(describe_project(spec, content.manifest.summary))
        script = spec.project.script
        for note in (*spec.project.layout.notes, *(script.notes if script is not None else ())):
            self._on_step("note: " + note)
        return content


def _sent_anyway(names: Sequence[str], reason: str) -> str:
    verb, them = ("is", "it") if len(names) == 1 else ("are", "them")
    return f"note: {join_words(names)} {verb} sent although .gitignore excludes {them}: {reason.format(them=them)}"


def unsent_modules(spec: RunSpec, project: Project) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return files of own packages that `.gitignore` excludes and the run needs: modules that the script imports in any
    case; and, if the project loads modules by name, the other Python files of a directory that is excluded as one.

    What `.ipexctlignore` excludes is never among them, nor is a file beside them that has a pattern of its own.
    """
    script = spec.project.script
    if script is None or spec.asked.exclude:
        return (), ()
    sent = {entry.path for entry in project.manifest.entries}
    packages = tuple(f"{path}/" for path in spec.project.layout.paths if path != ".")
    own = [name for name in script.own_files if "/" in name and (name.startswith(packages) or not packages)]
    unsent = [name for name in own if name not in sent and not is_secret(name)]
    imported = tuple(name for name in unsent if not stays_home(project.root, name))
    directories = {posixpath.dirname(name) for name in imported if script.loads_by_name}
    whole = sorted(directory for directory in directories if f"{directory}/__init__.py" in imported)
    others = (
        f"{directory}/{path.name}" for directory in whole for path in sorted((project.root / directory).glob("*.py"))
    )
    beside = (name for name in others if name not in sent and name not in imported and not is_secret(name))
    return imported, tuple(name for name in beside if not stays_home(project.root, name, posixpath.dirname(name)))


def _notes_shown_before(project: Project) -> Sequence[str]:
    """Return the notes on files left out, such as credentials, if the last run has shown exactly these; else none.

    Remembers the notes for the next run.
    """
    text = "\n".join(project.notes)
    if _SHOWN_NOTES.text_of(str(project.root)) == text:
        return project.notes
    _SHOWN_NOTES.add([str(project.root)], text)
    return ()


_SYMLINK_FIX: Final = (
    "have a directory of that name in place of the link, or name the place itself in the call: "
    "--checkpoint /PATH/ON/EVERY/HOST"
)


def check_synced_path(spec: RunSpec, manifest: Manifest) -> None:
    """Refuse a relative --checkpoint that leads through a symlink which sync sends to the hosts. Pure."""
    links = {entry.path: entry.content for entry in manifest.entries if entry.kind == "l"}
    for path in _paths_above(spec):
        if path in links:
            raise UserError(
                f"{_option(spec)}: {quote(path)} is a link of the project to {quote(links[path])}; sync brings it to "
                "every host, and there it would decide which files are exchanged",
                fix=f"{_SYMLINK_FIX}; a link that you make on the hosts yourself is followed",
            )


def check_unsynced_path(spec: RunSpec) -> None:
    """With --no-sync, refuse a --checkpoint that leads through a symlink, if a file of the project sets the path.

    On a host nobody can tell who made the link, and the user did not type the path.
    """
    if spec.asked.checkpoint_is_found and (link := first_symlink(spec)):
        raise UserError(
            f"{_option(spec)}: {quote(link)} is a link, and a file that was found, not named, set this path",
            fix=_SYMLINK_FIX,
        )


def _option(spec: RunSpec) -> str:
    return f"--checkpoint {quote(spec.asked.checkpoint or '')}"


def first_symlink(spec: RunSpec) -> str:
    """Return the first symlink in a relative --checkpoint, as the project on this machine has it; empty if none."""
    return next((path for path in _paths_above(spec) if (spec.project.root / path).is_symlink()), "")


def _paths_above(spec: RunSpec) -> Iterator[str]:
    """Yield the directories of a relative --checkpoint, below the project's root, and then the path itself.

    Yields nothing for an absolute path, because only a host knows what is there.
    """
    parts = posixpath.normpath(posixpath.join(spec.project.subdirectory, spec.asked.checkpoint or "")).split("/")
    if spec.asked.checkpoint and parts[0] not in ("", ".."):
        yield from ("/".join(parts[:end]) for end in range(1, len(parts) + 1))
