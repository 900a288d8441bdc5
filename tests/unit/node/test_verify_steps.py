"""The module that a verification imports for a package, and the directory in which a source is built."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, cast

import pytest

from ipexctl.node.env import verify_steps
from ipexctl.node.env.lock import SourceArchive, download

if TYPE_CHECKING:
    from ipexctl.node.common.http import HttpClient


@pytest.mark.parametrize(
    ("package", "files", "module"),
    [
        (
            "hydra-core",
            "hydra/__init__.py hydra/core/a.py hydra_plugins/x.py tests/__init__.py tests/a.py",
            "hydra",
        ),
        ("PyYAML", "_yaml/__init__.py yaml/__init__.py yaml/a.py ../../../bin/x PyYAML-6.dist-info/RECORD", "yaml"),
        ("black", "blib2to3/__init__.py blib2to3/a.py blib2to3/b.py black/__init__.py", "black"),
        ("protobuf", "google/protobuf/__init__.py google/protobuf/any.py", "google.protobuf"),
        ("six", "six.py", "six"),
        ("fast", "fast.cpython-311-x86_64-linux-gnu.so", "fast"),
        ("impi-rt", "../../libmpi.so.12 impi_rt-1.dist-info/RECORD", None),
        ("types-six", "six-stubs/__init__.pyi", None),
    ],
)
def test_module_of_a_package(monkeypatch: pytest.MonkeyPatch, package: str, files: str, module: str | None) -> None:
    paths = [PurePosixPath(file) for file in files.split()]
    monkeypatch.setattr("importlib.metadata.files", lambda _: paths)
    assert verify_steps.module_of(package) == module


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
