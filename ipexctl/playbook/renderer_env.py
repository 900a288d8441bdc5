"""Jinja as playbooks have it: sandboxed, strict about what is undefined, with Ansible's usual filters."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from jinja2 import StrictUndefined, TemplateSyntaxError, nodes
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import missing

from ipexctl.playbook.renderer_filters import FILTERS, TESTS, TooMuch

if TYPE_CHECKING:
    from collections.abc import Callable, Container

    from jinja2 import Template

__all__ = ["Renderer", "TooMuch"]

_BIGGEST: Final = 1 << 20
_KEPT: Final = 4096


class Undefined(StrictUndefined):
    """Says what is there instead."""

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
        # `x.y.z | default(…)` is to work where x.y is not there, as Ansible has it.
        return self

    def __getitem__(self, key: Any) -> Any:
        return self


class _Sandbox(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"*", "**", "%"})

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Python would count for hours, and no clock would be heard."""
        for one, other in ((left, right), (right, left)):
            repeats = operator == "*" and isinstance(one, int) and isinstance(other, str | list | tuple)
            if repeats and one * len(other) > _BIGGEST:
                raise TooMuch(f"{one} times {len(other)} comes to too much")
        if operator == "**" and (abs(left) > _BIGGEST or abs(right) > 64):
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
    """Variables are looked up when they are asked for: a variable may be a template itself."""

    def resolve_or_missing(self, key: str) -> Any:
        look_up: Callable[[str, Any], Any] | None = self.parent.get("\0scope")
        found = super().resolve_or_missing(key)
        if look_up is None or key in self.vars:
            return found
        return look_up(key, found)


class Renderer:
    """Compiles each text once."""

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

    def wrong_with(self, text: str, expression: bool) -> dict[str, Any] | None:
        """What the syntax is like, without running anything."""
        try:
            tree = self._env.parse("{{ (" + text + ") }}" if expression else text)
        except TemplateSyntaxError as error:
            said = str(error.message)
            if expression:
                said = said.replace("end of print statement", "end of it").replace("')'", "the end")
            return {"what": said, "line": error.lineno}
        except RecursionError:
            return {"what": "this template is nested too deep", "line": None}
        for loads in tree.find_all((nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends)):
            return {"what": "a template can't load another one", "line": loads.lineno}
        kinds: tuple[tuple[type[Any], str, Any], ...] = (
            (nodes.Filter, "filter", self._env.filters),
            (nodes.Test, "test", self._env.tests),
        )
        for kind, word, known in kinds:
            for node in tree.find_all(kind):
                if node.name not in known:
                    what = f"no {word} is called {node.name!r}"
                    return {"what": what, "line": node.lineno, "word": node.name, "known": sorted(known)}
        return None

    def stands_plainly(self, text: str, names: Container[str]) -> dict[str, Any] | None:
        """The first of these names that is printed as it is: no filter, test or condition looks at it before."""
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
        """A text that is one `{{ … }}` and nothing else may be its value, whatever kind that is."""
        bare = _only_expression(self._env, text) if may_be_value else None
        if bare is not None:
            return self.expression(bare, variables)
        template: Template = self._get(text, False)
        pieces, size = [], 0
        for piece in template.generate(**variables):
            size += len(piece)
            if size > _BIGGEST * 4:
                raise TooMuch(f"this template comes to more than {_BIGGEST * 4:,} characters")
            pieces.append(piece)
        return "".join(pieces)

    def undefined(self, said: str) -> Undefined:
        return Undefined(hint=said)

    def _get(self, text: str, expression: bool) -> Any:
        key = (text, expression)
        if key not in self._compiled:
            if len(self._compiled) > _KEPT:
                self._compiled.clear()
            self._compiled[key] = (
                self._env.compile_expression(text, undefined_to_none=False)
                if expression
                else self._env.from_string(text)
            )
        return self._compiled[key]

    def _lookup(self, kind: str, *names: str, default: Any = None) -> Any:
        """Of Ansible's lookups there is one: the environment of the call. What it gives is never printed."""
        if kind.removeprefix("ansible.builtin.") != "env":
            raise SecurityError(f"lookup({kind!r}); there is lookup('env', 'NAME')")
        found = [os.environ.get(name, default if default is not None else "") for name in names]
        self.secrets.update(str(value) for value in found if value and len(str(value)) > 3)
        return found[0] if len(found) == 1 else found


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
