"""The user's own `config.toml`: its place, and the directories that it trusts. Also the one parser of TOML.

`trusted-directories` is read only here, so that no project file can add to it, and only after a found file failed its
check (`found_files`), which is rare. `commands/defaults.py` reports mistakes in it.
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
    """Not TOML, or more than Python can hold."""


def parse_toml(text: str) -> dict[str, Any]:
    if sys.version_info >= (3, 11):  # imported here because every command looks for a config.toml
        import tomllib
    else:
        import tomli as tomllib  # type: ignore[import-not-found,unused-ignore]

    # tomllib takes time quadratic in the parts of a key.
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
    """Directory of the user's config.toml and rows.json. Without platformdirs: each command looks for a config.toml."""
    base = os.environ.get("XDG_CONFIG_HOME", "")
    return Path(base if os.path.isabs(base) else os.path.expanduser("~/.config"), "ipexctl")  # noqa: PTH111, PTH117  # Path.expanduser raises without a home


def user_file() -> Path:
    return config_directory() / "config.toml"


def read_trusted_directories() -> tuple[str, ...]:
    """Entries of `trusted-directories`; empty if the file can't be read."""
    try:
        entries = parse_toml(read_regular(user_file(), DEFAULTS).decode("utf-8-sig")).get(TRUSTED)
    except (OSError, ValueError):
        return ()
    return tuple(entry for entry in entries if is_entry(entry)) if isinstance(entries, list) else ()


def is_entry(entry: object) -> bool:
    """True for a valid entry: an absolute path or one that begins with `~`; `/*` at its end adds everything below."""
    return isinstance(entry, str) and entry.startswith(("/", "~")) and "\0" not in entry


def is_listed(directory: str, entries: tuple[str, ...]) -> bool:
    """True if an entry names this directory, or with `/*` one above it. The directory's links are resolved."""
    for entry in entries:
        path = os.path.realpath(os.path.expanduser(entry.removesuffix(_BELOW) or "/"))  # noqa: PTH111
        if directory == path or (entry.endswith(_BELOW) and directory.startswith(path.rstrip("/") + "/")):
            return True
    return False
