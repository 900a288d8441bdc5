"""The module that a verification imports for a package, by the list of its files."""

from __future__ import annotations

from pathlib import PurePosixPath

import pytest

from ipexctl.node.env import verify_steps


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
