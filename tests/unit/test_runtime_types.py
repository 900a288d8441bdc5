"""Types that are read at run time can be found there: a name that only mypy imports would be an error of the user's.

ruff's TC004 finds a name below `if TYPE_CHECKING:` that code uses. It doesn't see types that are found by the text of
an annotation, as `json_records.py` does; these are collected here.
"""

from __future__ import annotations

import ast
import pkgutil
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import ipexctl
from doc_blocks import ROOT
from ipexctl.node.common.json_records import _fields, decoder_of
from ipexctl.node.run.connection.messages import MESSAGES, BareMessage

MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(ipexctl.__path__, "ipexctl.")
    if not module.name.startswith("ipexctl.inrank.")  # which imports torch, and decodes no records
)
PROGRAMS = {"ipexctl.__main__", "ipexctl.node.__main__", "ipexctl.node.run.rank.sitecustomize"}
"""Which do something when they are imported."""
DECODES = re.compile(r"\bdecode(_valid)?\(\s*[A-Z]")


def decoded_kinds() -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """The module, the record and the fields that are given, of each call of `decode` that names a record."""
    for path in sorted((ROOT / "ipexctl").rglob("*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        if not DECODES.search(text := path.read_text()):  # each worker collects: trees of more modules take seconds
            continue
        for node in ast.walk(ast.parse(text)):
            name = getattr(node, "func", None)
            is_decode = getattr(name, "id", getattr(name, "attr", "")) in {"decode", "decode_valid"}
            if isinstance(node, ast.Call) and is_decode and node.args and isinstance(node.args[0], ast.Name):
                kind = node.args[0].id
                if kind[0].isupper():
                    dicts = [argument for argument in node.args if isinstance(argument, ast.Dict)]
                    keys = [key.value for found in dicts for key in found.keys if isinstance(key, ast.Constant)]
                    yield module, kind, (*map(str, keys), *(keyword.arg or "" for keyword in node.keywords))


def check_decoders(kind: Any, given: tuple[str, ...] = ()) -> None:
    """Makes the decoder of each field, and of the records in it, which raises a KeyError for an unknown type."""
    for field, type_, _ in _fields(kind):
        if field not in given:
            check_records_in(decoder_of(type_, kind.__module__))


def check_records_in(decoder: object) -> None:
    for argument in getattr(decoder, "args", ()):
        if hasattr(argument, "_fields"):
            check_decoders(argument)
        else:
            check_records_in(argument)


def find(module: str, name: str) -> Any:
    """What a module, or a function of it, imports under that name."""
    if hasattr(import_module(module), name):
        return getattr(import_module(module), name)
    for node in ast.walk(ast.parse(Path(str(sys.modules[module].__file__)).read_text())):
        if isinstance(node, ast.ImportFrom) and name in {alias.name for alias in node.names}:
            return getattr(import_module(str(node.module)), name)
    raise AssertionError(f"{module} decodes {name}, which it has not")


KINDS = list(decoded_kinds())


def test_the_records_are_found() -> None:
    assert {"RunStatus", "Plan", "VerifyResult", "RunRecord"} <= {kind for _, kind, _ in KINDS}


@pytest.mark.parametrize(("module", "kind", "given"), KINDS, ids=lambda value: value if isinstance(value, str) else "")
def test_each_field_of_a_record_has_a_decoder(module: str, kind: str, given: tuple[str, ...]) -> None:
    check_decoders(find(module, kind), given)


@pytest.mark.parametrize("t", [kind for kind, made in MESSAGES.items() if not isinstance(made, BareMessage)])
def test_each_field_of_a_message_has_a_decoder(t: str) -> None:
    check_decoders(MESSAGES[t])


def test_each_module_can_be_imported() -> None:
    for module in MODULES:
        if module not in PROGRAMS:
            import_module(module)
