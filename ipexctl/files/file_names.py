"""Handle file systems where two names lead to one file: a Mac's, and that of Windows below WSL.

They equate `Data` and `data`, and often the two Unicode forms of `é` (NFC and NFD). Two files of a host may then
overwrite each other here, and one file may have two paths. The file system itself is asked which names it equates,
because Macs and Linux may have disks of both kinds. Names reach hosts in NFC, as scripts write them and as with git, if
that leads to the same file.
"""

from __future__ import annotations

import contextlib
import os
import unicodedata
from collections.abc import Collection, Mapping
from typing import NamedTuple

from ipexctl.node.common.files import encode_name
from ipexctl.node.common.guarded_directory import GuardedDirectory


class NameRules(NamedTuple):
    """Which names a file system equates. The default is the most that one does."""

    ignores_case: bool = True
    ignores_form: bool = True
    """True if NFC and NFD are one name."""

    def fold(self, name: str) -> str:
        """Return a text that is the same for all names that lead to one file."""
        if self.ignores_form:
            name = name if name.isascii() else unicodedata.normalize("NFD", name)
        return name.casefold() if self.ignores_case else name


def find_equal(paths: Mapping[int, str], rules: NameRules) -> dict[int, str]:
    """Return number of a path → the earlier path that it would overwrite, or that one of its directories would.

    `paths`: number → path. So `Data/a` after `data/b` gives `data`.
    """
    overwritten: dict[int, str] = {}
    first: dict[tuple[int, str], tuple[int, str]] = {}
    """Number of a directory and folded name in it → the entry's own number, and the name that came first."""
    for number, path in paths.items():
        parts, directory = path.split("/"), 0
        for depth, part in enumerate(parts):
            directory, name = first.setdefault((directory, rules.fold(part)), (len(first) + 1, part))
            if name != part:
                overwritten[number] = "/".join([*parts[:depth], name])
                break
    return overwritten


def rules_of(directory: GuardedDirectory) -> NameRules:
    """Return which names a directory equates, tried with a new file that is removed again. Raises an OSError."""
    name = f".ipexctl-é-{os.urandom(4).hex()}.new"
    number = os.open(encode_name(name), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=directory.number)
    try:
        others = name.replace("ipexctl", "IPEXCTL"), unicodedata.normalize("NFD", name)
        return NameRules(*(directory.status_of(encode_name(other)) is not None for other in others))
    finally:
        os.close(number)
        directory.unlink(encode_name(name))


def composed_name(directory: bytes, name: str, names: Collection[str]) -> str:
    """Return the name in NFC if it leads to the same file, else the name. `names`: all names in the directory."""
    composed = name if name.isascii() else unicodedata.normalize("NFC", name)
    if composed == name or composed in names:
        return name
    return composed if _is_same(directory, encode_name(name), encode_name(composed)) else name


def stored_path(path: str) -> str:
    """Return the path with each name as the file system stores it, so that all ways to type a path give the same.

    `path`: absolute, without symlinks.
    """
    done = "/"
    for part in filter(None, path.split("/")):
        other = unicodedata.normalize("NFD" if unicodedata.is_normalized("NFC", part) else "NFC", part).swapcase()
        if other != part and _is_same(os.fsencode(done), os.fsencode(part), os.fsencode(other)):
            with contextlib.suppress(OSError):
                names, rules = os.listdir(done), NameRules()
                folded = rules.fold(part)
                part = part if part in names else next((name for name in names if rules.fold(name) == folded), part)
        done = os.path.join(done, part)
    return done


def _is_same(directory: bytes, name: bytes, other: bytes) -> bool:
    """True if both names lead to one file; False also if one does not exist."""
    try:
        status, other_status = (os.lstat(os.path.join(directory, entry)) for entry in (name, other))
    except OSError:
        return False
    return (status.st_dev, status.st_ino) == (other_status.st_dev, other_status.st_ino)
