"""From ssh's own answer to an endpoint, and when one answer may serve many hosts."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ipexctl.hosts.host import Host
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.connector import ConnectOptions, Connector
from ipexctl.remote.outcome import Unreachable
from ipexctl.remote.ssh_config import (
    Resolver,
    endpoint,
    file_list,
    host_patterns,
    manual_command,
    parse_ssh_g,
    rename,
    ssh_home,
    ssh_options,
)

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


@pytest.mark.parametrize(
    ("answer", "name", "value"),
    [
        ("hostname h\nport 2222\nhostkeyalias cluster", "key_name", "cluster"),
        ("hostname Node1\nport 2222", "key_name", "[node1]:2222"),
        ("hostkeyalias Cluster", "key_name", "cluster"),
        ("hostname h\nhostkeyalias cluster\nidentityfile /keys/%k", "identities", (Path("/keys/cluster"),)),
        ("identityfile /keys/%k", "identities", (Path("/keys/h"),)),
        ("userknownhostsfile /theirs", "known_hosts", (Path("/mine"),)),
        ("identityagent none", "agent", None),
        ("identityagent /my/agent", "agent", "/my/agent"),
        ("identityagent $MY_AGENT", "agent", "/b"),
        ("identityagent ${MY_AGENT}", "agent", "/b"),
        ("identityagent $NO_AGENT", "agent", None),
        ("identityagent SSH_AUTH_SOCK", "agent", "/a"),
        ("hashknownhosts yes", "hash_names", True),
        ("hashknownhosts no", "hash_names", False),
        ("pkcs11provider /lib/card.so", "unsupported", ("PKCS11Provider",)),
        ("certificatefile none\ncertificatefile ~/.ssh/x-cert.pub", "unsupported", ("CertificateFile",)),
        ("certificatefile none", "unsupported", ()),
        ("proxyusefdpass yes", "unsupported", ("ProxyUseFdpass",)),
        ("proxyusefdpass no", "unsupported", ()),
        ("setenv OMP_NUM_THREADS=4", "unsupported", ("SetEnv",)),
    ],
)
def test_a_line_of_the_answer_sets_one_value_of_the_endpoint(answer: str, name: str, value: object) -> None:
    host = Host("h", "h", known_hosts=Path("/mine"))
    environ = {"SSH_AUTH_SOCK": "/a", "MY_AGENT": "/b"}
    assert getattr(endpoint(parse_ssh_g(answer), host, environ), name) == value


def test_without_an_agent_in_the_environment_there_is_none() -> None:
    assert endpoint(parse_ssh_g("identityagent SSH_AUTH_SOCK"), Host("h", "h"), {}).agent is None


@pytest.mark.parametrize(
    ("value", "files"),
    [
        ("", []),
        ("/root/.ssh/known_hosts /root/.ssh/known_hosts2", ["/root/.ssh/known_hosts", "/root/.ssh/known_hosts2"]),
        ("/my keys/of hosts", ["/my keys/of hosts"]),
        ("/my keys/of hosts ~/other  two /z", ["/my keys/of hosts", "~/other  two", "/z"]),
        ("none", ["none"]),
    ],
)
def test_blanks_in_a_list_of_files(value: str, files: list[str]) -> None:
    assert file_list(value) == files


def test_files_that_are_there_tell_names_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("one", "one two", "three"):
        (tmp_path / name).write_text("")
    at = str(tmp_path)
    assert file_list(f"{at}/one two three") == [f"{at}/one two", "three"]
    assert file_list(f"{at}/nine three {at}/one") == [f"{at}/nine", "three", f"{at}/one"]


@needs_ssh
@pytest.mark.parametrize("given", ["config", "host"])
def test_known_hosts_with_a_blank_in_their_names(given: str, tmp_path: Path) -> None:
    known, config = tmp_path / "known by me", tmp_path / "config"
    config.write_text(f'Host *\n  UserKnownHostsFile "{known}" "{tmp_path}/more"\n' if given == "config" else "")
    host = Host("h", "h", ssh_config=config, known_hosts=known if given == "host" else None)
    expected = (known, tmp_path / "more") if given == "config" else (known,)
    assert Resolver(os.environ).resolve(host).known_hosts[: len(expected)] == expected


@needs_ssh
def test_ssh_itself_takes_our_option_for_a_file_with_a_blank(tmp_path: Path) -> None:
    options = ssh_options(Host("h", "h", known_hosts=tmp_path / "known by me"))
    said = subprocess.run(
        ["ssh", "-F", "/dev/null", *options, "-o", "UserKnownHostsFile=/second", "-G", "h"],
        capture_output=True,
        text=True,
        check=True,
        stdin=subprocess.DEVNULL,
    ).stdout
    assert f"userknownhostsfile {tmp_path}/known by me\n" in said
    assert f'"{tmp_path}/known by me"' in " ".join(options)


def test_an_answer_serves_another_host_where_only_the_name_differs() -> None:
    answer = parse_ssh_g("host a1\nhostname a1\nuser me\nproxycommand nc %h %p")
    renamed = rename(answer, "a1", "Node2")
    assert renamed is not None
    assert (renamed["host"], renamed["hostname"], renamed["user"]) == (["Node2"], ["node2"], ["me"])


@pytest.mark.parametrize("name", ["a1", "A1"])
@pytest.mark.parametrize(
    "line",
    ["hostname a1.cluster", "proxycommand nc a1 22", "canonicalizehostname true", "user a1", "identityfile /k/a1"],
)
def test_an_answer_with_the_name_inside_serves_nobody_else(line: str, name: str) -> None:
    assert rename(parse_ssh_g(f"host {name}\n{line}"), name, "a2") is None


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


@pytest.mark.parametrize(
    "line",
    ["Host n1 '!n2'", 'HOST = "n1"\t!n2', '"Host" n1 "n2"', 'Host="n1" n2', "\tHost\tn\\1 n2"],
)
def test_the_patterns_of_a_line_are_found_however_it_is_written(tmp_path: Path, line: str) -> None:
    (tmp_path / "config").write_text(f"{line}\n  User me\n")
    assert host_patterns([tmp_path / "config"]) == ("n1", "n2")


@pytest.mark.parametrize("name", ['"{0}/my hosts/*"', "'{0}/my hosts/*'", "{0}/my\\ hosts/*", "${{HOSTS}}/*", "%d/*"])
def test_an_include_that_needs_quoting_or_expansion_leaves_it_to_ssh(tmp_path: Path, name: str) -> None:
    (tmp_path / "config").write_text(f"Include {name.format(tmp_path)}\n")
    assert host_patterns([tmp_path / "config"]) is None


@needs_ssh
@pytest.mark.parametrize("name", ['"{0}/my hosts/*"', "{0}/a=b.conf"])
def test_hosts_of_an_include_have_their_own_addresses(tmp_path: Path, name: str) -> None:
    (tmp_path / "my hosts").mkdir()
    for file in (tmp_path / "my hosts" / "all", tmp_path / "a=b.conf"):
        file.write_text("Host n1\n  HostName 10.0.0.1\nHost n2\n  HostName 10.0.0.2\n")
    config = tmp_path / "config"
    config.write_text(f"Include {name.format(tmp_path)}\n")
    resolver = Resolver(os.environ)
    found = [resolver.resolve(Host(n, n, ssh_config=config)).hostname for n in ("n1", "n2")]
    assert found == ["10.0.0.1", "10.0.0.2"]


@pytest.fixture
def ssh_instead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Puts a script in ssh's place; returns a file with a line for each time it was called."""

    def put(script: str) -> Path:
        (tmp_path / "bin").mkdir()
        ssh, calls = tmp_path / "bin" / "ssh", tmp_path / "calls"
        ssh.write_text(f"#!/bin/sh\necho \"$@\" >>'{calls}'\n{script}\n")
        ssh.chmod(0o755)
        monkeypatch.setenv("PATH", f"{ssh.parent}:{os.environ['PATH']}")
        return calls

    return put


@needs_ssh
def test_openssh_is_asked_once_for_hosts_that_no_line_tells_apart(
    tmp_path: Path, ssh_instead: Callable[[str], Path]
) -> None:
    config = tmp_path / "config"
    config.write_text("Host special\n  HostName 10.9.9.9\n  User root\nHost *\n  Port 2200\n")
    calls = ssh_instead(f'exec {shutil.which("ssh")} "$@"')
    resolver = Resolver(os.environ)
    hosts = [Host(n, n, ssh_config=config) for n in ("n1", "n2", "n3", "special")]
    found = [resolver.resolve(host) for host in hosts]
    assert [e.hostname for e in found] == ["n1", "n2", "n3", "10.9.9.9"]
    assert [e.port for e in found] == [2200] * 4
    assert found[3].user == "root"
    assert len(calls.read_text().splitlines()) == 2


@needs_ssh
def test_hosts_of_a_group_have_their_own_tokens_and_known_hosts(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("Host *\n  IdentityFile /keys/%n\n")
    resolver, known = Resolver(os.environ), tmp_path / "known"
    hosts = [Host("n1", "n1", ssh_config=config), Host("n2", "n2", ssh_config=config)]
    hosts.append(Host("n3", "n3", ssh_config=config, known_hosts=known))
    found = [resolver.resolve(host) for host in hosts]
    assert [at.identities for at in found] == [(Path(f"/keys/{host.name}"),) for host in hosts]
    assert [at.known_hosts[0] == known for at in found] == [False, False, True]


@needs_ssh
def test_hosts_that_only_capitals_tell_apart_are_asked_for_one_by_one(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("Host a*\n  Port 2200\n")
    resolver = Resolver(os.environ)
    found = [resolver.resolve(Host(name, name, ssh_config=config)) for name in ("a1", "A1", "b1")]
    assert [(at.hostname, at.port) for at in found] == [("a1", 2200), ("a1", 22), ("b1", 22)]


@needs_ssh
def test_a_match_that_hangs_is_a_refusal_of_that_host(tmp_path: Path) -> None:
    config, begun = tmp_path / "config", time.monotonic()
    config.write_text(f'Match exec "touch {tmp_path}/begun; sleep 35; touch {tmp_path}/ended"\n  User x\n')
    with pytest.raises(Unreachable) as caught:
        Resolver(os.environ).resolve(Host("n1", "n1", ssh_config=config), timeout=0.5)
    assert time.monotonic() - begun < 5
    assert "within 0.5 s" in caught.value.reason
    assert "Match exec" in caught.value.reason
    assert f"ssh -F {config} -G -- n1" in caught.value.fix
    assert (tmp_path / "begun").exists()


@needs_ssh
def test_what_a_match_leaves_running_is_not_waited_for(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text('Match exec "sleep 8 &"\n  User x\n')
    begun = time.monotonic()
    assert Resolver(os.environ).resolve(Host("n1", "n1", ssh_config=config), timeout=6).user == "x"
    assert time.monotonic() - begun < 4


@needs_ssh
def test_an_error_in_the_configuration_is_said_with_its_line(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("Host *\n  Bogus yes\n")
    resolver = Resolver(os.environ)
    for name in ("n1", "n2"):
        with pytest.raises(Unreachable) as caught:
            resolver.resolve(Host(name, name, ssh_config=config))
        assert "line 2: Bad configuration option: bogus" in caught.value.reason
        assert caught.value.fix == f"try: ssh -F {config} -G -- {name}"


def test_a_hanging_ssh_is_waited_for_once_by_all_who_share_it(
    tmp_path: Path, ssh_instead: Callable[[str], Path]
) -> None:
    calls = ssh_instead("exec sleep 30")
    (tmp_path / "config").write_text("")
    resolver, refused = Resolver(os.environ), []

    def ask(name: str) -> None:
        try:
            resolver.resolve(Host(name, name, ssh_config=tmp_path / "config"), timeout=0.8)
        except Unreachable as error:
            refused.append(error.fix.split()[-1])

    threads = [threading.Thread(target=ask, args=(f"n{number}",)) for number in range(6)]
    begun = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert time.monotonic() - begun < 3
    assert sorted(refused) == [f"n{number}" for number in range(6)]
    assert len(calls.read_text().splitlines()) == 1


@needs_ssh
def test_a_name_that_ssh_refuses_is_no_refusal_of_others(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("")
    resolver = Resolver(os.environ)
    with pytest.raises(Unreachable):
        resolver.resolve(Host("a", "-oProxyCommand=x", ssh_config=tmp_path / "config"))
    assert resolver.resolve(Host("n1", "n1", ssh_config=tmp_path / "config")).hostname == "n1"


def test_the_terminals_interrupt_does_not_reach_ssh(tmp_path: Path, ssh_instead: Callable[[str], Path]) -> None:
    ssh_instead("echo hostname $(ps -o sid= -p $$)")
    (tmp_path / "config").write_text("")
    session = Resolver(os.environ).resolve(Host("n1", "n1", ssh_config=tmp_path / "config")).hostname
    assert session.isdigit()
    assert int(session) != os.getsid(0)


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
    assert manual_command(host) == (
        "ssh -l me -p 2200 -i '/k e y' -o IdentitiesOnly=yes -o UserKnownHostsFile=/kh 10.0.0.1 true"
    )


@needs_ssh
def test_algorithms_and_revoked_keys_of_the_ssh_config(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text(
        "Host *\n  Ciphers aes256-ctr\n  MACs hmac-sha2-512\n  KexAlgorithms curve25519-sha256\n"
        f"  RequiredRSASize 3072\n  HostKeyAlgorithms ssh-ed25519\n  RevokedHostKeys {tmp_path}/revoked\n"
        "  UserKnownHostsFile none\n"
    )
    found = Resolver(os.environ).resolve(Host("h", "h", ssh_config=config))
    assert found.algorithms[:4] == ("aes256-ctr", "hmac-sha2-512", "curve25519-sha256", "ssh-ed25519")
    assert (found.required_rsa_size, found.revoked_keys) == (3072, (tmp_path / "revoked",))
    assert not found.can_add_keys


def test_an_unsupported_option_is_named_once_for_all_hosts(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("Host *\n  BindAddress 127.0.0.1\n  ConnectTimeout 1\n  Port 1\n")
    warnings: list[str] = []
    with Connector(ConnectOptions(connect_timeout=2, on_warning=warnings.append)) as connector:
        for name in ("a", "b"):
            with pytest.raises(Unreachable):
                connector.open(Host(name, "127.0.0.2", user="nobody", ssh_config=config), Cancel())
    assert [warning.count("BindAddress") for warning in warnings] == [1]
