"""From the output of `ssh -G` to an endpoint, and the hosts that may share one output."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ipexctl.hosts.host import Host, ssh_options
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.connector import ConnectOptions, Connector
from ipexctl.remote.fanout import fan_out
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
)

SSH_G_OUTPUT = """\
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

needs_ssh = pytest.mark.needs("ssh")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """An ssh config without a line."""
    path = tmp_path / "config"
    path.write_text("")
    return path


def test_output_of_ssh_g_is_parsed_to_an_endpoint() -> None:
    found = endpoint(parse_ssh_g(SSH_G_OUTPUT), Host("node1", "node1"), {"SSH_AUTH_SOCK": "/run/agent"})
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
        ("pkcs11provider /lib/card.so", "only_ssh", ("PKCS11Provider",)),
        ("certificatefile none\ncertificatefile ~/.ssh/x-cert.pub", "only_ssh", ("CertificateFile",)),
        ("certificatefile none", "only_ssh", ()),
        ("proxyusefdpass yes", "only_ssh", ("ProxyUseFdpass",)),
        ("proxyusefdpass no", "only_ssh", ()),
        ("setenv OMP_NUM_THREADS=4", "only_ssh", ("SetEnv",)),
    ],
)
def test_options_of_ssh_g_set_values_of_the_endpoint(answer: str, name: str, value: object) -> None:
    host = Host("h", "h", known_hosts=Path("/mine"))
    environ = {"SSH_AUTH_SOCK": "/a", "MY_AGENT": "/b"}
    assert getattr(endpoint(parse_ssh_g(answer), host, environ), name) == value


def test_agent_is_none_without_ssh_auth_sock() -> None:
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
def test_file_lists_with_blanks_are_split_at_absolute_paths(value: str, files: list[str]) -> None:
    assert file_list(value) == files


def test_file_lists_are_split_by_existing_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("one", "one two", "three"):
        (tmp_path / name).write_text("")
    at = str(tmp_path)
    assert file_list(f"{at}/one two three") == [f"{at}/one two", "three"]
    assert file_list(f"{at}/nine three {at}/one") == [f"{at}/nine", "three", f"{at}/one"]


@needs_ssh
@pytest.mark.parametrize("given", ["config", "host"])
def test_known_hosts_with_a_blank_in_their_names(given: str, tmp_path: Path, config: Path) -> None:
    known = tmp_path / "known by me"
    config.write_text(f'Host *\n  UserKnownHostsFile "{known}" "{tmp_path}/more"\n' if given == "config" else "")
    host = Host("h", "h", ssh_config=config, known_hosts=known if given == "host" else None)
    expected = (known, tmp_path / "more") if given == "config" else (known,)
    assert Resolver().resolve(host).known_hosts[: len(expected)] == expected


@needs_ssh
def test_openssh_accepts_the_known_hosts_option_with_a_blank(tmp_path: Path) -> None:
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


def test_ssh_g_output_is_renamed_for_another_host() -> None:
    answer = parse_ssh_g("host a1\nhostname a1\nuser me\nproxycommand nc %h %p")
    renamed = rename(answer, "a1", "Node2")
    assert renamed is not None
    assert (renamed["host"], renamed["hostname"], renamed["user"]) == (["Node2"], ["node2"], ["me"])


@pytest.mark.parametrize("name", ["a1", "A1"])
@pytest.mark.parametrize(
    "line",
    ["hostname a1.cluster", "proxycommand nc a1 22", "canonicalizehostname true", "user a1", "identityfile /k/a1"],
)
def test_ssh_g_output_that_contains_the_name_is_not_reused(line: str, name: str) -> None:
    assert rename(parse_ssh_g(f"host {name}\n{line}"), name, "a2") is None


def test_each_host_has_its_own_control_path(config: Path) -> None:
    config.write_text("Host *\n  ControlPath /run/%C\n")
    resolver = Resolver()
    paths = {resolver.resolve(Host(name, name, ssh_config=config)).control_path for name in ("a1", "a2")}
    assert len(paths) == 2
    assert all(path.startswith("/run/") and "%" not in path for path in paths)


def test_host_patterns_are_collected_through_includes(tmp_path: Path, config: Path) -> None:
    (tmp_path / "more").write_text("Host=c? !c9\n  User me\n")
    config.write_text(f"Include {tmp_path}/mo*\nHOST a b*\n# Host no\n")
    assert host_patterns([config]) == ("c?", "c9", "a", "b*")


def test_match_blocks_and_circular_includes_give_no_host_patterns(config: Path) -> None:
    config.write_text("Match host x exec true\n  User me\n")
    assert host_patterns([config]) is None
    config.write_text(f"Include {config}\n")
    assert host_patterns([config]) is None


@pytest.mark.parametrize(
    "line",
    ["Host n1 '!n2'", 'HOST = "n1"\t!n2', '"Host" n1 "n2"', 'Host="n1" n2', "\tHost\tn\\1 n2"],
)
def test_host_patterns_are_parsed_with_any_quoting(config: Path, line: str) -> None:
    config.write_text(f"{line}\n  User me\n")
    assert host_patterns([config]) == ("n1", "n2")


@pytest.mark.parametrize("name", ['"{0}/my hosts/*"', "'{0}/my hosts/*'", "{0}/my\\ hosts/*", "${{HOSTS}}/*", "%d/*"])
def test_includes_with_quoting_or_expansion_give_no_host_patterns(tmp_path: Path, config: Path, name: str) -> None:
    config.write_text(f"Include {name.format(tmp_path)}\n")
    assert host_patterns([config]) is None


@needs_ssh
@pytest.mark.parametrize("name", ['"{0}/my hosts/*"', "{0}/a=b.conf"])
def test_hosts_of_an_include_have_their_own_addresses(tmp_path: Path, config: Path, name: str) -> None:
    (tmp_path / "my hosts").mkdir()
    for file in (tmp_path / "my hosts" / "all", tmp_path / "a=b.conf"):
        file.write_text("Host n1\n  HostName 10.0.0.1\nHost n2\n  HostName 10.0.0.2\n")
    config.write_text(f"Include {name.format(tmp_path)}\n")
    resolver = Resolver()
    found = [resolver.resolve(Host(n, n, ssh_config=config)).hostname for n in ("n1", "n2")]
    assert found == ["10.0.0.1", "10.0.0.2"]


@pytest.fixture
def fake_ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Replace ssh with a script; returns a file with one line per call."""

    def put(script: str) -> Path:
        (tmp_path / "bin").mkdir()
        ssh, calls = tmp_path / "bin" / "ssh", tmp_path / "calls"
        ssh.write_text(f"#!/bin/sh\necho \"$@\" >>'{calls}'\n{script}\n")
        ssh.chmod(0o755)
        monkeypatch.setenv("PATH", f"{ssh.parent}:{os.environ['PATH']}")
        return calls

    return put


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo port x", "gives no port for n1: 'x'"),
        ("echo port 70000", "gives no port for n1: '70000'"),
        ("echo port 0", "gives no port for n1: '0'"),
        (f"echo port {'9' * 5000}", "gives no port for n1: '999"),
        ("exec yes", "printed more than 1 MB"),
        ("echo port 22; sleep 60", "gave no answer within 1 s"),
        ("echo port 22; exec >&-; sleep 60", "gave no answer within 1 s"),
        ("kill -INT $$", "exit code -2"),
    ],
)
def test_an_answer_of_ssh_g_that_is_none_is_an_error_in_time(
    fake_ssh: Callable[[str], Path], script: str, reason: str
) -> None:
    fake_ssh(script)
    begun = time.monotonic()
    with pytest.raises(Unreachable, match=re.escape(reason)) as found:
        Resolver().resolve(Host("n1", "n1"), timeout=1.0)
    assert time.monotonic() - begun < 4
    assert len(found.value.reason) < 120
    assert "ssh -G -- n1" in str(found.value.fix)


def test_ssh_g_that_the_signal_of_a_stop_ended_is_run_once_more(
    tmp_path: Path, fake_ssh: Callable[[str], Path]
) -> None:
    calls = fake_ssh(f"mkdir '{tmp_path}/met' && kill -INT $$; echo hostname n9; echo port 2222")
    assert Resolver().resolve(Host("n1", "n1")).port == 2222
    assert len(calls.read_text().splitlines()) == 2


@needs_ssh
def test_ssh_g_runs_once_for_hosts_with_the_same_matching_lines(config: Path, fake_ssh: Callable[[str], Path]) -> None:
    config.write_text("Host special\n  HostName 10.9.9.9\n  User root\nHost *\n  Port 2200\n")
    calls = fake_ssh(f'exec {shutil.which("ssh")} "$@"')
    resolver = Resolver()
    hosts = [Host(n, n, ssh_config=config) for n in ("n1", "n2", "n3", "special")]
    found = [resolver.resolve(host) for host in hosts]
    assert [e.hostname for e in found] == ["n1", "n2", "n3", "10.9.9.9"]
    assert [e.name for e in found] == [host.name for host in hosts]
    assert [e.port for e in found] == [2200] * 4
    assert found[3].user == "root"
    assert len(calls.read_text().splitlines()) == 2


@needs_ssh
def test_hosts_sharing_ssh_g_output_have_their_own_tokens_and_known_hosts(tmp_path: Path, config: Path) -> None:
    config.write_text("Host *\n  IdentityFile /keys/%n\n")
    resolver, known = Resolver(), tmp_path / "known"
    hosts = [Host("n1", "n1", ssh_config=config), Host("n2", "n2", ssh_config=config)]
    hosts.append(Host("n3", "n3", ssh_config=config, known_hosts=known))
    found = [resolver.resolve(host) for host in hosts]
    assert [at.identities for at in found] == [(Path(f"/keys/{host.name}"),) for host in hosts]
    assert [at.known_hosts[0] == known for at in found] == [False, False, True]


@needs_ssh
def test_ssh_g_runs_separately_for_hosts_that_differ_in_case(config: Path) -> None:
    config.write_text("Host a*\n  Port 2200\n")
    resolver = Resolver()
    found = [resolver.resolve(Host(name, name, ssh_config=config)) for name in ("a1", "A1", "b1")]
    assert [(at.hostname, at.port) for at in found] == [("a1", 2200), ("a1", 22), ("b1", 22)]


@needs_ssh
def test_match_exec_that_hangs_makes_the_host_unreachable(tmp_path: Path, config: Path) -> None:
    begun = time.monotonic()
    config.write_text(f'Match exec "touch {tmp_path}/begun; sleep 35; touch {tmp_path}/ended"\n  User x\n')
    with pytest.raises(Unreachable) as caught:
        Resolver().resolve(Host("n1", "n1", ssh_config=config), timeout=0.5)
    assert time.monotonic() - begun < 5
    assert "within 0.5 s" in caught.value.reason
    assert "Match exec" in caught.value.reason
    assert f"ssh -F {config} -G -- n1" in caught.value.fix
    assert (tmp_path / "begun").exists()


@needs_ssh
def test_background_processes_of_match_exec_are_not_waited_for(config: Path) -> None:
    config.write_text('Match exec "sleep 8 &"\n  User x\n')
    begun = time.monotonic()
    assert Resolver().resolve(Host("n1", "n1", ssh_config=config), timeout=6).user == "x"
    assert time.monotonic() - begun < 4


@needs_ssh
def test_errors_in_the_ssh_config_are_reported_with_their_line(config: Path) -> None:
    config.write_text("Host *\n  Bogus yes\n")
    resolver = Resolver()
    for name in ("n1", "n2"):
        with pytest.raises(Unreachable) as caught:
            resolver.resolve(Host(name, name, ssh_config=config))
        assert "line 2: Bad configuration option: bogus" in caught.value.reason
        assert caught.value.fix == f"try: ssh -F {config} -G -- {name}"


def test_hanging_ssh_g_is_waited_for_once_for_all_hosts(config: Path, fake_ssh: Callable[[str], Path]) -> None:
    calls = fake_ssh("exec sleep 30")
    resolver, hosts = Resolver(), [Host(f"n{number}", f"n{number}", ssh_config=config) for number in range(6)]
    begun = time.monotonic()
    outcomes = list(fan_out(hosts, lambda host: resolver.resolve(host, timeout=0.8), forks=6, cancel=Cancel()))
    assert time.monotonic() - begun < 3
    assert all(done.error and done.error.fix.endswith(f" {done.host.name}") for done in outcomes)
    assert len(calls.read_text().splitlines()) == 1


@needs_ssh
def test_name_that_ssh_refuses_does_not_affect_other_hosts(config: Path) -> None:
    resolver = Resolver()
    with pytest.raises(Unreachable):
        resolver.resolve(Host("a", "-oProxyCommand=x", ssh_config=config))
    assert resolver.resolve(Host("n1", "n1", ssh_config=config)).hostname == "n1"


@pytest.mark.needs("ps")
def test_ssh_g_runs_in_its_own_session(config: Path, fake_ssh: Callable[[str], Path]) -> None:
    fake_ssh("echo hostname $(ps -o sid= -p $$)")
    session = Resolver().resolve(Host("n1", "n1", ssh_config=config)).hostname
    assert session.isdigit()
    assert int(session) != os.getsid(0)


def test_host_is_unreachable_if_this_machine_has_no_ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unreachable) as caught:
        Resolver().resolve(Host("n1", "n1"))
    assert caught.value.reason == "this machine has no ssh"
    assert "openssh-client" in caught.value.fix


def test_manual_command_has_all_options_of_the_hostfile() -> None:
    host = Host("n", "10.0.0.1", user="me", port=2200, identity=Path("/k e y"), known_hosts=Path("/kh"))
    assert manual_command(host) == (
        "ssh -l me -p 2200 -i '/k e y' -o IdentitiesOnly=yes -o UserKnownHostsFile=/kh 10.0.0.1 true"
    )


@needs_ssh
def test_algorithms_and_revoked_keys_of_the_ssh_config(tmp_path: Path, config: Path) -> None:
    config.write_text(
        "Host *\n  Ciphers aes256-ctr\n  MACs hmac-sha2-512\n  KexAlgorithms curve25519-sha256\n"
        f"  RequiredRSASize 3072\n  HostKeyAlgorithms ssh-ed25519\n  RevokedHostKeys {tmp_path}/revoked\n"
        "  UserKnownHostsFile none\n"
    )
    found = Resolver().resolve(Host("h", "h", ssh_config=config))
    assert found.algorithms[:4] == ("aes256-ctr", "hmac-sha2-512", "curve25519-sha256", "ssh-ed25519")
    assert found.only_ssh == ("RevokedHostKeys", "RequiredRSASize")
    assert not found.can_add_keys


def test_the_ssh_program_is_announced_once_and_only_if_it_connects(config: Path) -> None:
    config.write_text("Host *\n  BindAddress 127.0.0.1\n  ConnectTimeout 1\n  Port 1\n")
    warnings: list[str] = []
    with Connector(ConnectOptions(connect_timeout=2, on_warning=warnings.append)) as connector:
        for name in ("a", "b"):
            with pytest.raises(Unreachable):
                connector.open(Host(name, "127.0.0.2", user="nobody", ssh_config=config), Cancel())
    assert warnings == []
