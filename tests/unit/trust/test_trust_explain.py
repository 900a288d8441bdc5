"""Errors of ssh on node0, as a message with cause and fix."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_trust_plan import HOST_STATE

from ipexctl.hosts.internal import HostAddresses, InterfaceAddress
from ipexctl.trust.host_state import Permissions
from ipexctl.trust.login_errors import IDENTITY_COMMAND, LoginAttempt, explain
from message_data import missing

NODE2_STATE = replace(HOST_STATE, identity=("me", "node2", "boot", "net:[1]"))


def why(said: str, code: int = 255, **changes: object) -> tuple[str, str]:
    found = explain(LoginAttempt(code, said), replace(NODE2_STATE, **changes), "10.0.0.2", {})  # type: ignore[arg-type]
    return found.reason, found.fix


@pytest.mark.parametrize(
    ("said", "reason", "fix"),
    [
        ("ssh: connect to host 10.0.0.2 port 22: Connection refused", "22", "ListenAddress"),
        ("ssh: connect to host 10.0.0.2 port 22: Connection timed out", "10.0.0.2 22", ""),
        ("ssh: connect to host 10.0.0.2 port 22: No route to host", "10.0.0.2 22", "--iface"),
        ("ssh: Could not resolve hostname b.ib: Name or service not known", "", "internal="),
        ("@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\nHost key verification failed.", "", ""),
        ("kex_exchange_identification: Connection closed by remote host", "", "hosts.deny"),
        ("This account is currently not available.", "", ""),
        ("me@10.0.0.2: Permission denied (publickey).", "node0's", "AllowUsers"),
    ],
)
def test_ssh_errors_are_explained(said: str, reason: str, fix: str) -> None:
    got = why(said)
    assert missing(got[0], reason) == []
    assert missing(got[1], fix) == []


DENIED = "me@10.0.0.2: Permission denied (publickey)."


def test_permission_denied_names_the_likeliest_cause() -> None:
    open_home = why(DENIED, home_mode=Permissions("drwxrwxr-x", 1000))
    assert missing(open_home[0], "/home/me") == []
    assert open_home[1].endswith(": chmod go-w /home/me")
    foreign = why(DENIED, ssh_mode=Permissions("drwx------", 7))
    assert missing(foreign[0], "/home/me/.ssh") == []
    assert foreign[1].endswith(", as root: chown me /home/me/.ssh")
    assert why(DENIED, keys=None) != why(DENIED)
    assert "PermitRootLogin" in why(DENIED, user="root")[1]
    assert "NAT" in why(DENIED)[1]


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
    assert missing(why("ipexctl-is me node7 boot net:[2]", 0)[0], "node7") == []
    assert missing(why("ipexctl-is you node2 boot net:[1]", 0)[0], "you me") == []
    assert len({why(said, 0)[0] for said in ELSEWHERE}) == len(ELSEWHERE)


def test_unknown_errors_are_shown() -> None:
    assert missing(why("", 124)[0], "node0 25 10.0.0.2 22") == []
    assert missing(why("sh: 1: ssh: not found", 127)[1], "openssh-client openssh-clients node0") == []
    assert missing(why("strange\x1b[31m\n", 9)[0], "9 strange\N{REPLACEMENT CHARACTER}[31m") == []


def test_identity_command_is_safe_in_every_login_shell() -> None:
    assert not set(IDENTITY_COMMAND) & set('\\!\n"`')
    assert IDENTITY_COMMAND.count("'") == 2
