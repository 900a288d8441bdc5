"""The rule of docs/security.md closes the ports that a run listens on."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ipexctl.node.common.listener import FREE_PORTS, free_port

PAGE = Path(__file__).parents[3] / "docs" / "security.md"
DYNAMIC = Path("/proc/sys/net/ipv4/ip_local_port_range")
USUAL = (32768, 60999)


def closed_ports() -> list[tuple[int, int]]:
    rule = re.search(r"^sudo iptables .* --dports (\S+) -j REJECT$", PAGE.read_text(), re.M)
    assert rule is not None
    return [(int(first), int(last)) for first, _, last in (part.partition(":") for part in rule[1].split(","))]


def test_the_rule_closes_the_ports_of_torch_and_of_the_kernel() -> None:
    assert sorted(closed_ports()) == [FREE_PORTS, USUAL]


@pytest.mark.skipif(
    DYNAMIC.read_text().split() != list(map(str, USUAL)), reason="this machine has another range of ports"
)
def test_a_free_port_is_a_closed_one() -> None:
    first, last = min(closed_ports())
    assert all(first <= free_port("127.0.0.1") <= last for _ in range(50))
