"""The wire between this machine and a lab's hosts: made slower, and its bytes counted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ipexctl.addons.lab import lab_system
from ipexctl.addons.lab.lab_record import Lab


@contextmanager
def capped(lab: Lab, megabytes: int) -> Iterator[None]:
    """What this machine sends towards the hosts goes at that many MB/s; what they say to one another is not touched.

    The bridges are in a namespace of their own, so this end of the one wire to it carries our packets and nothing else.
    """
    rate = f"{megabytes * 8}mbit"
    words = ["tc", "qdisc", "add", "dev", lab.uplink, "root", "tbf", "rate", rate, "burst", "256kb", "latency", "100ms"]
    lab_system.run(words)
    try:
        yield
    finally:
        lab_system.run(["tc", "qdisc", "delete", "dev", lab.uplink, "root"])


def crossed(lab: Lab) -> int:
    """Bytes that have gone over the wire since it was made, in both directions."""
    counters = Path("/sys/class/net") / lab.uplink / "statistics"
    return sum(int((counters / name).read_text()) for name in ("tx_bytes", "rx_bytes"))
