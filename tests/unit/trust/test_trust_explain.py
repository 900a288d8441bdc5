"""Errors of ssh on node0, as a message with cause and fix."""

from __future__ import annotations

from dataclasses import replace

from test_trust_plan import HOST_STATE

from ipexctl.hosts.internal import HostAddresses, InterfaceAddress
from ipexctl.trust.login_errors import IDENTITY_COMMAND, LoginAttempt, explain

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
