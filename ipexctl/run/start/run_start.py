"""One call that starts or plans a run: what each step of the start shares with the next ones.

The project and the hosts are read once for each attempt. `forget` drops both, because a start that waited for other
runs must not plan with what it read before the wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from ipexctl.facts.gather import HostFacts, gather_facts
from ipexctl.launch.run_context import RunContext
from ipexctl.launch.spec import RunSpec
from ipexctl.node.common.placeholders import fill_run
from ipexctl.remote.connector import OpenHosts, SessionPool
from ipexctl.run.start.context import gather_context
from ipexctl.run.start.start_notes import ShownNotes
from ipexctl.run.start.upload import ProjectUpload
from ipexctl.run.start.watcher import StartWatcher


class RunStart:
    def __init__(self, spec: RunSpec, pool: SessionPool, watcher: StartWatcher) -> None:
        self.spec, self.pool, self.watcher = spec, pool, watcher
        self.opened = OpenHosts(spec.hosts, pool, spec.asked.home, spec.asked.iface, spec.timeout)
        self.notes = ShownNotes(watcher.on_note, spec)
        self._project: ProjectUpload | None = None
        self._probed: tuple[HostFacts, ...] = ()
        self.packages: Mapping[str, str] = {}
        """Package → its version once the install that a dry run planned is done; empty in other calls."""

    @property
    def project(self) -> ProjectUpload:
        """The upload of the project, which begins to read the project's files when it is first used."""
        if self._project is None:
            self._project = ProjectUpload(self.spec, self.opened, self.watcher.on_step)
        return self._project

    def probe(self) -> tuple[HostFacts, ...]:
        """Return the facts of all hosts, probing them on the first call.

        The generator is read to its end: abandoning it would cancel the pool, which a playbook shares."""
        self._probed = self._probed or tuple(gather_facts(self.opened))
        return self._probed

    @contextmanager
    def named(self, run: str) -> Iterator[None]:
        """Put a run's id in place of `{run}` in the spec, and restore the typed spec at the end, because another start
        has another id. A resumed run has the id of the first run that it resumes, so that paths stay the same."""
        typed = self.spec
        self.spec = in_run(typed, (*typed.asked.resumed, run)[0])
        try:
            yield
        finally:
            self.spec = typed

    def forget_hosts(self) -> None:
        """Probe the hosts again when their facts are next needed."""
        self._probed = ()

    def forget(self) -> None:
        """Read the project and the hosts again when they are next needed."""
        self._project, self._probed = None, ()

    def gather_context(self, *, dry_run: bool = False, before_install: bool = False) -> RunContext:
        """Return what a plan needs of the hosts, with the packages of a planned install. Raises a StartError if the
        hosts cannot run the spec."""
        context = gather_context(self.spec, self.pool, self.probe, dry_run=dry_run, before_install=before_install)
        return replace(context, env=replace(context.env, packages={**context.env.packages, **self.packages}))

    def show(self, notes: Iterable[str]) -> None:
        """Show the notes, skipping empty ones and those that this call has shown before."""
        for text in filter(None, notes):
            self.notes.show(text)


def in_run(spec: RunSpec, run: str) -> RunSpec:
    """Return the spec with the id in place of `{run}` in what ranks execute and in --checkpoint. `asked.argv` stays as
    it was typed, because printed commands repeat it. Behind `--`, each rank replaces all placeholders."""
    asked, command = spec.asked, spec.project.command
    if asked.checkpoint is not None:
        asked = asked._replace(checkpoint=fill_run((asked.checkpoint,), run)[0])
    if not asked.is_behind_dashes:
        command = fill_run(command, run)
    return replace(spec, asked=asked, project=replace(spec.project, command=command))
