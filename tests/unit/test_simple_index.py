"""The tests' own index behaves as real ones do, also where they misbehave."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from typing import TYPE_CHECKING

import pytest

from simple_index import SimpleIndex

if TYPE_CHECKING:
    from pathlib import Path

NAME = "torch-2.8.0-py3-none-any.whl"
DATA = bytes(range(256)) * 40


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / NAME).write_bytes(DATA)
    return tmp_path


def got(url: str, **headers: str) -> bytes:
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=5) as answer:
        return bytes(answer.read())


def test_files_and_parts_of_files_are_counted(place: Path) -> None:
    with SimpleIndex(place) as index:
        assert got(index.file_url(NAME)) == DATA
        assert got(index.file_url(NAME), Range="bytes=100-199") == DATA[100:200]
        assert got(index.file_url(NAME), Range="bytes=-7") == DATA[-7:]
        assert (index.bytes[NAME], index.asked(NAME)) == (len(DATA) + 107, 3)


def test_a_connection_cut_halfway_is_mended_after_some_times(place: Path) -> None:
    with SimpleIndex(place, broken_at={NAME: 1000}, breaks=1) as index:
        with pytest.raises(http.client.IncompleteRead) as caught:
            got(index.file_url(NAME))
        assert len(caught.value.partial) == 1000
        assert got(index.file_url(NAME), Range="bytes=1000-") == DATA[1000:]


def test_a_corrupt_file_has_its_size_and_other_bytes(place: Path) -> None:
    with SimpleIndex(place, corrupt={NAME}) as index:
        sent = got(index.file_url(NAME))
        assert len(sent) == len(DATA)
        assert sent != DATA


def test_an_error_of_one_file_is_its_alone(place: Path) -> None:
    with SimpleIndex(place, missing={NAME}) as index:
        assert NAME.encode() in got(f"{index.url}/torch/")
        with pytest.raises(urllib.error.HTTPError):
            got(index.file_url(NAME))
