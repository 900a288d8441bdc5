"""The variables visible to one template: layers, later ones win; variables with templates are filled on first use."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

from jinja2 import Undefined as JinjaUndefined
from jinja2 import UndefinedError

from ipexctl.playbook.ansible_names import HINTS

if TYPE_CHECKING:
    from ipexctl.playbook.renderer_env import Renderer

_MAX_DEPTH: Final = 60
_MAX_ITEMS: Final = 1_000_000
_MISSING: Final = object()


class BadTemplate(Exception):
    """A template whose result is not a value a playbook can hold."""


class Scope:
    """One host's variables during one job. `at` is the number of the template being filled."""

    def __init__(
        self,
        renderer: Renderer,
        layers: Mapping[str, tuple[dict[str, Any], bool]],
        hosts: Mapping[str, list[str]],
        host: str,
        local: list[list[Any]],
    ) -> None:
        self.at: int | None = None
        self._renderer = renderer
        self._all_layers = layers
        self._hosts = hosts
        self._layers: list[tuple[dict[str, Any], bool]] = []
        for name in hosts.get(host, ()):
            if name in ("@weak", "@strong"):
                self._layers += [(values, templated) for values, templated in local if templated is (name == "@weak")]
            elif name in layers:
                self._layers.append(layers[name])
        self._filled: dict[str, Any] = {}
        self._depth = 0
        self._variables = {"\0scope": self.look_up}

    def names(self) -> set[str]:
        return {"hostvars", *(name for values, _ in self._layers for name in values)}

    def look_up(self, name: str, default: Any) -> Any:
        if name == "hostvars":
            return _HostVars(self)
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
        """The filled value; undefined if it needs an undefined variable, for `is defined` and `default`."""
        outer = self.at
        try:
            return self.fill(value)
        except UndefinedError as error:
            inner, self.at = self.at, outer
            message = str(error)
            return self._renderer.undefined(message if message.startswith("\3") else f"\3{inner}\3{message}")

    def of_host(self, name: str) -> Scope:
        return Scope(self._renderer, self._all_layers, self._hosts, name, [])

    def is_host(self, name: str) -> bool:
        return name in self._hosts

    def host_names(self) -> list[str]:
        return [name for name in self._hosts if name]

    def fill(self, value: Any) -> Any:
        """The value with all its templates filled."""
        if isinstance(value, dict):
            if "\0t" in value:
                return self._template(value)
            return {key: self.fill(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.fill(item) for item in value]
        return value

    def expression(self, condition: Mapping[str, Any]) -> Any:
        with self._inside(condition):
            return _plain(self._renderer.expression(condition["\0t"], self._variables))

    def _template(self, template: Mapping[str, Any]) -> Any:
        if template["\0k"] == "expr":
            return self.expression(template)
        with self._inside(template):
            may_be_value = template["\0k"] == "text"
            return _plain(self._renderer.render(template["\0t"], self._variables, may_be_value=may_be_value))

    def _inside(self, template: Mapping[str, Any]) -> _Inside:
        return _Inside(self, template["\0p"])

    def undefined(self, message: str) -> tuple[str, str, str | None]:
        """For a message of Undefined: the problem, the fix, and the word to point at."""
        if message.startswith("\3"):
            _, at, message = message.split("\3", 2)
            self.at = int(at)
        name_match = re.fullmatch("\1(.*)\2", message, re.DOTALL)
        if name_match:
            name = name_match[1]
            known = sorted({"facts", *self.names()} - {name})
            near = (
                []
                if name in HINTS
                else get_close_matches(name, known, n=1, cutoff=0.85 if _is_ansible_name(name) else 0.6)
            )
            fix = f"did you mean '{near[0]}'?" if near else _fix_for_name(name)
            return f"'{name}' is undefined", fix, name
        attribute_match = re.fullmatch("\1([^\1]*)\1(.*)", message, re.DOTALL)
        if attribute_match:
            name, keys = attribute_match[1], attribute_match[2].split()
            near = get_close_matches(name, keys, n=1)
            listing = ", ".join(keys[:12]) + (" …" if len(keys) > 12 else "")
            fix = f"did you mean '{near[0]}'?" if near else f"there are: {listing}" if keys else "it is empty"
            return f"there is no '{name}' in it", fix, name
        return message, "", None


class _Inside:
    """Sets the position for errors to this template; an error keeps the position of the innermost template."""

    def __init__(self, scope: Scope, at: int) -> None:
        self._scope, self._at = scope, at
        self._before: int | None = None

    def __enter__(self) -> None:
        scope = self._scope
        self._before = scope.at
        scope.at = self._at
        scope._depth += 1
        if scope._depth > _MAX_DEPTH:
            raise RecursionError

    def __exit__(self, kind: object, *_: object) -> None:
        self._scope._depth -= 1
        if kind is None:
            self._scope.at = self._before


class _HostVars(Mapping[str, Any]):
    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    def __getitem__(self, name: str) -> Any:
        if not self._scope.is_host(name):
            raise KeyError(name)
        return _HostVariables(self._scope.of_host(name))

    def __iter__(self) -> Iterator[str]:
        return iter(self._scope.host_names())

    def __len__(self) -> int:
        return len(self._scope.host_names())


class _HostVariables(Mapping[str, Any]):
    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    def __getitem__(self, name: str) -> Any:
        value = self._scope.look_up(name, _MISSING)
        if value is _MISSING:
            raise KeyError(name)
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._scope.names() - {"hostvars"}))

    def __len__(self) -> int:
        return len(self._scope.names())


def _is_ansible_name(name: str) -> bool:
    return name.startswith("ansible_")


def _fix_for_name(name: str) -> str:
    if name in ("facts", "ansible_facts"):
        return "gather_facts: false in this play leaves them out"
    if name in HINTS:
        return HINTS[name]
    if _is_ansible_name(name):
        return "use facts.… in place of Ansible's ansible_… variables: ipexctl doctor --json shows all facts"
    return f"-e {name}=VALUE, or a default: {{{{ {name} | default('') }}}}"


def _plain(value: Any, depth: int = 0) -> Any:
    """The value as JSON types. An undefined value, nested ones included, is an error."""
    if isinstance(value, JinjaUndefined):
        raise UndefinedError(value._undefined_message)
    if value is None or isinstance(value, bool | int | str):
        return str(value) if isinstance(value, str) and type(value) is not str else value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if depth > _MAX_DEPTH:
        raise BadTemplate("this comes to something nested too deep")
    if isinstance(value, Mapping):
        return {str(key): _plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset | range) or hasattr(value, "__next__"):
        items = []
        for item in value:
            items.append(_plain(item, depth + 1))
            if len(items) > _MAX_ITEMS:
                raise BadTemplate(f"this comes to a list of more than {_MAX_ITEMS:,} items")
        return items
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if type(value).__name__ in ("dict_keys", "dict_values", "dict_items"):
        return [_plain(item, depth + 1) for item in value]
    raise BadTemplate(f"this comes to no value: {type(value).__name__}")
