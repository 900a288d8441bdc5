"""The user's own `config.toml`: where it is, and the directories that it trusts. Here is the one parser of TOML, too.

`trusted-directories` is read here and nowhere else, so that no file of a project can add to it. This module reads it
only after a found file has failed its check (`found_files`), which is rare; `cli/defaults.py` reports mistakes in it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, Final

from ipexctl.file_reader import DEFAULTS, read_regular

TRUSTED: Final = "trusted-directories"
_BELOW: Final = "/*"
_MOST_PARTS: Final = 100


class TomlError(ValueError):
    """A text that is not TOML, or that Python can't hold."""


def parse_toml(text: str) -> dict[str, Any]:
    """The values of a text that may have been written by anyone. Raises a TomlError."""
    if sys.version_info >= (3, 11):  # imported here, since each command looks for a config.toml
        import tomllib
    else:
        import tomli as tomllib  # type: ignore[import-not-found,unused-ignore]

    # tomllib takes a time that grows with the square of the parts of a key.
    if any(line.partition("=")[0].count(".") > _MOST_PARTS for line in text.splitlines()):
        raise TomlError(f"a key has more than {_MOST_PARTS} parts")
    try:
        values: dict[str, Any] = tomllib.loads(text)
        return values
    except tomllib.TOMLDecodeError as error:
        raise TomlError(str(error)) from None
    except ValueError:  # Python reads no number of thousands of digits
        raise TomlError("a value is too long for a number or a date") from None
    except RecursionError:
        raise TomlError("too deeply nested values") from None


def config_directory() -> Path:
    """The user's config.toml and rows.json. Without platformdirs: each command looks for a config.toml."""
    base = os.environ.get("XDG_CONFIG_HOME", "")
    return Path(base if os.path.isabs(base) else os.path.expanduser("~/.config"), "ipexctl")  # noqa: PTH111, PTH117  # Path.expanduser raises without a home


def user_file() -> Path:
    return config_directory() / "config.toml"


def read_trusted_directories() -> tuple[str, ...]:
    """The entries of `trusted-directories`; none if the file can't be read, as then nothing is trusted."""
    try:
        entries = parse_toml(read_regular(user_file(), DEFAULTS).decode("utf-8-sig")).get(TRUSTED)
    except (OSError, ValueError):
        return ()
    return tuple(entry for entry in entries if is_entry(entry)) if isinstance(entries, list) else ()


def is_entry(entry: object) -> bool:
    """Whether it can be an entry: an absolute path, or one that begins with `~`; `/*` at its end adds all below it."""
    return isinstance(entry, str) and entry.startswith(("/", "~")) and "\0" not in entry


def is_listed(directory: str, entries: tuple[str, ...]) -> bool:
    """Whether an entry names this directory, or with `/*` one above it. Links of the directory are resolved."""
    for entry in entries:
        path = os.path.realpath(os.path.expanduser(entry.removesuffix(_BELOW) or "/"))  # noqa: PTH111
        if directory == path or (entry.endswith(_BELOW) and directory.startswith(path.rstrip("/") + "/")):
            return True
    return False
