"""What ssh said on node0, as a sentence that names the cause and a fix."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_trust_plan import SEEN

from ipexctl.hosts.internal import HostAddresses, Nic
from ipexctl.trust.explain import QUESTION, Login, explain
from ipexctl.trust.seen import Permissions

THERE = replace(SEEN, identity=("me", "node2", "boot", "net:[1]"))


def why(said: str, code: int = 255, **changes: object) -> tuple[str, str]:
    found = explain(Login(code, said), replace(THERE, **changes), "10.0.0.2", {})  # type: ignore[arg-type]
    return found.reason, found.fix


@pytest.mark.parametrize(
    ("said", "reason", "fix"),
    [
        ("ssh: connect to host 10.0.0.2 port 22: Connection refused", "port 22 refuses connections", "ListenAddress"),
        ("ssh: connect to host 10.0.0.2 port 22: Connection timed out", "can't reach 10.0.0.2 port 22", "firewall"),
        ("ssh: connect to host 10.0.0.2 port 22: No route to host", "can't reach 10.0.0.2 port 22", "--iface"),
        ("ssh: Could not resolve hostname b.ib: Name or service not known", "can't resolve", "internal="),
        ("@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\nHost key verification failed.", "another host key", ""),
        ("kex_exchange_identification: Connection closed by remote host", "closes the connection", "hosts.deny"),
        ("This account is currently not available.", "account me may not log in", "by hand"),
        ("me@10.0.0.2: Permission denied (publickey).", "doesn't take node0's key for me", "AllowUsers"),
    ],
)
def test_what_ssh_says_is_translated(said: str, reason: str, fix: str) -> None:
    got = why(said)
    assert reason in got[0]
    assert fix in got[1]


DENIED = "me@10.0.0.2: Permission denied (publickey)."


def test_permission_denied_names_the_likeliest_cause() -> None:
    open_home = why(DENIED, home_mode=Permissions("drwxrwxr-x", 1000))
    assert "/home/me can be written to by others" in open_home[0]
    assert open_home[1] == "chmod go-w /home/me"
    foreign = why(DENIED, ssh_mode=Permissions("drwx------", 7))
    assert "belongs to another account" in foreign[0]
    assert foreign[1] == "chown me /home/me/.ssh"
    assert "sshd most likely reads keys elsewhere" in why(DENIED, keys=None)[0]
    assert "PermitRootLogin" in why(DENIED, user="root")[1]
    assert "NAT" in why(DENIED)[1]


def test_another_network_that_all_share_is_the_fix() -> None:
    addresses = {
        name: HostAddresses((Nic("eth0", f"10.0.0.{n}", 24), Nic("eth1", f"10.9.0.{n}", 24)))
        for name, n in (("a", 1), ("b", 2))
    }
    found = explain(Login(255, "Connection timed out"), THERE, "10.0.0.2", addresses)
    assert found.fix == "the hosts share 10.9.0.0/24 too: --iface 10.9.0.0/24"


def test_a_login_has_to_end_up_where_we_were() -> None:
    right = Login(0, "Welcome!\nipexctl-is me node2 boot net:[1]\nquota")
    assert right.reached(THERE)
    assert not Login(0, "").reached(THERE)
    assert "no command runs there" in why("hello", 0)[0]
    assert "another machine, node7" in why("ipexctl-is me node7 boot net:[2]", 0)[0]
    assert why("ipexctl-is you node2 boot net:[1]", 0)[0] == "node0 comes in as you instead of me"
    assert "of the same name" in why("ipexctl-is me node2 boot net:[2]", 0)[0]


def test_what_nobody_foresaw_is_shown() -> None:
    assert why("", 124)[0] == "a login from node0 is not through after 25 s (10.0.0.2 port 22)"
    assert why("sh: 1: ssh: not found", 127) == (
        "node0 has no ssh client",
        "install openssh-client (openssh-clients) on node0",
    )
    assert why("strange\x1b[31m\n", 9)[0].endswith("ended with exit code 9: strange\N{REPLACEMENT CHARACTER}[31m")


def test_no_login_shell_trips_over_the_question() -> None:
    assert not set(QUESTION) & set('\\!\n"`')
    assert QUESTION.count("'") == 2
