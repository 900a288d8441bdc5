"""Fill templates: Jinja in a sandbox, strict about undefined variables, with Ansible's common filters.

- Only texts of the playbook, its files and the inventory are templates. What a host printed is a value, and never
  filled, so that no host can have code run here.
- A variable may be a template itself; it is filled when it is used (`Scope`).
- No filter reads a file or starts a program. The one lookup is `env`, whose values are masked as secrets.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import math
import os
import posixpath
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import jinja2
from jinja2 import TemplateSyntaxError, UndefinedError, nodes, pass_context, pass_environment
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.filters import FILTERS as JINJA_FILTERS
from jinja2.filters import do_unique
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import missing

from ipexctl.addons.play.keywords import HINTS
from ipexctl.addons.play.playbook import TemplateText, Value, templates_in
from ipexctl.addons.play.template_limits import TimeUp, limits
from ipexctl.errors import FileError
from ipexctl.hosts.host import did_you_mean
from ipexctl.node.common.fix import Fix
from ipexctl.node.common.json_records import parse_json

_TRUE: Final = frozenset({"yes", "true", "on", "1", "y"})
_FALSE: Final = frozenset({"no", "false", "off", "0", "n", "", "none"})
_MAX_DEPTH: Final = 60
_MAX_RESULT: Final = 8 << 20
"""Characters of what a template yields, as JSON: it is kept for later tasks."""
_LOOKUPS: Final = ("lookup", "query")
_BUILTIN: Final = "ansible.builtin."
_LOOKUP_FIX: Final = "have a task produce the value and register it: exec, with delegate_to: localhost and --local"
_LOOKUP_FIXES: Final = {
    "file": "copy: {src: FILE, dest: PATH} sends the file; vars_files: [FILE] reads variables from it",
    "template": "template: {src: FILE, dest: PATH} fills the file and sends it",
    "vars": "name the variable itself: {{ NAME }}; for another host: {{ hostvars[HOST][NAME] }}",
}


# Filters of Ansible, with its names and parameters.


def combine(*parts: Mapping[str, Any], recursive: bool = False) -> dict[str, Any]:
    """Merge mappings; a key of a later one wins. With `recursive`, mappings in mappings are merged, too."""
    combined: dict[str, Any] = {}
    for part in parts:
        for key, value in part.items():
            merge = recursive and isinstance(value, dict) and isinstance(combined.get(key), dict)
            combined[key] = combine(combined[key], value, recursive=True) if merge else value
    return combined


def flatten(value: Iterable[Any], levels: int | None = None) -> list[Any]:
    """Return a list without the lists inside it. `levels`: how deep lists are opened; None for all."""
    items: list[Any] = []
    for item in value:
        if isinstance(item, list | tuple) and levels != 0:
            items += flatten(item, None if levels is None else levels - 1)
        else:
            items.append(item)
    return items


def regex_search(value: Any, pattern: str, *groups: str, ignorecase: bool = False) -> Any:
    """Return the first match of the pattern; None if there is none. With `groups`, written as in Ansible, return a list
    of what these groups matched."""
    match = re.search(pattern, str(value), re.IGNORECASE if ignorecase else 0)
    if match is None:
        return None
    if not groups:
        return match[0]
    return [match[int(group[1:]) if group[1:].isdigit() else group[3:-1]] for group in groups]


def mandatory(value: Any, msg: str = "") -> Any:
    """Return the value. Raises a ValueError if it is undefined; `msg` is its text."""
    if type(value).__name__ == "Undefined":
        raise ValueError(msg or "a mandatory value is undefined")
    return value


def hash_text(value: Any, kind: str = "sha256") -> str:
    """Return the hash of a value's text, in hex. Raises a ValueError for an unknown kind."""
    if kind not in ("sha1", "sha256", "sha512", "md5"):
        raise ValueError(f"there is no hash {kind!r}")
    return hashlib.new(kind, str(value).encode(), usedforsecurity=False).hexdigest()


def extract(key: Any, container: Any, more: Any = None) -> Any:
    """Return `container[key]`. `more`: a further key below that, or a list of such keys."""
    value = container[key]
    for part in (more if isinstance(more, list) else [more]) if more is not None else ():
        value = value[part]
    return value


def _listed(name: str) -> Callable[..., list[Any]]:
    """Return a filter of Jinja, such as `map`, that gives a list, so that `| last` and `| length` work."""
    lazy = JINJA_FILTERS[name]

    @pass_context
    def listed(context: Context, *args: Any, **kwargs: Any) -> list[Any]:
        return list(lazy(context, *args, **kwargs))

    return listed


@pass_environment
def unique(environment: jinja2.Environment, value: Iterable[Any], *args: Any, **kwargs: Any) -> list[Any]:
    """Return the list without repeated items. Unlike Jinja's own filter, the result is a list."""
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


class _Missing(NamedTuple):
    """What an UndefinedError says, in parts, so that `Scope` can find the position and a fix."""

    what: str
    name: str | None = None
    """The name that is missing; None if there is none."""
    keys: Sequence[str] | None = None
    """Existing keys, if a mapping lacks the name; None if the name is a variable."""
    at: TemplateText | None = None
    """The template of a variable that needs the missing one."""


class Undefined(jinja2.ChainableUndefined, jinja2.StrictUndefined):
    """An undefined value. `x.y.z | default(…)` works as in Ansible; other uses are errors that name what exists."""

    @property
    def _undefined_message(self) -> Any:
        name: Any = self._undefined_name
        owner: Any = self._undefined_obj
        if self._undefined_hint:
            return self._undefined_hint
        if owner is missing:
            return _Missing(f"'{name}' is undefined", name)
        if isinstance(owner, Mapping):
            return _Missing(f"there is no '{name}' in it", name, [str(key) for key in itertools.islice(owner, 200)])
        if isinstance(owner, list | tuple) and isinstance(name, int):
            return _Missing(f"there is no item {name}: the list has {len(owner)} items")
        return _Missing(f"a value of type {type(owner).__name__} has no {name!r}")


class _LazyContext(Context):
    """Looks variables up on first use: a variable may be a template itself."""

    def resolve_or_missing(self, key: str) -> Any:
        scope: Scope | None = self.parent.get("\0scope")
        default = super().resolve_or_missing(key)
        return default if scope is None or key in self.vars else scope.look_up(key, default)


class _Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, which also refuses to format text (`%` and `format`) and to call types."""

    intercepted_binops = frozenset({"%"})
    context_class = _LazyContext

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "%" and isinstance(left, str):
            raise SecurityError("text % values; use ~ to put texts together")
        return super().call_binop(context, operator, left, right)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        return not (isinstance(obj, str) and attr in ("format", "format_map")) and super().is_safe_attribute(
            obj, attr, value
        )

    def is_safe_callable(self, obj: Any) -> bool:
        return super().is_safe_callable(obj) and not isinstance(obj, type)


class Templates:
    """Jinja's environment for one call of ipexctl."""

    def __init__(self) -> None:
        self.secrets: set[str] = set()
        """Values that are masked in all output."""
        self.env = _Sandbox(
            undefined=Undefined,
            extensions=["jinja2.ext.do", "jinja2.ext.loopcontrols"],
            keep_trailing_newline=True,
            trim_blocks=True,
            cache_size=0,
        )
        self.env.filters.update(FILTERS)
        self.env.tests.update(TESTS)
        for name in ("pprint", "urlize", "xmlattr", "format"):
            self.env.filters.pop(name)
        self.env.globals.pop("lipsum")
        self.env.globals.update({**dict.fromkeys(_LOOKUPS, self._lookup), "omit": "\x00omit"})
        self.compiled = lru_cache(4096)(self._compile)

    def _compile(self, text: str, kind: str) -> Callable[..., Any]:
        """Return a function of the variables. A text that is a single `{{ … }}` yields that value itself, no text."""
        if kind == "text" and (bare := text.strip()).startswith("{{") and bare == text.rstrip("\n"):
            (*others, output) = self.env.parse(bare).body
            if not others and isinstance(output, nodes.Output) and len(output.nodes) == 1:
                text, kind = bare[2:-2].strip("-+"), "expr"
        if kind == "expr":
            return self.env.compile_expression(text, undefined_to_none=False)
        return self.env.from_string(text).render

    def check(self, templates: Iterable[TemplateText], *, lookups: bool = True) -> list[FileError]:
        """Return errors of syntax, and unknown filters, tests and, with `lookups`, lookups. Evaluates nothing."""
        errors = (self._mistake(template, lookups) for template in templates)
        return [error for error in errors if error is not None]

    def _mistake(self, template: TemplateText, lookups: bool) -> FileError | None:
        """Return the first error of a template; None if there is none."""

        def error(line: int | None, what: str, part: str | None = None, fix: str = "") -> FileError:
            return template.spot(line, part).error(f"Jinja: {what}", fix=fix)

        try:
            return self._unknown(template, lookups, error)
        except TemplateSyntaxError as problem:
            message = str(problem.message)
            if template.kind == "expr":
                message = message.replace("end of print statement", "end of it").replace("')'", "the end")
            return error(problem.lineno, message)
        except RecursionError:
            return error(None, "this template is nested too deep")
        except ValueError as problem:  # a number of thousands of digits
            return error(None, str(problem))

    def _unknown(self, template: TemplateText, lookups: bool, error: Callable[..., FileError]) -> FileError | None:
        """Return the first use of what does not exist here; None if there is none. Raises errors of Jinja's parser."""
        tree = self.env.parse("{{ (" + template.text + ") }}" if template.kind == "expr" else template.text)
        for node in tree.find_all((nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends)):
            return error(node.lineno, "a template can't load another one")
        for kind, label, known in ((nodes.Filter, "filter", self.env.filters), (nodes.Test, "test", self.env.tests)):
            for used in tree.find_all(kind):
                if used.name not in known:
                    fix = did_you_mean(used.name, sorted(known))
                    return error(used.lineno, f"there is no {label} {used.name!r}", used.name, fix)
        for call in tree.find_all(nodes.Call) if lookups else ():
            if isinstance(call.node, nodes.Name) and call.node.name in _LOOKUPS:
                kind_of_lookup = call.args[0] if call.args else None
                name = kind_of_lookup.value if isinstance(kind_of_lookup, nodes.Const) else None
                if isinstance(name, str) and name.removeprefix(_BUILTIN) != "env":
                    what = f"there is no {call.node.name}({name!r}), only {call.node.name}('env', 'NAME')"
                    fix = _LOOKUP_FIXES.get(name.removeprefix(_BUILTIN), _LOOKUP_FIX)
                    return error(call.lineno, what, call.node.name, fix)
        return None

    def check_names(self, templates: Iterable[TemplateText], hints: Mapping[str, str]) -> Iterator[FileError]:
        """Yield an error for each template that prints a name in `hints`, which is never set.

        A name in a filter, test or condition is no error: it may be meant to be undefined. `hints`: name → fix.
        """
        for template in templates:
            if template.kind == "expr" or not any(name in template.text for name in hints):
                continue
            for output in self.env.parse(template.text).body:
                for node in output.nodes if isinstance(output, nodes.Output) else ():
                    while isinstance(node, nodes.Getattr | nodes.Getitem):
                        node = node.node
                    if isinstance(node, nodes.Name) and node.name in hints:
                        position = template.spot(node.lineno, node.name)
                        yield position.error(f"'{node.name}' is undefined", fix=hints[node.name])

    def _lookup(self, kind: str, *names: str, default: Any = None) -> Any:
        """Return variables of the environment, which count as secrets. Raises a SecurityError for other kinds."""
        if kind.removeprefix(_BUILTIN) != "env":
            raise SecurityError(f"lookup({kind!r}); only lookup('env', 'NAME') is supported")
        values = [os.environ.get(name, default if default is not None else "") for name in names]
        self.secrets.update(str(value) for value in values if value and len(str(value)) > 3)
        return values[0] if len(values) == 1 else values


class Scope:
    """The variables of one host for one task, each filled when it is first used.

    `layers`: mappings of variables, the strongest last. `hostvars`: host → its variables.
    """

    def __init__(
        self, templates: Templates, layers: Sequence[Mapping[str, Value]], hostvars: Mapping[str, Any] | None = None
    ) -> None:
        self._templates = templates
        self._variables: dict[str, Value] = {}
        for layer in layers:
            self._variables.update(layer)
        self._filled: dict[str, Any] = {"hostvars": hostvars or {}}
        self._at: TemplateText | None = None
        """The template that is being filled; after an error, the one with the mistake."""
        self._depth = 0

    def fill(self, value: Value) -> Any:
        """Return the value with its templates filled. Raises a FileError at the position of the mistake."""
        if not (templates := templates_in(value)):
            return self._fill(value)
        try:
            with limits(str(templates[0].position)):
                filled = self._fill(value)
                if len(json.dumps(filled)) > _MAX_RESULT:  # a ValueError for a number of thousands of digits
                    raise TemplateError(f"the result has more than {_MAX_RESULT:,} characters")
            return filled
        except (Exception, TimeUp) as error:  # noqa: BLE001  # any exception of a template is the user's to see
            problem = self._explained(error, self._at or templates[0])
        self._at = None
        raise problem  # here, for the traceback of `error` keeps what the template made

    def holds(self, condition: TemplateText) -> bool:
        """True if a condition holds; a text such as `no` or `false` counts as false."""
        value = self.fill(condition)  # the value of -e flag=false is text
        return value.strip().lower() not in _FALSE if isinstance(value, str) else bool(value)

    def truths(self, conditions: Sequence[TemplateText]) -> list[tuple[str, bool]]:
        """Return each condition and whether it holds, up to the first that does not."""
        truths: list[tuple[str, bool]] = []
        for condition in conditions:
            truths.append((condition.text, self.holds(condition)))
            if not truths[-1][1]:
                break
        return truths

    def look_up(self, name: str, default: Any) -> Any:
        """Return a variable, filled, or `default` if there is none.

        A variable that needs an undefined one is undefined itself, so that `is defined` and `default` work.
        """
        if name not in self._filled:
            if name not in self._variables:
                return default
            outer = self._at
            try:
                self._filled[name] = self._fill(self._variables[name])
            except UndefinedError as error:
                cause: Any = error.args[0]
                missing = cause if isinstance(cause, _Missing) else _Missing(str(cause))
                hint: Any = missing._replace(at=missing.at or self._at)
                self._filled[name] = Undefined(hint=hint)
                self._at = outer
        return self._filled[name]

    def _fill(self, value: Value) -> Any:
        """Return the value with its templates filled; raises whatever a template raises."""
        if isinstance(value, TemplateText):
            outer, self._at = self._at, value
            if self._depth > _MAX_DEPTH:
                raise RecursionError
            self._depth += 1
            try:
                filled = _plain(self._templates.compiled(value.text, value.kind)({"\0scope": self}))
            finally:
                self._depth -= 1
            self._at = outer
            return filled
        if isinstance(value, dict):
            return {key: self._fill(item) for key, item in value.items()}
        return [self._fill(item) for item in value] if isinstance(value, list | tuple) else value

    def as_mapping(self) -> LazyMapping:
        """Return the variables as a mapping whose values are filled when they are used."""
        return LazyMapping(sorted(self._variables), lambda name: self.look_up(name, None))

    def _explained(self, error: BaseException, at: TemplateText) -> FileError:
        """Return the error for the user, at the template with the mistake, with a fix if the cause is known."""
        what, fix, name = re.sub(r"\s+", " ", str(error)[:2000]) or type(error).__name__, "", None
        if isinstance(error, TimeUp):
            fix = "it never ends, or does work that belongs in a task"
        elif isinstance(error, MemoryError):
            what = "this template needs too much memory"
        elif isinstance(error, RecursionError):
            what = "these templates refer to each other in a circle"
        elif isinstance(error, UndefinedError) and isinstance(error.args[0], _Missing):
            what, name, at = error.args[0].what, error.args[0].name, error.args[0].at or at
            fix = "" if name is None else self._fix_of(name, error.args[0].keys)
        elif isinstance(error, SecurityError):
            what = f"not allowed in a template: {error}"
            fix = "templates cannot read files, run commands or reach into Python: use a task, with register"
        elif isinstance(error, TypeError) and "'str'" in what and re.search(r"'(int|float)'", what):
            fix = "values from -e and from commands are strings: NAME | int, or NAME | float"
        line = error.lineno if isinstance(error, TemplateSyntaxError) else None
        return at.spot(line, name).error(what[:1000], fix=fix)

    def _fix_of(self, name: str, keys: Sequence[str] | None) -> str:
        """Return what to write in place of an undefined name. `keys`: as of `_Missing`."""
        if keys is not None:
            listing = ", ".join(keys[:12]) + (" …" if len(keys) > 12 else "")
            return did_you_mean(name, keys, f"one of: {listing}" if keys else "it is empty")
        if name in ("facts", "ansible_facts"):
            return "this play has gather_facts: false, so it has no facts"
        if name in HINTS:
            return HINTS[name]
        is_fact = name.startswith("ansible_")
        fix: str = Fix("use facts.… instead of Ansible's ansible_… variables: `ipexctl doctor --json` shows all facts")
        fix = fix if is_fact else f"-e {name}=VALUE, or a default: {{{{ {name} | default('') }}}}"
        return did_you_mean(name, sorted({"facts", "hostvars", *self._variables}), fix, cutoff=0.85 if is_fact else 0.6)


class LazyMapping(Mapping[str, Any]):
    """A mapping whose values are looked up when they are used."""

    def __init__(self, names: Iterable[str], look_up: Callable[[str], Any]) -> None:
        self._names = list(names)
        self._look_up = look_up

    def __getitem__(self, name: str) -> Any:
        if name not in self._names:
            raise KeyError(name)
        return self._look_up(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _plain(value: Any, depth: int = 0) -> Any:
    """Return what a template yields as JSON types. Raises an UndefinedError for undefined values, also nested ones."""
    if isinstance(value, Undefined):
        raise UndefinedError(value._undefined_message)
    if value is None or isinstance(value, bool | int | str):
        return str(value) if isinstance(value, str) and type(value) is not str else value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if depth > _MAX_DEPTH:
        raise TemplateError("the result is nested too deep")
    if isinstance(value, Mapping):
        return {str(key): _plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, Iterable):
        return [_plain(item, depth + 1) for item in value]
    raise TemplateError(f"the result is not a value: {type(value).__name__}")
