"""Finds the file in which a project names its packages, for `run --install` and for hints. If there are two, none is
used, because they may disagree. Avoids slow imports, because it runs at each start of a run."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Final, NamedTuple

from ipexctl.file_reader import REQUIREMENTS, decoded, read_regular
from ipexctl.found_files import TomlError, parse_toml
from ipexctl.node.env.check import normalize

_PYPROJECT, _UV_LOCK = "pyproject.toml", "uv.lock"
_WORD: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class OwnRequirements(NamedTuple):
    path: Path
    words: frozenset[str]
    """Every word of the file that may be a package name, normalized."""

    @property
    def read_files(self) -> tuple[Path, ...]:
        return (self.path, *([self.path.with_name(_PYPROJECT)] if self.path.name == _UV_LOCK else []))

    def names_all(self, packages: list[str]) -> bool:
        return all(normalize(package) in self.words for package in packages)


def find_own_requirements(root: Path) -> OwnRequirements | None:
    """The project's file of requirements; None if there is no such file, or more than one."""
    pyproject, lock = _text(root / _PYPROJECT), root / _UV_LOCK
    found = {
        root / "requirements.txt": _text(root / "requirements.txt"),
        lock if lock.is_file() else root / _PYPROJECT: pyproject if _has_dependencies(pyproject) else "",
        root / "environment.yml": _text(root / "environment.yml"),
    }
    texts = [(path, text) for path, text in found.items() if text.strip()]
    if len(texts) != 1:
        return None
    path, text = texts[0]
    return OwnRequirements(path, frozenset(normalize(word) for word in _WORD.findall(text)))


def _text(path: Path) -> str:
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return decoded(read_regular(path, REQUIREMENTS), "utf-8-sig")
    return ""


def _has_dependencies(pyproject: str) -> bool:
    with contextlib.suppress(TomlError):
        project = parse_toml(pyproject).get("project")
        return isinstance(project, dict) and bool(project.get("dependencies"))
    return False
