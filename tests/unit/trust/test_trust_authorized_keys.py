"""The line of trust is removed from authorized_keys without changing any other byte."""

from __future__ import annotations

import base64
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipexctl.remote.reply import MalformedReply
from ipexctl.trust.authorized_keys import KeysEdit, Owner, is_public_key, remove_lines, tag_of
from ipexctl.trust.revoke import HostState, keys_to_remove, names_in, read_host_state
from trust_left import add_line, config_of

BLOB = base64.b64encode(b"\0\0\0\x0bssh-ed25519\0\0\0\x20" + b"k" * 32).decode()
KEY = f"ssh-ed25519 {BLOB}"
TAG = tag_of("10.0.0.1", "~/.ipexctl")
OWNER = Owner(TAG, KEY)

lines = st.one_of(
    st.binary(max_size=40),
    st.sampled_from([b"", b"\r", b"# c", b"ssh-ed25519 AAAA me", b'restrict,from="1.2.3.4" ssh-rsa A ipexctl:other']),
)
files = st.builds(
    lambda parts, end: b"\n".join(parts) + end, st.lists(lines, max_size=8), st.sampled_from([b"", b"\n"])
)


def added(content: bytes | None, *, has_directory: bool = True) -> bytes:
    return add_line(content, KEY, TAG, has_directory=has_directory)


def removed(content: bytes, owner: Owner = OWNER) -> bytes | None:
    """The file without the lines of ipexctl."""
    edit = remove_lines(content, owner)
    return content if edit is None else edit.new


@given(files, st.booleans())
def test_removing_the_line_restores_any_file(content: bytes, has_directory: bool) -> None:
    assert removed(added(content, has_directory=has_directory)) == content


@given(files, files)
def test_removal_keeps_lines_added_later(before: bytes, since: bytes) -> None:
    left = removed(added(before) + since)
    assert left is not None
    assert left.endswith(since)
    assert left.startswith(before)
    assert left[len(before) : len(left) - len(since)] in (b"", b"\n")


@given(files)
def test_removal_does_not_change_a_file_without_the_line(content: bytes) -> None:
    assert remove_lines(content, OWNER) is None


@pytest.mark.parametrize("has_directory", [True, False])
def test_file_and_directory_created_for_the_line_are_removed_with_it(has_directory: bool) -> None:
    made = added(None, has_directory=has_directory)
    assert remove_lines(made, OWNER) == KeysEdit(made, None, remove_directory=not has_directory)
    assert remove_lines(made + b"theirs\n", OWNER) == KeysEdit(made + b"theirs\n", b"theirs\n")


def test_duplicates_of_the_line_are_removed() -> None:
    line = added(b"").rstrip()
    assert removed(b"a\n" + line + b"\nb\n" + line + b" +newline\n") == b"a\nb"


def test_line_of_another_node0_is_not_removed() -> None:
    other = f'restrict,from="10.0.0.2" ssh-ed25519 AAAAother {tag_of("10.0.0.2", "~/.ipexctl")}\n'.encode()
    assert removed(added(other)) == other


def test_line_with_the_key_is_removed_even_if_edited() -> None:
    edited = f'no-pty,command="a b" {KEY} it\'s mine\nrest\n'.encode()
    assert removed(edited) == b"rest\n"
    assert remove_lines(f"# {KEY}\n".encode(), OWNER) is None, "a comment lets nobody in"


def test_line_is_recognized_by_its_tag_without_the_key() -> None:
    assert removed(added(b"x\n"), Owner(TAG)) == b"x\n"


def test_a_tag_is_one_word_of_ascii() -> None:
    assert tag_of("node1", "/my files/ü\n") == "ipexctl:node1:/my%20files/%C3%BC%0A"


def test_leftovers_of_an_interrupted_call_are_tidied() -> None:
    state = HostState("/home/me", "/home/me/.ipexctl", "store", b"mine\n", has_leftovers=True)
    assert keys_to_remove(state, OWNER) == KeysEdit(b"mine\n", b"mine\n", tidy=True)
    assert keys_to_remove(replace(state, has_leftovers=False), OWNER) is None
    assert keys_to_remove(replace(state, keys=None), OWNER) is None


def test_hosts_of_the_config_are_known() -> None:
    assert names_in(config_of(["node1", "10.0.0.2"])) == ("node1", "10.0.0.2")


def answer(**records: bytes) -> bytes:
    fields = {"user": b"me", "home": b"/home/me", "ipexctl_home": b"/home/me/.ipexctl/", **records, "end": b"ok"}
    return b"".join(name.encode() + b" " + value + b"\0" for name, value in fields.items())


def test_answer_of_a_host_is_parsed_and_doubted() -> None:
    state = read_host_state(answer(keys=b"61 0a", key=KEY.encode() + b" comment", dir=b"yes"))
    assert (state.keys, state.key, state.has_trust_dir, state.ipexctl_home) == (b"a\n", KEY, True, "/home/me/.ipexctl")
    assert read_host_state(answer(keys=b"zz", key=b"half")).keys is None
    for wrong in (answer(user=b"me\nProxyCommand x"), answer()[:-1], b""):
        with pytest.raises(MalformedReply):
            read_host_state(wrong)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (KEY, True),
        (f"{KEY} comment", False),
        (f"{KEY}\nssh-rsa AAAA", False),
        ("ssh-ed25519 AAAA", False),
        ("ssh-rsa " + BLOB, False),
        ("", False),
        ('ssh-ed25519 a"b', False),
    ],
)
def test_is_public_key_accepts_only_a_complete_key(text: str, wanted: bool) -> None:
    assert is_public_key(text) is wanted
