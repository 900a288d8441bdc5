"""What transfers between hosts cost a step, and what fewer bytes would bring."""

from __future__ import annotations

import json

import pytest

from ipexctl.node.common.records import NetworkCost, RunStatus, WireAdvice, read_status
from ipexctl.node.run.network_watch import MOST_OPEN, NetworkWatch, gradients_sent, speedup
from ipexctl.node.run.window_codec import HostRates, RankRates

HOSTS = {0: "node1", 1: "node2"}
MB = 1 << 20
BUSY = RankRates(4.0, main_cpu=0.4, main_queue=0.0)
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
        ({"ranks": BUSY._replace(main_cpu=0.81)}, False),
        ({"ranks": BUSY._replace(main_cpu=0.79)}, True),
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
    assert watched(BUSY._replace(main_cpu=None)).network is None


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
    ("gradients", "senders", "moved", "sent"),
    [(100, 2, 105, 100), (100, 2, 50, 50), (100, 2, 410, 400), (100, 4, 150, 150), (100, 4, 160, 150)],
)
def test_gradients_go_round_once_for_each_backward_pass(
    gradients: float, senders: int, moved: float, sent: float
) -> None:
    assert gradients_sent(gradients, senders, moved) == sent


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
