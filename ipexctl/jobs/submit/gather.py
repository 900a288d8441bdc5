"""What a run asks of hosts and reads here before anything is decided: begun early, while the rest is being imported.

Nothing is changed on a host by it, but for a note beside a tree that is whole: this run is going to use it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ipexctl.errors import UserError
from ipexctl.facts.gather import gather
from ipexctl.jobs.registry import RunRegistry, new_id
from ipexctl.jobs.submit.pending import abandoned_runs
from ipexctl.remote.background import run_in_background
from ipexctl.remote.outcome import HostError
from ipexctl.trust.config import read_config

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

    from ipexctl.facts.gather import HostFacts
    from ipexctl.hosts.host import Host
    from ipexctl.jobs.submit.failure import PreflightFailure
    from ipexctl.jobs.submit.project import ProjectLocation
    from ipexctl.jobs.submit.request import RunRequest
    from ipexctl.remote.session_pool import SessionPool
    from ipexctl.sync.report import SyncReport


class GateClosed(Exception):
    """The project is still to be brought, and the run won't begin."""

    def __init__(self, refused: PreflightFailure | None) -> None:
        super().__init__("the run won't begin")
        self.refused = refused


class UploadGate:
    """Holds up whoever wants to change something until it is known whether the run may begin."""

    def __init__(self) -> None:
        self._decided = threading.Event()
        self._may_go: Callable[[], PreflightFailure | None] | None = None

    def decide(self, may_go: Callable[[], PreflightFailure | None] | None) -> None:
        """By whom it is said; None: it may not."""
        self._may_go = may_go
        self._decided.set()

    def __call__(self) -> None:
        self._decided.wait()
        refused = self._may_go() if self._may_go is not None else None
        if refused is not None or self._may_go is None:
            raise GateClosed(refused)


@dataclass(frozen=True, slots=True)
class GatheredContext:
    """Under way."""

    run: str
    """The id it is going to have."""
    answers: Future[tuple[HostFacts, ...]]
    config: Future[str] | None
    """The ssh config of trust's on node0; None where node0 is alone."""
    tree: Future[SyncReport] | None
    """None where nothing is brought."""
    gate: UploadGate

    def leave(self) -> None:
        """The run doesn't begin; when this returns no host is asked for its tree any more."""
        self.gate.decide(None)
        if self.tree is not None:
            with contextlib.suppress(GateClosed, UserError, HostError):
                self.tree.result()


def start_gathering(
    hosts: Sequence[Host],
    wishes: RunRequest,
    pool: SessionPool,
    place: ProjectLocation,
    *,
    run: str | None = None,
    dry_run: bool = False,
) -> GatheredContext:
    """Begin with all of it."""
    gate = UploadGate()
    run = run or new_id(wishes.script, time.time())

    def answers() -> tuple[HostFacts, ...]:
        return tuple(gather(hosts, pool, home=wishes.home, timeout=wishes.timeout))

    def config() -> str:
        return read_config(pool.session(hosts[0]), wishes.home, cancel=pool.cancel)

    def tree() -> SyncReport:
        return _bring(hosts, wishes, pool, place, gate, lease=None if dry_run else run)

    return GatheredContext(
        run,
        run_in_background(answers, "answers"),
        run_in_background(config, "config") if len(hosts) > 1 else None,
        run_in_background(tree, "tree") if wishes.sync else None,
        gate,
    )


def _bring(
    hosts: Sequence[Host],
    wishes: RunRequest,
    pool: SessionPool,
    place: ProjectLocation,
    gate: UploadGate,
    *,
    lease: str | None,
) -> SyncReport:
    from ipexctl.sync.project import data_patterns, read_project  # beside what the caller imports
    from ipexctl.sync.sync import sync_project

    excludes = (*wishes.excludes, *data_patterns(place.root, [Path(each) for each in wishes.data]))
    return sync_project(
        read_project(place.root, excludes, includes=wishes.includes, home=wishes.home, allow_big=wishes.allow_big),
        hosts,
        pool,
        home=wishes.home,
        iface=wishes.iface,
        timeout=wishes.timeout,
        dry_run=lease is None,
        lease=lease,
        ended=abandoned_runs(RunRegistry().directory),
        before_change=gate,
    )
