"""Ranks are threads here, with a store in memory that has the methods of torch's."""

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

from ipexctl.inrank.agreement import Round


class Store:
    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.numbers: dict[str, int] = {}
        self._changed = threading.Condition()

    def set(self, key: str, value: str) -> None:
        with self._changed:
            self.values[key] = value.encode()
            self._changed.notify_all()

    def get(self, key: str) -> bytes:
        return self.values[key]

    def check(self, keys: list[str]) -> bool:
        return all(key in self.values for key in keys)

    def add(self, key: str, number: int) -> int:
        with self._changed:
            self.numbers[key] = self.numbers.get(key, 0) + number
            return self.numbers[key]

    def wait(self, keys: list[str], timeout: timedelta) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: self.check(keys), timeout.total_seconds()):
                raise RuntimeError("wait timeout")


def decided(ranks: list[int], size: int, patience: float = 5.0) -> list[dict[str, Any]]:
    """What those ranks of so many are told."""
    store = Store()

    def of(rank: int) -> dict[str, Any]:
        return Round(store, rank, size, "1", patience).decide({"rank": rank}, lambda offers: {"offers": offers})

    with ThreadPoolExecutor(len(ranks)) as threads:
        return list(threads.map(of, ranks))


def test_all_ranks_get_what_rank_0_makes_of_all_offers() -> None:
    assert decided([0, 1, 2], 3) == [{"offers": [{"rank": 0}, {"rank": 1}, {"rank": 2}]}] * 3


def test_a_rank_that_never_posts_means_off_for_all() -> None:
    one, other = decided([0, 1], 3, patience=0.3)
    assert one == other
    assert one["off"].startswith("rank 2 ") or one["off"].startswith("rank 0 ")


def test_without_rank_0_the_others_decide_off() -> None:
    assert decided([1, 2], 3, patience=0.3) == [{"off": "rank 0 did not answer within 0.3 s"}] * 2


def test_a_late_rank_acts_on_what_was_published_before() -> None:
    store = Store()
    early = Round(store, 1, 2, "1", 0.1).decide({}, lambda _: {})
    late = Round(store, 0, 2, "1", 0.1).decide({}, lambda _: {"on": True})
    assert late == early
    assert "off" in late


@pytest.mark.parametrize("left", ["[" * 200_000, "{", "[1]", '{"off": 5}', "null"])
def test_what_a_stranger_has_put_into_the_store_means_off(left: str) -> None:
    store = Store()
    store.set("ipexctl/allreduce/1/offer/1", left)
    decision = Round(store, 0, 2, "1", 5.0).decide(
        {"off": ""}, lambda offers: {"off": next((offer["off"] for offer in offers if offer["off"]), "")}
    )
    assert "offer/1 in the ranks' store is no JSON of ipexctl" in decision["off"]
