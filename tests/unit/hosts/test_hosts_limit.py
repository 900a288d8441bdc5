"""--limit: names, node sets, globs and groups, included or excluded, in the order of the file."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hosts_helpers import any_text
from ipexctl.errors import UserError
from ipexctl.hosts.host import Host
from ipexctl.hosts.limit import limit_hosts

HOSTS = (
    Host("node10", "node10", groups=("big",)),
    Host("node2", "10.0.0.2", groups=("small", "odd-rack")),
    Host("node1", "node1", groups=("small",)),
    Host("gpu1", "gpu1", groups=("big",)),
    Host("fe80::2", "fe80::2"),
)


@pytest.mark.parametrize(
    ("spec", "names"),
    [
        ("node1", "node1"),
        ("node1,node10", "node10 node1"),
        ("node[1-2]", "node2 node1"),
        ("node*", "node10 node2 node1"),
        ("node?", "node2 node1"),
        ("small", "node2 node1"),
        ("small,gpu1", "node2 node1 gpu1"),
        ("odd-*", "node2"),
        ("all", "node10 node2 node1 gpu1 fe80::2"),
        ("*", "node10 node2 node1 gpu1 fe80::2"),
        ("!node1", "node10 node2 gpu1 fe80::2"),
        ("node*,!node[1-2]", "node10"),
        ("!big,all", "node2 node1 fe80::2"),
        ("!node1,node*", "node10 node2"),
        ("10.0.0.2", "node2"),
        ("fe80::2", "fe80::2"),
        ("[fe80::2]", "fe80::2"),
        (" node1 , ! big ,", "node1"),
        ("node[1-2]*", "node10 node2 node1"),
        ("node[1-2]:node10:!node2", "node10 node1"),
        ("small:!node1", "node2"),
        ("small:&odd-rack", "node2"),
        ("&big", "node10 gpu1"),
    ],
)
def test_limit_selects_hosts_in_the_order_of_the_file(spec: str, names: str) -> None:
    assert [host.name for host in limit_hosts(HOSTS, spec)] == names.split()


@given(any_text)
def test_any_limit_gives_hosts_or_a_user_error(spec: str) -> None:
    try:
        assert limit_hosts(HOSTS, spec)
    except UserError as error:
        assert error.message.isprintable()


@given(st.lists(st.sampled_from(["node1", "!node2", "node*", "small", "!big", "fe80::2", "all"]), min_size=1))
def test_limited_hosts_keep_the_order_of_the_file(parts: list[str]) -> None:
    try:
        left = limit_hosts(HOSTS, ",".join(parts))
    except UserError:
        return
    assert list(left) == [host for host in HOSTS if host in left]


def test_limit_may_name_a_file_of_hosts(tmp_path: Path) -> None:
    listed = tmp_path / "site.retry"
    listed.write_text("node2\n\nnode1  # slow\n")
    hosts = tuple(Host(f"node{n}", f"10.0.0.{n}") for n in (1, 2, 3))
    assert [host.name for host in limit_hosts(hosts, f"@{listed}")] == ["node1", "node2"]
    assert [host.name for host in limit_hosts(hosts, f"@{listed},!node1")] == ["node2"]
    listed.write_text("# all but one\n!node2\r\n")
    assert [host.name for host in limit_hosts(hosts, f"@{listed}")] == ["node1", "node3"]
    colon = tmp_path / "12:30.retry"
    colon.write_text("node3\n")
    assert [host.name for host in limit_hosts(hosts, f"@{colon}")] == ["node3"]
