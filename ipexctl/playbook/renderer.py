"""The process that fills templates: it is given values and texts as JSON lines, and answers with values.

It runs apart from the call, with little memory, a clock for each template, and no file, host or program within its
reach: what a template does, it does here, and it can be ended.
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
LONGEST: Final = 8 << 20
"""Characters that one answer may have."""
_NO: Final = frozenset({"no", "false", "off", "0", "n", "", "none"})


_NUMBER: Final = re.compile(r"'(int|float)'")


class _TimeUp(BaseException):
    """Raised wherever it is just then."""


def main() -> None:
    for what, most in ((resource.RLIMIT_AS, MEMORY), (resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, 0)):
        _, hard = resource.getrlimit(what)
        resource.setrlimit(what, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the call, which ends us
    signal.signal(signal.SIGALRM, _time_up)
    worker = Worker()
    for line in sys.stdin:
        answer = worker.hear(json.loads(line))
        if answer is not None:
            sys.stdout.write(answer + "\n")
            sys.stdout.flush()


def _time_up(number: int, frame: FrameType | None) -> None:
    del number, frame
    raise _TimeUp


class Worker:
    """All that was told so far: layers of variables, and which of them each host has."""

    def __init__(self) -> None:
        self._layers: dict[str, tuple[dict[str, Any], bool]] = {}
        self._hosts: dict[str, list[str]] = {}
        self._renderer = Renderer()

    def hear(self, said: Mapping[str, Any]) -> str | None:
        if said["op"] == "layer":
            self._layers[said["name"]] = (said["values"], said["templated"])
            return None
        if said["op"] == "add":
            self._layers.setdefault(said["name"], ({}, False))[0].update(said["values"])
            return None
        if said["op"] == "host":
            self._hosts[said["name"]] = said["layers"]
            return None
        if said["op"] == "names":
            return json.dumps([self._renderer.stands_plainly(text, said["names"]) for text in said["texts"]])
        if said["op"] == "check":
            return json.dumps([self._renderer.wrong_with(text, kind == "expr") for text, kind in said["texts"]])
        return self._answer(said)

    def _answer(self, job: Mapping[str, Any]) -> str:
        scope = Scope(self._renderer, self._layers, self._hosts, job["host"], job["local"])
        try:
            signal.setitimer(signal.ITIMER_REAL, SECONDS)
            try:
                said = self._do(job, scope)
                text = json.dumps({**said, "secrets": sorted(self._renderer.secrets)})
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            if len(text) > LONGEST:
                raise TooMuch(f"it comes to more than {LONGEST:,} characters")
        except (Exception, _TimeUp) as error:  # noqa: BLE001  # whatever a template raises is an answer, too
            return json.dumps({"error": _explained(error, scope)})
        else:
            return text

    def _do(self, job: Mapping[str, Any], scope: Scope) -> dict[str, Any]:
        for condition in job.get("when", ()):
            if not self._holds(scope, condition):
                return {"held": False, "by": condition["\0t"]}
        thats = [self._holds(scope, condition) for condition in job.get("thats", ())]  # before what is said of them
        values = {key: scope.fill(value) for key, value in job.get("values", {}).items()}
        truths = {}
        for key, conditions in job.get("truths", {}).items():
            truths[key] = all(self._holds(scope, condition) for condition in conditions)
        return {"held": True, "values": values, "truths": truths, "thats": thats}

    def _holds(self, scope: Scope, condition: Mapping[str, Any]) -> bool:
        value = scope.expression(condition)
        if isinstance(value, str):  # -e flag=false is a text
            return value.strip().lower() not in _NO
        return bool(value)


def _explained(error: BaseException, scope: Scope) -> dict[str, Any]:
    """What went wrong, in the innermost template that was being filled."""
    at, fix, word = scope.at, "", None
    line = getattr(error, "lineno", None) if isinstance(error, TemplateSyntaxError) else None
    if isinstance(error, BadTemplate):
        what = str(error)
    elif isinstance(error, _TimeUp):
        what, fix = f"this template took longer than {SECONDS:g} s", "it never ends, or does what a task should do"
    elif isinstance(error, MemoryError | TooMuch | OverflowError):
        what = "this template takes too much memory" if isinstance(error, MemoryError) else str(error)
    elif isinstance(error, RecursionError):
        what = "these templates need each other, without end"
    elif isinstance(error, UndefinedError):
        what, fix, word = scope.undefined(str(error))
        at = scope.at  # a variable's own template may be the one
    elif isinstance(error, SecurityError):
        what, fix = f"not allowed in a template: {error}", "templates see values, not what Python is made of"
    elif isinstance(error, TemplateError):
        what = str(error)
    else:
        what = re.sub(r"\s+", " ", str(error)) or type(error).__name__
        if isinstance(error, TypeError) and "'str'" in what and _NUMBER.search(what):
            fix = "what -e and commands say is a text: NAME | int, or | float"
    return {"what": what[:1000], "fix": fix, "at": at, "line": line, "word": word}


if __name__ == "__main__":
    main()
