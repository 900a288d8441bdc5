"""The process that fills templates: reads values and texts as JSON lines, replies with values. Playbooks and host
output are not trusted: a separate process limits each template's memory, time and output, gives it no access to files,
hosts or programs, and can be killed.
"""

from __future__ import annotations

import json
import math
import re
import resource
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

from jinja2 import TemplateSyntaxError, UndefinedError
from jinja2.exceptions import SecurityError, TemplateError

from ipexctl.extras.play.keywords import HINTS
from ipexctl.extras.play.renderer_env import BadTemplate, Renderer, Undefined
from ipexctl.hosts.host import did_you_mean
from ipexctl.limits import TEMPLATE_RENDERED
from ipexctl.node.common.fix import Fix
from ipexctl.node.common.json_records import parse_json
from ipexctl.node.common.macos import is_linux

MEMORY: Final = 1 << 30
MAX_CHARACTERS: Final = 8 << 20
_FALSE_TEXTS: Final = frozenset({"no", "false", "off", "0", "n", "", "none"})
_MAX_DEPTH: Final = 60
_MISSING: Final = object()
_NUMBER: Final = re.compile(r"'(int|float)'")


class _TimeUp(BaseException):
    """Raised by the alarm anywhere; a BaseException, so templates can't catch it."""


class Scope:
    """One host's variables during one job. `at`: number of the template being filled."""

    def __init__(self, worker: Worker, host: str, local: list[list[Any]]) -> None:
        self.at: int | None = None
        self._worker = worker
        self._layers: list[tuple[dict[str, Any], bool]] = []
        for name in worker.hosts.get(host, ()):
            if name in ("@weak", "@strong"):
                self._layers += [(values, templated) for values, templated in local if templated is (name == "@weak")]
            elif name in worker.layers:
                self._layers.append(worker.layers[name])
        self._filled: dict[str, Any] = {}
        self._depth = 0
        self._variables = {"\0scope": self.look_up}

    def names(self) -> set[str]:
        return {"hostvars", *(name for values, _ in self._layers for name in values)}

    def look_up(self, name: str, default: Any) -> Any:
        if name == "hostvars":
            return _LazyMapping([host for host in self._worker.hosts if host], self._variables_of)
        if name not in self._filled:
            value = _MISSING
            for values, templated in reversed(self._layers):
                if name in values:
                    value = self._filled_or_undefined(values[name]) if templated else values[name]
                    break
            if value is _MISSING:
                return default
            self._filled[name] = value
        return self._filled[name]

    def _filled_or_undefined(self, value: Any) -> Any:
        """Return Undefined if the value needs an undefined variable, for `is defined` and `default`."""
        outer = self.at
        try:
            return self.fill(value)
        except UndefinedError as error:
            inner, self.at = self.at, outer
            message = str(error)
            return Undefined(hint=message if message.startswith("\3") else f"\3{inner}\3{message}")

    def _variables_of(self, host: str) -> Mapping[str, Any]:
        if host not in self._worker.hosts:
            raise KeyError(host)
        scope = Scope(self._worker, host, [])

        def value_of(name: str) -> Any:
            value = scope.look_up(name, _MISSING)
            if value is _MISSING:
                raise KeyError(name)
            return value

        return _LazyMapping(sorted(scope.names() - {"hostvars"}), value_of)

    def fill(self, value: Any) -> Any:
        if isinstance(value, dict):
            if "\0t" in value:
                return self._template(value)
            return {key: self.fill(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.fill(item) for item in value]
        return value

    def expression(self, condition: Mapping[str, Any]) -> Any:
        with self._inside(condition):
            return _plain(self._worker.renderer.expression(condition["\0t"], self._variables))

    def _template(self, template: Mapping[str, Any]) -> Any:
        if template["\0k"] == "expr":
            return self.expression(template)
        with self._inside(template):
            may_be_value = template["\0k"] == "text"
            return _plain(self._worker.renderer.render(template["\0t"], self._variables, may_be_value=may_be_value))

    @contextmanager
    def _inside(self, template: Mapping[str, Any]) -> Iterator[None]:
        """Set the position that an error reports; a nested template sets its own."""
        before, self.at = self.at, template["\0p"]
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise RecursionError
        try:
            yield
            self.at = before
        finally:
            self._depth -= 1

    def undefined(self, message: str) -> tuple[str, str, str | None]:
        if message.startswith("\3"):
            _, at, message = message.split("\3", 2)
            self.at = int(at)
        name_match = re.fullmatch("\1(.*)\2", message, re.DOTALL)
        if name_match:
            name = name_match[1]
            known = () if name in HINTS else sorted({"facts", *self.names()} - {name})
            fix = did_you_mean(name, known, _fix_for_name(name), cutoff=0.85 if name.startswith("ansible_") else 0.6)
            return f"'{name}' is undefined", fix, name
        attribute_match = re.fullmatch("\1([^\1]*)\1(.*)", message, re.DOTALL)
        if attribute_match:
            name, keys = attribute_match[1], attribute_match[2].split()
            listing = ", ".join(keys[:12]) + (" …" if len(keys) > 12 else "")
            fix = did_you_mean(name, keys, f"one of: {listing}" if keys else "it is empty")
            return f"there is no '{name}' in it", fix, name
        return message, "", None


class _LazyMapping(Mapping[str, Any]):
    def __init__(self, names: Sequence[str], look_up: Callable[[str], Any]) -> None:
        self._names = names
        self._look_up = look_up

    def __getitem__(self, name: str) -> Any:
        return self._look_up(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _fix_for_name(name: str) -> str:
    if name in ("facts", "ansible_facts"):
        return "this play has gather_facts: false, so it has no facts"
    if name in HINTS:
        return HINTS[name]
    if name.startswith("ansible_"):
        return Fix("use facts.… instead of Ansible's ansible_… variables: `ipexctl doctor --json` shows all facts")
    return f"-e {name}=VALUE, or a default: {{{{ {name} | default('') }}}}"


def _plain(value: Any, depth: int = 0) -> Any:
    """Convert to JSON types. Undefined values are an error, nested ones too."""
    if isinstance(value, Undefined):
        raise UndefinedError(value._undefined_message)
    if value is None or isinstance(value, bool | int | str):
        return str(value) if isinstance(value, str) and type(value) is not str else value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if depth > _MAX_DEPTH:
        raise BadTemplate("the result is nested too deep")
    if isinstance(value, Mapping):
        return {str(key): _plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, Iterable):
        return [_plain(item, depth + 1) for item in value]
    raise BadTemplate(f"the result is not a value: {type(value).__name__}")


def main() -> None:
    for resource_id, limit in ((resource.RLIMIT_AS, MEMORY), (resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, 0)):
        _, hard = resource.getrlimit(resource_id)
        try:
            resource.setrlimit(resource_id, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))
        except ValueError:  # macOS does not limit memory; a template's time and output are limited there too
            if is_linux():
                raise
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C and kills this process
    signal.signal(signal.SIGALRM, _time_up)
    worker = Worker()
    for line in sys.stdin:
        answer = worker.handle_message(parse_json(line, any_number=True))
        if answer is not None:
            sys.stdout.write(answer + "\n")
            sys.stdout.flush()


def _time_up(number: int, frame: FrameType | None) -> None:
    del number, frame
    raise _TimeUp


class Worker:
    def __init__(self) -> None:
        self.layers: dict[str, tuple[dict[str, Any], bool]] = {}
        self.hosts: dict[str, list[str]] = {}
        self.renderer = Renderer()

    def handle_message(self, message: Mapping[str, Any]) -> str | None:
        if message["op"] == "layer":
            self.layers[message["name"]] = (message["values"], message["templated"])
            return None
        if message["op"] == "add":
            self.layers.setdefault(message["name"], ({}, False))[0].update(message["values"])
            return None
        if message["op"] == "host":
            self.hosts[message["name"]] = message["layers"]
            return None
        if message["op"] == "names":
            return json.dumps([self.renderer.printed_name(text, message["names"]) for text, _ in message["texts"]])
        if message["op"] == "check":
            return json.dumps(
                [
                    self.renderer.syntax_error(text, kind == "expr", lookups=message["lookups"])
                    for text, kind in message["texts"]
                ]
            )
        return self._answer(message)

    def _answer(self, job: Mapping[str, Any]) -> str:
        scope = Scope(self, job["host"], job["local"])
        try:
            signal.setitimer(signal.ITIMER_REAL, TEMPLATE_RENDERED)
            try:
                result = self._do(job, scope)
                text = json.dumps({**result, "secrets": sorted(self.renderer.secrets)})
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            if len(text) > MAX_CHARACTERS:
                raise BadTemplate(f"the result has more than {MAX_CHARACTERS:,} characters")
        except (Exception, _TimeUp) as error:  # noqa: BLE001  # any exception of a template becomes a reply
            return json.dumps({"error": _explained(error, scope), "secrets": sorted(self.renderer.secrets)})
        else:
            return text

    def _do(self, job: Mapping[str, Any], scope: Scope) -> dict[str, Any]:
        for condition in job["when"]:
            if not self._holds(scope, condition):
                return {"held": False, "by": condition["\0t"]}
        truths: dict[str, list[bool]] = {}
        for key, conditions in job["truths"].items():
            truths[key] = []
            for condition in conditions:
                truths[key].append(self._holds(scope, condition))
                if not truths[key][-1]:
                    break
        values = {key: scope.fill(value) for key, value in job["values"].items()}
        return {"held": True, "values": values, "truths": truths}

    def _holds(self, scope: Scope, condition: Mapping[str, Any]) -> bool:
        value = scope.expression(condition)
        if isinstance(value, str):  # the value of -e flag=false is text
            return value.strip().lower() not in _FALSE_TEXTS
        return bool(value)


def _explained(error: BaseException, scope: Scope) -> dict[str, Any]:
    at, fix, word = scope.at, "", None
    line = getattr(error, "lineno", None) if isinstance(error, TemplateSyntaxError) else None
    if isinstance(error, _TimeUp):
        problem = f"this template took longer than {TEMPLATE_RENDERED:g} s"
        fix = "it never ends, or does work that belongs in a task"
    elif isinstance(error, MemoryError):
        problem = "this template needs too much memory"
    elif isinstance(error, RecursionError):
        problem = "these templates refer to each other in a circle"
    elif isinstance(error, UndefinedError):
        problem, fix, word = scope.undefined(str(error))
        at = scope.at  # undefined() may have moved it to a variable's own template
    elif isinstance(error, SecurityError):
        problem, fix = (
            f"not allowed in a template: {error}",
            "templates cannot read files, run commands or reach into Python: use a task, with register",
        )
    elif isinstance(error, BadTemplate | OverflowError | TemplateError):
        problem = str(error)
    else:
        problem = re.sub(r"\s+", " ", str(error)) or type(error).__name__
        if isinstance(error, TypeError) and "'str'" in problem and _NUMBER.search(problem):
            fix = "values from -e and from commands are strings: NAME | int, or NAME | float"
    return {"what": problem[:1000], "fix": fix, "at": at, "line": line, "word": word}
