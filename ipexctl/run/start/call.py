"""A checked call that starts or plans a run, of a command line or a playbook; no host was contacted for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from ipexctl.call_options import NO_OPTIONS, CallOptions
from ipexctl.run.ranks import EVERY_RANK, RankSet

if TYPE_CHECKING:
    from ipexctl.hosts.host import Host
    from ipexctl.run.start.project import ProjectLocation
    from ipexctl.spec import RunSpec


class TypedCall(NamedTuple):
    """The words of a call of `ipexctl run`, for `ipexctl run --resume`."""

    options: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    """Those after them: the script and its arguments."""
    directory: str = ""


NOT_TYPED: Final = TypedCall()


@dataclass(frozen=True, slots=True)
class RunCall:
    """What runs, and where."""

    hosts: tuple[Host, ...]
    spec: RunSpec
    project: ProjectLocation
    ranks: RankSet = EVERY_RANK
    """The ranks to show."""
    options: CallOptions = NO_OPTIONS
    """The command line options that choose the same hosts and environment, for suggested commands."""
    notes: tuple[str, ...] = ()
    """What the user should know about the call."""
    typed: TypedCall = NOT_TYPED
    first_world_size: int = 0
    """The ranks of the first run, if this call begins another one anew."""
    resumed: tuple[str, ...] = ()
    """The run that this call begins anew, after those which that run began anew. They use no tree any more."""
