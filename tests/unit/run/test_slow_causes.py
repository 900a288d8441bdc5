"""Causes of a slow rank: each signature fits its own windows, and not those beyond its threshold."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from slow_helpers import CALM, HEALTHY, changed, hog, only, ranks_of, run_of, setup_of, verdict_of

from ipexctl.node.run.meter.rates import HostRates, RankRates
from ipexctl.node.run.run_replies import ProcessShare, SuspectSnapshot
from ipexctl.run.why.slow_verdict import Evidence, SlowCause, find_cause, find_slow_ranks, needs_snapshot

QUEUED = Evidence(0.9, 0.5, cpu_more=0.0, queue_more=0.4)
COMPUTES = Evidence(0.9, 0.5, cpu_more=0.4, queue_more=0.0, usual_cpu=0.5)
CROWDED = Evidence(0.9, 0.5, queue_more=0.4, usual_cpu=0.1, usual_queue=0.4, look=SuspectSnapshot(unseen_share=1.8))
"""On a host whose processors are never free: a rank with half as much work again waits half as long again for them."""
WAITS = Evidence(0.9, 0.5, cpu_more=0.0, queue_more=0.0, data_more=0.4)
SEEN, NOT_SEEN = SlowCause("other-programs", "likely"), SlowCause("other-programs", "possible")
MORE_DATA, MORE_WORK = SlowCause("more-work", "likely"), SlowCause("more-work", "possible")
SLOWER, DATA = SlowCause("slower-cores", "possible"), SlowCause("data", "likely")
MEMORY, UNKNOWN = SlowCause("memory", "possible"), SlowCause("unknown", "insufficient")


def processes(share: float, *, is_of_run: bool = False) -> SuspectSnapshot:
    return SuspectSnapshot((ProcessShare(4711, "stress", "eve", share, is_of_run),))


@pytest.mark.parametrize(
    ("base", "fits", "beyond", "cause", "otherwise"),
    [
        (QUEUED, {"look": processes(0.2)}, {"look": processes(0.19)}, SEEN, NOT_SEEN),
        (
            QUEUED,
            {"look": SuspectSnapshot(unseen_share=0.2)},
            {"look": SuspectSnapshot(unseen_share=0.19)},
            SEEN,
            NOT_SEEN,
        ),
        (
            QUEUED,
            {"look": processes(0.2, is_of_run=True)},
            {"look": processes(0.19, is_of_run=True)},
            SEEN,
            NOT_SEEN,
        ),
        (QUEUED, {"queue_more": 0.2}, {"queue_more": 0.19}, NOT_SEEN, UNKNOWN),
        (CROWDED, {"cpu_more": 0.049}, {"cpu_more": 0.051}, SEEN, UNKNOWN),
        (COMPUTES, {"mhz": 2000, "usual_mhz": 2900}, {"mhz": 2800, "usual_mhz": 2900}, SLOWER, MORE_WORK),
        (COMPUTES, {"mhz": 2070, "usual_mhz": 2900}, {"mhz": 2075, "usual_mhz": 2900}, SLOWER, MORE_WORK),
        (WAITS, {"data_more": 0.2}, {"data_more": 0.19}, DATA, UNKNOWN),
        (COMPUTES, {"faults_more": 10}, {"faults_more": 9.9}, MEMORY, MORE_WORK),
        (COMPUTES, {"samples_ratio": 1.05}, {"samples_ratio": 1.04}, MORE_DATA, MORE_WORK),
        (COMPUTES, {"cpu_more": 0.2}, {"cpu_more": 0.19}, MORE_WORK, UNKNOWN),
        (Evidence(0.9, 0.5), {}, {}, UNKNOWN, UNKNOWN),
    ],
)
def test_both_sides_of_each_signature(
    base: Evidence, fits: dict[str, Any], beyond: dict[str, Any], cause: SlowCause, otherwise: SlowCause
) -> None:
    assert find_cause(replace(base, **fits)) == cause
    assert find_cause(replace(base, **beyond)) == otherwise
    assert [needs_snapshot(each) for each in (cause, otherwise)] == [each == NOT_SEEN for each in (cause, otherwise)]


def test_a_rank_that_computes_more_on_crowded_cores_is_not_said_to_have_company() -> None:
    """As recorded on two hosts that share two processors with others: rank 1 multiplied twice as often."""
    other = changed(HEALTHY, cpu=0.07, queue=0.428, data_wait=None)
    slow = changed(HEALTHY, cpu=0.1, queue=0.619, data_wait=None)
    crowd = SuspectSnapshot(unseen_share=1.775)
    assert only(verdict_of(other, slow, looks={1: crowd})).cause == UNKNOWN
    assert only(verdict_of(other, changed(slow, cpu=0.07), looks={1: crowd})).cause == SEEN


@pytest.mark.parametrize(
    ("other", "slow", "host", "look", "cause"),
    [
        # The rank has half of its core, and the other one sleeps meanwhile.
        ({"cpu": 0.5}, {"cpu": 0.5, "queue": 0.48}, CALM, None, NOT_SEEN),
        ({"cpu": 0.5}, {"cpu": 0.5, "queue": 0.48}, CALM, hog(), SEEN),
        ({}, {"cpu": 0.78, "queue": 0.2}, CALM, None, NOT_SEEN),  # a cgroup with 80 % of a core
        ({}, {"cpu": 0.95}, CALM, None, MORE_WORK),
        ({}, {"cpu": 0.95, "samples_per_s": 44.0}, CALM, None, MORE_DATA),
        ({"cpu": 0.5}, {"cpu": 0.5, "data_wait": 0.45}, CALM, None, DATA),
        ({"cpu": 0.6}, {"cpu": 0.9}, CALM._replace(mhz=1900.0), None, SLOWER),
        ({"cpu": 0.6}, {"cpu": 0.9, "faults_per_s": 50.0}, CALM, None, MEMORY),
    ],
)
def test_cause_of_windows(
    other: dict[str, float], slow: dict[str, float], host: HostRates, look: SuspectSnapshot | None, cause: SlowCause
) -> None:
    base: RankRates = changed(HEALTHY, faults_per_s=0.0)
    looks = {} if look is None else {1: look}
    found = only(
        verdict_of(changed(base, **other), changed(base, **slow), hosts={"node1": CALM, "node2": host}, looks=looks)
    )
    assert (found.rank, found.host, found.cause, found.evidence.look) == (1, "node2", cause, look)


def test_a_look_of_now_explains_nothing_of_earlier() -> None:
    slow = changed(HEALTHY, cpu=0.5, queue=0.48)
    run = run_of(ranks_of([HEALTHY] * 6, [HEALTHY, slow, slow, slow, HEALTHY, HEALTHY]))
    assert only(find_slow_ranks(run, setup_of(2), {1: hog()})).cause == NOT_SEEN
