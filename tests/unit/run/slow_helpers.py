"""Windows of runs for tests of the verdict, as the step meter records them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ipexctl.node.run.meter.rates import HostRates, RankRates
from ipexctl.node.run.meter.window_file import HostWindows, RankWindows
from ipexctl.node.run.run_replies import ProcessShare, SuspectSnapshot
from ipexctl.run.why.slow_verdict import RunSetup, SlowFinding, SlowVerdict, find_slow_ranks
from ipexctl.run.windows import RunWindows

BEGIN = 1_700_000_000.0
CALM = HostRates(sent_per_s=2e7, mhz=2900.0)
SECONDS = 10.0


def changed(rates: RankRates, **fields: Any) -> RankRates:
    """Under gloo: the rank waits for others for the rest of the time."""
    new = rates._replace(**fields)
    if new.cpu is None or new.queue is None:
        return new._replace(collective_wait=None)
    return new._replace(collective_wait=max(0.0, 1.0 - new.cpu - new.queue - (new.data_wait or 0.0)))


HEALTHY = changed(RankRates(5.0, 40.0, data_wait=0.01, cpu=0.70, queue=0.01))


def ranks_of(*lists: Sequence[RankRates | None], seconds: float = SECONDS) -> dict[int, RankWindows]:
    """Each list is a rank's; its first window is the one in which steps begin, which is not judged."""
    return {rank: RankWindows(BEGIN, seconds, tuple(windows)) for rank, windows in enumerate(lists)}


def run_of(
    ranks: Mapping[int, RankWindows],
    hosts: Mapping[int, Sequence[HostRates | None]] | None = None,
    seconds: float = SECONDS,
) -> RunWindows:
    found = {rank: HostWindows(BEGIN, seconds, tuple(rates)) for rank, rates in (hosts or {}).items()}
    return RunWindows(ranks, found)


def setup_of(count: int, waiting: Any = "sleeps", per_host: int = 1) -> RunSetup:
    return RunSetup({rank: f"node{rank // per_host + 1}" for rank in range(count)}, waiting)


def steady(rates: RankRates, windows: int = 4) -> list[RankRates]:
    return [HEALTHY, *[rates] * (windows - 1)]


def verdict_of(
    *ranks: RankRates,
    windows: int = 5,
    hosts: Mapping[str, HostRates] | None = None,
    waiting: Any = "sleeps",
    per_host: int = 1,
    looks: Mapping[int, SuspectSnapshot] | None = None,
) -> SlowVerdict:
    """The verdict on a run in which each rank and host is the same in all windows but the first."""
    lists = {number * per_host: [rates] * windows for number, rates in enumerate((hosts or {}).values())}
    if waiting == "spins":
        ranks = tuple(rates._replace(collective_wait=None) for rates in ranks)
    run = run_of(ranks_of(*([ranks[0], *[rates] * (windows - 1)] for rates in ranks)), lists)
    return find_slow_ranks(run, setup_of(len(ranks), waiting, per_host), looks)


def only(verdict: SlowVerdict) -> SlowFinding:
    assert len(verdict.findings) == 1, verdict
    return verdict.findings[0]


def hog(share: float = 0.5) -> SuspectSnapshot:
    return SuspectSnapshot((ProcessShare(4711, "stress", "eve", share),), 0.0)
