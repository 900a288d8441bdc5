"""How large a model is, from the headers of its safetensors, which anybody may have written."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from ipexctl.node.hub.model_size import TensorKind, find_model, find_tensors, has_data

LAYERS = {
    "model.embed_tokens.weight": ("BF16", [100, 8]),
    "model.layers.0.q_proj.weight": ("BF16", [8, 8]),
    "model.layers.1.q_proj.weight": ("BF16", [8, 8]),
    "model.norm.weight": ("F32", [8]),
}

KINDS = [
    TensorKind("embed_tokens", 16, (100, 8), 1),
    TensorKind("norm", 32, (8,), 1),
    TensorKind("q_proj", 16, (8, 8), 2),
]


def write_model(directory: Path, tensors: dict[str, Any], name: str = "model.safetensors") -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    header = {key: {"dtype": dtype, "shape": shape, "data_offsets": [0, 0]} for key, (dtype, shape) in tensors.items()}
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    (directory / name).write_bytes(len(text).to_bytes(8, "little") + text)
    return directory


def test_tensors_are_those_of_all_files(tmp_path: Path) -> None:
    first, *others = LAYERS.items()
    write_model(tmp_path / "m", dict([first]), "model-00001-of-00002.safetensors")
    write_model(tmp_path / "m", dict(others), "model-00002-of-00002.safetensors")
    write_model(tmp_path / "m", LAYERS, "consolidated.safetensors")  # the same once more, in another form
    assert sorted(find_tensors(str(tmp_path / "m"))) == KINDS


def test_a_pushed_model_is_found_by_its_name(tmp_path: Path) -> None:
    snapshot = write_model(tmp_path / "models--org--tiny" / "snapshots" / ("a" * 40), LAYERS)
    os.replace(snapshot / "model.safetensors", tmp_path / "blob")
    (snapshot / "model.safetensors").symlink_to(tmp_path / "blob")
    assert sorted(find_tensors(find_model("org/tiny", str(tmp_path), []))) == KINDS
    for other in ("org/none", "../org/tiny", "/none", "", "a\0b", "."):
        assert find_model(other, str(tmp_path), []) == ""
    assert find_tensors("") == ()


def test_a_path_where_the_ranks_start_comes_before_the_cache(tmp_path: Path) -> None:
    (tmp_path / "models--tiny" / "snapshots" / "a").mkdir(parents=True)
    assert find_model("tiny", str(tmp_path), [str(tmp_path / "tree")]).endswith("models--tiny/snapshots/a")
    (tmp_path / "tree" / "tiny").mkdir(parents=True)
    assert find_model("tiny", str(tmp_path), [str(tmp_path / "tree")]) == str(tmp_path / "tree" / "tiny")
    assert find_model(str(tmp_path / "tree"), "", []) == str(tmp_path / "tree")


@pytest.mark.parametrize(
    ("name", "is_there"),
    [("data", True), ("Org/SomeSet", True), ("org/other", False), ("a\0b", False), ("nodata", False)],
)
def test_data_is_a_path_or_was_prepared(tmp_path: Path, name: str, is_there: bool) -> None:
    for path in ("tree/data", "hub", "datasets/Org___some_set"):
        (tmp_path / path).mkdir(parents=True)
    assert has_data(name, str(tmp_path / "hub"), [str(tmp_path / "tree")]) is is_there


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff" * 8,
        (1 << 40).to_bytes(8, "little") + b"{}",
        (2).to_bytes(8, "little") + b"[]",
        (2).to_bytes(8, "little") + b"{}",
        *(
            len(text).to_bytes(8, "little") + text
            for text in (
                b'{"a": 1}',
                b'{"a": {"dtype": "F32"}}',
                b'{"a": {"dtype": [], "shape": [-1]}}',
                b'{"a": {"dtype": "F32", "shape": [true]}}',
                b'{"a": {"dtype": "F32", "shape": [1e9]}}',
                b'{"a": {"dtype": "F32", "shape": [1125899906842624]}}',
                b'{"a": ' + b"[" * 5000,
            )
        ),
    ],
)
def test_a_damaged_file_tells_nothing(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(data)
    assert find_tensors(str(tmp_path)) == ()


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.safetensors")
    assert find_tensors(str(tmp_path)) == ()
