"""The addresses by which hosts reach one another."""

from __future__ import annotations

from ipexctl.errors import Refusal
from ipexctl.hosts.host import Host
from ipexctl.hosts.internal_addresses import HostAddresses, InterfaceAddress, internal_addresses


def test_two_names_of_one_machine_are_not_said_to_share_no_network() -> None:
    same = HostAddresses((InterfaceAddress("eth0", "10.1.0.2", 24),), "10.1.0.2")
    hosts = [Host("a", "10.1.0.2"), Host("b", "10.1.0.2")]
    refusal = internal_addresses({host.name: same for host in hosts}, hosts)
    assert isinstance(refusal, Refusal)
    assert refusal.hosts == ("a", "b")
    assert "10.1.0.2" in refusal.reason
    assert "share no network" not in refusal.reason
