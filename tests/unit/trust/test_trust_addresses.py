"""Addresses parsed from real output of hosts."""

from __future__ import annotations

from ipaddress import ip_address

from hypothesis import given
from hypothesis import strategies as st

from ipexctl.hosts.internal import InterfaceAddress
from ipexctl.trust.host_state import read_nics

IP = r"""1: lo    inet 127.0.0.1/8 scope host lo\       valid_lft forever preferred_lft forever
1: lo    inet6 ::1/128 scope host noprefixroute \       valid_lft forever preferred_lft forever
2: eth0@if7    inet 10.77.5.11/24 brd 10.77.5.255 scope global eth0\       valid_lft forever preferred_lft forever
2: eth0@if7    inet 10.77.5.99/24 brd 10.77.5.255 scope global secondary eth0\       valid_lft forever
2: eth0@if7    inet6 fd77:5::11/64 scope global nodad \       valid_lft forever preferred_lft forever
2: eth0@if7    inet6 2001:db8::77/64 scope global temporary dynamic \       valid_lft 1000sec preferred_lft 100sec
2: eth0@if7    inet6 2001:db8::78/64 scope global tentative \       valid_lft 1000sec preferred_lft 100sec
5: tun0    inet 10.8.0.6 peer 10.8.0.5/32 scope global tun0\       valid_lft forever preferred_lft forever
"""
FIB_TRIE = """Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 0.0.0.0
        /0 universe UNICAST
     +-- 10.77.5.0/24 2 0 2
        |-- 10.77.5.11
           /32 host LOCAL
        |-- 10.77.5.255
           /32 link BROADCAST
     +-- 127.0.0.0/8 2 0 2
        |-- 127.0.0.1
           /32 host LOCAL
"""
ROUTES = """Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
eth0\t00000000\t01054D0A\t0003\t0\t0\t0\t00000000\t0\t0\t0
eth0\t00054D0A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0
"""
ETH0 = InterfaceAddress("eth0", "10.77.5.11", 24)


def test_permanent_addresses_are_read_from_ip_output() -> None:
    assert read_nics(IP) == (
        InterfaceAddress("lo", "127.0.0.1", 8),
        InterfaceAddress("lo", "::1", 128),
        ETH0,
        InterfaceAddress("eth0", "10.77.5.99", 24),
        InterfaceAddress("eth0", "fd77:5::11", 64),
        InterfaceAddress("tun0", "10.8.0.6", 32),
    )


def test_addresses_are_read_from_proc_net_tables() -> None:
    assert read_nics("", FIB_TRIE, ROUTES) == (ETH0, InterfaceAddress("lo", "127.0.0.1", 8))
    assert read_nics("", FIB_TRIE, "")[0] == InterfaceAddress("", "10.77.5.11", 32)


def test_addresses_with_injected_options_are_ignored() -> None:
    assert read_nics('2: e    inet6 2001:db8::1%",command="x/64 scope global e\n') == ()


@given(st.text(), st.text(), st.text())
def test_any_output_is_parsed_to_valid_addresses(ip: str, fib_trie: str, routes: str) -> None:
    assert all(ip_address(nic.address) for nic in read_nics(ip, fib_trie, routes))


@given(st.integers(0, len(IP)), st.integers(0, len(ROUTES)))
def test_truncated_output_is_parsed_to_valid_addresses(ip: int, routes: int) -> None:
    assert {nic.interface for nic in read_nics(IP[:ip])} <= {"lo", "eth0", "tun0"}
    assert all(ip_address(nic.address) for nic in read_nics("", FIB_TRIE, ROUTES[:routes]))
