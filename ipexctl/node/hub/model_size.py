"""Reads which tensors a model on this node has, from the headers of its safetensors. Another account may have written
them: all sizes are bounded, and a damaged file tells nothing."""

from __future__ import annotations

import glob
import os
import stat
from collections import Counter
from typing import Iterator, NamedTuple

from ipexctl.node.common.hub_cache import folder_of, is_repo_id
from ipexctl.node.common.json_records import JsonError, as_object, parse_object

_MOST_FILES, _MOST_BYTES, _MOST_KINDS, _LARGEST = 1000, 64 << 20, 2000, 1 << 50
_BITS = {"F64": 64, "I64": 64, "F32": 32, "BF16": 16, "F16": 16}
"""Others are quantized, and counted in bytes."""


class TensorKind(NamedTuple):
    module: str
    """Last word of the module's name, such as `q_proj`."""
    bits: int
    """Of a value."""
    shape: tuple[int, ...]
    copies: int


def find_tensors(model: str, cache: str) -> tuple[TensorKind, ...]:
    """Of a model in a directory with an absolute path, or in the hub's cache; empty if neither has its safetensors."""
    found: Counter[tuple[str, int, tuple[int, ...]]] = Counter()
    try:
        if not os.path.isabs(model):
            snapshots = os.path.join(cache, folder_of("model", model) if is_repo_id(model) else "-", "snapshots")
            model = max((entry.path for entry in os.scandir(snapshots)), key=os.path.getmtime, default="-")
        files = glob.glob(os.path.join(glob.escape(model), "*.safetensors"))
        for path in sorted(file for file in files if "consolidated" not in file)[:_MOST_FILES]:
            found.update(_tensors(path))
    except (OSError, ValueError):
        return ()
    return tuple(TensorKind(*kind, count) for kind, count in found.most_common(_MOST_KINDS))


def _tensors(path: str) -> Iterator[tuple[str, int, tuple[int, ...]]]:
    """Raises an OSError or a ValueError."""
    with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
        length = int.from_bytes(file.read(8), "little") if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else 0
        if not 0 < length < _MOST_BYTES:
            raise JsonError("it has no header")
        header = parse_object(file.read(length))
    for name in header.keys() - {"__metadata__"}:
        tensor = as_object(header[name])
        shape = tensor.get("shape")
        if not isinstance(shape, list) or not all(type(size) is int and 0 <= size < _LARGEST for size in shape):
            raise JsonError(f"{name} has no shape")
        yield "".join(name.split(".")[-2:-1]), _BITS.get(str(tensor.get("dtype")), 8), tuple(shape)
