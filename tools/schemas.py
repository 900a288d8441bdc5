"""JSON Schemas of the documents that are a promise, made from the annotations of their records:
`python -m tools.schemas` writes `ipexctl/schemas/*.json`. A field's docstring becomes its description.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import sys
import typing
from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import ipexctl
from ipexctl.doctor.finding import DoctorReport, HostReport
from ipexctl.hosts.host import Host
from ipexctl.node.common.plan import SCHEMA as PLAN_SCHEMA
from ipexctl.node.common.plan import Plan
from ipexctl.node.common.rank_options import RANK_OPTIONS
from ipexctl.node.run.record.run_document import SCHEMA as RUN_SCHEMA
from ipexctl.node.run.record.run_document import RunDocument
from ipexctl.remote.outcome import HostResult, Report
from ipexctl.ui.run.events import KINDS
from ipexctl.ui.run.events import SCHEMA as EVENT_SCHEMA
from ipexctl.ui.run.why_document import SCHEMA as WHY_SCHEMA
from ipexctl.ui.run.why_document import WhyDocument

DIRECTORY = Path(ipexctl.__file__).parent / "schemas"
Schema = dict[str, Any]
_BASIC: dict[object, Schema] = {
    "str": {"type": "string"},
    "int": {"type": "integer"},
    "float": {"type": "number"},
    "Computed": {"type": "number"},
    "bool": {"type": "boolean"},
    "Json": {"type": "object"},
    "Facts": {"type": "object"},
    "Any": {},
}
_NULL: Schema = {"type": "null"}
_REFUSAL: Schema = {
    "description": "The call failed before there was anything to report.",
    "type": "object",
    "required": ["schema", "status", "reason", "fix"],
    "properties": {
        "schema": {"type": "string"},
        "status": {"enum": ["failed", "unreachable", "interrupted"]},
        "reason": {"type": "string"},
        "fix": {"type": "string"},
    },
}


@cache
def _names(module: ModuleType) -> dict[str, Any]:
    """Names of a module, with those that it imports for types alone."""
    found = dict(vars(module))
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("ipexctl."):
            source = importlib.import_module(node.module)
            found |= {alias.asname or alias.name: getattr(source, alias.name, None) for alias in node.names}
    return found


@cache
def _descriptions(kind: type) -> Mapping[str, str]:
    """Field → the text below it."""
    (tree,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(tree, ast.ClassDef)
    found = {}
    for before, node in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(node, ast.Expr) and isinstance(before, ast.AnnAssign) and isinstance(before.target, ast.Name):
            found[before.target.id] = inspect.cleandoc(ast.literal_eval(node.value)).replace("\n", " ")
    return found


class SchemaWriter:
    def __init__(self) -> None:
        self.definitions: dict[str, Schema] = {}

    def of(self, annotation: str, module: ModuleType) -> Schema:
        """The schema of a type as a record's field has it."""
        text = annotation.strip()
        if text in _BASIC:
            return dict(_BASIC[text])
        if " | " in text and "[" not in text.partition(" | ")[0]:
            first, _, rest = text.partition(" | ")
            return self._any_of(self.of(first, module), self.of(rest, module))
        if text.endswith(" | None"):
            return self._any_of(self.of(text.removesuffix(" | None"), module), _NULL)
        if text == "None":
            return _NULL
        outer, bracket, inner = text.partition("[")
        if bracket:
            inner = inner.removesuffix("]")
            if outer == "Literal":
                return {"enum": list(ast.literal_eval(f"[{inner}]"))}
            if outer in ("tuple", "list", "Sequence"):
                return {"type": "array", "items": self.of(inner.removesuffix(", ..."), module)}
            assert outer in ("Mapping", "dict"), text
            return {"type": "object", "additionalProperties": self.of(inner.partition(", ")[2], module)}
        kind = _names(module)[text]
        if typing.get_origin(kind) is typing.Literal:
            return {"enum": list(typing.get_args(kind))}
        if typing.get_origin(kind) is tuple:
            return {"type": "array", "items": self._reference(typing.get_args(kind)[0])}
        assert isinstance(kind, type), text
        return self._reference(kind)

    def _any_of(self, first: Schema, second: Schema) -> Schema:
        if first.keys() == second.keys() == {"type"}:
            kinds = [[kind] if isinstance(kind, str) else kind for kind in (first["type"], second["type"])]
            return {"type": [*kinds[0], *kinds[1]]}
        return {"anyOf": [first, second]}

    def _reference(self, kind: type) -> Schema:
        if kind.__name__ not in self.definitions:
            self.definitions[kind.__name__] = {}
            self.definitions[kind.__name__] = self.object_of(kind)
        return {"$ref": f"#/$defs/{kind.__name__}"}

    def object_of(
        self,
        kind: type,
        first: Mapping[str, Schema] | None = None,
        *,
        only: Collection[str] = (),
        without: Collection[str] = (),
    ) -> Schema:
        """The schema of a record. `first`: further keys. `only` and `without`: its fields."""
        module, texts = sys.modules[kind.__module__], _descriptions(kind)
        properties = dict(first or {})
        for name, annotation in annotations_of(kind):
            if name in without or (only and name not in only):
                continue
            own = self.of(annotation, module)
            properties[name] = {"description": texts[name], **own} if name in texts else own
        return {"type": "object", "required": list(properties), "properties": properties}


def annotations_of(kind: Any) -> Iterator[tuple[str, str]]:
    """The fields of a record that its documents have."""
    if is_dataclass(kind):
        yield from ((field.name, str(field.type)) for field in fields(kind) if not field.metadata)
    else:
        for name, annotation in kind.__annotations__.items():
            yield name, getattr(annotation, "__forward_arg__", annotation)


def _document(title: str, body: Schema, writer: SchemaWriter) -> Schema:
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title}
    return {**head, **body, **({"$defs": writer.definitions} if writer.definitions else {})}


def _record(title: str, kind: type, schema: str, **more: Schema) -> Schema:
    writer = SchemaWriter()
    return _document(title, writer.object_of(kind, {"schema": {"const": schema}, **more}), writer)


def _plan() -> Schema:
    writer = SchemaWriter()
    properties = {"schema": {"const": PLAN_SCHEMA}, "world_size": _BASIC["int"], "hostfile": _BASIC["str"]}
    own = {"fast": writer.of("FastChoices", sys.modules[Plan.__module__])}
    choices = dict.fromkeys(RANK_OPTIONS, writer.of("Choice", sys.modules[Plan.__module__]))
    plan = writer.object_of(Plan, {**properties, **choices, **own}, without=("rank_options",))
    return _document("run --dry-run --json, and plan.json of a run", {"anyOf": [plan, _REFUSAL]}, writer)


def _events() -> Schema:
    writer = SchemaWriter()
    kinds = []
    for event, kind in KINDS.items():
        more: dict[str, Schema] = {
            "schema": {"const": EVENT_SCHEMA},
            "kind": {"const": kind},
            "time": {"type": ["number", "null"]},
        }
        described = {} if event is RunDocument else {"description": inspect.cleandoc(event.__doc__ or "")}
        kinds.append({**described, **writer.object_of(event, more)})
    return _document("run --events, attach --events: one object a line", {"anyOf": kinds}, writer)


def _hosts() -> Schema:
    """Doctor's records beside those of the other commands, each of which adds keys of its own."""
    writer = SchemaWriter()
    name = writer.object_of(Host, only=("name", "address"))["properties"]
    host = _either(*(writer.object_of(kind, name, without=("host",)) for kind in (HostResult, HostReport)))
    summary = inspect.getattr_static(Report, "summary").fget
    counts = writer.of(inspect.get_annotations(summary)["return"], sys.modules[Report.__module__])
    first: dict[str, Schema] = {
        "schema": {"type": "string", "pattern": "^ipexctl\\.[a-z-]+/1$"},
        "hosts": {"type": "array", "items": host},
        "summary": {"description": inspect.cleandoc(summary.__doc__ or ""), **counts},
    }
    report = _either(*(writer.object_of(kind, first, without=("hosts",)) for kind in (Report, DoctorReport)))
    return _document("--json of every command on hosts", {"anyOf": [report, _REFUSAL]}, writer)


def _either(first: Schema, second: Schema) -> Schema:
    """The schema of either record, with the keys of both required."""
    properties = {**first["properties"]}
    for name, own in second["properties"].items():
        known = properties.get(name, own)
        words = {"enum": list(dict.fromkeys((*known["enum"], *own["enum"])))} if "enum" in own else {}
        properties[name] = {**own, **known, **words}
    return {
        "type": "object",
        "required": [each for each in first["required"] if each in second["required"]],
        "properties": properties,
    }


def schemas() -> dict[str, Schema]:
    """Name of the file → its schema."""
    run = _record("A run: --summary, --notify; in ps, wait, why and the event `end`", RunDocument, RUN_SCHEMA)
    return {
        "run": run,
        "why": _record("why --json: a run and its causes", WhyDocument, WHY_SCHEMA),
        "plan": _plan(),
        "hosts": _hosts(),
        "event": _events(),
    }


def text_of(value: Any, indent: str = "") -> str:
    """JSON with one line for what fits into 120 columns."""
    line = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, dict | list) or len(indent) + len(line) < 100:
        return line
    inner = indent + " "
    if isinstance(value, list):
        return f"[\n{inner}" + f",\n{inner}".join(text_of(item, inner) for item in value) + f"\n{indent}]"
    items = (f"{json.dumps(key)}: {text_of(item, inner)}" for key, item in value.items())
    return f"{{\n{inner}" + f",\n{inner}".join(items) + f"\n{indent}}}"


if __name__ == "__main__":
    DIRECTORY.mkdir(exist_ok=True)
    for name, schema in schemas().items():
        (DIRECTORY / f"{name}.json").write_text(text_of(schema) + "\n")
