"""Finds a model or data set by its name on this machine, and reads which tensors a model has, from the headers of its
safetensors. Another account may have written them: all sizes are bounded, and a damaged file tells nothing."""

from __future__ import annotations

import glob
import os
import re
import stat
from collections import Counter
from typing import Iterator, NamedTuple, Sequence

from ipexctl.node.common.hub_cache import folder_of, is_repo_id
from ipexctl.node.common.json_records import JsonError, as_object, parse_object

_MOST_FILES, _MOST_BYTES, _LONGEST, _MOST_KINDS, _LARGEST = 1000, 32 << 20, 8 << 20, 2000, 1 << 50
_BITS = {"F64": 64, "I64": 64, "F32": 32, "BF16": 16, "F16": 16}
"""Others are quantized, and counted in bytes."""


class TensorKind(NamedTuple):
    module: str
    """Last word of the module's name, such as `q_proj`."""
    bits: int
    """Of a value."""
    shape: tuple[int, ...]
    copies: int


def find_model(name: str, cache: str, directories: Sequence[str]) -> str:
    """Path of a model: in one of these directories, at its own absolute path, or in the hub's cache; or empty."""
    try:
        snapshots = os.path.join(cache, folder_of("model", name) if is_repo_id(name) else "-", "snapshots")
        return _path_in(name, directories) or max(glob.glob(f"{glob.escape(snapshots)}/*"), key=os.path.getmtime)
    except (OSError, ValueError):  # max of nothing, too
        return ""


def has_data(name: str, cache: str, directories: Sequence[str]) -> bool:
    """True if a data set is a path, or if the datasets library has prepared it here: offline, it loads no other."""
    prepared = glob.glob(f"{glob.escape(os.path.dirname(cache))}/datasets/*")
    names = (name, *map(os.path.basename, prepared))  # org/SomeName is prepared in org___some_name
    wanted, *words = (re.sub("[_/]", "", each).lower() for each in names)
    return wanted in words or bool(_path_in(name, directories))


def _path_in(name: str, directories: Sequence[str]) -> str:
    paths = [os.path.join(directory, name) for directory in (["/"] if os.path.isabs(name) else directories)]
    return next((path for path in paths if name and "\0" not in name and os.path.exists(path)), "")


def find_tensors(model: str) -> tuple[TensorKind, ...]:
    """Of the model in this directory; empty if it has no safetensors."""
    found: Counter[tuple[str, int, tuple[int, ...]]] = Counter()
    files = glob.glob(os.path.join(glob.escape(model), "*.safetensors")) if model else []
    left = _MOST_BYTES
    try:
        for path in sorted(file for file in files if "consolidated" not in file)[:_MOST_FILES]:
            text = _header(path, min(left, _LONGEST))
            found.update(_tensors(text))
            left -= len(text)
    except (OSError, ValueError):
        return ()
    return tuple(TensorKind(*kind, count) for kind, count in found.most_common(_MOST_KINDS))


def _header(path: str, most: int) -> bytes:
    """Raises an OSError, or a ValueError if it has none of at most this length."""
    with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
        length = int.from_bytes(file.read(8), "little") if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else 0
        if not 0 < length < most:
            raise JsonError("it has no header")
        return file.read(length)


def _tensors(text: bytes) -> Iterator[tuple[str, int, tuple[int, ...]]]:
    """Raises a ValueError."""
    header = parse_object(text)
    for name in header.keys() - {"__metadata__"}:
        tensor = as_object(header[name])
        shape = tensor.get("shape")
        if not isinstance(shape, list) or not all(type(size) is int and 0 <= size < _LARGEST for size in shape):
            raise JsonError(f"{name} has no shape")
        yield "".join(name.split(".")[-2:-1]), _BITS.get(str(tensor.get("dtype")), 8), tuple(shape)
