"""The cost of transfers between hosts in a step, and the advice to send fewer bytes."""

from __future__ import annotations

import json

import pytest

from ipexctl.node.common.records import NetworkCost, RunStatus, WireAdvice, read_status
from ipexctl.node.run.meter.network_watch import MOST_OPEN, NetworkWatch, remaining_bytes, speedup
from ipexctl.node.run.meter.rates import HostRates, RankRates

HOSTS = {0: "node1", 1: "node2"}
MB = 1 << 20
BUSY = RankRates(4.0, collective_wait=0.6)
"""A step of 250 ms, of which 150 are waiting."""
SENDING = HostRates(sent_per_s=100.0 * MB, peak_sent_per_s=125.0 * MB)
"""25 MB in a step, which take 200 ms: 50 of them are hidden."""


def watched(
    ranks: RankRates = BUSY,
    hosts: HostRates = SENDING,
    *,
    count: int = 3,
    gradients: float = 25.0 * MB,
    is_wire_possible: bool = True,
    watch: NetworkWatch | None = None,
) -> NetworkWatch:
    watch = watch or NetworkWatch(HOSTS, "sleeps", is_wire_possible=is_wire_possible, shared=False)
    for number in range(count):
        for rank, host in HOSTS.items():
            watch.add_host(host, number, hosts, 10.0, "eth0")
            watch.add(rank, number, ranks, 10.0, gradients)
    return watch


def test_share_bytes_and_rate_of_all_windows_but_the_first() -> None:
    assert watched(count=1).network is None
    found = watched().network
    assert found == NetworkCost(0.6, 25 * MB, 125 * MB, "eth0", WireAdvice("bf16", 1.67))


@pytest.mark.parametrize(
    ("changes", "advised"),
    [
        ({}, True),
        ({"is_wire_possible": False}, False),
        ({"gradients": 0.0}, False),
        ({"ranks": BUSY._replace(collective_wait=0.19)}, False),
        ({"ranks": BUSY._replace(collective_wait=0.21)}, True),
        ({"hosts": SENDING._replace(sent_per_s=2.0 * MB)}, False),
        # A hook of the script sends bf16 already; and all is sent in a tenth of what is waited for.
        ({"gradients": 50.0 * MB}, False),
        ({"hosts": SENDING._replace(peak_sent_per_s=1700.0 * MB)}, False),
    ],
)
def test_advice_is_for_gradients_that_take_a_good_part_of_a_step(changes: dict[str, object], advised: bool) -> None:
    found = watched(**changes).network  # type: ignore[arg-type]
    assert found is not None
    assert (found.advice is not None) == advised


@pytest.mark.parametrize("waiting", ["spins", "independent", "shared"])
def test_nothing_is_known_where_ranks_do_not_sleep(waiting: str) -> None:
    watch = NetworkWatch(HOSTS, waiting, is_wire_possible=True, shared=False)  # type: ignore[arg-type]
    assert watched(watch=watch).network is None


def test_nothing_is_known_on_one_host_or_of_few_steps() -> None:
    alone = NetworkWatch(dict.fromkeys(HOSTS, "node1"), "sleeps", is_wire_possible=True, shared=True)
    assert watched(watch=alone).network is None
    assert watched(BUSY._replace(steps_per_s=1.4)).network is None
    assert watched(BUSY._replace(collective_wait=None)).network is None


def test_other_traffic_would_not_become_less() -> None:
    plain, more = watched().network, watched(gradients=15.0 * MB).network
    assert plain is not None
    assert more is not None
    assert plain.advice is not None
    assert more.advice is not None
    assert 1.0 < more.advice.speedup < 1.4 < plain.advice.speedup


def test_short_steps_hide_nothing_that_is_known() -> None:
    """The busiest moment is longer than a step, so its rate is that of whole steps."""
    sending = SENDING._replace(peak_sent_per_s=100.0 * MB)
    found = watched(BUSY._replace(steps_per_s=10.0), sending, gradients=10.0 * MB).network
    assert found is not None
    assert found.rate == round(100 * MB / 0.6)
    assert found.advice is not None
    assert found.advice.speedup == pytest.approx(1 / 0.7, abs=0.005)


def test_a_restart_begins_anew_and_a_rank_that_is_cut_off_lets_nothing_pile_up() -> None:
    watch = watched()
    watch.begin_attempt()
    assert watch.network is None
    for number in range(100):
        watch.add(0, number, BUSY, 10.0, 0.0)
    assert len(watch._open) <= MOST_OPEN + 1
    assert watch.network is None


@pytest.mark.parametrize(
    ("senders", "hosts", "moved", "remaining"),
    [
        (2, 2, 100, 0.5),
        (2, 2, 125, 75 / 125),
        (2, 2, 50, 0.5),
        (2, 2, 400, 0.5),
        (2, 2, 450, 250 / 450),
        (3, 3, 400 / 3, 0.5),
        (4, 2, 150, 50 / 150),
        (64, 2, 100 * 63 / 32, 50 / (100 * 63 / 32)),
    ],
)
def test_gradients_go_round_once_for_each_backward_pass(
    senders: int, hosts: int, moved: float, remaining: float
) -> None:
    assert remaining_bytes(100, senders, hosts, moved) == pytest.approx(remaining)


def test_ranks_that_share_memory_send_as_one() -> None:
    """Two ranks on each host: over gloo, a ring of four sends more than one of two."""
    hosts = {0: "node1", 1: "node1", 2: "node2", 3: "node2"}
    found = {}
    for shared in (False, True):
        watch = NetworkWatch(hosts, "sleeps", is_wire_possible=True, shared=shared)
        for number in range(3):
            for rank in hosts:
                watch.add(rank, number, BUSY, 10.0, 25.0 * MB)
            for host in set(hosts.values()):
                watch.add_host(host, number, SENDING._replace(sent_per_s=150.0 * MB), 10.0, "eth0")
        assert watch.network is not None
        assert watch.network.advice is not None
        found[shared] = watch.network.advice.speedup
    assert found[False] > found[True]


def test_a_window_counts_once_all_have_sent_it() -> None:
    """By the rank that waits least, whatever comes first."""
    watch = NetworkWatch(HOSTS, "sleeps", is_wire_possible=True, shared=False)
    for number in range(4):
        watch.add(0, number, BUSY, 10.0, 25.0 * MB)
        for host in HOSTS.values():
            watch.add_host(host, number, SENDING, 10.0, "eth0")
        watch.add(1, number, BUSY._replace(collective_wait=0.3), 10.0, 25.0 * MB)
    assert watch.network is not None
    assert watch.network.share == 0.3


def test_windows_without_steps_or_bytes_cost_nothing() -> None:
    watch = NetworkWatch(HOSTS, "sleeps", is_wire_possible=True, shared=False)
    idle = BUSY._replace(steps_per_s=0.0, collective_wait=1.0)
    for number, ranks in enumerate((idle, BUSY, BUSY, idle, BUSY)):
        for rank, host in HOSTS.items():
            watch.add_host(host, number, HostRates(), 10.0, "")
            watch.add(rank, number, ranks, 10.0, 25.0 * MB)
    assert watch.network == NetworkCost(0.6, 0, 0)


def test_limits_belong_to_what_is_above_them() -> None:
    slow = SENDING._replace(sent_per_s=1.5 * MB, peak_sent_per_s=2.0 * MB)
    just = watched(BUSY._replace(steps_per_s=1.5), slow, gradients=1.0 * MB).network
    assert just is not None, "30 steps are enough"
    assert just.advice is not None, "so is a megabyte"
    at_limit = watched(BUSY._replace(steps_per_s=5.0)).network
    assert at_limit is not None
    assert at_limit.rate == 125 * MB, "steps of 0.2 s are long"


@pytest.mark.parametrize(
    ("share", "transfer", "remaining", "factor"),
    [
        (0.5, 0.0, 0.5, 1 / 0.75),
        (0.5, 0.5, 0.5, 1 / 0.75),
        (0.5, 0.75, 0.5, 1 / 0.625),
        (0.5, 0.1, 0.5, 1 / 0.925),
        (0.2, 0.4, 0.5, 1 / 0.8),
        (0.2, 5.0, 0.5, 1 / 0.8),
        (0.9, 0.0, 0.25, 1 / 0.325),
        (0.5, 0.0, 1.0, 1.0),
    ],
)
def test_what_is_hidden_stays_hidden_first(share: float, transfer: float, remaining: float, factor: float) -> None:
    assert speedup(1.0, share, transfer, remaining) == pytest.approx(factor)


def test_the_status_has_it() -> None:
    status = RunStatus("r", "running", network=watched().network)
    assert read_status(json.loads(json.dumps(status.to_json()))).network == status.network


def test_ranks_that_never_wait_have_no_rate() -> None:
    found = watched(BUSY._replace(collective_wait=0.0), SENDING._replace(peak_sent_per_s=None)).network
    assert found == NetworkCost(0.0, 25 * MB, 0, "eth0")
