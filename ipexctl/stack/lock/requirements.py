"""Read the packages and sources of a call: --with, options and requirements files. Queries no index.

The project itself (`-e .`) stands for what it requires. Lines of files that a node can't install are left out with a
note: repositories, paths outside the project, packages for GPUs, a second MPI, unknown options, since nodes compile
nothing. The same in --with is refused before a host is contacted.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from ipexctl.errors import FileError, IndexNotNamed, UserError
from ipexctl.file_reader import REQUIREMENTS, decode_text, read_regular, read_typed
from ipexctl.hosts.host import quote
from ipexctl.node.common.fix import Fix, FixCommand
from ipexctl.node.common.mpi import INTEL, MPIS
from ipexctl.node.common.urls import strip_login
from ipexctl.projects.declaration import FILES, PYPROJECT
from ipexctl.projects.declared_indexes import IndexBinding, check_url, is_of_pytorch
from ipexctl.projects.requirement_files import GPU_ONLY, UV_LOCK
from ipexctl.stack.lock.project_packages import (
    HASH,
    LOCAL,
    NO_PROJECT,
    BackendList,
    FileLine,
    ProjectLines,
    ProjectScope,
    place_of,
    read_project_file,
    split_extras,
)
from ipexctl.stack.lock.wheel_indexes import PYPI, TORCH_CPU, directory_of, is_for_hosts, plain_url
from ipexctl.stack.resolve.model import Sources, StackPlan
from ipexctl.text import expand_tilde, join_words, tilde_path

IPEX: Final = "intel-extension-for-pytorch"
_FILES: Final = ("-r", "--requirement", "-c", "--constraint")
_SOURCES: Final = ("-i", "--index-url", "--extra-index-url", "-f", "--find-links")
_IGNORED: Final = ("--pre", "--prefer-binary", "--require-hashes", "--only-binary", "--trusted-host", "--use-feature")
_REPOSITORY: Final = re.compile(r"(git|hg|svn|bzr)\+")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_WITH_URL: Final = re.compile(r"([A-Za-z0-9][\w.-]*)\s*(?:\[[^]]*\])?(?:\s+@\s+|\s*@\s*(?=[\w+]+:/))(?P<url>.+)")
_LOGIN: Final = re.compile(r"(?<=://)[^/@\s]*@|\?\S*")
_FITTING_ONE_TORCH: Final = frozenset({"torch", "torchaudio", "torchdata", "torchtext", "torchvision"})
_OTHER_MPIS: Final = {mpi.package: mpi.title for mpi in MPIS if mpi is not INTEL}
_SHA256: Final = re.compile(r"\s--hash[=\s]sha256:([0-9a-f]{64})")
_LINE_OPTION: Final = re.compile(r"\s--(?:no-binary|only-binary|config-settings?|global-option|install-option)\b.*$")
_MAKE_WHEEL: Final = "build a wheel (`pip wheel --no-deps DIR`), write its name here, and add --find-links DIR"


@dataclass(frozen=True, slots=True)
class PackageRequest:
    """Packages and sources of a call, or of some of its files."""

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
    """Lines for packages that only other packages require."""
    left_out: tuple[str, ...] = ()
    """Lines that hosts cannot install."""
    hashes: Mapping[str, frozenset[str]] = field(default_factory=dict, hash=False)
    """Normalized name of a package → sha256 of its files that the lines allow."""
    unread: tuple[BackendList, ...] = ()
    """Lists that only build backends can read."""

    @property
    def named(self) -> tuple[str, ...]:
        """Return the requirements that the user or the files name, without those that only other packages require."""
        return tuple(line for line in self.lines if line not in self.indirect)

    @property
    def torch(self) -> str | None:
        """Return the torch that the files require: `2.8.0` for an exact version, else the range, such as `<3,>=2.7`.
        None if no line of a file limits it; --with lines do not count."""
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


def read_requirements(path: Path | str, scope: ProjectScope = NO_PROJECT) -> PackageRequest:
    """Return the packages of one file and of those that it includes. `path` may end in extras, as in
    `pyproject.toml[train]`. Raises a UserError if that file itself can't be read."""
    return _RequirementsReader(scope).read(*split_extras(expand_tilde(path)), (), constraining=False)


def requirement(text: str, scope: ProjectScope = NO_PROJECT) -> str:
    """Return a --with line in its normal form. Raises a UserError if the line is invalid, hosts can't install it, or it
    names the project itself."""
    line = text.strip()
    _refuse_own_name(line, scope)
    if refusal := _refusal(line) or _second_mpi(line):
        raise UserError(f"--with {text!r}: {refusal[0]}", fix=refusal[1])
    try:
        return str(Requirement(line))
    except InvalidRequirement:
        raise UserError(f"--with {text!r} is invalid: {_syntax_problem(line)}", fix=_EXAMPLE) from None


def _refuse_own_name(line: str, scope: ProjectScope) -> None:
    """Refuse a package of the project's own name, unless the call names a version or a file of it."""
    name = _NAME.match(line)
    if name is None or not scope.is_own(name[0]) or "==" in line or " @ " in line:
        return
    layout, plain = scope.layout, canonicalize_name(name[0])
    start = min(layout.commands, default="")
    run = Fix(
        "the project needs no install: `ipexctl run {*argv}`; " if start else "the project needs no install; ",
        argv=shlex.split(start),
    )
    raise UserError(
        f"--with {line} is this project ({tilde_path(layout.root / layout.members[plain])}), and an index may have a "
        "stranger's package of that name",
        fix=run + f"for the index's package, name its version: --with {name[0]}==1.2",
    )


_TARGET: Final = {"platform_machine": "x86_64", "sys_platform": "linux", "platform_system": "Linux"}
_EXAMPLE: Final = "write a name, and versions if needed: 'transformers>=4.50,<5'"


def contradiction(plan: StackPlan, lines: Iterable[str], origins: Mapping[str, str]) -> UserError | None:
    """Return the error for the first requirement that excludes the plan's torch, IPEX or bindings; None if none does.
    `origins`: requirement → where the user wrote it."""
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
                fix="remove it, or choose a stack that has it: " + _stack_with(project, requirement),
            )
        if not is_for_hosts(str(requirement.marker or ""), plan.python):
            continue
        versions = (version, Version(version).public)
        if requirement.url or not any(requirement.specifier.contains(v, prereleases=True) for v in versions):
            fix = "remove its version: the stack decides it"
            if project == "torch" and len(requirement.specifier) == 1:
                fix += f"; or choose this torch: --torch {next(iter(requirement.specifier)).version}"
            elif project != "torch" and any(clause.operator == "==" for clause in requirement.specifier):
                fix += f"; or choose its stack: {_stack_with(project, requirement)}"
            return UserError(f"{written} excludes {plan.row.name}, which has {requirement.name} {version}", fix=fix)
    return None


def _stack_with(project: str, requirement: Requirement) -> str:
    """Return the option that chooses the stack with the required version, as guides name it in pip install; without an
    exact version, return how to list the stacks."""
    exact = [clause.version for clause in requirement.specifier if clause.operator in ("==", "===")]
    if len(exact) == 1 and "*" not in exact[0]:
        return f"{'--ipex' if project == IPEX else '--oneccl'} {exact[0]} instead"
    return Fix("`ipexctl versions`; such as --stack ipex-2.8")


@dataclass(frozen=True, slots=True)
class _RequirementsReader:
    scope: ProjectScope

    def read(self, path: Path, extras: Sequence[str], above: tuple[Path, ...], *, constraining: bool) -> PackageRequest:
        """Read a file with those that it includes. `extras`: of a project's file. `above`: files that include this one.
        `constraining`: True if its lines only limit versions. Raises a UserError if the file can't be read, or includes
        itself."""
        if path.resolve() in above:
            raise UserError(f"{path} includes itself through {' → '.join(str(file) for file in above)}")
        try:
            read_file = read_regular if above else read_typed  # included files are never pipes
            text = decode_text(read_file(path, REQUIREMENTS), "utf-8-sig")
        except UnicodeDecodeError:
            raise UserError(f"{path} is not text in UTF-8", fix="save it as UTF-8") from None
        except OSError as error:
            raise UserError(f"{path} can't be read: {error.strerror or error}") from None
        listed = read_project_file(path, text, extras, self.scope) or ProjectLines(tuple(_lines(path, text)))
        result = PackageRequest(sources=Sources.of_project(listed.indexes), notes=listed.notes, files=(path,))
        result = replace(result, left_out=listed.left_out, unread=(listed.unread,) if listed.unread is not None else ())
        for line in listed.lines:
            part = self.read_line(line, (*above, path.resolve()), constraining=constraining)
            if line in listed.indirect:
                part = replace(part, indirect=frozenset(part.lines))
            result = _merge(result, part)
            if part.sources.index_url:  # the last one of a file counts, as for pip
                result = replace(result, sources=replace(result.sources, index_url=part.sources.index_url))
        return result

    def read_line(self, line: FileLine, above: tuple[Path, ...] = (), *, constraining: bool = False) -> PackageRequest:
        """Read one line. A line that cannot be installed is left out with a note."""
        try:
            return self._parse(line, above, constraining=constraining)
        except UserError as error:
            why = error.what if isinstance(error, FileError) else error.message
            shown = _LOGIN.sub("", line.text)
            return PackageRequest(notes=(f"{place_of(line)} is left out ({why}): {shown}",), left_out=(shown,))

    def _parse(self, line: FileLine, above: tuple[Path, ...], *, constraining: bool) -> PackageRequest:
        """Read one line. Raises a UserError if it can't be installed."""
        if line.text.startswith("-"):
            return self._option(line, above, constraining=constraining)
        text, hashes = HASH.sub("", line.text).strip(), frozenset(_SHA256.findall(line.text))
        note = ""
        if (option := _LINE_OPTION.search(text)) is not None:
            note = f"{place_of(line)}: {option[0].strip()} is left out: it is for pip alone"
            text = text[: option.start()].strip()
        if (left_out := self._left_out(line, text, above)) is not None:
            return left_out
        if refusal := _refusal(text) or (None if constraining else _second_mpi(text)):
            raise line.error(refusal[0], text, refusal[1])
        try:
            required = Requirement(text)
        except InvalidRequirement as error:
            span = getattr(error.__cause__, "span", (0,))  # from packaging's parser
            offset = line.raw.find(text) + span[0] if text in line.raw else 0
            fault = FileError(
                str(line.path), line.number, _syntax_problem(text), text=line.raw, column=offset + 1, fix=_EXAMPLE
            )
            raise fault from None
        if self.scope.is_own(required.name):
            return self._own(line, self.scope.layout.members[canonicalize_name(required.name)], required.extras, above)
        if canonicalize_name(required.name) in _FITTING_ONE_TORCH:
            required.specifier = SpecifierSet(LOCAL.sub(r"\1", str(required.specifier)))  # hosts get builds for CPUs
        made = str(required)
        origins = {made: f"{line.path.name}:{line.number}" if line.number else line.path.name}
        allowed = {str(canonicalize_name(required.name)): hashes} if hashes else {}
        if constraining:
            return PackageRequest(constraints=(made,), origins=origins, hashes=allowed)
        return PackageRequest(lines=(made,), origins=origins, notes=(note,) if note else (), hashes=allowed)

    def _left_out(self, line: FileLine, text: str, above: tuple[Path, ...]) -> PackageRequest | None:
        """Return what stands in place of a line that hosts cannot install: the requirements of the project itself; only
        a note for a repository, a path outside the project, or a package for GPUs. None for any other line."""
        location = _url_of(text)
        if _REPOSITORY.match(location):
            name = _name_of_repository(text)
            if name and self.scope.is_own(name):
                return PackageRequest()
            shown = _LOGIN.sub("", text)
            note = f"{place_of(line)} is left out (hosts do not clone repositories): {shown}"
            return PackageRequest(notes=(note,), left_out=(shown,))
        if (local := _local_path(location)) is not None:
            directory, extras = local
            own_directory = self.scope.find_directory(directory, line.path)
            if own_directory is not None:
                file = next(name for name in FILES if (own_directory / name).is_file())
                return self._own(line, os.path.relpath(own_directory / file, self.scope.layout.root), extras, above)
            if self.scope.layout.members:
                note = f"{place_of(line)} is left out (it is outside the project): {text}"
                return PackageRequest(notes=(note,), left_out=(text,))
        match = _NAME.match(text)
        name = canonicalize_name(match[0]) if match is not None else ""
        if GPU_ONLY.fullmatch(name) and name.replace("-", "_") not in self.scope.needed:
            return PackageRequest(notes=(f"{place_of(line)} is left out (it needs a GPU): {text}",), left_out=(text,))
        return None

    def _own(self, line: FileLine, file: str, extras: Iterable[str], above: tuple[Path, ...]) -> PackageRequest:
        """Return what a package of the project requires, with its extras, in place of the package. Empty if its file is
        missing, or is being read already."""
        path = self.scope.layout.root / file
        if path.resolve() in above or not path.is_file():
            return PackageRequest()
        try:
            return self.read(path, tuple(extras), above, constraining=False)
        except UserError as error:
            note = f"{place_of(line)}: what {line.text} requires is left out: {error.message}"
            return PackageRequest(notes=(note,))

    def _option(self, line: FileLine, above: tuple[Path, ...], *, constraining: bool) -> PackageRequest:
        """Read a line that is an option of pip. Raises a UserError for one that can't be used."""
        name, value = _split(line.text)
        if name in _FILES:
            if "://" in value:
                raise line.error("a requirements file can't be a URL", value, "download it next to this file")
            second = line.path.parent / expand_tilde(value)
            return self.read(*split_extras(second), above, constraining=constraining or name in ("-c", "--constraint"))
        if name in _SOURCES:
            return _source(line, name, value)
        if name in ("-e", "--editable"):
            left_out = self._left_out(line, value, above)
            if left_out is not None:
                return left_out
            raise line.error("an editable project can't be installed on hosts", line.text, _MAKE_WHEEL)
        if name == "--no-binary":
            raise line.error(
                "nothing is compiled on hosts", line.text, "remove this line, or build a wheel: `pip wheel`"
            )
        if name == "--no-index":
            raise line.error(
                "--no-index belongs on the command line", line.text, "remove this line and install with --offline"
            )
        if name in _IGNORED:
            return PackageRequest()
        raise line.error(f"{name} is not a known option of requirements files", name, "remove it")


def _source(line: FileLine, name: str, value: str) -> PackageRequest:
    """Read an option that names an index, or a page or directory of wheels. PyTorch's indexes are left out."""
    if not value:
        raise line.error(f"{name} has no value", name)
    if is_of_pytorch(check_url(value)):
        return PackageRequest()  # ipexctl asks its index for CPUs anyway
    if name in ("-i", "--index-url"):
        return PackageRequest(sources=Sources(index_url=value, is_strict=True))
    if name == "--extra-index-url":
        return PackageRequest(sources=Sources(extra_index_urls=(value,), is_strict=True))
    links = value if "://" in value else str((line.path.parent / expand_tilde(value)).resolve())
    return PackageRequest(sources=Sources(find_links=(links,), is_strict=True))


def _url_of(text: str) -> str:
    """Return what follows `NAME @`, or the whole text."""
    match = _WITH_URL.match(text)
    return match["url"].strip() if match is not None else text


def _name_of_repository(text: str) -> str:
    """Return the package of `NAME @ git+URL` or `git+URL#egg=NAME`, else the last part of the URL."""
    named = _WITH_URL.match(text) or re.search(r"[#&]egg=([A-Za-z0-9][\w.-]*)", text)
    if named is not None:
        return named[1]
    path = urlsplit(text.removeprefix("git+")).path.partition("@")[0]
    return path.rstrip("/").rpartition("/")[2].removesuffix(".git")


def _local_path(text: str) -> tuple[str, tuple[str, ...]] | None:
    """Return the directory and the extras of `.`, `.[train]`, `./libs/x`, `file:libs/x`; None if the text is no such
    path, or names a wheel or an archive."""
    match = re.fullmatch(
        r"(?:file:(?://)?)?(?P<path>\.{1,2}(?:/[^\[\];]*)?|\.?/[^\[\];]*|[\w.-]+(?:/[\w.-]+)*/?)(?:\[(?P<extras>[^]]*)\])?",
        text,
    )
    is_path = match is not None and (text.startswith((".", "/", "file:")) or "/" in match["path"])
    if match is None or not is_path or match["path"].endswith((".whl", ".tar.gz", ".zip")):
        return None
    extras = tuple(extra.strip() for extra in (match["extras"] or "").split(",") if extra.strip())
    return match["path"], extras


def _lines(path: Path, text: str) -> Iterator[FileLine]:
    """Yield the lines of a requirements file, with continued lines joined, and without comments and empty lines."""
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


def _split(text: str) -> tuple[str, str]:
    """Split an option from its value: `-rFILE`, `-r FILE`, `--name=VALUE`, `--name VALUE`."""
    short = re.match(r"(-[a-zA-Z])\s*(.*)", text)
    if short and not text.startswith("--"):
        return short[1], _unquoted(short[2])
    name, _, value = re.sub(r"[=\s]\s*", " ", text, count=1).partition(" ")
    return name, _unquoted(value)


def _unquoted(value: str) -> str:
    """Return an option's value without quotes around it; a value of several words stays as it is."""
    try:
        parts = shlex.split(value)
    except ValueError:
        return value.strip()
    return parts[0] if len(parts) == 1 else value.strip()


def _second_mpi(text: str) -> tuple[str, str] | None:
    """Refuse a second MPI, which would overwrite bin/mpirun of Intel MPI."""
    match = _NAME.match(text)
    mpi = _OTHER_MPIS.get(canonicalize_name(match[0])) if match else None
    if mpi is None:
        return None
    return (
        f"{mpi} would overwrite mpirun of {INTEL.title}, which the environment has",
        f"remove it; to use {mpi}, install it in the same directory on every host, and name its mpirun with run --mpi",
    )


def _refusal(text: str) -> tuple[str, str] | None:
    """Return why hosts can't install a requirement, and the fix; None if they can, as far as its text shows."""
    location = _url_of(text)
    if _REPOSITORY.match(location):
        return "hosts do not clone repositories", _MAKE_WHEEL
    if location.startswith("file:") or re.match(r"(\.|~|/|[A-Za-z]:\\)", location):
        return "a path of the control machine does not exist on hosts", _MAKE_WHEEL
    if re.match(r"https?://[^/]*@", location):
        return (
            "a password here would be recorded with the environment",
            "put it into ~/.netrc of the machine that downloads",
        )
    if re.match(r"https?://", location):
        file = location.partition("#")[0].partition(";")[0].strip()
        if location == text:
            name = file.rpartition("/")[2].partition("-")[0] or "NAME"
            return "a URL needs the name of its package", f"write `{name} @ {file}`"
        if not file.endswith(".whl"):
            return "nothing is compiled on hosts, and this is not a wheel", _MAKE_WHEEL
    elif re.search(r"(\.whl|\.tar\.gz|\.zip)$", text) or ("/" in text and " @ " not in text and ";" not in text):
        return "a path of the control machine does not exist on hosts", _MAKE_WHEEL
    return None


def _syntax_problem(text: str) -> str:
    """Return what is wrong with a text that is no requirement."""
    if re.match(r"[\w.\[\],-]+\s*=[<>]", text):
        return "versions are compared with >= and <=, not => and =<"
    if re.match(r"[\w.\[\],-]+\s*=[^=]", text):
        return "versions are compared with ==, not ="
    return "this is not a package name followed by versions"


def _merge(first: PackageRequest, second: PackageRequest) -> PackageRequest:
    """Return what both requests ask for; what both have is there once."""
    return PackageRequest(
        tuple(dict.fromkeys((*first.lines, *second.lines))),
        tuple(dict.fromkeys((*first.constraints, *second.constraints))),
        first.sources.with_more(second.sources),
        {**first.origins, **second.origins},
        tuple(dict.fromkeys((*first.notes, *second.notes))),
        (*first.files, *second.files),
        first.indirect | second.indirect,
        (*first.left_out, *second.left_out),
        {
            name: first.hashes.get(name, frozenset()) | second.hashes.get(name, frozenset())
            for name in (*first.hashes, *second.hashes)
        },
        tuple(dict.fromkeys((*first.unread, *second.unread))),
    )


def read_package_request(
    packages: Sequence[str], files: Sequence[Path], scope: ProjectScope = NO_PROJECT
) -> PackageRequest:
    """Return the packages of --with and of the files in one request."""
    result = PackageRequest(tuple(requirement(package, scope) for package in packages))
    for file in files:
        result = _merge(result, read_requirements(file, scope))
    return result


def read_answer(each: BackendList, requires: Sequence[str], plan: StackPlan) -> PackageRequest:
    """Return what a build backend has answered, with the extras of `each`. A version of torch that the plan does not
    have is left out with a note, as are lines that hosts cannot install."""
    request = PackageRequest()
    reader, target = _RequirementsReader(each.scope), {**_TARGET, "python_version": plan.python}
    for text in requires:
        line = FileLine(each.path, 0, text, text)
        with suppress(InvalidRequirement):  # the reader says so
            required = Requirement(text)
            if required.marker is not None and "extra" in str(required.marker):
                if not any(required.marker.evaluate({**target, "extra": extra}) for extra in ("", *each.extras)):
                    continue
                required.marker = None
                line = replace(line, text=str(required))
        request = _merge(request, reader.read_line(line))
    if (error := contradiction(plan, request.lines, request.origins)) is not None:
        request = without_torch(request, error.message)
    return request


def without_torch(request: PackageRequest, why: str) -> PackageRequest:
    """Return the request without its versions of torch and of the packages that each fit one torch; a note says
    `why`."""
    lines, left_out, origins = dict[str, None](), [], dict(request.origins)
    for line in request.lines:
        required = Requirement(line)
        if canonicalize_name(required.name) in _FITTING_ONE_TORCH and required.specifier:
            left_out.append(line)
            required.specifier = SpecifierSet()
            origins[str(required)] = request.origins.get(line, "")
        lines[str(required)] = None
    are = "are" if len(left_out) > 1 else "is"
    note = f"{why}; {join_words(left_out)} {are} left out: the stack decides the version"
    left = (*request.left_out, *left_out)
    return replace(request, lines=tuple(lines), origins=origins, notes=(*request.notes, note), left_out=left)


def sources_of(given: Sources, from_files: Sources) -> Sources:
    """Return the sources of the options, followed by those of requirements files. Directories become absolute. Raises a
    UserError for a directory that does not exist and an index that is no URL."""
    for url in (*([given.index_url] if given.index_url else []), *given.extra_index_urls):
        if "://" not in url:
            raise UserError(
                f"{quote(url)} is not the URL of an index",
                fix="use a URL such as https://host/simple; for a directory: --find-links DIR",
            )
    absolute = replace(
        given,
        find_links=tuple(_absolute(location, "--find-links") for location in given.find_links),
        wheelhouse=_absolute(given.wheelhouse, "--wheelhouse") if given.wheelhouse is not None else None,
    )
    return absolute.with_more(from_files)


def _has_login(url: str) -> bool:
    return "@" in urlsplit(url).netloc


def with_project_indexes(named: Sources, declared: Sources, packages: Collection[str], line: FixCommand) -> Sources:
    """Return the sources of the call together with those that the project's files declare. Only an index that the call
    names may be asked: if one of `packages` has another index, the call is refused, and other packages of such an index
    are withheld.

    `named`: sources of options and named files. `line`: the command that an error suggests instead, with options for
    the indexes unless it names the project's own file.
    """
    if named.index_url:  # it replaces all others
        declared = replace(declared, index_url=None, extra_index_urls=(), find_links=())
    allowed = {plain_url(url): url for url in (PYPI, TORCH_CPU, *sorted(named.urls, key=_has_login))}
    default = (declared.index_url,) if declared.index_url else ()
    refused = dict.fromkeys((url for url in default if plain_url(url) not in allowed), "--index-url")
    refused |= {url: "--extra-index-url" for url in declared.extra_index_urls if plain_url(url) not in allowed}
    refused |= {url: "--find-links" for url in declared.find_links if plain_url(url) not in allowed}
    bound = dict[IndexBinding, None]()
    for binding in declared.bound:
        url = TORCH_CPU if is_of_pytorch(binding.url) else allowed.get(plain_url(binding.url), "")
        names = [name for name in packages if fnmatchcase(name, binding.name)]
        if names and not binding.url:
            raise UserError(
                f"the project takes {names[0]} from the index {quote(binding.label)}, which its files do not define",
                fix=f"add its URL to {PYPROJECT}",
            )
        if names and not url:
            refused.setdefault(binding.url, "--extra-index-url")
        bound |= {binding._replace(name=name, url=url): None for name in names or [binding.name] if "*" not in name}
    if refused:
        indexes = join_words([strip_login(url) for url in refused])
        names = [binding.name for binding in bound if not binding.url and binding.name in packages]
        is_named = re.search(rf"({PYPROJECT}|{UV_LOCK})", str(line)) is not None
        options = [] if is_named else [word for url, option in refused.items() for word in (option, plain_url(url))]
        raise IndexNotNamed(
            f"the project takes {join_words(names) or 'packages'} from {indexes}, which this call does not name, and "
            "another index may have a stranger's package of that name",
            fix=Fix("if you trust it: {line}", line=line.with_words(*options)),
            index=next(iter(Sources(find_links=tuple(refused)).places)),
        )
    return replace(named.with_more(declared), bound=tuple(bound))


def _absolute(location: str, option: str) -> str:
    """Return a location with a directory as an absolute path. Raises a UserError if there is no such directory."""
    path = directory_of(location)
    if path is None:
        return location
    directory = expand_tilde(path).absolute()
    if not directory.is_dir():
        what = "is not a directory" if directory.exists() else "does not exist"
        raise UserError(
            f"{option} {quote(location)} {what}",
            fix=Fix("choose a directory of wheels; `ipexctl install --download-only` makes one"),
        )
    return str(directory)
