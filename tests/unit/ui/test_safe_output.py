"""Output of hosts on its way to a terminal, a pipe or a file; failures, folded output and JSON of exec."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from case_table import case_table
from ipexctl.hosts.host import Host
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.fanout import ExecResult
from ipexctl.remote.outcome import Report
from ipexctl.text import neutralise, strip_colors
from ipexctl.ui.host_output import CollectedOutput, FailureReport, show_gathered, show_json
from ipexctl.ui.message_output import excerpt, set_colors, wants_color
from ipexctl.ui.safe_output import Pipe
from terminals import TerminalProgram

HOSTILE = b"\x1b[2J\x1b]52;c;aGk=\x07\x1b]0;title\x1b\\\xc2\x9b2J\x9b3J\x1bc\x08\x1bP1\x1b\\ bad \x1b[31mred\x1b[0m"
CONTROL_SEQUENCE = re.compile(
    rb"\x1b(?!\[[0-9;:]*m)|\xc2[\x80-\x9f]|[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f]|\r(?!\n)"
)


@case_table
def test_neutralise_removes_control_sequences(text: str, safe: str) -> None:
    assert neutralise(text) == safe


@given(st.text(st.characters() | st.sampled_from("\x1b[]mJ;\x9b\x07\n\r1")))
def test_neutralised_text_has_only_printable_characters_and_colors(text: str) -> None:
    safe = neutralise(text)
    assert strip_colors(safe).replace("\n", "").replace("\t", "").isprintable()
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
from ipexctl.ui.message_output import print_message
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
        pipe.finish()
        assert received.read(5) == b"last\n"
        assert pipe.broken is None


def test_hosts_with_the_same_reason_share_a_paragraph(capsys: pytest.CaptureFixture[str]) -> None:
    def failed(name: str, reason: str) -> ExecResult:
        return ExecResult(Host(name, name), "failed", reason, "do this", 0.1, 1)

    ok = ExecResult(Host("n9", "n9"), "ok", rc=0)
    problems = FailureReport(delay=60)
    for done in (failed("n1", "exit code 1"), ok, failed("n2", "exit code 1"), failed("n3", "other \x1b[31m")):
        problems.add(done)
    problems.print()
    problems.print()
    assert capsys.readouterr().err == (
        "n[1-2]: failed: exit code 1\n  do this\nn3: failed: other \ufffd[31m\n  do this\n"
    )


@pytest.mark.parametrize(
    ("environ", "asked_off", "tty", "wanted"),
    [({}, False, True, True), ({"NO_COLOR": "1"}, False, True, False), ({"TERM": "dumb"}, False, True, False),
     ({}, True, True, False), ({}, False, False, False)],
)  # fmt: skip
def test_color_needs_a_terminal_and_no_opt_out(
    environ: dict[str, str], asked_off: bool, tty: bool, wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.setenv(name, environ.get(name, ""))
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: tty, raising=False)
    set_colors(on=not asked_off)
    try:
        assert wants_color(stream) is wanted
    finally:
        set_colors(on=True)


@given(st.text(max_size=300), st.integers(1, 300))
def test_caret_is_under_the_column_of_the_error(text: str, column: int) -> None:
    column = min(column, len(text) + 1)
    shown, caret = excerpt(text, column)
    assert caret.strip() == "^"
    assert "\n" not in shown
    assert len(shown) <= 80
    if column <= len(text) and text[column - 1].isprintable():
        assert shown[caret.index("^")] == text[column - 1]


def test_failure_is_printed_while_other_hosts_still_run(capsys: pytest.CaptureFixture[str]) -> None:
    problems = FailureReport(delay=0.05)
    problems.add(ExecResult(Host("n1", "n1"), "unreachable", "gone", "look"))
    time.sleep(0.5)
    assert capsys.readouterr().err == "n1: unreachable: gone\n  look\n"
    problems.print()
    assert capsys.readouterr().err == ""


def report_of(*outputs: tuple[str, bytes]) -> tuple[Report[ExecResult], CollectedOutput]:
    held, ended = CollectedOutput(), []
    for name, output in outputs:
        host = Host(name, name)
        sink = held.sink_for(host)
        for start in range(0, len(output), 700_000):
            sink("stdout", output[start : start + 700_000])
        ended.append(ExecResult(host, "ok", rc=0))
    return Report(tuple(ended), 0.2), held


def test_gather_folds_equal_output_of_any_length(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    long = b"0123456789abcde\n" * 200_000
    show_gathered(*report_of(("n1", long), ("n2", b"short"), ("n3", long), ("n4", b"")))
    assert capsysbinary.readouterr().out == b"n[1,3] (2 hosts):\n" + long + b"n2 (1 host):\nshort\n"


def test_json_is_valid_with_any_output(capsys: pytest.CaptureFixture[str]) -> None:
    show_json(*report_of(("n1", b'"\\\x00\xff\n'), ("n2", b"")))
    document = json.loads(capsys.readouterr().out)
    assert [host["stdout"] for host in document["hosts"]] == ['"\\\x00\ufffd\n', ""]
    assert document["summary"] == {"ok": 2, "failed": 0, "unreachable": 0}


def test_json_keeps_characters_split_between_chunks(capsys: pytest.CaptureFixture[str]) -> None:
    text = "ü\U0001f600" * 300_000
    show_json(*report_of(("n1", b"x" + text.encode()), ("n2", b"\xf0\x9f")))
    first, second = json.loads(capsys.readouterr().out)["hosts"]
    assert first["stdout"] == "x" + text
    assert second["stdout"] == "\ufffd"
