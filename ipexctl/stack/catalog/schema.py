"""The format of a row in rows.json; errors have their position. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ipexctl.stack.catalog.json_positions import JsonNode


@dataclass(frozen=True, slots=True)
class FormatError:
    """An error at a position of the text, with the fix."""

    what: str
    at: int
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Text:
    meaning: str = "a text"
    example: str = ""
    pattern: re.Pattern[str] = field(default_factory=lambda: re.compile(r"[^\x00-\x1f]*"))
    nullable: bool = False

    def errors(self, node: JsonNode, what: str) -> Iterator[FormatError]:
        value = node.value
        if value is None and self.nullable:
            return
        if not isinstance(value, str) or not self.pattern.fullmatch(value):
            yield FormatError(
                f"{what} must be {self.meaning}", node.at, f'such as "{self.example}"' if self.example else ""
            )


@dataclass(frozen=True, slots=True)
class OneOf:
    words: tuple[str, ...]

    def errors(self, node: JsonNode, what: str) -> Iterator[FormatError]:
        if node.value not in self.words:
            near = get_close_matches(str(node.value), self.words, n=1)
            yield FormatError(
                f"{what} is one of {', '.join(self.words)}", node.at, f"did you mean {near[0]!r}?" if near else ""
            )


@dataclass(frozen=True, slots=True)
class YesNo:
    def errors(self, node: JsonNode, what: str) -> Iterator[FormatError]:
        if not isinstance(node.value, bool):
            yield FormatError(f"{what} must be true or false", node.at)


@dataclass(frozen=True, slots=True)
class ListOf:
    item: Shape

    def errors(self, node: JsonNode, what: str) -> Iterator[FormatError]:
        if not isinstance(node.value, list):
            yield FormatError(f"{what} must be a list", node.at, "[...]")
            return
        for item in node.value:
            yield from self.item.errors(item, f"an item of {what}")


@dataclass(frozen=True, slots=True)
class ByGlibc:
    """An object whose keys are versions of glibc."""

    value: Text

    def errors(self, node: JsonNode, what: str) -> Iterator[FormatError]:
        if not isinstance(node.value, dict):
            yield FormatError(f"{what} must be an object", node.at, '{"2.28": "impi-rt>=2021.14,<2021.19"}')
            return
        for key, item in node.value.items():
            if not _NUMBERS.pattern.fullmatch(key):
                yield FormatError(f"{key!r} must be the oldest glibc that it is for", item.key_at, 'such as "2.28"')
            yield from self.value.errors(item, f"{what} of glibc {key}")


@dataclass(frozen=True, slots=True)
class Keys:
    """An object with these keys, some of them required."""

    known: Mapping[str, Shape] = field(hash=False)
    needed: tuple[str, ...] = ()

    def errors(self, node: JsonNode, what: str) -> Iterator[FormatError]:
        if not isinstance(node.value, dict):
            yield FormatError(f"{what} must be an object", node.at, "{...}")
            return
        for key, item in node.value.items():
            if key in self.known:
                yield from self.known[key].errors(item, repr(key))
                continue
            near = get_close_matches(key, self.known, n=1)
            fix = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(self.known)}"
            yield FormatError(f"no key of {what} is called {key!r}", item.key_at, fix)
        for key in self.needed:
            if key not in node.value:
                yield FormatError(f"{key!r} is missing in {what}", node.at)


Shape = Text | OneOf | YesNo | ListOf | ByGlibc | Keys

_VERSION: Final = Text("a version", "2.8.0", re.compile(r"\d+(\.\d+){1,3}"))
_NUMBERS: Final = Text("two numbers", "3.11", re.compile(r"\d{1,3}\.\d{1,3}"))
_NAME: Final = Text("small letters, digits, dots and dashes", "ipex-2.8-site", re.compile(r"[a-z0-9][a-z0-9._-]{0,40}"))
_REQUIREMENT: Final = Text(
    "a requirement as for pip",
    "impi-rt>=2021.14,<2021.19",
    re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*((===?|[<>]=?|~=|!=)[A-Za-z0-9.]+(\.\*)?(,(?=[=<>~!])|$))*"),
)
_NOTE: Final = Text()
_MAYBE: Final = Text(nullable=True)

ROW: Final = Keys(
    {
        "name": _NAME,
        "torch": Text("a version with its patch", "2.8.0", re.compile(r"\d+\.\d+\.\d+")),
        "torch_patches": ListOf(_VERSION),
        "torch_pythons": ListOf(_NUMBERS),
        "torch_glibc": _NUMBERS,
        "ipex": ListOf(
            Keys(
                {
                    "version": _VERSION,
                    "built_for": _VERSION,
                    "works_with": ListOf(_VERSION),
                    "pythons": ListOf(_NUMBERS),
                    "pypi": OneOf(("available", "yanked", "absent")),
                    "pypi_pythons": ListOf(_NUMBERS),
                    "wheel_tag": _MAYBE,
                    "glibc": _NUMBERS,
                    "isa": OneOf(("avx2", "avx512")),
                    "note": _NOTE,
                    "source": _NOTE,
                },
                ("version",),
            )
        ),
        "oneccl": ListOf(
            Keys(
                {
                    "version": _VERSION,
                    "built_for": _VERSION,
                    "works_with": ListOf(_VERSION),
                    "pythons": ListOf(_NUMBERS),
                    "cpu_wheel": OneOf(("published", "unverified", "none")),
                    "oneccl": _MAYBE,
                    "mpi": _MAYBE,
                    "note": _NOTE,
                    "source": _NOTE,
                },
                ("version",),
            )
        ),
        "mpi": ByGlibc(_REQUIREMENT),
        "requires": ListOf(_REQUIREMENT),
        "replaces": ListOf(_REQUIREMENT),
        "constraints": ListOf(_REQUIREMENT),
        "indexes": ListOf(
            Keys(
                {
                    "kind": OneOf(("index", "links")),
                    "url": Text("a URL", "https://wheels.example.org/simple", re.compile(r"(https?|file)://\S+")),
                },
                ("kind", "url"),
            )
        ),
        "module": Text("a module's name", "oneccl_bindings_for_pytorch", re.compile(r"[A-Za-z_]\w*"), nullable=True),
        "setvars": Text(
            "a path below the module's directory",
            "env/setvars.sh",
            re.compile(r"(?!/)(?!.*\.\.)[\w./-]+"),
            nullable=True,
        ),
        "known_bad": ListOf(
            Keys(
                {
                    "torch": _VERSION,
                    "ipex": _VERSION,
                    "oneccl": _VERSION,
                    "what": _NOTE,
                    "symptom": _NOTE,
                    "instead": _NOTE,
                    "source": _NOTE,
                },
                ("what", "symptom", "instead", "source"),
            )
        ),
        "retired": YesNo(),
        "note": _NOTE,
        "sources": ListOf(_NOTE),
    },
    ("name",),
)
