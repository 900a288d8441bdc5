"""Helpers for tests of playbooks: a playbook from its text, its error, filled templates."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ipexctl.errors import FileError
from ipexctl.hosts.host import Host
from ipexctl.hosts.source import SourceFile
from ipexctl.playbook.engine import Engine
from ipexctl.playbook.play_context import Options, PlayContext
from ipexctl.playbook.playbook_file import Position, Templated
from ipexctl.playbook.prepare import TaskSelection, prepare, read
from ipexctl.playbook.templater import Filled, Job, Templater
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.session_pool import SessionPool

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ipexctl.playbook.model import Playbook, Task
    from ipexctl.playbook.report import Event, PlayReport

HOSTS = tuple(Host(f"node{n}", f"10.0.0.{n}", groups=("xeon",) if n < 3 else ("old",)) for n in (1, 2, 3))


def play_of(tasks: str, head: str = "") -> str:
    """A play for all hosts with these tasks, indented by four."""
    return f"- hosts: all\n{head}  tasks:\n" + "".join(f"    {line}\n" for line in tasks.splitlines())


def book(directory: Path, text: str, name: str = "site.yml") -> Playbook:
    (directory / name).write_text(text)
    with Templater() as templater:
        return read(name, directory, templater)


def tasks_in(directory: Path, text: str) -> list[Task]:
    return [task for play in book(directory, text).plays for task in play.tasks]


def refusal(directory: Path, text: str) -> FileError:
    """What is said of it; the place is inside the file, so that the caret can be drawn."""
    with pytest.raises(FileError) as caught:
        book(directory, text)
    error = caught.value
    assert error.line >= 1
    assert 1 <= error.column <= len(error.text) + 1
    assert error.message.startswith(f"{error.path}:{error.line}:{error.column}: ")
    return error


def at(error: FileError) -> tuple[int, str]:
    """The line, and what stands at the caret."""
    return error.line, error.text[error.column - 1 :]


def templated(text: str, kind: Any = "text") -> Templated:
    return Templated(text, Position(SourceFile("t.yml", Path(), text.split("\n")), 1, 1), kind=kind)


def fill(
    templater: Templater, text: str, values: Mapping[str, Any] | None = None, kind: Any = "text"
) -> Filled | FileError:
    return templater.fill([Job("", {"it": templated(text, kind)}, local=[(dict(values or {}), False)])])[0]


def played(directory: Path, text: str, **options: Any) -> tuple[PlayReport, list[Event]]:
    """The whole of it, where its modules touch no host."""
    (directory / "site.yml").write_text(text)
    events: list[Event] = []
    nobody: Any = None
    limited, every = options.pop("limited", HOSTS), options.pop("every", HOSTS)
    with Templater() as templater:
        playbook = read("site.yml", directory, templater)
        ready, errors = prepare(playbook, TaskSelection(), every, limited)
        assert errors == []
        told = Options(**options)
        pool = SessionPool(nobody, Cancel(), forks=4)
        context = PlayContext(pool, templater, told, events.append, limited, directory, all_hosts=every)
        report = Engine(ready, context).run()
    return report, events
