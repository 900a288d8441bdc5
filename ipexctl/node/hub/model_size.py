"""Find a model or a data set by its name on this machine, and read which tensors a model has.

The tensors are in the headers of its safetensors files; no weights are read. Another account may have written the
files: all sizes are bounded, and of a model with a damaged file nothing is told.
"""

from __future__ import annotations

import glob
import os
import re
import stat
from collections import Counter
from typing import Iterator, NamedTuple, Sequence

from ipexctl.node.common.hub_cache import folder_of, is_repo_id
from ipexctl.node.common.json_records import JsonError, as_object, parse_object

_MOST_FILES = 1000
_MOST_BYTES, _LONGEST_HEADER = 32 << 20, 8 << 20
"""Limits on the headers of all files, and of one."""
_MOST_KINDS = 2000
_LARGEST_DIMENSION = 1 << 50
_BITS = {"F64": 64, "I64": 64, "F32": 32, "BF16": 16, "F16": 16}
"""Type of a tensor → bits of a value. Other types are quantized, and counted as 8 bits."""


class TensorKind(NamedTuple):
    """Tensors of a model that are alike."""

    module: str
    """Last word of the module's name, such as `q_proj`."""
    bits: int
    """Bits of a value."""
    shape: tuple[int, ...]
    copies: int
    """How many tensors of the model are of this kind."""


def find_model(name: str, cache: str, directories: Sequence[str]) -> str:
    """Return the path of a model; empty if it is not here.

    `name`: a path, looked for below `directories` unless it is absolute; else an id, of which the newest snapshot in
    the hub's `cache` is taken.
    """
    try:
        snapshots = os.path.join(cache, folder_of("model", name) if is_repo_id(name) else "-", "snapshots")
        return _path_in(name, directories) or max(glob.glob(f"{glob.escape(snapshots)}/*"), key=os.path.getmtime)
    except (OSError, ValueError):  # max of nothing, too
        return ""


def has_data(name: str, cache: str, directories: Sequence[str]) -> bool:
    """True if a data set is a path, or if the datasets library has prepared it here: offline, it loads no other."""
    prepared = glob.glob(f"{glob.escape(os.path.dirname(cache))}/datasets/*")

    def simplify(name: str) -> str:  # org/SomeName is prepared in org___some_name
        return re.sub("[_/]", "", name).lower()

    is_prepared = simplify(name) in [simplify(os.path.basename(path)) for path in prepared]
    return is_prepared or bool(_path_in(name, directories))


def _path_in(name: str, directories: Sequence[str]) -> str:
    """Return the first existing path of this name, below a directory or absolute; empty if there is none."""
    if not name or "\0" in name:
        return ""
    paths = [os.path.join(directory, name) for directory in (["/"] if os.path.isabs(name) else directories)]
    return next((path for path in paths if os.path.exists(path)), "")


def find_tensors(model: str) -> tuple[TensorKind, ...]:
    """Return the kinds of tensors of the model in this directory, the most frequent first.

    Empty if `model` is empty, if it has no safetensors, or if one of them can't be read.
    """
    counts: Counter[tuple[str, int, tuple[int, ...]]] = Counter()
    files = glob.glob(os.path.join(glob.escape(model), "*.safetensors")) if model else []
    left = _MOST_BYTES
    try:
        # `consolidated.safetensors` has the same weights once more.
        for path in sorted(file for file in files if "consolidated" not in file)[:_MOST_FILES]:
            text = _header(path, min(left, _LONGEST_HEADER))
            counts.update(_tensors(text))
            left -= len(text)
    except (OSError, ValueError):
        return ()
    return tuple(TensorKind(*kind, count) for kind, count in counts.most_common(_MOST_KINDS))


def _header(path: str, most: int) -> bytes:
    """Return the JSON at the beginning of a safetensors file.

    Raises an OSError, or a ValueError if the file has no header of less than `most` bytes.
    """
    with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
        length = int.from_bytes(file.read(8), "little") if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else 0
        if not 0 < length < most:
            raise JsonError("it has no header")
        return file.read(length)


def _tensors(text: bytes) -> Iterator[tuple[str, int, tuple[int, ...]]]:
    """Yield each tensor's module, bits and shape, from a header. Raises a ValueError if it is damaged."""
    header = parse_object(text)
    for name in header.keys() - {"__metadata__"}:
        tensor = as_object(header[name])
        shape = tensor.get("shape")
        if not isinstance(shape, list) or not all(map(_is_dimension, shape)):
            raise JsonError(f"{name} has no shape")
        yield "".join(name.split(".")[-2:-1]), _BITS.get(str(tensor.get("dtype")), 8), tuple(shape)


def _is_dimension(size: object) -> bool:
    return type(size) is int and 0 <= size < _LARGEST_DIMENSION
