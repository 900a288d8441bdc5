"""Internal addresses of nodes: from the hostfile, --iface, the common subnet, or a refusal."""

from __future__ import annotations

from ipexctl.hosts.host import Host
from ipexctl.hosts.internal import (
    HostAddresses,
    InterfaceAddress,
    common_networks,
    internal_addresses,
)
from ipexctl.refusal import Refusal

LO = InterfaceAddress("lo", "127.0.0.1", 8)
DOCKER = InterfaceAddress("docker0", "172.17.0.1", 16)


def host(name: str, internal: str | None = None) -> Host:
    return Host(name, name, internal=internal)


def at(*nics: InterfaceAddress | str, reached: str | None = None) -> HostAddresses:
    """Addresses of a host, with interfaces given as `eth0=10.0.0.1/24`."""
    made = []
    for nic in nics:
        if isinstance(nic, str):
            interface, _, address = nic.partition("=")
            bare, _, prefix = address.partition("/")
            made.append(InterfaceAddress(interface, bare, int(prefix)))
        else:
            made.append(nic)
    return HostAddresses((LO, *made), reached)


A, B, C = host("a"), host("b"), host("c")


def test_only_common_subnet_is_used() -> None:
    addresses = {
        "a": at("eth0=10.1.0.1/24", "eth1=192.168.0.1/24"),
        "b": at("eth0=10.2.0.1/24", "ib0=192.168.0.2/24"),
    }
    assert internal_addresses(addresses, [A, B]) == {"a": "192.168.0.1", "b": "192.168.0.2"}


def test_subnet_of_the_ssh_connection_is_preferred_if_common() -> None:
    def two(number: int, reached: str) -> HostAddresses:
        return at(f"eth0=10.1.0.{number}/24", f"eth1=10.9.0.{number}/24", reached=f"{reached}.{number}")

    by_second = {"a": two(1, "10.9.0"), "b": two(2, "10.9.0")}
    assert internal_addresses(by_second, [A, B]) == {"a": "10.9.0.1", "b": "10.9.0.2"}
    by_both = {"a": two(1, "10.9.0"), "b": two(2, "10.1.0")}
    assert internal_addresses(by_both, [A, B]) == {"a": "10.1.0.1", "b": "10.1.0.2"}


def test_internal_address_of_the_hostfile_sets_the_network_of_other_hosts() -> None:
    def two(number: int) -> HostAddresses:
        return at(f"eth0=10.1.0.{number}/24", f"eth1=10.9.0.{number}/24", reached=f"10.1.0.{number}")

    addresses = {"a": two(1), "b": two(2), "c": two(3)}
    assert internal_addresses(addresses, [host("a", "10.9.0.1"), B, C]) == {
        "a": "10.9.0.1",
        "b": "10.9.0.2",
        "c": "10.9.0.3",
    }
    assert internal_addresses({"a": two(1)}, [host("a", "elsewhere")]) == {"a": "elsewhere"}
    assert internal_addresses(addresses, [host("a", "a.ib"), B, C]) == {"a": "a.ib", "b": "10.1.0.2", "c": "10.1.0.3"}


def test_bridges_loopback_and_link_local_are_ignored() -> None:
    inside: list[InterfaceAddress | str] = [
        DOCKER,
        "virbr0=192.168.122.1/24",
        "br-0a1b2c=172.18.0.1/16",
        "eth9=169.254.3.4/16",
        "eth0=fe80::1/64",
    ]
    addresses = {"a": at(*inside, "eth0=10.0.0.1/8"), "b": at(*inside, "br0=10.0.0.2/8")}
    assert common_networks(addresses) == (InterfaceAddress("", "10.0.0.1", 8).network,)
    assert internal_addresses(addresses, [A, B]) == {"a": "10.0.0.1", "b": "10.0.0.2"}


def test_network_with_the_same_address_on_all_hosts_is_ignored() -> None:
    addresses = {"a": at("weird0=10.88.0.1/16"), "b": at("weird0=10.88.0.1/16")}
    assert isinstance(internal_addresses(addresses, [A, B]), Refusal)


def test_ipv4_is_preferred_and_ipv6_is_used_if_it_is_the_only_one() -> None:
    addresses = {"a": at("e=fd00::1/64", "e=10.0.0.1/24"), "b": at("e=fd00::2/64", "e=10.0.0.2/24")}
    assert internal_addresses(addresses, [A, B]) == {"a": "10.0.0.1", "b": "10.0.0.2"}
    only6 = {"a": at("e=fd00::1/64"), "b": at("e=fd00::2/64")}
    assert internal_addresses(only6, [A, B]) == {"a": "fd00::1", "b": "fd00::2"}


def test_iface_option_accepts_a_name_or_a_network() -> None:
    addresses = {"a": at("eth0=10.1.0.1/24", "ib0=10.9.0.1/24"), "b": at("eth0=10.1.0.2/24", "ib1=10.9.1.2/24")}
    assert internal_addresses(addresses, [A, B], "10.9.0.0/16") == {"a": "10.9.0.1", "b": "10.9.1.2"}
    assert internal_addresses(addresses, [A, B], "eth0") == {"a": "10.1.0.1", "b": "10.1.0.2"}


def test_routed_32_bit_subnets_use_the_ssh_address() -> None:
    addresses = {
        "a": at("ens4=10.128.0.2/32", reached="10.128.0.2"),
        "b": at("ens4=10.128.0.3/32", reached="10.128.0.3"),
    }
    assert internal_addresses(addresses, [A, B]) == {"a": "10.128.0.2", "b": "10.128.0.3"}


def test_single_host_uses_its_own_address() -> None:
    assert internal_addresses({"a": at(DOCKER, "e=10.0.0.1/24")}, [A]) == {"a": "10.0.0.1"}
    assert internal_addresses({"a": at()}, [A]) == {"a": "127.0.0.1"}
