"""The source of a package that is built: where it is written."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from ipexctl.node.env.wheel_build import SourceArchive, download

if TYPE_CHECKING:
    from ipexctl.node.common.http import HttpClient


@pytest.mark.parametrize("name", ["..%2F..%2Fescaped.tar.gz", "%2Ftmp%2Fescaped.tar.gz", "pkg-1.tar.gz"])
def test_a_source_is_written_into_its_own_directory_whatever_an_index_calls_it(name: str, tmp_path: Path) -> None:
    class Client:
        def open(self, url: str, timeout: float) -> io.BytesIO:
            return io.BytesIO(b"source")

    place = tmp_path / "a/b"
    place.mkdir(parents=True)
    source = SourceArchive("pkg", f"https://index.example/{name}", hashlib.sha256(b"source").hexdigest())
    path = download(cast("HttpClient", Client()), source, place)
    assert path.parent == place
    assert [file for file in tmp_path.rglob("*") if file.is_file()] == [path]
