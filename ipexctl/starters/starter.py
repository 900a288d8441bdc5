"""The two protocols: what a call asks of its way to the nodes, and what a plan asks of something that starts ranks.

Values in, values and text out, so that `launch` may ask while it plans, and `trust` and `remote` may ask below it; only
`seconds_left` calls a program. There is one value of an implementation, and it never changes. A new question is a
member here, answered by each of them; the rule is that a caller never compares names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ipexctl.starters.direct import RankFlavor


class RankStarter(Protocol):
    """Starts all ranks of a plan without an MPI."""

    @property
    def flavor(self) -> RankFlavor:
        """Its name in plans, beside those of MPIs."""

    @property
    def title(self) -> str:
        """Its name for people."""

    @property
    def started(self) -> str:
        """The same as words about the ranks: `started by …`."""

    @property
    def why(self) -> str:
        """Why a plan takes it without being asked."""

    @property
    def is_preferred(self) -> bool:
        """Whether it is taken before an mpirun that is there."""

    @property
    def no_logins(self) -> str:
        """Why no node logs in to another for it; empty if node0 does."""

    @property
    def has_starters(self) -> bool:
        """Whether the control machine begins a starter on each host but node0."""

    def may_start(self, counts: Mapping[str, int], node0: str, backend: str) -> bool:
        """Whether a plan with these ranks, host → number, needs no MPI."""

    def words(self, counts: Mapping[str, int], hostfile: str, *, is_crowded: bool) -> tuple[str, ...]:
        """The words in front of those that start one rank; empty: supervisor and starters start each rank with its
        number."""

    def hostfile(self, counts: Mapping[str, int]) -> str:
        """The text of its hostfile; empty if it needs none."""


class Starter(Protocol):
    """The way to the nodes: of the call, and of node0 to the others."""

    @property
    def name(self) -> str:
        """Its name in records and for --transport."""

    @property
    def uses_ssh(self) -> bool:
        """Whether the control machine logs in to the nodes; else steps of the job serve as sessions."""

    @property
    def no_logins(self) -> str:
        """Why no node logs in to another, for `trust`; empty if node0 does, so that trust and its config count."""

    @property
    def remote_shell(self) -> str:
        """The script that mpirun on node0 calls in place of ssh; empty: ssh."""

    @property
    def ranks(self) -> RankStarter:
        """That which may start the ranks of a plan over several hosts without an MPI."""

    @property
    def waits(self) -> bool:
        """Whether its runs wait in a queue, and get hosts and ranks later: it is a `Queue` of `run/queue.py`."""

    def job(self, environ: Mapping[str, str]) -> str:
        """The number of the job that the nodes of the call belong to; empty: none that counts for a run."""

    def job_title(self, job: str) -> str:
        """The job for people."""

    def seconds_left(self, job: str) -> int | None:
        """Until the job ends, asked of its scheduler; None without a limit, or without an answer."""

    def announcement(self, environ: Mapping[str, str]) -> str:
        """A line for the user where it was chosen without being asked for; empty: none."""
