"""Text from hosts and files is harmless in every way of printing: nothing in it moves the cursor, hides text, turns the
direction of letters, is markup of rich, or begins a line of its own.
"""

from __future__ import annotations

import io
import json
import re
import sys
import traceback
from collections.abc import Callable

import pytest

from ipexctl.addons.play.play_view import PlayView
from ipexctl.addons.play.result import Counts, ItemDone, PlayReport, TaskReport, TaskResult
from ipexctl.addons.play.variables import Options
from ipexctl.commands.option_groups import Output
from ipexctl.errors import CallError, CommandLineError, FileError, UserError
from ipexctl.hosts.host import Host
from ipexctl.node.common.fix import Fix
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.outcome import BytesMoved, HostFinished, HostResult, Notice, StepStarted, StepTimed
from ipexctl.text import safe_lines
from ipexctl.ui import message_output as messages
from ipexctl.ui.error_output import end_by_error
from ipexctl.ui.progress_view import ProgressView
from ipexctl.ui.results import print_json, show_failures, show_results
from ipexctl.ui.run.plain import PlainRun
from ipexctl.ui.text_table import print_lines, print_sentence, show_table

HOSTILE = "a\x1b[2J\x1b]52;c;aGk=\x07\x9b8m\rb\u202e[red]c[/red]\x1b[8m\x1b[31m\x7f\nforged: ok\n  forged --fix"
FIX = Fix("run `ipexctl logs {run}`", run=HOSTILE)
COLOR = re.compile(r"\x1b\[(?:[0-2]|(?:1;)?3[1-6])m")


def print_results(text: str) -> None:
    results = [HostResult(Host(text, "a"), "ok", text), HostResult(Host("n", text), "failed", text, fix=FIX)]
    show_results(results)
    show_failures(results)


def print_play(text: str) -> None:
    view = PlayView(Output(False, False, 2, False), Options(diff=True, verbose=2))
    failed = TaskResult("failed", text, FIX, {"stdout": text, "stderr": text}, line=text, column=2)
    done = TaskResult("changed", diff=text.replace("\n", "\n+"), message=text)
    report = TaskReport(text, text, "copy", "p:1", {text: done, "n2": failed})
    view.on_play(text, (text,))
    view.on_task(report, is_handler=False)
    view.on_task_done(report, [ItemDone(text, text, done), ItemDone("n2", text, failed)])
    view.on_output(1, "stdout", f"{text}\n")
    view.on_output(1, "stderr", f"{text}\n")
    view.end(PlayReport(text, {text: Counts()}, (report,), 0.0, plays=(text,)), interrupted=False)


def print_progress(text: str) -> None:
    with ProgressView(verbose=True) as view:
        view.watch(Notice(text, warning=True))
        view.watch(StepStarted(text, text))
        view.watch(StepTimed(text, text, 1.0))
        view.watch(BytesMoved(text, text, 1, 2))
        view.watch(HostFinished(text, text, ok=False))


def print_file_error(text: str) -> None:
    error = FileError(text, 3, text, text=text, column=2, fix=FIX)
    error.more = (FileError(text, 4, text),)
    messages.print_user_error(error)


WRITERS: dict[str, Callable[[str], object]] = {
    "table": lambda text: show_table((text, "b"), [(text, text)], notes=[text]),
    "lines": lambda text: print_lines([text]),
    "sentence": print_sentence,
    "message": lambda text: messages.print_message(text, text),
    "fix": lambda text: messages.print_with_fix(text, FIX),
    "refusal": lambda text: messages.print_refusal(text, text),
    "question": messages.ask,
    "call error": lambda text: end_by_error(CallError(text, fix=FIX)),
    "user error": lambda text: end_by_error(UserError(text, fix=text)),
    "pasted line": lambda text: end_by_error(CommandLineError(text, text=text, column=3, fix=FIX)),
    "file": print_file_error,
    "results": print_results,
    "play": print_play,
}


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def check(shown: str, color: re.Pattern[str] = COLOR) -> None:
    assert "a" in shown
    text = color.sub("", shown)
    assert all(line.isprintable() for line in text.split("\n")), repr(shown)
    assert not re.search("^forged", text, re.M), repr(shown)
    assert not (colors := COLOR.findall(shown)) or colors[-1] == "\x1b[0m"


@pytest.mark.parametrize("writer", [*WRITERS, "progress"])
@pytest.mark.parametrize("width", [0, 60])
def test_text_is_harmless_in_a_pipe_and_on_a_terminal(writer: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal() if width else io.StringIO()
    for name, value in (("stdout", stream), ("stderr", stream), ("stdin", io.StringIO("n\n"))):
        monkeypatch.setattr(sys, name, value)
    monkeypatch.setattr(messages, "_terminal_width", lambda: width)
    if writer == "progress":
        print_progress(HOSTILE)
        # of rich: colors, and a bar's own steps back
        check(stream.getvalue(), re.compile(r"\x1b\[(?:[0-9;]*[mAK]|\?25[lh])|\r"))
    else:
        WRITERS[writer](HOSTILE)
        check(stream.getvalue())
        assert width or "\x1b" not in stream.getvalue()


def test_words_between_the_lines_of_ranks_are_harmless(capfd: pytest.CaptureFixture[str]) -> None:
    with PlainRun(Cancel()) as plain:
        plain.watch(Notice(HOSTILE, warning=True))
    messages.write_to_terminal(HOSTILE)
    check(capfd.readouterr().err)


def test_json_has_the_text_and_shows_nothing_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"reason": HOSTILE, "name": "é😀\U000e0001"})
    shown = capsys.readouterr().out
    assert json.loads(shown) == {"reason": HOSTILE, "name": "é😀\U000e0001"}
    assert shown.replace("\n", "").isprintable()


def test_a_line_that_is_not_made_safe_is_found() -> None:
    check(safe_lines([HOSTILE], colors=True))
    for harm in ("a\x1b[2J", "a\x9b", "a\u202e", "a\r", "a\nforged", "a\x1b[8m", "a\x1b[31m"):
        with pytest.raises(AssertionError):
            check(harm)


def test_an_error_that_python_prints_is_harmless() -> None:
    error = CallError(f"a{HOSTILE}", fix=FIX)
    text = "".join(traceback.format_exception(error))
    assert "ipexctl logs" in text
    assert text.replace("\n", "").isprintable()
