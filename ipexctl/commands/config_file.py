"""Find and read the files of defaults: the project's `ipexctl.toml` and the user's `config.toml`.

`--config FILE` replaces the project's file. Because the user named it, it may set what a file that was only found may
not.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal, NamedTuple

from ipexctl.errors import FileError, UserError
from ipexctl.file_reader import DEFAULTS, TooLargeError, read_regular, read_typed
from ipexctl.found_files import TomlError, check_found, check_own, parse_toml, user_file
from ipexctl.hosts.source import SourceFile
from ipexctl.text import expand_tilde, tilde_path

PROJECT_FILE: Final = "ipexctl.toml"
WITHOUT_FILES: Final = "ipexctl --no-config leaves out all files of defaults"
_HEADER: Final = re.compile(r"\s*\[\s*(?P<table>[^\[\]]+?)\s*\]")
_KEY: Final = re.compile(r"""\s*(?P<quote>["']?)(?P<key>[^"'=\s]+)(?P=quote)\s*=""")
_POSITION: Final = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")


class ConfigFile(NamedTuple):
    """A file of defaults as it was read. Its values are not checked yet."""

    source: SourceFile
    tables: Mapping[str, object]
    """The file as TOML has it: values at the top, and tables."""
    origin: Literal["project", "call", "user"]
    """`project`: found, not named by the user. `call`: named by `--config`. `user`: the user's own."""

    @property
    def is_found(self) -> bool:
        """True if the user did not name the file. Some options are refused then."""
        return self.origin == "project"

    @property
    def named(self) -> str:
        """The absolute path of a file that `--config` names; empty for other files."""
        return str(self.source.base / Path(self.source.path).name) if self.origin == "call" else ""

    def line_of(self, table: str, key: str) -> int:
        """Return the number of the key's line; of its table if the key is not found."""
        return self._position(table, key)[0]

    def error(self, table: str, key: str, problem: str, *, fix: str) -> FileError:
        """Return an error that points at the key, for the caller to raise."""
        return self.source.error(*self._position(table, key), problem, fix=fix)

    def _position(self, table: str, key: str) -> tuple[int, int]:
        """Return line and column of the key, else of its table, else of the start of the file."""
        current, position = "", (1, 1)
        for number, line in enumerate(self.source.lines, 1):
            if header := _HEADER.match(line):
                current = header["table"].replace('"', "").replace("'", "")
                if current == table:
                    position = number, header.start("table") + 1
            elif current == table and (match := _KEY.match(line)) and match["key"] == key:
                return number, match.start("key") + 1
        return position


def project_file() -> Path | None:
    """Return the ipexctl.toml in the root of the current project; None without one.

    A home directory or `/` is no project.
    """
    try:
        cwd = Path.cwd()
    except OSError:
        return None
    # Most calls end here, without the import of what finds the root.
    if not any((directory / PROJECT_FILE).is_file() for directory in (cwd, *cwd.parents)):
        return None
    from ipexctl.projects.root import find_root, root_problem

    root = find_root(None, None, cwd)
    path = root / PROJECT_FILE
    return path if path.is_file() and not root_problem(root) else None


def config_files(named: str | None = None) -> tuple[ConfigFile, ...]:
    """Return the files of this call in order of precedence. `named`: the file of `--config`; None to look for the
    project's.

    Raises a UserError for a file that cannot be read, is not TOML, or could be changed by another account.
    """
    files, has_user_file = [], False
    if named is not None:
        files.append(_read_config_file(expand_tilde(named), "call"))
    with contextlib.suppress(PermissionError):  # a file below a closed directory does not count
        if named is None and (path := project_file()) is not None:
            check_found(path, naming=f"--config {shlex.quote(os.fspath(path))}")
            files.append(_read_config_file(path, "project"))
    user = user_file()
    with contextlib.suppress(PermissionError):  # the home of another account, as after su
        has_user_file = user.is_file()
    if has_user_file:
        check_own(user)
        files.append(_read_config_file(user, "user"))
    return tuple(files)


def _read_config_file(path: Path, origin: Literal["project", "call", "user"]) -> ConfigFile:
    """Read one file. Raises a UserError, or a FileError that points at the mistake."""
    shown = PROJECT_FILE if origin == "project" and path.parent == Path.cwd() else tilde_path(path)
    try:
        text = (read_typed if origin == "call" else read_regular)(path, DEFAULTS).decode("utf-8-sig")
    except TooLargeError:
        raise UserError(f"{shown} is larger than {DEFAULTS.limit:,} bytes", fix=WITHOUT_FILES) from None
    except OSError as error:
        raise UserError(f"{shown} can't be read: {error.strerror}", fix=WITHOUT_FILES) from None
    except UnicodeDecodeError:
        raise UserError(f"{shown} is not text in UTF-8", fix="save it as UTF-8") from None
    source = SourceFile(shown, Path(os.path.abspath(path)).parent, text.splitlines())  # noqa: PTH100
    try:
        return ConfigFile(source, parse_toml(text), origin)
    except TomlError as error:
        position = _POSITION.search(str(error))
        if position is None:
            raise UserError(f"{shown} can't be read: {error}", fix=WITHOUT_FILES) from None
        problem = str(error)[: position.start()]
        line, column = (int(position[1]), int(position[2])) if position[1] else (len(source.lines), 1)
        raise source.error(line, column, f"this is not TOML: {problem}", fix=WITHOUT_FILES) from None
