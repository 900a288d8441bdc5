"""The Jinja environment of playbooks: sandboxed, strict about undefined variables, with common Ansible filters."""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Mapping
from typing import Any, Final

from jinja2 import StrictUndefined, Template, TemplateSyntaxError, nodes
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import missing

from ipexctl.playbook.renderer_filters import FILTERS, TESTS, TooMuch

__all__ = ["Renderer", "TooMuch"]

_MAX_SIZE: Final = 1 << 20
_MAX_COMPILED: Final = 4096


class Undefined(StrictUndefined):
    """An undefined value whose message lists the names that exist."""

    @property
    def _undefined_message(self) -> str:
        name: Any = self._undefined_name
        owner: Any = self._undefined_obj
        if self._undefined_hint:
            return str(self._undefined_hint)
        if isinstance(owner, Mapping):
            return f"\1{name}\1{' '.join(str(key) for key in list(owner)[:200])}"
        if owner is missing:
            return f"\1{name}\2"
        if isinstance(owner, list | tuple) and isinstance(name, int):
            return f"there is no item {name}: the list has {len(owner)}"
        return f"a value of the kind {type(owner).__name__} has no {name!r}"

    def __getattr__(self, name: str) -> Any:
        if name[:2] == "__":
            raise AttributeError(name)
        # As in Ansible, `x.y.z | default(…)` works if x.y is undefined.
        return self

    def __getitem__(self, key: Any) -> Any:
        return self


class _Sandbox(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"*", "**", "%"})

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Refuse operations with huge results: Python computes them in one step, which the alarm can't interrupt."""
        for number, sequence in ((left, right), (right, left)):
            repeats = operator == "*" and isinstance(number, int) and isinstance(sequence, str | list | tuple)
            if repeats and number * len(sequence) > _MAX_SIZE:
                raise TooMuch(f"{number} times {len(sequence)} comes to too much")
        if operator == "**" and (abs(left) > _MAX_SIZE or abs(right) > 64):
            raise TooMuch("a power so high comes to too much")
        if isinstance(left, int) and isinstance(right, int) and left.bit_length() + right.bit_length() > 4096:
            raise TooMuch("a number so large comes to too much")
        if operator == "%" and isinstance(left, str):
            raise SecurityError("text % values; use ~ to put texts together")
        return super().call_binop(context, operator, left, right)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, str) and attr in ("format", "format_map"):
            return False
        return super().is_safe_attribute(obj, attr, value)

    def is_safe_callable(self, obj: Any) -> bool:
        return super().is_safe_callable(obj) and not isinstance(obj, type)


class _LazyContext(Context):
    """Looks variables up on first use: a variable may be a template itself."""

    def resolve_or_missing(self, key: str) -> Any:
        look_up: Callable[[str, Any], Any] | None = self.parent.get("\0scope")
        default = super().resolve_or_missing(key)
        if look_up is None or key in self.vars:
            return default
        return look_up(key, default)


class Renderer:
    """Compiles and evaluates templates; each text is compiled once."""

    def __init__(self) -> None:
        self.secrets: set[str] = set()
        self._env = _Sandbox(
            undefined=Undefined,
            extensions=["jinja2.ext.do", "jinja2.ext.loopcontrols"],
            keep_trailing_newline=True,
            trim_blocks=True,
            autoescape=False,
            cache_size=0,
        )
        self._env.context_class = _LazyContext
        self._env.filters.update(FILTERS)
        self._env.tests.update(TESTS)
        for name in ("lipsum",):
            self._env.globals.pop(name)
        for name in ("pprint", "urlize", "xmlattr", "format"):
            self._env.filters.pop(name)
        self._env.globals.update({"lookup": self._lookup, "query": self._lookup, "omit": "\x00omit"})
        self._compiled: dict[tuple[str, bool], Any] = {}

    def syntax_error(self, text: str, expression: bool) -> dict[str, Any] | None:
        """The syntax error of a template, or None; nothing is evaluated."""
        try:
            tree = self._env.parse("{{ (" + text + ") }}" if expression else text)
        except TemplateSyntaxError as error:
            message = str(error.message)
            if expression:
                message = message.replace("end of print statement", "end of it").replace("')'", "the end")
            return {"what": message, "line": error.lineno}
        except RecursionError:
            return {"what": "this template is nested too deep", "line": None}
        for node in tree.find_all((nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends)):
            return {"what": "a template can't load another one", "line": node.lineno}
        kinds: tuple[tuple[type[Any], str, Any], ...] = (
            (nodes.Filter, "filter", self._env.filters),
            (nodes.Test, "test", self._env.tests),
        )
        for kind, label, known in kinds:
            for node in tree.find_all(kind):
                if node.name not in known:
                    problem = f"no {label} is called {node.name!r}"
                    return {"what": problem, "line": node.lineno, "word": node.name, "known": sorted(known)}
        return None

    def printed_name(self, text: str, names: Container[str]) -> dict[str, Any] | None:
        """The first of these names that is printed directly, not through a filter, test or condition."""
        for output in self._env.parse(text).body:
            for node in output.nodes if isinstance(output, nodes.Output) else ():
                while isinstance(node, nodes.Getattr | nodes.Getitem):
                    node = node.node
                if isinstance(node, nodes.Name) and node.name in names:
                    return {"line": node.lineno, "word": node.name}
        return None

    def expression(self, text: str, variables: Mapping[str, Any]) -> Any:
        compiled = self._get(text, True)
        return compiled(**variables)

    def render(self, text: str, variables: Mapping[str, Any], *, may_be_value: bool) -> Any:
        """The rendered text; with `may_be_value`, a text that is a single `{{ … }}` yields the value itself."""
        bare = _only_expression(self._env, text) if may_be_value else None
        if bare is not None:
            return self.expression(bare, variables)
        template: Template = self._get(text, False)
        pieces, size = [], 0
        for piece in template.generate(**variables):
            size += len(piece)
            if size > _MAX_SIZE * 4:
                raise TooMuch(f"this template comes to more than {_MAX_SIZE * 4:,} characters")
            pieces.append(piece)
        return "".join(pieces)

    def undefined(self, message: str) -> Undefined:
        return Undefined(hint=message)

    def _get(self, text: str, expression: bool) -> Any:
        key = (text, expression)
        if key not in self._compiled:
            if len(self._compiled) > _MAX_COMPILED:
                self._compiled.clear()
            self._compiled[key] = (
                self._env.compile_expression(text, undefined_to_none=False)
                if expression
                else self._env.from_string(text)
            )
        return self._compiled[key]

    def _lookup(self, kind: str, *names: str, default: Any = None) -> Any:
        """The `env` lookup, the only one supported. Its values are recorded as secrets and never printed."""
        if kind.removeprefix("ansible.builtin.") != "env":
            raise SecurityError(f"lookup({kind!r}); there is lookup('env', 'NAME')")
        values = [os.environ.get(name, default if default is not None else "") for name in names]
        self.secrets.update(str(value) for value in values if value and len(str(value)) > 3)
        return values[0] if len(values) == 1 else values


def _only_expression(env: _Sandbox, text: str) -> str | None:
    bare = text.strip()
    if not (bare.startswith("{{") and bare.endswith("}}")) or bare != text.rstrip("\n"):
        return None
    inner = bare[2:-2].strip("-+")
    try:
        tree = env.parse(text.rstrip("\n"))
    except TemplateSyntaxError:
        return None
    if len(tree.body) != 1 or not isinstance(tree.body[0], nodes.Output):
        return None
    parts = tree.body[0].nodes
    return inner if len(parts) == 1 and not isinstance(parts[0], nodes.TemplateData) else None
