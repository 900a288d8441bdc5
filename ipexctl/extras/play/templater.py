"""Fills templates in a separate process (`renderer.py`), which is killed and restarted after 8 s without a reply. It
starts early, so that it loads jinja2 while ipexctl reads files.
"""

from __future__ import annotations

import contextlib
import json
import select
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ipexctl.errors import FileError, UserError
from ipexctl.extras.play.playbook_file import TemplateText, Value, templates_in
from ipexctl.hosts.host import did_you_mean
from ipexctl.limits import TEMPLATE_REPLY
from ipexctl.node.common.json_records import parse_json

_PROGRAM: Final = "import sys; sys.path[:0] = [sys.argv[1]]; from ipexctl.extras.play.renderer import main; main()"


@dataclass(frozen=True, slots=True)
class Job:
    host: str
    values: Mapping[str, Value] = field(default_factory=dict)
    when: Sequence[TemplateText] = ()
    truths: Mapping[str, Sequence[TemplateText]] = field(default_factory=dict)
    local: Sequence[tuple[Mapping[str, Value], bool]] = ()
    """Variables of this job only, each with whether it may contain templates. Variables with templates are weaker."""


@dataclass(frozen=True, slots=True)
class FillResult:
    held: bool
    values: Mapping[str, Any] = field(default_factory=dict)
    truths: Mapping[str, Sequence[bool]] = field(default_factory=dict)
    """Whether each condition holds; conditions after the first false one are missing."""
    by: str = ""


class Templater:
    """Starts the process on first use or by `start`; after a restart, sends all variables again."""

    def __init__(self) -> None:
        self.secrets: set[str] = set()
        self._process: subprocess.Popen[bytes] | None = None
        self._sent: dict[tuple[str, str], bytes] = {}
        self._added: dict[str, dict[str, Any]] = {}
        self._templates: list[TemplateText] = []
        self._numbers: dict[int, int] = {}

    def __enter__(self) -> Templater:
        return self

    def __exit__(self, *_: object) -> None:
        self._kill()

    def start(self) -> None:
        if self._process is not None:
            return
        root = str(Path(__file__).parents[3])
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-c", _PROGRAM, root],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            raise UserError(f"no process for templates on this machine: {error.strerror or error}") from None
        for line in self._sent.values():
            self._write(line)
        for name, values in self._added.items():
            self._write(_encode({"op": "add", "name": name, "values": values}))

    def layer(self, name: str, values: Mapping[str, Value], *, templated: bool) -> None:
        self._send(
            ("layer", name), {"op": "layer", "name": name, "values": self._packed(values), "templated": templated}
        )

    def add(self, name: str, values: Mapping[str, Any]) -> None:
        self._added.setdefault(name, {}).update(values)
        if self._process is not None:
            self._write(_encode({"op": "add", "name": name, "values": values}))

    def host(self, name: str, layers: Sequence[str]) -> None:
        """Strongest layer last. `@weak` and `@strong` stand for a job's variables with and without templates."""
        self._send(("host", name), {"op": "host", "name": name, "layers": list(layers)})

    def check(self, templates: Iterable[TemplateText], *, lookups: bool = True) -> list[FileError]:
        return [
            template.spot(problem["line"], problem.get("word")).error(
                f"Jinja: {problem['what']}",
                fix=did_you_mean(problem["word"], problem["known"]) if "known" in problem else problem.get("fix", ""),
            )
            for template, problem in self._problems("check", list(templates), lookups=lookups)
        ]

    def check_names(self, templates: Iterable[TemplateText], hints: Mapping[str, str]) -> list[FileError]:
        """Errors for templates that print one of the names in `hints`, which are never set."""
        suspects = [
            template
            for template in templates
            if template.kind != "expr" and any(name in template.text for name in hints)
        ]
        return [
            template.spot(use["line"], use["word"]).error(f"'{use['word']}' is undefined", fix=hints[use["word"]])
            for template, use in self._problems("names", suspects, names=list(hints))
        ]

    def _problems(
        self, op: str, templates: Sequence[TemplateText], **more: object
    ) -> Iterator[tuple[TemplateText, Any]]:
        if not templates:
            return
        texts = [[template.text, template.kind] for template in templates]
        replies = self._ask({"op": op, "texts": texts, **more})
        if replies is None:
            what = "the templates of this playbook take too long to check"
            raise templates[0].position.error(what)
        for template, problem in zip(templates, replies, strict=True):
            if problem is not None:
                yield template, problem

    def fill(self, jobs: Sequence[Job]) -> list[FillResult | FileError]:
        return [self._fill(job) if _templates_of(job) else FillResult(True, dict(job.values)) for job in jobs]

    def _fill(self, job: Job) -> FillResult | FileError:
        reply = self._ask({"op": "fill", **{name: self._packed(getattr(job, name)) for name in Job.__slots__}})
        first = _templates_of(job)[0].position
        if reply is None:
            return first.error("this template took too much time or memory and was stopped")
        self.secrets.update(reply.pop("secrets"))
        if "error" not in reply:
            return FillResult(**reply)
        error = reply["error"]
        position = first if error["at"] is None else self._templates[error["at"]].spot(error["line"], error["word"])
        return position.error(str(error["what"]), fix=str(error["fix"]))

    def _packed(self, value: Value) -> Any:
        if isinstance(value, TemplateText):
            number = self._numbers.get(id(value))
            if number is None:
                number = self._numbers[id(value)] = len(self._templates)
                self._templates.append(value)
            return {"\0t": value.text, "\0p": number, "\0k": value.kind}
        if isinstance(value, dict):
            return {key: self._packed(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._packed(item) for item in value]
        return value

    def _send(self, key: tuple[str, str], message: Mapping[str, object]) -> None:
        line = _encode(message)
        if self._sent.get(key) == line:
            return
        self._sent[key] = line
        if self._process is not None:
            self._write(line)

    def _write(self, line: bytes) -> None:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # detected when the reply is read
            process.stdin.write(line)
            process.stdin.flush()

    def _ask(self, message: Mapping[str, object]) -> Any:
        """None if the process took too long or exited; it restarts for the next call."""
        self.start()
        self._write(_encode(message))
        process = self._process
        assert process is not None
        assert process.stdout is not None
        poll = select.poll()
        poll.register(process.stdout, select.POLLIN)
        line = process.stdout.readline() if poll.poll(TEMPLATE_REPLY * 1000) else b""
        if line.endswith(b"\n"):
            return parse_json(line, any_number=True)
        self._kill()
        return None

    def _kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in filter(None, (process.stdin, process.stdout)):
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


def _templates_of(job: Job) -> list[TemplateText]:
    return templates_in([job.when, dict(job.truths), dict(job.values)])


def _encode(message: Mapping[str, object]) -> bytes:
    return json.dumps(message).encode() + b"\n"
