"""Probe outputs as files: of the lab's costumes, by `record.py`, and of real machines, by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

RECORDED = Path(__file__).with_name("recorded")
MACHINES = sorted(file.stem for file in RECORDED.glob("*.json"))
ALL = sorted(file.stem for file in RECORDED.glob("*.txt"))


def recorded(name: str) -> str:
    return (RECORDED / f"{name}.txt").read_text(encoding="utf-8")


def differences(expected: Any, found: Any, at: str = "facts") -> list[str]:
    """Where `found` lacks something of `expected`; what it has beyond that is its own affair."""
    if isinstance(expected, dict) and isinstance(found, dict):
        return [line for key in expected for line in differences(expected[key], found.get(key), f"{at}.{key}")]
    if isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        pairs = enumerate(zip(expected, found, strict=True))
        return [line for index, (a, b) in pairs for line in differences(a, b, f"{at}[{index}]")]
    return [] if expected == found else [f"{at}: expected {expected!r}, found {found!r}"]
