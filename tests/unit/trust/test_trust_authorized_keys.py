"""The trust line in authorized_keys: added and removed without changing any other byte."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipexctl.trust.authorized_keys import KeysEdit, Owner, TrustLine, add_line, is_public_key, remove_lines, tag_of

BLOB = base64.b64encode(b"\0\0\0\x0bssh-ed25519\0\0\0\x20" + b"k" * 32).decode()
KEY = f"ssh-ed25519 {BLOB}"
TAG = tag_of("10.0.0.1", "~/.ipexctl")
OWNER = Owner(TAG, KEY)
LINE = TrustLine(OWNER, ("10.0.0.1", "fd00::1"))
LINE_TEXT = f'restrict,from="10.0.0.1,fd00::1" {KEY} ipexctl:10.0.0.1:~/.ipexctl'

lines = st.one_of(
    st.binary(max_size=40),
    st.sampled_from([b"", b"\r", b"# c", b"ssh-ed25519 AAAA me", b'restrict,from="1.2.3.4" ssh-rsa A ipexctl:other']),
)
files = st.builds(
    lambda parts, end: b"\n".join(parts) + end, st.lists(lines, max_size=8), st.sampled_from([b"", b"\n"])
)


def removed(content: bytes, owner: Owner = OWNER) -> bytes | None:
    """The file without the lines of ipexctl."""
    edit = remove_lines(content, owner)
    return content if edit is None else edit.new


@given(files, st.booleans())
def test_adding_and_removing_the_line_restores_any_file(content: bytes, has_directory: bool) -> None:
    added = add_line(content, LINE, has_directory=has_directory)
    assert added.startswith(content)
    assert removed(added) == content


@given(files)
def test_adding_the_line_twice_writes_it_once(content: bytes) -> None:
    once = add_line(content, LINE)
    assert add_line(once, LINE) == once
    assert sum(line.startswith(LINE_TEXT.encode()) for line in once.split(b"\n")) == 1


@given(files, files)
def test_removal_keeps_lines_added_later(before: bytes, since: bytes) -> None:
    left = removed(add_line(before, LINE) + since)
    assert left is not None
    assert left.endswith(since)
    assert left.startswith(before)
    assert left[len(before) : len(left) - len(since)] in (b"", b"\n")


@given(files)
def test_removal_does_not_change_a_file_without_the_line(content: bytes) -> None:
    assert remove_lines(content, OWNER) is None


def test_added_line_has_the_format_of_sshd() -> None:
    assert add_line(b"", LINE) == LINE_TEXT.encode() + b"\n"


@pytest.mark.parametrize(("directory", "flags"), [(True, "+file"), (False, "+file +dir")])
def test_file_and_directory_created_for_the_line_are_removed_with_it(directory: bool, flags: str) -> None:
    made = add_line(None, LINE, has_directory=directory)
    assert made == f"{LINE_TEXT} {flags}\n".encode()
    assert remove_lines(made, OWNER) == KeysEdit(made, None, remove_directory=not directory)
    assert remove_lines(made + b"theirs\n", OWNER) == KeysEdit(made + b"theirs\n", b"theirs\n")


def test_existing_empty_file_is_kept() -> None:
    assert removed(add_line(b"", LINE)) == b""


def test_changed_key_or_address_is_updated_in_place() -> None:
    first = add_line(b"mine", LINE) + b"yours\n"
    newer = Owner(TAG, KEY.replace("k", "K"))
    changed = add_line(first, TrustLine(newer, ("10.0.0.9",)))
    assert changed == f'mine\nrestrict,from="10.0.0.9" {newer.key} {TAG} +newline\nyours\n'.encode()


def test_duplicates_of_the_line_are_merged() -> None:
    twice = f"a\n{LINE_TEXT}\nb\n{LINE_TEXT} +newline\n".encode()
    assert add_line(twice, LINE) == f"a\n{LINE_TEXT} +newline\nb\n".encode()
    assert removed(twice) == b"a\nb"


def test_line_of_another_node0_is_not_removed() -> None:
    other = f'restrict,from="10.0.0.2" ssh-ed25519 AAAAother {tag_of("10.0.0.2", "~/.ipexctl")}\n'.encode()
    assert removed(add_line(other, LINE)) == other


def test_line_with_the_key_is_removed_even_if_edited() -> None:
    edited = f'no-pty,command="a b" {KEY} it\'s mine\nrest\n'.encode()
    assert removed(edited) == b"rest\n"
    assert remove_lines(f"# {KEY}\n".encode(), OWNER) is None, "a comment lets nobody in"


def test_line_is_recognized_by_its_tag_without_the_key() -> None:
    assert removed(add_line(b"x\n", LINE), Owner(TAG)) == b"x\n"


def test_a_tag_is_one_word_of_ascii() -> None:
    assert tag_of("node1", "/my files/ü\n") == "ipexctl:node1:/my%20files/%C3%BC%0A"


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
