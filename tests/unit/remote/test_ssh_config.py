"""From ssh's own answer to an endpoint, and when one answer may serve many hosts."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from ipexctl.hosts.host import Host
from ipexctl.remote.ssh_config import Resolver, by_hand, endpoint, host_patterns, parse_ssh_g, rename, ssh_home

ANSWER = """\
host node1
hostname 10.0.0.1
user me
port 2222
identityfile ~/.ssh/id_%r
identityfile /keys/%h
identitiesonly yes
userknownhostsfile /kh/one ~/kh_two
globalknownhostsfile /etc/ssh/ssh_known_hosts
stricthostkeychecking accept-new
proxyjump bastion,second
identityagent SSH_AUTH_SOCK
addressfamily inet6
"""

needs_ssh = pytest.mark.skipif(not shutil.which("ssh"), reason="OpenSSH's client is not on this machine")


def test_an_answer_becomes_an_endpoint() -> None:
    found = endpoint(parse_ssh_g(ANSWER), Host("node1", "node1"), {"SSH_AUTH_SOCK": "/run/agent"})
    home = ssh_home()
    assert (found.hostname, found.port, found.user) == ("10.0.0.1", 2222, "me")
    assert found.identities == (home / ".ssh/id_me", Path("/keys/10.0.0.1"))
    assert found.identities_only
    assert found.known_hosts == (Path("/kh/one"), home / "kh_two", Path("/etc/ssh/ssh_known_hosts"))
    assert (found.strict, found.jump, found.agent) == ("accept-new", "bastion,second", "/run/agent")
    assert found.key_name == "[10.0.0.1]:2222"


def test_a_key_alias_is_the_name_in_known_hosts_without_the_port() -> None:
    found = endpoint(parse_ssh_g("hostname h\nport 2222\nhostkeyalias cluster"), Host("h", "h"), {})
    assert found.key_name == "cluster"


def test_the_file_of_the_call_stands_before_the_configured_ones() -> None:
    host = Host("h", "h", known_hosts=Path("/mine"))
    assert endpoint(parse_ssh_g("userknownhostsfile /theirs"), host, {}).known_hosts == (Path("/mine"),)


@pytest.mark.parametrize(
    ("configured", "environ", "agent"),
    [
        ("none", {"SSH_AUTH_SOCK": "/a"}, None),
        ("/my/agent", {"SSH_AUTH_SOCK": "/a"}, "/my/agent"),
        ("$MY_AGENT", {"MY_AGENT": "/b"}, "/b"),
        ("${MY_AGENT}", {"MY_AGENT": "/b"}, "/b"),
        ("SSH_AUTH_SOCK", {}, None),
    ],
)
def test_which_agent(configured: str, environ: dict[str, str], agent: str | None) -> None:
    assert endpoint(parse_ssh_g(f"identityagent {configured}"), Host("h", "h"), environ).agent == agent


def test_what_the_configuration_asks_for_and_we_do_not_know_is_named() -> None:
    assert endpoint(parse_ssh_g("pkcs11provider /lib/card.so"), Host("h", "h"), {}).unsupported == ("PKCS11Provider",)


def test_an_answer_serves_another_host_where_only_the_name_differs() -> None:
    answer = parse_ssh_g("host a1\nhostname a1\nuser me\nproxycommand nc %h %p")
    other = rename(answer, "a1", "a2")
    assert other is not None
    assert (other["hostname"], other["user"]) == (["a2"], ["me"])


@pytest.mark.parametrize(
    "line",
    ["hostname a1.cluster", "proxycommand nc a1 22", "canonicalizehostname true", "user a1", "identityfile /k/a1"],
)
def test_an_answer_with_the_name_inside_serves_nobody_else(line: str) -> None:
    assert rename(parse_ssh_g(f"host a1\n{line}"), "a1", "a2") is None


def test_patterns_are_gathered_through_includes(tmp_path: Path) -> None:
    (tmp_path / "more").write_text("Host=c? !c9\n  User me\n")
    main = tmp_path / "config"
    main.write_text(f"Include {tmp_path}/mo*\nHOST a b*\n# Host no\n")
    assert host_patterns([main]) == ("c?", "c9", "a", "b*")


def test_a_match_block_or_a_circle_of_includes_leaves_it_to_ssh(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("Match host x exec true\n  User me\n")
    assert host_patterns([config]) is None
    config.write_text(f"Include {config}\n")
    assert host_patterns([config]) is None


@needs_ssh
def test_openssh_is_asked_once_for_hosts_that_no_line_tells_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "config"
    config.write_text("Host special\n  HostName 10.9.9.9\n  User root\nHost *\n  Port 2200\n")
    calls: list[list[str]] = []
    real = subprocess.run

    def counting(argv: list[str], **options: object) -> object:
        calls.append(argv)
        return real(argv, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(subprocess, "run", counting)
    resolver = Resolver(os.environ)
    hosts = [Host(n, n, ssh_config=config) for n in ("n1", "n2", "n3", "special")]
    found = [resolver.resolve(host) for host in hosts]
    assert [e.hostname for e in found] == ["n1", "n2", "n3", "10.9.9.9"]
    assert [e.port for e in found] == [2200] * 4
    assert found[3].user == "root"
    assert len(calls) == 2


@needs_ssh
def test_openssh_and_paramiko_read_a_plain_file_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "config"
    config.write_text(
        "Host n*\n  HostName %h.lab\n  Port 2200\n  User bob\n  IdentityFile /keys/one\n"
        "  UserKnownHostsFile /kh\n  ProxyJump gate\n  StrictHostKeyChecking no\n"
    )
    host = Host("n1", "n1", ssh_config=config)
    with_openssh = Resolver(os.environ).resolve(host)
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    without = Resolver(os.environ).resolve(host)
    assert with_openssh.hostname == without.hostname == "n1.lab"
    for name in ("port", "user", "jump", "strict"):
        assert getattr(with_openssh, name) == getattr(without, name), name
    assert Path("/keys/one") in with_openssh.identities
    assert Path("/keys/one") in without.identities


def test_the_command_to_try_by_hand_says_all_that_the_hostfile_says() -> None:
    host = Host("n", "10.0.0.1", user="me", port=2200, identity=Path("/k e y"), known_hosts=Path("/kh"))
    assert by_hand(host) == (
        "ssh -l me -p 2200 -i '/k e y' -o IdentitiesOnly=yes -o UserKnownHostsFile=/kh 10.0.0.1 true"
    )
