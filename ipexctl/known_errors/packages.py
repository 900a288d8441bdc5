"""Which package has a module: `packages.txt` has those whose names are known to belong together."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path


@cache
def known_packages() -> Mapping[str, tuple[str, ...]]:
    """Module → the requirement of its package, then of others that have it, too."""
    lines = Path(__file__).with_name("packages.txt").read_text(encoding="utf-8").splitlines()
    entries = [line.split() for line in lines if not line.startswith("#")]
    return {module: tuple(packages) or (module.replace("_", "-"),) for module, *packages in entries}
