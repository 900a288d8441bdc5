"""The network for training, chosen from facts: the one by which the control machine reaches the hosts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fakes import FakeSession
from ipexctl.facts.facts import Facts, addresses_among, parse, to_json
from ipexctl.facts.gather import gather_facts
from ipexctl.facts.network import Address, Network, Nic
from ipexctl.hosts.host import Host
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.connector import ConnectOptions, Connector
from ipexctl.remote.session_pool import SessionPool

if TYPE_CHECKING:
    from collections.abc import Callable

NAMED = [Host("a", "a"), Host("b", "b")]


def two_networks(number: int, reached: str | None) -> Facts:
    nics = [Nic(f"eth{at}", "ethernet", addresses=(Address(f"10.{at}.0.{number}", 24),)) for at in (1, 9)]
    return Facts(network=Network(nics=tuple(nics), reached=reached))


def test_hosts_given_by_name_use_the_network_of_the_ssh_connection() -> None:
    facts = {"a": two_networks(1, "10.9.0.1"), "b": two_networks(2, "10.9.0.2")}
    assert addresses_among(NAMED, facts, None) == {"a": "10.9.0.1", "b": "10.9.0.2"}
    unknown = {"a": two_networks(1, None), "b": two_networks(2, None)}
    assert addresses_among(NAMED, unknown, None) == {"a": "10.1.0.1", "b": "10.1.0.2"}
    by_address = [Host("a", "10.9.0.1"), Host("b", "10.9.0.2")]
    assert addresses_among(by_address, unknown, None) == {"a": "10.9.0.1", "b": "10.9.0.2"}


@pytest.mark.parametrize(
    ("line", "reached"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("fe80::1%eth0", "fe80::1"),
        ("node1", None),
        ("$(id)", None),
    ],
)
def test_invalid_reached_addresses_are_ignored(line: str, reached: str | None) -> None:
    facts = parse(f"reached {line}\n")
    assert facts.network.reached == reached
    assert "reached" not in to_json(facts)["network"]


class _SshSession(FakeSession):
    @property
    def server_key(self) -> tuple[str, bytes] | None:
        return "ssh-ed25519", b"key"


@pytest.mark.parametrize(("session", "reached"), [(_SshSession, "10.0.0.1"), (FakeSession, None)])
def test_reached_address_of_local_sessions_is_ignored(
    session: Callable[..., FakeSession], reached: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SessionPool, "session", lambda _, host: session(host, stdout=b"reached 10.0.0.1\n"))
    with Connector(ConnectOptions()) as connector, SessionPool(connector, Cancel(), forks=1) as pool:
        (answer,) = gather_facts([Host("a", "a")], pool)
    assert answer.facts is not None
    assert answer.facts.network.reached == reached
