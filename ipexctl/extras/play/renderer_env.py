"""The Jinja environment of playbooks: sandboxed, strict about undefined variables, with Ansible's common filters. No
filter reads a file or starts a program, and results are limited in size. The one lookup is `env`, whose values are
masked.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import os
import posixpath
import re
import shlex
from collections.abc import Callable, Container, Iterable, Mapping
from functools import lru_cache
from typing import Any, Final

from jinja2 import (
    ChainableUndefined,
    Environment,
    StrictUndefined,
    Template,
    TemplateSyntaxError,
    nodes,
    pass_context,
    pass_environment,
)
from jinja2.exceptions import SecurityError
from jinja2.filters import FILTERS as JINJA_FILTERS
from jinja2.filters import do_unique
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import missing

from ipexctl.node.common.json_records import parse_json

_MAX_COMPILED: Final = 4096
_TRUE: Final = frozenset({"yes", "true", "on", "1", "y"})
_LOOKUPS: Final = ("lookup", "query")
_BUILTIN: Final = "ansible.builtin."
_LOOKUP_FIX: Final = "have a task produce the value and register it: exec, with delegate_to: localhost and --local"
_LOOKUP_FIXES: Final = {
    "file": "copy: {src: FILE, dest: PATH} sends the file; vars_files: [FILE] reads variables from it",
    "template": "template: {src: FILE, dest: PATH} fills the file and sends it",
    "vars": "name the variable itself: {{ NAME }}; for another host: {{ hostvars[HOST][NAME] }}",
}


class BadTemplate(Exception):
    """The template takes too much memory or time, or yields no value that a playbook can hold."""


def combine(*parts: Mapping[str, Any], recursive: bool = False) -> dict[str, Any]:
    combined: dict[str, Any] = {}
    for part in parts:
        for key, value in part.items():
            merge = recursive and isinstance(value, dict) and isinstance(combined.get(key), dict)
            combined[key] = combine(combined[key], value, recursive=True) if merge else value
    return combined


def flatten(value: Iterable[Any], levels: int | None = None) -> list[Any]:
    items: list[Any] = []
    for item in value:
        if isinstance(item, list | tuple) and levels != 0:
            items += flatten(item, None if levels is None else levels - 1)
        else:
            items.append(item)
    return items


def regex_search(value: Any, pattern: str, *groups: str, ignorecase: bool = False) -> Any:
    match = re.search(pattern, str(value), re.IGNORECASE if ignorecase else 0)
    if match is None:
        return None
    if not groups:
        return match[0]
    return [match[int(group[1:]) if group[1:].isdigit() else group[3:-1]] for group in groups]


def mandatory(value: Any, msg: str = "") -> Any:
    if type(value).__name__ == "Undefined":
        raise ValueError(msg or "a mandatory value is undefined")
    return value


def hash_text(value: Any, kind: str = "sha256") -> str:
    if kind not in ("sha1", "sha256", "sha512", "md5"):
        raise ValueError(f"there is no hash {kind!r}")
    return hashlib.new(kind, str(value).encode(), usedforsecurity=False).hexdigest()


def extract(key: Any, container: Any, more: Any = None) -> Any:
    value = container[key]
    for part in (more if isinstance(more, list) else [more]) if more is not None else ():
        value = value[part]
    return value


def _listed(name: str) -> Callable[..., list[Any]]:
    """`map`, `select` and similar filters return lists, so that `| last` and `| length` work."""
    lazy = JINJA_FILTERS[name]

    @pass_context
    def listed(context: Context, *args: Any, **kwargs: Any) -> list[Any]:
        return list(lazy(context, *args, **kwargs))

    return listed


@pass_environment
def unique(environment: Environment, value: Iterable[Any], *args: Any, **kwargs: Any) -> list[Any]:
    return list(do_unique(environment, value, *args, **kwargs))


FILTERS: Final[dict[str, Callable[..., Any]]] = {
    "bool": lambda value: str(value).strip().lower() in _TRUE if isinstance(value, str) else bool(value),
    "unique": unique,
    "ternary": lambda value, true, false, none=None: (
        none if value is None and none is not None else true if value else false
    ),
    "combine": combine,
    "flatten": flatten,
    "regex_replace": lambda value, pattern="", replacement="", ignorecase=False: re.sub(
        pattern, replacement, str(value), flags=re.IGNORECASE if ignorecase else 0
    ),
    "regex_search": regex_search,
    "regex_findall": lambda value, pattern: re.findall(pattern, str(value)),
    "regex_escape": lambda value: re.escape(str(value)),
    "mandatory": mandatory,
    "dict2items": lambda value, key_name="key", value_name="value": [
        {key_name: key, value_name: item} for key, item in value.items()
    ],
    "items2dict": lambda value, key_name="key", value_name="value": {
        str(item[key_name]): item[value_name] for item in value
    },
    "hash": hash_text,
    "quote": lambda value: shlex.quote(str(value)),
    "product": lambda first, *others: list(itertools.product(first, *others)),
    "extract": extract,
    "zip": lambda first, *others: list(zip(first, *others, strict=False)),
    "basename": lambda value: posixpath.basename(str(value)),
    "dirname": lambda value: posixpath.dirname(str(value)),
    "splitext": lambda value: list(posixpath.splitext(str(value))),
    "path_join": lambda parts: posixpath.join(*map(str, parts)),
    "b64encode": lambda value: base64.b64encode(str(value).encode()).decode(),
    "b64decode": lambda value: base64.b64decode(str(value)).decode("utf-8", "replace"),
    "to_json": lambda value, indent=None: json.dumps(value, indent=indent),
    "to_nice_json": lambda value, indent=4: json.dumps(value, indent=indent, sort_keys=True),
    "from_json": lambda value: parse_json(str(value), any_number=True),
    "intersect": lambda first, other: [item for item in first if item in other],
    "difference": lambda first, other: [item for item in first if item not in other],
    "union": lambda first, other: [*first, *(item for item in other if item not in first)],
    "split": lambda value, separator=None: str(value).split(separator),
    **{name: _listed(name) for name in ("map", "select", "reject", "selectattr", "rejectattr")},
}

TESTS: Final[dict[str, Callable[..., Any]]] = {
    "failed": lambda result: bool(result.get("failed")),
    "succeeded": lambda result: not result.get("failed"),
    "success": lambda result: not result.get("failed"),
    "changed": lambda result: bool(result.get("changed")),
    "skipped": lambda result: bool(result.get("skipped")),
    "match": lambda value, pattern: re.match(pattern, str(value)) is not None,
    "search": lambda value, pattern: re.search(pattern, str(value)) is not None,
    "contains": lambda value, item: item in value,
    "subset": lambda first, other: set(first) <= set(other),
    "superset": lambda first, other: set(first) >= set(other),
}


class Undefined(ChainableUndefined, StrictUndefined):
    """An undefined value whose message lists existing names; `x.y.z | default(…)` works as in Ansible."""

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
            return f"there is no item {name}: the list has {len(owner)} items"
        return f"a value of type {type(owner).__name__} has no {name!r}"


class _Sandbox(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"%"})

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if isinstance(left, str):
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
        self._env.globals.pop("lipsum")
        for name in ("pprint", "urlize", "xmlattr", "format"):
            self._env.filters.pop(name)
        self._env.globals.update({**dict.fromkeys(_LOOKUPS, self._lookup), "omit": "\x00omit"})
        self._compiled = lru_cache(_MAX_COMPILED)(self._compile)

    def syntax_error(self, text: str, expression: bool, *, lookups: bool) -> dict[str, Any] | None:
        """Return a template's syntax error, or None; evaluates nothing. `lookups`: check lookup calls too."""
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
                    problem = f"there is no {label} {node.name!r}"
                    return {"what": problem, "line": node.lineno, "word": node.name, "known": sorted(known)}
        for call in tree.find_all(nodes.Call) if lookups else ():
            if isinstance(call.node, nodes.Name) and call.node.name in _LOOKUPS and call.args:
                name = call.args[0].value if isinstance(call.args[0], nodes.Const) else None
                if isinstance(name, str) and name.removeprefix(_BUILTIN) != "env":
                    fix = _LOOKUP_FIXES.get(name.removeprefix(_BUILTIN), _LOOKUP_FIX)
                    what = f"there is no {call.node.name}({name!r}), only {call.node.name}('env', 'NAME')"
                    return {"what": what, "line": call.lineno, "word": call.node.name, "fix": fix}
        return None

    def printed_name(self, text: str, names: Container[str]) -> dict[str, Any] | None:
        """First of `names` that the template prints directly, not through a filter, test or condition."""
        for output in self._env.parse(text).body:
            for node in output.nodes if isinstance(output, nodes.Output) else ():
                while isinstance(node, nodes.Getattr | nodes.Getitem):
                    node = node.node
                if isinstance(node, nodes.Name) and node.name in names:
                    return {"line": node.lineno, "word": node.name}
        return None

    def expression(self, text: str, variables: Mapping[str, Any]) -> Any:
        return self._compiled(text, True)(**variables)

    def render(self, text: str, variables: Mapping[str, Any], *, may_be_value: bool) -> Any:
        """Fill a template; with `may_be_value`, a single `{{ … }}` yields the value itself rather than text."""
        bare = _only_expression(self._env, text) if may_be_value else None
        if bare is not None:
            return self.expression(bare, variables)
        template: Template = self._compiled(text, False)
        return "".join(template.generate(**variables))

    def _compile(self, text: str, expression: bool) -> Any:
        if expression:
            return self._env.compile_expression(text, undefined_to_none=False)
        return self._env.from_string(text)

    def _lookup(self, kind: str, *names: str, default: Any = None) -> Any:
        """Look up a variable; only `env` is supported. Its values are secrets."""
        if kind.removeprefix(_BUILTIN) != "env":
            raise SecurityError(f"lookup({kind!r}); only lookup('env', 'NAME') is supported")
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
