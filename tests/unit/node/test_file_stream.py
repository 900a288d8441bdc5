"""The stream of files: what of a header or a request is refused before a byte is read."""

from __future__ import annotations

import hashlib
import io
import json
from typing import Any

import pytest

from ipexctl.node.common.answer import AgentError
from ipexctl.node.files.file_stream import END, FilePart, Wanted, header_line, read_files


@pytest.mark.parametrize(
    ("header", "part"),
    [
        ({"size": 7}, (7, 0, 7)),
        ({"size": 7, "offset": 3}, (7, 3, 4)),
        ({"size": 7, "offset": 3, "length": 2}, (7, 3, 2)),
        ({"size": 7, "offset": 7}, (7, 7, 0)),
        ({"size": 0, "length": 0}, (0, 0, 0)),
    ],
)
def test_bytes_of_a_header_have_a_place_in_their_file(header: dict[str, Any], part: tuple[int, int, int]) -> None:
    assert FilePart.of(header) == part


@pytest.mark.parametrize(
    "header",
    [
        *({}, {"size": -1}, {"size": None}, {"size": True}, {"size": 7.0}, {"size": "7"}),
        *({"size": 7, "offset": 8}, {"size": 7, "offset": -1}, {"size": 7, "offset": None}, {"size": 7, "offset": [3]}),
        *({"size": 7, "length": 8}, {"size": 7, "offset": 3, "length": 5}, {"size": 7, "length": -1}),
    ],
)
def test_bytes_that_are_not_in_their_file_are_refused(header: dict[str, Any]) -> None:
    with pytest.raises(AgentError, match="header of a file"):
        FilePart.of(header)


@pytest.mark.parametrize("wanted", [Wanted("a" * 64, 3), Wanted(0), Wanted(7, 5, "b" * 64)])
def test_request_for_a_file_comes_back_from_json(wanted: Wanted) -> None:
    assert Wanted.of(json.loads(json.dumps(wanted))) == wanted


@pytest.mark.parametrize(
    "row",
    [
        *(None, {}, [], [0], [0, 1], [0, 1, None, 2], "abc"),
        *([None, 0, None], [True, 0, None], [0, -1, None], [0, True, None], [0, 1.5, None], [0, 1, 2], [[0], 0, None]),
    ],
)
def test_malformed_request_for_a_file_is_refused(row: object) -> None:
    with pytest.raises(AgentError, match="request for a file"):
        Wanted.of(row)


def test_content_is_read_only_with_its_hash() -> None:
    sha256 = hashlib.sha256(b"abc").hexdigest()
    header = header_line({"sha256": sha256, "size": 3})
    stream = io.BytesIO(header + b"abc" + header + b"abX" + END + b"not read")
    files = read_files(stream)
    assert next(files).content("REASON") == b"abc"
    with pytest.raises(AgentError, match="REASON"):
        next(files).content("REASON")
    assert list(files) == []
    assert stream.read() == b"not read"
