"""Causes of a slow rank: each signature fits its own windows, and not those beyond its threshold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from slow_helpers import CALM, HEALTHY, hog, judged, only

from ipexctl.extras.slow.causes import SIGNATURES, Evidence, SlowCause, find_cause, needs_look
from ipexctl.node.run.host_notes import HostProbe
from ipexctl.node.run.rates import HostRates
from ipexctl.node.run.replies import ProcessShare, SuspectLook


def look(**fields: Any) -> SuspectLook:
    return SuspectLook(1.0, (3,), 0.5, **fields)


QUEUED = Evidence(0.9, 0.5, cpu_more=0.0, queue_more=0.4)
COMPUTES = Evidence(0.9, 0.5, cpu_more=0.4, queue_more=0.0, usual_cpu=0.5)
CROWDED = Evidence(0.9, 0.5, queue_more=0.4, usual_cpu=0.1, usual_queue=0.4, look=look(unseen_share=1.8))
"""On a host whose processors are never free: a rank with half as much work again waits half as long again for them."""
WAITS = Evidence(0.9, 0.5, cpu_more=0.0, queue_more=0.0, data_more=0.4)


def processes(share: float, *, is_of_run: bool = False) -> SuspectLook:
    return look(others=(ProcessShare(4711, "stress", "eve", share, is_of_run),))


@pytest.mark.parametrize(
    ("base", "fits", "beyond", "kind", "otherwise"),
    [
        (QUEUED, {"throttled_more": 0.2}, {"throttled_more": 0.19}, "cgroup-limit", "contention"),
        (QUEUED, {"look": look(throttled=0.2)}, {"look": look(throttled=0.19)}, "cgroup-limit", "contention"),
        (
            QUEUED,
            {"throttled_more": 0.3},
            {"throttled_more": 0.3, "is_whole_host": False},
            "cgroup-limit",
            "contention",
        ),
        (COMPUTES, {"steal_more": 0.2}, {"steal_more": 0.19}, "steal", "work-or-bandwidth"),
        (QUEUED, {"look": processes(0.2)}, {"look": processes(0.19)}, "other-process", "contention"),
        (QUEUED, {"look": look(unseen_share=0.2)}, {"look": look(unseen_share=0.19)}, "other-process", "contention"),
        (
            QUEUED,
            {"look": processes(0.2, is_of_run=True)},
            {"look": processes(0.19, is_of_run=True)},
            "crowded-cores",
            "contention",
        ),
        (QUEUED, {"queue_more": 0.2}, {"queue_more": 0.19}, "contention", "unknown"),
        (CROWDED, {"cpu_more": 0.049}, {"cpu_more": 0.051}, "other-process", "unknown"),
        (COMPUTES, {"hot": 0.1}, {"hot": 0.0}, "heat", "work-or-bandwidth"),
        (COMPUTES, {"hot": 0.1}, {"hot": 0.1, "usual_hot": 0.1}, "heat", "work-or-bandwidth"),
        (COMPUTES, {"look": look(hot=1)}, {"look": look(hot=0)}, "heat", "work-or-bandwidth"),
        (COMPUTES, {"mhz": 2000, "usual_mhz": 2900}, {"mhz": 2800, "usual_mhz": 2900}, "clock", "work-or-bandwidth"),
        (COMPUTES, {"mhz": 2070, "usual_mhz": 2900}, {"mhz": 2075, "usual_mhz": 2900}, "clock", "work-or-bandwidth"),
        (WAITS, {"io_pressure": 0.1}, {"io_pressure": 0.09}, "storage", "data"),
        (WAITS, {"disk_busy": 0.8}, {"disk_busy": 0.79}, "storage", "data"),
        (WAITS, {"disk_more": 0.2}, {"disk_more": 0.19}, "storage", "data"),
        (WAITS, {"data_more": 0.2}, {"data_more": 0.19}, "data", "unknown"),
        (COMPUTES, {"faults_more": 10}, {"faults_more": 9.9}, "paging", "work-or-bandwidth"),
        (COMPUTES, {"look": look(far_memory=0.3)}, {"look": look(far_memory=0.29)}, "far-memory", "work-or-bandwidth"),
        (COMPUTES, {"samples_ratio": 1.05}, {"samples_ratio": 1.04}, "more-samples", "work-or-bandwidth"),
        (COMPUTES, {"cpu_more": 0.2}, {"cpu_more": 0.19}, "work-or-bandwidth", "unknown"),
    ],
)
def test_both_sides_of_each_signature(
    base: Evidence, fits: dict[str, Any], beyond: dict[str, Any], kind: str, otherwise: str
) -> None:
    from dataclasses import replace

    assert find_cause(replace(base, **fits)).kind == kind
    assert find_cause(replace(base, **beyond)).kind == otherwise


def test_every_signature_has_its_cause_once() -> None:
    kinds = [signature.cause.kind for signature in SIGNATURES]
    assert len(set(kinds)) == len(kinds)
    assert "unknown" not in kinds


def test_a_rank_that_computes_more_on_crowded_cores_is_not_said_to_have_company() -> None:
    """As recorded on two hosts that share two processors with others: rank 1 multiplied twice as often."""
    other = HEALTHY._replace(main_cpu=0.07, main_queue=0.428, data_wait=None)
    slow = HEALTHY._replace(main_cpu=0.1, main_queue=0.619, data_wait=None)
    crowd = look(unseen_share=1.775)
    assert only(judged(other, slow, looks={1: crowd})).cause == SlowCause("unknown", "insufficient")
    same = slow._replace(main_cpu=0.07)
    assert only(judged(other, same, looks={1: crowd})).cause.kind == "other-process"


def test_without_evidence_nothing_is_guessed() -> None:
    assert find_cause(Evidence(0.9, 0.5)) == SlowCause("unknown", "insufficient")


def test_a_look_is_taken_only_where_it_can_say_more() -> None:
    assert needs_look(find_cause(QUEUED))
    assert needs_look(find_cause(COMPUTES))
    assert not needs_look(find_cause(WAITS))


def test_processor_hog_on_the_cores_of_one_rank() -> None:
    """The rank has half of its core, and the other one sleeps meanwhile."""
    slow, other = HEALTHY._replace(main_cpu=0.5, main_queue=0.48), HEALTHY._replace(main_cpu=0.5, main_queue=0.01)
    found = only(judged(other, slow))
    assert (found.rank, found.cause) == (1, SlowCause("contention", "possible"))
    found = only(judged(other, slow, looks={1: hog()}))
    assert found.cause == SlowCause("other-process", "likely")
    assert found.evidence.look == hog()


def test_a_look_of_now_explains_nothing_of_earlier() -> None:
    from slow_helpers import ranks_of, run_of, setup_of

    from ipexctl.extras.slow.verdict import judge

    slow = HEALTHY._replace(main_cpu=0.5, main_queue=0.48)
    run = run_of(ranks_of([HEALTHY] * 6, [HEALTHY, slow, slow, slow, HEALTHY, HEALTHY]))
    assert only(judge(run, setup_of(2), {1: hog()})).cause.kind == "contention"


def test_cgroup_with_eighty_percent_of_a_core() -> None:
    slow, other = HEALTHY._replace(main_cpu=0.78, main_queue=0.2), HEALTHY._replace(main_cpu=0.7)
    hosts = {"node1": CALM, "node2": CALM._replace(throttled=0.95)}
    found = only(judged(other, slow, hosts=hosts))
    assert (found.rank, found.host, found.cause.kind) == (1, "node2", "cgroup-limit")


def test_limit_of_a_host_whose_other_rank_is_not_slow_is_no_cause() -> None:
    slow, other = HEALTHY._replace(main_cpu=0.78, main_queue=0.2), HEALTHY._replace(main_cpu=0.7)
    hosts = {"node1": CALM, "node2": CALM._replace(throttled=0.95)}
    found = only(judged(other, other, other, slow, hosts=hosts, per_host=2))
    assert (found.rank, found.cause.kind) == (3, "contention")
    both = judged(other, other, slow, slow, hosts=hosts, per_host=2).findings
    assert [(found.rank, found.cause.kind) for found in both] == [(2, "cgroup-limit"), (3, "cgroup-limit")]


def test_more_work_in_one_rank() -> None:
    slow, other = HEALTHY._replace(main_cpu=0.95), HEALTHY._replace(main_cpu=0.7)
    assert only(judged(other, slow)).cause == SlowCause("work-or-bandwidth", "possible")
    more = slow._replace(samples_per_s=44.0)
    assert only(judged(other, more)).cause == SlowCause("more-samples", "likely")


def test_slow_reads_of_one_rank() -> None:
    slow, other = HEALTHY._replace(main_cpu=0.5, data_wait=0.45), HEALTHY._replace(main_cpu=0.5)
    assert only(judged(other, slow, windows=5)).cause == SlowCause("data", "likely")
    hosts = {"node1": CALM, "node2": CALM._replace(io_pressure=0.4)}
    assert only(judged(other, slow, hosts=hosts)).cause.kind == "storage"


def test_heat_and_a_lower_clock() -> None:
    slow, other = HEALTHY._replace(main_cpu=0.9), HEALTHY._replace(main_cpu=0.6)
    hosts = {"node1": CALM, "node2": CALM._replace(mhz=1900.0)}
    assert only(judged(other, slow, hosts=hosts)).cause.kind == "clock"
    hosts["node2"] = hosts["node2"]._replace(hot_per_s=0.5)
    assert only(judged(other, slow, hosts=hosts)).cause.kind == "heat"


def sys_tree(root: Path, throttled: int, khz: int) -> None:
    """As recorded on a Xeon: what the kernel shows of each processor."""
    for core in (0, 1):
        place = root / f"sys/devices/system/cpu/cpu{core}"
        for name, number in {
            "thermal_throttle/core_throttle_count": throttled,
            "thermal_throttle/package_throttle_count": throttled,
            "cpufreq/scaling_cur_freq": khz,
            "cpufreq/cpuinfo_max_freq": 3500000,
        }.items():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_text(f"{number}\n")


def probed(root: Path, throttled: int, khz: int) -> HostRates:
    sys_tree(root, 17, khz)
    (root / "proc").mkdir(exist_ok=True)
    (root / "proc/loadavg").write_text("1.00 1.00 1.00 1/100 1\n")
    probe = HostProbe([0, 1], "", 0.0, str(root))
    probe.take(0, 0.0)
    sys_tree(root, throttled, khz)
    rates = probe.take(0, 10.0)
    assert rates is not None
    return rates


def test_heat_by_the_files_of_the_kernel(tmp_path: Path) -> None:
    """Recorded trees: no machine of these tests gets hot."""
    slow, other = HEALTHY._replace(main_cpu=0.9), HEALTHY._replace(main_cpu=0.6)
    for name in ("cool", "hot", "slower"):
        (tmp_path / name).mkdir()
    cool = probed(tmp_path / "cool", 17, 2_900_000)
    hot = probed(tmp_path / "hot", 21, 1_900_000)
    slower = probed(tmp_path / "slower", 17, 1_900_000)
    assert only(judged(other, slow, hosts={"node1": cool, "node2": hot})).cause.kind == "heat"
    assert only(judged(other, slow, hosts={"node1": cool, "node2": slower})).cause.kind == "clock"
    assert only(judged(other, slow, hosts={"node1": cool, "node2": cool})).cause.kind == "work-or-bandwidth"
