"""The process that fills templates: it reads values and texts as JSON lines and replies with values.

A separate process bounds each template's memory and time, gives it no access to files, hosts or programs, and can be
killed.
"""

from __future__ import annotations

import json
import re
import resource
import signal
import sys
from typing import TYPE_CHECKING, Any, Final

from jinja2 import TemplateSyntaxError, UndefinedError
from jinja2.exceptions import SecurityError, TemplateError

from ipexctl.playbook.renderer_env import Renderer, TooMuch
from ipexctl.playbook.renderer_scope import BadTemplate, Scope

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import FrameType

MEMORY: Final = 1 << 30
SECONDS: Final = 5.0
MAX_CHARACTERS: Final = 8 << 20
"""Most characters in one reply."""
_FALSE_TEXTS: Final = frozenset({"no", "false", "off", "0", "n", "", "none"})


_NUMBER: Final = re.compile(r"'(int|float)'")


class _TimeUp(BaseException):
    """Raised by the alarm at any point of the running code; a BaseException, so templates can't catch it."""


def main() -> None:
    for resource_id, limit in ((resource.RLIMIT_AS, MEMORY), (resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, 0)):
        _, hard = resource.getrlimit(resource_id)
        resource.setrlimit(resource_id, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C and kills this process
    signal.signal(signal.SIGALRM, _time_up)
    worker = Worker()
    for line in sys.stdin:
        answer = worker.handle_message(json.loads(line))
        if answer is not None:
            sys.stdout.write(answer + "\n")
            sys.stdout.flush()


def _time_up(number: int, frame: FrameType | None) -> None:
    del number, frame
    raise _TimeUp


class Worker:
    """The state received so far: layers of variables, and the layers of each host."""

    def __init__(self) -> None:
        self._layers: dict[str, tuple[dict[str, Any], bool]] = {}
        self._hosts: dict[str, list[str]] = {}
        self._renderer = Renderer()

    def handle_message(self, message: Mapping[str, Any]) -> str | None:
        if message["op"] == "layer":
            self._layers[message["name"]] = (message["values"], message["templated"])
            return None
        if message["op"] == "add":
            self._layers.setdefault(message["name"], ({}, False))[0].update(message["values"])
            return None
        if message["op"] == "host":
            self._hosts[message["name"]] = message["layers"]
            return None
        if message["op"] == "names":
            return json.dumps([self._renderer.printed_name(text, message["names"]) for text in message["texts"]])
        if message["op"] == "check":
            return json.dumps([self._renderer.syntax_error(text, kind == "expr") for text, kind in message["texts"]])
        return self._answer(message)

    def _answer(self, job: Mapping[str, Any]) -> str:
        scope = Scope(self._renderer, self._layers, self._hosts, job["host"], job["local"])
        try:
            signal.setitimer(signal.ITIMER_REAL, SECONDS)
            try:
                result = self._do(job, scope)
                text = json.dumps({**result, "secrets": sorted(self._renderer.secrets)})
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            if len(text) > MAX_CHARACTERS:
                raise TooMuch(f"it comes to more than {MAX_CHARACTERS:,} characters")
        except (Exception, _TimeUp) as error:  # noqa: BLE001  # any exception of a template becomes a reply
            return json.dumps({"error": _explained(error, scope)})
        else:
            return text

    def _do(self, job: Mapping[str, Any], scope: Scope) -> dict[str, Any]:
        for condition in job.get("when", ()):
            if not self._holds(scope, condition):
                return {"held": False, "by": condition["\0t"]}
        assertions = [
            self._holds(scope, condition) for condition in job.get("assertions", ())
        ]  # before the values that describe them
        values = {key: scope.fill(value) for key, value in job.get("values", {}).items()}
        truths = {}
        for key, conditions in job.get("truths", {}).items():
            truths[key] = all(self._holds(scope, condition) for condition in conditions)
        return {"held": True, "values": values, "truths": truths, "assertions": assertions}

    def _holds(self, scope: Scope, condition: Mapping[str, Any]) -> bool:
        value = scope.expression(condition)
        if isinstance(value, str):  # -e flag=false is a text
            return value.strip().lower() not in _FALSE_TEXTS
        return bool(value)


def _explained(error: BaseException, scope: Scope) -> dict[str, Any]:
    """The error and its position in the innermost template being filled."""
    at, fix, word = scope.at, "", None
    line = getattr(error, "lineno", None) if isinstance(error, TemplateSyntaxError) else None
    if isinstance(error, BadTemplate):
        problem = str(error)
    elif isinstance(error, _TimeUp):
        problem, fix = f"this template took longer than {SECONDS:g} s", "it never ends, or does what a task should do"
    elif isinstance(error, MemoryError | TooMuch | OverflowError):
        problem = "this template takes too much memory" if isinstance(error, MemoryError) else str(error)
    elif isinstance(error, RecursionError):
        problem = "these templates need each other, without end"
    elif isinstance(error, UndefinedError):
        problem, fix, word = scope.undefined(str(error))
        at = scope.at  # undefined() may have moved it to a variable's own template
    elif isinstance(error, SecurityError):
        problem, fix = (
            f"not allowed in a template: {error}",
            "templates cannot read files, run commands or reach into Python: use a task, with register",
        )
    elif isinstance(error, TemplateError):
        problem = str(error)
    else:
        problem = re.sub(r"\s+", " ", str(error)) or type(error).__name__
        if isinstance(error, TypeError) and "'str'" in problem and _NUMBER.search(problem):
            fix = "values from -e and from commands are strings: NAME | int, or NAME | float"
    return {"what": problem[:1000], "fix": fix, "at": at, "line": line, "word": word}


if __name__ == "__main__":
    main()
