"""Filling templates: the call's side of the process that does it, which is ended where it doesn't answer."""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from ipexctl.errors import UserError
from ipexctl.hosts.source import Source
from ipexctl.playbook.positions import Place, Templated, did_you_mean, raise_first, templates_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ipexctl.playbook.positions import PlaybookError, Value

_PATIENCE: Final = 8.0
"""Seconds for one answer: the process's own clock is shorter, and is deaf only inside one step of Python."""
_BEGIN: Final = "import sys; sys.path[:0] = [sys.argv[1]]; from ipexctl.playbook.renderer import main; main()"


class TemplateError(Exception):
    """A template that could not be filled for one host."""

    def __init__(self, error: PlaybookError) -> None:
        super().__init__(error.message)
        self.error = error


@dataclass(frozen=True, slots=True)
class Job:
    """What is to be filled for one host: conditions first, and where they hold the values."""

    host: str
    values: Mapping[str, Value] = field(default_factory=dict)
    when: Sequence[Templated] = ()
    truths: Mapping[str, Sequence[Templated]] = field(default_factory=dict)
    thats: Sequence[Templated] = ()
    local: Sequence[tuple[Mapping[str, Value], bool]] = ()
    """Variables of this job alone, and whether there may be templates among them: those give way to what was set."""


@dataclass(frozen=True, slots=True)
class Filled:
    held: bool
    values: Mapping[str, Any] = field(default_factory=dict)
    truths: Mapping[str, bool] = field(default_factory=dict)
    thats: Sequence[bool] = ()
    by: str = ""
    """The condition that did not hold."""


class Templater:
    """Begun when it is first needed, or `warm`ed before; what it was told it is told again where it had to be ended."""

    def __init__(self) -> None:
        self.secrets: set[str] = set()
        self._process: subprocess.Popen[bytes] | None = None
        self._told: dict[tuple[str, str], bytes] = {}
        self._grown: dict[str, dict[str, Any]] = {}
        self._templates: list[Templated] = []
        self._known: dict[int, int] = {}
        self._answers: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def __enter__(self) -> Templater:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def warm(self) -> None:
        """Start it now, that it is there when it is needed."""
        if self._process is not None:
            return
        root = str(Path(__file__).parents[2])
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-c", _BEGIN, root],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            raise UserError(f"no process for templates on this machine: {error.strerror or error}") from None
        self._answers = queue.SimpleQueue()
        listener = threading.Thread(
            target=_listen, args=(self._process.stdout, self._answers), name="templates", daemon=True
        )
        listener.start()
        for line in self._told.values():
            self._write(line)
        for name, values in self._grown.items():
            self._write(_line({"op": "add", "name": name, "values": values}))

    def layer(self, name: str, values: Mapping[str, Value], *, templated: bool) -> None:
        """Variables under a name; told again, the new ones are in place of the old."""
        self._tell(
            ("layer", name), {"op": "layer", "name": name, "values": self._packed(values), "templated": templated}
        )

    def add(self, name: str, values: Mapping[str, Any]) -> None:
        """Values more in a layer of values, over those of the same names."""
        self._grown.setdefault(name, {}).update(values)
        if self._process is not None:
            self._write(_line({"op": "add", "name": name, "values": values}))

    def host(self, name: str, layers: Sequence[str]) -> None:
        """Which layers a host has, the strongest last; a job's own stand at `@weak`, what it is about at `@strong`."""
        self._tell(("host", name), {"op": "host", "name": name, "layers": list(layers)})

    def check(self, templates: Iterable[Templated]) -> None:
        """Refuse those whose syntax is wrong."""
        asked = list(templates)
        if not asked:
            return
        self.warm()
        self._write(_line({"op": "check", "texts": [[template.text, template.kind] for template in asked]}))
        said = self._read()
        if said is None:
            raise asked[0].place.error("the templates of this playbook can't be checked: they take all the time")
        errors = []
        for template, wrong in zip(asked, said, strict=True):
            if wrong is not None:
                fix = did_you_mean(wrong["word"], wrong["known"]) if wrong.get("word") else ""
                place = template.spot(wrong["line"], wrong.get("word"))
                errors.append(place.error(f"Jinja: {wrong['what']}", fix=fix))
        raise_first(errors)

    def check_names(self, templates: Iterable[Templated], hints: Mapping[str, str]) -> None:
        """Refuse those that print one of these names, which nobody has set."""
        asked = [each for each in templates if each.kind != "expr" and any(name in each.text for name in hints)]
        if not asked:
            return
        self.warm()
        self._write(_line({"op": "names", "names": list(hints), "texts": [template.text for template in asked]}))
        errors = []
        for template, found in zip(asked, self._read() or [None] * len(asked), strict=True):
            if found is not None:
                place = template.spot(found["line"], found["word"])
                errors.append(place.error(f"'{found['word']}' is undefined", fix=hints[found["word"]]))
        raise_first(errors)

    def fill(self, jobs: Sequence[Job]) -> list[Filled | TemplateError]:
        """An answer for each. What has nothing to fill costs nothing."""
        found: list[Filled | TemplateError] = []
        asked: list[int] = []
        for index, job in enumerate(jobs):
            if _needs(job):
                asked.append(index)
            found.append(Filled(True, dict(job.values)))
        if not asked:
            return found
        self.warm()
        questions = [self._question(jobs[index]) for index in asked]
        self._write(b"".join(questions))
        for position, index in enumerate(asked):
            answer = self._answer()
            if answer is None:
                answer = self._ended(jobs[index])
                self.warm()
                self._write(b"".join(questions[position + 1 :]))
            found[index] = answer
        return found

    def _question(self, job: Job) -> bytes:
        return _line(
            {
                "op": "fill",
                "host": job.host,
                "values": self._packed(job.values),
                "when": self._packed(list(job.when)),
                "truths": self._packed({key: list(value) for key, value in job.truths.items()}),
                "thats": self._packed(list(job.thats)),
                "local": [[self._packed(values), templated] for values, templated in job.local],
            }
        )

    def _ended(self, job: Job) -> TemplateError:
        self._end()
        first = _first_template(job)
        what = "this template took all the time or memory there was, and was ended"
        return TemplateError(first.place.error(what) if first else _nowhere(what))

    def _answer(self) -> Filled | TemplateError | None:
        """None where there is none."""
        said = self._read()
        if said is None:
            return None
        if "error" in said:
            return TemplateError(self._error(said["error"]))
        self.secrets.update(said["secrets"])
        if not said["held"]:
            return Filled(False, by=said["by"])
        return Filled(True, said["values"], said["truths"], said["thats"])

    def _error(self, said: Mapping[str, Any]) -> PlaybookError:
        if said["at"] is None:
            return _nowhere(said["what"])
        place: Place = self._templates[said["at"]].spot(said["line"], said["word"])
        return place.error(str(said["what"]), fix=str(said["fix"]))

    def _packed(self, value: Value) -> Any:
        if isinstance(value, Templated):
            number = self._known.get(id(value))
            if number is None:
                number = self._known[id(value)] = len(self._templates)
                self._templates.append(value)
            return {"\0t": value.text, "\0p": number, "\0k": value.kind}
        if isinstance(value, dict):
            return {key: self._packed(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._packed(item) for item in value]
        return value

    def _tell(self, key: tuple[str, str], said: Mapping[str, Any]) -> None:
        line = _line(said)
        if self._told.get(key) == line:
            return
        self._told[key] = line
        if self._process is not None:
            self._write(line)

    def _write(self, line: bytes) -> None:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it shows when the answer is read
            process.stdin.write(line)
            process.stdin.flush()

    def _read(self) -> Any:
        """The next answer; None where there is none in time, or the process is gone."""
        try:
            line = self._answers.get(timeout=_PATIENCE)
        except queue.Empty:
            return None
        return json.loads(line) if line else None

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            if process.stdin is not None:
                with contextlib.suppress(BrokenPipeError):
                    process.stdin.close()


def _listen(stream: IO[bytes], answers: queue.SimpleQueue[bytes]) -> None:
    """Every line as it comes, so that the other side never waits for us; an empty one at the end."""
    with stream:
        for line in stream:
            answers.put(line)
    answers.put(b"")


def _needs(job: Job) -> bool:
    return bool(job.when or job.truths or job.thats) or _has_template(job.values)


def _has_template(value: Value) -> bool:
    if isinstance(value, Templated):
        return True
    if isinstance(value, dict):
        return any(map(_has_template, value.values()))
    return isinstance(value, list | tuple) and any(map(_has_template, value))


def _first_template(job: Job) -> Templated | None:
    found = [*job.when, *(each for group in job.truths.values() for each in group), *job.thats]
    return next(iter([*found, *templates_in(dict(job.values))]), None)


def _nowhere(what: str) -> PlaybookError:
    return Place(Source("a template", Path(), ()), 1, 1).error(what)


def _line(said: Mapping[str, Any]) -> bytes:
    return json.dumps(said).encode() + b"\n"
