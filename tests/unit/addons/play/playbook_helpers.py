"""Helpers for tests of playbooks: a playbook from its text, its error, filled templates."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ipexctl.addons.play.engine import Engine
from ipexctl.addons.play.modules import MODULES, runner
from ipexctl.addons.play.options import fill_options
from ipexctl.addons.play.play_view import PlayView
from ipexctl.addons.play.playbook import InheritedKeywords, Playbook, Position, Task, TemplateText
from ipexctl.addons.play.prepare import TaskSelection, load_playbook, prepare
from ipexctl.addons.play.result import Call, PlayWatcher, TaskResult
from ipexctl.addons.play.templates import Scope, Templates
from ipexctl.addons.play.variables import Options, PlayContext
from ipexctl.commands.option_groups import Output
from ipexctl.errors import FileError
from ipexctl.hosts.host import Host
from ipexctl.hosts.source import SourceFile
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.connector import SessionPool

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ipexctl.addons.play.result import ItemDone, PlayReport, TaskReport
    from ipexctl.remote.outcome import Notice
    from ipexctl.remote.session import Session

HOST = Host("localhost", "localhost")
POSITION = Position(SourceFile("p.yml", Path(), ["- hosts: x"]), 1, 10)
HOSTS = tuple(Host(f"node{n}", f"10.0.0.{n}", groups=("xeon",) if n < 3 else ("old",)) for n in (1, 2, 3))


def play_of(tasks: str, head: str = "") -> str:
    """A play for all hosts with these tasks, indented by four."""
    return f"- hosts: all\n{head}  tasks:\n" + "".join(f"    {line}\n" for line in tasks.splitlines())


def book(directory: Path, text: str, name: str = "site.yml") -> Playbook:
    (directory / name).write_text(text)
    return load_playbook(name, directory, Templates())


def tasks_in(directory: Path, text: str) -> list[Task]:
    return [task for play in book(directory, text).plays for task in play.tasks]


def refusal(directory: Path, text: str) -> FileError:
    """The error of a playbook; its position is checked to be inside the file."""
    with pytest.raises(FileError) as caught:
        book(directory, text)
    error = caught.value
    assert error.line >= 1
    assert 1 <= error.column <= len(error.text) + 1
    assert error.message.startswith(f"{error.path}:{error.line}:{error.column}: ")
    return error


def at(error: FileError) -> tuple[int, str]:
    """The line number of an error, and the text from its column on."""
    return error.line, error.text[error.column - 1 :]


def templated(text: str, kind: Any = "text") -> TemplateText:
    return TemplateText(text, Position(SourceFile("t.yml", Path(), text.split("\n")), 1, 1), kind=kind)


def fill(templates: Templates, text: str, values: Mapping[str, Any] | None = None, kind: Any = "text") -> Any:
    """The value, or the error."""
    try:
        return Scope(templates, [values or {}]).fill(templated(text, kind))
    except FileError as error:
        return error


def run_module(
    module: str, session: Session, *, check: bool = False, home: str = "~/.ipexctl", **args: Any
) -> TaskResult:
    """The result of one module with these options over this session."""
    nothing: Any = None
    pool, options = SessionPool(nothing, Cancel(), forks=1), Options(home)
    context = PlayContext(pool, nothing, options, nothing, [HOST], [HOST], Path())
    spec = MODULES[module]
    task = Task(module, spec, {}, POSITION, InheritedKeywords(), Path())
    call = Call(HOST, HOST, task, fill_options(spec, args), check=check, diff=True, environment={"GREETING": "a  b"})
    result: TaskResult = runner(module)(context, call, session)
    return result


class Recorder:
    """A watcher that keeps its calls, to repeat them to another."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self.plays: list[tuple[tuple[str, ...], str]] = []
        self.handlers: list[bool] = []
        self.notices: list[str] = []

    def on_play(self, name: str, hosts: Sequence[str], note: str = "") -> None:
        self.calls.append(("on_play", (name, tuple(hosts), note), {}))
        self.plays.append((tuple(hosts), note))

    def on_task(self, report: TaskReport, *, is_handler: bool) -> None:
        self.calls.append(("on_task", (report,), {"is_handler": is_handler}))
        self.handlers.append(is_handler)

    def on_task_done(self, report: TaskReport, items: Sequence[ItemDone]) -> None:
        self.calls.append(("on_task_done", (report, tuple(items)), {}))

    def on_notice(self, notice: Notice) -> None:
        self.calls.append(("on_notice", (notice,), {}))
        self.notices.append(notice.text)

    def on_output(self, rank: int, stream: str, text: str) -> None:
        self.calls.append(("on_output", (rank, stream, text), {}))

    def repeat(self, watcher: PlayWatcher) -> None:
        for name, given, keywords in self.calls:
            getattr(watcher, name)(*given, **keywords)


def play_view(*, verbose: int = 0, diff: bool = False) -> PlayView:
    return PlayView(Output(False, False, verbose, False), Options(diff=diff, verbose=verbose))


def run_playbook(directory: Path, text: str, **options: Any) -> tuple[PlayReport, Recorder]:
    """Run a playbook whose modules use no host; return its report, and what it told its watcher."""
    (directory / "site.yml").write_text(text)
    recorder = Recorder()
    nobody: Any = None
    limited, every = options.pop("limited", HOSTS), options.pop("every", HOSTS)
    templates = Templates()
    playbook = load_playbook("site.yml", directory, templates)
    told = Options(**options)
    ready, errors = prepare(playbook, TaskSelection(), every, limited, local=told.local)
    assert errors == []
    pool = SessionPool(nobody, Cancel(), forks=4)
    context = PlayContext(pool, templates, told, recorder, limited, every, directory)
    return Engine(ready, context).run(), recorder
