"""Helpers for tests of hosts/: checks of the errors of readers, and strategies for their input."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import strategies as st

from ipexctl.errors import FileError, UserError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ipexctl.hosts.host import Host

    Reader = Callable[[str, str], tuple[Host, ...]]

# Parts of nearly valid files: joined at random they reach more code than random text does.
PIECES = (
    *("node1", "node2", "node[1-3]", "n[01-10/2]", "[fe80::2]", "fe80::2%eth0", "10.0.0.1", "localhost", "user@"),
    *(":", ":2", "@", " ", "\t", "=", "#", ";", ",", "-", "[", "]", "'", '"', "\\", "/", "~", "\n", "\r\n", "\r"),
    *("slots=4", "slots=", "max_slots=8", "port=22", "internal=10.1.0.1", "identity=~x/k", "address=a[1-3]"),
    *("[gpu]", "[gpu:vars]", "[gpu:children]", "[all:vars]", "ansible_host=", "ansible_port=22", "{{ x }}"),
    *("ansible_ssh_common_args='-F x -o UserKnownHostsFile=y'", "ansible_connection=local", "[1:9]", "[a:c]"),
    *("all:", "  ", "    ", "hosts:", "children:", "vars:", "- ", "&a ", "*a", "<<: ", "{", "}", "!vault ", "---"),
    *("\x00", "\x07", "\x85", "\u2028", "\xa0", "\ufeff", "\ud800", "é", "\N{ARABIC-INDIC DIGIT THREE}", "9" * 20),
)
almost_valid = st.lists(st.sampled_from(PIECES), max_size=40).map("".join)
BOMB = "b0: &b0 {hosts: {x: }}\n" + "".join(
    f"b{n}: &b{n} {{children: {{" + ", ".join(f"c{n}{m}: *b{n - 1}" for m in range(9)) + "}}\n" for n in range(1, 9)
)
TEXT_BOMB = f"all:\n  hosts: {{n: }}\n  vars:\n    a: &a {'x' * 100_000}\n    b: [{', '.join(['*a'] * 5000)}]\n"
any_text = st.one_of(st.text(max_size=200), st.text(st.characters(), max_size=80), almost_valid)


def assert_points_inside(error: FileError) -> None:
    """The position is on a line of the file, inside its text or just after it."""
    assert error.line >= 1
    assert 1 <= error.column <= len(error.text) + 1
    assert error.what
    assert str(error).startswith(f"{error.path}:{error.line}: ")


def assert_only_user_errors(read: Reader, text: str) -> None:
    """The reader accepts the text or raises FileError."""
    try:
        hosts = read(text, "file")
    except FileError as error:
        assert_points_inside(error)
        assert (
            error.line
            <= text.count("\n")
            + text.count("\r")
            + text.count("\x85")
            + text.count("\u2028")
            + text.count("\u2029")
            + 1
        )
    else:
        assert_can_be_reached(hosts)


def assert_can_be_reached(hosts: tuple[Host, ...]) -> None:
    for host in hosts:
        assert host.name and not host.name.startswith("-")
        assert host.address and not host.address.startswith("-")
        assert host.slots is None or host.slots >= 1


def file_error(read: Reader, text: str) -> FileError:
    with pytest.raises(FileError) as caught:
        read(text, "hostfile")
    assert_points_inside(caught.value)
    return caught.value


def user_error(read: Callable[[Path], object], path: Path) -> UserError:
    with pytest.raises(UserError) as caught:
        read(path)
    return caught.value
