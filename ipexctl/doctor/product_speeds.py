"""Keep a file with the speed of fp32 matrix products on each machine, also with bf16 inputs, as its last `doctor
--smoke` without other load measured it.

It is keyed by `Facts.hardware`, because hosts of two clusters may share a name.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from ipexctl.found_files import state_directory
from ipexctl.node.common.answer import AgentError
from ipexctl.node.common.files import make_private_directory, read_json, write_json_atomically
from ipexctl.node.common.records import as_dict, as_number


class ProductSpeeds(NamedTuple):
    """Operations per second of one core."""

    core_fp32: float
    core_rounded: float
    """With bf16 inputs."""


def _path() -> Path:
    return state_directory() / "product-speeds.json"


def remember(speeds: Mapping[str, ProductSpeeds]) -> None:
    """Add these speeds, by hardware, to the file. Failures to write are ignored, because only a later sentence then
    lacks the numbers."""
    if speeds:
        path, documents = _path(), {hardware: speed._asdict() for hardware, speed in speeds.items() if hardware}
        with contextlib.suppress(OSError, AgentError):
            make_private_directory(path.parent)
            write_json_atomically(path, read_json(path) | documents)


def product_speeds() -> dict[str, ProductSpeeds]:
    """Return hardware → speeds, as remembered; empty if nothing was. Damaged entries are left out."""
    known = {}
    for hardware, entry in read_json(_path()).items():
        fp32, rounded = (as_number(as_dict(entry).get(field)) for field in ProductSpeeds._fields)
        if fp32 and rounded:
            known[hardware] = ProductSpeeds(fp32, rounded)
    return known
