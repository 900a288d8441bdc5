"""Parses JSON, and converts records to it and back; a field's type annotation decides which values are valid.

`decode` is for requests and replies: an invalid value raises a ValueError that names the field. `decode_valid` is for
files: it drops invalid values, because one damaged value must not hide the rest of a run's record. A module may have
`FIELD_DECODERS` for its own types.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import stat
import sys
from functools import lru_cache, partial
from typing import Any, Callable, Collection, Iterable, Iterator, Mapping, NamedTuple, TypeVar, Union

AnyPath = Union[str, bytes, "os.PathLike[str]"]
MAX_DEPTH = 100
MAX_FILE = 512 << 20
"""Bytes. The list of a tree with a million files takes 200 MB."""
_MAX_DIGITS = 20
_TOO_DEEP = "it is nested too deeply"
_OUT_OF_RANGE = "it has a number that is out of range"
_LONE_SURROGATE = re.compile("[\ud800-\udc7f\udd00-\udfff]")
_ESCAPED_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


class JsonError(ValueError):
    def __init__(self, problem: str, position: int | None = None, place: str = "") -> None:
        super().__init__(problem + place)
        self.problem = problem
        self.position = position
        """Where the text stops being JSON; None if it is JSON with a refused value."""


def parse_json(text: str | bytes | bytearray, *, any_number: bool = False) -> Any:
    """Parse a JSON text; raises a JsonError.

    `any_number` allows infinite numbers and any number of digits, for a user's templates.
    """
    try:
        if not isinstance(text, str):
            text = text.decode()
            text = text[1:] if text.startswith("\ufeff") else text  # some editors write a byte order mark
        tokens = _tokens_of(text)
        has_long_number = _LONG_NUMBER in tokens.translate(_DIGITS)
        value = (_ANY_NUMBER if any_number else _CHECKED if has_long_number else _PLAIN).decode(text)
    except json.JSONDecodeError as error:
        where = f": line {error.lineno}, column {error.colno}"
        raise JsonError(error.msg[:1].lower() + error.msg[1:], error.pos, where) from None
    except JsonError:
        raise
    except UnicodeDecodeError:
        raise JsonError("it is not in UTF-8") from None
    except RecursionError:
        raise JsonError(_TOO_DEEP) from None
    except ValueError:  # more digits than Python accepts
        raise JsonError(_OUT_OF_RANGE) from None
    if _is_deeper(tokens.translate(_BRACKETS, _NO_BRACKETS), MAX_DEPTH):
        raise JsonError(_TOO_DEEP)
    if "\\u" in text and _ESCAPED_SURROGATE.search(text) and _has_lone_surrogate(value):
        raise JsonError("it has half a surrogate pair")
    return value


def parse_object(text: str | bytes | bytearray) -> dict[str, Any]:
    """Parse a JSON text that is an object. Raises a JsonError if it is not."""
    return as_object(parse_json(text))


def as_object(value: Any) -> dict[str, Any]:
    """Return the value if it is a JSON object. Raises a JsonError if it is not."""
    if not isinstance(value, dict):
        raise JsonError("it is not a JSON object")
    return value


def read_json_file(path: AnyPath, limit: int = MAX_FILE) -> Any:
    """Parse a regular file. Raises an OSError if it can't be read, and a JsonError if it is not JSON or larger than
    `limit` bytes."""
    number = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK)
    with open(number, "rb") as file:
        if not stat.S_ISREG(os.fstat(number).st_mode):
            raise JsonError("it is not a regular file")
        data = file.read(limit + 1)
    if len(data) > limit:
        raise JsonError(f"it is larger than {limit >> 20} MB")
    return parse_json(data)


def _finite(text: str) -> float:
    number = float(text)
    if number - number != 0.0:  # 1e999
        raise JsonError(_OUT_OF_RANGE)
    return number


def _integer(text: str) -> int:
    if len(text) > _MAX_DIGITS:
        raise JsonError(_OUT_OF_RANGE)
    return int(text)


def _refuse_constant(_: str) -> float:
    raise JsonError(_OUT_OF_RANGE)


_CHECKED = json.JSONDecoder(parse_float=_finite, parse_int=_integer, parse_constant=_refuse_constant)
_PLAIN = json.JSONDecoder(parse_float=_finite, parse_constant=_refuse_constant)
"""Faster, because it calls nothing for each integer."""
_ANY_NUMBER = json.JSONDecoder()
_LONG_NUMBER = b"0" * (_MAX_DIGITS + 1)
_DIGITS = bytes.maketrans(b"-123456789", b"0000000000")
_BRACKETS = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def _tokens_of(text: str) -> bytes:
    """Return the text without strings. A list of files has 2,000 rows, and only methods of str and bytes are fast
    enough."""
    if "\\" in text:
        text = text.replace("\\\\", "").replace('\\"', "")
    return "".join(text.split('"')[::2]).encode(errors="replace")


def _is_deeper(brackets: bytes, depth: int) -> bool:
    for _ in range(depth):
        brackets = brackets.replace(b"[]", b"")
    return bool(brackets)


def _has_lone_surrogate(value: Any) -> bool:
    pending = [value]
    while pending:
        item = pending.pop()
        if type(item) is str:
            if _LONE_SURROGATE.search(item):
                return True
        elif type(item) is dict:
            pending += item
            pending += item.values()
        elif type(item) is list:
            pending += item
    return False


Value = TypeVar("Value")
FieldDecoder = Callable[[Any, str], Any]
"""Value and name of a field → decoded value; raises a ValueError."""
_LARGEST = 1 << 63
_SMALLEST = 1e-9
_EMPTY = {"bool": False, "float": 0.0, "int": 0, "str": "", "tuple": (), "dict": {}, "Mapping": {}}


PRIVATE = {"private": True}
"""`metadata` of a dataclass's field that no document has."""
_SCALARS = (str, int, float, type(None))


def encode(value: Any, without: Collection[str] = ()) -> Any:
    """Return the value as JSON has it. `without`: fields of this record that are left out."""
    if isinstance(value, _SCALARS):
        return value
    if hasattr(value, "_asdict"):
        return {name: encode(getattr(value, name)) for name in value._fields if name not in without}
    if isinstance(value, Mapping):
        return {name: encode(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        is_of_scalars = value and isinstance(value[0], _SCALARS)
        return list(value) if is_of_scalars else [encode(item) for item in value]
    fields = getattr(value, "__dataclass_fields__", {})
    public = (name for name, field in fields.items() if name not in without and not field.metadata)
    return {name: encode(getattr(value, name)) for name in public} if fields else value


def document_from(kind: Callable[..., Value], *sources: object, **own: object) -> Value:
    """Return a document whose fields are `own`, else those of the first source that has one of that name, else their
    defaults. `tests/unit/ui/test_schemas.py` compares the types, which mypy does not see."""
    missing = [name for name, _, _ in _fields(kind) if name not in own]
    for name, source in itertools.product(missing, sources):
        if name not in own and hasattr(source, name):
            own[name] = getattr(source, name)
    return kind(**own)


def decode(kind: Callable[..., Value], document: object, name: str, given: Mapping[str, object] | None = None) -> Value:
    """Decode a record; raises a ValueError. A missing or null field gets its default. `given`: other fields."""
    values = dict(given or {})
    document = check_type(dict, document, name)
    for field, type_, has_default in _fields(kind):
        value = document.get(field)
        if field not in values and not (value is None and has_default):
            values[field] = decoder_of(type_, kind.__module__)(value, field)
    return kind(**values)


def decode_valid(kind: Callable[..., Value], document: object) -> Value:
    """Decode a file of any version. A missing or invalid field gets its default; without one it becomes empty."""
    document = document if isinstance(document, dict) else {}
    values = {}
    for field, type_, has_default in _fields(kind):
        try:
            values[field] = decoder_of(type_, kind.__module__, lenient=True)(document.get(field), field)
        except ValueError:
            if not has_default:
                values[field] = _empty(type_, kind.__module__)
    return kind(**values)


def check_type(kind: type[Value], value: object, field: str) -> Value:
    """Return the value if it is of exactly this type: a bool is no int. Raises a ValueError that names the field."""
    if type(value) is kind:
        return value
    raise ValueError(f"{field} is missing" if value is None else f"{field} is not of type {kind.__name__}")


class _TypeShape(NamedTuple):
    container: str
    """`optional`, `tuple`, `mapping`, or empty."""
    item: str
    """Type of the items, or of the value itself."""
    key: str = ""


def _shape_of(type_: str) -> _TypeShape:
    if type_.endswith(" | None"):
        return _TypeShape("optional", type_[: -len(" | None")])
    outer, bracket, rest = type_.partition("[")
    if not bracket:
        return _TypeShape("", type_)
    inner = rest[:-1]
    if outer == "tuple":
        return _TypeShape("tuple", inner[: -len(", ...")])
    key, _, item = inner.partition(", ")
    return _TypeShape("mapping", item, key)


@lru_cache(maxsize=None)
def decoder_of(type_: str, module: str = __name__, lenient: bool = False) -> FieldDecoder:
    """Return the decoder for a type as annotations write it. `module`: where its names are defined; `lenient`: drop
    invalid items of collections and records."""
    names = vars(sys.modules[module])
    # A module's own decoder goes first: it may be stricter for a basic type, or decode `X | None` itself.
    own: FieldDecoder | None = names.get("FIELD_DECODERS", {}).get(type_) or _BASIC_DECODERS.get(type_)
    if own is not None:
        return own
    shape = _shape_of(type_)
    if not shape.container:
        kind: Callable[..., Any] = names[type_]
        if not isinstance(kind, type):  # a Literal, whose words of a newer version must not make a record unreadable
            return partial(check_type, str)
        return partial(_lenient_record, kind) if lenient else partial(decode, kind)
    decode_item = decoder_of(shape.item, module, lenient)
    if shape.container == "optional":
        return partial(_optional, decode_item)
    if shape.container == "tuple":
        return partial(_tuple, decode_item, lenient)
    return partial(_mapping, int if shape.key == "int" else str, decode_item, lenient)


@lru_cache(maxsize=None)
def _fields(kind: Any) -> tuple[tuple[str, str, bool], ...]:
    if issubclass(kind, tuple):
        types = {name: getattr(type_, "__forward_arg__", type_) for name, type_ in kind.__annotations__.items()}
        return tuple((name, type_, name in kind._field_defaults) for name, type_ in types.items())
    from dataclasses import MISSING, fields  # takes 10 ms, and nodes have no dataclasses

    return tuple((f.name, str(f.type), (f.default, f.default_factory) != (MISSING, MISSING)) for f in fields(kind))


def _empty(type_: str, module: str) -> object:
    outer = type_.partition("[")[0]
    if type_.endswith(" | None"):
        return None
    if outer in _EMPTY:
        return _EMPTY[outer]
    kind = vars(sys.modules[module])[type_]
    return decode_valid(kind, {}) if isinstance(kind, type) else ""  # a Literal of words


def _lenient_record(kind: Callable[..., Value], value: object, field: str) -> Value:
    return decode_valid(kind, check_type(dict, value, field))


def _optional(decode_value: FieldDecoder, value: object, field: str) -> object:
    return None if value is None else decode_value(value, field)


def _tuple(decode_item: FieldDecoder, lenient: bool, value: object, field: str) -> tuple[Any, ...]:
    items = check_type(list, value, field)
    return tuple(item for _, item in _decode_items(decode_item, lenient, enumerate(items), field))


def _mapping(
    key: Callable[[str], object], decode_item: FieldDecoder, lenient: bool, value: object, field: str
) -> dict[Any, Any]:
    items = check_type(dict, value, field).items()
    return dict(_decode_items(decode_item, lenient, ((key(name), item) for name, item in items), field))


def _decode_items(
    decode_item: FieldDecoder, lenient: bool, items: Iterable[tuple[object, object]], field: str
) -> Iterator[tuple[object, Any]]:
    field = f"an item of {field}"
    for name, item in items:
        try:
            yield name, decode_item(item, field)
        except ValueError:
            if not lenient:
                raise


def _checked_integer(value: object, field: str) -> int:
    number = check_type(int, value, field)
    if not abs(number) < _LARGEST:
        raise ValueError(f"{field} is out of range")
    return number


def decode_float(value: object, field: str) -> float:
    """Return the number as a float. Raises a ValueError for any other value, NaN, and numbers of 2**63 or more."""
    number = _checked_integer(value, field) if type(value) is int else check_type(float, value, field)
    if not abs(number) < _LARGEST:  # also false for NaN
        raise ValueError(f"{field} is out of range")
    return float(number)


def _any_finite(value: object, field: str) -> float:
    """Return a number that a script computed, however large: a loss, or a sum of its parameters. Refuse NaN and
    infinity."""
    if type(value) is float and value - value == 0.0:
        return value
    return decode_float(value, field)


Computed = float
_BASIC_DECODERS: dict[str, FieldDecoder] = {
    "bool": partial(check_type, bool),
    "Computed": _any_finite,
    "float": decode_float,
    "int": _checked_integer,
    "str": partial(check_type, str),
    "Json": partial(check_type, dict),
}


def _not_negative(decode_number: FieldDecoder, value: object, field: str) -> Any:
    number = decode_number(value, field)
    if number < 0:
        raise ValueError(f"{field} is out of range")
    return number


def decode_port(value: object) -> int:
    """Return the number of a TCP port. Raises a ValueError for any other value."""
    number = _checked_integer(value, "its port")
    if not 0 < number < 1 << 16:
        raise ValueError("its port is out of range")
    return number


def _natural_float(value: object, field: str) -> float:
    """Return a number that is not negative; zero for less than `_SMALLEST`: a quotient by such a number would be too
    large for a float."""
    number: float = _not_negative(decode_float, value, field)
    return number if number >= _SMALLEST else 0.0


decode_natural = partial(_not_negative, _checked_integer)
NATURAL: Mapping[str, FieldDecoder] = {"int": decode_natural, "float": _natural_float}
"""`FIELD_DECODERS` for a module without negative numbers."""
