"""The files for node0, the plan for each home, and parsing of replies."""

from __future__ import annotations

import base64
from dataclasses import replace

import pytest

from ipexctl.hosts.host import Host
from ipexctl.hosts.internal import InterfaceAddress
from ipexctl.remote.outcome import HostError
from ipexctl.trust.authorized_keys import Owner, TrustLine
from ipexctl.trust.config import Files, SshConfigNode, names_in, path_problem, render, ssh_names_for
from ipexctl.trust.host_state import HostState, read_host_state
from ipexctl.trust.plan import files_to_write, keys_to_add, keys_to_remove, nodes_for, sources_of, stores
from message_data import missing

BLOB = base64.b64encode(b"\0\0\0\x0bssh-ed25519\0\0\0\x20" + b"k" * 32).decode()
KEY = f"ssh-ed25519 {BLOB}"
SEEN = HostState(
    user="me",
    uid=1000,
    home="/home/me",
    ipexctl_home="/home/me/.ipexctl",
    identity=("me", "a"),
    store="boot 1 2",
    nics=(
        InterfaceAddress("lo", "127.0.0.1", 8),
        InterfaceAddress("docker0", "172.17.0.1", 16),
        InterfaceAddress("eth0", "10.0.0.1", 24),
    ),
    reached="10.0.0.1",
    port=22,
    host_keys=("ssh-ed25519 HOST",),
    keys=b"theirs\n",
    keys_problem="",
    has_ssh_dir=True,
)
OWNER = Owner("ipexctl:a:~/.ipexctl", KEY)
LINE = TrustLine(KEY, ("10.0.0.1",), OWNER.tag)


def node(name: str, address: str, **changes: object) -> SshConfigNode:
    return replace(SshConfigNode((name, address), address, 22, "me", (f"ssh-ed25519 KEY-{name}",)), **changes)  # type: ignore[arg-type]


def test_the_config_has_a_block_a_node_and_nothing_of_the_users() -> None:
    files = render([node("a", "10.0.0.1"), node("b", "10.0.0.2", port=2222, user="you")], "/h/100%/ssh")
    assert "Host b 10.0.0.2\n  HostName 10.0.0.2\n  User you\n  Port 2222\n  HostKeyAlias b\n" in files.config
    assert 'IdentityFile "/h/100%%/ssh/id_ed25519"' in files.config
    for line in ("StrictHostKeyChecking yes", "BatchMode yes", "ConnectTimeout 10", "IdentitiesOnly yes"):
        assert f"\n  {line}\n" in files.config
    assert "GlobalKnownHostsFile /dev/null" in files.config
    assert "Include" not in files.config
    assert files.known_hosts == "a,10.0.0.1 ssh-ed25519 KEY-a\nb,10.0.0.2 ssh-ed25519 KEY-b\n"


def test_cheap_algorithms_are_preferred_only_where_node0s_ssh_understands_that() -> None:
    (made,) = nodes_for([Host("a", "a")], {"a": SEEN}, {"a": "10.0.0.1"})
    for quick in (False, True):
        files = files_to_write([made], replace(SEEN, supports_preferred=quick))
        assert files
        assert ("\n  KexAlgorithms ^curve25519-sha256," in files.config) is quick


def test_nodes_of_an_earlier_call_stay_and_those_of_this_one_are_new() -> None:
    before = render([node("a", "10.0.0.1"), node("b", "10.0.0.2")], "/h")
    after = render([node("a", "10.0.0.9"), node("c", "10.0.0.3")], "/h", before=before)
    assert names_in(after.config) == ("a", "c", "b")
    assert after.known_hosts.splitlines()[2] == "b,10.0.0.2 ssh-ed25519 KEY-b"
    assert "10.0.0.1\n" not in after.config
    assert render([node("a", "10.0.0.9"), node("c", "10.0.0.3")], "/h", before=after) == after


def test_a_config_that_is_broken_is_written_anew() -> None:
    wanted = render([node("a", "10.0.0.1")], "/h")
    for broken in (Files("", ""), Files("garbage\nHost\nHost x\n", "y"), Files(wanted.config[:50], "")):
        assert render([node("a", "10.0.0.1")], "/h", before=broken) == wanted


@pytest.mark.parametrize("path", ['/a"b', "/a\\b", "/a\nb", "/${HOME}"])
def test_paths_that_a_config_cannot_hold(path: str) -> None:
    assert path_problem(path)
    assert not path_problem("/my files/100%/ü")


def test_each_node_under_its_name_and_an_address_of_its_own() -> None:
    hosts = [Host("a", "a"), Host("b", "b"), Host("c", "c"), Host("gone", "gone")]
    seen = {"a": SEEN, "b": SEEN, "c": replace(SEEN, port=23)}
    nodes = nodes_for(hosts, seen, {"a": "10.0.0.1", "b": "10.0.0.2", "c": "10.0.0.2"})
    assert [node.names for node in nodes] == [("a", "10.0.0.1"), ("b",), ("c",)]
    assert nodes[2].port == 23


def test_localhost_is_called_by_its_address() -> None:
    hosts = [Host("localhost", "localhost"), Host("b", "b")]
    assert ssh_names_for(hosts, {"localhost": "10.0.0.1", "b": "10.0.0.2"}) == {"localhost": "10.0.0.1", "b": "b"}


def test_node0_may_come_from_each_of_its_addresses_but_no_bridge() -> None:
    there = replace(
        SEEN, nics=(*SEEN.nics, InterfaceAddress("ib0", "10.9.0.1", 24), InterfaceAddress("eth0", "fe80::1", 64))
    )
    assert sources_of(there, "10.9.0.1") == ("10.9.0.1", "10.0.0.1")
    assert sources_of(there, "a.name") == ("10.0.0.1", "10.9.0.1")
    assert sources_of(there, "172.17.0.1") == ("172.17.0.1", "10.0.0.1", "10.9.0.1")


def test_hosts_that_share_a_home_are_one_store() -> None:
    other = replace(SEEN, store="boot 1 3")
    assert stores({"a": SEEN, "b": other, "c": SEEN}) == {"a": "a", "b": "b", "c": "a"}


def test_a_line_that_is_there_needs_no_edit() -> None:
    edit = keys_to_add(SEEN, LINE, OWNER)
    assert edit
    assert missing(edit.summary, "~/.ssh/authorized_keys") == []
    done = replace(SEEN, keys=edit.new)
    assert keys_to_add(done, LINE, OWNER) is None
    newer = keys_to_add(done, replace(LINE, sources=("10.0.0.7",)), OWNER)
    assert newer
    assert newer.summary != edit.summary
    back = keys_to_remove(done, OWNER)
    assert back
    assert back.new == b"theirs\n"
    assert missing(back.summary, "~/.ssh/authorized_keys") == []
    assert keys_to_remove(SEEN, OWNER) is None


def test_leftovers_are_a_reason_to_go_there_again() -> None:
    edit = keys_to_remove(replace(SEEN, has_leftovers=True), OWNER)
    assert edit
    assert edit.tidy
    assert edit.old == edit.new == b"theirs\n"


def test_files_that_are_as_they_should_be_are_not_written() -> None:
    nodes = [node("a", "10.0.0.1")]
    wanted = files_to_write(nodes, SEEN)
    assert wanted
    assert files_to_write(nodes, replace(SEEN, config=wanted.config, known_hosts=wanted.known_hosts)) is None


def answer(**words: str | bytes) -> bytes:
    told = {"user": "me", "uid": "1000", "home": "/home/me", "ipexctl_home": "/home/me/.ipexctl", **words, "end": "ok"}
    in_hex = ("keys", "hostkey")
    contents = {word: text if isinstance(text, bytes) else text.encode() for word, text in told.items()}
    return b"".join(
        word.replace("_", ".").encode() + b" " + (text.hex().encode() if word in in_hex else text) + b"\0"
        for word, text in contents.items()
    )


def test_an_answer_is_read() -> None:
    there = read_host_state(
        answer(came="10.0.0.9 5000 10.0.0.1 2222", keys=b"\xff\n", ls_home="drwxrwxr-x 3 1000 100 1 Nov 1 00:00 x"),
        server_key=KEY,
        port=None,
    )
    assert (there.reached, there.port, there.keys, there.key) == ("10.0.0.1", 2222, b"\xff\n", None)
    assert there.host_keys == (KEY,)
    local = read_host_state(answer(came="10.0.0.9 5000 10.0.0.1 2222"), server_key=None, port=None)
    assert local.reached is None, "that is the caller's own login"
    assert there.home_mode
    assert (there.home_mode.open_to_others, there.home_mode.uid) == (True, 1000)


def test_holes_in_an_answer_are_holes() -> None:
    there = read_host_state(answer(came="", keys=""), server_key=None, port=2200)
    assert (there.reached, there.port, there.keys, there.home_mode) == (None, 2200, b"", None)
    assert read_host_state(answer(), server_key=None, port=None).keys is None


def test_this_machines_host_keys_are_checked_to_be_keys() -> None:
    there = read_host_state(answer(hostkey=f"{KEY} root@here\n") + answer(hostkey="x y\n"), server_key=None, port=None)
    assert there.host_keys == (KEY,)


def test_a_host_cannot_add_keys_to_the_one_it_proved() -> None:
    other = "ssh-ed25519 " + base64.b64encode(b"\0\0\0\x0bssh-ed25519\0\0\0\x20" + b"o" * 32).decode()
    reply = answer(hostkey=f"{other}\n")
    assert read_host_state(reply, server_key=None, port=None).host_keys == (other,)
    assert read_host_state(reply, server_key=KEY, port=None).host_keys == (KEY,)


@pytest.mark.parametrize("user", ["me\n  ProxyCommand evil", "-oProxyCommand=x", "a b", "%h"])
def test_an_account_that_would_be_a_line_of_configuration_is_refused(user: str) -> None:
    with pytest.raises(HostError, match="account"):
        read_host_state(answer(user=user), server_key=None, port=None)


def test_an_answer_that_is_cut_off_is_none() -> None:
    whole = answer(keys="abc")
    for end in range(len(whole) - 1):
        with pytest.raises(HostError, match="cut off"):
            read_host_state(whole[:end], server_key=None, port=None)


@pytest.mark.parametrize("figure", ["\N{SUPERSCRIPT TWO}", "9" * 5000, "-1", "x"])
def test_a_figure_that_is_none_is_missing(figure: str) -> None:
    state = read_host_state(
        answer(
            uid=figure,
            came=f"10.0.0.9 5000 10.0.0.1 {figure}",
            ls_home=f"drwxrwxr-x 3 {figure} 100 1 x",
            ip=f"2: eth0 inet 10.0.0.1/{figure} scope",
        ),
        server_key=None,
        port=2200,
    )
    assert (state.uid, state.port, state.home_mode, state.nics) == (-1, 2200, None, ())
