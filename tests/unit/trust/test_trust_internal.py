"""The address that nodes use among themselves: from the file, an option, the common subnet, or refused."""

from __future__ import annotations

import pytest

from ipexctl.errors import UserError
from ipexctl.hosts.host import Host
from ipexctl.hosts.internal import (
    HostAddresses,
    InterfaceAddress,
    InterfaceChoice,
    common_networks,
    internal_addresses,
)
from ipexctl.refusal import Refusal
from message_data import missing

LO = InterfaceAddress("lo", "127.0.0.1", 8)
DOCKER = InterfaceAddress("docker0", "172.17.0.1", 16)


def host(name: str, internal: str | None = None) -> Host:
    return Host(name, name, internal=internal)


def at(*nics: InterfaceAddress | str, reached: str | None = None) -> HostAddresses:
    """`eth0=10.0.0.1/24` for short."""
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


def test_the_only_subnet_they_share() -> None:
    addresses = {
        "a": at("eth0=10.1.0.1/24", "eth1=192.168.0.1/24"),
        "b": at("eth0=10.2.0.1/24", "ib0=192.168.0.2/24"),
    }
    assert internal_addresses(addresses, [A, B]) == {"a": "192.168.0.1", "b": "192.168.0.2"}


def test_the_subnet_we_came_in_by_where_all_share_it() -> None:
    def two(number: int, reached: str) -> HostAddresses:
        return at(f"eth0=10.1.0.{number}/24", f"eth1=10.9.0.{number}/24", reached=f"{reached}.{number}")

    by_second = {"a": two(1, "10.9.0"), "b": two(2, "10.9.0")}
    assert internal_addresses(by_second, [A, B]) == {"a": "10.9.0.1", "b": "10.9.0.2"}
    by_both = {"a": two(1, "10.9.0"), "b": two(2, "10.1.0")}
    assert internal_addresses(by_both, [A, B]) == {"a": "10.1.0.1", "b": "10.1.0.2"}


def test_the_file_is_right_and_says_which_network_it_is_for_the_others() -> None:
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


def test_bridges_loopback_and_link_local_are_no_network_among_hosts() -> None:
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


def test_the_same_address_everywhere_is_inside_each_machine() -> None:
    addresses = {"a": at("weird0=10.88.0.1/16"), "b": at("weird0=10.88.0.1/16")}
    assert isinstance(internal_addresses(addresses, [A, B]), Refusal)


def test_ipv4_before_ipv6_unless_we_came_by_it() -> None:
    addresses = {"a": at("e=fd00::1/64", "e=10.0.0.1/24"), "b": at("e=fd00::2/64", "e=10.0.0.2/24")}
    assert internal_addresses(addresses, [A, B]) == {"a": "10.0.0.1", "b": "10.0.0.2"}
    only6 = {"a": at("e=fd00::1/64"), "b": at("e=fd00::2/64")}
    assert internal_addresses(only6, [A, B]) == {"a": "fd00::1", "b": "fd00::2"}


def test_iface_by_name_and_by_network() -> None:
    addresses = {"a": at("eth0=10.1.0.1/24", "ib0=10.9.0.1/24"), "b": at("eth0=10.1.0.2/24", "ib1=10.9.1.2/24")}
    assert internal_addresses(addresses, [A, B], "10.9.0.0/16") == {"a": "10.9.0.1", "b": "10.9.1.2"}
    assert internal_addresses(addresses, [A, B], "eth0") == {"a": "10.1.0.1", "b": "10.1.0.2"}
    refusal = internal_addresses(addresses, [A, B], "ib0")
    assert isinstance(refusal, Refusal)
    assert missing(refusal.reason, "b --iface ib0 eth0 ib1") == []
    assert refusal.hosts == ("b",)


@pytest.mark.parametrize("text", ["10.0.0.0/33", "a b", "", "an-interface-name-too-long", "1.2.3.4/x"])
def test_an_iface_that_can_be_none_is_a_wrong_call(text: str) -> None:
    with pytest.raises(UserError, match="--iface"):
        InterfaceChoice(text)


def test_none_in_common_names_those_who_stand_apart() -> None:
    addresses = {"a": at("e=10.0.0.1/24"), "b": at("e=10.0.0.2/24"), "c": at("e=10.0.7.3/24")}
    refusal = internal_addresses(addresses, [A, B, C])
    assert isinstance(refusal, Refusal)
    assert missing(refusal.reason, "a,b 10.0.0.0/24 c") == []
    assert refusal.hosts == ("c",)
    assert "internal=" in refusal.fix


def test_a_cloud_that_routes_between_subnets_of_one() -> None:
    addresses = {
        "a": at("ens4=10.128.0.2/32", reached="10.128.0.2"),
        "b": at("ens4=10.128.0.3/32", reached="10.128.0.3"),
    }
    assert internal_addresses(addresses, [A, B]) == {"a": "10.128.0.2", "b": "10.128.0.3"}


def test_one_host_has_its_own_address() -> None:
    assert internal_addresses({"a": at(DOCKER, "e=10.0.0.1/24")}, [A]) == {"a": "10.0.0.1"}
    assert internal_addresses({"a": at()}, [A]) == {"a": "127.0.0.1"}
