"""What a run asks of hosts and reads here before anything is decided: begun early, while the rest is being imported."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ipexctl.facts.gather import gather
from ipexctl.remote.aside import Aside
from ipexctl.trust.known import read_config

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ipexctl.facts.gather import HostFacts
    from ipexctl.hosts.host import Host
    from ipexctl.jobs.project import Place
    from ipexctl.jobs.wishes import RunWishes
    from ipexctl.remote.crew import Crew
    from ipexctl.sync.project import Project


@dataclass(frozen=True, slots=True)
class Ahead:
    """Under way."""

    answers: Aside[tuple[HostFacts, ...]]
    config: Aside[str] | None
    """The ssh config of trust's on node0; None where node0 is alone."""
    project: Aside[Project] | None
    """None where nothing is brought."""


def ask_ahead(hosts: Sequence[Host], wishes: RunWishes, crew: Crew, place: Place) -> Ahead:
    """Begin with all of it."""

    def answers() -> tuple[HostFacts, ...]:
        return tuple(gather(hosts, crew, home=wishes.home, timeout=wishes.timeout))

    def config() -> str:
        return read_config(crew.session(hosts[0]), wishes.home, cancel=crew.cancel)

    return Ahead(
        Aside(answers, "answers"),
        Aside(config, "config") if len(hosts) > 1 else None,
        Aside(lambda: _read(wishes, place), "project") if wishes.sync else None,
    )


def _read(wishes: RunWishes, place: Place) -> Project:
    from ipexctl.sync.project import data_patterns, read_project  # beside what the caller imports

    excludes = (*wishes.excludes, *data_patterns(place.root, [Path(each) for each in wishes.data]))
    return read_project(place.root, excludes, home=wishes.home, allow_big=wishes.allow_big)
