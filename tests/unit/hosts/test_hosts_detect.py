"""The format of a file of hosts, and files that are no list of hosts."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hosts_helpers import any_text, assert_can_be_reached, assert_points_inside, user_error
from ipexctl.errors import FileError, UserError
from ipexctl.hosts.detect import detect, read_hosts_file
from message_data import missing


@pytest.mark.parametrize(
    ("text", "suffix", "kind"),
    [
        ("node1\nnode2:4\n", "", "hostfile"),
        ("", "", "hostfile"),
        ("# [gpu]\nnode1 # ansible_host=x\n", "", "hostfile"),
        ("[fe80::2]:2\n", "", "hostfile"),
        ("node1:\n", "", "hostfile"),
        ("node[1-4]\n", ".txt", "hostfile"),
        ("node1\n[gpu]\nnode2\n", "", "ini"),
        ("[all:vars]\r\nx=1\r\n", "", "ini"),
        ("; for Ansible\nn ansible_host=a\n", "", "ini"),
        ("node1\n", ".INI", "ini"),
        ("all:\n  hosts:\n", "", "yaml"),
        ("# x\n\n---\na:\n", "", "yaml"),
        ("gpu:\n  hosts:\n    n:\n", "", "yaml"),
        ("all:\n", "", "yaml"),
        ('{"all": {}}', "", "yaml"),
        ("node1", ".yaml", "yaml"),
        ("node1", ".yml", "yaml"),
        ("{}", ".json", "yaml"),
    ],
)
def test_format_is_detected_by_suffix_or_content(text: str, suffix: str, kind: str) -> None:
    assert detect(text, suffix) == kind


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("hostfile", b"n1\nn2\n"),
        ("hostfile", b"\xef\xbb\xbfn1\r\nn2\r\n"),
        ("hosts.ini", b"[a]\nn[1:2]\n"),
        ("hosts", b"[a]\nn[1:2]\n"),
        ("hosts.yml", b"a: {hosts: {n1: , n2: }}"),
        ("hosts", b"all:\n  hosts:\n    n1:\n    n2:\n"),
    ],
)
def test_every_format_is_read_from_disk(tmp_path: Path, name: str, data: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    assert [host.name for host in read_hosts_file(path)] == ["n1", "n2"]


def test_paths_in_a_hostfile_are_relative_to_the_file(tmp_path: Path) -> None:
    path = tmp_path / "hostfile"
    path.write_text("n identity=key\n")
    (host,) = read_hosts_file(path, shown="./hostfile")
    assert host.identity == tmp_path / "key"


@pytest.fixture
def unreadable(tmp_path: Path) -> Iterator[Path]:
    """Root may read every file, so the test runs as another user."""
    path = tmp_path / "secret"
    path.write_text("n1\n")
    path.chmod(stat.S_IWUSR)
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)
    yield path
    os.seteuid(before)


def test_missing_read_permission_is_reported_with_chmod_as_fix(unreadable: Path) -> None:
    error = user_error(read_hosts_file, unreadable)
    assert missing(error.message, str(unreadable)) == []
    assert f"chmod a+r {unreadable}" in error.fix


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.one_of(st.binary(max_size=200), any_text.map(lambda text: text.encode("utf-8", "surrogatepass"))),
    st.sampled_from(["hosts", "hosts.ini", "hosts.yml"]),
)
def test_any_bytes_give_hosts_or_a_user_error(tmp_path: Path, data: bytes, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    try:
        assert_can_be_reached(read_hosts_file(path))
    except FileError as error:
        assert_points_inside(error)
    except UserError as error:
        assert error.fix
