"""What of IPEX's ways is in a project, and how each line reads without them. Pure but for reading the files.

What can't be said safely by a line alone is shown and left: it is a person's to decide.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SUFFIXES: Final = frozenset({".py", ".sh", ".yaml", ".yml", ".json", ".txt", ".toml", ".cfg", ".md"})
_SKIPPED: Final = frozenset({".git", ".hg", ".venv", "venv", "node_modules", "__pycache__", ".ipexctl", ".tox"})
_LARGEST: Final = 2_000_000


@dataclass(frozen=True, slots=True)
class Found:
    """One line that speaks of IPEX or oneCCL's bindings."""

    path: str
    line: int
    text: str
    what: str
    new: str | None = None
    """The line as it should be; empty: it goes; None: that is for a person to say."""


@dataclass(frozen=True, slots=True)
class _Rule:
    pattern: re.Pattern[str]
    what: str
    replacement: str | None = None
    suffixes: frozenset[str] = SUFFIXES


_PY: Final = frozenset({".py"})
_WORDS: Final = frozenset({".py", ".sh", ".txt", ".md"})
_CONFIG: Final = frozenset({".yaml", ".yml", ".json"})
RULES: Final = (
    _Rule(
        re.compile(r"^\s*import intel_extension_for_pytorch\b.*$"),
        "imports IPEX: what it had is in torch itself",
        "",
        _PY,
    ),
    _Rule(
        re.compile(r"^\s*from intel_extension_for_pytorch\b.*$"),
        "imports IPEX: what it had is in torch itself",
        None,
        _PY,
    ),
    _Rule(
        re.compile(r"^\s*import (oneccl_bindings_for_pytorch|torch_ccl)\b.*$"),
        "imports oneCCL's bindings: torch's own gloo serves CPUs",
        "",
        _PY,
    ),
    _Rule(
        re.compile(r"^(\s*)(\w+)\s*,\s*\w+\s*=\s*ipex\.optimize\(.*$"),
        "ipex.optimize: leave it out; torch.compile(model) does what it did",
        None,
        _PY,
    ),
    _Rule(re.compile(r"\bipex\.\w+"), "uses IPEX", None, _PY),
    _Rule(
        re.compile(r"(init_process_group\(\s*(?:backend\s*=\s*)?)([\"'])ccl\2"),
        "the backend ccl: gloo, which torch has",
        r"\1\2gloo\2",
        _PY,
    ),
    _Rule(re.compile(r"\s--ddp_backend[ =]ccl\b"), "--ddp_backend ccl: gloo", " --ddp_backend gloo", _WORDS),
    _Rule(re.compile(r"([\"']?ddp_backend[\"']?\s*[:=]\s*[\"']?)ccl\b"), "ddp_backend ccl: gloo", r"\1gloo"),
    _Rule(re.compile(r"\s--use_ipex\b(?![ =](?:False|false))"), "--use_ipex: no longer an option", "", _WORDS),
    _Rule(re.compile(r"^\s*[\"']?use_ipex[\"']?\s*:\s*\w+,?\s*$"), "use_ipex: no longer an option", "", _CONFIG),
    _Rule(re.compile(r"\buse_ipex\s*=\s*\w+\s*,\s*"), "use_ipex: no longer an option", "", _PY),
    _Rule(re.compile(r"\buse_ipex\s*=\s*\w+"), "use_ipex: no longer an option", None, _PY),
    _Rule(re.compile(r"\s--no_cuda\b"), "--no_cuda is --use_cpu today", " --use_cpu", _WORDS),
    _Rule(re.compile(r"\bno_cuda\s*=\s*"), "no_cuda is use_cpu today", "use_cpu=", _PY),
    _Rule(
        re.compile(r"^\s*mpirun_ccl\s*:.*$"),
        "mpirun_ccl: without the bindings there are no workers of theirs",
        "",
        _CONFIG,
    ),
    _Rule(
        re.compile(r"^(\s*)(ipex_fusion_enabled|ipex_enabled|ipex)\s*:\s*(true|True)\s*$"),
        "accelerate's ipex: false",
        r"\1\2: false",
        _CONFIG,
    ),
    _Rule(
        re.compile(r"^\s*(intel[-_]extension[-_]for[-_]pytorch|oneccl[-_]bind[-_]pt)\b.*$", re.IGNORECASE),
        "a package that is no longer made",
        "",
        frozenset({".txt"}),
    ),
    _Rule(
        re.compile(r"intel[-_]extension[-_]for[-_]pytorch|oneccl[-_]bind[-_]pt", re.IGNORECASE),
        "names a package that is no longer made",
        None,
        frozenset({".toml", ".cfg", ".sh"}),
    ),
)


def scan(root: Path) -> tuple[Found, ...]:
    """Every line of the project that has to change, in the order of the files."""
    found: list[Found] = []
    for path in _files(root):
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        found += scan_text(text, str(path.relative_to(root)), path.suffix)
    return tuple(found)


def scan_text(text: str, name: str, suffix: str) -> list[Found]:
    found = []
    for number, line in enumerate(text.split("\n"), 1):
        new, said, open_questions = line, [], False
        for rule in RULES:
            if suffix not in rule.suffixes or not rule.pattern.search(new):
                continue
            said.append(rule.what)
            if rule.replacement is None:
                open_questions = True
                break
            new = rule.pattern.sub(rule.replacement, new)
        if said:
            shown = None if open_questions else new if new.strip() else ""
            found.append(Found(name, number, line, "; ".join(said), shown))
    if any(each.new is None for each in found):
        # Whoever still says ipex.something needs the import until that is decided.
        found = [replace(each, new=None) if each.what.startswith("imports") else each for each in found]
    return found


def applied(text: str, found: list[Found]) -> str:
    """The text with the safe edits made; a line that an edit leaves empty goes."""
    edits = {each.line: each.new for each in found if each.new is not None}
    lines = text.split("\n")
    kept = []
    for number, line in enumerate(lines, 1):
        new = edits.get(number, line)
        if number not in edits or new:
            kept.append(line if number not in edits else str(new))
    return "\n".join(kept)


def _files(root: Path) -> Iterator[Path]:
    waiting = [root]
    while waiting:
        directory = waiting.pop(0)
        for path in sorted(directory.iterdir()):
            if path.is_symlink():
                continue
            if path.is_dir():
                if path.name not in _SKIPPED:
                    waiting.append(path)
            elif path.suffix in SUFFIXES and path.stat().st_size <= _LARGEST:
                yield path
