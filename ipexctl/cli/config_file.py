"""Finds and reads the files of defaults: the project's `ipexctl.toml` and the user's `config.toml`."""

from __future__ import annotations

import contextlib
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from ipexctl.errors import FileError, UserError
from ipexctl.user_directories import config_directory

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ipexctl.hosts.source import SourceFile

PROJECT_FILE: Final = "ipexctl.toml"
WITHOUT_FILES: Final = "to leave out all files of defaults: ipexctl --no-config COMMAND"
_LARGEST: Final = 1_000_000
_HEADER: Final = re.compile(r"\s*\[\s*(?P<table>[^\[\]]+?)\s*\]")
_KEY: Final = re.compile(r"""\s*(?P<quote>["']?)(?P<key>[^"'=\s]+)(?P=quote)\s*=""")
_POSITION: Final = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")


class ConfigFile(NamedTuple):
    source: SourceFile
    tables: Mapping[str, object]
    is_found: bool
    """Whether it is a project's file, which the user did not name; then some options are refused."""

    def line_of(self, table: str, key: str) -> int:
        return self._position(table, key)[0]

    def error(self, table: str, key: str, problem: str, *, fix: str) -> FileError:
        return self.source.error(*self._position(table, key), problem, fix=fix)

    def _position(self, table: str, key: str) -> tuple[int, int]:
        """Line and column of a key, found by its text; those of its table if the key is written in another form."""
        current, best = "", (1, 1)
        for number, line in enumerate(self.source.lines, 1):
            if header := _HEADER.match(line):
                current = header["table"].replace('"', "").replace("'", "")
                if current == table:
                    best = number, header.start("table") + 1
            elif current == table and (found := _KEY.match(line)) and found["key"] == key:
                return number, found.start("key") + 1
        return best


def user_file() -> Path:
    return config_directory() / "config.toml"


def project_file() -> Path | None:
    """The file in the root of the current directory's project. A home directory or `/` is no project."""
    try:
        cwd = Path.cwd()
    except OSError:
        return None
    # Most calls end here: what finds the root is imported only if there is such a file.
    if not any((directory / PROJECT_FILE).is_file() for directory in (cwd, *cwd.parents)):
        return None
    from ipexctl.sync.root import find_root, root_problem

    root = find_root(None, None, cwd)
    path = root / PROJECT_FILE
    return path if path.is_file() and not root_problem(root) else None


def config_files() -> tuple[ConfigFile, ...]:
    """The project's file, then the user's, if they exist. Raises a UserError."""
    files, is_there = [], False
    with contextlib.suppress(PermissionError):  # a directory above that may not be searched has no file for this call
        if (path := project_file()) is not None:
            files.append(_read(path, is_found=True))
    user = user_file()
    with contextlib.suppress(PermissionError):  # the home of another account, as after su
        is_there = user.is_file()
    if is_there:
        files.append(_read(user, is_found=False))
    return tuple(files)


def _read(path: Path, *, is_found: bool) -> ConfigFile:
    from ipexctl.hosts.source import SourceFile
    from ipexctl.text import tilde_path

    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib  # type: ignore[import-not-found,unused-ignore]

    shown = PROJECT_FILE if is_found and path.parent == Path.cwd() else tilde_path(path)
    try:
        with path.open("rb") as file:
            data = file.read(_LARGEST + 1)
        text = data.decode("utf-8-sig")
    except OSError as error:
        raise UserError(f"{shown} can't be read: {error.strerror}", fix=WITHOUT_FILES) from None
    except UnicodeDecodeError:
        raise UserError(f"{shown} is not text in UTF-8", fix="save it as UTF-8") from None
    if len(data) > _LARGEST:
        raise UserError(f"{shown} is larger than {_LARGEST:,} bytes", fix=WITHOUT_FILES)
    source = SourceFile(shown, path.parent, text.splitlines())
    try:
        return ConfigFile(source, tomllib.loads(text), is_found)
    except tomllib.TOMLDecodeError as error:
        position = _POSITION.search(str(error))
        problem = str(error)[: position.start()] if position else str(error)
        line, column = (int(position[1]), int(position[2])) if position and position[1] else (len(source.lines), 1)
        raise source.error(line, column, f"this is not TOML: {problem}", fix=WITHOUT_FILES) from None
    except RecursionError:
        raise UserError(f"{shown} has too deeply nested values", fix=WITHOUT_FILES) from None
