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
from ipexctl.jobs.begin.under_way import abandoned
from ipexctl.jobs.record import Register, new_id
from ipexctl.remote.aside import Aside
from ipexctl.remote.outcome import HostError
from ipexctl.trust.known import read_config

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ipexctl.facts.gather import HostFacts
    from ipexctl.hosts.host import Host
    from ipexctl.jobs.begin.project import Place
    from ipexctl.jobs.begin.refused import Refused
    from ipexctl.jobs.begin.wishes import RunWishes
    from ipexctl.remote.crew import Crew
    from ipexctl.sync.report import SyncReport


class Closed(Exception):
    """The project is still to be brought, and the run won't begin."""

    def __init__(self, refused: Refused | None) -> None:
        super().__init__("the run won't begin")
        self.refused = refused


class Gate:
    """Holds up whoever wants to change something until it is known whether the run may begin."""

    def __init__(self) -> None:
        self._decided = threading.Event()
        self._may_go: Callable[[], Refused | None] | None = None

    def decide(self, may_go: Callable[[], Refused | None] | None) -> None:
        """By whom it is said; None: it may not."""
        self._may_go = may_go
        self._decided.set()

    def __call__(self) -> None:
        self._decided.wait()
        refused = self._may_go() if self._may_go is not None else None
        if refused is not None or self._may_go is None:
            raise Closed(refused)


@dataclass(frozen=True, slots=True)
class Ahead:
    """Under way."""

    run: str
    """The id it is going to have."""
    answers: Aside[tuple[HostFacts, ...]]
    config: Aside[str] | None
    """The ssh config of trust's on node0; None where node0 is alone."""
    tree: Aside[SyncReport] | None
    """None where nothing is brought."""
    gate: Gate

    def leave(self) -> None:
        """The run doesn't begin; when this returns no host is asked for its tree any more."""
        self.gate.decide(None)
        if self.tree is not None:
            with contextlib.suppress(Closed, UserError, HostError):
                self.tree.result()


def ask_ahead(
    hosts: Sequence[Host], wishes: RunWishes, crew: Crew, place: Place, *, run: str | None = None, dry_run: bool = False
) -> Ahead:
    """Begin with all of it."""
    gate = Gate()
    run = run or new_id(wishes.script, time.time())

    def answers() -> tuple[HostFacts, ...]:
        return tuple(gather(hosts, crew, home=wishes.home, timeout=wishes.timeout))

    def config() -> str:
        return read_config(crew.session(hosts[0]), wishes.home, cancel=crew.cancel)

    def tree() -> SyncReport:
        return _bring(hosts, wishes, crew, place, gate, lease=None if dry_run else run)

    return Ahead(
        run,
        Aside(answers, "answers"),
        Aside(config, "config") if len(hosts) > 1 else None,
        Aside(tree, "tree") if wishes.sync else None,
        gate,
    )


def _bring(
    hosts: Sequence[Host], wishes: RunWishes, crew: Crew, place: Place, gate: Gate, *, lease: str | None
) -> SyncReport:
    from ipexctl.sync.project import data_patterns, read_project  # beside what the caller imports
    from ipexctl.sync.sync import sync_project

    excludes = (*wishes.excludes, *data_patterns(place.root, [Path(each) for each in wishes.data]))
    return sync_project(
        read_project(place.root, excludes, includes=wishes.includes, home=wishes.home, allow_big=wishes.allow_big),
        hosts,
        crew,
        home=wishes.home,
        iface=wishes.iface,
        timeout=wishes.timeout,
        dry_run=lease is None,
        lease=lease,
        ended=abandoned(Register().directory),
        before_change=gate,
    )
