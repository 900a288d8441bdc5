"""The output of exec: failures of hosts, folded output, JSON."""

from __future__ import annotations

import io
import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipexctl.hosts.host import Host
from ipexctl.remote.fanout import ExecResult
from ipexctl.remote.outcome import Report
from ipexctl.ui.host_output import CollectedOutput, FailureReport, show_gathered, show_json
from ipexctl.ui.messages import excerpt, wants_color


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
    assert wants_color(stream, no_color=asked_off) is wanted


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
