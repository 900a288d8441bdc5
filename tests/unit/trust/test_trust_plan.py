"""The files for node0, the plan for each home, and parsing of replies."""

from __future__ import annotations

import base64
from dataclasses import replace

import pytest

from fakes import FakeSession
from ipexctl.hosts.host import Host
from ipexctl.hosts.internal_addresses import InterfaceAddress
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.outcome import HostError
from ipexctl.remote.session import CommandEnd
from ipexctl.trust.authorized_keys import KeysEdit, Owner, TrustLine
from ipexctl.trust.host_steps import HostState, HostSteps, read_host_state
from ipexctl.trust.trust_setup import files_to_write, keys_to_add, keys_to_remove, nodes_for, sources_of
from ipexctl.trust.trust_ssh_config import Files, SshConfigNode, names_in, path_problem, render, ssh_names_for
from message_data import missing

BLOB = base64.b64encode(b"\0\0\0\x0bssh-ed25519\0\0\0\x20" + b"k" * 32).decode()
KEY = f"ssh-ed25519 {BLOB}"
HOST_STATE = HostState(
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
LINE = TrustLine(OWNER, ("10.0.0.1",))


def node(name: str, address: str, **changes: object) -> SshConfigNode:
    return replace(SshConfigNode((name, address), address, 22, "me", (f"ssh-ed25519 KEY-{name}",)), **changes)  # type: ignore[arg-type]


def test_ssh_config_has_a_block_per_node_and_no_user_settings() -> None:
    files = render([node("a", "10.0.0.1"), node("b", "10.0.0.2", port=2222, user="you")], "/h/100%/ssh")
    assert "Host b 10.0.0.2\n  HostName 10.0.0.2\n  User you\n  Port 2222\n  HostKeyAlias b\n" in files.config
    assert 'IdentityFile "/h/100%%/ssh/id_ed25519"' in files.config
    for line in ("StrictHostKeyChecking yes", "BatchMode yes", "ConnectTimeout 10", "IdentitiesOnly yes"):
        assert f"\n  {line}\n" in files.config
    assert "GlobalKnownHostsFile /dev/null" in files.config
    assert "Include" not in files.config
    assert files.known_hosts == "a,10.0.0.1 ssh-ed25519 KEY-a\nb,10.0.0.2 ssh-ed25519 KEY-b\n"


def test_fast_algorithms_are_preferred_only_if_ssh_of_node0_supports_it() -> None:
    (made,) = nodes_for([Host("a", "a")], {"a": HOST_STATE}, {"a": "10.0.0.1"})
    for quick in (False, True):
        files = files_to_write([made], replace(HOST_STATE, supports_preferred=quick))
        assert files
        assert ("\n  KexAlgorithms ^curve25519-sha256," in files.config) is quick


def test_nodes_of_an_earlier_call_are_kept_and_current_ones_replaced() -> None:
    before = render([node("a", "10.0.0.1"), node("b", "10.0.0.2")], "/h")
    after = render([node("a", "10.0.0.9"), node("c", "10.0.0.3")], "/h", before=before)
    assert names_in(after.config) == ("a", "c", "b")
    assert after.known_hosts.splitlines()[2] == "b,10.0.0.2 ssh-ed25519 KEY-b"
    assert "10.0.0.1\n" not in after.config
    assert render([node("a", "10.0.0.9"), node("c", "10.0.0.3")], "/h", before=after) == after


def test_broken_config_is_rewritten() -> None:
    wanted = render([node("a", "10.0.0.1")], "/h")
    for broken in (Files("", ""), Files("garbage\nHost\nHost x\n", "y"), Files(wanted.config[:50], "")):
        assert render([node("a", "10.0.0.1")], "/h", before=broken) == wanted


@pytest.mark.parametrize("path", ['/a"b', "/a\\b", "/a\nb", "/${HOME}"])
def test_paths_that_ssh_config_cannot_express_are_refused(path: str) -> None:
    assert path_problem(path)
    assert not path_problem("/my files/100%/ü")


def test_nodes_have_their_name_and_unique_addresses() -> None:
    hosts = [Host("a", "a"), Host("b", "b"), Host("c", "c"), Host("gone", "gone")]
    seen = {"a": HOST_STATE, "b": HOST_STATE, "c": replace(HOST_STATE, port=23)}
    nodes = nodes_for(hosts, seen, {"a": "10.0.0.1", "b": "10.0.0.2", "c": "10.0.0.2"})
    assert [node.names for node in nodes] == [("a", "10.0.0.1"), ("b",), ("c",)]
    assert nodes[2].port == 23


def test_localhost_is_named_by_its_address() -> None:
    hosts = [Host("localhost", "localhost"), Host("b", "b")]
    assert ssh_names_for(hosts, {"localhost": "10.0.0.1", "b": "10.0.0.2"}) == {"localhost": "10.0.0.1", "b": "b"}


def test_sources_are_all_addresses_of_node0_except_bridges() -> None:
    there = replace(
        HOST_STATE,
        nics=(*HOST_STATE.nics, InterfaceAddress("ib0", "10.9.0.1", 24), InterfaceAddress("eth0", "fe80::1", 64)),
    )
    assert sources_of(there, "10.9.0.1") == ("10.9.0.1", "10.0.0.1")
    assert sources_of(there, "a.name") == ("10.0.0.1", "10.9.0.1")
    assert sources_of(there, "172.17.0.1") == ("172.17.0.1", "10.0.0.1", "10.9.0.1")


def test_existing_line_needs_no_edit() -> None:
    edit = keys_to_add(HOST_STATE, LINE)
    assert edit
    assert missing(edit.summary, "~/.ssh/authorized_keys") == []
    done = replace(HOST_STATE, keys=edit.new)
    assert keys_to_add(done, LINE) is None
    newer = keys_to_add(done, replace(LINE, sources=("10.0.0.7",)))
    assert newer
    assert newer.summary != edit.summary
    back = keys_to_remove(done, OWNER)
    assert back
    assert back.new == b"theirs\n"
    assert missing(back.summary, "~/.ssh/authorized_keys") == []
    assert keys_to_remove(HOST_STATE, OWNER) is None


def test_leftover_files_need_another_edit() -> None:
    edit = keys_to_remove(replace(HOST_STATE, has_leftovers=True), OWNER)
    assert edit
    assert edit.tidy
    assert edit.old == edit.new == b"theirs\n"


def test_unchanged_files_are_not_written() -> None:
    nodes = [node("a", "10.0.0.1")]
    wanted = files_to_write(nodes, HOST_STATE)
    assert wanted
    assert files_to_write(nodes, replace(HOST_STATE, config=wanted.config, known_hosts=wanted.known_hosts)) is None


def answer(**words: str | bytes) -> bytes:
    told = {"user": "me", "uid": "1000", "home": "/home/me", "ipexctl_home": "/home/me/.ipexctl", **words, "end": "ok"}
    in_hex = ("keys", "hostkey")
    contents = {word: text if isinstance(text, bytes) else text.encode() for word, text in told.items()}
    return b"".join(
        word.replace("_", ".").encode() + b" " + (text.hex().encode() if word in in_hex else text) + b"\0"
        for word, text in contents.items()
    )


def test_host_state_is_parsed() -> None:
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


def test_missing_fields_of_host_state_are_none() -> None:
    there = read_host_state(answer(came="", keys=""), server_key=None, port=2200)
    assert (there.reached, there.port, there.keys, there.home_mode) == (None, 2200, b"", None)
    assert read_host_state(answer(), server_key=None, port=None).keys is None


def test_invalid_host_keys_of_the_control_machine_are_ignored() -> None:
    there = read_host_state(answer(hostkey=f"{KEY} root@here\n") + answer(hostkey="x y\n"), server_key=None, port=None)
    assert there.host_keys == (KEY,)


def test_reported_host_keys_are_ignored_if_the_server_key_is_known() -> None:
    other = "ssh-ed25519 " + base64.b64encode(b"\0\0\0\x0bssh-ed25519\0\0\0\x20" + b"o" * 32).decode()
    reply = answer(hostkey=f"{other}\n")
    assert read_host_state(reply, server_key=None, port=None).host_keys == (other,)
    assert read_host_state(reply, server_key=KEY, port=None).host_keys == (KEY,)


def test_truncated_host_state_is_an_error() -> None:
    whole = answer(keys="abc")
    for end in range(len(whole) - 1):
        with pytest.raises(HostError, match="cut off"):
            read_host_state(whole[:end], server_key=None, port=None)


@pytest.mark.parametrize("figure", ["\N{SUPERSCRIPT TWO}", "9" * 5000, "-1", "x"])
def test_invalid_numbers_in_host_state_are_ignored(figure: str) -> None:
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


@pytest.mark.parametrize(
    ("stderr", "reason", "fix"),
    [
        ("\x1eread-only\x1e/h/keys is read-only", "/h/keys is read-only", "chmod u+w"),
        ("\x1eowner\x1e/h/keys belongs to others", "/h/keys belongs to others", "ls -l"),
        ("\x1ebad-key\x1e/h/key can't be read", "/h/key can't be read", "trust --revoke"),
        ("\x1eno-sha256sum\x1ethere is no sha256sum", "there is no sha256sum", "coreutils"),
        ("\x1e\x1e/home/quota can't be written to", "/home/quota can't be written to", None),
        ("\x1enew-code\x1e/h: Permission denied", "/h: Permission denied", None),
        ("/h: Disk quota exceeded", "/h: Disk quota exceeded", "free some space"),
        ("/h: Permission denied", "/h: Permission denied", "ask the owner"),
        ("/h is read-only", "/h is read-only", None),
    ],
)
def test_fix_for_a_failed_script_comes_from_its_code_or_from_the_words_of_other_programs(
    stderr: str, reason: str, fix: str | None
) -> None:
    host = Host(name="a", address="a")
    steps = HostSteps(host, FakeSession(host, stderr=f"{stderr}\n".encode(), ended=CommandEnd(1)), None, Cancel())
    with pytest.raises(HostError) as failed:
        steps.edit_keys("/h", KeysEdit(b"old", b"new"))
    assert failed.value.reason == reason
    assert failed.value.fix == "" if fix is None else fix in failed.value.fix
