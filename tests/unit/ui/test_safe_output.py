"""Output of a host on its way to a terminal, a pipe or a file."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipexctl.remote.cancel import Cancel
from ipexctl.text import neutralise, without_colors
from ipexctl.ui.safe_output import Pipe
from terminals import TerminalProgram

HOSTILE = b"\x1b[2J\x1b]52;c;aGk=\x07\x1b]0;title\x1b\\\xc2\x9b2J\x9b3J\x1bc\x08\x1bP1\x1b\\ bad \x1b[31mred\x1b[0m"
CONTROL_SEQUENCE = re.compile(
    rb"\x1b(?!\[[0-9;:]*m)|\xc2[\x80-\x9f]|[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f]|\r(?!\n)"
)


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("plain text\n", "plain text\n"),
        ("\x1b[1;31mred\x1b[0m\ttab\n", "\x1b[1;31mred\x1b[0m\ttab\n"),
        ("\x1b[38:5:1mred\x1b[m\n", "\x1b[38:5:1mred\x1b[m\n"),
        ("\x1b[31mnot ended\n", "\x1b[31mnot ended\n\x1b[0m"),
        ("a\x1b[2Jb\x1b[?1049hc\x1b[10;1Hd", "abcd"),
        ("a\x1b]52;c;aGVsbG8=\x07b\x1b]0;title\x1b\\c", "abc"),
        ("a\x1b]0;without an end\nb", "a\nb"),
        ("a\x9b2Jb\x9d52;c;x\x9cc\x85d", "abc d"),
        ("a\x1bPq\x1b\\b\x1bcc\x1b(0d", "abcd"),
        ("a\x08b\x07c\x7fd\x00e\x1b", "a\ufffdb\ufffdc\ufffdd\ufffde\ufffd"),
        ("over\rwritten", "over written"),
        ("\u202eright to left", "\ufffdright to left"),
        ("ünïcode 🙂", "ünïcode 🙂"),
    ],
)
def test_neutralise_removes_control_sequences(text: str, safe: str) -> None:
    assert neutralise(text) == safe


@given(st.text(st.characters() | st.sampled_from("\x1b[]mJ;\x9b\x07\n\r1")))
def test_neutralised_text_has_only_printable_characters_and_colors(text: str) -> None:
    safe = neutralise(text)
    assert without_colors(safe).replace("\n", "").replace("\t", "").isprintable()
    assert safe.count("\n") == text.count("\n")
    assert neutralise(safe) == safe


@pytest.mark.parametrize(
    ("locale", "is_ascii"),
    [
        ({"LANG": "C"}, True),
        ({"LC_ALL": "POSIX", "LANG": "de_DE.UTF-8"}, True),
        ({"LANG": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, True),
        ({"LANG": "C.UTF-8"}, False),
    ],
)
def test_the_locale_c_gets_ascii(locale: dict[str, str], is_ascii: bool) -> None:
    kept = {name: value for name, value in os.environ.items() if name not in ("LANG", "LC_ALL", "LC_CTYPE")}
    argv = (sys.executable, "-m", "ipexctl", "versions")
    table = subprocess.run(argv, capture_output=True, env={**kept, **locale}, check=False).stdout
    assert (table.isascii(), b"\n---" in table, "─".encode() in table) == (is_ascii, is_ascii, not is_ascii)


EXEC = """
from ipexctl.hosts.host import Host
from ipexctl.ui.host_output import LiveOutput
shown = LiveOutput(Cancel())
shown.sink_for(Host("n1", "n1"))("stdout", DATA + b"\\r10%\\r20%\\n")
shown.finish(Host("n1", "n1"))
shown.close()
"""
GATHERED = """
from ipexctl.hosts.host import Host
from ipexctl.remote.fanout import ExecResult
from ipexctl.remote.outcome import Report
from ipexctl.ui.host_output import CollectedOutput, show_gathered
output = CollectedOutput()
output.sink_for(Host("n1", "n1"))("stdout", DATA + b"\\r10%\\r20%\\n")
show_gathered(Report((ExecResult(Host("n1", "n1"), "ok"),), 1.0), output)
"""
RUN = """
from ipexctl.node.common.frames import Chunk
from ipexctl.ui.run.plain import PlainRun
with PlainRun(Cancel()) as plain:
    plain.watch(Chunk(0, "stdout", DATA + b"\\n\\r10%\\r20%\\n"))
"""
ANSWER = """
guard_stdout()
sys.stdout.write(DATA.decode("utf-8", "surrogateescape").encode("utf-8", "replace").decode() + "20%\\n")
"""
MESSAGE = """
from ipexctl.ui.messages import print_message
print_message(DATA.decode("utf-8", "replace") + "20%")
"""


def program(body: str) -> list[str]:
    imports = "import sys\nfrom ipexctl.remote.cancel import Cancel\nfrom ipexctl.ui.safe_output import guard_stdout\n"
    return [sys.executable, "-c", f"{imports}DATA = {HOSTILE!r}\n{body}"]


@pytest.mark.parametrize("body", [EXEC, GATHERED, RUN, ANSWER, MESSAGE])
def test_a_terminal_gets_colors_and_the_last_state_of_a_bar(body: str) -> None:
    shown = TerminalProgram(program(body))
    assert shown.until_gone() == 0
    assert CONTROL_SEQUENCE.search(shown.seen) is None
    assert b"20%" in shown.seen
    if body in (RUN, ANSWER, MESSAGE):
        assert b"\x1b[31mred\x1b[0m" in shown.seen
    else:  # in these two cases the progress bar overwrites the line
        assert b"red" not in shown.seen
    shown.close()


@pytest.mark.parametrize("body", [EXEC, GATHERED, RUN])
def test_pipes_and_files_get_the_bytes_unchanged(body: str, tmp_path: Path) -> None:
    assert HOSTILE in subprocess.run(program(body), capture_output=True, check=True, timeout=30).stdout
    with (tmp_path / "file").open("wb") as file:
        subprocess.run(program(body), stdout=file, check=True, timeout=30)
    assert HOSTILE in (tmp_path / "file").read_bytes()


def test_pipe_writes_do_not_block_and_a_slow_reader_gets_all_bytes_in_order() -> None:
    reader, writer = os.pipe()
    with open(reader, "rb") as received, open(writer, "w", encoding="utf-8") as stream:
        pipe = Pipe(stream, Cancel())
        pieces = [bytes([65 + number % 26]) * (10, 3000, 9000)[number % 3] for number in range(60)]
        for piece in pieces:
            pipe.write(piece)  # more than the capacity of a pipe: a blocking write would never return
        expected = b"".join(pieces)
        assert received.read(len(expected)) == expected
        pipe.write(b"last\n")
        pipe.finish(None)
        assert received.read(5) == b"last\n"
        assert pipe.broken is None
