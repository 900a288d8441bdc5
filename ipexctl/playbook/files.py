"""Reads the files of a playbook and finds the playbooks that come with ipexctl."""

from __future__ import annotations

import errno
import stat
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ipexctl.errors import UserError
from ipexctl.hosts.names import quoted
from ipexctl.playbook.positions import did_you_mean
from ipexctl.playbook.yaml_values import PlaybookFile

if TYPE_CHECKING:
    from ipexctl.playbook.positions import Position

MAX_BYTES: Final = 8_000_000
_CHECKOUT: Final = Path(__file__).parents[2] / "playbooks"
"""The playbooks of a source checkout; an installed package has them inside."""


def shipped() -> dict[str, Path]:
    """The playbooks that come with ipexctl, by name."""
    packaged = Path(str(resources.files("ipexctl"))) / "playbooks"
    directory = packaged if packaged.is_dir() else _CHECKOUT
    return {path.stem: path for path in sorted(directory.glob("*.yml"))}


def find_playbook(name: str, cwd: Path) -> tuple[Path, str]:
    """The path of a file or of a shipped playbook, and its name in messages."""
    path = cwd / Path(name).expanduser()
    if path.is_file():
        return path, name
    known = shipped()
    if name in known:
        return known[name], f"{name}.yml"
    if path.is_dir():
        raise UserError(f"{quoted(name)} is a directory", fix="name the playbook in it")
    fix = did_you_mean(name, known, f"a file, or one that comes with ipexctl: {', '.join(known)}")
    raise UserError(f"there is no playbook {quoted(name)}", fix=fix)


def read_file(path: Path, shown: str | None = None, *, at: Position | None = None) -> PlaybookFile:
    """Read a YAML file; `at` is the position in another file that names it."""
    shown = shown or (str(path) if at is None else _beside(path, at))
    try:
        if (path.stat().st_size if at is None else size_of(path)) > MAX_BYTES:
            raise UserError(f"{shown} has more than {MAX_BYTES:,} bytes: that is no playbook")
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = (error.strerror or str(error)) if isinstance(error, OSError) else "it is no text"
        if at is None:
            raise UserError(f"{shown}: {reason}") from None
        raise at.error(
            f"{quoted(shown)} can't be read: {reason}", fix="its path is from the directory of this file"
        ) from None
    return PlaybookFile(text, shown, path.parent)


def size_of(path: Path) -> int:
    """Size of a file that a playbook names. Raises OSError for a device or a pipe: reading one may never end."""
    info = path.stat()
    if not (stat.S_ISREG(info.st_mode) or stat.S_ISDIR(info.st_mode)):
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    return info.st_size


def _beside(path: Path, at: Position) -> str:
    """The path as written relative to the file that names it."""
    parent = Path(at.source.path).parent
    try:
        return str(parent / path.relative_to(at.source.base))
    except ValueError:
        return str(path)
