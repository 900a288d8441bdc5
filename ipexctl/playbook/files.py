"""Reading the files of a playbook, and finding those that come with the tool."""

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
    from ipexctl.playbook.positions import Place

MOST: Final = 8_000_000
_HERE: Final = Path(__file__).parents[2] / "playbooks"
"""Of a checkout; an installed package has them inside."""


def shipped() -> dict[str, Path]:
    """The playbooks that come with the tool, by name."""
    packed = Path(str(resources.files("ipexctl"))) / "playbooks"
    directory = packed if packed.is_dir() else _HERE
    return {path.stem: path for path in sorted(directory.glob("*.yml"))}


def find_playbook(word: str, cwd: Path) -> tuple[Path, str]:
    """A file, or the name of a playbook that comes with the tool; and how messages call it."""
    path = cwd / Path(word).expanduser()
    if path.is_file():
        return path, word
    known = shipped()
    if word in known:
        return known[word], f"{word}.yml"
    if path.is_dir():
        raise UserError(f"{quoted(word)} is a directory", fix="name the playbook in it")
    fix = did_you_mean(word, known, f"a file, or one that comes with ipexctl: {', '.join(known)}")
    raise UserError(f"there is no playbook {quoted(word)}", fix=fix)


def read_file(path: Path, shown: str | None = None, *, at: Place | None = None) -> PlaybookFile:
    """A YAML file; `at` is where another one names it."""
    shown = shown or (str(path) if at is None else _beside(path, at))
    try:
        if (path.stat().st_size if at is None else size_of(path)) > MOST:
            raise UserError(f"{shown} has more than {MOST:,} bytes: that is no playbook")
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        said = (error.strerror or str(error)) if isinstance(error, OSError) else "it is no text"
        if at is None:
            raise UserError(f"{shown}: {said}") from None
        raise at.error(
            f"{quoted(shown)} can't be read: {said}", fix="its path is from the directory of this file"
        ) from None
    return PlaybookFile(text, shown, path.parent)


def size_of(path: Path) -> int:
    """Of what a playbook names; a device or a pipe has no end, or never begins. Raises an OSError."""
    info = path.stat()
    if not (stat.S_ISREG(info.st_mode) or stat.S_ISDIR(info.st_mode)):
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    return info.st_size


def _beside(path: Path, at: Place) -> str:
    """As it is called from where the naming file is."""
    parent = Path(at.source.path).parent
    try:
        return str(parent / path.relative_to(at.source.base))
    except ValueError:
        return str(path)
