"""Files that a host sends in a fetch: only complete files that were asked for are written."""

from __future__ import annotations

import contextlib
import json
import zlib
from pathlib import Path
from typing import Any

import pytest

from ipexctl.hosts.names import quoted
from ipexctl.jobs.fetch.destination import Destination
from ipexctl.jobs.fetch.manifest import Requested
from ipexctl.jobs.fetch.receiver import Receiver
from ipexctl.remote.outcome import HostError
from ipexctl.remote.session import StdinQueue


def heard(root: Path, *lines: bytes, path: str = "./") -> Receiver:
    giving = Receiver(Requested(path), StdinQueue(), lambda _: (Destination(str(root)), None), lambda *_: None)
    with contextlib.ExitStack() as stack:
        for line in lines:
            giving.sink("stdout", line)
            if giving.destination is not None and line == LISTED:
                stack.enter_context(giving.destination)
    return giving


def entry(name: object, number: int = 0, kind: str = "f", **more: Any) -> bytes:
    said = {"event": "entry", "i": number, "n": name, "t": kind, "m": 0o644, "s": 3, "mt": 1, "to": "", **more}
    return json.dumps(said).encode() + b"\n"


@pytest.mark.parametrize("event", ["entry", "note"])
def test_a_list_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, event: str) -> None:
    monkeypatch.setattr("ipexctl.jobs.fetch.receiver._MOST_BYTES", 10_000)
    notes = (b'{"event": "note", "n": "a", "reason": "b"}\n' for _ in range(1000))
    entries = (entry(f"file{number}", number) for number in range(1000))
    with pytest.raises(HostError, match="list of files"):
        heard(tmp_path / "out", *(entries if event == "entry" else notes))


LISTED = b'{"event": "listed", "from": "/x", "single": false}\n'


@pytest.mark.parametrize(
    "name",
    ["../out", "/etc/passwd", "a/../../b", "..", "", ".", "a//b", "a/", "nul\0", "\ud800", "x" * 5000, None, 7, ["a"]],
)
def test_a_name_that_leads_elsewhere_is_refused_with_all_that_host_says(tmp_path: Path, name: object) -> None:
    with pytest.raises(HostError):
        heard(tmp_path / "out", entry("good"), entry(name, 1), LISTED)
    assert list(tmp_path.iterdir()) == []


def test_a_name_nobody_asked_for_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    for name in ("train.py", ".git/hooks/post-checkout", "\x1b[2Jw.pt", "w.pt\n"):
        with pytest.raises(HostError) as caught:
            heard(tmp_path / "out", entry("w.pt"), entry(name, 1), LISTED, path="ck/w.pt")
        assert quoted(name) in caught.value.reason
        assert caught.value.reason.isprintable()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "more",
    [
        [entry("way/w.pt", 1)],
        [entry("way/sub", 1, "d")],
        [entry("way", 1, "d"), entry("way/w.pt", 2)],
        [entry("way", 1)],
    ],
    ids=["file", "directory", "replaced", "twice"],
)
def test_nothing_is_written_through_a_link_that_the_host_sent_before(tmp_path: Path, more: list[bytes]) -> None:
    (tmp_path / "out/elsewhere").mkdir(parents=True)
    with pytest.raises(HostError):
        heard(tmp_path / "out", entry("way", 0, "l", to="elsewhere"), *more, LISTED)
    assert list(tmp_path.rglob("*")) == [tmp_path / "out", tmp_path / "out/elsewhere"]


def file_said(at: int = 0, **more: Any) -> bytes:
    said = {"event": "file", "i": 0, "at": at, "s": 3, "m": 0o644, "mt": 1, **more}
    return json.dumps(said).encode() + b"\n"


def whole(content: bytes) -> bytes:
    return b"\0\0\0\0" + json.dumps({"event": "whole", "crc": zlib.crc32(content), "changed": False}).encode() + b"\n"


@pytest.mark.parametrize(
    "lines",
    [
        [file_said(), b"\0\0\0\4abcd"],
        [file_said(at=2)],
        [file_said(), b"\xff\xff\xff\xff"],
        [file_said(), b"\0\0\0\3abc", whole(b"abc"), file_said()],
        [file_said(i=1)],
        [entry("late", 1)],
        [LISTED],
        [b"not json\n"],
        [b"[]\n"],
        [b"x" * (2 << 20)],
        [file_said(s=10**12)],
        [file_said(s=-1)],
        [file_said(s=1e400)],
        [file_said(mt=10**40)],
        [file_said(i=[0])],
        [b'{"event": "file"}\n'],
        [b'{"event": "lost", "i": {}}\n'],
        [b"[" * 100_000 + b"\n"],
        [file_said(n=4, crc=0, changed=False), b"abcd"],
        [file_said(n=-1)],
        [file_said(n=1 << 30)],
        [file_said(n=[3])],
    ],
    ids=[
        *("more", "elsewhere", "huge", "twice", "unasked", "late", "listed-twice", "text", "list", "endless"),
        *("grown", "negative", "infinite", "never", "index", "empty", "lost", "deep"),
        *("small-more", "small-negative", "small-huge", "small-list"),
    ],
)
def test_an_answer_that_makes_no_sense_ends_the_call(tmp_path: Path, lines: list[bytes]) -> None:
    with pytest.raises(HostError):
        heard(tmp_path, entry("w.pt"), LISTED, *lines)


def test_a_small_file_comes_in_one_piece_and_is_checked(tmp_path: Path) -> None:
    small = file_said(n=3, crc=zlib.crc32(b"abc"), changed=False)
    giving = heard(tmp_path, entry("w.pt"), LISTED, small, b"abX")
    assert [each.name for each in giving.failed] == ["w.pt"]
    giving = heard(tmp_path, entry("w.pt"), LISTED, file_said(n=2, crc=zlib.crc32(b"ab"), changed=True), b"ab")
    assert [each.name for each in giving.failed] == ["w.pt"]
    assert not (tmp_path / "w.pt").exists()
    giving = heard(tmp_path, entry("w.pt"), entry("e", 1), LISTED, small, b"a", b"bc" + file_said(i=1, s=0, n=0, crc=0))
    assert giving.brought == ["w.pt", "e"]
    assert [(tmp_path / name).read_bytes() for name in ("w.pt", "e")] == [b"abc", b""]


def test_bytes_that_are_not_what_was_sent_get_no_name(tmp_path: Path) -> None:
    giving = heard(tmp_path, entry("w.pt"), LISTED, file_said(), b"\0\0\0\3abX", whole(b"abc"))
    assert [each.name for each in giving.failed] == ["w.pt"]
    assert list(tmp_path.iterdir()) == []
    giving = heard(tmp_path, entry("w.pt"), LISTED, file_said(), b"\0\0", b"\0\3a", b"bc" + whole(b"abc"))
    assert giving.brought == ["w.pt"]
    assert (tmp_path / "w.pt").read_bytes() == b"abc"
