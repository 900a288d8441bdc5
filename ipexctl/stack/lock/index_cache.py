"""The indexes' last answers, kept on the control machine for a day, so that all commands name the same stack."""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ipexctl.limits import INDEX_ANSWER_VALID
from ipexctl.node.common.files import make_private_directory, read_json, write_json_atomically
from ipexctl.node.common.json_records import decode
from ipexctl.node.env.replies import AvailableWheel, SourceFailure
from ipexctl.stack.lock.wheels import Availability
from ipexctl.user_directories import cache_directory

CONTROL_MACHINE: Final = ""
_FIELDS: Final = ("version", "filename", "source", "size", "yanked", "requires_python", "mpi")
"""Cached fields of a wheel, without URLs."""
_SCHEMA: Final = "ipexctl.indexes/1"


@dataclass(frozen=True, slots=True)
class CachedAnswer:
    availability: Availability
    at: float


class IndexCache:
    """One file per machine that queried indexes and per pip setting in the environment."""

    def __init__(self, environ: Mapping[str, str], directory: Path | None = None) -> None:
        self._directory = directory or cache_directory() / "indexes"
        self._settings = sorted((name, value) for name, value in environ.items() if name.startswith("PIP_"))

    def save(self, machine: str, availability: Availability) -> None:
        """Keep an answer next to those about other projects. A cache that cannot be written is left alone."""
        if not availability.answered:
            return
        now = time.time()
        projects = {
            project: {
                "at": now,
                "wheels": [[getattr(wheel, name) for name in _FIELDS] for wheel in wheels],
            }
            for project, wheels in availability.candidates.items()
        }
        document = {
            "schema": _SCHEMA,
            "answered": list(availability.answered),
            "failures": [[failure.source, failure.reason] for failure in availability.failures],
            "projects": {**self._document_of(machine).get("projects", {}), **projects},
        }
        with contextlib.suppress(OSError):
            make_private_directory(self._directory)
            write_json_atomically(self._path(machine), document, durable=False)

    def load(self, machine: str, projects: Iterable[str]) -> CachedAnswer | None:
        """None unless each of these projects has an answer from the last day."""
        try:
            document = self._document_of(machine)
            found = {project: document["projects"][project] for project in projects}
            at = min(float(part["at"]) for part in found.values())
            candidates = {project: tuple(_wheels(project, part["wheels"])) for project, part in found.items()}
            failures = tuple(SourceFailure(str(source), str(reason)) for source, reason in document["failures"])
            availability = Availability(candidates, tuple(map(str, document["answered"])), failures)
        except (KeyError, TypeError, ValueError):
            return None
        return CachedAnswer(availability, at) if 0 <= time.time() - at < INDEX_ANSWER_VALID else None

    def _document_of(self, machine: str) -> dict[str, Any]:
        document = read_json(self._path(machine))
        is_valid = document.get("schema") == _SCHEMA and isinstance(document.get("projects"), dict)
        return document if is_valid else {}

    def _path(self, machine: str) -> Path:
        key = hashlib.sha256(repr((machine, self._settings)).encode()).hexdigest()[:16]
        return self._directory / f"{key}.json"


def _wheels(project: str, rows: Iterable[Any]) -> Iterator[AvailableWheel]:
    """Raises a ValueError or TypeError if `rows` is not a list of wheels."""
    for values in rows:
        yield decode(AvailableWheel, dict(zip(_FIELDS, values, strict=True)), "a wheel", {"project": project})
