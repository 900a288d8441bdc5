"""File systems where two names lead to one file: a Mac's, and Windows below WSL.

They equate `Data` and `data`, and often the two Unicode forms of `é` (NFC and NFD). The file system itself is asked,
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
    ignores_case: bool = True
    ignores_form: bool = True

    def fold(self, name: str) -> str:
        if self.ignores_form:
            name = name if name.isascii() else unicodedata.normalize("NFD", name)
        return name.casefold() if self.ignores_case else name


def find_equal(paths: Mapping[int, str], rules: NameRules) -> dict[int, str]:
    """Numbers of paths that would overwrite an earlier one, or lie below such a directory, with that earlier path."""
    found: dict[int, str] = {}
    first: dict[tuple[int, str], tuple[int, str]] = {}
    """Number of a directory and folded name in it → its own number, and the name."""
    for number, path in paths.items():
        parts, directory = path.split("/"), 0
        for depth, part in enumerate(parts):
            directory, name = first.setdefault((directory, rules.fold(part)), (len(first) + 1, part))
            if name != part:
                found[number] = "/".join([*parts[:depth], name])
                break
    return found


def rules_of(directory: GuardedDirectory) -> NameRules:
    """Tried with a new file that is removed again."""
    name = f".ipexctl-é-{os.urandom(4).hex()}.new"
    number = os.open(encode_name(name), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=directory.number)
    try:
        others = name.replace("ipexctl", "IPEXCTL"), unicodedata.normalize("NFD", name)
        return NameRules(*(directory.status_of(encode_name(other)) is not None for other in others))
    finally:
        os.close(number)
        directory.unlink(encode_name(name))


def composed_name(directory: bytes, name: str, names: Collection[str]) -> str:
    """The name in NFC if it leads to the same file; `names` are the directory's."""
    composed = name if name.isascii() else unicodedata.normalize("NFC", name)
    if composed == name or composed in names:
        return name
    return composed if _is_same(directory, encode_name(name), encode_name(composed)) else name


def stored_path(path: str) -> str:
    """Absolute path without links, with names as stored: one path for each way to type it."""
    done = "/"
    for part in filter(None, path.split("/")):
        other = unicodedata.normalize("NFD" if unicodedata.is_normalized("NFC", part) else "NFC", part).swapcase()
        if other != part and _is_same(os.fsencode(done), os.fsencode(part), os.fsencode(other)):
            with contextlib.suppress(OSError):
                names, rules = os.listdir(done), NameRules()
                part = part if part in names else next((n for n in names if rules.fold(n) == rules.fold(part)), part)
        done = os.path.join(done, part)
    return done


def _is_same(directory: bytes, name: bytes, other: bytes) -> bool:
    try:
        status, of_other = (os.lstat(os.path.join(directory, entry)) for entry in (name, other))
    except OSError:
        return False
    return (status.st_dev, status.st_ino) == (of_other.st_dev, of_other.st_ino)
