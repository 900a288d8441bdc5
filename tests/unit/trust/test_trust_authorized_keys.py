"""Our one line in other people's files: in and out again, and not a byte of theirs changed."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipexctl.trust.authorized_keys import Owner, TrustLine, add_line, is_public_key, remove_lines, tag_of

BLOB = base64.b64encode(b"\0\0\0\x0bssh-ed25519\0\0\0\x20" + b"k" * 32).decode()
KEY = f"ssh-ed25519 {BLOB}"
TAG = tag_of("10.0.0.1", "~/.ipexctl")
LINE = TrustLine(KEY, ("10.0.0.1", "fd00::1"), TAG)
OWNER = Owner(TAG, KEY)
WORDS = f'restrict,from="10.0.0.1,fd00::1" {KEY} ipexctl:10.0.0.1:~/.ipexctl'

lines = st.one_of(
    st.binary(max_size=40),
    st.sampled_from([b"", b"\r", b"# c", b"ssh-ed25519 AAAA me", b'restrict,from="1.2.3.4" ssh-rsa A ipexctl:other']),
)
files = st.builds(
    lambda parts, end: b"\n".join(parts) + end, st.lists(lines, max_size=8), st.sampled_from([b"", b"\n"])
)


@given(files, st.booleans())
def test_put_in_and_taken_out_any_file_is_as_it_was(content: bytes, has_directory: bool) -> None:
    added = add_line(content, LINE, owner=OWNER, has_directory=has_directory)
    assert added.startswith(content)
    assert remove_lines(added, OWNER).content == content


@given(files)
def test_putting_in_twice_is_once_and_every_line_is_a_line(content: bytes) -> None:
    once = add_line(content, LINE, owner=OWNER)
    assert add_line(once, LINE, owner=OWNER) == once
    assert sum(line.startswith(WORDS.encode()) for line in once.split(b"\n")) == 1


@given(files, files)
def test_what_was_added_since_stays_whole(before: bytes, since: bytes) -> None:
    left = remove_lines(add_line(before, LINE, owner=OWNER) + since, OWNER).content
    assert left is not None
    assert left.endswith(since)
    assert left.startswith(before)
    assert left[len(before) : len(left) - len(since)] in (b"", b"\n")


@given(files)
def test_a_file_without_a_line_of_ours_is_not_touched(content: bytes) -> None:
    assert remove_lines(content, OWNER).removed == 0
    assert remove_lines(content, OWNER).content == content


def test_the_line_is_what_sshd_wants() -> None:
    assert add_line(b"", LINE, owner=OWNER) == WORDS.encode() + b"\n"


@pytest.mark.parametrize(("directory", "flags"), [(True, "+file"), (False, "+file +dir")])
def test_a_file_and_directory_made_for_the_line_go_with_it(directory: bool, flags: str) -> None:
    made = add_line(None, LINE, owner=OWNER, has_directory=directory)
    assert made == f"{WORDS} {flags}\n".encode()
    removal = remove_lines(made, OWNER)
    assert (removal.content, removal.removed, removal.directory_too) == (None, 1, not directory)
    kept = remove_lines(made + b"theirs\n", OWNER)
    assert (kept.content, kept.directory_too) == (b"theirs\n", False)


def test_an_empty_file_that_was_there_stays() -> None:
    assert remove_lines(add_line(b"", LINE, owner=OWNER), OWNER).content == b""


def test_another_key_or_address_is_brought_up_to_date_in_its_place() -> None:
    first = add_line(b"mine", LINE, owner=OWNER) + b"yours\n"
    newer = TrustLine(KEY.replace("k", "K"), ("10.0.0.9",), TAG)
    changed = add_line(first, newer, owner=Owner(TAG, newer.key))
    assert changed == f'mine\nrestrict,from="10.0.0.9" {newer.key} {TAG} +newline\nyours\n'.encode()


def test_copies_of_our_line_become_one() -> None:
    twice = f"a\n{WORDS}\nb\n{WORDS} +newline\n".encode()
    assert add_line(twice, LINE, owner=OWNER) == f"a\n{WORDS} +newline\nb\n".encode()
    assert remove_lines(twice, OWNER).content == b"a\nb"


def test_the_line_of_another_node0_is_somebody_elses() -> None:
    other = f'restrict,from="10.0.0.2" ssh-ed25519 AAAAother {tag_of("10.0.0.2", "~/.ipexctl")}\n'.encode()
    assert remove_lines(add_line(other, LINE, owner=OWNER), OWNER).content == other


def test_our_key_is_ours_whatever_was_made_of_its_line() -> None:
    edited = f'no-pty,command="a b" {KEY} it\'s mine\nrest\n'.encode()
    assert remove_lines(edited, OWNER).content == b"rest\n"
    assert remove_lines(f"# {KEY}\n".encode(), OWNER).removed == 0, "a comment lets nobody in"


def test_without_the_key_the_tag_tells() -> None:
    assert remove_lines(add_line(b"x\n", LINE, owner=OWNER), Owner(TAG)).content == b"x\n"


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
def test_only_a_whole_public_key_is_taken_for_one(text: str, wanted: bool) -> None:
    assert is_public_key(text) is wanted
