"""A checked call that starts or plans a run, from a command line or a playbook; no host has been contacted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from ipexctl.call_options import NO_OPTIONS, CallOptions
from ipexctl.hosts.host import Host
from ipexctl.run.ranks import EVERY_RANK, RankSet
from ipexctl.spec import RunSpec

if TYPE_CHECKING:
    from ipexctl.run.start.project import ProjectLocation


class TypedCall(NamedTuple):
    """The words of a call of `ipexctl run`, for `ipexctl run --resume`."""

    options: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    """The words after the options: the script and its arguments."""
    directory: str = ""


NOT_TYPED: Final = TypedCall()


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
