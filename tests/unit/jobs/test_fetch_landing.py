"""What a host says while it gives files is not trusted: nothing lands but where it belongs, and whole."""

from __future__ import annotations

import json
import zlib
from typing import TYPE_CHECKING, Any

import pytest

from ipexctl.jobs.fetch.giving import Giving
from ipexctl.jobs.fetch.landing import Landing
from ipexctl.remote.outcome import HostError
from ipexctl.remote.told import Told

if TYPE_CHECKING:
    from pathlib import Path


def heard(root: Path, *lines: bytes) -> Giving:
    landing = Landing(str(root))
    giving = Giving(Told(), lambda _: (landing, None), lambda _: None)
    with landing:
        for line in lines:
            giving.sink("stdout", line)
    return giving


def entry(name: object, number: int = 0, kind: str = "f", **more: Any) -> bytes:
    said = {"event": "entry", "i": number, "n": name, "t": kind, "m": 0o644, "s": 3, "mt": 1, "to": "", **more}
    return json.dumps(said).encode() + b"\n"


LISTED = b'{"event": "listed", "from": "/x", "single": false}\n'


@pytest.mark.parametrize(
    "name", ["../out", "/etc/passwd", "a/../../b", "..", "", ".", "a//b", "a/", "nul\0", None, 7, ["a"]]
)
def test_a_name_that_leads_elsewhere_is_refused_with_all_that_host_says(tmp_path: Path, name: object) -> None:
    with pytest.raises(HostError):
        heard(tmp_path / "out", entry("good"), entry(name, 1), LISTED)
    assert sorted(tmp_path.rglob("*")) == [tmp_path / "out"]


def test_a_link_a_host_sends_is_no_way_out(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    lines = [entry("way", 0, "l", to="../elsewhere"), entry("way/w.pt", 1), entry("way/sub", 2, "d"), LISTED]
    giving = heard(tmp_path / "out", *lines)
    assert {each.name for each in giving.failed} == {"way/w.pt", "way/sub"}
    assert list((tmp_path / "elsewhere").iterdir()) == []


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
    ],
    ids=["more", "elsewhere", "huge", "twice", "unasked", "late", "listed-twice", "text", "list", "endless"],
)
def test_an_answer_that_makes_no_sense_ends_the_call(tmp_path: Path, lines: list[bytes]) -> None:
    with pytest.raises(HostError):
        heard(tmp_path, entry("w.pt"), LISTED, *lines)


def test_bytes_that_are_not_what_was_sent_get_no_name(tmp_path: Path) -> None:
    giving = heard(tmp_path, entry("w.pt"), LISTED, file_said(), b"\0\0\0\3abX", whole(b"abc"))
    assert [each.reason for each in giving.failed] == ["what arrived isn't what was sent; fetch it again"]
    assert list(tmp_path.iterdir()) == []
    giving = heard(tmp_path, entry("w.pt"), LISTED, file_said(), b"\0\0", b"\0\3a", b"bc" + whole(b"abc"))
    assert giving.brought == ["w.pt"]
    assert (tmp_path / "w.pt").read_bytes() == b"abc"
