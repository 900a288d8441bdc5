"""Internal addresses of nodes: from the hostfile, --iface, the common subnet, or a refusal; what is said of them."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_trust_plan import HOST_STATE

from ipexctl.commands.trust_command import show
from ipexctl.errors import Refusal
from ipexctl.hosts.host import Host, home_on_nodes
from ipexctl.hosts.internal_addresses import (
    HostAddresses,
    InterfaceAddress,
    common_networks,
    internal_addresses,
)
from ipexctl.remote.outcome import HostStatus
from ipexctl.trust.host_steps import IDENTITY_COMMAND, LoginAttempt, read_nics
from ipexctl.trust.login_errors import explain
from ipexctl.trust.trust_setup import TrustReport, TrustResult

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


NODE2_STATE = replace(HOST_STATE, identity=("me", "node2", "boot", "net:[1]"))


def why(said: str, code: int = 255, **changes: object) -> tuple[str, str]:
    found = explain(LoginAttempt(code, said), replace(NODE2_STATE, **changes), "10.0.0.2", {})  # type: ignore[arg-type]
    return found.reason, found.fix


DENIED = "me@10.0.0.2: Permission denied (publickey)."


def test_fix_suggests_another_common_network() -> None:
    addresses = {
        name: HostAddresses((InterfaceAddress("eth0", f"10.0.0.{n}", 24), InterfaceAddress("eth1", f"10.9.0.{n}", 24)))
        for name, n in (("a", 1), ("b", 2))
    }
    found = explain(LoginAttempt(255, "Connection timed out"), NODE2_STATE, "10.0.0.2", addresses)
    assert "--iface 10.9.0.0/24" in found.fix


ELSEWHERE = (
    "hello",
    "ipexctl-is me node7 boot net:[2]",
    "ipexctl-is you node2 boot net:[1]",
    "ipexctl-is me node2 boot net:[2]",
)


def test_login_must_reach_the_expected_account_and_machine() -> None:
    right = LoginAttempt(0, "Welcome!\nipexctl-is me node2 boot net:[1]\nquota")
    assert right.reached(NODE2_STATE)
    assert not LoginAttempt(0, "").reached(NODE2_STATE)
    assert len({why(said, 0)[0] for said in ELSEWHERE}) == len(ELSEWHERE)


def test_identity_command_is_safe_in_every_login_shell() -> None:
    assert not set(IDENTITY_COMMAND) & set('\\!\n"`')
    assert IDENTITY_COMMAND.count("'") == 2


def done(name: str, status: HostStatus = "ok", reason: str = "", fix: str = "") -> TrustResult:
    return TrustResult(Host(name, f"{name}.net"), status, reason, fix, 0.1234, f"in-{name}", name)


ADDED = tuple(done(f"node{n}", "changed", "a line added") for n in range(1, 5))
REPORT = TrustReport(ADDED, 1.0, "config", "/h/.ipexctl/ssh/config")


def test_failures_are_shown_with_their_fix_also_with_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    bad = (done("node1"), done("node2", "failed", "no \x1b[31mroom", "make some"), done("node3", "unreachable", "down"))
    show(replace(REPORT, hosts=bad), quiet=True)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == "node2: failed: no \N{REPLACEMENT CHARACTER}[31mroom\n  make some\nnode3: unreachable: down\n"
    assert replace(REPORT, hosts=bad).exit_code == 3


def test_home_on_nodes_is_from_option_or_environment() -> None:
    assert home_on_nodes(None, {}) == "~/.ipexctl"
    assert home_on_nodes(None, {"IPEXCTL_HOME": "/scratch/me/"}) == "/scratch/me"
    assert home_on_nodes(Path("/a b"), {"IPEXCTL_HOME": "/scratch/me"}) == "/a b"
    assert home_on_nodes(Path("~/x"), {}) == "~/x"
