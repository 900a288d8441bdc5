"""What a rank that succeeded printed last, as its wrapper reads it and as `run` and `why` say it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ipexctl.node.common.records import Proof, RankStatus, describe_successes
from ipexctl.node.run.rank.rank_hooks import describe, facts_of
from ipexctl.node.run.rank.rank_limits import describe_notes, last_exception

STACK = 'Traceback (most recent call last):\n  File "train.py", line 2, in <module>\n    {}["weights"]\n'


@pytest.mark.parametrize(
    ("output", "found"),
    [
        (f"step 1\n{STACK}KeyError: 'weights'\n", "KeyError: 'weights'"),
        (f"{STACK}torch.serialization.Unpickling: no\n\n", "torch.serialization.Unpickling: no"),
        (f"{STACK}KeyError: 'weights'\ntrained from the start\n", ""),
        (f"{STACK}KeyError: 'weights'\nsaved\n{STACK}ValueError\n", "ValueError"),
        ("ValueError: no traceback\n", ""),
        ("", ""),
    ],
)
def test_the_exception_that_an_output_ends_with(output: str, found: str) -> None:
    assert last_exception(output.encode()) == found


def test_run_and_why_say_it_of_the_first_rank() -> None:
    seen = Proof("exception", "KeyError: 'weights'")
    ranks = [RankStatus(number, "node1", evidence=(seen,)) for number in range(2)]
    assert [*describe_successes(ranks)] == ["rank 0 printed KeyError: 'weights' last, and exited with code 0"]
    assert not [*describe_successes([RankStatus(0, "node1")])]


def test_a_group_of_exceptions_names_its_first() -> None:
    group = type("ExceptionGroup", (Exception,), {"exceptions": (ValueError("bad row 17"), KeyError("x"))})
    said = describe(group("loading failed (2 sub-exceptions)"))
    assert said == "ExceptionGroup: loading failed (2 sub-exceptions), the first ValueError: bad row 17"


LFS = "version https://git-lfs.github.com/spec/v1\n"


def facts(code: str) -> list[tuple[str, str]]:
    """What is said of the exception that a script of this code raises."""
    with pytest.raises((OSError, ValueError, TypeError, AttributeError)) as raised:
        exec(compile(code, "train.py", "exec"), {"json": json, "os": os})
    at = raised.value.__traceback__
    while at is not None and at.tb_frame.f_code.co_filename != "train.py":
        at = at.tb_next
    assert at is not None
    return facts_of(raised.value, at)


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        (LFS, ("lfs", "a.json is a pointer of Git LFS")),
        ("<!DOCTYPE html><html>", ("content", "a.json begins with <!DOCTYPE html>: it is a web page, not the file")),
        ("", ("content", "a.json is empty")),
    ],
)
def test_a_file_that_could_not_be_read_is_named_with_how_it_begins(
    text: str, fact: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.json").write_text(text)
    assert facts("json.load(open('a.json'))") == [("read", "a.json"), fact]
    Path("a.json").write_text("[1")
    assert facts("json.load(open('a.json'))") == [("read", "a.json")]
    assert facts("f = open('a.json')\nraise ValueError('no row')") == []
    assert facts("f = open('a.json')\njson.dump(object(), open('b.json', 'w'))") == []


def test_the_only_open_file_is_named_if_the_error_names_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("names.csv").write_bytes(b"\xe9")
    full = "def save():\n    f = open('/dev/full', 'w')\n    f.write('x')\n    f.flush()\nsave()"
    assert facts(full) == [("used", "/dev/full")]
    rows = "def rows():\n    with open('names.csv', encoding='utf-8') as f: return [line for line in f]\n"
    assert facts(f"{rows}rows()") == [("read", "names.csv")]
    assert facts(f"{rows}other = open('/dev/null')\nrows()") == []


def test_who_made_or_removed_a_file_is_known_by_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("out").mkdir()
    ((made, text),) = facts("os.mkdir('out')")
    assert (made, text.startswith("it was made ")) == ("made", True)
    ((gone, _),) = facts("os.remove('lock')")
    assert gone == "gone"
    assert facts("open('lost/a.txt', 'w')") == [("directory", "lost")]
    assert facts("os.mkdir('/usr')") == [], "older than this process"


def test_what_was_called_with_a_wrong_argument_is_named_by_its_module() -> None:
    assert facts("from pathlib import PurePath\nimport fractions\nfractions.Fraction.limit_denominator(x=1)") == []
    wrong = "import textwrap\ntextwrap.TextWrapper(gpus=0)"
    assert facts(wrong) == [("called", "textwrap")]
    assert facts("import textwrap\ntextwrap.TextWrapper.add") == [("called", "textwrap")]
    assert facts("class T:\n    def __init__(self): pass\nT(gpus=0)") == [("called", "builtins")]


def test_a_group_of_more_ranks_than_the_run_has_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = "def init_process_group(world_size): raise ValueError('timed out')\ninit_process_group("
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert (facts(f"{waits}4)"), facts(f"{waits}2)"), facts(f"{waits}None)")) == ([("group", "4")], [], [])


def test_only_known_facts_are_kept_of_a_rank_s_notes() -> None:
    notes = ["fact read weights.bin", "fact oom-counted the kernel", "child 7 -9", "child 8 1"]
    kept = [(each.kind, each.text) for each in describe_notes(notes)]
    assert kept == [("read", "weights.bin"), ("child", "process 7, which it had started, was ended by SIGKILL")]
