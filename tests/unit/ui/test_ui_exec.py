"""Lines behind a prefix, and the recap."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipexctl.hosts.host import Host
from ipexctl.remote.execute import HostExec
from ipexctl.ui.exec import LONGEST_LINE, Prefixer, say_problems
from ipexctl.ui.say import excerpt, wants_color


@given(st.lists(st.binary(max_size=30).map(lambda b: b.replace(b"\r", b"\n")), max_size=12))
def test_every_line_has_the_prefix_once_and_no_byte_is_lost(chunks: list[bytes]) -> None:
    prefixer = Prefixer(b"n1: ")
    out = b"".join(prefixer.feed(chunk) for chunk in chunks) + prefixer.flush()
    whole = b"".join(chunks)
    lines = whole.split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    assert out == b"".join(b"n1: " + line + b"\n" for line in lines)


def test_only_whole_lines_leave_until_the_flush() -> None:
    prefixer = Prefixer(b"> ")
    assert prefixer.feed(b"abc") == b""
    assert prefixer.feed(b"def\nghi") == b"> abcdef\n"
    assert prefixer.flush() == b"> ghi\n"
    assert prefixer.flush() == b""


def test_a_line_without_an_end_does_not_fill_the_memory() -> None:
    prefixer = Prefixer(b"> ")
    out = b"".join(prefixer.feed(b"x" * 65536) for _ in range(40))
    assert out.count(b"x") > LONGEST_LINE
    assert out.count(b"x") + prefixer.flush().count(b"x") == 40 * 65536


def test_hosts_with_the_same_reason_share_a_paragraph(capsys: pytest.CaptureFixture[str]) -> None:
    def failed(name: str, reason: str) -> HostExec:
        return HostExec(Host(name, name), "failed", 1, 0.1, reason, "do this")

    ok = HostExec(Host("n9", "n9"), "ok", 0, 0.1)
    say_problems([failed("n1", "exit code 1"), ok, failed("n2", "exit code 1"), failed("n3", "other \x1b[31m")])
    assert capsys.readouterr().err == (
        "n[1-2]: failed: exit code 1\n  do this\nn3: failed: other \ufffd[31m\n  do this\n"
    )


@pytest.mark.parametrize(
    ("environ", "asked_off", "tty", "wanted"),
    [({}, False, True, True), ({"NO_COLOR": "1"}, False, True, False), ({"TERM": "dumb"}, False, True, False),
     ({}, True, True, False), ({}, False, False, False)],
)  # fmt: skip
def test_when_colour_is_wanted(environ: dict[str, str], asked_off: bool, tty: bool, wanted: bool) -> None:
    class Stream(io.StringIO):
        def isatty(self) -> bool:
            return tty

    assert wants_color(Stream(), environ, no_color=asked_off) is wanted


@given(st.text(max_size=300), st.integers(1, 300))
def test_the_caret_stands_under_the_place_in_one_line(text: str, column: int) -> None:
    column = min(column, len(text) + 1)
    shown, caret = excerpt(text, column)
    assert caret.strip() == "^"
    assert "\n" not in shown
    assert len(shown) <= 80
    if column <= len(text) and text[column - 1].isprintable():
        assert shown[caret.index("^")] == text[column - 1]
