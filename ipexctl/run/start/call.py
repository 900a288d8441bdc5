"""A checked call that starts or plans a run, from a command line or a playbook; no host has been contacted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ipexctl.call_options import NO_OPTIONS, CallOptions
from ipexctl.hosts.host import Host
from ipexctl.run.ranks import EVERY_RANK, RankSet
from ipexctl.spec import NOT_TYPED, RunSpec, TypedCall

if TYPE_CHECKING:
    from ipexctl.run.start.project import ProjectLocation


@dataclass(frozen=True, slots=True)
class RunCall:
    hosts: tuple[Host, ...]
    spec: RunSpec
    project: ProjectLocation
    ranks: RankSet = EVERY_RANK
    options: CallOptions = NO_OPTIONS
    """The options that choose the same hosts and environment, for suggested commands."""
    notes: tuple[str, ...] = ()
    typed: TypedCall = NOT_TYPED
    resumed: tuple[str, ...] = ()
    """The chain of resumed runs, the run of this call's --resume last. They no longer use a tree."""
