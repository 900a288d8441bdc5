"""The plain hostfile: all its formats, also mixed, and errors with their position."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hosts_helpers import almost_valid, any_text, assert_only_user_errors, file_error
from ipexctl.errors import UserError
from ipexctl.hosts.detect import read_hosts_file
from ipexctl.hosts.host import Host
from ipexctl.hosts.hostfile import read_host_list, read_hostfile
from ipexctl.ui.message_output import excerpt

MIXED = """\
\ufeff# our cluster
10.0.0.1
node2:4\r
node3 slots=4 max_slots=8
node4 slots=2 max-slots=3   # Open MPI's other spelling
\tnode[5-7]:2

user@node9
[fe80::2]:2
fe80::3
fe80::4%eth0
10.0.0.12#node0 ip
node13 slots = 3
node14 internal=10.1.0.14 port=2222 user=me address=198.51.100.4
"""
BLANKS_AND_COMMENTS = (
    *("node1", " node1 ", "\tnode1\t", "node1\r", "node1#x"),
    *("node1 # slots=4", "\ufeffnode1", "node1 #'", "node1 \t\r"),
)


def test_one_file_may_mix_every_format() -> None:
    hosts = read_hostfile(MIXED, "hostfile")
    assert [(host.name, host.slots) for host in hosts] == [
        ("10.0.0.1", None),
        ("node2", 4),
        ("node3", 4),
        ("node4", 2),
        ("node5", 2),
        ("node6", 2),
        ("node7", 2),
        ("node9", None),
        ("fe80::2", 2),
        ("fe80::3", None),
        ("fe80::4%eth0", None),
        ("10.0.0.12", None),
        ("node13", 3),
        ("node14", None),
    ]
    assert [host.max_slots for host in hosts[2:4]] == [8, 3]
    assert hosts[7].user == "user"
    assert hosts[8].address == "fe80::2"
    assert hosts[-1] == Host("node14", "198.51.100.4", "me", 2222, internal="10.1.0.14")


@pytest.mark.parametrize(
    ("line", "host"),
    [
        ("DOM\\me@node1", Host("node1", "node1", "DOM\\me")),
        ("me@realm@node1", Host("node1", "node1", "me@realm")),
        ("user@[fe80::2%eth0]:3", Host("fe80::2%eth0", "fe80::2%eth0", "user", slots=3)),
        ("node1:4 slots=4", Host("node1", "node1", slots=4)),
        ("node1 address=[fe80::9]", Host("node1", "fe80::9")),
        ("node1 internal=fe80::9", Host("node1", "node1", internal="fe80::9")),
        ("node1:22", Host("node1", "node1", slots=22)),
        ("localhost slots=2", Host("localhost", "localhost", slots=2)),
        ("4u-rack.site", Host("4u-rack.site", "4u-rack.site")),
        ("node1:0012", Host("node1", "node1", slots=12)),
        ("node1:2222 port=22", Host("node1", "node1", port=22, slots=2222)),
        ("n ssh_config=none", Host("n", "n", ssh_config=Path("/dev/null"))),
        ("a max_slots=4\na max_slots=4", Host("a", "a", slots=2, max_slots=4)),
        (
            "a slots=1 max_slots=2\nme@a port=22 slots=1 max_slots=2 internal=10.0.0.1",
            Host("a", "a", "me", 22, 2, 4, "10.0.0.1"),
        ),
        *((line, Host("node1", "node1")) for line in BLANKS_AND_COMMENTS),
    ],
)
def test_lines_are_parsed_into_hosts(line: str, host: Host) -> None:
    assert read_hostfile(line, "hostfile") == (host,)


def test_paths_are_relative_to_the_hostfile_or_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    line = "n identity=keys/id known_hosts=~/.ssh/known ssh_config='my config#1'"
    (host,) = read_hostfile(line, "clusters/hostfile")
    assert host.identity == Path("clusters/keys/id")
    assert host.known_hosts == Path("/home/me/.ssh/known")
    assert host.ssh_config == Path("clusters/my config#1")


def test_a_node_set_takes_a_node_set_of_addresses() -> None:
    hosts = read_hostfile("n[1-3]:2 internal=10.0.0.[7,5,6] address=ext[1-3]", "hostfile")
    assert [(host.name, host.address, host.internal) for host in hosts] == [
        ("n1", "ext1", "10.0.0.7"),
        ("n2", "ext2", "10.0.0.5"),
        ("n3", "ext3", "10.0.0.6"),
    ]


@pytest.mark.parametrize(
    ("text", "slots"),
    [
        ("a\nb\na\na", {"a": 3, "b": 1}),
        ("a:2\nb\na:3", {"a": 5, "b": None}),
        ("a:2\nb\na", {"a": 3, "b": None}),
        ("a\na:4", {"a": 5}),
        ("a\nb", {"a": None, "b": None}),
        ("n[1,1-2]", {"n1": 2, "n2": 1}),
        ("u@a\na", {"a": 2}),
        ("n[1-2]:2\nn[2-3]:2", {"n1": 2, "n2": 4, "n3": 2}),
    ],
)
def test_slots_of_repeated_hosts_are_added(text: str, slots: dict[str, int | None]) -> None:
    hosts = read_hostfile(text, "hostfile")
    assert {host.name: host.slots for host in hosts} == slots
    assert [host.name for host in hosts] == list(slots)


def test_control_characters_in_errors_are_replaced_one_for_one() -> None:
    error = file_error(read_hostfile, "\tnode\x1b[31m")
    line, caret = excerpt(error.text, error.column)
    assert line == "   node\N{REPLACEMENT CHARACTER}[31m"
    assert line[caret.index("^")] == "\N{REPLACEMENT CHARACTER}"


def test_long_lines_are_shortened_around_the_error() -> None:
    error = file_error(read_hostfile, "a" * 400 + ";" + "b" * 400)
    assert len(error.text) <= 160
    assert error.text[error.column - 1] == ";"


def test_hosts_option_has_the_syntax_of_hostfile_names() -> None:
    hosts = read_host_list("node[3,1],b,me@10.0.0.9,[fe80::2]:2,h:3,localhost")
    assert [(host.name, host.user, host.slots) for host in hosts] == [
        ("node3", None, None),
        ("node1", None, None),
        ("b", None, None),
        ("10.0.0.9", "me", None),
        ("fe80::2", None, 2),
        ("h", None, 3),
        ("localhost", None, None),
    ]


@given(any_text)
def test_any_hosts_option_gives_hosts_or_a_user_error(text: str) -> None:
    try:
        assert read_host_list(text)
    except UserError as error:
        assert error.message.isprintable()


@given(st.lists(st.tuples(st.sampled_from(["node1", "n[1-2]", "u@x", "[::1]"]), almost_valid), max_size=4))
def test_any_text_after_a_host_is_read_or_refused(lines: list[tuple[str, str]]) -> None:
    assert_only_user_errors(read_hostfile, "\n".join(f"{host} {rest}" for host, rest in lines))


hostnames = st.from_regex(r"[a-z][a-z0-9-]{0,6}(\.[a-z]{1,3})?", fullmatch=True)


@given(
    st.dictionaries(hostnames, st.none() | st.integers(1, 200), min_size=1), st.sampled_from(["{}:{}", "{} slots={}"])
)
def test_hosts_keep_the_order_of_the_file(slots: dict[str, int | None], form: str) -> None:
    text = "\n".join(name if count is None else form.format(name, count) for name, count in slots.items())
    hosts = read_hostfile(text, "hostfile")
    assert [(host.name, host.slots) for host in hosts] == list(slots.items())


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=20))
def test_repeated_lines_of_a_nodefile_are_slots(lines: list[str]) -> None:
    hosts = read_hostfile("\n".join(lines), "nodefile")
    assert [host.name for host in hosts] == list(dict.fromkeys(lines))
    if len(hosts) < len(lines):
        assert {host.name: host.slots for host in hosts} == {name: lines.count(name) for name in lines}


# The examples of docs/hostfile.md


PAGE = (Path(__file__).parents[3] / "docs" / "hostfile.md").read_text()
BLOCKS = re.findall(r"```(text|ini|yaml)\n(.*?)```", PAGE, re.DOTALL)
ERROR = next(block for _, block in BLOCKS if block.startswith("hostfile:3: "))


@pytest.mark.parametrize("block", [block for _, block in BLOCKS if block is not ERROR])
def test_examples_of_the_docs_are_read(tmp_path: Path, block: str) -> None:
    path = tmp_path / "hosts"
    path.write_text(block)
    assert read_hosts_file(path)


def test_error_shown_in_the_docs_is_current() -> None:
    message, *shown = ERROR.splitlines()
    line, caret, fix = (text.removeprefix("  ") for text in shown)
    error = file_error(read_hostfile, f"\n\n{line}\n")
    assert (error.message, error.text, error.fix) == (message, line, fix)
    assert caret.index("^") == error.column - 1
