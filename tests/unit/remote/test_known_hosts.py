"""Parsing of known_hosts, and the check of a host key against its entries."""

from __future__ import annotations

import base64
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipexctl.remote.host_keys import KeyVerdict, check_key, entries_for, fingerprint_of, known_types, parse

HASHED = "|1|c2FsdA==|AVKVRR8nVNQKKuH6EEa5+9HavkM="
"""node1"""
GOOD, OTHER = b"the host's key", b"somebody else's key"


def b64(key: bytes) -> str:
    return base64.b64encode(key).decode()


@pytest.mark.parametrize(
    ("line", "name", "verdict"),
    [
        (f"node1 ssh-ed25519 {b64(GOOD)}", "node1", "known"),
        (f"NODE1 ssh-ed25519 {b64(GOOD)}", "node1", "known"),
        (f"node1,10.0.0.1 ssh-ed25519 {b64(GOOD)} comment", "10.0.0.1", "known"),
        (f"node? ssh-ed25519 {b64(GOOD)}", "node7", "known"),
        (f"*.lab,!bad.lab ssh-ed25519 {b64(GOOD)}", "good.lab", "known"),
        (f"*.lab,!bad.lab ssh-ed25519 {b64(GOOD)}", "bad.lab", "unknown"),
        (f"[node1]:2222 ssh-ed25519 {b64(GOOD)}", "[node1]:2222", "known"),
        (f"[node1]:2222 ssh-ed25519 {b64(GOOD)}", "node1", "unknown"),
        (f"node1 ssh-ed25519 {b64(OTHER)}", "node1", "changed"),
        (f"node1 ssh-rsa {b64(OTHER)}", "node1", "changed"),
        (f"{HASHED} ssh-rsa {b64(OTHER)}", "node1", "changed"),
        (f"node? ssh-rsa {b64(OTHER)}", "node1", "changed"),
        (f"@cert-authority * ssh-ed25519 {b64(OTHER)}\nnode1 ssh-rsa {b64(OTHER)}", "node1", "changed"),
        (f"@revoked node1 ssh-rsa {b64(OTHER)}", "node1", "unknown"),
        (f"node1 ssh-rsa {b64(OTHER)}\n@revoked node1 ssh-ed25519 {b64(GOOD)}", "node1", "revoked"),
        (f"@revoked node1 ssh-ed25519 {b64(GOOD)}", "node1", "revoked"),
        (f"@cert-authority node1 ssh-ed25519 {b64(OTHER)}", "node1", "unknown"),
        (f"# node1 ssh-ed25519 {b64(GOOD)}", "node1", "unknown"),
        ("node1 ssh-ed25519 not!base64", "node1", "unknown"),
        ("node1", "node1", "unknown"),
        (f"NODE1,*.lab ssh-ed25519 {b64(GOOD)}", "node1", "known"),
        (f"|1|AAAA|not!base64==== ssh-ed25519 {b64(GOOD)}", "node1", "unknown"),
        ("|1|broken ssh-ed25519 AAAA", "node1", "unknown"),
    ],
)
def test_check_key_verdicts(line: str, name: str, verdict: KeyVerdict) -> None:
    assert check_key(entries_for(parse(line, "f"), name), "ssh-ed25519", fingerprint_of(GOOD)).verdict == verdict


@pytest.mark.parametrize("key_type", ["ssh-ed25519", "ssh-rsa"])
def test_matching_key_is_known_despite_other_keys_of_the_host(key_type: str) -> None:
    others, good = f"node1 {key_type} {b64(OTHER)}", f"node1 ssh-ed25519 {b64(GOOD)}"
    for lines in (f"{others}\n{good}", f"{good}\n{others}"):
        assert (
            check_key(entries_for(parse(lines, "f"), "node1"), "ssh-ed25519", fingerprint_of(GOOD)).verdict == "known"
        )


def test_a_changed_key_is_compared_with_the_known_one_of_its_type() -> None:
    types = ("ssh-rsa", "ssh-ed25519", "ecdsa-sha2-nistp256", "ssh-ed25519")
    entries = parse("\n".join(f"node1 {key_type} {b64(OTHER)}" for key_type in types), "f")
    for key_type, line in (("ssh-ed25519", 2), ("ecdsa-sha2-nistp256", 3), ("ecdsa-sha2-nistp521", 1)):
        found = check_key(entries, key_type, fingerprint_of(GOOD)).entry
        assert found is not None
        assert found.line == line


def test_revoked_key_takes_precedence_over_known() -> None:
    lines = f"node1 ssh-ed25519 {b64(GOOD)}\n@revoked * ssh-ed25519 {b64(GOOD)}"
    judgement = check_key(entries_for(parse(lines, "kh"), "node1"), "ssh-ed25519", fingerprint_of(GOOD))
    assert judgement.verdict == "revoked"
    assert judgement.entry is not None
    assert (judgement.entry.file, judgement.entry.line) == ("kh", 2)


def test_known_types_excludes_revoked_keys() -> None:
    lines = f"node1 ssh-rsa {b64(OTHER)}\nnode1 ssh-ed25519 {b64(GOOD)}\n@revoked node1 ecdsa-sha2-nistp256 {b64(GOOD)}"
    assert known_types(entries_for(parse(lines, "f"), "node1")) == ("ssh-rsa", "ssh-ed25519")


@given(st.text(max_size=200), st.text(max_size=20))
def test_parse_accepts_any_text(text: str, name: str) -> None:
    assert check_key(entries_for(parse(text, "f"), name), "ssh-ed25519", fingerprint_of(GOOD)).verdict in (
        "known",
        "unknown",
        "changed",
    )


@pytest.mark.needs("ssh-keygen")
def test_hashed_names_are_read_and_fingerprints_shown_as_by_openssh(tmp_path: Path) -> None:
    blob = b"\0\0\0\x0bssh-ed25519\0\0\0\x20" + bytes(32)
    theirs, key = tmp_path / "theirs", tmp_path / "key.pub"
    theirs.write_text(f"NODE1,node2 ssh-ed25519 {b64(blob)}\n")
    subprocess.run(["ssh-keygen", "-H", "-f", theirs], capture_output=True, check=True)
    entries = parse(theirs.read_text(), "f")
    assert [len(entries_for(entries, name)) for name in ("node1", "node2", "node3")] == [1, 1, 0]
    key.write_text(f"ssh-ed25519 {b64(blob)}\n")
    shown = subprocess.run(["ssh-keygen", "-l", "-f", key], capture_output=True, text=True, check=True).stdout
    assert fingerprint_of(blob) == shown.split()[1]


def test_only_newlines_count_as_line_ends() -> None:
    text = f"# a comment\x0bwith\u2028odd\x1cbytes\r\nnode1 ssh-ed25519 {b64(GOOD)}\r\n"
    assert [entry.line for entry in parse(text, "f")] == [2]


def test_lookup_in_thousands_of_entries_is_fast() -> None:
    text = "".join(f"n{i}.cluster,10.0.0.{i} ssh-ed25519 {b64(GOOD)}\n" for i in range(5000))
    entries, begun = parse(text, "f"), time.process_time()
    for index in range(8):
        assert len(entries_for(entries, f"n{index}.cluster")) == 1
    assert time.process_time() - begun < 2
