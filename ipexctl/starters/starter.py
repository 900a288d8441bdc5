"""Two protocols: what a call asks of its way to the nodes, and what a plan asks of whatever starts ranks.

Values in, values and text out, so that `launch` may ask while it plans, and `trust` and `remote` below it; only
`seconds_left` calls a program. An implementation is one value that never changes. A new question is a new member here,
answered by each of them; callers never compare names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from ipexctl.starters.direct import RankFlavor


class RankStarter(Protocol):
    """Starts all ranks of a plan without an MPI."""

    @property
    def flavor(self) -> RankFlavor:
        """Name in plans, beside those of MPIs."""

    @property
    def title(self) -> str:
        """Name for people."""

    @property
    def started(self) -> str:
        """Words about the ranks: `started by …`."""

    @property
    def why(self) -> str:
        """Why a plan takes it without being asked."""

    @property
    def is_preferred(self) -> bool:
        """True if it is preferred to an existing mpirun."""

    @property
    def no_logins(self) -> str:
        """Why no node logs in to another for it; empty if node0 does."""

    @property
    def has_starters(self) -> bool:
        """True if the control machine begins a starter on each host but node0."""

    def may_start(self, counts: Mapping[str, int], node0: str, backend: str) -> bool:
        """True if a plan with these ranks (host → number) needs no MPI."""

    def words(self, counts: Mapping[str, int], hostfile: str, *, is_crowded: bool) -> tuple[str, ...]:
        """Words before those that start one rank. Empty: supervisor and starters start each rank with its number."""


class Starter(Protocol):
    """The way to the nodes: of the call, and from node0 to the others."""

    @property
    def name(self) -> str:
        """Name in records and for --transport."""

    @property
    def uses_ssh(self) -> bool:
        """True if the control machine logs in to the nodes; else job steps serve as sessions."""

    @property
    def no_logins(self) -> str:
        """Why no node logs in to another, for `trust`; empty if node0 does, so that trust and its config count."""

    @property
    def remote_shell(self) -> str:
        """Script that mpirun on node0 calls instead of ssh; empty: ssh."""

    @property
    def ranks(self) -> RankStarter:
        """What may start the ranks of a plan over several hosts without an MPI."""

    @property
    def waits(self) -> bool:
        """True if its runs wait in a queue, and get hosts and ranks later: it is a `Queue` of `run/queue.py`."""

    def job(self, environ: Mapping[str, str]) -> str:
        """Number of the job that the call's nodes belong to; empty if no job counts for the run."""

    def job_title(self, job: str) -> str:
        """The job, for people."""

    def seconds_left(self, job: str) -> int | None:
        """Until the job ends, asked of its scheduler; None without a limit or an answer."""

    def announcement(self, environ: Mapping[str, str]) -> str:
        """A line for the user if it was chosen without being asked for; or empty."""
