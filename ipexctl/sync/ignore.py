"""Choose the paths of a project that are not sent: what git's ignore patterns exclude (by `pathspec`), and credentials.

What comes first here counts more: --exclude, --include, credentials, the nearest ignore file, what a fetch brought. A
project's files can't send credentials, because a cloned repository contains such files; only --include can. Patterns
that would take unbounded time are refused by line.
"""

from __future__ import annotations

import contextlib
import fnmatch
import os
import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from ipexctl.errors import FileError
from ipexctl.sync.git_files import ABSENT, git_directory, read_ignore_file, repository_of

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

    from ipexctl.sync.git_pattern import GitPattern

FILES: Final = (".gitignore", ".ipexctlignore")
"""Files that are read in every directory. `.ipexctlignore` counts more than `.gitignore`."""

_OF_GIT: Final = ("/.gitignore", "/info/exclude")

_DEFAULT_FILES: Final = re.compile(
    r".*\.pyc|\._.*|\.DS_Store|report-[A-Za-z0-9_]+-[0-9]{4}-[0-9]{6}-[0-9a-f]{4}\.html", re.DOTALL
)
"""`._NAME` is AppleDouble: macOS writes a file's attributes there if a disk can't keep them. The last is a page of
`ipexctl report`; otherwise each new page would be sent with the next run."""
_DEFAULT_DIRECTORIES: Final = frozenset({"node_modules", ".tox", ".nox", ".DS_Store"})
"""Any file of a project can override these: `!node_modules/` sends them."""
ALWAYS: Final = frozenset(
    {
        ".git",
        ".hg",
        ".svn",
        "__pycache__",
        ".mypy_cache",
        ".pytest_cache",
        ".ruff_cache",
        ".ipynb_checkpoints",
    }
)
"""Directories at any depth, whatever the project's files say, even `!*`. A set because patterns are slow."""
ALWAYS_FILES: Final = frozenset({".git"})
"""A file in a git worktree or submodule."""
OWN: Final = ".ipexctl"
"""A directory in the root that holds the state of the tree on a node."""
ENVIRONMENT_MARKS: Final = (b"pyvenv.cfg", b"conda-meta")
"""A directory with one of these is a virtual environment, whatever its name."""

CREDENTIAL_DIRECTORIES: Final = (
    ".ssh", ".aws", ".azure", ".gnupg", ".huggingface", ".kaggle", ".kube", ".secrets", ".config/gcloud", "secrets",
)  # fmt: skip
CREDENTIAL_FILES: Final = (
    ".env", ".env.*", "*.env", ".htpasswd", ".netrc", ".git-credentials", ".npmrc", ".pgpass", ".pypirc",
    "*.jks", "*.kdbx", "*.key", "*.keystore", "*.p12", "*.pem", "*.pfx", "*.ppk", "*.tfstate", "*.tfvars",
    "id_dsa", "id_ecdsa", "id_ed25519", "id_rsa", "id_*_sk",
    "application_default_credentials.json", "client_secret*.json", "credentials.json", "kaggle.json", "kubeconfig",
    "secrets.json", "secrets.toml", "secrets.yaml", "secrets.yml",
    "service-account*.json", "service_account*.json", "token.txt",
    ".cache/huggingface/stored_tokens", ".cache/huggingface/token", ".docker/config.json",
)  # fmt: skip
"""Names of files and links, with `*` for any text. A test compares the list in docs/sync.md."""
TEMPLATE_SUFFIXES: Final = (".dist", ".example", ".sample", ".template")
"""A `.env.*` with such a suffix shows which variables a project needs, without secrets."""
PRIVATE_KEY: Final = re.compile(rb"-----BEGIN (?:[A-Z0-9]+ ){0,3}PRIVATE KEY(?: BLOCK)?-----|^PuTTY-User-Key-File-\d")
"""The first line of a private key, also within the JSON of a service account."""
MOST_KEY_BYTES: Final = 100_000
"""Larger files are not searched for private keys."""
CODE: Final = (".py", ".pyi", ".pyx", ".sh")
"""Suffixes of code, which is not searched for keys: code may contain the first line of a key as a text, and a run needs
its code."""
CREDENTIAL_PATTERNS: Final = (*CREDENTIAL_DIRECTORIES, *CREDENTIAL_FILES)
"""Patterns for other programs that copy a project. They leave out templates too."""


_DIRECTORY_ENDINGS: Final = tuple(f"/{name}" for name in CREDENTIAL_DIRECTORIES)
_FILE_ENDINGS: Final = tuple(f"/{name}" for name in CREDENTIAL_PATTERNS if "*" not in name)
_FILE_NAMES: Final = re.compile("|".join(fnmatch.translate(name) for name in CREDENTIAL_PATTERNS if "*" in name))

Reason = Literal["excluded", "ignored", "credentials", "fetched"]
"""Why a path is left out: excluded by `--exclude` or `ALWAYS`; ignored by a file or a default; credentials by its name
or as an --env-file; fetched by an earlier fetch."""

_WILDCARDS: Final = frozenset("*?[\\")
_MOST_GAPS: Final = 3
"""`/**/` in one pattern: time grows with a path's depth to this power."""
_MOST_STARS: Final = 100
"""`*` in one pattern: the regular expression's time grows faster than their number."""


@dataclass(frozen=True, slots=True)
class Layer:
    base: str
    """The directory's path below the project's root, with a trailing slash; empty for the root. For a directory above
    the root: `+` and the root's path below that directory."""
    spec: GitIgnoreSpec
    git_patterns: int = 0
    """How many of the first patterns are git's own. git keeps a file that it tracks, even if they exclude it."""

    def excludes(self, path: str, tracked: Callable[[], Container[str]] = tuple) -> bool | None:
        """True if the layer leaves the path out, False if it takes it in, None if it says nothing.

        What git tracks is never left out by git's own patterns.
        """
        result = self.spec.check_file(self._relative(path))
        is_of_git = result.include and result.index is not None and result.index < self.git_patterns
        return False if is_of_git and path.rstrip("/") in tracked() else result.include

    def means(self, path: str, directory: str) -> bool:
        """True if a pattern excludes the path, and not because it excludes the directory."""
        relative, above = self._relative(path), self._relative(f"{directory}/")
        patterns = [pattern for pattern in self.spec.patterns if pattern.match_file(above) is None]
        return any(pattern.include and pattern.match_file(relative) is not None for pattern in patterns)

    def _relative(self, path: str) -> str:
        return self.base[1:] + path if self.base.startswith("+") else path[len(self.base) :]


def layer(base: str, files: Mapping[str, Sequence[str]]) -> Layer:
    """Return the patterns of these files. A pattern of a later file counts more. Raises a FileError for an invalid
    pattern."""
    from ipexctl.sync.git_pattern import GitPattern, make_spec  # 50 ms, and a project may have no patterns

    patterns: list[GitPattern] = []
    git_patterns = 0
    for file, lines in files.items():
        for number, line in enumerate(lines, 1):
            line = line.rstrip("\r\n")
            counts = (("/**/", line.count("/**/"), _MOST_GAPS), ("*", len(re.findall(r"\*+", line)), _MOST_STARS))
            for text, count, most in counts:
                if count > most and not line.startswith("#"):
                    raise FileError(file, number, f"more than {most} times {text} in one pattern", text=line, column=1)
            try:
                patterns.append(GitPattern(line))
            except ValueError:
                raise FileError(file, number, "this is not a .gitignore pattern", text=line, column=1) from None
        git_patterns = len(patterns) if file.endswith(_OF_GIT) else git_patterns
    return Layer(base, make_spec(patterns), git_patterns)


def layer_of(directory: Path, base: str, names: Iterable[str] = FILES) -> Layer | None:
    """Return the patterns of a directory's ignore files; None if it has none."""
    files: dict[str, list[str]] = {}
    root = directory if not base or base.startswith("+") else directory.parents[base.count("/") - 1]
    trust = f"{root}/*"  # one entry for all directories of the project
    for name in names:
        with contextlib.suppress(*ABSENT):
            text = read_ignore_file(directory / name, trust).decode("utf-8", "surrogateescape").removeprefix("\ufeff")
            files[str(directory / name)] = text.split("\n")
    return layer(base, files) if files else None


def outer_layers(root: Path) -> tuple[Layer, ...]:
    """Return the layers above the project: those of the repository and of the directories between."""
    repository = repository_of(root)
    if repository is None:
        return ()

    def base(directory: Path) -> str:
        return "+" + "".join(f"{part}/" for part in root.relative_to(directory).parts)

    above = [directory for directory in reversed(root.parents) if directory.is_relative_to(repository)]
    layers = [layer_of(git_directory(repository) / "info", base(repository), ("exclude",))]
    layers += [layer_of(directory, base(directory)) for directory in above]
    return tuple(layer for layer in layers if layer is not None)


class IgnoreRules:
    def __init__(
        self,
        outer: Sequence[Layer],
        excludes: Sequence[str],
        includes: Sequence[str] = (),
        fetched: frozenset[str] = frozenset(),
        secret_files: frozenset[str] = frozenset(),
        tracked: Callable[[], Container[str]] = tuple,
    ) -> None:
        """Hold the rules of one project. `tracked` is called once a pattern of git's excludes something."""
        self.outer = tuple(outer)
        self._tracked = cache(tracked)
        self._excludes = layer("", {"--exclude": excludes}) if excludes else None
        self._fetched = fetched
        self._secret_files = secret_files
        self._includes = layer("", {"--include": includes}) if includes else None
        self.above_includes = frozenset(parent for pattern in includes for parent in parents_of_pattern(pattern))
        """Directories above what an `--include` names."""

    def reason_left_out(
        self, path: str, layers: Sequence[Layer], *, is_directory: bool, inside: Reason | None = None
    ) -> Reason | None:
        """Return why a path is left out; None if it is sent. `inside`: why its directory is left out.

        Among ignore files the nearest directory's counts, and in a file the last line.
        """
        name = path[path.rfind("/") + 1 :]
        if path == OWN or name in (ALWAYS if is_directory else ALWAYS_FILES):
            return "excluded"
        full = f"{path}/" if is_directory else path
        excluded = self._excludes.excludes(full) if self._excludes is not None else None
        if excluded:
            return "excluded"
        reason = inside
        if reason is None:
            for directory_layer in reversed(layers):
                if excluded is not None:
                    break
                excluded = directory_layer.excludes(full, self._tracked)
            if excluded or (excluded is None and is_default(name, is_directory=is_directory)):
                reason = "ignored"
            elif path in self._secret_files or is_credential(path, is_directory=is_directory):
                reason = "credentials"
            elif excluded is None and path in self._fetched:
                reason = "fetched"
        if reason is not None and self._includes is not None and self._includes.excludes(full):
            return None
        return reason


def parents_of_pattern(pattern: str) -> tuple[str, ...]:
    """Return the parent directories in a pattern, up to the first wildcard.

    A pattern with a slash inside starts at the root; a pattern without one matches at any depth and has no parents.
    """
    if pattern.startswith("!"):
        return ()
    parts = pattern.strip().strip("/").split("/")[:-1]
    return tuple(accumulate(takewhile(_WILDCARDS.isdisjoint, parts), "{}/{}".format))


def pattern_for(path: str) -> str:
    """Return the pattern that fits exactly this path."""
    return "/" + "".join(f"\\{c}" if c in "\\*?[!# " else c for c in os.fspath(path))


def is_credential(path: str, *, is_directory: bool) -> bool:
    """Return True for a name of files with keys, tokens or passwords, at any depth, in any case.

    A symlink counts as a file and as a directory. Endings and one regular expression are used instead of git's
    patterns, because every path is checked.
    """
    full = f"/{path.lower()}"
    if is_directory:
        return full.endswith(_DIRECTORY_ENDINGS)
    name = full[full.rfind("/") + 1 :]
    if ".env." in name and name.endswith(TEMPLATE_SUFFIXES):
        return False
    return full.endswith(_FILE_ENDINGS) or _FILE_NAMES.match(name) is not None


def is_secret(path: str) -> bool:
    """Return True if the file, or a directory above it, has a name of credentials."""
    above = accumulate(path.split("/")[:-1], "{}/{}".format)
    return is_credential(path, is_directory=False) or any(
        is_credential(directory, is_directory=True) for directory in above
    )


def may_hold_key(path: str, size: int) -> bool:
    """True for a file that is searched for a private key before it is sent."""
    return size <= MOST_KEY_BYTES and not path.lower().endswith(CODE)


def stays_home(root: Path, path: str, ignored_directory: str = "") -> bool:
    """Return True if an ignore file means this file itself: `.ipexctlignore` excludes it or a directory above it, or a
    pattern excludes it that does not exclude `ignored_directory`, its directory."""
    parents = [f"{parent}/" for parent in accumulate(path.split("/")[:-1], "{}/{}".format)]
    ours: bool | None = None
    layers = list(outer_layers(root))
    for base in ("", *parents):
        if (own := layer_of(root / base, base, FILES[1:])) is not None and (
            is_excluded := own.excludes(path)
        ) is not None:
            ours = is_excluded
        if (own_layer := layer_of(root / base, base)) is not None:
            layers.append(own_layer)
    return bool(ours) or (
        bool(ignored_directory) and any(ignore_layer.means(path, ignored_directory) for ignore_layer in layers)
    )


def is_default(name: str, *, is_directory: bool) -> bool:
    """Return True for a path that is left out unless a pattern includes it, because it is useless on another
    machine."""
    return name in _DEFAULT_DIRECTORIES if is_directory else _DEFAULT_FILES.fullmatch(name) is not None
